//! Read-only volumes on other servers follow the wipes of their RW volume.

use std::sync::Arc;
use std::time::Duration;

use cellar_celldb::Embedded;
use cellar_fileserver::HsmConfig;
use cellar_until::until;
use cellar_wire::afsosd::{Archive, GetCensus, ListCopies, ListReferences, ListWiped, Wipe};
use cellar_wire::ids::{Fid, VnodeId};
use cellar_wire::osddb::{OSD_ARCHIVAL, OSD_WIPEABLE};

use crate::common::osds::{KEEP, Osds, THRESHOLD, pattern, read, set_policy};
use crate::common::real::{Servers, superuser, upkeep};
use crate::common::shared::{of, ro_site};
use crate::common::volser::{RO, Volser, release, two};
use crate::common::{Cell, Machine, OPEN, run, store_within, uuid};

const BIG: usize = 3 * THRESHOLD as usize;
const POLICY: &[(u32, &str)] = &[(2, "=> osd, stripes=2, ssize=12;")];

fn keep(cell: &Cell, osds: &Osds, jobs: &tempfile::TempDir, name: &str) {
    let database = Embedded::open(&jobs.path().join(name)).unwrap();
    let config = HsmConfig {
        jobs: Arc::new(database),
        pins: osds.database.clone(),
        interval: Duration::ZERO,
        copy_rate: 0,
        verify_interval: Duration::ZERO,
        verify_rate: 0,
    };
    cell.server.keep_archives(&cell.runtime, config);
}

/// The vnodes of the online objects that a server names, one for each object.
async fn named(volser: &Volser) -> Vec<VnodeId> {
    let asked = ListReferences {
        volume: OPEN.0,
        after: Fid::default(),
        limit: 100,
    };
    let listed = volser.0.call(&asked).await.unwrap();
    let online = listed.references.iter().filter(|named| named.osd != 4);
    online.map(|named| named.object.vnode).collect()
}

async fn file(machine: &Machine, name: &str, bytes: &[u8]) -> Fid {
    let fid = machine.create(Fid::root(OPEN), name).await;
    store_within(machine, fid, 0, bytes, KEEP).await.unwrap();
    fid
}

#[test]
fn ro_volumes_of_other_servers_follow_the_wipes_and_name_no_objects() {
    let (here, there, client, reader, port) = two();
    let jobs = tempfile::tempdir().unwrap();
    run(async {
        // Devices 2 and 3 hold the files of the cell, 4 is an archive.
        let osds = Osds::start(&here, 3, POLICY).await;
        for listed in osds.database.listed.lock().iter_mut() {
            listed.entry.flags |= match listed.entry.id {
                4 => OSD_ARCHIVAL,
                _ => OSD_WIPEABLE,
            };
        }
        osds.devices.update(&osds.database.listed.lock());
        osds.attach(&there, "test.cell").await;
        set_policy(&here, OPEN, 2);
        let (source, target) = (Volser(here.admin().await), Volser(there.admin().await));
        let servers = Arc::new(Servers::default());
        servers.add(1, uuid(0xfe), superuser(&here));
        servers.add(2, uuid(0xfd), superuser(&there));
        servers.place(OPEN, &[(1, OPEN), (2, RO)]);
        here.server.keep_objects(&here.runtime, upkeep(&servers));
        there.server.keep_objects(&there.runtime, upkeep(&servers));
        let bytes = [pattern(BIG, 1), pattern(BIG, 2), pattern(BIG, 3)];
        let mut files = Vec::new();
        for (name, bytes) in ["wiped", "online", "used"].into_iter().zip(&bytes) {
            let fid = file(&client, name, bytes).await;
            source.0.call(&Archive { fid, osd: 4 }).await.unwrap();
            files.push(fid);
        }
        ro_site(&source, &target).await;
        release(&source, &target, &port, 0).await;
        keep(&here, &osds, &jobs, "here");
        keep(&there, &osds, &jobs, "there");
        let census = async |volser: &Volser, look| {
            let census = volser.0.call(&GetCensus { look }).await;
            census.unwrap().census
        };
        until("the first census", async || {
            census(&source, false).await.taken > 0 && census(&target, false).await.taken > 0
        })
        .await;
        let counted = census(&target, false).await;
        assert_eq!(
            counted.online.files, 0,
            "the files are those of the RW volume"
        );
        assert_eq!(census(&source, false).await.online.files, 3);
        // A reader of the read-only volume used one of the files.
        assert!(read(&reader, of(RO, files[2])).await == bytes[2]);
        for fid in [files[0], files[2]] {
            let wiped = source.0.call(&Wipe { fid, copies: 1 }).await;
            assert_eq!(wiped.unwrap().length, BIG as u64);
        }
        let asked = ListWiped {
            volume: OPEN,
            after: VnodeId(0),
        };
        let listed = source.0.call(&asked).await.unwrap();
        assert_eq!((listed.files.len(), listed.more), (2, false));
        assert_eq!(listed.files[0].copies.len(), 1);
        let is_online = async |fid: Fid| {
            let copies = target.0.call(&ListCopies { fid: of(RO, fid) }).await;
            copies.unwrap().online
        };
        until("the read-only volume follows", async || {
            census(&target, true).await;
            !is_online(files[0]).await
        })
        .await;
        assert!(is_online(files[1]).await, "it is online in the RW volume");
        assert!(is_online(files[2]).await, "it was read a moment ago");
        // Garbage collection removes objects that no server names (`objects_collect`).
        assert_eq!(named(&source).await, vec![files[1].vnode; 2]);
        let left = [files[1], files[2]].map(|fid| [fid.vnode; 2]);
        assert_eq!(named(&target).await, left.as_flattened());
        assert!(read(&reader, of(RO, files[0])).await == bytes[0]);
        assert!(read(&client, files[0]).await == bytes[0]);
    });
}
