//! Accesses are counted for each volume, kept over an orderly end, and counted for a clone itself.

use crate::common::*;
use cellar_volume::{Volume, VolumeInfo, VolumeKind};
use cellar_wire::ids::{AfsTime, VolumeId};

/// Accesses of today and yesterday, in case midnight has passed since.
fn counted(info: &VolumeInfo) -> u32 {
    info.day_use + info.week_use[0]
}

fn access(volume: &Volume, times: u32) {
    (0..times).for_each(|_| volume.count_access());
}

#[test]
fn accesses_are_shown_listed_and_kept() {
    let world = World::new();
    let volume = world.volume();
    assert_eq!(counted(&volume.info()), 0);
    access(&volume, 3);
    assert_eq!(counted(&volume.info()), 3);
    assert!(volume.info().accessed > volume.info().created);
    // A change of the record includes the counts.
    let named = volume.update_info(AfsTime(2), |info| info.name = "other".into());
    assert_eq!(counted(&named.unwrap().wait().unwrap()), 3);
    access(&volume, 2);
    let listed = world.partition.volumes(None, 10).unwrap();
    assert_eq!(listed.iter().map(counted).collect::<Vec<_>>(), [5]);
    drop(volume);

    let world = world.reopen();
    let listed = world.partition.volumes(None, 10).unwrap();
    assert_eq!(counted(&listed[0]), 5, "before it is attached");
    let volume = world.volume();
    assert_eq!(counted(&volume.info()), 5);
    access(&volume, 1);
    let set = volume.update_info(AfsTime(3), |info| {
        (info.day_use, info.week_use) = (1, [0; 7])
    });
    assert_eq!(counted(&set.unwrap().wait().unwrap()), 1);
    access(&volume, 1);
    world.partition.flush().unwrap();
    let crashed = World {
        disk: world.disk.power_cut(None),
        partition: world.partition,
    };
    assert_eq!(
        counted(&crashed.reopen().volume().info()),
        2,
        "a flush keeps them"
    );
}

#[test]
fn a_clone_counts_its_own_accesses_and_keeps_them_when_it_is_replaced() {
    let world = World::new();
    let volume = world.volume();
    access(&volume, 4);
    let clone = world.clone_of(&volume, 11, VolumeKind::ReadOnly);
    assert_eq!(counted(&clone.info()), 0);
    assert_eq!(counted(&volume.info()), 4);
    access(&clone, 2);
    let again = world.clone_of(&volume, 11, VolumeKind::ReadOnly);
    assert!(clone.is_gone() && !again.is_gone());
    assert_eq!(counted(&again.info()), 2);
    access(&clone, 7);
    assert_eq!(counted(&again.info()), 2);
    drop((clone, again, volume));
    let world = world.reopen();
    let info = world
        .partition
        .volume(VolumeId(11))
        .unwrap()
        .unwrap()
        .info();
    assert_eq!((counted(&info), counted(&world.volume().info())), (2, 4));
    assert!(info.day_use_date > AfsTime(0));
}
