//! Refused calls, with their codes and their kinds in the counters: rights, names, fids, kinds,
//! quotas, locks, bad input.

use crate::common;

use crate::common::{ANYUSER, Cell, Machine, OPEN, SHUT, list, mode, name, raw, run, with_file};
use cellar_wire::acl::Rights;
use cellar_wire::ids::{Fid, ViceId, VolumeId};
use cellar_wire::rxafs::{self, AfsStoreStatus};
use cellar_wire::{AfsName, Encode};

/// Every operation with every single right: which one it needs. The calls are anonymous, in a
/// directory whose list gives `system:anyuser` one right. The objects belong to another user.
#[test]
fn rights_by_operation() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let admin = cell.admin().await;
        let root = Fid::root(OPEN);
        cell.set_list(root, list(&[(ANYUSER, "rlidwka")]));
        let make = rxafs::MakeDir {
            dir_fid: root,
            name: name("d"),
            in_status: mode(0o755),
        };
        let dir = admin.call(&make).await.unwrap().fid;
        let new = |title: &str| rxafs::CreateFile {
            dir_fid: dir,
            name: name(title),
            in_status: mode(0o666),
        };
        let file = admin.call(&new("file")).await.unwrap().fid;
        let link = rxafs::Symlink {
            dir_fid: dir,
            name: name("link"),
            link_contents: "x".try_into().unwrap(),
            in_status: mode(0o755),
        };
        let link = admin.call(&link).await.unwrap().fid;
        for letter in "rlidwka".chars() {
            cell.set_list(
                dir,
                list(&[(ANYUSER, &letter.to_string()), (-204, "rlidwka")]),
            );
            let check = |what: &str, needed: &str, code: Option<i32>| {
                let expected = if needed.contains(letter) {
                    None
                } else {
                    Some(13)
                };
                assert_eq!(code, expected, "{what} with {letter}");
            };
            let code = async |outcome: Result<(), cellar_rpc::CallError>| {
                outcome.err().map(|cause| cause.code().0)
            };
            macro_rules! try_call {
                ($call:expr) => {
                    code(machine.call(&$call).await.map(|_| ())).await
                };
            }
            check(
                "FetchStatus of a file",
                "r",
                try_call!(rxafs::FetchStatus { fid: file }),
            );
            check(
                "FetchStatus of a link",
                "l",
                try_call!(rxafs::FetchStatus { fid: link }),
            );
            check(
                "FetchStatus of a directory",
                "rlidwka",
                try_call!(rxafs::FetchStatus { fid: dir }),
            );
            check(
                "FetchData",
                "r",
                code(machine.fetch(file, 0, 9).await.map(|_| ())).await,
            );
            check(
                "FetchData of a directory",
                "l",
                code(machine.fetch(dir, 0, 9).await.map(|_| ())).await,
            );
            check("FetchACL", "l", try_call!(rxafs::FetchACL { fid: dir }));
            check(
                "StoreData",
                "w",
                code(machine.store(file, 0, b"x").await.map(|_| ())).await,
            );
            check(
                "StoreStatus",
                "w",
                try_call!(rxafs::StoreStatus {
                    fid: file,
                    in_status: AfsStoreStatus::default()
                }),
            );
            check(
                "StoreStatus of a directory",
                "id",
                try_call!(rxafs::StoreStatus {
                    fid: dir,
                    in_status: AfsStoreStatus::default()
                }),
            );
            check(
                "SetLock read",
                "kw",
                try_call!(rxafs::SetLock {
                    fid: file,
                    lock_type: 0
                }),
            );
            machine.ok(&rxafs::ReleaseLock { fid: file }).await;
            check(
                "SetLock write",
                "w",
                try_call!(rxafs::SetLock {
                    fid: file,
                    lock_type: 1
                }),
            );
            machine.ok(&rxafs::ReleaseLock { fid: file }).await;
            check("CreateFile", "i", try_call!(new(&format!("new-{letter}"))));
            check(
                "MakeDir",
                "i",
                try_call!(rxafs::MakeDir {
                    dir_fid: dir,
                    name: name(format!("dir-{letter}")),
                    in_status: mode(0o755)
                }),
            );
            check(
                "Link",
                "i",
                try_call!(rxafs::Link {
                    dir_fid: dir,
                    name: name(format!("link-{letter}")),
                    existing_fid: file
                }),
            );
            let symlink = |title: &str, bits| rxafs::Symlink {
                dir_fid: dir,
                name: name(format!("{title}-{letter}")),
                link_contents: "#root.cell.".try_into().unwrap(),
                in_status: mode(bits),
            };
            check("Symlink", "i", try_call!(symlink("sym", 0o755)));
            check("mount point", "", try_call!(symlink("mount", 0o644)));
            check(
                "RemoveFile",
                "d",
                try_call!(rxafs::RemoveFile {
                    dir_fid: dir,
                    name: name("new-i")
                }),
            );
            check(
                "Rename",
                "",
                try_call!(rxafs::Rename {
                    old_dir_fid: dir,
                    old_name: name("file"),
                    new_dir_fid: dir,
                    new_name: name("other")
                }),
            );
            let text = rxafs::AfsOpaque::try_from("1\n0\nsystem:anyuser\t64\n\0").unwrap();
            check(
                "StoreACL",
                "a",
                try_call!(rxafs::StoreACL {
                    fid: dir,
                    access_list: text
                }),
            );
        }
        // Members of the group of administrators have lookup; the superuser has every right.
        let status = admin
            .call(&rxafs::FetchStatus { fid: dir })
            .await
            .unwrap()
            .status;
        assert_eq!(status.caller_access, Rights::EVERYTHING);
        cell.set_list(dir, list(&[(ANYUSER, "ia"), (-204, "rlidwka")]));
        let mount = rxafs::Symlink {
            dir_fid: dir,
            name: name("mount"),
            link_contents: "#root.cell.".try_into().unwrap(),
            in_status: mode(0o644),
        };
        machine.ok(&mount).await;
        cell.set_list(dir, list(&[(ANYUSER, "di")]));
        let rename = rxafs::Rename {
            old_dir_fid: dir,
            old_name: name("file"),
            new_dir_fid: dir,
            new_name: name("other"),
        };
        machine.ok(&rename).await;
        assert!(cell.server.figures().refused("no_right") > 50);
    });
}

