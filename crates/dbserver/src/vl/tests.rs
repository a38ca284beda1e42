//! Every VL procedure and refusal, and random sequences against a simple model.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use cellar_celldb::Embedded;
use cellar_wire::vl::*;
use cellar_wire::{AfsUuid, List, Procedure, VolumeId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

const ADMIN: Identity = Identity::Superuser;
const NOBODY: Identity = Identity::ANONYMOUS;
const A: u32 = 0x0a00_0001;
const B: u32 = 0x0a00_0002;

struct Cell {
    _dir: tempfile::TempDir,
    db: Arc<dyn CellDb>,
    vl: Vl,
    now: Arc<AtomicU32>,
}

fn cell() -> Cell {
    let dir = tempfile::tempdir().unwrap();
    let db: Arc<dyn CellDb> = Arc::new(Embedded::open(&dir.path().join("db")).unwrap());
    let now = Arc::new(AtomicU32::new(1000));
    let clock = Arc::clone(&now);
    let clock: Clock = Arc::new(move || AfsTime(clock.load(Ordering::Relaxed)));
    let vl = Vl::open(Arc::clone(&db), clock).unwrap();
    Cell {
        _dir: dir,
        db,
        vl,
        now,
    }
}

fn site(server: u32, partition: i32, flags: u32) -> Site {
    Site {
        server,
        partition,
        flags,
    }
}

fn volume(name: &str, id: u32) -> NvldbEntry {
    NvldbEntry {
        name: name.try_into().unwrap(),
        sites: List::from_iter_cut([site(A, 0, VLSF_RWVOL)]),
        volume_ids: [VolumeId(id), VolumeId(id + 1), VolumeId(id + 2)],
        clone_id: VolumeId(0),
        flags: VLF_RWEXISTS,
        match_index: 0,
    }
}

impl Cell {
    fn ask<P: Answer<Vl>>(&self, arguments: P) -> Result<P::Reply, AbortCode> {
        self.vl.ask(ADMIN, arguments)
    }

    fn create(&self, entry: NvldbEntry) -> Result<(), AbortCode> {
        self.ask(CreateEntryN { newentry: entry }).map(drop)
    }

    fn get(&self, name: &str) -> Result<NvldbEntry, AbortCode> {
        let volumename = name.try_into().unwrap();
        self.vl
            .ask(NOBODY, GetEntryByNameN { volumename })
            .map(|reply| reply.entry)
    }

    fn get_u(&self, name: &str) -> UvldbEntry {
        let volumename = name.try_into().unwrap();
        self.vl
            .ask(NOBODY, GetEntryByNameU { volumename })
            .unwrap()
            .entry
    }

    fn by_id(&self, id: u32, voltype: i32) -> Result<NvldbEntry, AbortCode> {
        let asked = GetEntryByIDN {
            volid: VolumeId(id),
            voltype,
        };
        self.vl.ask(NOBODY, asked).map(|reply| reply.entry)
    }

    fn replace(&self, id: u32, entry: NvldbEntry, releasetype: i32) -> Result<(), AbortCode> {
        let (volid, voltype) = (VolumeId(id), -1);
        self.ask(ReplaceEntryN {
            volid,
            voltype,
            newentry: entry,
            releasetype,
        })
        .map(drop)
    }

    fn lock(&self, id: u32, voloper: u32) -> Result<(), AbortCode> {
        let voloper = voloper as i32;
        self.ask(SetLock {
            volid: VolumeId(id),
            voltype: -1,
            voloper,
        })
        .map(drop)
    }

    fn register(&self, uuid: u8, addresses: &[u32]) -> Result<(), AbortCode> {
        let addrs = List::try_from(addresses).unwrap();
        self.ask(RegisterAddrs {
            uuid: AfsUuid([uuid; 16]),
            spare1: 0,
            addrs,
        })
        .map(drop)
    }

    fn addrs_u(&self, mask: u32, value: u32) -> Result<(u8, i32, Vec<u32>), AbortCode> {
        let attributes = ListAddrByAttributes {
            mask,
            ipaddr: value,
            index: value as i32,
            spare1: 0,
            uuid: AfsUuid([value as u8; 16]),
        };
        let reply = self.vl.ask(NOBODY, GetAddrsU { attributes })?;
        assert_eq!(reply.nentries as usize, reply.blkaddrs.len());
        Ok((reply.uuid.0[0], reply.uniquifier, reply.blkaddrs.into_vec()))
    }

    fn list(
        &self,
        who: Identity,
        attributes: VldbListByAttributes,
        pattern: &str,
    ) -> Result<Vec<(String, u32)>, AbortCode> {
        let (mut listed, mut startindex) = (Vec::new(), 0);
        loop {
            let volumename = pattern.try_into().unwrap();
            let asked = ListAttributesN2 {
                attributes,
                volumename,
                startindex,
            };
            let reply = self.vl.ask(who, asked)?;
            assert_eq!(reply.nentries as usize, reply.blkentries.len());
            assert!(reply.nentries as usize <= limits::PAGE_ENTRIES);
            listed.extend(
                reply
                    .blkentries
                    .iter()
                    .map(|e| (e.name.to_string(), e.match_index)),
            );
            startindex = reply.nextindex;
            if startindex == -1 {
                return Ok(listed);
            }
        }
    }

    fn gather(&self, attributes: VldbListByAttributes) -> Vec<String> {
        self.vl
            .gather(&attributes)
            .unwrap()
            .iter()
            .map(|entry| entry.name.to_string())
            .collect()
    }

    /// Loads the model anew and compares it and all three tables with the one in use.
    fn check(&self) {
        let fresh = Vl::open(Arc::clone(&self.db), Arc::clone(&self.vl.clock)).unwrap();
        let (fresh, used) = (fresh.replica.read(), self.vl.replica.read());
        let all = fresh.after(0, usize::MAX);
        assert_eq!(all, used.after(0, usize::MAX));
        assert_eq!(
            fresh.servers().collect::<Vec<_>>(),
            used.servers().collect::<Vec<_>>()
        );
        assert_eq!(fresh.max_volume_id(), used.max_volume_id());
        let mut counts = (0, [0; 3]);
        for entry in &all {
            counts.0 += 1;
            assert_eq!(used.by_name(&entry.name).unwrap(), entry);
            for voltype in 0..3 {
                let id = entry.ids[voltype];
                if id.0 != 0 {
                    counts.1[voltype] += 1;
                    assert_eq!(used.by_id(id, voltype as i32).unwrap(), entry);
                }
            }
            for place in &entry.places {
                assert!(
                    used.server(usize::from(place.server)).is_some(),
                    "{entry:?}"
                );
            }
        }
        assert_eq!((used.len(), used.volumes_by_type()), counts);
        let everything = (Bound::Unbounded, Bound::Unbounded);
        let rows = |table| {
            let rows = self
                .db
                .read(|view, _| view.scan(table, everything, usize::MAX));
            rows.map(|rows: cellar_celldb::Rows| rows.len()).unwrap()
        };
        assert_eq!(rows(tables::NAME), counts.0);
        assert_eq!(rows(tables::ID), counts.1.iter().sum::<usize>());
    }
}

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
        ($($arguments:expr),* $(,)?) => { $( nobody(cell.vl.ask(NOBODY, $arguments).map(drop)); )* };
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
        "and no lock is taken"
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
        "only the flag went"
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
        "no such run is left"
    );
    assert_eq!(next(0), Ok(0xa000_0008));
    cell.check();
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
fn entries_are_listed_one_after_the_other() {
    let cell = cell();
    for n in 0..5 {
        cell.create(volume(&format!("v{n}"), 10 + 10 * n)).unwrap();
    }
    cell.ask(DeleteEntry {
        volid: VolumeId(20),
        voltype: 0,
    })
    .unwrap();
    let (mut names, mut previous_index) = (Vec::new(), 0);
    loop {
        let reply = cell.ask(ListEntryN { previous_index }).unwrap();
        let old = cell.ask(ListEntry { previous_index }).unwrap();
        assert_eq!(
            (old.next_index, old.entry),
            (reply.next_index, reply.entry.to_old())
        );
        previous_index = reply.next_index;
        if previous_index == 0 {
            break;
        }
        assert_eq!(reply.count, 4);
        names.push(reply.entry.name.to_string());
    }
    assert_eq!(names, ["v0", "v2", "v3", "v4"]);
    let odd = cell.ask(ListEntryN { previous_index: -7 }).unwrap();
    assert_eq!(odd.entry.name.to_string(), "v0");
}

