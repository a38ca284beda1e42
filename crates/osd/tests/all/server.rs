//! A server of two devices, called over the network.

use crate::common;

use crate::common::{Cell, body, capability_for, id, pattern};
use cellar_rpc::CallError;
use cellar_until::until_some;
use cellar_volume::disk::Fault;
use cellar_wire::AbortCode;
use cellar_wire::object::{
    Capability, CapabilityBody, MAY_ALL, MAY_READ, MAY_WRITE, ObjectId, device_only,
};
use cellar_wire::osd::{
    Checksum, Copy, Digest, Examine, GetSpace, GetStatistics, LIST_REMOVED, ListObjects, Needed,
    Prune, Purge, REMOVE_SOFT, Remove, SUM_CRC32C, SUM_MD5, SUM_SHA256, Scrub, ScrubStatus,
    Truncate, Undelete, Write,
};
use cellar_wire::{AfsString, List};
use md5::Md5;
use sha2::{Digest as _, Sha256};

fn aborted<T: std::fmt::Debug>(result: Result<T, CallError>) -> AbortCode {
    match result {
        Err(CallError::Aborted(code)) => code,
        other => panic!("{other:?}"),
    }
}

fn all_figures(reply: &cellar_wire::osd::GetStatisticsReply) -> Vec<(String, u64)> {
    let name = |name: &AfsString<64>| String::from_utf8_lossy(name.as_bytes()).into_owned();
    let figures = reply.figures.iter();
    figures
        .map(|figure| (name(&figure.name), figure.value))
        .collect()
}

fn figure(reply: &cellar_wire::osd::GetStatisticsReply, wanted: &str) -> u64 {
    let figures = all_figures(reply);
    let found = figures.iter().find(|(name, _)| name == wanted);
    found.unwrap_or_else(|| panic!("{wanted} in {figures:?}")).1
}

#[test]
fn bytes_go_in_and_come_out_in_every_size_and_place() {
    let cell = Cell::start();
    cell.run(async |cell| {
        let (object, all) = (id(1), capability_for(&cell.keys, &body(1, id(1), MAY_ALL)));
        let mut model = Vec::new();
        let places = [
            (0, 1_000_000),
            (3_000_001, 65_536),
            (10, 5),
            (999_999, 2_000_003),
            (0, 1),
        ];
        for (n, (position, length)) in places.into_iter().enumerate() {
            let bytes = pattern(length, n as u8);
            cell.write(&all, object, 0, 10, position, &bytes)
                .await
                .unwrap();
            let end = position as usize + length;
            model.resize(model.len().max(end), 0);
            model[position as usize..end].copy_from_slice(&bytes);
        }
        let whole = cell.read(&all, object, 10, 0, u64::MAX).await.unwrap();
        assert!(whole == model, "{} and {} bytes", whole.len(), model.len());
        for (position, length) in [
            (4095, 2),
            (2_999_990, 100),
            (3_065_000, 10_000),
            (9 << 20, 5),
        ] {
            let part = cell.read(&all, object, 10, position, length).await.unwrap();
            let begin = (position as usize).min(model.len());
            let end = (begin + length as usize).min(model.len());
            assert!(part == model[begin..end], "{position} {length}");
        }
    });
}

#[test]
fn bytes_that_the_device_is_waited_for_come_in_order() {
    let cell = Cell::start();
    cell.run(async |cell| {
        // On the machine's disk: bytes at such a large offset do not stay in its memory.
        let begin = 5 << 30;
        let (object, all) = (id(1), capability_for(&cell.keys, &body(2, id(1), MAY_ALL)));
        let bytes = pattern(5_000_003, 9);
        let written = common::write(&cell.second, &all, object, (0, 10), begin + 5, &bytes);
        written.await.unwrap();
        let model = [&[0; 5][..], &bytes].concat();
        for (position, length) in [
            (300_000_usize, 2_000_000),
            (0, usize::MAX),
            (4_999_000, 500),
        ] {
            let read = common::read(
                &cell.second,
                &all,
                object,
                10,
                begin + position as u64,
                length as u64,
            );
            let end = position.saturating_add(length).min(model.len());
            assert!(read.await.unwrap() == model[position..end], "{position}");
        }
    });
}