#[test]
fn names_and_fids_and_kinds() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let root = Fid::root(OPEN);
        let file = machine.create(root, "file").await;
        let dir = machine.make_dir(root, "dir").await;
        machine.create(dir, "inside").await;
        let create = |title: &[u8]| rxafs::CreateFile {
            dir_fid: root,
            name: AfsName::try_from(title).unwrap(),
            in_status: mode(0o644),
        };
        for (title, code) in [
            (&b""[..], 22),
            (b".", 17),
            (b"..", 17),
            (b"a/b", 22),
            (b"a\0b", -453),
            (b"x.@sys", 22),
            (b"file", 17),
            (&[b'x'; 256], 36),
        ] {
            assert_eq!(machine.code(&create(title)).await, code, "{title:?}");
        }
        machine.ok(&create(&[b'y'; 255])).await;
        machine.ok(&create(b"\xff\xfe not UTF-8")).await;
        let remove = |dir_fid, title: &str| rxafs::RemoveFile {
            dir_fid,
            name: name(title),
        };
        assert_eq!(machine.code(&remove(root, "missing")).await, 2);
        assert_eq!(machine.code(&remove(root, "dir")).await, 21);
        assert_eq!(machine.code(&remove(root, "..")).await, 22);
        assert_eq!(machine.code(&remove(root, "a/b")).await, 2);
        assert_eq!(machine.code(&remove(root, "")).await, 2);
        assert_eq!(machine.code(&remove(file, "x")).await, 20);
        let remove_dir = |title: &str| rxafs::RemoveDir {
            dir_fid: root,
            name: name(title),
        };
        assert_eq!(machine.code(&remove_dir("file")).await, 20);
        assert_eq!(machine.code(&remove_dir("dir")).await, 17);
        let link = |existing_fid| rxafs::Link {
            dir_fid: root,
            name: name("l"),
            existing_fid,
        };
        assert_eq!(machine.code(&link(dir)).await, 21);
        assert_eq!(
            machine
                .code(&link(Fid {
                    volume: SHUT,
                    ..file
                }))
                .await,
            18
        );
        assert_eq!(machine.store(dir, 0, b"x").await.unwrap_err().code().0, 21);
        let rename = |old: &str, new_dir_fid, new: &str| rxafs::Rename {
            old_dir_fid: root,
            old_name: name(old),
            new_dir_fid,
            new_name: name(new),
        };
        let deep = machine.make_dir(dir, "deep").await;
        for (call, code) in [
            (rename("missing", root, "x"), 2),
            (rename("file", root, "dir"), 21),
            (rename("dir", root, "file"), 20),
            (rename("dir", deep, "x"), 90),
            (rename("dir", dir, "x"), 90),
            (rename("file", root, "a/b"), 22),
            (rename("..", root, "x"), 22),
            (rename("file", Fid::root(SHUT), "x"), 18),
            (rename("file", file, "x"), 20),
        ] {
            assert_eq!(machine.code(&call).await, code, "{call:?}");
        }
        let status = |volume, vnode, unique| rxafs::FetchStatus {
            fid: Fid::new(volume, vnode, unique),
        };
        for (call, code) in [
            (status(0, 1, 1), 22),
            (status(OPEN.0, 0, 1), 22),
            (status(1, 1, 1), 103),
            (status(OPEN.0, file.vnode.0, file.uniquifier.0 + 1), 102),
            (status(OPEN.0, 0xffff_fffe, 1), 102),
            (status(OPEN.0, 0xffff_ffff, 1), 102),
        ] {
            assert_eq!(machine.code(&call).await, code, "{call:?}");
        }
        let figures = cell.server.figures();
        for (kind, least) in [
            ("invalid", 8),
            ("name", 4),
            ("wrong_kind", 6),
            ("stale_fid", 3),
            ("no_fid", 2),
            ("volume", 1),
        ] {
            assert!(
                figures.refused(kind) >= least,
                "{kind}: {}",
                figures.refused(kind)
            );
        }
    });
}

