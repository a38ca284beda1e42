//! Tests of every OSDDB procedure and refusal.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cellar_celldb::Embedded;
use cellar_wire::ids::{Fid, Uniquifier, ViceId, VnodeId, VolumeId};
use cellar_wire::osddb::*;
use cellar_wire::{AfsTime, List};

use super::*;

const ADMIN: Identity = Identity::Superuser;
const ANYONE: Identity = Identity::ANONYMOUS;
const HOST: [u32; 4] = [0, 0, 0xffff, 0x0a00_0001];
const OTHER: [u32; 4] = [0, 0, 0xffff, 0x0a00_0002];

struct Cell {
    _dir: tempfile::TempDir,
    db: Arc<dyn CellDb>,
    osddb: OsdDb,
    passed: Arc<AtomicU64>,
}

fn open(db: &Arc<dyn CellDb>, passed: &Arc<AtomicU64>) -> OsdDb {
    let (begin, passed) = (Instant::now(), Arc::clone(passed));
    let stopwatch: Stopwatch =
        Arc::new(move || begin + Duration::from_secs(passed.load(Ordering::Relaxed)));
    OsdDb::open_with(Arc::clone(db), Arc::new(|| AfsTime(1000)), stopwatch).unwrap()
}

fn cell() -> Cell {
    let dir = tempfile::tempdir().unwrap();
    let db: Arc<dyn CellDb> = Arc::new(Embedded::open(&dir.path().join("db")).unwrap());
    let passed = Arc::default();
    let osddb = open(&db, &passed);
    Cell {
        _dir: dir,
        db,
        osddb,
        passed,
    }
}

fn device(id: u32, name: &str) -> OsdEntry {
    OsdEntry {
        id,
        name: name.try_into().unwrap(),
        addresses: List::from_iter_cut([HOST]),
        port: 7006,
        allocation_priority: 80,
        read_priority: 80,
        ..OsdEntry::default()
    }
}

fn state(id: u32) -> OsdState {
    OsdState {
        id,
        total: 1000,
        free: 600,
        objects: 3,
        silence: 0,
        writable: true,
    }
}

impl Cell {
    fn ask<P: Answer<OsdDb>>(&self, arguments: P) -> Result<P::Reply, AbortCode> {
        self.osddb.ask(ADMIN, arguments)
    }

    fn create(&self, entry: OsdEntry) -> Result<u32, AbortCode> {
        self.ask(CreateOsd { entry }).map(|reply| reply.id)
    }

    fn set(&self, entry: OsdEntry, revision: u64) -> Result<(), AbortCode> {
        self.ask(SetOsd { entry, revision }).map(drop)
    }

    fn get(&self, id: u32) -> Result<OsdListed, AbortCode> {
        let asked = GetOsd {
            id,
            name: OsdName::default(),
        };
        self.osddb.ask(ANYONE, asked).map(|reply| reply.osd)
    }

    fn revisions(&self) -> (u64, u64) {
        let reply = self.osddb.ask(ANYONE, GetRevisions {}).unwrap();
        (reply.devices, reply.policies)
    }

    fn beat(&self, states: &[OsdState], addresses: &[[u32; 4]]) -> Result<u64, AbortCode> {
        let beat = Heartbeat {
            states: states.try_into().unwrap(),
            addresses: addresses.try_into().unwrap(),
            port: 7006,
        };
        self.ask(beat).map(|reply| reply.devices)
    }

    fn wait(&self, seconds: u64) {
        self.passed.fetch_add(seconds, Ordering::Relaxed);
    }

    fn policy(&self, id: u32, name: &str, text: &str) -> Result<u32, AbortCode> {
        let policy = PolicyEntry {
            id,
            name: name.try_into().unwrap(),
            text: text.try_into().unwrap(),
            revision: 0,
        };
        self.ask(SetPolicy { policy }).map(|reply| reply.id)
    }

