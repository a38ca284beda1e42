//! Random layouts, stores, cuts, reads, device failures and repairs, compared with a plain vector
//! of bytes.
//!
//! `OBJECTS_SEED=n` runs one seed, `OBJECTS_SEEDS=n` the seeds from 1 to n.

use std::collections::HashMap;
use std::time::Duration;

use crate::cell::{Cell, File, erasure, striped};
use bytes::Bytes;
use cellar_objects::fake::Fault;
use cellar_objects::repair::{Pace, RebuildTarget, rebuild};
use cellar_wire::abort::AbortCode;
use cellar_wire::object::Shape;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

const DEVICES: u32 = 14;
const STEPS: usize = 30;
const SEEDS: u64 = 40;

struct Run<'a> {
    cell: &'a Cell,
    rng: StdRng,
    file: File,
    model: Vec<u8>,
    faults: HashMap<u32, Fault>,
}

fn shape(rng: &mut StdRng) -> Shape {
    let unit = 4096 << rng.random_range(0..3);
    match rng.random_range(0..4) {
        0 => striped(1, rng.random_range(1..5), unit),
        1 => striped(rng.random_range(2..5), rng.random_range(1..4), unit),
        2 => erasure(rng.random_range(1..9), rng.random_range(1..5), unit),
        // More objects than devices.
        _ => striped(rng.random_range(8..33), rng.random_range(1..5), 4096),
    }
}

