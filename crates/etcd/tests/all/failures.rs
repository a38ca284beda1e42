//! Cut connections, compactions, a full cluster, killed members.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use cellar_celldb::{CellDb, Error, View};
use cellar_etcd::{Etcd, Settings};
use parking_lot::Mutex;

use crate::cluster::{Cluster, TABLE, get, number, put};
use crate::proxy::Proxy;

/// Gives a row an id from a counter. Two attempts for one call would use two ids.
fn allocate(db: &dyn CellDb, name: &str) -> Result<(), Error> {
    db.write(|transaction| {
        let id = number(transaction, b"counter") + 1;
        transaction.put(TABLE, &b"counter"[..], id.to_be_bytes().to_vec());
        let key = [b"id", name.as_bytes()].concat();
        assert!(
            transaction.get(TABLE, &key)?.is_none(),
            "{name} was made before"
        );
        transaction.put(TABLE, key, id.to_be_bytes().to_vec());
        Ok(())
    })
    .map(drop)
}

#[test]
fn cut_connections_leave_no_doubt() {
    let Some(cluster) = Cluster::start(1) else {
        return;
    };
    let proxy = Proxy::start(cluster.port(0), 12);
    let settings = Settings {
        endpoints: vec![format!("http://127.0.0.1:{}", proxy.port)],
        ..cluster.settings("one")
    };
    let through = Etcd::open(&settings).unwrap();
    let direct = cluster.open("two");
    let (made, failed) = (Mutex::new(BTreeSet::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for (server, db) in [&through, &direct].into_iter().enumerate() {
            for thread in 0..4 {
                let (made, failed) = (&made, &failed);
                scope.spawn(move || {
                    for number in 0..40 {
                        let name = format!("{server}/{thread}/{number}");
                        match allocate(db, &name) {
                            Ok(()) => drop(made.lock().insert(name)),
                            Err(error) => failed.lock().push((name, error)),
                        }
                    }
                });
            }
        }
    });
    println!(
        "{} cuts, {:?}, {:?}",
        proxy.cuts(),
        failed.lock(),
        through.status()
    );
    assert!(proxy.cuts() > 5);
    // With its own change, the copy of this server has all earlier ones of the other server too.
    put(&direct, "end", b"").unwrap();
    (&direct as &dyn CellDb)
        .read(|view, _| {
            let rows = view.scan_prefix(TABLE, b"id", usize::MAX)?;
            let there: BTreeSet<_> = rows
                .iter()
                .map(|(key, _)| String::from_utf8_lossy(&key[2..]).into_owned())
                .collect();
            let ids: BTreeSet<_> = rows.iter().map(|(_, id)| id.clone()).collect();
            let made = made.lock();
            assert!(made.is_subset(&there), "an acknowledged row is missing");
            assert_eq!(ids.len(), rows.len(), "an id was given twice");
            assert_eq!(
                number(view, b"counter"),
                rows.len() as u64,
                "a call was made twice"
            );
            // Only a call that ended in doubt may have left a row without an acknowledgement.
            let doubt = failed.lock().len();
            assert!(there.len() - made.len() <= doubt);
            Ok::<_, Error>(())
        })
        .unwrap();
    assert!(failed.lock().is_empty(), "{:?}", failed.lock());
}

/// The server has the request and the client no answer, for longer than a write may last.
#[test]
fn a_write_in_doubt_fails_within_seconds_and_is_found_out_later() {
    let Some(cluster) = Cluster::start(1) else {
        return;
    };
    let proxy = Proxy::start(cluster.port(0), 0);
    let settings = Settings {
        endpoints: vec![format!("http://127.0.0.1:{}", proxy.port)],
        ..cluster.settings("one")
    };
    let db = Etcd::open(&settings).unwrap();
    put(&db, "before", b"1").unwrap();
    proxy.swallow(true);
    let begun = Instant::now();
    let lost = put(&db, "lost", b"1").unwrap_err();
    assert!(matches!(lost, Error::Unavailable(_)), "{lost}");
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(get(&db, "before").unwrap(), b"1", "reads go on");
    cellar_until::until_blocking("writes fail at once", || {
        let begun = Instant::now();
        put(&db, "refused", b"1").is_err() && begun.elapsed() < Duration::from_millis(50)
    });
    proxy.swallow(false);
    cellar_until::until_blocking("the outcome is known", || db.status().resolved >= 1);
    cellar_until::until_blocking("writes are taken again", || put(&db, "after", b"1").is_ok());
    // The copy has all that the cluster has.
    let direct = cluster.open("two");
    assert_eq!(get(&db, "lost"), get(&direct, "lost"));
}

