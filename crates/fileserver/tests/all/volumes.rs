//! AFSVol: the sequences of calls of `vos`, and their visible effects for clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use crate::common::volser::{NEW, Volser};
use crate::common::{CLONE, Cell, Machine, OPEN, SHUT, name, run};
use cellar_rpc::{Connection, Security};
use cellar_wire::afsvol::{
    self, CreateVolume, DeleteVolume, EndTrans, GetFlags, GetName, GetStatus, IT_BUSY, IT_OFFLINE,
    ListOneVolume, ListPartitions, ListVolumes, Monitor, NukeVolume, PartitionInfo,
    PartitionInfo64, SetFlags, SetInfo, TransCreate, VolumeInfo, XListOneVolume, XListPartitions,
    XListVolumes,
};
use cellar_wire::ids::{AfsTime, Fid, VolumeId};
use cellar_wire::vl::{Site, VLF_RWEXISTS, VLSF_RWVOL, VldbEntry, VolumeNameArgument};
use cellar_wire::{AbortCode, List, rxafs};

fn unchanged() -> VolumeInfo {
    let never = AfsTime(u32::MAX);
    VolumeInfo {
        max_quota: -1,
        day_use: -1,
        creation_date: never,
        update_date: never,
        update_counter: -1,
        ..VolumeInfo::default()
    }
}

async fn begin(admin: &Connection) -> i32 {
    let create = CreateVolume {
        partition: 0,
        name: "new".try_into().unwrap(),
        volume_type: afsvol::READWRITE,
        parent: VolumeId(0),
        volume: NEW,
    };
    let reply = admin.call(&create).await.unwrap();
    assert_eq!(reply.volume, NEW);
    reply.trans
}

#[test]
fn a_volume_is_created_used_and_removed_as_vos_does_it() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let admin = cell.admin().await;
        let root = rxafs::FetchStatus {
            fid: Fid::root(NEW),
        };
        let trans = begin(&admin).await;
        assert_eq!(
            machine.code(&root).await,
            103,
            "not shown before it is finished"
        );
        let info = VolumeInfo {
            max_quota: 777,
            ..unchanged()
        };
        admin.call(&SetInfo { trans, info }).await.unwrap();
        assert_eq!(admin.call(&GetFlags { trans }).await.unwrap().flags, 0);
        admin.call(&SetFlags { trans, flags: 0 }).await.unwrap();
        assert_eq!(
            &admin.call(&GetName { trans }).await.unwrap().name[..],
            b"new"
        );
        let busy = TransCreate {
            volume: NEW,
            partition: 0,
            flags: IT_BUSY,
        };
        assert_eq!(admin.call(&busy).await.unwrap_err().code().0, 1_492_325_133);
        assert_eq!(admin.call(&EndTrans { trans }).await.unwrap().rcode, 0);
        assert_eq!(
            admin.call(&EndTrans { trans }).await.unwrap_err().code().0,
            2
        );
        assert_eq!(machine.ok(&root).await.status.unix_mode, 0o777);

        let one = ListOneVolume {
            partition: 0,
            volume: NEW,
        };
        let listed = admin.call(&one).await.unwrap().entries.into_vec().remove(0);
        assert_eq!(
            (listed.max_quota, listed.status, listed.in_use),
            (777, 2, 1)
        );
        assert_eq!((&listed.name[..], listed.parent), (&b"new"[..], NEW));
        let trans = admin.call(&busy).await.unwrap().trans;
        assert_eq!(machine.code(&root).await, 110);
        assert_eq!(
            admin.call(&Monitor {}).await.unwrap().entries[0].volume,
            NEW
        );
        let status = admin.call(&GetStatus { trans }).await.unwrap().status;
        assert_eq!((status.volume, status.max_quota), (NEW, 777));
        let listed = admin.call(&one).await.unwrap().entries.into_vec().remove(0);
        assert_eq!(listed.status, 110);
        admin.call(&EndTrans { trans }).await.unwrap();

        let offline = TransCreate {
            volume: NEW,
            partition: 0,
            flags: IT_OFFLINE,
        };
        let trans = admin.call(&offline).await.unwrap().trans;
        assert_eq!(machine.code(&root).await, 106);
        admin.call(&SetFlags { trans, flags: 3 }).await.unwrap();
        admin.call(&DeleteVolume { trans }).await.unwrap();
        assert_eq!(machine.take_breaks(), [Fid::whole_volume(NEW)]);
        admin.call(&EndTrans { trans }).await.unwrap();
        assert_eq!(machine.code(&root).await, 103);
        assert_eq!(admin.call(&one).await.unwrap_err().code().0, 19);
    });
}

