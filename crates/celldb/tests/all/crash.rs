//! Power fails at the n-th operation on the disk, for every n. Afterwards acknowledged changes are
//! there, and others are absent or whole.

use std::collections::BTreeMap;
use std::ops::Bound;

use cellar_celldb::{CellDb, Embedded, Error, Revision, Table, View};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::simulated_disk::SimulatedDisk;

const ROWS: Table = Table::new("rows");
const TOTALS: Table = Table::new("totals");

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
