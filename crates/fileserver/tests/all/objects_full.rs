//! Full devices that keep removed objects: data that never belonged to a file does not stay there.

use crate::common;

use std::net::UdpSocket;

use crate::common::osds::{KEEP, layout, pattern, read};
use crate::common::real::{RealOsds, keeps_on, knows_policies, patiently, store_patiently};
use crate::common::{Cell, Machine, NOW, OPEN};
use bytes::Bytes;
use cellar_fileserver::Upkeep;
use cellar_rpc::Connection;
use cellar_until::until;
use cellar_wire::AbortCode;
use cellar_wire::afsosd::RepairStatus;
use cellar_wire::ids::{Fid, Uniquifier, VnodeId};
use cellar_wire::object::ObjectId;

/// More than the free space of a filled device.
const LARGE: usize = 6 << 20;

struct World {
    osds: RealOsds,
    cell: Cell,
    machine: Machine,
    admin: Connection,
    _silent: UdpSocket,
}

impl World {
    /// With two devices that keep removed objects.
    async fn new(policy: &str, change: impl FnOnce(&mut Upkeep)) -> Self {
        // A database that never answers.
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let osds = RealOsds::start(0, &[(2, policy)]);
        osds.databases.lock().push(silent.local_addr().unwrap());
        osds.add(2);
        osds.add(3);
        let (cell, machine, admin) = keeps_on(&osds, change);
        let world = Self {
            osds,
            cell,
            machine,
            admin,
            _silent: silent,
        };
        knows_policies(&world.cell, &world.machine).await;
        world
    }

    /// Fills a device up to less than two MiB, with an object without an owner.
    fn fill(&self, osd: u32) {
        let piece = [Bytes::from(vec![7; 1 << 20])];
        self.osds.with(osd, |store| {
            for at in 0.. {
                let written = store.write(unreferenced_object(), 0, NOW, at << 20, &piece);
                if written.and_then(|ticket| ticket.wait()).is_err() {
                    break;
                }
            }
        });
    }

    /// Removes that object.
    fn empty(&self, osd: u32) {
        self.osds.with(osd, |store| {
            store
                .remove(&[unreferenced_object()], false)
                .unwrap()
                .1
                .wait()
                .unwrap();
            store.reap_now().unwrap();
        });
    }

    /// The objects of a device and the versions of all, without the filler; and the number of
    /// removed objects that it keeps.
    fn counts(&self, osd: u32) -> (usize, usize, usize) {
        let objects = self.osds.objects(osd);
        let ours = objects
            .iter()
            .filter(|info| info.object != unreferenced_object());
        let versions = ours.clone().map(|info| info.versions.len()).sum();
        let kept = self.osds.with(osd, |store| store.usage().unwrap().removed);
        (ours.count(), versions, kept as usize)
    }
}

fn unreferenced_object() -> ObjectId {
    ObjectId {
        volume: OPEN,
        vnode: VnodeId(4000),
        uniquifier: Uniquifier(5),
        serial: 1,
    }
}

#[test]
fn a_store_that_finds_no_room_frees_its_objects_at_once() {
    patiently(async {
        let world = World::new("=> osd, stripes=2, ssize=12;", |_| {}).await;
        let fid = world.machine.create(Fid::root(OPEN), "f").await;
        let bytes = pattern(LARGE, 1);
        store_patiently(&world.machine, fid, 0, &bytes, KEEP)
            .await
            .unwrap();
        let before = [world.counts(2), world.counts(3)];
        world.fill(3);
        let new = world.machine.create(Fid::root(OPEN), "new").await;
        let full = store_patiently(&world.machine, new, 0, &bytes, KEEP).await;
        assert_eq!(common::plain_code(full), AbortCode::VDISKFULL.0);
        let full = store_patiently(&world.machine, fid, 0, &bytes, KEEP).await;
        assert_eq!(common::plain_code(full), AbortCode::VDISKFULL.0);
        until("it is as it was", async || {
            [world.counts(2), world.counts(3)] == before
        })
        .await;
        assert!(read(&world.machine, fid).await == bytes);
        world.empty(3);
        for fid in [fid, new] {
            until("there is room", async || {
                let stored = store_patiently(&world.machine, fid, 1, &bytes, KEEP);
                stored.await.is_ok()
            })
            .await;
            assert!(read(&world.machine, fid).await[1..] == bytes);
        }
    });
}

#[test]
fn a_repair_that_finds_no_room_keeps_no_object() {
    patiently(async {
        let world = World::new("=> osd, copies=2;", |_| {}).await;
        let fid = world.machine.create(Fid::root(OPEN), "f").await;
        let kept = world.counts(3).2;
        world.fill(3);
        let bytes = pattern(LARGE, 1);
        store_patiently(&world.machine, fid, 0, &bytes, KEEP)
            .await
            .unwrap();
        until("a repair has failed", async || {
            let status = world.admin.call(&RepairStatus {}).await.unwrap().status;
            status.failed > 0
        })
        .await;
        assert!(read(&world.machine, fid).await == bytes);
        assert_eq!(world.counts(3).2, kept);
        world.empty(3);
        until("it has its copy", async || {
            let placed = layout(&world.cell, fid).unwrap().objects;
            placed.iter().all(|placed| !placed.stale)
        })
        .await;
    });
}