#[test]
fn a_write_that_cannot_be_is_told_so_before_all_has_come() {
    let cell = Cell::start();
    cell.run(async |cell| {
        let all = capability_for(&cell.keys, &body(1, id(1), MAY_ALL));
        cell.write(&all, id(1), 0, 10, 0, b"bytes").await.unwrap();
        cell.disk.set_fault(Fault::Write(1));
        let write = Write {
            capability: all.clone(),
            object: id(1),
            base: 0,
            version: 10,
            position: 0,
            length: 2 << 20,
        };
        let mut call = cell.osd.open(&write).await.unwrap();
        call.write(vec![1; 700 << 10].into()).await.unwrap();
        let refused = until_some("a refusal", async || call.write(vec![1].into()).await.err());
        assert_eq!(aborted::<()>(Err(refused.await)), AbortCode::EIO);
        assert_eq!(cell.read(&all, id(1), 10, 0, 9).await.unwrap(), b"bytes");
    });
}

/// After a failed write the device accepts no more changes: EIO, not "read-only". Reads continue.
#[test]
fn a_device_whose_disk_failed_refuses_changes_with_eio() {
    for fault in [Fault::Sync(1), Fault::Dead(1)] {
        let cell = Cell::start();
        cell.run_till_a_disk_fails(async |cell| {
            let all = capability_for(&cell.keys, &body(1, id(1), MAY_ALL));
            let whole = capability_for(&cell.keys, &body(1, ObjectId::default(), MAY_ALL));
            let other = capability_for(&cell.keys, &body(1, id(2), MAY_ALL));
            cell.write(&all, id(1), 0, 10, 0, b"bytes").await.unwrap();
            cell.write(&other, id(2), 0, 10, 0, b"bytes").await.unwrap();
            cell.disk.set_fault(fault);
            for version in 11..14 {
                let written = cell.write(&all, id(1), 10, version, 0, b"others").await;
                assert_eq!(aborted(written), AbortCode::EIO, "a write after {fault:?}");
            }
            let cut = Truncate {
                capability: all.clone(),
                object: id(1),
                base: 10,
                version: 20,
                length: 2,
            };
            assert_eq!(aborted(cell.osd.call(&cut).await), AbortCode::EIO);
            // A change that reaches the journal stops the device, if no earlier one did. A write
            // may fail before, at its block. A stopped device takes no change into memory.
            for object in [id(2), id(1)] {
                let remove = Remove {
                    capability: whole.clone(),
                    objects: List::from_iter_cut([object]),
                    flags: REMOVE_SOFT,
                };
                assert_eq!(aborted(cell.osd.call(&remove).await), AbortCode::EIO);
            }
            assert_eq!(cell.read(&all, id(1), 10, 0, 9).await.unwrap(), b"bytes");
            // Nothing new may be placed there, at once and not only after the next heartbeat.
            let space = cell.osd.call(&GetSpace {}).await.unwrap();
            assert_eq!(space.devices[0].free, 0);
        });
    }
}

#[test]
fn versions_are_apart_until_they_are_let_go() {
    let cell = Cell::start();
    cell.run(async |cell| {
        let (object, all) = (id(1), capability_for(&cell.keys, &body(1, id(1), MAY_ALL)));
        let first = pattern(600_000, 1);
        cell.write(&all, object, 0, 10, 0, &first).await.unwrap();
        cell.write(&all, object, 10, 20, 300_000, b"second")
            .await
            .unwrap();
        let truncate = Truncate {
            capability: all.clone(),
            object,
            base: 20,
            version: 30,
            length: 300_003,
        };
        cell.osd.call(&truncate).await.unwrap();
        let mut second = first.clone();
        second[300_000..300_006].copy_from_slice(b"second");
        for (version, bytes) in [
            (10, &first[..]),
            (20, &second[..]),
            (30, &second[..300_003]),
        ] {
            let read = cell.read(&all, object, version, 0, u64::MAX).await.unwrap();
            assert!(read == bytes, "version {version}");
        }
        let stale = cell.write(&all, object, 10, 25, 0, b"late").await;
        assert_eq!(aborted(stale), AbortCode::ESTALE);
        let unknown = cell.read(&all, object, 25, 0, 1).await;
        assert_eq!(aborted(unknown), AbortCode::ENOENT);
        let needed = Needed {
            object,
            keep: List::from_iter_cut([30]),
            below: 30,
        };
        let prune = Prune {
            capability: all.clone(),
            needed: List::from_iter_cut([needed]),
        };
        let freed = cell.osd.call(&prune).await.unwrap().freed;
        assert!(freed > 300_000, "{freed}");
        let examine = Examine {
            capability: all.clone(),
            object,
        };
        let info = cell.osd.call(&examine).await.unwrap().info;
        let versions: Vec<_> = info
            .versions
            .iter()
            .map(|v| (v.version, v.length))
            .collect();
        assert_eq!(versions, [(30, 300_003)]);
        assert_eq!(info.allocated, 74 * 4096);
        let read = cell.read(&all, object, 30, 0, u64::MAX).await.unwrap();
        assert!(read == second[..300_003]);
        assert_eq!(
            aborted(cell.read(&all, object, 10, 0, 1).await),
            AbortCode::ENOENT
        );
    });
}