#[test]
fn listings_choose_by_server_partition_flags_and_name() {
    let cell = cell();
    cell.create(volume("root.afs", 10)).unwrap();
    let mut entry = volume("root.cell", 20);
    entry.sites = List::from_iter_cut([
        site(B, 1, VLSF_RWVOL),
        site(B, 1, VLSF_ROVOL),
        site(A, 2, VLSF_ROVOL),
    ]);
    entry.flags = VLF_RWEXISTS | VLF_ROEXISTS;
    cell.create(entry).unwrap();
    let mut entry = volume("user.x", 30);
    entry.flags = VLF_BACKEXISTS;
    cell.create(entry).unwrap();
    let all = VldbListByAttributes::default();
    let rw = |index| VLSF_RWVOL << 16 | index;
    let ro = |index| VLSF_ROVOL << 16 | index;
    let backup = VLSF_BACKVOL << 16;
    let expect = |found: Result<Vec<(String, u32)>, AbortCode>, expected: &[(&str, u32)]| {
        let found = found.unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|(name, index)| (&name[..], *index))
            .collect();
        assert_eq!(found, expected);
    };
    let every = [
        ("root.afs", rw(0)),
        ("root.cell", rw(0)),
        ("user.x", backup),
    ];
    expect(cell.list(NOBODY, all, ".*"), &every);
    expect(cell.list(NOBODY, all, ""), &every);
    assert_eq!(cell.list(NOBODY, all, "root.*"), Err(AbortCode::VL_PERM));
    expect(cell.list(ADMIN, all, "root\\..*"), &every[..2]);
    expect(
        cell.list(ADMIN, all, ".*\\.readonly"),
        &[("root.cell", ro(2))],
    );
    expect(cell.list(ADMIN, all, "user.*backup"), &[("user.x", backup)]);
    expect(cell.list(ADMIN, all, "oot"), &[]);
    assert_eq!(cell.list(ADMIN, all, "[a"), Err(AbortCode::VL_BADNAME));
    let by = |mask, server, partition, flag| VldbListByAttributes {
        mask,
        server,
        partition,
        flag,
        ..all
    };
    let on = by(VLLIST_SERVER, A, 0, 0);
    expect(
        cell.list(NOBODY, on, ""),
        &[every[0], ("root.cell", ro(2)), every[2]],
    );
    assert_eq!(cell.gather(on), ["root.afs", "root.cell", "user.x"]);
    let on = by(VLLIST_SERVER | VLLIST_PARTITION, B, 1, 0);
    expect(cell.list(NOBODY, on, ""), &[every[1]]);
    assert_eq!(cell.gather(on), ["root.cell"]);
    let on = by(VLLIST_PARTITION, 0, 2, 0);
    expect(cell.list(NOBODY, on, ""), &[("root.cell", ro(2))]);
    let flagged = by(VLLIST_FLAG, 0, 0, VLF_BACKEXISTS);
    expect(cell.list(NOBODY, flagged, ""), &[every[2]]);
    assert_eq!(cell.gather(flagged), ["user.x"]);
    let unknown = by(VLLIST_SERVER, 0x0a00_00ff, 0, 0);
    expect(cell.list(NOBODY, unknown, ""), &[]);
    assert!(cell.gather(unknown).is_empty());
    let id = |id| VldbListByAttributes {
        mask: VLLIST_VOLUMEID,
        volumeid: VolumeId(id),
        ..all
    };
    expect(cell.list(NOBODY, id(21), ""), &[("root.cell", 0)]);
    assert_eq!(cell.gather(id(21)), ["root.cell"]);
    assert_eq!(cell.list(NOBODY, id(99), ""), Err(AbortCode::VL_NOENT));
    assert!(cell.vl.gather(&id(99)).is_err());
}