#[test]
fn an_unfinished_volume_is_not_shown() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let admin = cell.admin().await;
        let trans = begin(&admin).await;
        admin.call(&EndTrans { trans }).await.unwrap();
        let one = ListOneVolume {
            partition: 0,
            volume: NEW,
        };
        let entries = admin.call(&one).await.unwrap().entries;
        assert_eq!((entries[0].status, entries[0].in_use), (0, 0));
        assert_eq!(&entries[0].name[..], b"V0536870930.vol");
        let all = ListVolumes {
            partition: 0,
            flags: 1,
        };
        assert_eq!(admin.call(&all).await.unwrap().entries.len(), 2);
        let root = rxafs::FetchStatus {
            fid: Fid::root(NEW),
        };
        assert_eq!(machine.code(&root).await, 103);
        // Another transaction continues with the volume.
        let again = TransCreate {
            volume: NEW,
            partition: 0,
            flags: IT_OFFLINE,
        };
        let trans = admin.call(&again).await.unwrap().trans;
        admin.call(&SetFlags { trans, flags: 0 }).await.unwrap();
        admin.call(&EndTrans { trans }).await.unwrap();
        machine.ok(&root).await;
        let trans = admin.call(&again).await.unwrap().trans;
        admin.call(&DeleteVolume { trans }).await.unwrap();
        assert_eq!(
            admin.call(&again).await.unwrap_err().code().0,
            1_492_325_133,
            "busy until the transaction ends"
        );
        admin.call(&EndTrans { trans }).await.unwrap();
        assert_eq!(admin.call(&again).await.unwrap_err().code().0, 103);
        let trans = begin(&admin).await;
        let twice = CreateVolume {
            partition: 0,
            name: "new".try_into().unwrap(),
            volume_type: 0,
            parent: VolumeId(0),
            volume: OPEN,
        };
        assert_eq!(admin.call(&twice).await.unwrap_err().code().0, 5);
        admin.call(&EndTrans { trans }).await.unwrap();
    });
}

#[test]
fn everybody_may_look_and_only_the_superuser_may_change() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    let volser = machine.port.connect(cell.address(), 4, Security::null());
    run(async {
        let refused = 1_492_325_127;
        let trans = TransCreate {
            volume: OPEN,
            partition: 0,
            flags: IT_BUSY,
        };
        assert_eq!(volser.call(&trans).await.unwrap_err().code().0, refused);
        let nuke = NukeVolume {
            partition: 0,
            volume: OPEN,
        };
        assert_eq!(volser.call(&nuke).await.unwrap_err().code().0, refused);
        let parts = volser.call(&ListPartitions {}).await.unwrap().partitions;
        assert_eq!(parts[..2], [0, -1]);
        assert_eq!(
            volser
                .call(&XListPartitions {})
                .await
                .unwrap()
                .partitions
                .to_vec(),
            [0]
        );
        let all = volser
            .call(&ListVolumes {
                partition: 0,
                flags: 1,
            })
            .await
            .unwrap()
            .entries;
        assert_eq!(
            all.iter().map(|v| v.volume).collect::<Vec<_>>(),
            [OPEN, SHUT]
        );
        let ids = volser
            .call(&ListVolumes {
                partition: 0,
                flags: 0,
            })
            .await
            .unwrap()
            .entries;
        assert_eq!((ids.len(), ids[0].name.len()), (2, 0));
        let all = volser
            .call(&XListVolumes {
                partition: 0,
                flags: 1,
            })
            .await
            .unwrap()
            .entries;
        assert_eq!(&all[1].name[..], b"shut");
        let one = XListOneVolume {
            partition: 0,
            volume: SHUT,
        };
        assert_eq!(volser.call(&one).await.unwrap().entries.len(), 1);
        for partition in [-1, 1, 999] {
            let none = ListVolumes {
                partition,
                flags: 1,
            };
            assert_eq!(
                volser.call(&none).await.unwrap_err().code().0,
                1_492_325_125
            );
        }
        for spelling in ["/vicepa", "vicepa", "a"] {
            let info = PartitionInfo {
                name: spelling.try_into().unwrap(),
            };
            let info = volser.call(&info).await.unwrap().partition;
            assert_eq!(&info.name[..], b"/vicepa");
            assert!(info.free > 0 && info.min_free >= info.free && info.total_usable == 0);
        }
        let info = PartitionInfo64 {
            name: "/vicepa".try_into().unwrap(),
        };
        assert!(volser.call(&info).await.unwrap().partition.min_free > 0);
    });
}