    fn policies(&self) -> Vec<(u32, String, u64)> {
        let reply = self.osddb.ask(ANYONE, ListPolicies {}).unwrap();
        assert_eq!(reply.revision, self.revisions().1);
        let policies = reply.policies.into_iter();
        policies
            .map(|policy| (policy.id, policy.name.to_string(), policy.revision))
            .collect()
    }
}

#[test]
fn the_first_start_makes_the_local_disk() {
    let cell = cell();
    let listed = cell.osddb.ask(ANYONE, ListOsds {}).unwrap();
    assert_eq!((listed.revision, listed.osds.len()), (1, 1));
    let entry = &listed.osds[0].entry;
    assert_eq!((entry.id, entry.name.as_str()), (1, Some("local_disk")));
    assert_eq!((entry.min_size, entry.max_size), (0, 1 << 20));
    assert_eq!((entry.allocation_priority, entry.read_priority), (64, 100));
    cell.wait(3600);
    assert!(!cell.get(1).unwrap().dead);
    // A second start changes nothing.
    let mut changed = cell.get(1).unwrap().entry;
    changed.max_size = 4 << 20;
    cell.set(changed, 0).unwrap();
    let again = open(&cell.db, &cell.passed);
    let reply = again.ask(ANYONE, ListOsds {}).unwrap();
    assert_eq!((reply.revision, reply.osds[0].entry.max_size), (2, 4 << 20));
}

#[test]
fn devices_are_created_and_changed() {
    let cell = cell();
    assert_eq!(cell.create(device(0, "a")), Ok(2));
    assert_eq!(cell.create(device(7, "b")), Ok(7));
    assert_eq!(cell.create(device(0, "c")), Ok(8));
    assert_eq!(cell.revisions(), (4, 0));
    for (entry, code) in [
        (device(1, "d"), AbortCode::EEXIST),
        (device(7, "d"), AbortCode::EEXIST),
        (device(0, "b"), AbortCode::EEXIST),
        (device(1 << 31, "d"), AbortCode::EINVAL),
    ] {
        assert_eq!(cell.create(entry.clone()), Err(code), "{entry:?}");
    }
    let revision = cell.revisions().0;
    let mut changed = cell.get(7).unwrap().entry;
    changed.allocation_priority = 0;
    assert_eq!(cell.set(changed.clone(), revision), Ok(()));
    assert_eq!(cell.get(7).unwrap().entry, changed);
    assert_eq!(cell.revisions().0, revision + 1);
    // The same entry again is not a change.
    assert_eq!(cell.set(changed.clone(), 0), Ok(()));
    assert_eq!(cell.revisions().0, revision + 1);
    // Another caller has changed it since that revision.
    changed.read_priority = 1;
    assert_eq!(cell.set(changed.clone(), revision), Err(AbortCode::ESTALE));
    assert_eq!(cell.set(changed.clone(), revision + 1), Ok(()));
    // A change of another device does not matter.
    let mut other = cell.get(2).unwrap().entry;
    other.class = "fast".try_into().unwrap();
    assert_eq!(cell.set(other, revision), Ok(()));
    changed.name = "a".try_into().unwrap();
    assert_eq!(cell.set(changed, 0), Err(AbortCode::EEXIST));
    assert_eq!(cell.set(device(9, "z"), 0), Err(AbortCode::ENOENT));
    let by_name = |name: &str| {
        let name = name.try_into().unwrap();
        let found = cell.osddb.ask(ANYONE, GetOsd { id: 0, name });
        found.map(|reply| reply.osd.entry.id)
    };
    assert_eq!(by_name("c"), Ok(8));
    assert_eq!(by_name("z"), Err(AbortCode::ENOENT));
    assert_eq!(cell.get(9), Err(AbortCode::ENOENT));
}

