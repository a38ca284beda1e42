//! Several engines over one cluster.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cellar_celldb::{CellDb, DatabaseId, Error, Revision, View};
use cellar_etcd::{Etcd, Settings, fill, is_empty};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::cluster::{Cluster, OTHER, TABLE, get, number, put};
use crate::proxy::Proxy;

#[test]
fn one_server_writes_and_the_other_finds() {
    let Some(cluster) = Cluster::start(1) else {
        return;
    };
    let (one, two) = (cluster.open("one"), cluster.open("two"));
    assert_eq!(one.id(), two.id());
    let mut watch = two.watch(&[TABLE], two.revision());
    let revision = put(&one, "key", b"value").unwrap();
    assert_eq!(get(&one, "key").unwrap(), b"value", "its own write");
    let seen = watch.wait(Duration::from_secs(5)).unwrap().unwrap();
    assert_eq!((seen.revision.0, seen.changes.len()), (revision, 1));
    assert_eq!(get(&two, "key").unwrap(), b"value");

    // A deletion, a body that cancels, and one that writes nothing.
    let db: &dyn CellDb = &two;
    let gone = db.write(|transaction| {
        transaction.delete(TABLE, &b"key"[..]);
        Ok::<_, Error>(())
    });
    assert!(gone.unwrap().1.0 > revision);
    cellar_until::until_blocking("the deletion arrives", || get(&one, "key").is_none());
    let refused = db.write(|transaction| {
        transaction.put(TABLE, &b"key"[..], &b"no"[..]);
        Err::<(), _>(Error::Read("refused".into()))
    });
    assert!(matches!(refused, Err(Error::Read(_))));
    assert_eq!(get(&two, "key"), None);
    let nothing = db.write(|_| Ok::<_, Error>(())).unwrap();
    assert_eq!(nothing.1, two.revision());

    // A third server begins with what there is; an engine that must not create finds it too.
    put(&two, "later", b"1").unwrap();
    let settings = Settings {
        create: false,
        ..cluster.settings("three")
    };
    let three = Etcd::open(&settings).unwrap();
    assert_eq!(three.revision(), two.revision());
    assert_eq!(get(&three, "later").unwrap(), b"1");
    let status = three.look().unwrap();
    assert!(status.is_reachable && status.alarms.is_empty());
    assert_eq!(status.leader_host(), Some("127.0.0.1"));
    assert_eq!(status.members.len(), cluster.names().len());
    let elsewhere = Settings {
        prefix: "/cellar/elsewhere".to_owned(),
        ..settings
    };
    assert!(is_empty(&elsewhere).unwrap());
    assert!(matches!(Etcd::open(&elsewhere), Err(Error::Missing(_))));
}

#[test]
fn servers_that_create_at_the_same_time_share_one_database() {
    let Some(cluster) = Cluster::start(1) else {
        return;
    };
    let names: Vec<String> = (0..8).map(|number| format!("s{number}")).collect();
    let ids: Vec<DatabaseId> = std::thread::scope(|scope| {
        let threads: Vec<_> = names
            .iter()
            .map(|name| scope.spawn(|| cluster.open(name).id()))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}

/// Transfers between accounts, ids from a counter, and totals over ranges, from three servers.
#[test]
fn concurrent_transactions_of_three_servers_are_serialisable() {
    const ACCOUNTS: u8 = 12;
    const THREADS: u64 = 4;
    const EACH: usize = 40;
    let Some(cluster) = Cluster::start(1) else {
        return;
    };
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let engines: Vec<_> = ["one", "two", "three"]
        .map(|name| cluster.open(name))
        .into();
    let db: &dyn CellDb = &engines[0];
    db.write(|transaction| {
        for account in 0..ACCOUNTS {
            transaction.put(OTHER, vec![account], 1000_u64.to_be_bytes().to_vec());
        }
        Ok::<_, Error>(())
    })
    .unwrap();
    // The other servers follow: a body before that would see no accounts.
    let filled = db.revision();
    for engine in &engines {
        cellar_until::until_blocking("the accounts arrive", || engine.revision() >= filled);
    }
    let amount = |view: &dyn View, account: u8| {
        let value = view.get(OTHER, &[account]).unwrap().unwrap();
        u64::from_be_bytes(value[..].try_into().unwrap())
    };
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for (server, engine) in engines.iter().enumerate() {
            for thread in 0..THREADS {
                let mut random = StdRng::seed_from_u64(seed ^ (server as u64) << 8 ^ thread);
                scope.spawn(move || {
                    let db: &dyn CellDb = engine;
                    for _ in 0..EACH {
                        let (from, to) = (
                            random.random_range(0..ACCOUNTS),
                            random.random_range(0..ACCOUNTS),
                        );
                        let value = random.random_range(0..50);
                        db.write(|transaction| {
                            // The total of all accounts is the same in each transaction.
                            let mut total = 0;
                            transaction.visit(
                                OTHER,
                                (Bound::Unbounded, Bound::Unbounded),
                                &mut |_, value| {
                                    total += u64::from_be_bytes(value.try_into().unwrap());
                                    true
                                },
                            )?;
                            assert_eq!(total, u64::from(ACCOUNTS) * 1000, "seed {seed}");
                            let left = amount(transaction, from).saturating_sub(value);
                            let moved = amount(transaction, from) - left;
                            transaction.put(OTHER, vec![from], left.to_be_bytes().to_vec());
                            let right = amount(transaction, to) + moved;
                            transaction.put(OTHER, vec![to], right.to_be_bytes().to_vec());
                            Ok::<_, Error>(())
                        })
                        .unwrap();
                        // An id of its own from a counter.
                        db.write(|transaction| {
                            let id = number(transaction, b"counter") + 1;
                            transaction.put(TABLE, &b"counter"[..], id.to_be_bytes().to_vec());
                            let key = [b"id", &id.to_be_bytes()[..]].concat();
                            assert!(
                                transaction.get(TABLE, &key)?.is_none(),
                                "seed {seed}: {id} twice"
                            );
                            transaction.put(TABLE, key, vec![thread as u8]);
                            Ok::<_, Error>(())
                        })
                        .unwrap();
                    }
                });
            }
        }
    });
    let count = engines.len() * THREADS as usize * EACH;
    println!("{} transactions in {:?}", 2 * count, begun.elapsed());
    for engine in &engines {
        println!("{:?}", engine.status());
    }
    let newest = engines
        .iter()
        .map(|engine| engine.revision())
        .max()
        .unwrap();
    for engine in &engines {
        cellar_until::until_blocking("the copies agree", || engine.revision() == newest);
        let db: &dyn CellDb = engine;
        db.read(|view, _| {
            assert_eq!(number(view, b"counter"), count as u64, "seed {seed}");
            let ids = view.scan_prefix(TABLE, b"id", usize::MAX)?;
            assert_eq!(ids.len(), count, "seed {seed}");
            Ok::<_, Error>(())
        })
        .unwrap();
    }
}

