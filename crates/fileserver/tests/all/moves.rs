//! The steps of `vos move`: between servers, and between partitions of one, while a client writes.

use crate::common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::volser::{
    NEW, RO, Volser, assert_same, calls, contents, cookie, secured, taken, two,
};
use crate::common::{Machine, NOW, OPEN, run};
use cellar_until::until;
use cellar_wire::afsvol::{self, IT_BUSY, IT_OFFLINE, READONLY, READWRITE};
use cellar_wire::ids::{Fid, VolumeId};
use cellar_wire::{AbortCode, Procedure};

/// Makes the clone that `vos move` sends first, in its transaction.
async fn clone_to_move(source: &Volser) -> i32 {
    let trans = source.begin(OPEN, IT_BUSY).await;
    source
        .clone_of(trans, READONLY, "move-clone-temp", NEW)
        .await;
    source.end(trans).await;
    source.begin(NEW, IT_OFFLINE).await
}

#[test]
fn a_volume_moves_and_no_change_is_lost() {
    let (here, there, client, after, port) = two();
    run(async {
        let source = Volser(here.admin().await);
        let target = Volser(there.admin().await);
        let file = client.create(Fid::root(OPEN), "file").await;
        client.store(file, 0, &[1; 200_000]).await.unwrap();
        // The steps of vos move.
        let clone = clone_to_move(&source).await;
        source.flags(clone, 3).await;
        target.delete(OPEN).await;
        let to = target.create("scratch", READWRITE, OPEN, OPEN).await;
        target.flags(to, 3).await;
        let ids = || cookie("scratch", READWRITE, OPEN);
        source.forward(clone, 0, (&port, to), ids()).await.unwrap();
        source.end(clone).await;
        // A client continues in between.
        client.store(file, 100, b"in between").await.unwrap();
        let before = taken(&port);
        let trans = source.begin(OPEN, IT_BUSY).await;
        let refused = client.store(file, 0, b"too late").await;
        assert_eq!(refused.unwrap_err().code().0, 110);
        source
            .forward(trans, (NOW - 2) as i32, (&port, to), ids())
            .await
            .unwrap();
        let sent = taken(&port) - before;
        assert!(sent < 20_000, "{sent} bytes");
        let copy = Fid::root(OPEN);
        let status = cellar_wire::rxafs::FetchStatus { fid: copy };
        assert_eq!(after.code(&status).await, 103, "not before it is finished");
        source.flags(trans, 2).await;
        target.flags(to, 0).await;
        target.end(to).await;
        let there = u32::from_be_bytes([192, 0, 2, 9]);
        let forwarding = afsvol::SetForwarding {
            trans,
            new_site: there,
        };
        source.0.call(&forwarding).await.unwrap();
        let deletion = afsvol::DeleteVolume { trans };
        source.0.call(&deletion).await.unwrap();
        source.end(trans).await;
        assert_eq!(client.code(&status).await, 103, "VNOVOL");
        source.delete(NEW).await;
        let moved = after.fetch(file, 95, 100).await.unwrap();
        assert_eq!(moved, *b"\x01\x01\x01\x01\x01in between");
        after.store(file, 0, b"at home").await.unwrap();
    });
}

