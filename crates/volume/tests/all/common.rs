//! A partition on a disk in memory, and helpers that many tests use.

pub(crate) mod crashing;
pub(crate) mod faults;
pub(crate) mod inflict;
pub(crate) mod restoring;

use std::sync::Arc;

use cellar_volume::disk::SimDisk;
use cellar_volume::{
    Context, NewVnode, Options, Partition, SnapshotSpec, Volume, VolumeKind, VolumeSpec,
};
use cellar_wire::ids::{AfsTime, ViceId, VolumeId};
use cellar_wire::object::{Layout, Placed, Shape};

pub(crate) const VOLUME: VolumeId = VolumeId(10);

pub(crate) struct World {
    pub(crate) disk: SimDisk,
    pub(crate) partition: Arc<Partition>,
}

pub(crate) fn options() -> Options {
    Options {
        journal_bytes: 1 << 20,
        base_cache_bytes: 4 << 20,
        reserve_bytes: 1 << 20,
        reap_rate: u32::MAX,
        ..Options::default()
    }
}

pub(crate) fn at(seconds: u32) -> Context {
    Context {
        author: ViceId(100),
        now: AfsTime(seconds),
    }
}

pub(crate) fn new() -> NewVnode {
    NewVnode {
        owner: ViceId(100),
        group: None,
        mode: Some(0o644),
        client_time: None,
    }
}

/// A layout of two stripes whose objects have this version.
pub(crate) fn layout(version: u64) -> Layout {
    let placed = |place: u32| Placed {
        osd: 10 + place,
        serial: 1 + place,
        version,
        stale: false,
    };
    Layout {
        shape: Shape {
            stripes: 2,
            ..Shape::default()
        },
        version,
        serial: 2,
        volume: VOLUME,
        objects: vec![placed(0), placed(1)].try_into().unwrap(),
    }
}

pub(crate) fn create_volume(partition: &Partition) {
    let spec = VolumeSpec::new(VOLUME, "vol", ViceId(100), AfsTime(1));
    partition.create_volume(&spec).unwrap().wait().unwrap();
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with_capacity(64 << 20)
    }

    pub(crate) fn with_capacity(bytes: u64) -> Self {
        let disk = SimDisk::new(bytes);
        let partition = Partition::open(Arc::new(disk.clone()), options()).unwrap();
        create_volume(&partition);
        Self { disk, partition }
    }

    pub(crate) fn volume(&self) -> Arc<Volume> {
        self.partition.volume(VOLUME).unwrap().unwrap()
    }

    pub(crate) fn clone_of(&self, volume: &Volume, id: u32, kind: VolumeKind) -> Arc<Volume> {
        let (id, name) = (VolumeId(id), format!("clone{id}"));
        let spec = SnapshotSpec::new(volume.id(), id, name, kind, AfsTime(50));
        self.partition.snapshot(&spec).unwrap().wait().unwrap()
    }

    /// Closes the partition and opens it again.
    pub(crate) fn reopen(self) -> Self {
        self.partition.close().unwrap();
        drop(self.partition);
        let partition = Partition::open(Arc::new(self.disk.clone()), options()).unwrap();
        Self {
            disk: self.disk,
            partition,
        }
    }

    /// Asserts that the check finds no faults.
    pub(crate) fn check(&self) {
        let report = self.partition.check().unwrap();
        assert!(report.faults.is_empty(), "{:#?}", report.faults);
    }

    /// Asserts that the check finds no faults and no versions without a viewer.
    pub(crate) fn check_clean(&self) {
        let report = self.partition.check().unwrap();
        assert!(report.faults.is_empty(), "{:#?}", report.faults);
        assert_eq!(report.unseen, 0, "{:#?}", report.unseen_keys);
    }
}