/// Independent writers of one server are not delayed by each other's round trips.
#[test]
fn independent_writers_share_commits() {
    let Some(cluster) = Cluster::start(1) else {
        return;
    };
    let db = Arc::new(cluster.open("one"));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..64 {
            let db = &db;
            scope.spawn(move || {
                for number in 0..20 {
                    put(&**db, &format!("{thread}/{number}"), b"value").unwrap();
                }
            });
        }
    });
    let status = db.status();
    println!("1280 writes in {:?}: {status:?}", begun.elapsed());
    assert_eq!((status.commits, status.conflicts), (1280, 0));
    assert!(status.groups < 1280, "some shared a commit");
}

/// Writers that repeat are gathered into one group. Without that they form two, which take turns.
#[test]
fn writers_that_repeat_share_one_group() {
    let Some(cluster) = Cluster::start(1) else {
        return;
    };
    let proxy = Proxy::start(cluster.port(0), 0);
    let db = Etcd::open(&Settings {
        endpoints: vec![format!("http://127.0.0.1:{}", proxy.port)],
        ..cluster.settings("one")
    })
    .unwrap();
    put(&db, "before", b"1").unwrap();
    proxy.delay();
    let before = db.status();
    let (writers, rounds) = (4, 12);
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let db = &db;
            scope.spawn(move || {
                for round in 0..rounds {
                    put(db, &format!("{writer}/{round}"), b"value").unwrap();
                }
            });
        }
    });
    let after = db.status();
    let groups = after.groups - before.groups;
    println!("{writers} writers, {rounds} rounds: {groups} groups");
    assert_eq!(after.commits - before.commits, writers * rounds);
    // Two groups that take turns are 24.
    assert!(groups < 20, "{groups} groups");
}

/// Writes a number of rows of a table with the same value.
fn fill_rows(db: &dyn CellDb, rows: u32, value: u64) -> Result<Revision, Error> {
    let written = db.write(|transaction| {
        for row in 0..rows {
            let value = [&value.to_be_bytes()[..], &[0; 20]].concat();
            transaction.put(OTHER, row.to_be_bytes().to_vec(), value);
        }
        let count = number(transaction, b"large") + 1;
        transaction.put(TABLE, &b"large"[..], count.to_be_bytes().to_vec());
        Ok::<_, Error>(())
    });
    written.map(|((), revision)| revision)
}

/// The values of all rows, which are all the same.
fn values(view: &dyn View) -> BTreeSet<Vec<u8>> {
    let mut values = BTreeSet::new();
    let all = (Bound::Unbounded, Bound::Unbounded);
    view.visit(OTHER, all, &mut |_, value| {
        values.insert(value.to_vec());
        true
    })
    .unwrap();
    values
}

