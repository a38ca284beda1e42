//! Tests of single entries: creation, lookup, change, lock, deletion.

use super::*;

#[test]
fn an_entry_is_found_by_name_and_by_each_id_in_every_form() {
    let cell = cell();
    let mut entry = volume("user.jane", 100);
    entry.sites = List::from_iter_cut((0..13).map(|i| site(A + i as u32 % 3, i, VLSF_ROVOL)));
    cell.create(entry.clone()).unwrap();
    for name in [
        "user.jane",
        "user.jane.readonly",
        "user.jane.backup",
        "100",
        "101",
        "102",
    ] {
        assert_eq!(cell.get(name), Ok(entry.clone()), "{name}");
    }
    for (id, voltype) in [
        (100, 0),
        (101, 1),
        (102, 2),
        (100, -1),
        (101, -1),
        (102, -1),
    ] {
        assert_eq!(cell.by_id(id, voltype), Ok(entry.clone()));
    }
    assert_eq!(cell.by_id(100, 1), Err(AbortCode::VL_NOENT));
    assert_eq!(cell.by_id(0, -1), Err(AbortCode::VL_NOENT));
    assert_eq!(cell.by_id(100, 3), Err(AbortCode::VL_BADVOLTYPE));
    assert_eq!(cell.get("user.john"), Err(AbortCode::VL_NOENT));
    assert_eq!(cell.get("user/jane"), Err(AbortCode::VL_BADNAME));
    assert_eq!(cell.get(""), Err(AbortCode::VL_BADNAME));
    assert_eq!(cell.get("7"), Err(AbortCode::VL_NOENT));

    let volumename: VolumeNameArgument = "user.jane".try_into().unwrap();
    let old = cell.ask(GetEntryByNameO { volumename }).unwrap().entry;
    assert_eq!(old, entry.to_old());
    assert_eq!(old.sites.len(), 8);
    let old = cell
        .ask(GetEntryByID {
            volid: VolumeId(101),
            voltype: 1,
        })
        .unwrap()
        .entry;
    assert_eq!(old, entry.to_old());
    let u = cell.get_u("user.jane");
    assert_eq!(u.sites.len(), 13);
    assert_eq!(u.sites[1].server, AfsUuid::from_address(B));
    assert_eq!(u.sites[1].flags, VLSF_ROVOL);
    cell.check();
}

#[test]
fn creating_refuses_what_is_taken_or_makes_no_sense() {
    let cell = cell();
    cell.create(volume("v", 10)).unwrap();
    let refused = |change: &dyn Fn(&mut NvldbEntry)| {
        let mut entry = volume("w", 20);
        change(&mut entry);
        cell.create(entry).unwrap_err()
    };
    assert_eq!(
        refused(&|e| e.name = "v".try_into().unwrap()),
        AbortCode::VL_NAMEEXIST
    );
    assert_eq!(
        refused(&|e| e.volume_ids[0] = VolumeId(11)),
        AbortCode::VL_IDEXIST
    );
    assert_eq!(
        refused(&|e| e.volume_ids[2] = VolumeId(10)),
        AbortCode::VL_IDEXIST
    );
    assert_eq!(
        refused(&|e| e.name = "w x".try_into().unwrap()),
        AbortCode::VL_BADNAME
    );
    assert_eq!(
        refused(&|e| e.name = "".try_into().unwrap()),
        AbortCode::VL_BADNAME
    );
    assert_eq!(
        refused(&|e| e.name = "w.backup".try_into().unwrap()),
        AbortCode::VL_BADNAME
    );
    assert_eq!(refused(&|e| e.sites = List::new()), AbortCode::VL_BADSERVER);
    let with = |s: Site| move |e: &mut NvldbEntry| e.sites = List::from_iter_cut([s]);
    assert_eq!(refused(&with(site(A, 256, 4))), AbortCode::VL_BADPARTITION);
    assert_eq!(refused(&with(site(A, -1, 4))), AbortCode::VL_BADPARTITION);
    assert_eq!(
        refused(&with(site(A, 0, 0x81))),
        AbortCode::VL_BADSERVERFLAG
    );
    assert_eq!(refused(&with(site(0, 0, 4))), AbortCode::VL_BADSERVER);
    let old = volume("w", 20).to_old();
    cell.ask(CreateEntry { newentry: old }).unwrap();
    assert_eq!(cell.get("w"), Ok(volume("w", 20)));
    cell.check();
}