#[test]
fn numbers_are_not_given_again_but_names_are() {
    let cell = cell();
    assert_eq!(cell.create(device(0, "a")), Ok(2));
    let mut gone = device(2, "a");
    gone.flags = OSD_OBSOLETE;
    assert_eq!(cell.set(gone, 0), Ok(()));
    assert_eq!(cell.create(device(2, "a")), Err(AbortCode::EEXIST));
    assert_eq!(cell.create(device(0, "a")), Ok(3));
    let name = "a".try_into().unwrap();
    assert_eq!(cell.ask(GetOsd { id: 0, name }).unwrap().osd.entry.id, 3);
    let again = open(&cell.db, &cell.passed);
    let reply = again
        .ask(
            ADMIN,
            CreateOsd {
                entry: device(0, "b"),
            },
        )
        .unwrap();
    assert_eq!(reply.id, 4);
}

#[test]
fn entries_that_make_no_sense_are_refused() {
    let cell = cell();
    let wrong: &[fn(&mut OsdEntry)] = &[
        |e| e.name = OsdName::default(),
        |e| e.name = "two words".try_into().unwrap(),
        |e| e.name = "12".try_into().unwrap(),
        |e| e.name = OsdName::new(vec![0xff]).unwrap(),
        |e| e.owner = "\n".try_into().unwrap(),
        |e| e.class = "a b".try_into().unwrap(),
        |e| e.location = "a b".try_into().unwrap(),
        |e| e.port = 65536,
        |e| e.partition = 255,
        |e| (e.min_size, e.max_size) = (2, 1),
        |e| e.allocation_priority = 1_000_001,
        |e| e.read_priority = u32::MAX,
        |e| e.marks.high = 1001,
        |e| {
            e.marks = WaterMarks {
                high: 700,
                low: 700,
            }
        },
        |e| e.flags = 32,
        |e| e.flags = OSD_ARCHIVAL | OSD_WIPEABLE,
    ];
    for (index, change) in wrong.iter().enumerate() {
        let mut entry = device(0, "a");
        change(&mut entry);
        assert_eq!(cell.create(entry), Err(AbortCode::EINVAL), "{index}");
    }
    let mut local = cell.get(1).unwrap().entry;
    local.flags = OSD_DRAINING;
    assert_eq!(cell.set(local, 0), Err(AbortCode::EINVAL));
    let mut plain = device(0, "a");
    (plain.port, plain.addresses) = (0, List::default());
    (plain.min_size, plain.location) = (1 << 20, "site/room/r7/h1".try_into().unwrap());
    let id = cell.create(plain).unwrap();
    assert_eq!(cell.get(id).unwrap().entry.port, 7006);
}

#[test]
fn devices_die_of_silence() {
    let cell = cell();
    let id = cell.create(device(0, "a")).unwrap();
    // This database could not have received a report yet.
    let new = cell.get(id).unwrap();
    assert_eq!(
        (new.dead, new.state.silence, new.state.free),
        (false, u32::MAX, 0)
    );
    cell.wait(9);
    assert!(cell.get(id).unwrap().dead);
    let revision = cell.revisions().0;
    assert_eq!(cell.beat(&[state(id)], &[HOST]), Ok(revision));
    let alive = cell.get(id).unwrap();
    assert_eq!((alive.dead, alive.state), (false, state(id)));
    cell.wait(8);
    let quiet = cell.get(id).unwrap();
    assert_eq!((quiet.dead, quiet.state.silence), (false, 8));
    cell.wait(1);
    let dead = cell.get(id).unwrap();
    assert_eq!(
        (dead.dead, dead.state.silence, dead.state.free),
        (true, 9, 600)
    );
    cell.beat(&[state(id)], &[]).unwrap();
    assert!(!cell.get(id).unwrap().dead);
    // Reports are no changes of the entry.
    assert_eq!(cell.revisions().0, revision);
    // After a restart, no device is dead at once.
    let again = open(&cell.db, &cell.passed);
    let listed = again.ask(ANYONE, ListOsds {}).unwrap();
    assert!(listed.osds.iter().all(|osd| !osd.dead));
}

