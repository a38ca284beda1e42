//! Placements for random lists of devices and for hand-made ones.

use std::collections::{BTreeMap, BTreeSet};

use cellar_wire::osddb::OsdState;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::*;

/// A device of `host` in `rack`, with half of a TiB free.
fn device(id: u32, rack: u32, host: u32) -> OsdListed {
    OsdListed {
        entry: OsdEntry {
            id,
            addresses: vec![[0, 0, 0xffff, 0x0a00_0000 + host]].try_into().unwrap(),
            port: 7006,
            allocation_priority: 64,
            location: format!("site/room/rack{rack}/host{host}")
                .try_into()
                .unwrap(),
            ..OsdEntry::default()
        },
        state: OsdState {
            id,
            total: 1 << 40,
            free: 1 << 39,
            writable: true,
            ..OsdState::default()
        },
        dead: false,
    }
}

fn striped(stripes: u32, copies: u32) -> PlacementRequest {
    PlacementRequest {
        shape: Shape {
            stripes,
            copies,
            ..Shape::default()
        },
        ..PlacementRequest::default()
    }
}

fn erasure(data: u32, parity: u32) -> PlacementRequest {
    let mut wish = striped(data, parity);
    wish.shape.scheme = Scheme::Erasure;
    wish
}

#[test]
fn objects_are_on_different_devices_that_take_them() {
    let mut rng = StdRng::seed_from_u64(11);
    for round in 0..2000 {
        let count = rng.random_range(1..40);
        let devices: Vec<OsdListed> = (0..count)
            .map(|id| {
                let mut device = device(id + 1, rng.random_range(0..4), rng.random_range(0..12));
                match rng.random_range(0..16) {
                    0 => device.dead = true,
                    1 => device.entry.flags = OSD_DRAINING,
                    2 => device.entry.flags = OSD_ARCHIVAL,
                    3 => device.entry.flags = OSD_OBSOLETE,
                    4 => device.state.free = 2 << 30,
                    5 => device.entry.allocation_priority = 0,
                    6 => device.state.writable = false,
                    7 => device.entry.class = "fast".try_into().unwrap(),
                    8 => device.entry.min_size = 1 << 30,
                    9 => device.entry.max_size = 1 << 10,
                    _ => {}
                }
                device
            })
            .collect();
        let mut wish = if rng.random() {
            striped(rng.random_range(1..9), rng.random_range(1..5))
        } else {
            erasure(rng.random_range(1..9), rng.random_range(1..5))
        };
        wish.size = *[0, 1 << 9, 1 << 20, 1 << 31].choose(&mut rng).unwrap();
        if rng.random_ratio(1, 4) {
            wish.class = "fast".to_owned();
        }
        wish.avoid = vec![rng.random_range(1..40)];
        let size = if wish.size == 0 { 1 << 20 } else { wish.size };
        let usable: BTreeSet<u32> = devices
            .iter()
            .filter(|d| {
                d.entry.id != LOCAL_DISK
                    && !d.dead
                    && d.entry.flags == 0
                    && d.entry.allocation_priority > 0
                    && d.state.writable
                    && d.state.free >= (1 << 40) / 20
                    && (wish.class.is_empty() || d.entry.class == *"fast")
                    && d.entry.min_size <= size
                    && (d.entry.max_size == 0 || d.entry.max_size >= size)
                    && !wish.avoid.contains(&d.entry.id)
            })
            .map(|d| d.entry.id)
            .collect();
        match choose(&devices, &wish, &mut rng) {
            Ok(chosen) => {
                assert_eq!(chosen.len(), wish.shape.objects());
                let different: BTreeSet<u32> = chosen.iter().copied().collect();
                assert_eq!(different.len(), chosen.len(), "round {round}");
                assert!(different.is_subset(&usable), "round {round}");
            }
            Err(none) => {
                assert!(usable.len() < wish.shape.objects(), "round {round}");
                assert_eq!(none.usable, usable.len());
            }
        }
    }
}