#[test]
fn capabilities_are_asked_for_every_call_and_refusals_counted() {
    let cell = Cell::start();
    cell.run(async |cell| {
        let object = id(1);
        let sealed = |body| capability_for(&cell.keys, &body);
        let mut writing = body(1, object, MAY_WRITE);
        (writing.base, writing.version, writing.end) = (0, 7, 1000);
        let mut reading = body(1, object, MAY_READ);
        reading.base = 7;
        let (write, read) = (sealed(writing.clone()), sealed(reading.clone()));
        cell.write(&write, object, 0, 7, 0, b"bytes").await.unwrap();
        assert_eq!(cell.read(&read, object, 7, 0, 100).await.unwrap(), b"bytes");
        let refused = async |capability: Capability, object, osd: u32, position| {
            let connection = if osd == 1 { &cell.osd } else { &cell.second };
            let read = common::read(connection, &capability, object, 7, position, 4).await;
            assert_eq!(aborted(read), AbortCode::EACCES);
        };
        let mut changed = read.to_vec();
        *changed.last_mut().unwrap() ^= 1;
        refused(Capability::new(changed).unwrap(), object, 1, 0).await;
        refused(Capability::default(), object, 1, 0).await;
        refused(write.clone(), object, 1, 0).await;
        refused(read.clone(), id(2), 1, 0).await;
        refused(
            sealed(cellar_wire::object::CapabilityBody {
                osd: 9,
                ..reading.clone()
            }),
            object,
            1,
            0,
        )
        .await;
        let mut old = reading.clone();
        old.expires -= 3600;
        refused(sealed(old), object, 1, 0).await;
        let mut elsewhere = reading.clone();
        elsewhere.clients = List::from_iter_cut([[0, 0, 0xffff, 0xc000_0201]]);
        refused(sealed(elsewhere), object, 1, 0).await;
        let mut beginning = reading.clone();
        beginning.end = 3;
        refused(sealed(beginning), object, 1, 0).await;
        let list = ListObjects {
            capability: read.clone(),
            volume: 0,
            after: Default::default(),
            limit: 10,
            flags: 0,
        };
        assert_eq!(aborted(cell.osd.call(&list).await), AbortCode::EACCES);
        let beyond = cell.write(&write, object, 0, 7, 999, b"xx").await;
        assert_eq!(aborted(beyond), AbortCode::EACCES);
        // A caller without a ticket is no superuser.
        let named = cell.read(&device_only(1), object, 7, 0, 4).await;
        assert_eq!(aborted(named), AbortCode::EPERM);
        let superuser = &cell.superuser;
        let read = common::read(superuser, &device_only(1), object, 7, 0, 100).await;
        assert_eq!(read.unwrap(), b"bytes");
        let counted = cell.osd.call(&GetStatistics {}).await.unwrap();
        for (name, count) in [
            ("refused_tampered", 2),
            ("refused_other_rights", 2),
            ("refused_other_object", 1),
            ("refused_expired", 1),
            ("refused_other_client", 1),
            ("refused_other_range", 2),
            ("refused_other_osd", 1),
            ("refused_not_superuser", 1),
            ("calls_Write", 2),
        ] {
            assert_eq!(
                figure(&counted, name),
                count,
                "{name}: {:?}",
                all_figures(&counted)
            );
        }
    });
}

