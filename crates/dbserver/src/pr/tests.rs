//! Every PR procedure and refusal, and random sequences with all lists compared.

use std::ops::Bound;

use cellar_celldb::Embedded;
use cellar_wire::List;
use cellar_wire::pr::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

const ADMIN: Identity = Identity::Superuser;
const NOBODY: Identity = Identity::ANONYMOUS;

struct Cell {
    _dir: tempfile::TempDir,
    db: Arc<dyn CellDb>,
    pr: Pr,
}

fn cell() -> Cell {
    let dir = tempfile::tempdir().unwrap();
    let db: Arc<dyn CellDb> = Arc::new(Embedded::open(&dir.path().join("db")).unwrap());
    let pr = Pr::open(Arc::clone(&db), Arc::new(|| AfsTime(7)), "example.org").unwrap();
    Cell { _dir: dir, db, pr }
}

fn user(id: i32) -> Identity {
    Identity::User(ViceId(id))
}

fn ids(ids: impl IntoIterator<Item = i32>) -> Vec<ViceId> {
    ids.into_iter().map(ViceId).collect()
}

impl Cell {
    fn ask<P: Answer<Pr>>(&self, who: Identity, arguments: P) -> Result<P::Reply, AbortCode> {
        self.pr.ask(who, arguments)
    }

    fn new_entry(
        &self,
        who: Identity,
        name: &str,
        flag: u32,
        owner: i32,
    ) -> Result<i32, AbortCode> {
        let name = name.try_into().unwrap();
        let asked = NewEntry {
            name,
            flag: flag as i32,
            owner: ViceId(owner),
        };
        self.ask(who, asked).map(|reply| reply.id.0)
    }

    fn user(&self, name: &str) -> i32 {
        self.new_entry(ADMIN, name, 0, 0).unwrap()
    }

    fn group(&self, name: &str, owner: i32) -> i32 {
        self.new_entry(ADMIN, name, PRGRP, owner).unwrap()
    }

    fn add(&self, who: Identity, uid: i32, gid: i32) -> Result<(), AbortCode> {
        self.ask(
            who,
            AddToGroup {
                uid: ViceId(uid),
                gid: ViceId(gid),
            },
        )
        .map(drop)
    }

    fn take(&self, who: Identity, id: i32, gid: i32) -> Result<(), AbortCode> {
        self.ask(
            who,
            RemoveFromGroup {
                id: ViceId(id),
                gid: ViceId(gid),
            },
        )
        .map(drop)
    }

    fn delete(&self, who: Identity, id: i32) -> Result<(), AbortCode> {
        self.ask(who, Delete { id: ViceId(id) }).map(drop)
    }

    fn entry(&self, id: i32) -> Result<PrEntry, AbortCode> {
        self.ask(ADMIN, ListEntry { id: ViceId(id) })
            .map(|reply| reply.entry)
    }

    fn name(&self, id: i32) -> String {
        self.entry(id).unwrap().name.to_string()
    }

    fn elements(&self, id: i32) -> Vec<ViceId> {
        self.ask(ADMIN, ListElements { id: ViceId(id) })
            .unwrap()
            .list
            .into_vec()
    }

    fn owned(&self, id: i32) -> Vec<ViceId> {
        self.ask(
            ADMIN,
            ListOwned {
                id: ViceId(id),
                lastp: 0,
            },
        )
        .unwrap()
        .list
        .into_vec()
    }

    fn cps(&self, id: i32) -> Vec<ViceId> {
        self.ask(ADMIN, GetCPS { id: ViceId(id) })
            .unwrap()
            .list
            .into_vec()
    }

    fn is_member(&self, uid: i32, gid: i32) -> Result<bool, AbortCode> {
        let asked = IsAMemberOf {
            uid: ViceId(uid),
            gid: ViceId(gid),
        };
        self.ask(ADMIN, asked).map(|reply| reply.flag != 0)
    }

    fn change(
        &self,
        who: Identity,
        id: i32,
        name: &str,
        owner: i32,
        newid: i32,
    ) -> Result<(), AbortCode> {
        let name = name.try_into().unwrap();
        let (id, owner, newid) = (ViceId(id), ViceId(owner), ViceId(newid));
        self.ask(
            who,
            ChangeEntry {
                id,
                name,
                owner,
                newid,
            },
        )
        .map(drop)
    }

    fn set_access(&self, who: Identity, id: i32, bits: u32) -> Result<(), AbortCode> {
        let fields = SetFieldsEntry {
            id: ViceId(id),
            mask: PR_SF_ALLBITS,
            flags: bits,
            ngroups: 0,
            nusers: 0,
            spare1: 0,
            spare2: 0,
        };
        self.ask(who, fields).map(drop)
    }

    fn set_quota(&self, who: Identity, id: i32, ngroups: i32) -> Result<(), AbortCode> {
        let fields = SetFieldsEntry {
            id: ViceId(id),
            mask: PR_SF_NGROUPS,
            flags: 0,
            ngroups,
            nusers: 0,
            spare1: 0,
            spare2: 0,
        };
        self.ask(who, fields).map(drop)
    }

    fn to_ids(&self, names: &[&str]) -> Vec<ViceId> {
        let names: Vec<PrName> = names
            .iter()
            .map(|name| (*name).try_into().unwrap())
            .collect();
        let names = NameList::try_from(names).unwrap();
        self.ask(NOBODY, NameToID { names }).unwrap().ids.into_vec()
    }

    fn list(&self, flag: i32) -> Vec<PrEntry> {
        let (mut listed, mut start_index) = (Vec::new(), 0);
        while start_index != -1 {
            let reply = self.ask(ADMIN, ListEntries { flag, start_index }).unwrap();
            assert!(reply.entries.len() <= limits::PAGE_ENTRIES);
            listed.extend(reply.entries);
            start_index = reply.next_index;
        }
        listed
    }

