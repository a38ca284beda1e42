//! Many threads in one small tree: there is no deadlock and no lost link, and all counters are
//! right afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::*;
use bytes::Bytes;
use cellar_volume::{Error, StoreSpec, VolumeKind, nonblocking};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

#[test]
fn threads_and_clones_do_not_get_in_each_others_way() {
    let world = World::with_capacity(1 << 30);
    let volume = world.volume();
    let stop = AtomicBool::new(false);
    let root = volume.root();
    let dirs: Vec<_> = (0..4)
        .map(|n| {
            let name = format!("dir{n}");
            let made = volume
                .make_dir(root, name.as_bytes(), &new(), at(1))
                .unwrap();
            made.outcome.status.fid
        })
        .collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6u64)
            .map(|seed| {
                let (volume, dirs, stop) = (Arc::clone(&volume), &dirs, &stop);
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(seed);
                    let mut done = 0u64;
                    while !stop.load(Ordering::Relaxed) {
                        let mut dir = || dirs[random.random_range(0..dirs.len())];
                        let (from, to) = (dir(), dir());
                        let name = format!("n{}", random.random_range(0..12));
                        let other = format!("n{}", random.random_range(0..12));
                        let (name, other) = (name.as_bytes(), other.as_bytes());
                        let result = match random.random_range(0..9) {
                            0 => volume
                                .create_file(from, name, &new(), at(2))
                                .map(|c| c.durable),
                            1 => volume
                                .make_dir(from, name, &new(), at(2))
                                .map(|c| c.durable),
                            2 => volume.remove_file(from, name, at(2)).map(|c| c.durable),
                            3 => volume.remove_dir(from, name, at(2)).map(|c| c.durable),
                            4 => volume
                                .rename(from, name, to, other, at(2))
                                .map(|c| c.durable),
                            5 => volume.lookup(from, name).and_then(|target| {
                                volume.link(from, other, target, at(2)).map(|c| c.durable)
                            }),
                            6 => volume.lookup(from, name).and_then(|target| {
                                let length = random.random_range(0..20_000);
                                let data = Bytes::from(vec![seed as u8; length]);
                                let spec = StoreSpec::at(random.random_range(0..9000));
                                volume
                                    .store(target, &spec, &[data], at(2))
                                    .map(|c| c.durable)
                            }),
                            7 => volume
                                .lookup(from, name)
                                .and_then(|target| volume.read(target, 0, 1 << 20))
                                .map(|_| cellar_volume::Ticket::ready()),
                            _ => nonblocking(|| {
                                volume
                                    .rename(from, name, to, other, at(2))
                                    .map(|c| c.durable)
                            }),
                        };
                        match result {
                            Ok(ticket) if done.is_multiple_of(16) => ticket.wait().unwrap(),
                            Ok(_) => {}
                            Err(
                                error @ (Error::Io { .. }
                                | Error::Stopped(_)
                                | Error::Partition(_)
                                | Error::Format(_)),
                            ) => panic!("{error}"),
                            Err(_) => {}
                        }
                        done += 1;
                    }
                    done
                })
            })
            .collect();
        for n in 0..20 {
            // The threads work on between two clones.
            std::thread::sleep(Duration::from_millis(100));
            let _ = world.clone_of(&volume, 20 + n % 3, VolumeKind::ReadOnly);
            if n % 5 == 4 {
                let id = cellar_wire::ids::VolumeId(20 + n % 3);
                world.partition.delete_volume(id).unwrap().wait().unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            assert!(thread.join().unwrap() > 100);
        }
    });
    world.check();
    for id in 20..23 {
        let id = cellar_wire::ids::VolumeId(id);
        if world.partition.volume(id).unwrap().is_some() {
            world.partition.delete_volume(id).unwrap().wait().unwrap();
        }
    }
    world.partition.reap_now().unwrap();
    world.check_clean();
    drop(volume);
    world.reopen().check_clean();
}