#[test]
fn writes_need_the_administrator() {
    let cell = cell();
    cell.create(volume("v", 10)).unwrap();
    let nobody = |outcome: Result<(), AbortCode>| assert_eq!(outcome, Err(AbortCode::VL_PERM));
    macro_rules! refused {
        ($($arguments:expr),* $(,)?) => { $( nobody(cell.vl.ask(ANYONE, $arguments).map(drop)); )* };
    }
    let (volid, voltype, releasetype) = (VolumeId(10), -1, 0);
    let updateentry = VldbUpdateEntry::default();
    refused!(
        CreateEntry {
            newentry: volume("w", 20).to_old()
        },
        CreateEntryN {
            newentry: volume("w", 20)
        },
        DeleteEntry { volid, voltype },
        GetNewVolumeId { bump: 1 },
        ReplaceEntry {
            volid,
            voltype,
            newentry: volume("v", 10).to_old(),
            releasetype
        },
        ReplaceEntryN {
            volid,
            voltype,
            newentry: volume("v", 10),
            releasetype
        },
        UpdateEntry {
            volid,
            voltype,
            updateentry: updateentry.clone(),
            releasetype
        },
        UpdateEntryByName {
            volumename: "v".try_into().unwrap(),
            updateentry,
            releasetype
        },
        SetLock {
            volid,
            voltype,
            voloper: 0x10
        },
        ReleaseLock {
            volid,
            voltype,
            releasetype
        },
        ChangeAddr { ip1: A, ip2: B },
        RegisterAddrs {
            uuid: AfsUuid([1; 16]),
            spare1: 0,
            addrs: List::from_iter_cut([A])
        },
    );
    cell.check();
}

#[test]
fn deleting_forgets_name_and_ids() {
    let cell = cell();
    cell.create(volume("v", 10)).unwrap();
    let delete = |id, voltype| {
        cell.ask(DeleteEntry {
            volid: VolumeId(id),
            voltype,
        })
        .map(drop)
    };
    assert_eq!(delete(10, 1), Err(AbortCode::VL_NOENT));
    assert_eq!(delete(10, 7), Err(AbortCode::VL_BADVOLTYPE));
    assert_eq!(delete(11, 1), Ok(()));
    assert_eq!(delete(10, -1), Err(AbortCode::VL_NOENT));
    assert_eq!(cell.get("v"), Err(AbortCode::VL_NOENT));
    cell.create(volume("v", 10)).unwrap();
    cell.check();
}