/// A cut-off server refuses before clients give up, also to writers whose groups had to wait.
#[test]
fn no_writer_waits_two_seconds_for_a_silent_cluster() {
    let Some(cluster) = Cluster::start(1) else {
        return;
    };
    for has_written in [true, false] {
        let proxy = Proxy::start(cluster.port(0), 0);
        let settings = Settings {
            endpoints: vec![format!("http://127.0.0.1:{}", proxy.port)],
            ..cluster.settings(if has_written { "one" } else { "two" })
        };
        let db = Etcd::open(&settings).unwrap();
        if has_written {
            put(&db, "before", b"1").unwrap();
        }
        proxy.silence();
        let longest = Mutex::new(Duration::ZERO);
        std::thread::scope(|scope| {
            // Groups have 100 rows, and two are in flight. Some of these change the same row.
            for writer in 0..350 {
                let (db, longest) = (&db, &longest);
                scope.spawn(move || {
                    let begun = Instant::now();
                    let refused = match writer % 10 {
                        0 => allocate(db, &format!("{has_written} {writer}")),
                        _ => put(db, &format!("row {writer}"), b"1").map(drop),
                    };
                    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
                    let mut longest = longest.lock();
                    *longest = begun.elapsed().max(*longest);
                });
            }
        });
        let longest = longest.into_inner();
        println!("has written: {has_written}, longest wait {longest:?}");
        assert!(longest < Duration::from_secs(2), "{longest:?}");
    }
}

#[test]
fn a_compaction_beyond_the_copy_is_survived() {
    let Some(cluster) = Cluster::start(1) else {
        return;
    };
    let proxy = Proxy::start(cluster.port(0), 0);
    let settings = Settings {
        endpoints: vec![format!("http://127.0.0.1:{}", proxy.port)],
        ..cluster.settings("slow")
    };
    let slow = Etcd::open(&settings).unwrap();
    let fast = cluster.open("fast");
    put(&fast, "gone", b"1").unwrap();
    cellar_until::until_blocking("it arrives", || get(&slow, "gone").is_some());
    let mut watch = slow.watch(&[TABLE], slow.revision());
    proxy.swallow(true);
    put(&fast, "gone", b"2").unwrap();
    (&fast as &dyn CellDb)
        .write(|transaction| {
            transaction.delete(TABLE, &b"gone"[..]);
            Ok::<_, Error>(())
        })
        .unwrap();
    let last = put(&fast, "new", b"3").unwrap();
    cluster.ask(
        "/v3/kv/compaction",
        &format!("{{\"revision\":\"{last}\",\"physical\":true}}"),
    );
    proxy.swallow(false);
    cellar_until::until_blocking("the copy is read again", || get(&slow, "new").is_some());
    assert_eq!(get(&slow, "gone"), None);
    assert_eq!(slow.status().reloads, 1);
    let difference = watch.wait(Duration::from_secs(5)).unwrap().unwrap();
    assert_eq!((difference.revision.0, difference.changes.len()), (last, 2));
    put(&slow, "written", b"4").unwrap();
    cellar_until::until_blocking("it arrives", || get(&fast, "written").is_some());
}