/// More changes than a request of etcd takes: all servers see all of them at one revision.
#[test]
fn large_transactions_are_whole_at_all_servers() {
    const ROWS: u32 = 3000;
    const EACH: u64 = 6;
    let Some(cluster) = Cluster::start(1) else {
        return;
    };
    let (one, two) = (cluster.open("one"), cluster.open("two"));
    let mut watch = two.watch(&[OTHER], two.revision());
    let revision = fill_rows(&one, ROWS, 0).unwrap();
    let seen = watch.wait(Duration::from_secs(5)).unwrap().unwrap();
    assert_eq!(
        (seen.revision, seen.changes.len()),
        (revision, ROWS as usize)
    );
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = [&one, &two]
            .into_iter()
            .enumerate()
            .map(|(server, db)| {
                scope.spawn(move || {
                    for turn in 0..EACH {
                        fill_rows(db, ROWS, 100 * server as u64 + turn + 1).unwrap();
                        put(db, &format!("{server}/{turn}"), b"small").unwrap();
                    }
                })
            })
            .collect();
        for db in [&one, &two] {
            let done = &done;
            scope.spawn(move || {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let (view, _) = db.snapshot().unwrap();
                    assert_eq!(values(&*view).len(), 1, "a part of a transaction is seen");
                    drop(view);
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    // A server that begins now, and may meet the last plan.
    let three = cluster.open("three");
    for db in [&one, &two, &three] {
        cellar_until::until_blocking("the copies agree", || {
            let (view, _) = db.snapshot().unwrap();
            number(&*view, b"large") == 2 * EACH + 1
        });
        let (view, _) = db.snapshot().unwrap();
        assert_eq!(values(&*view).len(), 1);
        assert_eq!(
            view.scan_prefix(OTHER, b"", usize::MAX).unwrap().len(),
            ROWS as usize
        );
    }
    // Deleting all rows is as large.
    let db: &dyn CellDb = &three;
    db.write(|transaction| {
        let rows = transaction.view().scan_prefix(OTHER, b"", usize::MAX)?;
        for (key, _) in rows {
            transaction.delete(OTHER, key);
        }
        Ok::<_, Error>(())
    })
    .unwrap();
    put(&one, "after", b"1").unwrap();
    let fresh = cluster.open("fresh");
    let (view, _) = fresh.snapshot().unwrap();
    assert!(values(&*view).is_empty());
}

/// A server dies as soon as its large transaction is acknowledged; another one finishes it.
#[test]
fn a_large_transaction_of_a_dead_server_is_finished() {
    const ROWS: u32 = 20_000;
    let Some(cluster) = Cluster::start(1) else {
        return;
    };
    let two = cluster.open("two");
    for turn in 1..4 {
        let one = cluster.open("one");
        fill_rows(&one, ROWS, turn).unwrap();
        drop(one);
        let begun = Instant::now();
        put(&two, "small", b"1").unwrap();
        println!("finished within {:?}", begun.elapsed());
        let three = cluster.open("three");
        for db in [&two, &three] {
            let (view, _) = db.snapshot().unwrap();
            let expected = [&turn.to_be_bytes()[..], &[0; 20]].concat();
            assert_eq!(values(&*view), [expected].into());
            assert_eq!(
                view.scan_prefix(OTHER, b"", usize::MAX).unwrap().len(),
                ROWS as usize
            );
        }
    }
}

#[test]
fn many_rows_that_are_read_are_compared_as_one_range() {
    let Some(cluster) = Cluster::start(1) else {
        return;
    };
    let db = cluster.open("one");
    fill_rows(&db, 120, 1).unwrap();
    let total = (&db as &dyn CellDb).write(|transaction| {
        let mut found = 0;
        for row in 0..120_u32 {
            found += usize::from(transaction.get(OTHER, &row.to_be_bytes())?.is_some());
        }
        transaction.put(TABLE, &b"found"[..], found.to_be_bytes().to_vec());
        Ok::<_, Error>(found)
    });
    assert_eq!(total.unwrap().0, 120);
}

#[test]
fn a_copied_database_has_the_rows_the_id_and_higher_revisions() {
    let Some(cluster) = Cluster::start(1) else {
        return;
    };
    let settings = cluster.settings("tool");
    let id = DatabaseId::random();
    let rows: Vec<_> = (0..250_u32)
        .map(|row| {
            let key = row.to_be_bytes().to_vec();
            ("test".to_owned(), key.clone().into(), key.into())
        })
        .collect();
    assert_eq!(fill(&settings, id, 5000, rows.clone()).unwrap(), 250);
    let again = fill(&settings, id, 5000, rows).unwrap_err();
    assert!(matches!(again, Error::InUse(_)), "{again}");
    let db = cluster.open("one");
    assert_eq!(db.id(), id);
    assert!(db.revision() > Revision(5000));
    assert_eq!(db.tables(), [(TABLE, 250)]);
    let file = cluster.home().join("export");
    assert_eq!(db.export(&file).unwrap(), 250);
    let summary = cellar_celldb::check_export(&file).unwrap();
    assert_eq!((summary.id, summary.revision), (Some(id), db.revision().0));
}
