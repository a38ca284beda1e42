//! The consistency check of a whole device, for tests and for devices taken out of service.
//!
//! Every block is free, or exactly one place of one object names it, in any number of versions. The
//! records have the right numbers of objects and blocks.

use std::collections::{BTreeMap, HashMap};

use super::{ObjectStore, name_of};
use crate::background::check::CheckReport;
use crate::engine::blocks::Owner;
use crate::engine::key::{Key, Kind};
use crate::error::Result;
use crate::record::{BLOCK, ObjectRecord, PIECE_BLOCKS, Piece};

impl ObjectStore {
    /// Checks everything on the device. Nothing may change it meanwhile. In the report, the volumes
    /// are the objects, and unseen versions are pieces of removed objects.
    pub fn check(&self) -> Result<CheckReport> {
        let shared = self.shared();
        let _quiet = shared.reaper.hold();
        let engine = &shared.engine;
        let mut report = CheckReport::default();
        let mut objects: BTreeMap<u64, ObjectRecord> = BTreeMap::new();
        let (mut present, mut removed) = (0, 0);
        let prefix = Key::of_kind(Kind::Object);
        let mut scan = engine.scan(&prefix, &prefix)?;
        while let Some((key, value)) = scan.next()? {
            let record = ObjectRecord::decode(&value)?;
            *(if record.removed == 0 {
                &mut present
            } else {
                &mut removed
            }) += 1;
            let ascend = record
                .versions
                .windows(2)
                .all(|two| two[0].version < two[1].version);
            if !ascend {
                report.fault(format!(
                    "the versions of object {} do not ascend",
                    name_of(&key)
                ));
            }
            if objects.insert(record.number, record).is_some() {
                report.fault(format!(
                    "object {} has the number of another",
                    name_of(&key)
                ));
            }
        }
        report.volumes = present + removed;
        let device = *shared.device.lock();
        if (device.objects, device.removed) != (present, removed) {
            report.fault(format!(
                "{present} and {removed} removed objects: {device:?}"
            ));
        }
        let mut named: HashMap<u64, (u64, u64)> = HashMap::new();
        let mut blocks: HashMap<u64, u64> = HashMap::new();
        let prefix = Key::of_kind(Kind::ObjectPiece);
        let mut scan = engine.scan(&prefix, &prefix)?;
        while let Some((key, value)) = scan.next()? {
            let (number, piece, version) = (key.u64_at(1), key.u64_at(9), key.epoch());
            match objects.get(&number) {
                Some(record) => check_place(record, piece, version, &mut report),
                None => {
                    report.unseen(&key);
                    if engine.get(&Key::reap_object(number))?.is_none() {
                        report.fault(format!(
                            "piece {piece} of object number {number} belongs to no object"
                        ));
                    }
                }
            }
            let decoded = Piece::decode(&value)?;
            let Some(of_piece) = decoded.blocks() else {
                continue;
            };
            for (place, slot) in of_piece.0.iter().enumerate() {
                let Some(slot) = slot else { continue };
                let index = piece * PIECE_BLOCKS as u64 + place as u64;
                let other = named.insert(slot.block, (number, index));
                if other.is_none() {
                    *blocks.entry(number).or_default() += 1;
                } else if other != Some((number, index)) {
                    report.fault(format!(
                        "block {} is {number}/{index} and {other:?}",
                        slot.block
                    ));
                }
                let mut bytes = vec![0; BLOCK];
                let read = engine.space.read(slot.block, &mut bytes, false);
                if read.is_err() || Owner::object(number).checksum(index, &bytes) != slot.checksum {
                    report.fault(format!(
                        "block {index} of object number {number} is damaged"
                    ));
                }
            }
        }
        for (number, record) in &objects {
            let counted = blocks.get(number).copied().unwrap_or(0);
            if counted != record.blocks {
                let says = record.blocks;
                report.fault(format!(
                    "object number {number} has {counted} blocks, not {says}"
                ));
            }
        }
        report.blocks = named.len() as u64;
        report.compare_map(engine, named)?;
        Ok(report)
    }
}

/// Checks that a piece of this version can be visible at all.
fn check_place(record: &ObjectRecord, piece: u64, version: u64, report: &mut CheckReport) {
    let number = record.number;
    let Some(sees) = record
        .versions
        .iter()
        .find(|known| known.version >= version)
    else {
        report.fault(format!(
            "piece {piece} of object number {number} is newer than it"
        ));
        return;
    };
    if !sees.changed.contains(&piece) {
        report.fault(format!(
            "piece {piece}/{version} of {number} is outside of {sees:?}"
        ));
    }
}
