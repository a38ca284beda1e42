//! Power fails at the n-th operation on the disk, for every n. Afterwards acknowledged changes are
//! there, and others are absent or whole.
//!
//! The disk keeps a durable image and the operations since its last sync. Cutting the power applies
//! any subset of those, some of them only up to a sector in their middle.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use cellar_celldb::{CellDb, Embedded, Error, Revision, StorageBackend, Table, View};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const SECTOR: usize = 512;
const ROWS: Table = Table::new("rows");
const TOTALS: Table = Table::new("totals");

#[derive(Clone, Debug)]
enum Operation {
    Write(u64, Vec<u8>),
    SetLength(u64),
}

impl Operation {
    fn apply(&self, image: &mut Vec<u8>) {
        match self {
            Self::Write(offset, data) => {
                let end = *offset as usize + data.len();
                if image.len() < end {
                    image.resize(end, 0);
                }
                image[*offset as usize..end].copy_from_slice(data);
            }
            Self::SetLength(length) => image.resize(*length as usize, 0),
        }
    }
}

#[derive(Debug, Default)]
struct Platter {
    durable: Vec<u8>,
    current: Vec<u8>,
    unsynced: Vec<Operation>,
    operations: u64,
    fails_at: Option<u64>,
}

impl Platter {
    fn step(&mut self) -> io::Result<()> {
        self.operations += 1;
        match self.fails_at {
            Some(n) if self.operations >= n => Err(io::Error::other("the power is gone")),
            _ => Ok(()),
        }
    }
}

#[derive(Clone, Debug, Default)]
struct SimulatedDisk(Arc<Mutex<Platter>>);

impl SimulatedDisk {
    fn of(image: Vec<u8>, fails_at: Option<u64>) -> Self {
        let platter = Platter {
            durable: image.clone(),
            current: image,
            fails_at,
            ..Platter::default()
        };
        Self(Arc::new(Mutex::new(platter)))
    }

    fn operations(&self) -> u64 {
        self.0.lock().unwrap().operations
    }

    /// The disk as a machine finds it after a power cut. `fate` 0: nothing unsynced arrived; 1:
    /// everything; otherwise the seed of which operations did, and how much of each.
    fn after_power_loss(&self, fate: u64) -> Vec<u8> {
        let platter = self.0.lock().unwrap();
        let mut image = platter.durable.clone();
        let mut random = StdRng::seed_from_u64(fate);
        for operation in &platter.unsynced {
            match (fate, operation) {
                (0, _) => {}
                (1, _) => operation.apply(&mut image),
                (_, Operation::Write(offset, data)) => {
                    let sectors = data.len() / SECTOR;
                    match random.random_range(0..4) {
                        0 => {}
                        1 if sectors > 1 => {
                            let kept = random.random_range(1..sectors) * SECTOR;
                            Operation::Write(*offset, data[..kept].to_vec()).apply(&mut image);
                        }
                        _ => operation.apply(&mut image),
                    }
                }
                (_, Operation::SetLength(_)) => operation.apply(&mut image),
            }
        }
        image
    }
}