#[test]
fn replacing_changes_everything_but_the_read_write_id() {
    let cell = cell();
    cell.create(volume("v", 10)).unwrap();
    cell.create(volume("w", 20)).unwrap();
    let mut new = volume("renamed", 10);
    new.volume_ids[1] = VolumeId(31);
    new.volume_ids[2] = VolumeId(0);
    new.sites = List::from_iter_cut([site(B, 3, VLSF_RWVOL), site(A, 1, VLSF_ROVOL)]);
    new.flags = VLF_RWEXISTS | VLF_ROEXISTS;
    new.clone_id = VolumeId(77);
    assert_eq!(cell.replace(10, new.clone(), 0), Ok(()));
    assert_eq!(cell.get("renamed"), Ok(new.clone()));
    assert_eq!(cell.by_id(31, 1), Ok(new.clone()));
    for gone in ["v", "11", "12"] {
        assert_eq!(cell.get(gone), Err(AbortCode::VL_NOENT), "{gone}");
    }
    let try_to = |change: &dyn Fn(&mut NvldbEntry)| {
        let mut entry = new.clone();
        change(&mut entry);
        cell.replace(10, entry, 0).unwrap_err()
    };
    assert_eq!(
        try_to(&|e| e.volume_ids[0] = VolumeId(99)),
        AbortCode::VL_BADENTRY
    );
    assert_eq!(
        try_to(&|e| e.volume_ids[1] = VolumeId(20)),
        AbortCode::VL_IDEXIST
    );
    assert_eq!(
        try_to(&|e| e.name = "w".try_into().unwrap()),
        AbortCode::VL_NAMEEXIST
    );
    assert_eq!(
        try_to(&|e| e.name = "a/b".try_into().unwrap()),
        AbortCode::VL_BADNAME
    );
    assert_eq!(cell.replace(5, new.clone(), 0), Err(AbortCode::VL_NOENT));
    assert_eq!(
        cell.replace(10, new.clone(), 8),
        Err(AbortCode::VL_BADRELLOCKTYPE)
    );
    let old = ReplaceEntry {
        volid: VolumeId(10),
        voltype: 0,
        newentry: volume("v", 10).to_old(),
        releasetype: 0,
    };
    cell.ask(old).unwrap();
    assert_eq!(cell.get("v"), Ok(volume("v", 10)));
    cell.check();
}

#[test]
fn one_operation_at_a_time_holds_the_lock() {
    let cell = cell();
    cell.create(volume("v", 10)).unwrap();
    assert_eq!(cell.lock(10, 0x11), Err(AbortCode::VL_BADVOLOPER));
    assert_eq!(cell.lock(9, VLOP_MOVE), Err(AbortCode::VL_NOENT));
    assert_eq!(cell.lock(10, VLOP_MOVE), Ok(()));
    assert_eq!(cell.get("v").unwrap().flags, VLF_RWEXISTS | VLOP_MOVE);
    assert_eq!(cell.lock(11, VLOP_BACKUP), Err(AbortCode::VL_ENTRYLOCKED));
    cell.now.store(u32::MAX, Ordering::Relaxed);
    assert_eq!(
        cell.lock(10, VLOP_BACKUP),
        Err(AbortCode::VL_ENTRYLOCKED),
        "locks do not expire"
    );
    let release = |releasetype| {
        let (volid, voltype) = (VolumeId(10), -1);
        cell.ask(ReleaseLock {
            volid,
            voltype,
            releasetype,
        })
        .map(drop)
    };
    assert_eq!(release(0x10), Err(AbortCode::VL_BADRELLOCKTYPE));
    assert_eq!(release(7), Ok(()));
    assert_eq!(cell.get("v").unwrap().flags, VLF_RWEXISTS);

    assert_eq!(cell.lock(10, VLOP_RELEASE), Ok(()));
    assert_eq!(release(LOCKREL_TIMESTAMP), Ok(()));
    assert_eq!(cell.lock(10, VLOP_RELEASE), Err(AbortCode::VL_RERELEASE));
    assert_eq!(
        cell.lock(10, VLOP_MOVE),
        Err(AbortCode::VL_RERELEASE),
        "no lock is taken"
    );
    assert_eq!(release(LOCKREL_OPCODE), Ok(()));
    assert_eq!(cell.lock(10, VLOP_DUMP), Ok(()));
    let locked = cell.get("v").unwrap();
    assert_eq!(
        cell.replace(
            10,
            NvldbEntry {
                flags: VLF_RWEXISTS,
                ..locked.clone()
            },
            0
        ),
        Ok(())
    );
    assert_eq!(
        cell.lock(10, VLOP_DUMP),
        Err(AbortCode::VL_ENTRYLOCKED),
        "only the flag is released"
    );
    assert_eq!(cell.replace(10, locked, 7), Ok(()));
    assert_eq!(cell.get("v").unwrap().flags, VLF_RWEXISTS);
    assert_eq!(cell.lock(10, VLOP_DELETE), Ok(()));
    cell.check();
}