#[test]
fn a_name_of_full_length_is_listed_and_matched() {
    let cell = cell();
    let name = "n".repeat(64);
    let mut entry = volume(&name, 10);
    entry.sites = List::from_iter_cut([site(A, 0, VLSF_ROVOL)]);
    cell.create(entry).unwrap();
    let all = VldbListByAttributes::default();
    assert_eq!(cell.list(ADMIN, all, "n*\\.readonly").unwrap().len(), 1);
}

#[test]
fn long_listings_come_in_pages() {
    let cell = cell();
    let bulk = |transaction: &mut cellar_celldb::Transaction<'_>| {
        let mut tables = tables::Tables(transaction);
        let server = tables.server_for(A)?;
        for n in 0..1250 {
            let new = volume(&format!("v{n}"), 10 + 10 * n);
            let places = [entry::Place {
                server,
                partition: 0,
                flags: VLSF_RWVOL as u8,
            }];
            tables.insert(entry::Entry {
                number: 0,
                name: new.name,
                ids: new.volume_ids,
                clone_id: new.clone_id,
                flags: new.flags,
                lock_time: AfsTime(0),
                lock_id: 0,
                places: places.into(),
            })?;
        }
        Ok(())
    };
    cell.vl.replica.write(bulk).unwrap();
    let all = VldbListByAttributes::default();
    assert_eq!(cell.list(NOBODY, all, "").unwrap().len(), 1250);
    assert_eq!(
        cell.list(ADMIN, all, "v1.*").unwrap().len(),
        1 + 10 + 100 + 250
    );
    assert_eq!(cell.gather(all).len(), 1250);
    cell.check();
}