#[test]
fn heartbeats_say_where_devices_are() {
    let cell = cell();
    let id = cell.create(device(0, "a")).unwrap();
    let revision = cell.revisions().0;
    assert_eq!(cell.beat(&[state(id)], &[HOST, OTHER]), Ok(revision + 1));
    let entry = cell.get(id).unwrap().entry;
    assert_eq!(entry.addresses[..], [HOST, OTHER]);
    // The administrator decides about the order.
    let mut turned = entry;
    turned.addresses = List::from_iter_cut([OTHER, HOST]);
    cell.set(turned, 0).unwrap();
    assert_eq!(cell.beat(&[state(id)], &[HOST, OTHER]), Ok(revision + 2));
    assert_eq!(cell.get(id).unwrap().entry.addresses[..], [OTHER, HOST]);
    // An unknown device is refused, but the reports about the others are stored.
    cell.wait(20);
    let both = [state(99), state(id), state(1)];
    assert_eq!(cell.beat(&both, &[HOST]), Err(AbortCode::ENOENT));
    let listed = cell.get(id).unwrap();
    assert_eq!(
        (listed.dead, &listed.entry.addresses[..]),
        (false, &[HOST][..])
    );
    assert_eq!(cell.get(1).unwrap().state.total, 0);
}

#[test]
fn policies_always_go_together() {
    let cell = cell();
    assert_eq!(cell.policy(0, "root", "~'*.root' => osd, stop;"), Ok(2));
    assert_eq!(cell.policy(9, "both", "use(2); => copies=2;"), Ok(9));
    assert_eq!(cell.policy(0, "last", "=> local;"), Ok(10));
    assert_eq!(
        cell.policies(),
        [
            (2, "root".into(), 1),
            (9, "both".into(), 2),
            (10, "last".into(), 3)
        ]
    );
    for (id, name, text, code) in [
        (0, "x", "=> osd", AbortCode::EINVAL),
        (0, "", "=> osd;", AbortCode::EINVAL),
        (0, "5", "=> osd;", AbortCode::EINVAL),
        (0, "a b", "=> osd;", AbortCode::EINVAL),
        (1, "x", "=> osd;", AbortCode::EINVAL),
        (0, "root", "=> osd;", AbortCode::EEXIST),
        (0, "x", "use(77);", AbortCode::ENOENT),
        (2, "root", "use(9);", AbortCode::ELOOP),
        (2, "root", "use(2);", AbortCode::ELOOP),
    ] {
        assert_eq!(cell.policy(id, name, text), Err(code), "{id} {name} {text}");
    }
    assert_eq!(cell.revisions().1, 3);
    assert_eq!(cell.policy(2, "renamed", "=> osd;"), Ok(2));
    assert_eq!(cell.policies()[0], (2, "renamed".into(), 4));
    let delete = |id| cell.ask(DeletePolicy { id }).map(drop);
    assert_eq!(delete(2), Err(AbortCode::EBUSY));
    assert_eq!(delete(3), Err(AbortCode::ENOENT));
    assert_eq!(delete(9), Ok(()));
    assert_eq!(delete(2), Ok(()));
    assert_eq!(delete(10), Ok(()));
    assert_eq!((cell.policies(), cell.revisions().1), (vec![], 7));
    // Volumes may still name the old policies.
    assert_eq!(cell.policy(0, "new", "=> osd;"), Ok(11));
    let again = open(&cell.db, &cell.passed);
    let kept = again.ask(ANYONE, ListPolicies {}).unwrap();
    assert_eq!((kept.revision, kept.policies[0].id), (8, 11));
}

#[test]
fn policies_are_bounded_together() {
    let cell = cell();
    let text = format!("# {}\n=> osd;", "x".repeat(60_000));
    let first_refused = (0..100).find(|n| cell.policy(0, &format!("p{n}"), &text).is_err());
    assert_eq!(first_refused, Some((4 << 20) / text.len()));
    assert_eq!(cell.policy(0, "more", &text), Err(AbortCode::ENOSPC));
}