    /// Membership is known at both ends, counts are right, every id in a list exists, names lead
    /// where they should, and the model is what the tables say.
    fn check(&self) {
        let fresh = Pr::open(Arc::clone(&self.db), Arc::clone(&self.pr.clock), "x").unwrap();
        assert_eq!(fresh.list_all(), self.pr.list_all());
        let (model, used) = (fresh.replica.read(), self.pr.replica.read());
        assert_eq!(model.max(), used.max());
        let (mut names, mut memberships, mut owned) = (0, 0, 0);
        for (place, record) in model.from(0) {
            assert_eq!(record::place(record.id), place);
            names += 1;
            assert_eq!(used.id_of(&record.name), Some(record.id));
            for member in model.members(record.id) {
                memberships += 1;
                assert!(record.is_group() && used.get(*member).is_some());
                assert!(used.groups(*member).contains(&record.id));
            }
            for group in model.groups(record.id) {
                assert!(used.members(*group).contains(&record.id));
            }
            assert_eq!(model.elements(record), used.elements(record));
            assert_eq!(model.owned(record.id), used.owned(record.id));
            if record.is_group() {
                owned += 1;
                assert!(used.owned(record.owner).contains(&record.id));
            }
            let entry = model.to_entry(record);
            assert_eq!(entry.count as usize, model.elements(record).len());
        }
        let rows = |table| {
            let everything = (Bound::Unbounded, Bound::Unbounded);
            let rows = self
                .db
                .read(|view, _| view.scan(table, everything, usize::MAX));
            rows.map(|rows: cellar_celldb::Rows| rows.len()).unwrap()
        };
        assert_eq!(rows(tables::ENTRY), names);
        assert_eq!(rows(tables::NAME), names);
        assert_eq!(
            (rows(tables::MEMBER), rows(tables::GROUP)),
            (memberships, memberships)
        );
        assert_eq!(rows(tables::OWNED), owned);
    }
}

impl Pr {
    fn list_all(&self) -> Vec<Arc<record::Record>> {
        self.replica
            .read()
            .from(0)
            .map(|(_, record)| Arc::clone(record))
            .collect()
    }
}

#[test]
fn a_new_cell_has_the_entries_of_every_cell() {
    let cell = cell();
    let listed: Vec<_> = cell
        .list(3)
        .iter()
        .map(|e| (e.id.0, e.name.to_string()))
        .collect();
    let expected = [
        (32766, "anonymous"),
        (-101, "system:anyuser"),
        (-102, "system:authuser"),
        (-203, "system:ptsviewers"),
        (-204, "system:administrators"),
        (-205, "system:backup"),
    ];
    assert_eq!(listed, expected.map(|(id, name)| (id, name.to_owned())));
    let anonymous = cell.entry(32766).unwrap();
    assert_eq!(
        (anonymous.owner.0, anonymous.creator.0, anonymous.ngroups),
        (-204, -204, 20)
    );
    assert_eq!(anonymous.flags, PRP_USER_DEFAULT);
    assert_eq!(cell.entry(-204).unwrap().flags, PRP_GROUP_DEFAULT);
    assert_eq!(
        cell.ask(NOBODY, ListMax {}).unwrap(),
        ListMaxReply {
            uid: ViceId(0),
            gid: ViceId(-205)
        }
    );
    assert_eq!((cell.user("jane"), cell.user("john")), (1, 2));
    assert_eq!(
        (cell.group("jane:friends", 1), cell.group("system:x", -204)),
        (-206, -207)
    );
    assert_eq!(cell.owned(1), ids([-206]));
    cell.check();
}

#[test]
fn names_and_ids_map_to_each_other() {
    let cell = cell();
    cell.user("Jane");
    let asked = [
        "jane",
        "Jane",
        "nobody",
        "jane@EXAMPLE.ORG",
        "jane@example.org",
        "jane@other",
        "jane@",
    ];
    assert_eq!(cell.to_ids(&asked), ids([1, 32766, 32766, 1, 1, 32766, 1]));
    let asked = IDToName {
        ids: IdList::from_iter_cut(ids([1, -101, 77, -99, i32::MIN])),
    };
    let names = cell.ask(NOBODY, asked).unwrap().names;
    let names: Vec<String> = names.iter().map(PrName::to_string).collect();
    assert_eq!(
        names,
        ["jane", "system:anyuser", "77", "-99", "-2147483648"]
    );
    assert!(
        cell.ask(
            NOBODY,
            NameToID {
                names: NameList::new()
            }
        )
        .unwrap()
        .ids
        .is_empty()
    );
}