/// The members' data are lost, and an older snapshot is restored as the document says.
#[test]
fn a_restored_snapshot_takes_changes_back_at_running_servers() {
    // A stopped member's file then has all changes.
    let Some(mut cluster) = Cluster::start_with(1, &["--backend-batch-limit", "1"]) else {
        return;
    };
    let (one, two) = (cluster.open("one"), cluster.open("two"));
    put(&one, "kept", b"1").unwrap();
    put(&one, "changed", b"old").unwrap();
    let Some(tool) = cluster.save() else {
        return;
    };
    // etcd's client connects again.
    cellar_until::until_blocking("etcd answers", || put(&one, "changed", b"new").is_ok());
    let last = put(&two, "lost", b"2").unwrap();
    cellar_until::until_blocking("it arrives", || get(&one, "lost").is_some());
    let mut watches = [&one, &two].map(|db| db.watch(&[TABLE], db.revision()));
    cluster.restore(&tool);
    for (db, watch) in [&one, &two].into_iter().zip(&mut watches) {
        cellar_until::until_blocking("the copy is read again", || get(db, "lost").is_none());
        assert_eq!(get(db, "kept").as_deref(), Some(&b"1"[..]));
        assert_eq!(get(db, "changed").as_deref(), Some(&b"old"[..]));
        let difference = watch.wait(Duration::from_secs(5)).unwrap().unwrap();
        assert_eq!(
            difference.changes.len(),
            2,
            "a reader of the watch learns it"
        );
        assert!(difference.revision.0 > last);
    }
    let written = put(&one, "written", b"3").unwrap();
    assert!(written > last);
    cellar_until::until_blocking("it arrives", || get(&two, "written").is_some());
}

#[test]
fn a_full_cluster_refuses_writes_until_it_is_cured() {
    let quota = ["--quota-backend-bytes", "8388608"];
    let Some(cluster) = Cluster::start_with(1, &quota) else {
        return;
    };
    let db = cluster.open("one");
    put(&db, "small", b"1").unwrap();
    let large = vec![7; 1_000_000];
    let full = (0..40)
        .find_map(|_| put(&db, "large", &large).err())
        .unwrap();
    assert!(matches!(full, Error::Unavailable(_)), "{full}");
    assert!(full.to_string().contains("NOSPACE"), "{full}");
    assert_eq!(get(&db, "small").unwrap(), b"1", "reads go on");
    assert_eq!(db.look().unwrap().alarms, [("m0".to_owned(), "NOSPACE")]);
    let begun = Instant::now();
    put(&db, "refused", b"1").unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(1));

    let revision = db.revision().0;
    cluster.ask(
        "/v3/kv/compaction",
        &format!("{{\"revision\":\"{revision}\",\"physical\":true}}"),
    );
    cluster.ask("/v3/maintenance/defragment", "{}");
    let alarms = cluster.ask("/v3/maintenance/alarm", "{\"action\":\"GET\"}");
    let member = alarms.rsplit("\"memberID\":\"").next().unwrap();
    let member = member.split('"').next().unwrap();
    let disarm =
        format!("{{\"action\":\"DEACTIVATE\",\"memberID\":\"{member}\",\"alarm\":\"NOSPACE\"}}");
    cluster.ask("/v3/maintenance/alarm", &disarm);
    cellar_until::until_blocking("writes are taken again", || put(&db, "after", b"1").is_ok());
    assert_eq!(db.look().unwrap().alarms, []);
}

/// etcd raises this alarm if the data of members differ. Then it refuses everything else.
#[test]
fn a_corrupt_cluster_is_told_and_service_resumes_after_the_cure() {
    let Some(cluster) = Cluster::start(1) else {
        return;
    };
    let db = cluster.open("one");
    put(&db, "before", b"1").unwrap();
    let status = cluster.ask("/v3/maintenance/status", "{}");
    let member = status.rsplit("\"member_id\":\"").next().unwrap();
    let member = member.split('"').next().unwrap();
    let alarm = |action: &str| {
        let ask =
            format!("{{\"action\":\"{action}\",\"memberID\":\"{member}\",\"alarm\":\"CORRUPT\"}}");
        cluster.ask("/v3/maintenance/alarm", &ask);
    };
    alarm("ACTIVATE");
    let begun = Instant::now();
    let refused = put(&db, "refused", b"1").unwrap_err();
    assert!(matches!(refused, Error::Unavailable(_)), "{refused}");
    assert!(refused.to_string().contains("corrupt"), "{refused}");
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert_eq!(get(&db, "before").unwrap(), b"1", "reads go on");
    assert_eq!(db.look().unwrap().alarms, [("m0".to_owned(), "CORRUPT")]);
    alarm("DEACTIVATE");
    cellar_until::until_blocking("writes are taken again", || put(&db, "after", b"1").is_ok());
    assert_eq!(get(&db, "refused"), None);
    assert_eq!(db.look().unwrap().alarms, []);
}