impl StorageBackend for SimulatedDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let platter = self.0.lock().unwrap();
        let from = offset as usize;
        let bytes = platter.current.get(from..from + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.apply(Operation::SetLength(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut platter = self.0.lock().unwrap();
        platter.step()?;
        platter.durable = platter.current.clone();
        platter.unsynced.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.apply(Operation::Write(offset, data.to_vec()))
    }
}

impl SimulatedDisk {
    fn apply(&self, operation: Operation) -> io::Result<()> {
        let mut platter = self.0.lock().unwrap();
        platter.step()?;
        operation.apply(&mut platter.current);
        platter.unsynced.push(operation);
        Ok(())
    }
}

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// The n-th transaction: sets, overwrites and deletes rows, and keeps their number in another
/// table.
fn change(db: &dyn CellDb, n: u64) -> Result<Revision, Error> {
    let ((), revision) = db.write(|transaction| {
        let mut count = match transaction.get(TOTALS, b"count")? {
            Some(bytes) => u64::from_be_bytes(bytes[..].try_into().unwrap()),
            None => 0,
        };
        let mut random = StdRng::seed_from_u64(n);
        for _ in 0..random.random_range(1..6) {
            let key = vec![b'k', random.random_range(0..40)];
            let there = transaction.get(ROWS, &key)?.is_some();
            if there && random.random_bool(0.3) {
                transaction.delete(ROWS, key);
                count -= 1;
            } else {
                let value = vec![n as u8; random.random_range(0..3000)];
                transaction.put(ROWS, key, value);
                count += u64::from(!there);
            }
        }
        transaction.put(TOTALS, &b"count"[..], count.to_be_bytes().to_vec());
        Ok::<_, Error>(())
    })?;
    Ok(revision)
}

fn contents(db: &dyn CellDb) -> (Rows, u64, Revision) {
    db.read(|view, revision| {
        let rows = view.scan(ROWS, (Bound::Unbounded, Bound::Unbounded), usize::MAX)?;
        let rows: Rows = rows
            .into_iter()
            .map(|(k, v)| (k.to_vec(), v.to_vec()))
            .collect();
        let count = view.get(TOTALS, b"count")?;
        let count = count.map_or(0, |bytes| u64::from_be_bytes(bytes[..].try_into().unwrap()));
        Ok::<_, Error>((rows, count, revision))
    })
    .unwrap()
}

const TRANSACTIONS: u64 = 8;

/// Runs transactions after those that are there until the disk fails: how many were acknowledged.
fn run(disk: SimulatedDisk, first: u64) -> u64 {
    let Ok(db) = Embedded::with_backend(disk) else {
        return first - 1;
    };
    let db: &dyn CellDb = &db;
    for n in first..first + TRANSACTIONS {
        match change(db, n) {
            Ok(revision) => assert_eq!(revision, Revision(n)),
            Err(_) => {
                assert!(
                    matches!(change(db, n), Err(Error::Failed(_))),
                    "later writes are refused"
                );
                return n - 1;
            }
        }
    }
    first + TRANSACTIONS - 1
}

/// The contents of the tables after each number of transactions.
fn expected() -> Vec<(Rows, u64)> {
    let db = Embedded::with_backend(SimulatedDisk::default()).unwrap();
    let db: &dyn CellDb = &db;
    let mut states = vec![(Rows::new(), 0)];
    for n in 1..=2 * TRANSACTIONS {
        change(db, n).unwrap();
        let (rows, count, _) = contents(db);
        assert_eq!(rows.len() as u64, count);
        states.push((rows, count));
    }
    states
}

fn fail_everywhere(image: Vec<u8>, done: u64, expected: &[(Rows, u64)]) {
    let whole = SimulatedDisk::of(image.clone(), None);
    run(whole.clone(), done + 1);
    let operations = whole.operations();
    assert!(operations > TRANSACTIONS * 3, "the disk is used");
    for n in 1..=operations {
        let disk = SimulatedDisk::of(image.clone(), Some(n));
        let acknowledged = run(disk.clone(), done + 1);
        for fate in [0, 1, 2 * n, 2 * n + 1] {
            let found = disk.after_power_loss(fate);
            let db = Embedded::with_backend(SimulatedDisk::of(found, None))
                .unwrap_or_else(|error| panic!("operation {n}, fate {fate}: {error}"));
            let db: &dyn CellDb = &db;
            let (rows, count, revision) = contents(db);
            let Revision(kept) = revision;
            assert!(
                kept == acknowledged || kept == acknowledged + 1,
                "operation {n}, fate {fate}: {kept} kept, {acknowledged} acknowledged"
            );
            let (expected_rows, expected_count) = &expected[kept as usize];
            assert!(
                rows == *expected_rows,
                "operation {n}, fate {fate}: rows of {kept}"
            );
            assert_eq!(count, *expected_count);
            assert_eq!(
                change(db, kept + 1).unwrap(),
                Revision(kept + 1),
                "and it goes on"
            );
        }
    }
}

#[test]
fn power_loss_at_every_operation_of_an_empty_database() {
    let disk = SimulatedDisk::default();
    drop(Embedded::with_backend(disk.clone()).unwrap());
    fail_everywhere(disk.after_power_loss(0), 0, &expected());
}

#[test]
fn power_loss_at_every_operation_of_an_existing_database() {
    let disk = SimulatedDisk::default();
    assert_eq!(run(disk.clone(), 1), TRANSACTIONS);
    fail_everywhere(disk.after_power_loss(1), TRANSACTIONS, &expected());
}