#[test]
fn calls_that_are_always_refused() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let fid = Fid::root(OPEN);
        let vice_id = ViceId(1);
        assert_eq!(machine.code(&rxafs::GetRootVolume {}).await, 122);
        let token = Default::default();
        assert_eq!(
            machine.code(&rxafs::CheckToken { vice_id, token }).await,
            130
        );
        assert_eq!(
            machine
                .code(&rxafs::NGetVolumeInfo {
                    volume_name: name("x")
                })
                .await,
            103
        );
        assert_eq!(
            machine
                .code(&rxafs::Lookup {
                    dir_fid: fid,
                    name: name("x")
                })
                .await,
            22
        );
        assert_eq!(
            machine
                .code(&rxafs::CallBackRxConnAddr { address: 1 })
                .await,
            1
        );
        for opcode in [0u32, 1, 129, 165, 64132, 65543, 65557, u32::MAX] {
            let refused = raw(&machine.connection, opcode.to_be_bytes().to_vec()).await;
            assert_eq!(refused.unwrap_err().code().0, -455, "{opcode}");
        }
        assert_eq!(cell.server.figures().refused("unknown_opcode"), 8);
    });
}

#[test]
fn arguments_cut_short_or_absurd_are_refused_and_counted() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let fids = rxafs::Fids::from_iter_cut([Fid::root(OPEN)]);
        let mut whole = vec![0, 1, 0, 0];
        whole.extend_from_slice(&rxafs::InlineBulkStatus { fids }.to_xdr());
        for len in 0..whole.len() {
            let refused = raw(&machine.connection, whole[..len].to_vec())
                .await
                .unwrap_err();
            let expected = if len < 4 { -454 } else { -453 };
            assert_eq!(refused.code().0, expected, "{len} bytes");
        }
        let mut absurd = whole.clone();
        absurd[4..8].copy_from_slice(&[0xff; 4]);
        assert_eq!(
            raw(&machine.connection, absurd).await.unwrap_err().code().0,
            -453
        );
        let mut many = whole.clone();
        many[4..8].copy_from_slice(&51u32.to_be_bytes());
        many.resize(8 + 51 * 12, 0);
        assert_eq!(
            raw(&machine.connection, many).await.unwrap_err().code().0,
            -453
        );
        assert!(
            !raw(&machine.connection, whole.clone())
                .await
                .unwrap()
                .is_empty()
        );
        assert!(cell.server.figures().refused("bad_arguments") >= whole.len() as u64);
        // A store that announces more than it sends changes nothing.
        let fid = machine.create(Fid::root(OPEN), "f").await;
        for length in [100u64, 300_000] {
            let call = rxafs::StoreData64 {
                fid,
                in_status: AfsStoreStatus::default(),
                position: 0,
                length,
                file_length: length,
            };
            let mut call = machine.connection.open(&call).await.unwrap();
            call.write("only this".into()).await.unwrap();
            call.finish();
            let refused = call.read::<rxafs::StoreData64Reply>().await.unwrap_err();
            assert_eq!(refused.code().0, -32);
        }
        let status = machine.status(fid).await.status;
        assert_eq!((status.length, status.data_version), (0, 0));
        // Positions and lengths beyond any file.
        for (position, length) in [(u64::MAX, 1), (1 << 63, 0), (0, u64::MAX)] {
            let in_status = AfsStoreStatus::default();
            let call = rxafs::StoreData64 {
                fid,
                in_status,
                position,
                length,
                file_length: 0,
            };
            let mut call = machine.connection.open(&call).await.unwrap();
            call.finish();
            let refused = call.read::<rxafs::StoreData64Reply>().await.unwrap_err();
            assert_eq!(refused.code().0, 27);
        }
    });
}