#[test]
fn a_backup_clone_is_made_and_made_again() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let volser = Volser(cell.admin().await);
        let fid = machine.create(Fid::root(OPEN), "f").await;
        machine.store(fid, 0, b"one").await.unwrap();
        let trans = volser.begin(OPEN, IT_BUSY).await;
        volser
            .clone_of(trans, afsvol::BACKUP, "scratch.backup", CLONE)
            .await;
        volser.end(trans).await;
        let copy = Fid {
            volume: CLONE,
            ..fid
        };
        assert_eq!(machine.code(&rxafs::FetchStatus { fid: copy }).await, 103);
        volser.online(CLONE).await;
        assert_eq!(machine.fetch(copy, 0, 100).await.unwrap(), b"one");
        machine.store(fid, 0, b"two").await.unwrap();
        assert_eq!(machine.fetch(copy, 0, 100).await.unwrap(), b"one");
        let trans = volser.begin(OPEN, IT_BUSY).await;
        let again = afsvol::ReClone {
            trans,
            clone: CLONE,
        };
        volser.0.call(&again).await.unwrap();
        volser.end(trans).await;
        assert_eq!(machine.take_breaks(), [Fid::whole_volume(CLONE)]);
        assert_eq!(machine.fetch(copy, 0, 100).await.unwrap(), b"two");
        let one = ListOneVolume {
            partition: 0,
            volume: OPEN,
        };
        let listed = volser.0.call(&one).await.unwrap().entries;
        assert_eq!(listed[0].backup, CLONE);
    });
}

/// A location database that fails on request, and counts the questions.
#[derive(Default)]
struct Database {
    fails_with: AtomicI32,
    asked: AtomicU32,
}

impl cellar_fileserver::Locations for Database {
    fn entry<'a>(
        &'a self,
        name: &'a VolumeNameArgument,
    ) -> cellar_fileserver::protection::BoxFuture<'a, Result<VldbEntry, AbortCode>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        assert_eq!(name.as_bytes(), b"scratch");
        let answer = match self.fails_with.load(Ordering::Relaxed) {
            0 => Ok(VldbEntry {
                volume_ids: [OPEN, VolumeId(0), VolumeId(0)],
                flags: VLF_RWEXISTS,
                sites: List::from_iter_cut([Site {
                    server: 0xc000_0201,
                    partition: 0,
                    flags: VLSF_RWVOL,
                }]),
                ..VldbEntry::default()
            }),
            code => Err(AbortCode(code)),
        };
        Box::pin(std::future::ready(answer))
    }
}

#[test]
fn the_location_database_is_asked_for_the_oldest_clients() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let call = rxafs::GetVolumeInfo {
            volume_name: name("scratch"),
        };
        assert_eq!(machine.code(&call).await, 103, "no database");
        let database = Arc::new(Database::default());
        cell.server.use_locations(database.clone());
        let info = machine.ok(&call).await.info;
        assert_eq!((info.volume, info.server_count), (OPEN, 1));
        assert_eq!(info.servers[0], 0xc000_0201);
        assert_eq!(info.type_ids, [OPEN.0, 0, 0, 0, 0xabcd_9999]);
        // Its codes are passed on. A database that does not answer is not asked again for three
        // minutes.
        let asked = || database.asked.swap(0, Ordering::Relaxed);
        asked();
        for (code, answers, questions) in [
            (363_524, [363_524; 2], 2),
            (-455, [-455, 1], 1),
            (0, [1, 1], 0),
        ] {
            database.fails_with.store(code, Ordering::Relaxed);
            for answer in answers {
                assert_eq!(machine.code(&call).await, answer);
            }
            assert_eq!(asked(), questions, "{code}");
        }
        cell.wait_secs(180);
        machine.ok(&call).await;
        assert_eq!(asked(), 1);
    });
}