/// Members of three are killed one after the other under load; then two at a time.
#[test]
fn killed_members_lose_no_acknowledged_write() {
    let Some(mut cluster) = Cluster::start(3) else {
        return;
    };
    let engines = [cluster.open("one"), cluster.open("two")];
    let made = Mutex::new(BTreeSet::new());
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (server, db) in engines.iter().enumerate() {
            for thread in 0..2 {
                let (made, stop) = (&made, &stop);
                scope.spawn(move || {
                    for number in 0.. {
                        if stop.load(std::sync::atomic::Ordering::Relaxed) {
                            return;
                        }
                        let name = format!("{server}/{thread}/{number}");
                        if allocate(db, &name).is_ok() {
                            made.lock().insert(name);
                        }
                    }
                });
            }
        }
        for at in 0..3 {
            let before = made.lock().len();
            cluster.kill(at);
            cellar_until::until_blocking("writes go on with two", || {
                made.lock().len() > before + 20
            });
            cluster.run(at);
            cluster.wait(at);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let (db, other) = (&engines[0], &engines[1]);
    cellar_until::until_blocking("the copies agree", || db.revision() == other.revision());
    for db in &engines {
        (db as &dyn CellDb)
            .read(|view, _| {
                let rows = view.scan_prefix(TABLE, b"id", usize::MAX)?;
                let there: BTreeSet<_> = rows
                    .iter()
                    .map(|(key, _)| String::from_utf8_lossy(&key[2..]).into_owned())
                    .collect();
                let made = made.lock();
                println!("{} acknowledged, {} there", made.len(), there.len());
                assert!(made.is_subset(&there), "an acknowledged row is missing");
                assert_eq!(number(view, b"counter"), rows.len() as u64);
                Ok::<_, Error>(())
            })
            .unwrap();
    }

    // Without a majority, writes fail soon and then at once; reads go on; the service resumes.
    cluster.kill(0);
    cluster.kill(1);
    let begun = Instant::now();
    let failed = put(db, "no majority", b"1").unwrap_err();
    assert!(matches!(failed, Error::Unavailable(_)), "{failed}");
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    cellar_until::until_blocking("writes fail at once", || {
        let begun = Instant::now();
        put(db, "no majority", b"1").is_err() && begun.elapsed() < Duration::from_millis(50)
    });
    assert!(!db.status().is_reachable);
    assert!(
        (db as &dyn CellDb)
            .read(|view, _| view.get(TABLE, b"counter"))
            .unwrap()
            .is_some()
    );
    cluster.run(0);
    cluster.wait(0);
    cellar_until::until_blocking("writes are taken again", || put(db, "again", b"1").is_ok());
    cellar_until::until_blocking("the other server has it", || get(other, "again").is_some());
}

/// The watch is renewed when it lacks a change. Otherwise the writer waits until the silence of the
/// watch is noticed: five seconds. A busy machine may delay one attempt, so one of three is enough.
#[test]
fn a_silent_member_delays_a_change_for_a_moment() {
    let Some(cluster) = Cluster::start(1) else {
        return;
    };
    let direct = format!("http://127.0.0.1:{}", cluster.port(0));
    let times: Vec<Duration> = (0..3)
        .map(|attempt| {
            let proxy = Proxy::start(cluster.port(0), 0);
            let settings = Settings {
                endpoints: vec![format!("http://127.0.0.1:{}", proxy.port), direct.clone()],
                ..cluster.settings("one")
            };
            let db = Etcd::open(&settings).unwrap();
            put(&db, "before", b"1").unwrap();
            proxy.silence();
            let begun = Instant::now();
            let key = format!("during {attempt}");
            put(&db, &key, b"1").unwrap();
            let took = begun.elapsed();
            assert_eq!(get(&db, &key).unwrap(), b"1", "the writer reads its change");
            took
        })
        .collect();
    println!("{times:?}");
    let is_short = |time: &Duration| *time < Duration::from_millis(2500);
    assert!(times.iter().any(is_short), "{times:?}");
}