#[test]
fn users_are_made_by_administrators() {
    let cell = cell();
    cell.user("jane");
    let refused =
        |who, name: &str, flag, owner| cell.new_entry(who, name, flag, owner).unwrap_err();
    assert_eq!(refused(NOBODY, "x", 0, 0), AbortCode::PRPERM);
    assert_eq!(refused(user(1), "x", 0, 0), AbortCode::PRPERM);
    assert_eq!(refused(ADMIN, "x", 0, 32766), AbortCode::PRPERM);
    assert_eq!(refused(ADMIN, "JANE", 0, 0), AbortCode::PREXIST);
    assert_eq!(refused(ADMIN, "a:b", 0, 0), AbortCode::PRBADNAM);
    assert_eq!(refused(ADMIN, "a\nb", 0, 0), AbortCode::PRBADNAM);
    assert_eq!(refused(ADMIN, "", 0, 0), AbortCode::PRBADNAM);
    assert_eq!(refused(ADMIN, &"a".repeat(64), 0, 0), AbortCode::PRBADNAM);
    assert_eq!(refused(ADMIN, "x", 1, 0), AbortCode::PRBADARG);
    assert_eq!(refused(ADMIN, "x", PRFOREIGN, 0), AbortCode::PRPERM);
    let with_id = |who, name: &str, id, owner| {
        let (name, id, owner) = (name.try_into().unwrap(), ViceId(id), ViceId(owner));
        cell.ask(who, INewEntry { name, id, owner }).map(drop)
    };
    assert_eq!(with_id(ADMIN, "x", 0, 0), Err(AbortCode::PRPERM));
    assert_eq!(with_id(ADMIN, "x", 1, 0), Err(AbortCode::PRIDEXIST));
    assert_eq!(with_id(ADMIN, "x", 100, 0), Ok(()));
    assert_eq!(with_id(ADMIN, "system:y", -300, -204), Ok(()));
    assert_eq!(with_id(ADMIN, "z", i32::MIN, 0), Err(AbortCode::PRBADARG));
    assert_eq!(with_id(user(1), "jane:g", -500, 1), Err(AbortCode::PRPERM));
    assert_eq!(with_id(user(1), "jane:g", -301, 1), Ok(()));
    assert_eq!(cell.user("next"), 101);
    cell.check();
}

#[test]
fn ids_that_are_taken_are_skipped_for_a_while() {
    let cell = cell();
    for id in 1..=30 {
        let name = format!("u{id}").try_into().unwrap();
        cell.ask(
            ADMIN,
            INewEntry {
                name,
                id: ViceId(id),
                owner: ViceId(0),
            },
        )
        .unwrap();
    }
    let set_max = |who, id, gflag| {
        cell.ask(
            who,
            SetMax {
                id: ViceId(id),
                gflag,
            },
        )
        .map(drop)
    };
    assert_eq!(set_max(NOBODY, 0, 0), Err(AbortCode::PRPERM));
    assert_eq!(set_max(ADMIN, -5, 0), Err(AbortCode::PRBADARG));
    assert_eq!(set_max(ADMIN, 5, 2), Err(AbortCode::PRBADARG));
    assert_eq!(set_max(ADMIN, 0, 0), Ok(()));
    assert_eq!(cell.user("late"), 31);
    for id in 32..=60 {
        let name = format!("u{id}").try_into().unwrap();
        cell.ask(
            ADMIN,
            INewEntry {
                name,
                id: ViceId(id),
                owner: ViceId(0),
            },
        )
        .unwrap();
    }
    set_max(ADMIN, 1, 0).unwrap();
    assert_eq!(
        cell.new_entry(ADMIN, "never", 0, 0),
        Err(AbortCode::PRNOIDS)
    );
    set_max(ADMIN, i32::MAX, 0).unwrap();
    assert_eq!(
        cell.new_entry(ADMIN, "never", 0, 0),
        Err(AbortCode::PRNOIDS)
    );
    set_max(ADMIN, i32::MIN + 1, 2).unwrap();
    assert_eq!(
        cell.new_entry(ADMIN, "system:n", PRGRP, -204),
        Err(AbortCode::PRNOIDS)
    );
    cell.check();
}

#[test]
fn groups_are_named_after_their_owners() {
    let cell = cell();
    let (jane, john) = (cell.user("jane"), cell.user("john"));
    let make = |who, name: &str, owner| cell.new_entry(who, name, PRGRP, owner);
    assert_eq!(make(NOBODY, "anonymous:g", 0), Err(AbortCode::PRPERM));
    assert_eq!(make(user(jane), "jane:friends", 0), Ok(-206));
    assert_eq!(cell.entry(-206).unwrap().owner.0, jane);
    assert_eq!(
        make(user(jane), "john:friends", 0),
        Err(AbortCode::PRBADNAM)
    );
    assert_eq!(make(user(jane), "friends", 0), Err(AbortCode::PRBADNAM));
    assert_eq!(make(user(jane), "system:x", -204), Err(AbortCode::PRPERM));
    assert_eq!(make(user(jane), "jane:a:b", 0), Err(AbortCode::PRBADNAM));
    assert_eq!(make(user(jane), "jane:x", 99), Err(AbortCode::PRNOENT));
    assert_eq!(
        make(user(jane), "jane:x", -206),
        Err(AbortCode::PRGROUPEMPTY)
    );
    cell.add(user(jane), john, -206).unwrap();
    assert_eq!(make(user(john), "jane:sub", -206), Ok(-207));
    assert_eq!(make(ADMIN, "nocolon", jane), Ok(-208));
    assert_eq!(make(ADMIN, "ghost:g", 999), Ok(-209));
    assert_eq!(make(ADMIN, "JANE:Friends", jane), Err(AbortCode::PREXIST));
    assert_eq!(
        make(ADMIN, &format!("jane:{}", "a".repeat(59)), jane),
        Err(AbortCode::PRBADNAM)
    );
    cell.check();
}

#[test]
fn creating_groups_is_limited_but_for_administrators() {
    let cell = cell();
    let jane = cell.user("jane");
    cell.set_quota(ADMIN, jane, 2).unwrap();
    assert_eq!(cell.set_quota(user(jane), jane, 9), Err(AbortCode::PRPERM));
    assert_eq!(cell.set_quota(ADMIN, jane, -1), Err(AbortCode::PRBADARG));
    let make = |n| cell.new_entry(user(jane), &format!("jane:{n}"), PRGRP, 0);
    let first = make(1).unwrap();
    make(2).unwrap();
    assert_eq!(make(3), Err(AbortCode::PRNOMORE));
    assert_eq!(cell.entry(jane).unwrap().ngroups, 0);
    cell.delete(user(jane), first).unwrap();
    assert_eq!(cell.entry(jane).unwrap().ngroups, 1);
    make(3).unwrap();
    cell.add(ADMIN, jane, -204).unwrap();
    make(4).unwrap();
    assert_eq!(cell.entry(jane).unwrap().ngroups, 0, "not charged");
    cell.check();
}

