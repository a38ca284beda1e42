//! Flipped bits in a database: all rows as they were, or a refusal. Never others, fewer, or a panic
//! that leaves the engine.

use std::fs;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use cellar_celldb::{
    CellDb, Embedded, Error, Opening, Revision, Table, check, check_export, export, import,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const MEMBERS: Table = Table::new("pr.member");
const ENTRIES: Table = Table::new("pr.entry");

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

fn contents(db: &Embedded) -> Result<([Rows; 2], Revision), Error> {
    let db: &dyn CellDb = db;
    db.read(|view, revision| {
        let all = |table| {
            let rows = view.scan(table, (Bound::Unbounded, Bound::Unbounded), usize::MAX)?;
            let rows = rows
                .into_iter()
                .map(|(key, value)| (key.to_vec(), value.to_vec()));
            Ok::<Rows, Error>(rows.collect())
        };
        Ok(([all(MEMBERS)?, all(ENTRIES)?], revision))
    })
}

/// A database with many rows, whose last transaction takes a membership away.
fn made(home: &Path) -> PathBuf {
    let path = home.join("cell.redb");
    let db = Embedded::open(&path).unwrap();
    let db: &dyn CellDb = &db;
    for n in 0..20_u32 {
        db.write(|transaction| {
            for k in 0..20_u32 {
                let key = [n.to_be_bytes(), k.to_be_bytes()].concat();
                transaction.put(MEMBERS, key.clone(), Vec::new());
                transaction.put(ENTRIES, key, vec![n as u8; 40]);
            }
            Ok::<_, Error>(())
        })
        .unwrap();
    }
    db.write(|transaction| {
        let key = [7_u32.to_be_bytes(), 7_u32.to_be_bytes()].concat();
        transaction.delete(MEMBERS, key);
        Ok::<_, Error>(())
    })
    .unwrap();
    path
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn flip(path: &Path, bit: u64) {
    let mut bytes = fs::read(path).unwrap();
    bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_flipped_bit_changes_no_row_and_takes_none_away() {
    let seed = std::env::var("SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    // A refused start must not log a panic of the table's library.
    let panics = cellar_guarded::count_unguarded("redb");
    let mut random = StdRng::seed_from_u64(seed);
    let home = tempfile::tempdir().unwrap();
    let good = home.path().join("good");
    fs::create_dir(&good).unwrap();
    let path = made(&good);
    let expected = contents(&Embedded::open(&path).unwrap()).unwrap();
    let length = fs::metadata(&path).unwrap().len();
    // The header says which commit counts: one bit of it takes the last one back.
    let header = (0..320 * 8).step_by(5);
    let anywhere = (0..200).map(|_| random.random_range(0..length * 8));
    let mut refused = 0;
    let bits: Vec<_> = header.chain(anywhere).collect();
    for bit in bits {
        let place = home.path().join("damaged");
        let _ = fs::remove_dir_all(&place);
        copy_all(&good, &place);
        let path = place.join("cell.redb");
        flip(&path, bit);
        match Embedded::open_as(&path, Opening::default()) {
            Ok(db) => assert_eq!(contents(&db).unwrap(), expected, "bit {bit}"),
            Err(Error::Damaged { .. } | Error::Older { .. } | Error::Format { .. }) => refused += 1,
            Err(other) => panic!("bit {bit}: {other}"),
        }
    }
    assert!(refused > 20, "{refused} flips were refused");
    assert_eq!(panics.load(Ordering::Relaxed), 0);
}

#[test]
fn the_bit_that_takes_the_last_transaction_back_is_noticed() {
    let home = tempfile::tempdir().unwrap();
    let running = home.path().join("running");
    fs::create_dir(&running).unwrap();
    let db = Embedded::open(&made(&running)).unwrap();
    let writes: &dyn CellDb = &db;
    writes
        .write(|transaction| {
            transaction.delete(MEMBERS, [0; 8].to_vec());
            Ok::<_, Error>(())
        })
        .unwrap();
    // As a kill leaves it.
    let killed = home.path().join("killed");
    copy_all(&running, &killed);
    let path = killed.join("cell.redb");
    // redb's god byte: its lowest bit says which of the two commits counts.
    flip(&path, 9 * 8);
    let opened = Embedded::open_as(&path, Opening::default());
    assert!(
        matches!(opened, Err(Error::Older { .. } | Error::Damaged { .. })),
        "{:?}",
        opened.err()
    );
}

#[test]
fn an_empty_a_cut_and_a_missing_file_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let path = made(home.path());
    let length = fs::metadata(&path).unwrap().len();
    for cut in [0, 1, 100, 4096, length / 2, length - 1] {
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..cut as usize]).unwrap();
        let opened = Embedded::open(&path).map(drop);
        assert!(
            matches!(opened, Err(Error::Damaged { .. })),
            "{cut}: {opened:?}"
        );
        fs::write(&path, bytes).unwrap();
    }
    fs::remove_file(&path).unwrap();
    let opened = Embedded::open_as(&path, Opening::default()).map(drop);
    assert!(matches!(opened, Err(Error::Missing(_))), "{opened:?}");
}

#[test]
fn the_copy_and_an_export_are_the_way_back() {
    let home = tempfile::tempdir().unwrap();
    let path = made(home.path());
    let copy = home.path().join("cell.copy");
    let (expected, revision, id) = {
        let db = Embedded::open(&path).unwrap();
        db.save_copy(&copy).unwrap();
        let (rows, revision) = contents(&db).unwrap();
        (rows, revision, db.id())
    };
    let summary = check(&path).unwrap();
    assert_eq!(check_export(&copy).unwrap().tables, summary.tables);
    let exported = home.path().join("export");
    let done = export(&path, &exported).unwrap();
    assert_eq!((done.rows, done.faults.len()), (summary.rows(), 0));
    assert_eq!(fs::read(&exported).unwrap(), fs::read(&copy).unwrap());
    // Pages of rows are hit until the database is refused.
    let mut random = StdRng::seed_from_u64(7);
    let length = fs::metadata(&path).unwrap().len();
    while check(&path).is_ok() {
        flip(&path, random.random_range(4096 * 8..length * 8));
    }
    assert!(matches!(check(&path), Err(Error::Damaged { .. })));
    let part = home.path().join("part");
    if let Ok(done) = export(&path, &part) {
        assert!(!done.faults.is_empty());
        assert!(check_export(&part).unwrap().rows() <= summary.rows());
    }
    let damaged = fs::read(&path).unwrap();
    let (made, old) = import(&copy, &path).unwrap();
    assert_eq!(fs::read(old.unwrap()).unwrap(), damaged);
    assert!(made.revision > revision.0);
    let db = Embedded::open_as(&path, Opening::default()).unwrap();
    assert_eq!(contents(&db).unwrap().0, expected);
    assert_eq!(db.id(), id);
    let (key, _) = expected[0][0].clone();
    let db: &dyn CellDb = &db;
    let written = db.write(|transaction| {
        transaction.delete(MEMBERS, key.clone());
        Ok::<_, Error>(())
    });
    assert_eq!(written.unwrap().1.0, made.revision + 1);
}

#[test]
fn an_older_file_is_refused_unless_it_is_meant() {
    let home = tempfile::tempdir().unwrap();
    let path = made(home.path());
    let older = fs::read(&path).unwrap();
    {
        let db = Embedded::open(&path).unwrap();
        let db: &dyn CellDb = &db;
        db.write(|transaction| {
            transaction.put(MEMBERS, "x", "y");
            Ok::<_, Error>(())
        })
        .unwrap();
    }
    fs::write(&path, older).unwrap();
    let opened = Embedded::open_as(&path, Opening::default()).map(drop);
    assert!(matches!(opened, Err(Error::Older { .. })), "{opened:?}");
    let meant = Opening {
        older: true,
        ..Opening::default()
    };
    drop(Embedded::open_as(&path, meant).unwrap());
    drop(Embedded::open_as(&path, Opening::default()).unwrap());
}

#[test]
fn a_newer_format_is_refused_and_left_as_it_is() {
    let home = tempfile::tempdir().unwrap();
    let path = made(home.path());
    let table = redb::TableDefinition::<&str, u64>::new("_celldb");
    let set = |format: u64| {
        let database = redb::Database::open(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        let mut meta = transaction.open_table(table).unwrap();
        meta.insert("format", format).unwrap();
        drop(meta);
        transaction.commit().unwrap();
    };
    set(3);
    let refused = Embedded::open(&path).map(drop).unwrap_err();
    assert!(matches!(refused, Error::Format { format: 3, .. }));
    assert!(refused.to_string().contains("use a newer one"), "{refused}");
    set(2);
    let rows = contents(&Embedded::open(&path).unwrap()).unwrap().0;
    assert_eq!(rows.map(|rows| rows.len()), [399, 400]);
}
