//! Ids that a server reserves after conflicts.

use cellar_celldb::{Error as DatabaseError, Revision, Table, Transaction, Verdict, View, Watch};

use super::*;

/// A database whose transactions run three times, as after conflicts with other servers.
struct Conflicting(Arc<dyn CellDb>);

impl CellDb for Conflicting {
    fn revision(&self) -> Revision {
        self.0.revision()
    }

    fn snapshot(&self) -> Result<(Box<dyn View>, Revision), DatabaseError> {
        self.0.snapshot()
    }

    fn transact(
        &self,
        body: &mut dyn FnMut(&mut Transaction<'_>) -> Verdict,
    ) -> Result<Revision, DatabaseError> {
        for _ in 0..2 {
            self.0.transact(&mut |transaction| {
                body(transaction);
                Verdict::Cancel
            })?;
        }
        self.0.transact(body)
    }

    fn watch(&self, tables: &[Table], from: Revision) -> Watch {
        self.0.watch(tables, from)
    }
}

/// A server of the same database that has conflicts.
fn conflicting(of: &Cell) -> Cell {
    let db: Arc<dyn CellDb> = Arc::new(Conflicting(Arc::clone(&of.db)));
    let pr = Pr::open(Arc::clone(&db), Arc::new(|| AfsTime(7)), "example.org").unwrap();
    let _dir = tempfile::tempdir().unwrap();
    Cell { _dir, db, pr }
}

fn create_with_id(cell: &Cell, id: i32) {
    let explicit = INewEntry {
        name: "explicit".try_into().unwrap(),
        id: ViceId(id),
        owner: ViceId(0),
    };
    cell.ask(ADMIN, explicit).unwrap();
}

#[test]
fn without_conflicts_ids_follow_each_other_at_all_servers() {
    let cell = cell();
    let other = Pr::open(Arc::clone(&cell.db), Arc::new(|| AfsTime(7)), "example.org").unwrap();
    assert_eq!(cell.user("a"), 1);
    let name = "b".try_into().unwrap();
    let (flag, owner) = (0, ViceId(0));
    let b = other.ask(ADMIN, NewEntry { name, flag, owner }).unwrap();
    assert_eq!(b.id.0, 2);
    assert_eq!(cell.user("c"), 3);
}

#[test]
fn ids_are_reserved_after_conflicts_and_used_by_later_creations() {
    let cell = cell();
    let busy = conflicting(&cell);
    assert_eq!(busy.user("a"), 1);
    assert_eq!(cell.user("other"), 18, "16 ids are reserved");
    for id in 2..=17 {
        assert_eq!(busy.user(&format!("u{id}")), id);
    }
    assert_eq!(busy.user("b"), 19);
    assert_eq!(cell.user("other2"), 36);
    let group = busy.group("system:g", 0);
    assert_eq!(busy.group("system:h", 0), group - 1);
    assert_eq!(cell.group("system:i", 0), group - 17);
}

#[test]
fn a_creation_that_fails_or_finds_its_id_used_takes_no_other_entrys_id() {
    let cell = cell();
    let busy = conflicting(&cell);
    assert_eq!(busy.user("a"), 1);
    assert_eq!(
        busy.new_entry(ADMIN, "a", 0, 0),
        Err(AbortCode::PREXIST),
        "the name is in use"
    );
    create_with_id(&cell, 3);
    cell.group("system:authuser@other.org", 0);
    let foreign = busy.user("jane@other.org");
    assert!(foreign > 0xffff, "made from the id of the group");
    assert_eq!(busy.user("b"), 2, "these creations have left their id");
    assert_eq!(busy.user("c"), 18, "3 is in use");
    assert_eq!(busy.user("d"), 4);
}

#[test]
fn a_last_id_that_a_call_sets_ends_reservations() {
    let cell = cell();
    let busy = conflicting(&cell);
    assert_eq!(busy.user("a"), 1);
    let id = ViceId(500);
    cell.ask(ADMIN, SetMax { id, gflag: 0 }).unwrap();
    assert_eq!(busy.user("b"), 501);
    create_with_id(&cell, 5000);
    assert_eq!(busy.user("c"), 5001);
}