#[test]
fn membership_is_changed_by_who_may() {
    let cell = cell();
    let (jane, john, joe) = (cell.user("jane"), cell.user("john"), cell.user("joe"));
    let group = cell.group("jane:g", jane);
    assert_eq!(cell.add(ADMIN, joe, -101), Err(AbortCode::PRPERM));
    assert_eq!(cell.add(ADMIN, joe, -102), Err(AbortCode::PRPERM));
    assert_eq!(cell.add(ADMIN, 32766, group), Err(AbortCode::PRPERM));
    assert_eq!(cell.add(ADMIN, 99, group), Err(AbortCode::PRNOENT));
    assert_eq!(cell.add(ADMIN, joe, -99), Err(AbortCode::PRNOENT));
    assert_eq!(cell.add(ADMIN, joe, john), Err(AbortCode::PRNOTGROUP));
    assert_eq!(
        cell.add(ADMIN, group, group),
        Err(AbortCode::PRINCONSISTENT)
    );
    assert_eq!(cell.add(NOBODY, joe, group), Err(AbortCode::PRPERM));
    assert_eq!(cell.add(user(john), joe, group), Err(AbortCode::PRPERM));
    assert_eq!(cell.add(user(jane), john, group), Ok(()), "the owner");
    assert_eq!(cell.add(user(jane), john, group), Err(AbortCode::PRIDEXIST));
    assert_eq!(cell.add(user(john), joe, group), Err(AbortCode::PRPERM));
    cell.set_access(user(jane), group, PRP_ADD_MEM).unwrap();
    assert_eq!(cell.add(user(john), joe, group), Ok(()), "a member");
    assert_eq!(
        (cell.elements(group), cell.elements(joe)),
        (ids([john, joe]), ids([group]))
    );
    assert_eq!(cell.entry(group).unwrap().count, 2);
    assert_eq!(cell.take(user(john), joe, group), Err(AbortCode::PRPERM));
    cell.set_access(user(jane), group, PRP_REMOVE_MEM | PRP_ADD_ANY)
        .unwrap();
    assert_eq!(cell.take(user(john), joe, group), Ok(()));
    assert_eq!(cell.take(user(john), joe, group), Err(AbortCode::PRNOENT));
    assert_eq!(cell.take(ADMIN, joe, john), Err(AbortCode::PRNOTGROUP));
    assert_eq!(cell.take(ADMIN, 99, group), Err(AbortCode::PRNOENT));
    assert_eq!(
        cell.take(ADMIN, group, group),
        Err(AbortCode::PRINCONSISTENT)
    );
    assert_eq!(
        cell.add(user(joe), joe, group),
        Ok(()),
        "anybody who says who they are"
    );
    assert_eq!(cell.add(NOBODY, jane, group), Err(AbortCode::PRPERM));
    cell.check();
}

#[test]
fn a_group_takes_5000_members() {
    let cell = cell();
    let group = cell.group("system:all", -204);
    let fill = |transaction: &mut cellar_celldb::Transaction<'_>| {
        let mut tables = tables::Tables(transaction);
        let template = tables.find(ViceId::ANONYMOUS)?;
        for id in (1..=5000).map(ViceId) {
            let name = PrName::new(format!("u{id}").as_bytes()).unwrap();
            tables.insert(&record::Record {
                id,
                name,
                ..template.clone()
            })?;
        }
        Ok(())
    };
    cell.pr.replica.write(fill).unwrap();
    let add = |transaction: &mut cellar_celldb::Transaction<'_>| {
        use cellar_celldb::Transaction as T;
        let direct = |t: &mut T<'_>, id| {
            t.put(tables::MEMBER, tables::pair(ViceId(group), ViceId(id)), "");
            t.put(tables::GROUP, tables::pair(ViceId(id), ViceId(group)), "");
        };
        (2..=5000).for_each(|id| direct(transaction, id));
        Ok(())
    };
    cell.pr.replica.write(add).unwrap();
    assert_eq!(cell.add(ADMIN, 1, group), Ok(()));
    assert_eq!(cell.add(ADMIN, -101, group), Err(AbortCode::PRTOOMANY));
    assert_eq!(cell.elements(group).len(), 5000);
    assert_eq!(cell.list(1).len(), 5001);
    assert_eq!(cell.delete(ADMIN, group), Ok(()));
    assert_eq!(cell.elements(7), []);
    cell.check();
}