impl Run<'_> {
    fn fault(&self) -> impl Fn(u32) -> Fault + '_ {
        |osd| self.faults.get(&osd).copied().unwrap_or_default()
    }

    fn is_safe(&self) -> bool {
        self.file.is_safe(self.cell, self.fault())
    }

    /// Whether an operation would have to wait for the death of a silent device that it needs.
    fn would_wait(&self) -> bool {
        !self.is_safe() && self.faults.values().any(|fault| *fault == Fault::Silent)
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.rng.fill(&mut bytes[..]);
        bytes
    }

    /// Chooses a position and a length, often at the edges of units and rows.
    fn range(&mut self, far: u64) -> (u64, u64) {
        let shape = self.file.layout.shape;
        let (unit, row) = (
            u64::from(shape.unit),
            u64::from(shape.unit) * u64::from(shape.stripes),
        );
        let edge = |rng: &mut StdRng| match rng.random_range(0..4) {
            0 => rng.random_range(0..=far / unit) * unit,
            1 => rng.random_range(0..=far / row) * row,
            _ => rng.random_range(0..=far),
        };
        let position = edge(&mut self.rng);
        let length = match self.rng.random_range(0..4) {
            0 => self.rng.random_range(1..200),
            1 => row,
            2 => unit,
            _ => self.rng.random_range(1..=row * 2),
        };
        (position, length.min(600_000))
    }

    async fn step(&mut self) {
        if self.would_wait() {
            return self.heal();
        }
        let safe = self.is_safe();
        let length = self.model.len() as u64;
        match self.rng.random_range(0..20) {
            0..6 => {
                let (position, count) = self.range(length + 20_000);
                let bytes = self.bytes(count as usize);
                let stored = self.file.write(self.cell, position, &bytes).await;
                assert!(stored.is_ok() || !safe, "a store failed: {stored:?}");
                if stored.is_ok() {
                    let end = position as usize + bytes.len();
                    let longer = self.model.len().max(end);
                    self.model.resize(longer, 0);
                    self.model[position as usize..end].copy_from_slice(&bytes);
                }
            }
            6 => self.several().await,
            7 => {
                // An abandoned store, in the middle or at its end.
                let (position, count) = self.range(length);
                let bytes = Bytes::from(self.bytes(count as usize));
                let part = self.rng.random_range(0..=bytes.len());
                let mut writer = self.file.writer(self.cell);
                if writer.begin(position, count).await.is_ok() {
                    let _given_up = writer.push(bytes.slice(..part)).await;
                }
            }
            8..10 => {
                let to = self.range(length + 5000).0;
                let cut = self.file.truncate(self.cell, to).await;
                assert!(cut.is_ok() || !safe, "a cut failed: {cut:?}");
                if cut.is_ok() {
                    self.model.resize(to as usize, 0);
                }
            }
            10..15 => self.compare(safe).await,
            15 => self.harm(),
            16 => self.lose(),
            17 => self.heal(),
            _ => self.repair(safe).await,
        }
    }

    /// A store of several adjacent runs.
    async fn several(&mut self) {
        let safe = self.is_safe();
        let mut model = self.model.clone();
        let mut writer = self.file.writer(self.cell);
        for _ in 0..self.rng.random_range(2..5) {
            let (position, count) = self.range(model.len() as u64 + 3000);
            let bytes = self.bytes(count as usize);
            let stored = async {
                writer.begin(position, count).await?;
                writer.push(Bytes::copy_from_slice(&bytes)).await
            };
            let stored = stored.await;
            assert!(stored.is_ok() || !safe, "a run failed: {stored:?}");
            if stored.is_err() {
                return;
            }
            let end = position as usize + bytes.len();
            let longer = model.len().max(end);
            model.resize(longer, 0);
            model[position as usize..end].copy_from_slice(&bytes);
        }
        let written = writer.finish().await;
        assert!(written.is_ok() || !safe, "an end failed: {written:?}");
        if let Ok(written) = written {
            self.file.take(written);
            self.model = model;
        }
    }

    async fn compare(&mut self, safe: bool) {
        let length = self.model.len() as u64;
        let (position, count) = self.range(length);
        let whole = self.rng.random_ratio(1, 3);
        let range = match whole {
            true => 0..length,
            false => position.min(length)..(position + count).min(length),
        };
        match self.file.read(self.cell, range.clone()).await {
            Ok(bytes) => {
                let said = &self.model[range.start as usize..range.end as usize];
                assert_eq!(bytes.len(), said.len());
                let wrong = bytes.iter().zip(said).position(|(a, b)| a != b);
                assert_eq!(wrong, None, "of {range:?}, {:?}", self.file.layout);
            }
            Err(failure) => assert!(!safe, "a read failed: {failure}"),
        }
    }

    fn harm(&mut self) {
        let faults = [
            Fault::Abort(AbortCode::EIO),
            Fault::Abort(AbortCode::VBUSY),
            Fault::Midway(AbortCode::EIO),
            Fault::Writes(AbortCode::ENOSPC),
            Fault::Silent,
        ];
        let fault = *faults.choose(&mut self.rng).unwrap();
        let osd = self.rng.random_range(0..DEVICES) + 2;
        self.cell.osd(osd).set_fault(fault);
        self.faults.insert(osd, fault);
    }

    /// A device loses its data.
    fn lose(&mut self) {
        let osd = self.rng.random_range(0..DEVICES) + 2;
        self.cell.osd(osd).objects(|objects| objects.clear());
    }

    fn heal(&mut self) {
        for (osd, _) in self.faults.drain() {
            self.cell.osd(osd).set_fault(Fault::None);
        }
    }

    async fn repair(&mut self, safe: bool) {
        let place = self.rng.random_range(0..self.file.layout.objects.len());
        let osd = self.rng.random_range(0..DEVICES) + 2;
        let serial = self.file.layout.serial + 1;
        let set = self.file.set(self.file.layout.clone());
        let target = RebuildTarget { osd, serial };
        let well = self.fault()(osd) == Fault::None;
        let length = self.file.length;
        let pace = Pace::new(0);
        let made = rebuild(&self.cell.devices, &set, place, target, length, &pace).await;
        // All others may be lost except this one, which cannot be computed from itself alone.
        let alone = !self.file.is_well(self.cell, place, self.fault());
        match made {
            Ok(placed) => {
                assert!(!placed.stale);
                self.file.layout.serial = serial;
                self.file.layout.objects.as_mut_slice()[place] = placed;
                // It may be on a device that fails now.
                let safe = self.is_safe();
                if !self.would_wait() {
                    self.compare(safe).await;
                }
            }
            Err(failure) => assert!(!safe || !well || !alone, "a repair failed: {failure}"),
        }
    }
}

#[tokio::test(flavor = "current_thread")]
async fn files_in_objects_are_files() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seeds = match number("OBJECTS_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..number("OBJECTS_SEEDS").unwrap_or(SEEDS) + 1,
    };
    let cell = Cell::start(DEVICES);
    for seed in seeds {
        let mut rng = StdRng::seed_from_u64(seed);
        let shape = shape(&mut rng);
        println!("seed {seed}: {shape:?}");
        let mut file = File::new(&cell, shape);
        file.patience = Duration::from_millis(300);
        let mut run = Run {
            cell: &cell,
            rng,
            file,
            model: Vec::new(),
            faults: HashMap::new(),
        };
        for _ in 0..STEPS {
            run.step().await;
        }
        run.heal();
        let safe = run.is_safe();
        run.compare(safe).await;
        for osd in &cell.osds {
            osd.objects(|objects| objects.clear());
        }
    }
}