#[test]
fn copies_are_on_different_hosts_and_racks_where_there_are_enough() {
    let mut rng = StdRng::seed_from_u64(12);
    // Three racks, of three hosts each, of two devices each.
    let devices: Vec<OsdListed> = (0..18).map(|at| device(at + 2, at / 6, at / 2)).collect();
    let host = |id: u32| (id - 2) / 2;
    let rack = |id: u32| (id - 2) / 6;
    for _ in 0..200 {
        let chosen = choose(&devices, &striped(4, 3), &mut rng).unwrap();
        for stripe in 0..4 {
            let copies = [chosen[stripe], chosen[stripe + 4], chosen[stripe + 8]];
            assert_eq!(copies.map(host).iter().collect::<BTreeSet<_>>().len(), 3);
            assert_eq!(copies.map(rack).iter().collect::<BTreeSet<_>>().len(), 3);
        }
        let chosen = choose(&devices, &erasure(6, 3), &mut rng).unwrap();
        let hosts: BTreeSet<u32> = chosen.iter().map(|id| host(*id)).collect();
        assert_eq!(hosts.len(), 9);
        let chosen = choose(&devices, &erasure(4, 2), &mut rng).unwrap();
        let mut racks = BTreeMap::<u32, usize>::new();
        for id in &chosen {
            *racks.entry(rack(*id)).or_default() += 1;
        }
        assert!(racks.values().all(|count| *count == 2), "{racks:?}");
    }
}

#[test]
fn a_replacement_is_apart_from_the_others() {
    let mut rng = StdRng::seed_from_u64(13);
    let devices: Vec<OsdListed> = (0..18).map(|at| device(at + 2, at / 6, at / 2)).collect();
    let wish = striped(1, 3);
    for _ in 0..100 {
        let present = choose(&devices, &wish, &mut rng).unwrap();
        let other = choose_one(&devices, &wish, 1, &present, &mut rng).unwrap();
        assert!(!present.contains(&other));
        let rack = |id: u32| (id - 2) / 6;
        // The rack of the replaced object is the only one without a copy.
        assert_eq!(rack(other), rack(present[1]));
    }
    let few = &devices[..3];
    let wish = striped(3, 1);
    let present = choose(few, &wish, &mut rng).unwrap();
    assert!(choose_one(few, &wish, 0, &present, &mut rng).is_err());
}

#[test]
fn chance_follows_free_space_and_priority() {
    let mut rng = StdRng::seed_from_u64(14);
    let mut devices: Vec<OsdListed> = (2..5).map(|id| device(id, id, id)).collect();
    devices[0].state.free = 1 << 37;
    devices[1].state.free = 1 << 38;
    devices[2].state.free = 1 << 37;
    devices[2].entry.allocation_priority = 64 * 4;
    let mut counts = BTreeMap::<u32, u32>::new();
    for _ in 0..7000 {
        let chosen = choose(&devices, &striped(1, 1), &mut rng).unwrap();
        *counts.entry(chosen[0]).or_default() += 1;
    }
    // Weights 1, 2 and 4 of 7.
    assert!((850..1150).contains(&counts[&2]), "{counts:?}");
    assert!((1850..2150).contains(&counts[&3]), "{counts:?}");
    assert!((3850..4150).contains(&counts[&4]), "{counts:?}");
}

#[test]
fn own_devices_come_first_but_not_before_different_hosts() {
    let mut rng = StdRng::seed_from_u64(15);
    let mut devices: Vec<OsdListed> = (2..8).map(|id| device(id, id, id)).collect();
    for device in &mut devices[..2] {
        device.entry.location = "far/room/rack/host".try_into().unwrap();
    }
    devices[2].entry.owner = "others".try_into().unwrap();
    let mut wish = striped(1, 2);
    wish.location = "site/elsewhere".to_owned();
    wish.owner = "us".to_owned();
    for _ in 0..100 {
        for id in choose(&devices, &wish, &mut rng).unwrap() {
            assert!(id >= 5, "{id}");
        }
    }
    // All devices of our owner are on one host: others are used.
    for device in &mut devices[3..] {
        device.entry.location = "site/room/rack/one".try_into().unwrap();
    }
    for _ in 0..100 {
        let chosen = choose(&devices, &wish, &mut rng).unwrap();
        assert!(
            chosen.iter().filter(|id| **id >= 5).count() <= 1,
            "{chosen:?}"
        );
    }
}

#[test]
fn the_same_seed_chooses_the_same() {
    let devices: Vec<OsdListed> = (2..30).map(|id| device(id, id / 4, id / 2)).collect();
    let choose = |seed| choose(&devices, &erasure(8, 3), &mut StdRng::seed_from_u64(seed)).unwrap();
    assert_eq!(choose(1), choose(1));
    assert_ne!(choose(1), choose(2));
}