#[test]
fn a_cps_has_groups_and_the_groups_around_them() {
    let cell = cell();
    let jane = cell.user("jane");
    let groups: Vec<i32> = (0..8)
        .map(|n| cell.group(&format!("jane:{n}"), jane))
        .collect();
    cell.add(ADMIN, jane, groups[0]).unwrap();
    for pair in groups.windows(2) {
        cell.add(ADMIN, pair[0], pair[1]).unwrap();
    }
    // One direct, and five steps up.
    let mut expected = ids(groups[..6].iter().copied().chain([jane, -101, -102]));
    expected.sort();
    assert_eq!(cell.cps(jane), expected);
    assert_eq!(cell.cps(32766), ids([-101, 32766]));
    assert_eq!(cell.is_member(jane, groups[4]), Ok(true));
    assert_eq!(
        cell.is_member(jane, groups[5]),
        Ok(false),
        "five steps in all"
    );
    assert_eq!(cell.is_member(jane, -101), Ok(true));
    assert_eq!(cell.is_member(32766, -102), Ok(false));
    assert_eq!(cell.is_member(jane, 32766), Err(AbortCode::PRBADARG));
    assert_eq!(cell.is_member(99, groups[0]), Err(AbortCode::PRNOENT));
    let above = |id| {
        cell.ask(ADMIN, ListSuperGroups { id: ViceId(id) })
            .unwrap()
            .list
            .into_vec()
    };
    assert_eq!(above(groups[0]), ids([groups[1]]));
    assert_eq!(above(jane), []);
    // A circle ends.
    cell.add(ADMIN, groups[7], groups[0]).unwrap();
    assert!(cell.cps(jane).len() >= expected.len());
    // Everybody is in a group that system:authuser is in.
    let open = cell.group("jane:open", jane);
    cell.add(ADMIN, -102, open).unwrap();
    assert_eq!(
        (cell.is_member(jane, open), cell.is_member(32766, open)),
        (Ok(true), Ok(false))
    );
    assert_eq!(
        cell.ask(NOBODY, GetCPS { id: ViceId(9) }),
        Err(AbortCode::PRNOENT)
    );
    cell.check();
}

#[test]
fn hosts_are_in_groups_by_their_addresses() {
    let cell = cell();
    let jane = cell.user("jane");
    let group = |n: i32| cell.group(&format!("jane:{n}"), jane);
    let groups = [group(0), group(1), group(2)];
    for (name, group) in ["10.1.2.3", "10.1.0.0", "10.0.0.0"].iter().zip(groups) {
        let host = cell.user(name);
        cell.add(ADMIN, host, group).unwrap();
    }
    let cps = |host: u32| {
        cell.ask(NOBODY, GetHostCPS { host })
            .unwrap()
            .list
            .into_vec()
    };
    let sorted = |mut list: Vec<ViceId>| {
        list.sort();
        list
    };
    assert_eq!(cps(0x0a010203), sorted(ids(groups)));
    assert_eq!(cps(0x0a010204), sorted(ids([groups[1], groups[2]])));
    assert_eq!(cps(0x0a020204), ids([groups[2]]));
    assert_eq!(cps(0x0b020204), []);
    assert_eq!(cps(0), []);
    let both = |id, host| {
        let asked = GetCPS2 {
            id: ViceId(id),
            host,
        };
        cell.ask(ADMIN, asked).map(|reply| reply.list.into_vec())
    };
    assert_eq!(
        both(jane, 0x0a020204),
        Ok(sorted(ids([groups[2], jane, -101, -102])))
    );
    assert_eq!(both(i32::MIN, 0x0a020204), Ok(ids([groups[2]])));
    assert_eq!(both(99, 0), Err(AbortCode::PRNOENT));
    let directory: &dyn Directory = &cell.pr;
    assert_eq!(directory.host_cps(0x0a020204), ids([groups[2]]));
}

#[test]
fn reading_is_judged_by_the_flags() {
    let cell = cell();
    let (jane, john, joe) = (cell.user("jane"), cell.user("john"), cell.user("joe"));
    let group = cell.group("jane:g", jane);
    cell.add(ADMIN, john, group).unwrap();
    let (jane_id, john_id, joe_id) = (user(jane), user(john), user(joe));
    let status = |who, id| cell.ask(who, ListEntry { id: ViceId(id) }).is_ok();
    let members = |who, id| cell.ask(who, ListElements { id: ViceId(id) }).is_ok();
    let cps = |who, id| cell.ask(who, GetCPS { id: ViceId(id) }).is_ok();
    let owned = |who, id| {
        cell.ask(
            who,
            ListOwned {
                id: ViceId(id),
                lastp: 0,
            },
        )
        .is_ok()
    };
    // Defaults: status of everything, members of groups.
    assert!(status(NOBODY, jane) && status(NOBODY, group) && members(NOBODY, group));
    assert!(!members(NOBODY, jane) && !cps(NOBODY, jane) && !owned(NOBODY, jane));
    assert!(members(jane_id, jane) && cps(jane_id, jane) && owned(jane_id, jane));
    assert!(!members(joe_id, jane));
    // A group for its members only.
    cell.set_access(jane_id, group, PRP_STATUS_MEM | PRP_MEMBER_MEM)
        .unwrap();
    assert!(!status(NOBODY, group) && !members(joe_id, group));
    assert!(status(john_id, group) && members(john_id, group) && status(jane_id, group));
    assert!(
        owned(john_id, group) && !owned(joe_id, group),
        "any member may list what it owns"
    );
    assert_eq!(
        cell.entry(group).unwrap().flags,
        PRP_STATUS_MEM | PRP_MEMBER_MEM
    );
    // Viewers see everything but change nothing.
    cell.add(ADMIN, joe, -203).unwrap();
    assert!(status(joe_id, group) && members(joe_id, jane) && owned(joe_id, jane));
    assert_eq!(cell.add(joe_id, joe, group), Err(AbortCode::PRPERM));
    assert_eq!(cell.set_access(joe_id, group, 0), Err(AbortCode::PRPERM));
    // A group with no access bits at all shows as the defaults, but gives nothing.
    cell.set_access(jane_id, group, 0).unwrap();
    assert!(!status(john_id, group) && status(jane_id, group));
    assert_eq!(cell.entry(group).unwrap().flags, PRP_GROUP_DEFAULT);
    // Ownership and administration.
    cell.set_access(ADMIN, jane, PRP_OWNED_ANY).unwrap();
    assert!(owned(NOBODY, jane));
    assert!(!owned(john_id, 0) && owned(ADMIN, 0));
    let all = |who| {
        cell.ask(
            who,
            ListEntries {
                flag: 3,
                start_index: 0,
            },
        )
        .is_ok()
    };
    assert!(!all(NOBODY) && !all(jane_id) && all(ADMIN));
    cell.add(ADMIN, jane, -204).unwrap();
    assert!(all(jane_id));
    // Fixed entries and arguments.
    for id in [-101, -102, 32766] {
        assert_eq!(cell.set_access(ADMIN, id, 0), Err(AbortCode::PRPERM));
    }
    assert_eq!(cell.set_access(ADMIN, 99, 0), Err(AbortCode::PRNOENT));
    let nothing = SetFieldsEntry {
        id: ViceId(99),
        mask: 0,
        flags: 0,
        ngroups: 0,
        nusers: 0,
        spare1: 0,
        spare2: 0,
    };
    assert!(cell.ask(NOBODY, nothing).is_ok());
    cell.check();
}