#[test]
fn quotas_hold_and_can_be_changed_by_administrators() {
    with_file(async |cell, [machine], fid| {
        let quota = |blocks| rxafs::SetVolumeStatus {
            volume: OPEN,
            status: rxafs::StoreVolumeStatus {
                min_quota: None,
                max_quota: Some(blocks),
            },
            name: name("ignored"),
            offline_message: Default::default(),
            message_of_the_day: "be nice".try_into().unwrap(),
        };
        assert_eq!(machine.code(&quota(100)).await, 13);
        cell.admin().await.call(&quota(100)).await.unwrap();
        let answer = machine.ok(&rxafs::GetVolumeStatus { volume: OPEN }).await;
        assert_eq!(
            (answer.status.max_quota, answer.status.volume_type),
            (100, 1)
        );
        assert_eq!(
            (&answer.name[..], &answer.message_of_the_day[..]),
            (&b"scratch"[..], &b"be nice"[..])
        );
        assert!(answer.status.online && answer.status.partition_blocks_available > 1000);
        // A store may exceed the quota by the slack, and no more.
        machine.store(fid, 0, &[1; 1_000_000]).await.unwrap();
        for bytes in [1_300_000, 40_000_000usize] {
            let refused = machine.store(fid, 0, &vec![1; bytes]).await.unwrap_err();
            assert_eq!(refused.code().0, 109);
        }
        let create = rxafs::CreateFile {
            dir_fid: Fid::root(OPEN),
            name: name("g"),
            in_status: mode(0o644),
        };
        assert_eq!(machine.code(&create).await, 109);
        assert_eq!(machine.status(fid).await.status.length, 1_000_000);
        cell.admin().await.call(&quota(0)).await.unwrap();
        machine.ok(&create).await;
        assert_eq!(cell.server.figures().refused("over_quota"), 3);
        let none = rxafs::GetVolumeStatus {
            volume: VolumeId(0),
        };
        assert_eq!(machine.code(&none).await, 22);
    });
}

#[test]
fn locks_conflict_expire_and_are_shown() {
    with_file(async |cell, [one, two], fid| {
        let set = |lock_type| rxafs::SetLock { fid, lock_type };
        one.ok(&set(1)).await;
        assert_eq!(two.code(&set(0)).await, 11);
        assert_eq!(two.code(&set(7)).await, 22);
        assert_eq!(two.status(fid).await.status.lock_count, -1);
        cell.wait_secs(200);
        one.ok(&rxafs::ExtendLock { fid }).await;
        cell.wait_secs(200);
        assert_eq!(two.code(&set(1)).await, 11);
        cell.wait_secs(200);
        two.ok(&set(0)).await;
        two.ok(&rxafs::ReleaseLock { fid }).await;
        two.ok(&rxafs::ReleaseLock { fid }).await;
        assert_eq!(two.code(&rxafs::ExtendLock { fid }).await, 22);
        let sync = rxafs::VolSync::default();
        one.ok(&rxafs::OldSetLock {
            fid,
            lock_type: 0,
            sync,
        })
        .await;
        one.ok(&rxafs::OldExtendLock { fid, sync }).await;
        one.ok(&rxafs::OldReleaseLock { fid, sync }).await;
        assert_eq!(
            one.code(&rxafs::SetLock {
                fid: Fid::new(OPEN.0, 998, 1),
                lock_type: 0
            })
            .await,
            102
        );
        assert_eq!(cell.server.figures().refused("locked"), 2);
    });
}