#[test]
fn only_superusers_change_anything() {
    let cell = cell();
    let anna = Identity::User(cellar_wire::ViceId(7));
    for who in [ANYONE, anna, Identity::Stranger] {
        let ask = |osddb: &OsdDb| {
            let entry = device(0, "a");
            let policy = PolicyEntry::default();
            [
                osddb
                    .ask(
                        who,
                        CreateOsd {
                            entry: entry.clone(),
                        },
                    )
                    .map(drop),
                osddb.ask(who, SetOsd { entry, revision: 0 }).map(drop),
                osddb.ask(who, SetPolicy { policy }).map(drop),
                osddb.ask(who, DeletePolicy { id: 2 }).map(drop),
                osddb
                    .ask(
                        who,
                        Heartbeat {
                            states: List::from_iter_cut([state(2)]),
                            addresses: List::default(),
                            port: 0,
                        },
                    )
                    .map(drop),
            ]
        };
        for outcome in ask(&cell.osddb) {
            assert_eq!(outcome, Err(AbortCode::EACCES), "{who:?}");
        }
    }
    assert_eq!(cell.revisions(), (1, 0));
}

fn pin(vnode: u32, owner: i32, until: u64) -> Pin {
    let fid = Fid {
        volume: VolumeId(7),
        vnode: VnodeId(vnode),
        uniquifier: Uniquifier(1),
    };
    Pin {
        fid,
        owner: ViceId(owner),
        made: 900,
        until,
        reason: "for a course".try_into().unwrap(),
    }
}

#[test]
fn pins_are_kept_until_they_end_or_are_removed() {
    let cell = cell();
    let list = |known| {
        let reply = cell.osddb.ask(ANYONE, ListPins { known }).unwrap();
        (reply.revision, reply.pins.into_vec())
    };
    assert_eq!(list(u64::MAX), (0, vec![]));
    // The clock stands at 1000.
    let (lasting, short, other) = (pin(1, 101, 0), pin(1, 102, 1001), pin(3, 101, 5000));
    for pin in [&lasting, &short, &other] {
        cell.ask(SetPin { pin: pin.clone() }).unwrap();
    }
    let (revision, pins) = list(0);
    assert_eq!((revision, pins.len()), (3, 3));
    assert_eq!(list(revision), (3, vec![]), "nothing has changed");
    // A pin of the same owner is replaced. One that has ended is not listed, and cannot be removed.
    cell.ask(SetPin {
        pin: pin(1, 102, 1000),
    })
    .unwrap();
    assert_eq!(list(0).1, [lasting.clone(), other.clone()]);
    let delete = |pin: &Pin| DeletePin {
        fid: pin.fid,
        owner: pin.owner,
    };
    assert_eq!(cell.ask(delete(&short)).err(), Some(AbortCode::ENOENT));
    cell.ask(delete(&lasting)).unwrap();
    assert_eq!(cell.ask(delete(&lasting)).err(), Some(AbortCode::ENOENT));
    for refused in [
        cell.osddb.ask(ANYONE, SetPin { pin: pin(1, 1, 0) }).err(),
        cell.osddb.ask(ANYONE, delete(&other)).err(),
    ] {
        assert_eq!(refused, Some(AbortCode::EACCES));
    }
    // They are in the database.
    let again = open(&cell.db, &cell.passed);
    let reply = again.ask(ANYONE, ListPins { known: 0 }).unwrap();
    assert_eq!(reply.pins.into_vec(), [other]);
}

#[test]
fn an_owner_has_so_many_pins_and_no_more() {
    let cell = cell();
    for vnode in 0..PINS_OF_OWNER_MAX as u32 {
        cell.ask(SetPin {
            pin: pin(vnode, 101, 0),
        })
        .unwrap();
    }
    let more = pin(1 << 20, 101, 0);
    let refused = cell.ask(SetPin { pin: more }).err();
    assert_eq!(refused, Some(AbortCode::EAGAIN));
    cell.ask(SetPin {
        pin: pin(0, 101, 9000),
    })
    .unwrap();
    cell.ask(SetPin {
        pin: pin(1 << 20, 102, 0),
    })
    .unwrap();
}