#[test]
fn volume_ids_are_new() {
    let cell = cell();
    let next = |bump| {
        cell.ask(GetNewVolumeId { bump })
            .map(|reply| reply.newvolumid.0)
    };
    assert_eq!(next(0), Ok(0x2000_0000));
    assert_eq!(next(3), Ok(0x2000_0000));
    assert_eq!(next(0), Ok(0x2000_0003));
    cell.create(volume("v", 0x2000_0004)).unwrap();
    assert_eq!(next(1), Ok(0x2000_0003));
    assert_eq!(next(2), Ok(0x2000_0007), "4, 5 and 6 are taken");
    assert_eq!(next(0x8000_0000), Err(AbortCode::VL_BADVOLIDBUMP));
    assert_eq!(next(0x7fff_ffff), Ok(0x2000_0009));
    assert_eq!(
        next(0x7fff_ffff),
        Err(AbortCode::VL_BADVOLIDBUMP),
        "no run of that length is left"
    );
    assert_eq!(next(0), Ok(0xa000_0008));
    cell.check();
}

/// Ids are reserved in advance, a hundred at a time. Most calls therefore change nothing in the
/// database, and a server that opens it later assigns none of these ids again.
#[test]
fn volume_ids_are_reserved_ahead_and_never_come_twice() {
    let cell = cell();
    let next = |vl: &Vl, bump| {
        let reply = vl.ask(ADMIN, GetNewVolumeId { bump }).unwrap();
        reply.newvolumid.0
    };
    let again = || Vl::open(Arc::clone(&cell.db), Arc::clone(&cell.vl.clock)).unwrap();
    assert_eq!(next(&cell.vl, 1), 0x2000_0000);
    let commits = cell.db.revision();
    for n in 1..=100 {
        assert_eq!(next(&cell.vl, 1), 0x2000_0000 + n);
    }
    assert_eq!(
        cell.db.revision(),
        commits,
        "a hundred ids come from memory"
    );
    assert_eq!(next(&cell.vl, 3), 0x2000_0000 + 101);
    assert!(cell.db.revision() > commits);
    // The same as after a crash, and as with a second server of the same database.
    let other = again();
    assert_eq!(next(&other, 0), 0x2000_0000 + 204);
    assert_eq!(next(&other, 2), 0x2000_0000 + 204);
    assert_eq!(
        next(&cell.vl, 100),
        0x2000_0000 + 104,
        "its own reserved ids are left"
    );
    assert_eq!(
        next(&cell.vl, 1),
        0x2000_0000 + 306,
        "the other server keeps its reserved ids"
    );
    // Ids of entries that were created without a request for an id are skipped, also among reserved
    // ids.
    cell.create(volume("v", 0x2000_0000 + 308)).unwrap();
    assert_eq!(next(&cell.vl, 1), 0x2000_0000 + 307);
    assert_eq!(next(&cell.vl, 1), 0x2000_0000 + 311);
    cell.check();
}

/// Creations on several servers use rows of their own, and a restarted server uses no old number.
#[test]
fn servers_of_one_database_give_entries_different_numbers() {
    let cell = cell();
    let again = || Vl::open(Arc::clone(&cell.db), Arc::clone(&cell.vl.clock)).unwrap();
    let others = [again(), again()];
    let create = |vl: &Vl, id: u32| {
        let newentry = volume(&format!("v{id}"), id);
        vl.ask(ADMIN, CreateEntryN { newentry }).map(drop)
    };
    std::thread::scope(|scope| {
        for (server, vl) in (0..).zip([&cell.vl, &others[0], &others[1]]) {
            scope.spawn(move || {
                for n in 0..150 {
                    create(vl, 10_000 * (server + 1) + 10 * n).unwrap();
                }
            });
        }
    });
    // A creation that fails leaves no entry under its number.
    assert_eq!(create(&others[0], 10_000), Err(AbortCode::VL_IDEXIST));
    create(&again(), 90_000).unwrap();
    cell.get("v90000").unwrap();
    let entries = cell.gather(VldbListByAttributes::default());
    assert_eq!(entries.len(), 3 * 150 + 1);
    cell.check();
}