#[test]
fn writes_are_refused_to_who_does_not_say_who_they_are() {
    let cell = cell();
    let jane = cell.user("jane");
    let group = cell.group("jane:g", jane);
    cell.set_access(ADMIN, group, 0xff).unwrap();
    let (id, gid, uid) = (ViceId(jane), ViceId(group), ViceId(jane));
    let name: PrNameArgument = "x".try_into().unwrap();
    macro_rules! refused {
        ($($arguments:expr),* $(,)?) => {
            $( assert_eq!(cell.ask(NOBODY, $arguments).map(drop), Err(AbortCode::PRPERM)); )*
        };
    }
    refused!(
        NewEntry {
            name: name.clone(),
            flag: 0,
            owner: id
        },
        NewEntry {
            name: name.clone(),
            flag: 2,
            owner: id
        },
        INewEntry {
            name: name.clone(),
            id: ViceId(9),
            owner: id
        },
        AddToGroup { uid, gid },
        RemoveFromGroup { id, gid },
        Delete { id },
        ChangeEntry {
            id,
            name: name.clone(),
            owner: ViceId(0),
            newid: ViceId(0)
        },
        UpdateEntry {
            id,
            name,
            update: PrUpdateEntry::default()
        },
        SetMax { id, gflag: 0 },
        DumpEntry {
            position: record::place(id) as i32
        },
        ListEntries {
            flag: 1,
            start_index: 0
        },
    );
    assert_eq!(cell.set_access(NOBODY, group, 0), Err(AbortCode::PRPERM));
    cell.check();
}

#[test]
fn deleting_leaves_no_trace_but_orphans() {
    let cell = cell();
    let (jane, john) = (cell.user("jane"), cell.user("john"));
    let group = cell.group("jane:g", jane);
    let sub = cell.group("jane:sub", group);
    cell.add(ADMIN, john, group).unwrap();
    cell.add(ADMIN, group, sub).unwrap();
    for id in [-204, -101, -102, 32766] {
        assert_eq!(cell.delete(ADMIN, id), Err(AbortCode::PRPERM));
    }
    assert_eq!(cell.delete(ADMIN, 99), Err(AbortCode::PRNOENT));
    assert_eq!(
        cell.delete(user(jane), jane),
        Err(AbortCode::PRPERM),
        "users are administrators'"
    );
    assert_eq!(cell.delete(user(jane), sub), Err(AbortCode::PRPERM));
    assert_eq!(cell.delete(user(jane), group), Ok(()));
    assert_eq!(cell.elements(john), []);
    assert_eq!(cell.elements(sub), []);
    assert_eq!(
        (cell.owned(0), cell.entry(sub).unwrap().owner.0),
        (ids([sub]), 0)
    );
    assert_eq!(cell.delete(ADMIN, jane), Ok(()));
    assert_eq!(cell.to_ids(&["jane", "jane:g"]), ids([32766, 32766]));
    assert_eq!(cell.delete(ADMIN, sub), Ok(()));
    assert_eq!(cell.owned(0), []);
    assert_eq!(cell.user("jane"), 3, "ids are not used again by themselves");
    let own = cell.group("ghost:own", 999);
    assert_eq!(cell.change(ADMIN, own, "", own, 0), Ok(()));
    assert_eq!(cell.delete(ADMIN, own), Ok(()), "a group that owns itself");
    cell.check();
}