#[test]
fn accesses_are_counted() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let admin = cell.admin().await;
        let uses = async || {
            let call = XListOneVolume {
                partition: 0,
                volume: OPEN,
            };
            admin.call(&call).await.unwrap().entries[0].day_use
        };
        let before = uses().await;
        let root = Fid::root(OPEN);
        let fid = machine.create(root, "f").await;
        for _ in 0..10 {
            machine.status(fid).await;
        }
        let used = uses().await - before;
        assert!((11..=14).contains(&used), "{used}");
    });
}

#[test]
fn unfinished_volumes_of_an_earlier_run_are_removed() {
    let cell = Cell::start();
    let ids = |cell: &Cell| {
        let volumes = cell.partition.volumes(None, 99).unwrap();
        volumes.iter().map(|info| info.id).collect::<Vec<_>>()
    };
    run(async {
        begin(&cell.admin().await).await;
    });
    let cell = cell.restart(false);
    cell.wait_secs(10);
    let cell = cell.restart(false);
    assert_eq!(ids(&cell), [OPEN, SHUT, NEW]);
    run(async {
        let admin = cell.admin().await;
        // Another transaction continues with the volume.
        let again = TransCreate {
            volume: NEW,
            partition: 0,
            flags: IT_OFFLINE,
        };
        let trans = admin.call(&again).await.unwrap().trans;
        cell.server.remove_unfinished_volumes().await;
        assert_eq!(ids(&cell), [OPEN, SHUT, NEW]);
        admin.call(&EndTrans { trans }).await.unwrap();
        cell.server.remove_unfinished_volumes().await;
        assert_eq!(ids(&cell), [OPEN, SHUT]);
        // Volumes that this run creates stay.
        begin(&admin).await;
        cell.server.remove_unfinished_volumes().await;
        assert_eq!(ids(&cell), [OPEN, SHUT, NEW]);
    });
}

#[test]
fn a_read_write_clone_is_a_copy() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let volser = Volser(cell.admin().await);
        let admin = &volser.0;
        let fid = machine.create(Fid::root(OPEN), "f").await;
        machine.store(fid, 0, b"one").await.unwrap();
        let trans = volser.begin(OPEN, IT_BUSY).await;
        let clone = afsvol::Clone {
            trans,
            purge_volume: VolumeId(0),
            new_type: afsvol::READWRITE,
            new_name: "scratch.clone".try_into().unwrap(),
            new_volume: NEW,
        };
        admin.call(&clone).await.unwrap();
        let twice = admin.call(&clone).await.unwrap_err().code().0;
        assert_eq!(twice, 104, "VVOLEXISTS");
        // Dates and counters are set as requested.
        let info = VolumeInfo {
            update_counter: 77,
            ..unchanged()
        };
        admin.call(&SetInfo { trans, info }).await.unwrap();
        volser.end(trans).await;
        volser.online(NEW).await;
        let copy = Fid { volume: NEW, ..fid };
        machine.store(fid, 0, b"two").await.unwrap();
        assert_eq!(machine.fetch(copy, 0, 9).await.unwrap(), b"one");
        machine.store(copy, 0, b"own").await.unwrap();
        assert_eq!(machine.fetch(copy, 0, 9).await.unwrap(), b"own");
        let one = |volume| ListOneVolume {
            partition: 0,
            volume,
        };
        let listed = admin.call(&one(NEW)).await.unwrap().entries;
        assert_eq!((listed[0].volume_type, listed[0].parent), (0, OPEN));
        let listed = admin.call(&one(OPEN)).await.unwrap().entries;
        assert_eq!(listed[0].update_counter, 78, "one change since");
    });
}