#[test]
fn a_full_partition_has_little_room_and_few_own_bytes() {
    let with = |total, free| {
        let mut device = device(1, 0, 0);
        (device.state.total, device.state.free) = (total, free);
        is_full(&device)
    };
    assert!(with(1 << 40, 2 << 30), "2 GiB of 1 TiB");
    assert!(!with(1 << 40, 5 << 30), "5 GiB of it");
    assert!(!with(16 << 30, 2 << 30), "2 GiB of 16");
    assert!(with(16 << 30, 1 << 29), "half a GiB of 16");
}

/// The placement of a file when devices fail, for every shape and every number of failures.
#[test]
fn a_file_has_a_place_while_there_are_devices_for_its_data() {
    let mut rng = StdRng::seed_from_u64(13);
    for (wish, spare) in [
        (striped(1, 1), 0),
        (striped(4, 1), 0),
        (striped(1, 3), 2),
        (striped(3, 2), 3),
        (erasure(4, 2), 2),
        (erasure(1, 1), 1),
    ] {
        let wanted = wish.shape.objects();
        let (data, scheme) = (wish.shape.stripes as usize, wish.shape.scheme);
        for more in 0..3 {
            for dead in 0..=wanted + more {
                let mut devices: Vec<OsdListed> = (0..wanted + more)
                    .map(|at| device(at as u32 + 2, at as u32 % 3, at as u32))
                    .collect();
                let well = devices.len() - dead;
                for (at, device) in devices.iter_mut().take(dead).enumerate() {
                    match at % 3 {
                        0 => device.dead = true,
                        1 => device.state.writable = false,
                        // Taken out of use after it had died.
                        _ => {
                            device.dead = true;
                            device.entry.flags = OSD_OBSOLETE;
                        }
                    }
                    device.state.free = 0;
                }
                let is_well = |osd: &u32| *osd as usize >= 2 + dead;
                let made = choose_degraded(&devices, &wish, &mut rng);
                let what = format!("{:?}: {dead} of {} dead", wish.shape, devices.len());
                let enough = match scheme {
                    Scheme::Striped => well >= 1,
                    Scheme::Erasure => well >= data,
                };
                assert_eq!(made.is_ok(), enough, "{what}: {made:?}");
                let Ok(made) = made else { continue };
                assert_eq!(made.devices.len(), made.shape.objects(), "{what}");
                let different: BTreeSet<u32> = made.devices.iter().copied().collect();
                assert_eq!(different.len(), made.devices.len(), "{what}");
                assert_eq!(made.shape.stripes as usize, data.min(well), "{what}");
                assert_eq!(made.shape.copies, wish.shape.copies, "{what}");
                let first = made.shape.stripes as usize;
                assert!(
                    made.devices[..first].iter().all(is_well),
                    "{what}: the data"
                );
                let missing = made.devices.iter().filter(|osd| !is_well(osd)).count();
                assert_eq!(missing, made.missing, "{what}");
                let less = made.shape.objects().saturating_sub(well);
                assert_eq!(missing, less, "{what}: no more than necessary");
                assert!(missing <= spare || first < data, "{what}");
                let whole = choose(&devices, &wish, &mut rng).is_ok();
                assert_eq!(whole, made.missing == 0 && first == data, "{what}");
            }
        }
    }
}

/// Devices that are full, draining or unknown are not away: they are no reason to store a file with
/// less redundancy than requested.
#[test]
fn only_devices_that_fail_are_done_without() {
    let mut rng = StdRng::seed_from_u64(14);
    let wish = erasure(2, 1);
    let three = || -> Vec<OsdListed> { (0..3).map(|at| device(at + 2, at, at)).collect() };
    let edited = |edit: &dyn Fn(&mut OsdListed)| {
        let mut devices = three();
        edit(&mut devices[0]);
        devices
    };
    for devices in [
        edited(&|device| device.state.free = 2 << 30),
        edited(&|device| device.entry.flags = OSD_DRAINING),
        edited(&|device| device.entry.flags = OSD_ARCHIVAL),
        edited(&|device| device.entry.allocation_priority = 0),
        edited(&|device| device.entry.max_size = 1 << 10),
        three()[..2].to_vec(),
    ] {
        let refused = choose_degraded(&devices, &wish, &mut rng);
        assert_eq!(refused.map_err(|none| none.usable), Err(2));
        assert_eq!(away_count(&devices, &wish), 0);
    }
    let suspected = PlacementRequest {
        avoid: vec![2],
        ..wish.clone()
    };
    let made = choose_degraded(&three(), &suspected, &mut rng).unwrap();
    assert_eq!((made.devices[2], made.missing), (2, 1));
}
