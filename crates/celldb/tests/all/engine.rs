//! Transactions, views and watches of the embedded engine.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cellar_celldb::{CellDb, Embedded, Error, Revision, Table, View, limits};

const A: Table = Table::new("a");
const B: Table = Table::new("b");

fn open() -> (tempfile::TempDir, Arc<dyn CellDb>) {
    let dir = tempfile::tempdir().unwrap();
    let db = Embedded::open(&dir.path().join("cell.db")).unwrap();
    (dir, Arc::new(db))
}

fn put(db: &dyn CellDb, table: Table, key: &str, value: &str) -> Revision {
    let put = db.write(|transaction| {
        transaction.put(table, key.to_owned(), value.to_owned());
        Ok::<_, Error>(())
    });
    put.unwrap().1
}

fn keys(db: &dyn CellDb, table: Table) -> Vec<String> {
    let all = (Bound::Unbounded, Bound::Unbounded);
    let rows = db
        .read(|view, _| view.scan(table, all, usize::MAX))
        .unwrap();
    rows.into_iter()
        .map(|(key, _)| String::from_utf8(key.to_vec()).unwrap())
        .collect()
}

#[test]
fn a_transaction_sees_its_own_writes_over_the_state_it_began_in() {
    let (_dir, db) = open();
    for key in ["b", "d", "f"] {
        put(&*db, A, key, "old");
    }
    db.write(|t| {
        t.put(A, "a", "new");
        t.put(A, "d", "new");
        t.put(A, "g", "new");
        t.delete(A, "f");
        t.delete(A, "absent");
        let rows = t
            .view()
            .scan(A, (Bound::Unbounded, Bound::Unbounded), 100)?;
        let rows: Vec<_> = rows.iter().map(|(k, v)| (&k[..], &v[..])).collect();
        let expected: [(&[u8], &[u8]); 4] = [
            (b"a", b"new"),
            (b"b", b"old"),
            (b"d", b"new"),
            (b"g", b"new"),
        ];
        assert_eq!(rows, expected);
        let some = t.view().scan(
            A,
            (Bound::Excluded(&b"a"[..]), Bound::Included(&b"f"[..])),
            1,
        )?;
        assert_eq!(&some[0].0[..], b"b");
        assert_eq!(
            t.view()
                .scan(A, (Bound::Included(b"z"), Bound::Excluded(b"a")), 9)?,
            []
        );
        assert_eq!(t.view().scan_prefix(A, b"g", 9)?.len(), 1);
        assert_eq!(t.get(A, b"f")?, None);
        Ok::<_, Error>(())
    })
    .unwrap();
    assert_eq!(keys(&*db, A), ["a", "b", "d", "g"]);
    assert_eq!(keys(&*db, B), [""; 0]);
}

#[test]
fn a_body_that_fails_changes_nothing() {
    let (_dir, db) = open();
    #[derive(Debug)]
    struct Refused;
    impl From<Error> for Refused {
        fn from(_: Error) -> Self {
            Self
        }
    }
    let before = put(&*db, A, "k", "v");
    let refused: Result<((), _), Refused> = db.write(|t| {
        t.put(A, "k", "other");
        t.delete(B, "x");
        Err(Refused)
    });
    assert!(refused.is_err());
    assert_eq!(db.revision(), before);
    assert_eq!(db.read(|view, _| view.get(A, b"k")).unwrap().unwrap(), "v");
    let ((), same) = db.write(|_| Ok::<_, Error>(())).unwrap();
    assert_eq!(same, before, "a body that writes nothing takes no revision");
}

#[test]
fn limits_are_refused_and_leave_no_trace() {
    let (_dir, db) = open();
    let cases: [(usize, usize); 2] = [
        (limits::KEY_BYTES_MAX + 1, 1),
        (1, limits::VALUE_BYTES_MAX + 1),
    ];
    for (key, value) in cases {
        let result = db.write(|t| {
            t.put(A, "also", "this");
            t.put(A, vec![b'k'; key], vec![0; value]);
            Ok::<_, Error>(())
        });
        assert!(matches!(result, Err(Error::TooLarge { .. })));
    }
    let many = db.write(|t| {
        (0..=limits::CHANGES_MAX).for_each(|n| t.put(A, n.to_be_bytes().to_vec(), ""));
        Ok::<_, Error>(())
    });
    assert!(matches!(
        many,
        Err(Error::TooLarge {
            what: "a transaction",
            ..
        })
    ));
    assert_eq!(db.revision(), Revision(0));
    assert_eq!(keys(&*db, A), [""; 0]);
}