#[test]
fn names_owners_and_ids_are_changed() {
    let cell = cell();
    let (jane, john) = (cell.user("jane"), cell.user("john"));
    let group = cell.group("jane:g", jane);
    let (jane_id, john_id) = (user(jane), user(john));
    assert_eq!(cell.change(ADMIN, -204, "x", 0, 0), Err(AbortCode::PRPERM));
    assert_eq!(cell.change(ADMIN, 99, "x", 0, 0), Err(AbortCode::PRNOENT));
    assert_eq!(
        cell.change(john_id, group, "jane:h", 0, 0),
        Err(AbortCode::PRPERM)
    );
    assert_eq!(
        cell.change(jane_id, group, "john:h", 0, 0),
        Err(AbortCode::PRBADNAM)
    );
    assert_eq!(cell.change(jane_id, group, "JANE:h", 0, 0), Ok(()));
    assert_eq!(cell.name(group), "jane:h");
    assert_eq!(cell.change(jane_id, group, "", john, 0), Ok(()));
    assert_eq!(
        (cell.name(group), cell.owned(john), cell.owned(jane)),
        ("john:h".to_owned(), ids([group]), ids([]))
    );
    assert_eq!(
        cell.change(jane_id, group, "", jane, 0),
        Err(AbortCode::PRPERM)
    );
    assert_eq!(
        cell.change(ADMIN, jane, "", john, 0),
        Err(AbortCode::PRPERM),
        "users have none"
    );
    assert_eq!(
        cell.change(ADMIN, jane, "john", 0, 0),
        Err(AbortCode::PREXIST)
    );
    assert_eq!(
        cell.change(ADMIN, jane, "a:b", 0, 0),
        Err(AbortCode::PRBADNAM)
    );
    assert_eq!(
        cell.change(ADMIN, jane, "jane@other", 0, 0),
        Err(AbortCode::PRPERM)
    );
    assert_eq!(cell.change(ADMIN, john, "Jack", 0, 0), Ok(()));
    assert_eq!(cell.name(group), "john:h", "until it is changed itself");
    assert_eq!(cell.change(ADMIN, group, "jack:h", 0, 0), Ok(()));

    cell.add(ADMIN, john, group).unwrap();
    let around = cell.group("jack:around", john);
    cell.add(ADMIN, group, around).unwrap();
    assert_eq!(
        cell.change(jane_id, john, "", 0, 50),
        Err(AbortCode::PRPERM)
    );
    assert_eq!(
        cell.change(ADMIN, john, "", 0, jane),
        Err(AbortCode::PRIDEXIST)
    );
    assert_eq!(cell.change(ADMIN, john, "", 0, -50), Err(AbortCode::PRPERM));
    assert_eq!(cell.change(ADMIN, john, "", 0, 50), Ok(()));
    assert_eq!(
        (cell.elements(50), cell.elements(group)),
        (ids([group]), ids([50]))
    );
    assert_eq!(
        (cell.owned(50).len(), cell.entry(group).unwrap().owner.0),
        (2, 50)
    );
    assert_eq!(cell.change(ADMIN, group, "", 0, -900), Ok(()));
    assert_eq!(
        (cell.elements(-900), cell.elements(around)),
        (ids([50]), ids([-900]))
    );
    assert_eq!(cell.user("next"), 51);
    cell.delete(ADMIN, 50).unwrap();
    assert_eq!(
        cell.change(jane_id, -900, "", jane, 0),
        Err(AbortCode::PRPERM),
        "an orphan"
    );
    assert_eq!(cell.change(ADMIN, -900, "", jane, 0), Ok(()));
    assert_eq!(cell.name(-900), "jane:h");
    cell.check();
}

#[test]
fn users_of_other_cells_belong_to_their_group() {
    let cell = cell();
    assert_eq!(
        cell.new_entry(ADMIN, "bob@other.cell", 0, 0),
        Err(AbortCode::PRBADNAM)
    );
    assert_eq!(
        cell.new_entry(ADMIN, "system:any@other.cell", PRGRP, -204),
        Err(AbortCode::PRBADNAM)
    );
    let group = cell.group("system:authuser@other.cell", -204);
    let bob = cell.user("bob@other.cell");
    assert_eq!(bob, 1 << 16 | (group & 0xffff));
    assert_eq!(
        (cell.elements(group), cell.elements(bob)),
        (ids([bob]), ids([group]))
    );
    let entry = cell.entry(group).unwrap();
    assert_eq!((entry.ngroups, entry.nusers, entry.count), (29, 1, 1));
    let mut expected = ids([group, -101, bob]);
    expected.sort();
    assert_eq!(cell.cps(bob), expected, "not system:authuser of this cell");
    assert_eq!(cell.to_ids(&["bob@other.cell"]), ids([bob]));
    assert_eq!(cell.delete(ADMIN, group), Err(AbortCode::PRBADARG));
    assert_eq!(
        cell.change(ADMIN, group, "system:x", 0, 0),
        Err(AbortCode::PRPERM)
    );
    assert_eq!(cell.change(ADMIN, bob, "rob@other.cell", 0, 0), Ok(()));
    assert_eq!(
        cell.change(ADMIN, bob, "rob@third.cell", 0, 0),
        Err(AbortCode::PRPERM)
    );
    for n in 2..=30 {
        cell.user(&format!("u{n}@other.cell"));
    }
    assert_eq!(
        cell.new_entry(ADMIN, "u31@other.cell", 0, 0),
        Err(AbortCode::PRNOMORE)
    );
    cell.delete(ADMIN, bob).unwrap();
    let next = cell.user("u31@other.cell");
    assert_eq!(next >> 16, 31);
    let name = "x@other.cell".try_into().unwrap();
    let wrong = INewEntry {
        name,
        id: ViceId(5),
        owner: ViceId(0),
    };
    assert_eq!(cell.ask(ADMIN, wrong).map(drop), Err(AbortCode::PRBADARG));
    assert_eq!(cell.ask(ADMIN, ListMax {}).unwrap().uid.0, 0);
    cell.check();
}

#[test]
fn entries_are_listed_in_pages() {
    let cell = cell();
    let fill = |transaction: &mut cellar_celldb::Transaction<'_>| {
        let mut tables = tables::Tables(transaction);
        let template = tables.find(ViceId::ANONYMOUS)?;
        for n in 1..=1100 {
            let name = PrName::new(format!("u{n}").as_bytes()).unwrap();
            tables.insert(&record::Record {
                id: ViceId(n * 2),
                name,
                ..template.clone()
            })?;
        }
        Ok(())
    };
    cell.pr.replica.write(fill).unwrap();
    assert_eq!(
        (cell.list(1).len(), cell.list(2).len(), cell.list(3).len()),
        (1101, 5, 1106)
    );
    assert_eq!(cell.list(0), []);
    let odd = cell
        .ask(
            ADMIN,
            ListEntries {
                flag: 3,
                start_index: i32::MIN,
            },
        )
        .unwrap();
    assert_eq!(odd.entries.len(), 5);
    cell.check();
}