#[test]
fn a_server_registers_its_addresses() {
    let cell = cell();
    let word = |index: u32| 0xff00_0000 | index;
    assert_eq!(cell.register(1, &[0, 0]), Err(AbortCode::VL_INDEXERANGE));
    assert_eq!(cell.register(0, &[A]), Err(AbortCode::VL_BADSERVER));
    assert_eq!(cell.register(1, &[A, A, 0, B]), Ok(()));
    assert_eq!(cell.addrs_u(VLADDR_UUID, 1), Ok((1, 1, vec![A, B])));
    assert_eq!(cell.addrs_u(VLADDR_IPADDR, B), Ok((1, 1, vec![A, B])));
    assert_eq!(cell.addrs_u(VLADDR_INDEX, 1), Ok((1, 1, vec![A, B])));
    assert_eq!(cell.register(1, &[A, B]), Ok(()));
    assert_eq!(
        cell.addrs_u(VLADDR_UUID, 1),
        Ok((1, 1, vec![A, B])),
        "nothing changed"
    );
    assert_eq!(cell.register(1, &[B]), Ok(()));
    assert_eq!(cell.addrs_u(VLADDR_UUID, 1), Ok((1, 2, vec![B])));
    for (mask, value, code) in [
        (VLADDR_UUID, 9, AbortCode::VL_NOENT),
        (VLADDR_IPADDR, A, AbortCode::VL_NOENT),
        (VLADDR_INDEX, 0, AbortCode::VL_INDEXERANGE),
        (VLADDR_INDEX, 255, AbortCode::VL_INDEXERANGE),
        (VLADDR_INDEX, 2, AbortCode::VL_NOENT),
        (VLADDR_INDEX | VLADDR_UUID, 1, AbortCode::VL_BADMASK),
        (0, 1, AbortCode::VL_BADMASK),
    ] {
        assert_eq!(cell.addrs_u(mask, value), Err(code), "{mask} {value}");
    }
    // A volume of a server that never registered.
    let mut entry = volume("v", 10);
    entry.sites = List::from_iter_cut([site(A, 0, VLSF_RWVOL), site(B, 0, VLSF_ROVOL)]);
    cell.create(entry.clone()).unwrap();
    let reply = cell
        .ask(GetAddrs {
            handle: 0,
            spare2: 0,
        })
        .unwrap();
    assert_eq!(reply.blkaddr.into_vec(), [word(1), A]);
    let sites = cell.get_u("v").sites;
    assert_eq!(
        (sites[0].server, sites[0].flags),
        (AfsUuid::from_address(A), VLSF_RWVOL)
    );
    assert_eq!(
        (sites[1].server, sites[1].uniquifier),
        (AfsUuid([1; 16]), 2)
    );
    assert_eq!(sites[1].flags, VLSF_ROVOL | VLSF_UUID);
    // It registers: its number stays, so that the volume is on it still.
    assert_eq!(cell.register(2, &[A]), Ok(()));
    assert_eq!(cell.get_u("v").sites[0].server, AfsUuid([2; 16]));
    assert_eq!(
        cell.get("v"),
        Ok(entry),
        "forms without UUIDs have the first address"
    );
    cell.check();
}