#[test]
fn volume_ids_asked_for_at_once_are_all_different() {
    let cell = cell();
    let taken: Vec<u32> = std::thread::scope(|scope| {
        let one = || {
            let ids = (0..60).map(|n| (n % 3 + 1, GetNewVolumeId { bump: n % 3 + 1 }));
            let ids = ids.map(|(bump, asked)| (bump, cell.ask(asked).unwrap().newvolumid.0));
            ids.flat_map(|(bump, first)| first..first + bump)
                .collect::<Vec<u32>>()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    let different: std::collections::BTreeSet<_> = taken.iter().collect();
    assert_eq!(different.len(), taken.len());
    assert_eq!(taken.len(), 8 * 120);
}

#[test]
fn fields_are_updated_one_by_one() {
    let cell = cell();
    cell.create(volume("v", 10)).unwrap();
    cell.create(volume("w", 20)).unwrap();
    let update = |change: VldbUpdateEntry| {
        let (volid, voltype, releasetype) = (VolumeId(10), 0, 0);
        cell.ask(UpdateEntry {
            volid,
            voltype,
            updateentry: change,
            releasetype,
        })
        .map(drop)
    };
    let masked = |mask| VldbUpdateEntry {
        mask,
        ..Default::default()
    };
    let name = |name: &str| VldbUpdateEntry {
        name: name.try_into().unwrap(),
        ..masked(VLUPDATE_VOLUMENAME)
    };
    assert_eq!(update(name("w")), Err(AbortCode::VL_NAMEEXIST));
    assert_eq!(update(name("a b")), Err(AbortCode::VL_BADNAME));
    assert_eq!(update(name("new")), Ok(()));
    let ids = VldbUpdateEntry {
        read_only_id: VolumeId(21),
        ..masked(VLUPDATE_READONLYID)
    };
    assert_eq!(update(ids), Err(AbortCode::VL_IDEXIST));
    let all = VldbUpdateEntry {
        read_write_id: VolumeId(40),
        read_only_id: VolumeId(41),
        backup_id: VolumeId(42),
        clone_id: VolumeId(43),
        flags: VLF_BACKEXISTS,
        ..masked(
            VLUPDATE_RWID
                | VLUPDATE_READONLYID
                | VLUPDATE_BACKUPID
                | VLUPDATE_CLONEID
                | VLUPDATE_FLAGS,
        )
    };
    let by_name = UpdateEntryByName {
        volumename: "new".try_into().unwrap(),
        updateentry: all,
        releasetype: 0,
    };
    cell.ask(by_name).unwrap();
    let entry = cell.get("new").unwrap();
    assert_eq!(entry.volume_ids, [VolumeId(40), VolumeId(41), VolumeId(42)]);
    assert_eq!(
        (entry.clone_id, entry.flags),
        (VolumeId(43), VLF_BACKEXISTS)
    );
    assert_eq!(cell.by_id(10, -1), Err(AbortCode::VL_NOENT));
    cell.check();
}

#[test]
fn sites_are_updated_one_by_one() {
    let cell = cell();
    cell.create(volume("v", 10)).unwrap();
    let update = |sites: &[SiteUpdate]| {
        let change = VldbUpdateEntry {
            mask: VLUPDATE_REPSITES,
            sites: List::try_from(sites).unwrap(),
            ..Default::default()
        };
        let (volid, voltype, releasetype) = (VolumeId(10), 0, 0);
        cell.ask(UpdateEntry {
            volid,
            voltype,
            updateentry: change,
            releasetype,
        })
        .map(drop)
    };
    let at = |mask, target_server, target_partition| SiteUpdate {
        mask,
        target_server,
        target_partition,
        ..Default::default()
    };
    let add = |new_server, new_partition| SiteUpdate {
        new_server,
        new_partition,
        new_flags: VLSF_ROVOL,
        ..at(VLUPDATE_REPS_ADD, 0, 0)
    };
    assert_eq!(update(&[]), Err(AbortCode::VL_BADSERVER));
    assert_eq!(update(&[add(B, 1)]), Ok(()));
    assert_eq!(update(&[add(B, 1)]), Err(AbortCode::VL_DUPREPSERVER));
    assert_eq!(update(&[add(B, 300)]), Err(AbortCode::VL_BADPARTITION));
    assert_eq!(
        update(&[at(VLUPDATE_REPS_DELETE, B, 2)]),
        Err(AbortCode::VL_NOREPSERVER)
    );
    assert_eq!(update(&[at(VLUPDATE_REPS_DELETE, A, 0)]), Ok(()));
    let flags = SiteUpdate {
        new_flags: VLSF_RWVOL,
        ..at(VLUPDATE_REPS_MODFLAG, B, 1)
    };
    let partition = SiteUpdate {
        new_partition: 9,
        ..at(VLUPDATE_REPS_MODPART, B, 1)
    };
    let server = SiteUpdate {
        new_server: A,
        ..at(VLUPDATE_REPS_MODSERV, B, 9)
    };
    assert_eq!(update(&[flags, partition, server]), Ok(()));
    assert_eq!(&cell.get("v").unwrap().sites[..], [site(A, 9, VLSF_RWVOL)]);
    for partition in 0..7 {
        assert_eq!(update(&[add(B, partition)]), Ok(()));
    }
    assert_eq!(update(&[add(B, 8)]), Err(AbortCode::VL_REPSFULL));
    cell.check();
}

#[test]
fn a_lock_says_whose_it_is_until_it_is_released() {
    let cell = cell();
    cell.ask(CreateEntryN {
        newentry: volume("vol", 500),
    })
    .unwrap();
    let get = || {
        let asked = GetLock {
            volid: VolumeId(501),
            voltype: ANYVOL,
        };
        let seen = cell.ask(asked.clone()).unwrap();
        // Other callers see that there is a lock, and nothing else.
        let others = GetLockReply {
            who: LockText::default(),
            from: 0,
            note: LockText::default(),
            ..seen.clone()
        };
        assert_eq!(cell.vl.ask(ANYONE, asked), Ok(others));
        seen
    };
    assert_eq!(get().since, AfsTime(0));
    let noted = LockNoted {
        volid: VolumeId(500),
        voltype: RWVOL,
        voloper: VLOP_RELEASE as i32,
        note: LockText::from_static("release, process 7 on ws1"),
    };
    let name = LockText::from_static("local administrator");
    let from = |from: u32| {
        let address = SocketAddr::from((Ipv4Addr::from(from), 7001));
        Origin::new(&Caller::Superuser, &Guard::default(), Some(address))
    };
    let take = |who, from| cell.vl.ask_for(who, &from, noted.clone());
    assert_eq!(take(ANYONE, from(A)), Err(AbortCode::VL_PERM));
    take(ADMIN, from(A)).unwrap();
    let lock = get();
    assert_eq!((lock.operation, lock.since), (VLOP_RELEASE, AfsTime(1000)));
    assert_eq!((&lock.who, lock.from), (&name, A));
    assert_eq!(lock.note, "release, process 7 on ws1");
    assert_eq!(take(ADMIN, from(B)), Err(AbortCode::VL_ENTRYLOCKED));
    assert_eq!(get().from, A, "a refused caller holds no lock");
    cell.ask(ReleaseLock {
        volid: VolumeId(500),
        voltype: RWVOL,
        releasetype: LOCKREL_TIMESTAMP | LOCKREL_OPCODE | LOCKREL_AFSID,
    })
    .unwrap();
    assert_eq!((get().since, get().note.len()), (AfsTime(0), 0));
    // A lock without a note does not show the note of the earlier lock.
    cell.now.store(2000, Ordering::Relaxed);
    cell.ask(SetLock {
        volid: VolumeId(500),
        voltype: RWVOL,
        voloper: VLOP_MOVE as i32,
    })
    .unwrap();
    let lock = get();
    assert_eq!((lock.operation, lock.since), (VLOP_MOVE, AfsTime(2000)));
    assert!(lock.who.is_empty() && lock.note.is_empty());
}
