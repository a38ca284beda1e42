//! Restarts, random sequences compared with a plain map, readers during writes, a second replica.

use super::*;

#[test]
fn everything_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let db: Arc<dyn CellDb> = Arc::new(Embedded::open(&dir.path().join("db")).unwrap());
        Vl::open(db, Arc::new(|| AfsTime(5))).unwrap()
    };
    open()
        .ask(
            ADMIN,
            CreateEntryN {
                newentry: volume("v", 10),
            },
        )
        .unwrap();
    let vl = open();
    assert_eq!(
        vl.replica
            .read()
            .to_n(vl.replica.read().by_name(b"v").unwrap()),
        volume("v", 10)
    );
    vl.ask(
        ADMIN,
        SetLock {
            volid: VolumeId(10),
            voltype: 0,
            voloper: 0x10,
        },
    )
    .unwrap();
    drop(vl);
    let again = open().ask(
        ADMIN,
        SetLock {
            volid: VolumeId(10),
            voltype: 0,
            voloper: 0x10,
        },
    );
    assert_eq!(again, Err(AbortCode::VL_ENTRYLOCKED));
}

/// Random creations, replacements, deletions and registrations. The indexes always agree, and
/// lookups return the contents of a plain map.
#[test]
fn random_sequences_keep_the_indexes_in_step() {
    for seed in 0..6 {
        let cell = cell();
        let mut random = StdRng::seed_from_u64(seed);
        let mut known: BTreeMap<u32, NvldbEntry> = BTreeMap::new();
        for step in 0..120 {
            let mut entry = volume(&format!("v{}", random.random_range(0..12)), 0);
            let rw = random.random_range(1..10) * 10;
            let any = |r: &mut StdRng| {
                if r.random() {
                    VolumeId(r.random_range(1..120))
                } else {
                    VolumeId(0)
                }
            };
            entry.volume_ids = [VolumeId(rw), any(&mut random), any(&mut random)];
            let used = |id: VolumeId, except: u32| {
                id.0 != 0
                    && known
                        .iter()
                        .any(|(k, e)| *k != except && e.volume_ids.contains(&id))
            };
            match random.random_range(0..10) {
                0..4 => {
                    let expected = if entry.volume_ids.iter().any(|id| used(*id, 0)) {
                        Err(AbortCode::VL_IDEXIST)
                    } else if known.values().any(|e| e.name == entry.name) {
                        Err(AbortCode::VL_NAMEEXIST)
                    } else {
                        Ok(())
                    };
                    assert_eq!(
                        cell.create(entry.clone()),
                        expected,
                        "seed {seed} step {step}"
                    );
                    if expected.is_ok() {
                        known.insert(rw, entry);
                    }
                }
                4..8 => {
                    let outcome = cell.ask(ReplaceEntryN {
                        volid: VolumeId(rw),
                        voltype: 0,
                        newentry: entry.clone(),
                        releasetype: 7,
                    });
                    let others_name = known.iter().any(|(k, e)| *k != rw && e.name == entry.name);
                    let others_id = entry.volume_ids.iter().any(|id| used(*id, rw));
                    match outcome {
                        Ok(_) => {
                            assert!(known.contains_key(&rw) && !others_name && !others_id);
                            known.insert(rw, entry);
                        }
                        Err(AbortCode::VL_NOENT) => assert!(!known.contains_key(&rw)),
                        Err(AbortCode::VL_NAMEEXIST) => assert!(others_name),
                        // An id of the same entry, used as another type, counts as taken too.
                        Err(code) => assert_eq!(code, AbortCode::VL_IDEXIST),
                    }
                }
                _ => {
                    let outcome = cell.ask(DeleteEntry {
                        volid: VolumeId(rw),
                        voltype: 0,
                    });
                    assert_eq!(outcome.is_ok(), known.remove(&rw).is_some());
                }
            }
        }
        cell.check();
        for (rw, entry) in &known {
            assert_eq!(cell.by_id(*rw, 0).as_ref(), Ok(entry));
            assert_eq!(cell.get(entry.name.as_str().unwrap()).as_ref(), Ok(entry));
        }
        assert_eq!(cell.vl.replica.read().len(), known.len());
    }
}

#[test]
fn readers_see_whole_entries_while_writers_work() {
    let cell = cell();
    cell.create(volume("v", 10)).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..100 {
                let mut entry = volume("v", 10);
                entry.sites = List::from_iter_cut([site(A + n, n as i32, VLSF_RWVOL)]);
                entry.clone_id = VolumeId(n);
                cell.replace(10, entry, 0).unwrap();
                assert_eq!(
                    cell.get("v").unwrap().clone_id,
                    VolumeId(n),
                    "read your own writes"
                );
            }
            done.store(true, Ordering::Relaxed);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = 0;
                while !done.load(Ordering::Relaxed) {
                    let entry = cell.get("v").unwrap();
                    let n = entry.clone_id.0;
                    assert!(n >= last);
                    assert_eq!(entry.sites[0], site(A + n, n as i32, VLSF_RWVOL));
                    last = n;
                }
            });
        }
    });
    cell.check();
}

#[test]
fn a_copy_catches_up_with_what_others_wrote_or_loads_again() {
    let cell = cell();
    let other = Vl::open(Arc::clone(&cell.db), Arc::clone(&cell.vl.clock)).unwrap();
    cell.create(volume("v", 10)).unwrap();
    let create = |vl: &Vl, entry| vl.ask(ADMIN, CreateEntryN { newentry: entry }).map(drop);
    assert_eq!(
        create(&other, volume("v", 20)),
        Err(AbortCode::VL_NAMEEXIST),
        "serialisable"
    );
    assert_eq!(create(&other, volume("w", 20)), Ok(()));
    assert!(other.replica.read().by_name(b"v").is_ok());
    cell.create(volume("x", 30)).unwrap();
    cell.check();
    // So many other changes that the database no longer keeps the earlier ones for the watch.
    let filler = cellar_celldb::Table::new("filler");
    for n in 0..40u8 {
        let put = cell.db.write(|transaction| {
            transaction.put(filler, vec![n % 2], vec![0; 1 << 20]);
            Ok::<_, cellar_celldb::Error>(())
        });
        put.unwrap();
    }
    assert_eq!(create(&other, volume("y", 40)), Ok(()));
    for name in [&b"v"[..], b"w", b"x", b"y"] {
        assert!(other.replica.read().by_name(name).is_ok());
    }
}