#[test]
fn every_call_but_two_is_refused_without_a_capability_and_changes_nothing() {
    let cell = Cell::start();
    cell.run(async |cell| {
        let all = capability_for(&cell.keys, &body(1, id(1), MAY_ALL));
        cell.write(&all, id(1), 0, 10, 0, b"bytes").await.unwrap();
        let object = id(1);
        let objects = || List::from_iter_cut([id(1)]);
        // A valid capability for another device is not valid for this one.
        let other = capability_for(&cell.keys, &body(2, id(1), MAY_ALL));
        for (capability, expected) in [
            (Capability::default(), AbortCode::EACCES),
            (other, AbortCode::EACCES),
            (device_only(1), AbortCode::EPERM),
        ] {
            let read = common::read(&cell.osd, &capability, object, 10, 0, 5).await;
            let write = cell.write(&capability, object, 10, 11, 0, b"other").await;
            let mut refused = vec![("Read", aborted(read)), ("Write", aborted(write))];
            macro_rules! call {
                ($($name:ident { $($field:ident: $value:expr),* })*) => { $(
                    let call = $name { capability: capability.clone(), $($field: $value),* };
                    refused.push((stringify!($name), aborted(cell.osd.call(&call).await)));
                )* };
            }
            let needed = Needed {
                object,
                keep: List::default(),
                below: u64::MAX,
            };
            let peer = cell.osd.peer().unwrap();
            call! {
                Truncate { object: object, base: 10, version: 11, length: 0 }
                Copy {
                    object: object, version: 11, source_capability: all.clone(), source: object,
                    source_version: 10, host: cellar_auth::capability::address_words(peer.ip()),
                    port: peer.port().into()
                }
                Examine { object: object }
                Checksum { object: object, version: 10, sums: SUM_MD5 }
                Digest { object: object, version: 10 }
                ListObjects { volume: 0, after: Default::default(), limit: 10, flags: 0 }
                Prune { needed: List::from_iter_cut([needed]) }
                Remove { objects: objects(), flags: 0 }
                Undelete { objects: objects() }
                Purge { before: u64::MAX }
                Scrub { rate_kib: 0 }
                ScrubStatus {}
            }
            for (name, code) in &refused {
                assert_eq!(*code, expected, "{name}");
            }
            // The author of a new call states here whether any caller may make it.
            let open = cellar_wire::osd::PACKAGE.procedures.iter();
            let open: Vec<_> = open
                .map(|procedure| procedure.name)
                .filter(|name| !refused.iter().any(|(tried, _)| tried == name))
                .collect();
            assert_eq!(open, ["GetSpace", "GetStatistics"]);
        }
        let examine = Examine {
            capability: all.clone(),
            object,
        };
        let info = cell.osd.call(&examine).await.unwrap().info;
        assert_eq!((info.removed, info.versions.len()), (0, 1));
        assert_eq!(cell.read(&all, object, 10, 0, 9).await.unwrap(), b"bytes");
    });
}