#[test]
fn concurrent_writers_are_serialised_and_share_commits() {
    let (_dir, db) = open();
    let acknowledged = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for writer in 0..8 {
            let (db, acknowledged) = (&db, &acknowledged);
            scope.spawn(move || {
                for _ in 0..25 {
                    db.write(|t| {
                        let old = t.get(A, b"sum")?;
                        let old = old.map_or(0, |v| u64::from_be_bytes(v[..].try_into().unwrap()));
                        t.put(A, "sum", (old + 1).to_be_bytes().to_vec());
                        t.put(B, format!("{writer}"), old.to_be_bytes().to_vec());
                        Ok::<_, Error>(())
                    })
                    .unwrap();
                    acknowledged.fetch_add(1, Ordering::SeqCst);
                    let before = acknowledged.load(Ordering::SeqCst);
                    let sum = db.read(|view, _| view.get(A, b"sum")).unwrap().unwrap();
                    let sum = u64::from_be_bytes(sum[..].try_into().unwrap());
                    assert!(sum >= before, "{sum} read, {before} acknowledged");
                }
            });
        }
    });
    assert_eq!(db.revision(), Revision(200));
}

#[test]
fn a_watch_delivers_every_change_of_its_tables_in_order() {
    let (_dir, db) = open();
    put(&*db, A, "before", "1");
    let from = db.revision();
    let mut both = db.watch(&[A, B], from);
    let mut only_b = db.watch(&[B], from);
    assert!(both.try_next().unwrap().is_none());
    put(&*db, A, "x", "1");
    put(&*db, B, "y", "2");
    db.write(|t| {
        t.delete(A, "x");
        t.put(B, "y", "3");
        Ok::<_, Error>(())
    })
    .unwrap();
    let seen: Vec<_> = std::iter::from_fn(|| both.try_next().unwrap()).collect();
    assert_eq!(
        seen.iter().map(|c| c.revision.0).collect::<Vec<_>>(),
        [2, 3, 4]
    );
    assert_eq!(seen[2].changes.len(), 2);
    assert_eq!(seen[2].changes[0].value, None);
    assert_eq!(both.delivered(), Revision(4));
    let seen: Vec<_> = std::iter::from_fn(|| only_b.try_next().unwrap()).collect();
    assert_eq!(
        seen.iter().map(|c| c.changes.len()).collect::<Vec<_>>(),
        [1, 1]
    );
}

#[test]
fn a_waiting_watch_is_woken() {
    let (_dir, db) = open();
    let mut watch = db.watch(&[A], db.revision());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(move || watch.wait(Duration::from_secs(20)).unwrap());
        put(&*db, A, "k", "v");
        assert_eq!(waiter.join().unwrap().unwrap().changes[0].key, "k");
    });
}

#[test]
fn a_watch_that_falls_too_far_behind_is_told_so() {
    let (_dir, db) = open();
    let mut slow = db.watch(&[A], db.revision());
    let value = "v".repeat(limits::VALUE_BYTES_MAX);
    for n in 0..40 {
        put(&*db, A, &format!("{}", n % 2), &value);
    }
    assert!(matches!(slow.try_next(), Err(Error::Compacted { .. })));
    let mut watch = db.watch(&[A], db.revision());
    put(&*db, A, "k", "v");
    assert!(watch.try_next().unwrap().is_some());
}

#[test]
fn a_database_is_found_again_and_opened_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cell.db");
    {
        let db: Arc<dyn CellDb> = Arc::new(Embedded::open(&path).unwrap());
        put(&*db, A, "k", "v");
        assert!(matches!(Embedded::open(&path), Err(Error::InUse(_))));
    }
    let db: Arc<dyn CellDb> = Arc::new(Embedded::open(&path).unwrap());
    assert_eq!(db.revision(), Revision(1));
    assert_eq!(keys(&*db, A), ["k"]);
    let mut old = db.watch(&[A], Revision(0));
    assert!(matches!(
        old.try_next(),
        Err(Error::Compacted {
            oldest: Revision(1)
        })
    ));
}

#[test]
fn remains_of_a_creation_before_a_crash_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (path, unfinished) = (dir.path().join("cell.db"), dir.path().join("cell.db.new"));
    std::fs::write(&unfinished, vec![7; 10_000]).unwrap();
    let db: Arc<dyn CellDb> = Arc::new(Embedded::open(&path).unwrap());
    put(&*db, A, "k", "v");
    assert!(!unfinished.exists());
}

#[test]
fn a_file_that_is_something_else_is_refused_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cell.db");
    std::fs::write(&path, vec![7; 10_000]).unwrap();
    assert!(Embedded::open(&path).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), vec![7; 10_000]);
}