#[test]
fn lists_as_text() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let root = Fid::root(OPEN);
        let store = |text: &str| rxafs::StoreACL {
            fid: root,
            access_list: rxafs::AfsOpaque::try_from(text).unwrap(),
        };
        let text = "3\n1\nsystem:anyuser\t127\nalice\t16777225\nlab\t9\nbob\t127\n\0";
        machine.ok(&store(text)).await;
        let reply = machine.ok(&rxafs::FetchACL { fid: root }).await;
        let answer = String::from_utf8(reply.access_list.to_vec()).unwrap();
        let mut lines: Vec<&str> = answer.trim_end_matches('\0').lines().collect();
        assert_eq!(lines[..2], ["3", "1"]);
        lines[2..5].sort_unstable();
        assert_eq!(
            lines[2..],
            [
                "alice\t16777225",
                "lab\t9",
                "system:anyuser\t127",
                "bob\t127"
            ]
        );
        assert!(answer.ends_with('\0'));
        // For a file, the list of its directory is returned.
        let file = machine.create(root, "f").await;
        assert_eq!(
            machine.ok(&rxafs::FetchACL { fid: file }).await.access_list,
            reply.access_list
        );
        for bad in [
            "",
            "1\n0\nalice\t1\n",
            "1\n0\nnobody-like-that\t1\n\0",
            "2\n0\nalice\t1\n\0",
            "x\n\0",
        ] {
            assert_eq!(machine.code(&store(bad)).await, 22, "{bad:?}");
        }
        let many = format!("21\n0\n{}\0", "alice\t1\n".repeat(21));
        assert_eq!(machine.code(&store(&many)).await, 22);
        let on_file = rxafs::StoreACL {
            fid: file,
            ..store("0\n0\n\0")
        };
        assert_eq!(machine.code(&on_file).await, 20);
        // Without the database, lists can be read but not changed.
        cell.names
            .unreachable
            .store(true, std::sync::atomic::Ordering::Relaxed);
        let answer = machine.ok(&rxafs::FetchACL { fid: root }).await.access_list;
        assert!(answer.starts_with(b"3\n1\n-400\t9\n"), "{answer:?}");
        assert_eq!(machine.code(&store("1\n0\nalice\t127\n\0")).await, -1001);
        let inherited = machine.make_dir(root, "d").await;
        assert_eq!(
            machine
                .ok(&rxafs::FetchACL { fid: inherited })
                .await
                .access_list,
            answer
        );
    });
}

#[test]
fn statistics_are_those_that_stock_tools_read() {
    with_file(async |_, [machine], fid| {
        machine.store(fid, 0, &[1; 5000]).await.unwrap();
        machine.fetch(fid, 0, 5000).await.unwrap();
        let stats = |collection| rxafs::GetXStats {
            client_version: 2,
            collection,
        };
        let words = async |collection| machine.ok(&stats(collection)).await.data.into_vec();
        assert_eq!(words(0).await.len(), 0);
        assert_eq!(words(1).await.len(), 98);
        let full = words(2).await;
        assert_eq!(full.len(), 666);
        let at = |operation: usize| 102 + operation * 18;
        assert_eq!(full[at(0)..at(0) + 2], [1, 1], "FetchData");
        assert_eq!(full[at(7)..at(7) + 2], [1, 1], "CreateFile");
        assert_eq!(full[at(28)..at(28) + 2], [1, 1], "data fetched");
        assert_eq!(full[at(28) + 18], 4, "KiB");
        assert_eq!(words(3).await.len(), 16);
        assert_eq!(machine.code(&stats(4)).await, 1);
        assert_eq!(machine.ok(&rxafs::XStatsVersion {}).await.version, 2);
        let old = machine.ok(&rxafs::GetStatistics {}).await.statistics;
        assert_eq!(
            (old.fetch_datas, old.stored_bytes, old.workstations),
            (1, 5000, 1)
        );
        assert_eq!(&old.disks.0[0].name[..], b"/vicepa");
        let new = machine
            .ok(&rxafs::GetStatistics64 { version: 16 })
            .await
            .statistics;
        assert_eq!((new.len(), new[10], new[0]), (16, 5000, common::NOW));
        assert_eq!(
            machine.code(&rxafs::GetStatistics64 { version: 15 }).await,
            22
        );
        assert_eq!(
            machine.ok(&rxafs::GetTime {}).await.seconds,
            common::NOW as u32
        );
        let words = machine.ok(&rxafs::GetCapabilities {}).await.capabilities;
        assert_eq!(words.to_vec(), [7]);
    });
}
