//! Tests of every PR procedure and refusal, and random sequences with a comparison of all lists.

use std::ops::Bound;

use cellar_celldb::Embedded;
use cellar_wire::pr::*;
use cellar_wire::{AfsTime, List};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

mod changes;
mod entries;
mod membership;
mod reserved_ids;
mod rules;
mod sequences;

const ADMIN: Identity = Identity::Superuser;
const ANYONE: Identity = Identity::ANONYMOUS;

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
        self.ask(ANYONE, NameToID { names }).unwrap().ids.into_vec()
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

    /// Checks that both ends of each membership agree, that counts are right, and that every id in
    /// a list exists. Names must refer to the right entries, and the model must agree with the
    /// tables.
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