#[test]
fn addresses_that_belong_to_several_servers_are_refused() {
    let cell = cell();
    cell.register(1, &[1, 2]).unwrap();
    cell.register(2, &[3, 4]).unwrap();
    assert_eq!(
        cell.register(1, &[1, 2, 3, 4]),
        Err(AbortCode::VL_MULTIPADDR),
        "covers 2"
    );
    assert_eq!(
        cell.register(3, &[1, 3]),
        Err(AbortCode::VL_MULTIPADDR),
        "touches both"
    );
    assert_eq!(cell.register(1, &[1, 3]), Ok(()), "takes one from 2");
    assert_eq!(cell.addrs_u(VLADDR_UUID, 1), Ok((1, 2, vec![1, 3])));
    assert_eq!(cell.addrs_u(VLADDR_UUID, 2), Ok((2, 2, vec![4])));
    assert_eq!(cell.register(3, &[4, 5]), Ok(()), "2 with a new identity");
    assert_eq!(cell.addrs_u(VLADDR_UUID, 2), Err(AbortCode::VL_NOENT));
    assert_eq!(cell.addrs_u(VLADDR_INDEX, 2), Ok((3, 3, vec![4, 5])));
    let many: Vec<u32> = (100..120).collect();
    assert_eq!(cell.register(4, &many), Ok(()));
    assert_eq!(cell.addrs_u(VLADDR_UUID, 4).unwrap().2, &many[..15]);
    cell.check();
}

#[test]
fn an_address_is_changed_or_removed() {
    let cell = cell();
    let change = |ip1, ip2| cell.ask(ChangeAddr { ip1, ip2 }).map(drop);
    cell.create(volume("v", 10)).unwrap();
    cell.register(1, &[0x0a00_0010, 0x0a00_0011]).unwrap();
    assert_eq!(change(A, 0xff00_0001), Err(AbortCode::VL_BADSERVER));
    assert_eq!(change(B, A), Err(AbortCode::VL_NOENT));
    assert_eq!(change(A, 0x0a00_0010), Err(AbortCode::VL_MULTIPADDR));
    assert_eq!(
        change(0x0a00_0010, B),
        Err(AbortCode::VL_NOENT),
        "multi-homed"
    );
    assert_eq!(change(A, B), Ok(()));
    assert_eq!(cell.get("v").unwrap().sites[0].server, B);
    assert_eq!(change(u32::MAX, A), Err(AbortCode::VL_NOENT));
    assert_eq!(
        change(u32::MAX, B),
        Err(AbortCode::VL_IDEXIST),
        "volumes are there"
    );
    assert_eq!(change(u32::MAX, 0x0a00_0011), Ok(()));
    assert_eq!(cell.addrs_u(VLADDR_UUID, 1), Err(AbortCode::VL_NOENT));
    cell.ask(DeleteEntry {
        volid: VolumeId(10),
        voltype: 0,
    })
    .unwrap();
    assert_eq!(change(u32::MAX, B), Ok(()));
    cell.check();
}

#[test]
fn there_are_at_most_255_servers() {
    let cell = cell();
    let on = |n: u32| {
        let mut entry = volume(&format!("v{n}"), 10 + 10 * n);
        entry.sites = List::from_iter_cut([site(A + n, 0, VLSF_RWVOL)]);
        cell.create(entry)
    };
    (0..255).for_each(|n| on(n).unwrap());
    assert_eq!(on(255), Err(AbortCode::VL_BADSERVER));
    assert_eq!(cell.register(1, &[1]), Err(AbortCode::VL_BADSERVER));
    assert_eq!(cell.register(1, &[A + 254]), Ok(()));
    assert_eq!(cell.addrs_u(VLADDR_UUID, 1), Ok((1, 1, vec![A + 254])));
    cell.check();
}

#[test]
fn statistics_count_calls_and_refusals() {
    let cell = cell();
    cell.create(volume("v", 10)).unwrap();
    cell.get("v").unwrap();
    cell.get("w").unwrap_err();
    cell.ask(ProbeServer {}).unwrap();
    let reply = cell.ask(GetStats {}).unwrap();
    let index = |opcode: u32| (opcode - 501) as usize;
    assert_eq!(reply.stats.start_time, AfsTime(1000));
    assert_eq!(reply.stats.requests[index(GetEntryByNameN::OPCODE)], 2);
    assert_eq!(reply.stats.aborts[index(GetEntryByNameN::OPCODE)], 1);
    assert_eq!(reply.stats.requests[index(ProbeServer::OPCODE)], 1);
    assert_eq!(reply.vital_header.max_volume_id, VolumeId(0x2000_0000));
    assert_eq!(reply.vital_header.total_entries, [1, 1, 1]);
    assert_eq!(cell.ask(GetCapabilities {}).unwrap().capabilities.len(), 1);
}

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

/// Random creations, replacements, deletions and registrations; the indexes always agree, and what
/// is found is what a plain map holds.
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
                        // An id of its own, as another type, is taken, too.
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
