//! A bit of a row flips on the disk while the servers run. Every result is right or an error: no
//! user gets additional rights, nothing panics outside of the guard, and the other rows stay
//! usable.
//!
//! Lookups are answered from memory and never meet the damage. Changes read the rows that they
//! need. The disk here has no cache, like one whose pages no longer fit into memory.

use std::sync::Arc;

use cellar_celldb::{CellDb, Embedded, Error as DatabaseError};
use cellar_dbserver::{Identity, Pr, Vl};
use cellar_wire::vl::{CreateEntryN, GetEntryByNameN, NvldbEntry, Site, VLF_RWEXISTS, VLSF_RWVOL};
use cellar_wire::{AbortCode, AfsTime, ViceId, VolumeId, pr};

use crate::crash::Disk;

const ADMIN: Identity = Identity::Superuser;
const ALICE: ViceId = ViceId(0x0001_2340);
const BOB: ViceId = ViceId(0x0001_4561);
const CAROL: ViceId = ViceId(0x0001_6782);
/// An id whose place differs in one bit from that of system:administrators, -204.
const FRIENDS: ViceId = ViceId(-204 - 0x100);

struct Cell {
    vl: Vl,
    pr: Pr,
}

impl Cell {
    fn over(db: Embedded) -> Result<Self, cellar_dbserver::Error> {
        let db: Arc<dyn CellDb> = Arc::new(db);
        let vl = Vl::open(db.clone(), Arc::new(|| AfsTime(5)))?;
        let pr = Pr::open(db, Arc::new(|| AfsTime(5)), "test.cell")?;
        Ok(Self { vl, pr })
    }

    fn elements(&self, id: ViceId) -> Vec<ViceId> {
        let list = self.pr.ask(ADMIN, pr::ListElements { id }).unwrap().list;
        list.iter().copied().collect()
    }

    fn add(&self, who: Identity, uid: ViceId, gid: ViceId) -> Result<(), AbortCode> {
        self.pr.ask(who, pr::AddToGroup { uid, gid }).map(drop)
    }

    fn make(&self, name: &str, id: ViceId, owner: ViceId) -> Result<(), AbortCode> {
        let name = name.try_into().unwrap();
        let made = self.pr.ask(ADMIN, pr::INewEntry { name, id, owner });
        made.map(drop)
    }

    fn make_volume(&self, name: &str, id: u32) -> Result<(), AbortCode> {
        let site = Site {
            server: 0x0a00_0001,
            partition: 0,
            flags: VLSF_RWVOL,
        };
        let newentry = NvldbEntry {
            name: name.try_into().unwrap(),
            sites: cellar_wire::List::from_iter_cut([site]),
            volume_ids: [id, id + 1, id + 2].map(VolumeId),
            flags: VLF_RWEXISTS,
            ..NvldbEntry::default()
        };
        self.vl.ask(ADMIN, CreateEntryN { newentry }).map(drop)
    }

    /// Checks that lookups are right; `members` are the members of FRIENDS.
    fn check(&self, members: &[ViceId], what: &str) {
        assert_eq!(self.elements(FRIENDS), members, "{what}");
        assert!(self.elements(ViceId::ADMINISTRATORS).is_empty(), "{what}");
        for id in [ALICE, BOB, CAROL] {
            let cps = self.pr.ask(ADMIN, pr::GetCPS { id }).unwrap().list;
            assert!(!cps.contains(&ViceId::ADMINISTRATORS), "{what}");
            assert_eq!(cps.contains(&FRIENDS), members.contains(&id), "{what}");
        }
        let names = ["alice", "bob"].map(|name| name.try_into().unwrap());
        let names = cellar_wire::List::from_iter_cut(names);
        let ids = self.pr.ask(ADMIN, pr::NameToID { names }).unwrap().ids;
        assert!(ids.iter().eq(&[ALICE, BOB]), "{what}");
        let volumename = "home".try_into().unwrap();
        let home = self.vl.ask(ADMIN, GetEntryByNameN { volumename }).unwrap();
        assert_eq!(home.entry.volume_ids[0], VolumeId(100), "{what}");
    }
}

/// A disk with three users and a group that has bob as a member.
fn filled() -> Disk {
    let disk = Disk::default();
    let cell = Cell::over(Embedded::with_backend(disk.clone()).unwrap()).unwrap();
    for (name, id) in [("alice", ALICE), ("bob", BOB), ("carol", CAROL)] {
        cell.make(name, id, ViceId(0)).unwrap();
    }
    cell.make("alice:friends", FRIENDS, ALICE).unwrap();
    cell.add(Identity::User(ALICE), BOB, FRIENDS).unwrap();
    cell.make_volume("home", 100).unwrap();
    cell.check(&[BOB], "the undamaged disk");
    drop(cell);
    disk
}