/// A client that stores numbers, each after the answer to the one before, creates a file for each,
/// and follows the volume. `stored` is the last number. The client stops when `stop` is set.
async fn write_on(
    here: &Machine,
    there: &Machine,
    fid: Fid,
    stored: &AtomicU64,
    stop: &AtomicBool,
) -> (u64, u32) {
    let (mut at, mut last, mut made, mut refused) = (here, 0_u64, 0, 0);
    while !stop.load(Ordering::Relaxed) {
        stored.store(last, Ordering::Relaxed);
        let number = (last + 1).to_be_bytes();
        let make = cellar_wire::rxafs::CreateFile {
            dir_fid: Fid::root(OPEN),
            name: common::name(format!("made{last}")),
            in_status: common::mode(0o644),
        };
        let done = match made < last {
            true => at.call(&make).await.map(|_| made = last),
            false => at.store(fid, 0, &number).await.map(|_| last += 1),
        };
        match done {
            Ok(()) => {}
            Err(error) => {
                refused += 1;
                match error.code().0 {
                    // VBUSY: retry. VNOVOL: the other server.
                    110 => {}
                    103 => at = if std::ptr::eq(at, here) { there } else { here },
                    code => panic!("{code}"),
                }
                // The pause of a client before it repeats a call.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    }
    (last, refused)
}

/// The steps of `vos move`, there and back, while a client writes.
#[test]
fn acknowledged_changes_move_with_the_volume() {
    let (here, there, client, other, port) = two();
    let ports = [secured(&here), port];
    run(async {
        let sides = [Volser(here.admin().await), Volser(there.admin().await)];
        let file = client.create(Fid::root(OPEN), "file").await;
        sides[1].delete(OPEN).await;
        let (stored, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let moves = async {
            for round in 0..12 {
                let before = stored.load(Ordering::Relaxed);
                let (source, target) = (&sides[round % 2], &sides[(round + 1) % 2]);
                let port = &ports[(round + 1) % 2];
                let clone = clone_to_move(source).await;
                let to = target.create("scratch", READWRITE, OPEN, OPEN).await;
                let ids = || cookie("scratch", READWRITE, OPEN);
                source.forward(clone, 0, (port, to), ids()).await.unwrap();
                source.end(clone).await;
                // A client that has found the volume continues with it.
                until("five stores", async || {
                    stored.load(Ordering::Relaxed) >= before + 5
                })
                .await;
                let trans = source.begin(OPEN, IT_BUSY).await;
                let from = (NOW - 2) as i32;
                source
                    .forward(trans, from, (port, to), ids())
                    .await
                    .unwrap();
                source.flags(trans, 2).await;
                target.flags(to, 0).await;
                target.end(to).await;
                let moved = afsvol::SetForwarding {
                    trans,
                    new_site: 0x0102_0304,
                };
                source.0.call(&moved).await.unwrap();
                source
                    .0
                    .call(&afsvol::DeleteVolume { trans })
                    .await
                    .unwrap();
                source.end(trans).await;
                source.delete(NEW).await;
            }
            stop.store(true, Ordering::Relaxed);
        };
        let ((last, refused), ()) =
            tokio::join!(write_on(&client, &other, file, &stored, &stop), moves);
        assert!(last > 50 && refused > 0, "{last} stored, {refused} refused");
        let now = client.fetch(file, 0, 8).await.unwrap();
        assert_eq!(now, last.to_be_bytes());
    });
}

#[test]
fn a_volume_moves_between_partitions_of_one_server() {
    let (_here, cell, _client, client, port) = two();
    let other = Arc::new(cellar_volume::disk::SimDisk::new(1 << 30));
    let other = cellar_volume::Partition::open(other, cellar_volume::Options::default()).unwrap();
    let place = cellar_wire::PartitionId::new(1).unwrap();
    cell.server.add_partition(place, other.clone());
    run(async {
        let volser = Volser(cell.admin().await);
        let file = client.create(Fid::root(OPEN), "file").await;
        client.store(file, 0, b"one").await.unwrap();
        // A new volume with the id of one on another partition, as `vos create -id` requests.
        let second = afsvol::CreateVolume {
            partition: 1,
            name: "second".try_into().unwrap(),
            volume_type: READWRITE,
            parent: VolumeId(0),
            volume: OPEN,
        };
        let refused = volser.0.call(&second).await.unwrap_err();
        assert_eq!(refused.code(), AbortCode::EIO);
        let trans = volser.begin(OPEN, IT_BUSY).await;
        let create = afsvol::CreateVolume {
            partition: 1,
            name: "scratch".try_into().unwrap(),
            volume_type: READWRITE,
            parent: OPEN,
            volume: OPEN,
        };
        let to = volser.0.call(&create).await.unwrap().trans;
        let ids = cookie("scratch", READWRITE, OPEN);
        volser.forward(trans, 0, (&port, to), ids).await.unwrap();
        assert_eq!(
            client.store(file, 0, b"no").await.unwrap_err().code().0,
            110
        );
        volser.flags(trans, 2).await;
        volser.flags(to, 0).await;
        volser.end(to).await;
        // The new volume is used from now on; the old one still exists.
        client.store(file, 0, b"two").await.unwrap();
        let delete = afsvol::DeleteVolume { trans };
        volser.0.call(&delete).await.unwrap();
        volser.end(trans).await;
        assert_eq!(client.fetch(file, 0, 9).await.unwrap(), b"two");
        let list = async |partition| {
            let call = afsvol::ListVolumes {
                partition,
                flags: 1,
            };
            let entries = volser.0.call(&call).await.unwrap().entries;
            entries.iter().map(|entry| entry.volume).collect::<Vec<_>>()
        };
        assert_eq!(
            (list(0).await, list(1).await),
            (vec![common::SHUT], vec![OPEN])
        );
        // A clone may not be on two partitions.
        let trans = volser.create("far", READONLY, OPEN, RO).await;
        volser.end(trans).await;
        let busy = afsvol::TransCreate {
            volume: OPEN,
            partition: 1,
            flags: IT_BUSY,
        };
        let trans = volser.0.call(&busy).await.unwrap().trans;
        let clone = afsvol::Clone {
            trans,
            purge_volume: VolumeId(0),
            new_type: READONLY,
            new_name: "scratch.readonly".try_into().unwrap(),
            new_volume: RO,
        };
        assert_eq!(
            volser.0.call(&clone).await.unwrap_err().code().0,
            18,
            "EXDEV"
        );
        let again = afsvol::ReClone { trans, clone: RO };
        assert_eq!(
            volser.0.call(&again).await.unwrap_err().code().0,
            18,
            "EXDEV"
        );
        let create = afsvol::CreateVolume {
            volume: RO,
            volume_type: READONLY,
            ..create
        };
        assert_eq!(volser.0.call(&create).await.unwrap_err().code().0, 5, "EIO");
        volser.end(trans).await;
        // Nor a read-write volume, except in a move.
        let convert = afsvol::ConvertROtoRWvolume {
            partition: 0,
            volume: RO,
        };
        assert_eq!(
            volser.0.call(&convert).await.unwrap_err().code().0,
            18,
            "EXDEV"
        );
        assert!(cell.partition.volume(OPEN).unwrap().is_none());
    });
    drop(other);
}

#[test]
fn calls_of_a_server_to_itself_use_no_network() {
    let (here, _there, client, ..) = two();
    let port = secured(&here);
    here.server.serves_volumes_at(&port);
    run(async {
        let server = Volser(here.admin().await);
        let root = Fid::root(OPEN);
        let file = client.create(root, "file").await;
        // More than is passed at once.
        client.store(file, 0, &vec![7; 9 << 20]).await.unwrap();
        client.store(file, 20 << 20, b"far").await.unwrap();
        let copy = || cookie("copy", READWRITE, NEW);
        let from = server.begin(OPEN, IT_BUSY).await;
        let to = server.create("copy", READWRITE, NEW, NEW).await;
        let unknown = server.forward(from, 0, (&port, 999), copy()).await;
        assert_eq!(unknown.unwrap_err().code(), AbortCode::ENOENT);
        // First everything; then only the changes since a date, which are none.
        for date in [0, (NOW - 2) as i32] {
            server
                .forward(from, date, (&port, to), copy())
                .await
                .unwrap();
        }
        server.end(from).await;
        server.flags(to, 0).await;
        server.end(to).await;
        let (new, old) = (server.items(NEW).await, server.items(OPEN).await);
        assert_same(&contents(&new), &contents(&old), "a copy");
        for opcode in [afsvol::GetState::OPCODE, afsvol::RestoreDelta::OPCODE] {
            assert_eq!(calls(&port, opcode), 0);
        }
    });
    assert_eq!(here.partition.check().unwrap().faults, [""; 0]);
}