#[test]
fn objects_are_copied_between_servers_and_summed() {
    let cell = Cell::start();
    cell.run(async |cell| {
        let (object, all) = (id(1), capability_for(&cell.keys, &body(1, id(1), MAY_ALL)));
        let bytes = pattern(20_000_001, 5);
        cell.write(&all, object, 0, 10, 0, &bytes).await.unwrap();
        let of_target = capability_for(&cell.keys, &body(2, id(9), MAY_ALL));
        let peer = cell.osd.peer().unwrap();
        let copy = Copy {
            capability: of_target.clone(),
            object: id(9),
            version: 11,
            source_capability: all.clone(),
            source: object,
            source_version: 10,
            host: cellar_auth::capability::address_words(peer.ip()),
            port: peer.port().into(),
        };
        // Data of an earlier attempt is gone afterwards.
        let longer = pattern(20_100_000, 6);
        let written = common::write(&cell.second, &of_target, id(9), (0, 11), 0, &longer).await;
        written.unwrap();
        let reply = cell.second.call(&copy).await.unwrap();
        assert_eq!(reply.length, bytes.len() as u64);
        let checksum = |capability, object, version| Checksum {
            capability,
            object,
            version,
            sums: SUM_CRC32C | SUM_SHA256 | SUM_MD5,
        };
        let of_part = CapabilityBody {
            base: 10,
            end: 20_000_000,
            ..body(1, object, MAY_READ)
        };
        let of_part = capability_for(&cell.keys, &of_part);
        let refused = cell.osd.call(&checksum(of_part, object, 10)).await;
        assert_eq!(aborted(refused), AbortCode::EACCES);
        let here = cell.osd.call(&checksum(all, object, 10)).await.unwrap();
        let there = cell
            .second
            .call(&checksum(of_target, id(9), 11))
            .await
            .unwrap();
        assert_eq!(here, there);
        assert_eq!(here.crc32c, crc32c::crc32c(&bytes));
        let words = |sum: &[u8]| -> Vec<u32> {
            let words = sum.as_chunks::<4>().0.iter();
            words.map(|word| u32::from_be_bytes(*word)).collect()
        };
        assert_eq!(here.sha256[..], words(&Sha256::digest(&bytes)));
        assert_eq!(here.md5[..], words(&Md5::digest(&bytes)));
        assert_eq!(here.length, bytes.len() as u64);
        let lost = Copy {
            source_version: 99,
            ..copy.clone()
        };
        assert_eq!(aborted(cell.second.call(&lost).await), AbortCode::ENOENT);
        // A client with permission to write the object only cannot make the server call other
        // addresses.
        let of_client = CapabilityBody {
            version: 11,
            ..body(2, id(9), MAY_WRITE)
        };
        let by_client = Copy {
            capability: capability_for(&cell.keys, &of_client),
            ..copy
        };
        let refused = cell.second.call(&by_client).await;
        assert_eq!(aborted(refused), AbortCode::EACCES);
    });
}

#[test]
fn holes_are_copied_as_holes() {
    let cell = Cell::start();
    cell.run(async |cell| {
        let all = capability_for(&cell.keys, &body(1, id(1), MAY_ALL));
        let of_target = capability_for(&cell.keys, &body(2, id(9), MAY_ALL));
        // With a hole before and after the data.
        let (at, length) = (44 << 20, 50 << 20);
        cell.write(&all, id(1), 0, 10, at, b"bytes").await.unwrap();
        let longer = Truncate {
            capability: all.clone(),
            object: id(1),
            base: 0,
            version: 10,
            length,
        };
        cell.osd.call(&longer).await.unwrap();
        let peer = cell.osd.peer().unwrap();
        let copy = Copy {
            capability: of_target.clone(),
            object: id(9),
            version: 11,
            source_capability: all,
            source: id(1),
            source_version: 10,
            host: cellar_auth::capability::address_words(peer.ip()),
            port: peer.port().into(),
        };
        assert_eq!(cell.second.call(&copy).await.unwrap().length, length);
        let examine = Examine {
            capability: of_target.clone(),
            object: id(9),
        };
        let info = cell.second.call(&examine).await.unwrap().info;
        assert_eq!(info.versions[0].length, length);
        assert!(info.allocated <= 9 << 20, "{info:?}");
        let read = common::read(&cell.second, &of_target, id(9), 11, at - 1, 7).await;
        assert_eq!(read.unwrap(), b"\0bytes\0");
    });
}

#[test]
fn removals_are_soft_until_a_database_says_otherwise() {
    // No database answers at this address.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let cell = Cell::start_with(vec![silent.local_addr().unwrap()]);
    cell.run(async |cell| {
        let all = capability_for(&cell.keys, &body(1, id(1), MAY_ALL));
        cell.write(&all, id(1), 0, 3, 0, b"bytes").await.unwrap();
        let objects: List<_, _> = List::from_iter_cut([id(1)]);
        let remove = Remove {
            capability: all.clone(),
            objects: objects.clone(),
            flags: 0,
        };
        assert_eq!(cell.osd.call(&remove).await.unwrap().removed, 1);
        let undelete = Undelete {
            capability: all.clone(),
            objects,
        };
        assert_eq!(cell.osd.call(&undelete).await.unwrap().restored, 1);
        assert_eq!(cell.read(&all, id(1), 3, 0, 5).await.unwrap(), b"bytes");
    });
}