#[test]
fn entries_are_dumped_by_their_position() {
    let cell = cell();
    let jane = cell.user("jane");
    let group = cell.group("jane:g", jane);
    cell.add(ADMIN, jane, group).unwrap();
    let position = |id| {
        cell.ask(NOBODY, WhereIsIt { id: ViceId(id) })
            .map(|r| r.position)
    };
    let dump = |position| {
        cell.ask(ADMIN, DumpEntry { position })
            .map(|reply| reply.entry)
    };
    assert_eq!(position(99), Err(AbortCode::PRNOENT));
    let entry = dump(position(group).unwrap()).unwrap();
    assert_eq!(
        (entry.id.0, entry.entries[0], entry.count),
        (group, jane, 1)
    );
    let entry = dump(position(jane).unwrap()).unwrap();
    assert_eq!(Ok(entry.owned), position(group));
    assert_eq!(entry.name.to_string(), "jane");
    assert_eq!(dump(0), Err(AbortCode::PRDBADDR));
    let update = |id, mask| {
        let update = PrUpdateEntry {
            mask,
            ..PrUpdateEntry::default()
        };
        let name = "jane".try_into().unwrap();
        cell.ask(
            ADMIN,
            UpdateEntry {
                id: ViceId(id),
                name,
                update,
            },
        )
        .map(drop)
    };
    assert_eq!(update(0, PRUPDATE_NAMEHASH), Ok(()));
    assert_eq!(update(jane, PRUPDATE_IDHASH), Ok(()));
    assert_eq!(update(99, 0), Err(AbortCode::PRNOENT));
    assert_eq!(update(-204, 0), Err(AbortCode::PRPERM));
    cell.check();
}

#[test]
fn the_directory_says_when_it_may_answer_otherwise() {
    let cell = cell();
    let jane = cell.user("jane");
    let directory: &dyn Directory = &cell.pr;
    assert_eq!(directory.id(b"jane"), Some(ViceId(jane)));
    assert_eq!(directory.id(b"nobody"), None);
    assert_eq!(directory.id(&[b'x'; 70]), None);
    assert_eq!(directory.name(ViceId(77)), None);
    assert!(
        directory
            .name(ViceId(jane))
            .is_some_and(|name| name == *"jane")
    );
    assert_eq!(directory.cps(ViceId(99)), None);
    let (version, before) = (directory.version(), directory.cps(ViceId(jane)).unwrap());
    cell.to_ids(&["jane"]);
    assert_eq!(directory.version(), version);
    let group = cell.group("jane:g", jane);
    cell.add(ADMIN, jane, group).unwrap();
    assert_ne!(directory.version(), version);
    assert_eq!(directory.cps(ViceId(jane)).unwrap().len(), before.len() + 1);
}

/// Random changes by random callers: whatever is allowed, the lists stay in step.
#[test]
fn random_sequences_keep_the_lists_in_step() {
    for seed in 0..5 {
        let cell = cell();
        let mut random = StdRng::seed_from_u64(seed);
        let mut known = vec![32766, -204, -203];
        let mut done = 0;
        for step in 0..220 {
            let pick = |r: &mut StdRng, known: &[i32]| known[r.random_range(0..known.len())];
            let (a, b) = (pick(&mut random, &known), pick(&mut random, &known));
            let who = match random.random_range(0..4) {
                0 => user(pick(&mut random, &known)),
                _ => ADMIN,
            };
            let outcome = match random.random_range(0..12) {
                0 | 1 => cell
                    .new_entry(who, &format!("u{step}"), 0, 0)
                    .map(|id| known.push(id)),
                2 | 3 => {
                    let owner = cell.entry(a).map_or("x".to_owned(), |e| e.name.to_string());
                    let prefix = owner.split(':').next().unwrap_or_default();
                    let made = cell.new_entry(who, &format!("{prefix}:g{step}"), PRGRP, a);
                    made.map(|id| known.push(id))
                }
                4..8 => cell.add(who, a, b),
                8 => cell.take(who, a, b),
                9 => cell.delete(who, a),
                10 => {
                    let id = if a > 0 { 1000 + step } else { -1000 - step };
                    cell.change(who, a, "", 0, id).map(|()| known.push(id))
                }
                _ => cell.change(who, a, "", b, 0),
            };
            done += u32::from(outcome.is_ok());
        }
        assert!(done > 40, "seed {seed}: {done} changes");
        cell.check();
        for entry in cell.list(3) {
            let cps = cell.cps(entry.id.0);
            assert!(cps.is_sorted() && cps.contains(&ViceId::ANYUSER) && cps.contains(&entry.id));
            for group in cps.iter().filter(|id| id.0 < 0 && cell.entry(id.0).is_ok()) {
                let _known = cell.is_member(entry.id.0, group.0).unwrap();
            }
        }
    }
}

#[test]
fn everything_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let db: Arc<dyn CellDb> = Arc::new(Embedded::open(&dir.path().join("db")).unwrap());
        Pr::open(db, Arc::new(|| AfsTime(7)), "example.org").unwrap()
    };
    let name: PrNameArgument = "jane".try_into().unwrap();
    open()
        .ask(
            ADMIN,
            NewEntry {
                name,
                flag: 0,
                owner: ViceId(0),
            },
        )
        .unwrap();
    let pr = open();
    assert_eq!(pr.id(b"jane"), Some(ViceId(1)));
    assert_eq!(pr.ask(NOBODY, ListMax {}).unwrap().uid, ViceId(1));
    let names = List::from_iter_cut([PrName::try_from("system:administrators").unwrap()]);
    assert_eq!(
        pr.ask(NOBODY, NameToID { names }).unwrap().ids.into_vec(),
        ids([-204])
    );
}