/// The bytes of an id in a key.
fn place(id: ViceId) -> [u8; 4] {
    let place = match id.0 {
        group @ ..0 => 0x8000_0000 + !group as u32,
        user => user as u32,
    };
    place.to_be_bytes()
}

/// Makes changes through the servers. Returns the members of FRIENDS after them, and the number of
/// refusals because of the damage.
fn changes(cell: &Cell, what: &str) -> (Vec<ViceId>, usize) {
    let mut errors = 0;
    // Accepts the right result, or an error about a damaged database. `absent` are further accepted
    // results, for the case that the damage moved the needed row to another key.
    let mut judge = |found: Result<(), AbortCode>, right: Result<(), AbortCode>, absent: &[_]| {
        let is_damage = matches!(found, Err(AbortCode::PRDBBAD | AbortCode::UIOERROR));
        errors += usize::from(is_damage);
        assert!(
            is_damage || found == right || absent.contains(&found),
            "{what}: {found:?}, not {right:?}"
        );
        found.is_ok()
    };
    let mut members = vec![BOB];
    let denied = Err(AbortCode::PRPERM);
    let unknown = Err(AbortCode::PRNOENT);
    for id in [BOB, CAROL] {
        let raised = cell.add(Identity::User(id), id, ViceId::ADMINISTRATORS);
        assert!(raised.is_err(), "{what}");
        judge(raised, denied, &[unknown]);
    }
    let made = cell.make("bobs:own", ViceId(-9000), BOB);
    assert!(made.is_err(), "{what}");
    // Bob's name is not given to another user.
    let again = cell.make("bob", ViceId(0x0001_89a3), ViceId(0));
    judge(again, Err(AbortCode::PREXIST), &[]);
    let added = cell.add(Identity::User(ALICE), CAROL, FRIENDS);
    if judge(added, Ok(()), &[unknown]) {
        members.push(CAROL);
    }
    let (id, gid) = (BOB, FRIENDS);
    let removed = cell.pr.ask(ADMIN, pr::RemoveFromGroup { id, gid });
    if judge(removed.map(drop), Ok(()), &[unknown]) {
        members.retain(|id| *id != BOB);
    }
    // The other tables still work.
    cell.make_volume("other", 200).unwrap();
    (members, errors)
}

#[test]
fn a_row_that_is_damaged_while_servers_run_is_an_error_and_gives_no_rights() {
    let good = filled();
    let member = [place(FRIENDS), place(BOB)].concat();
    let group = [place(BOB), place(FRIENDS)].concat();
    // Bit 16 of these two rows would make bob an administrator; the loop below flips it too.
    let rows: [(&str, &[u8]); 4] = [
        ("pr.member", &member),
        ("pr.group", &group),
        ("pr.name", b"bob"),
        ("pr.entry", &place(BOB)),
    ];
    let (mut refused, mut errors, mut named) = (0, 0, 0);
    for (table, bytes) in rows {
        for bit in (1..bytes.len() * 8).step_by(3) {
            for is_loaded in [false, true] {
                let what = format!("{table}, bit {bit}, loaded: {is_loaded}");
                let disk = good.copy();
                let db = Embedded::with_uncached_backend(disk.clone()).unwrap();
                if !is_loaded {
                    assert!(disk.flip_in(bytes, bit) > 0, "{what}");
                }
                let Ok(cell) = Cell::over(db) else {
                    assert!(!is_loaded, "{what}");
                    refused += 1;
                    continue;
                };
                cell.check(&[BOB], &what);
                if is_loaded {
                    assert!(disk.flip_in(bytes, bit) > 0, "{what}");
                }
                let (members, met) = changes(&cell, &what);
                cell.check(&members, &what);
                errors += met;
                drop(cell);
                // The next start finds the damage, or the damaged row no longer exists.
                match Embedded::with_backend(disk.copy()) {
                    Ok(db) => Cell::over(db).unwrap().check(&members, &what),
                    Err(DatabaseError::Damaged { reason, .. }) => {
                        assert!(reason.len() > 10, "{what}: {reason}");
                        named += 1;
                    }
                    Err(other) => panic!("{what}: {other}"),
                }
            }
        }
    }
    println!("{refused} starts refused, {errors} errors, {named} named at the start");
    assert!(refused > 10 && errors > 100 && named > 50);
}