#[test]
fn softly_removed_objects_can_return_until_they_are_purged() {
    let cell = Cell::start();
    cell.run(async |cell| {
        let all = capability_for(&cell.keys, &body(1, id(1), MAY_ALL));
        for serial in 1..=5 {
            let bytes = pattern(10_000, serial as u8);
            cell.write(&all, id(serial), 0, 3, 0, &bytes).await.unwrap();
        }
        let list = async |flags, after| {
            let asked = ListObjects {
                capability: all.clone(),
                volume: id(1).volume.0,
                after,
                limit: 2,
                flags,
            };
            let reply = cell.osd.call(&asked).await.unwrap();
            let serials = reply.objects.iter().map(|info| info.object.serial);
            (serials.collect::<Vec<_>>(), reply.more)
        };
        assert_eq!(list(0, Default::default()).await, (vec![1, 2], true));
        assert_eq!(list(0, id(4)).await, (vec![5], false));
        let some = |serials: &[u32]| List::from_iter_cut(serials.iter().map(|n| id(*n)));
        let remove = |serials: &[u32], flags| Remove {
            capability: all.clone(),
            objects: some(serials),
            flags,
        };
        let removed = cell
            .osd
            .call(&remove(&[2, 3, 77], REMOVE_SOFT))
            .await
            .unwrap();
        assert_eq!(removed.removed, 2);
        assert_eq!(cell.osd.call(&remove(&[4], 0)).await.unwrap().removed, 1);
        assert_eq!(
            aborted(cell.read(&all, id(2), 3, 0, 1).await),
            AbortCode::ENOENT
        );
        assert_eq!(list(0, Default::default()).await, (vec![1, 5], false));
        assert_eq!(
            list(LIST_REMOVED, Default::default()).await,
            (vec![2, 3], false)
        );
        let undelete = Undelete {
            capability: all.clone(),
            objects: some(&[2, 4]),
        };
        assert_eq!(cell.osd.call(&undelete).await.unwrap().restored, 1);
        let back = cell.read(&all, id(2), 3, 0, u64::MAX).await.unwrap();
        assert_eq!(back, pattern(10_000, 2));
        let purge = |before| Purge {
            capability: all.clone(),
            before,
        };
        assert_eq!(cell.osd.call(&purge(1)).await.unwrap().purged, 0);
        assert_eq!(cell.osd.call(&purge(u64::MAX)).await.unwrap().purged, 1);
        assert_eq!(
            list(LIST_REMOVED, Default::default()).await,
            (vec![], false)
        );
        let space = cell.osd.call(&GetSpace {}).await.unwrap();
        let objects: Vec<_> = space.devices.iter().map(|d| (d.osd, d.objects)).collect();
        assert_eq!(objects, [(1, 3)]);
    });
}

#[test]
fn a_scrub_names_the_object_whose_bytes_are_damaged() {
    let cell = Cell::start();
    cell.run(async |cell| {
        let all = capability_for(&cell.keys, &body(1, id(1), MAY_ALL));
        for serial in 1..=3 {
            let bytes = pattern(300_000, serial as u8);
            cell.write(&all, id(serial), 0, 3, 0, &bytes).await.unwrap();
        }
        let status = async || loop {
            let asked = ScrubStatus {
                capability: all.clone(),
            };
            let reply = cell.osd.call(&asked).await.unwrap();
            if !reply.running {
                return reply;
            }
        };
        let scrub = Scrub {
            capability: all.clone(),
            rate_kib: 0,
        };
        cell.osd.call(&scrub).await.unwrap();
        let sound = status().await;
        assert_eq!(sound.damaged, List::new());
        assert!(
            sound.bytes >= 900_000 && sound.total >= 900_000,
            "{sound:?}"
        );
        // The second object's bytes are behind the first's.
        cell.disk.flip_bit("blocks.0", 400_000, 3);
        let read = cell.read(&all, id(2), 3, 0, u64::MAX).await;
        assert_eq!(aborted(read), AbortCode::EIO);
        cell.osd.call(&scrub).await.unwrap();
        assert_eq!(status().await.damaged.to_vec(), [id(2)]);
        for serial in [1, 3] {
            let whole = cell.read(&all, id(serial), 3, 0, u64::MAX).await.unwrap();
            assert_eq!(whole, pattern(300_000, serial as u8));
        }
    });
}
