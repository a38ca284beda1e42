//! Tests of users and groups: creation, names, listings.

use super::*;

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
        cell.ask(ANYONE, ListMax {}).unwrap(),
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
    let names = cell.ask(ANYONE, asked).unwrap().names;
    let names: Vec<String> = names.iter().map(PrName::to_string).collect();
    assert_eq!(
        names,
        ["jane", "system:anyuser", "77", "-99", "-2147483648"]
    );
    assert!(
        cell.ask(
            ANYONE,
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
fn a_short_question_cannot_ask_for_an_endless_answer() {
    let cell = cell();
    let asked = |n| IDToName {
        ids: IdList::from_iter_cut((0..n).map(ViceId)),
    };
    let most = limits::LOOKUPS_MAX as i32;
    assert_eq!(
        cell.ask(ANYONE, asked(most)).unwrap().names.len(),
        limits::LOOKUPS_MAX
    );
    assert_eq!(cell.ask(ANYONE, asked(most + 1)), Err(AbortCode::PRTOOMANY));
}

#[test]
fn users_are_made_by_administrators() {
    let cell = cell();
    cell.user("jane");
    let refused =
        |who, name: &str, flag, owner| cell.new_entry(who, name, flag, owner).unwrap_err();
    assert_eq!(refused(ANYONE, "x", 0, 0), AbortCode::PRPERM);
    assert_eq!(refused(user(1), "x", 0, 0), AbortCode::PRPERM);
    assert_eq!(refused(ADMIN, "x", 0, 32766), AbortCode::PRPERM);
    assert_eq!(refused(ADMIN, "JANE", 0, 0), AbortCode::PREXIST);
    assert_eq!(refused(ADMIN, "a:b", 0, 0), AbortCode::PRBADNAM);
    assert_eq!(refused(ADMIN, "a\nb", 0, 0), AbortCode::PRBADNAM);
    assert_eq!(refused(ADMIN, "a\u{1b}[2Jb", 0, 0), AbortCode::PRBADNAM);
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
    assert_eq!(set_max(ANYONE, 0, 0), Err(AbortCode::PRPERM));
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
    assert_eq!(make(ANYONE, "anonymous:g", 0), Err(AbortCode::PRPERM));
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
    assert_eq!(make(ADMIN, "ghost:g", 999), Err(AbortCode::PRNOENT));
    let own = INewEntry {
        name: "own:g".try_into().unwrap(),
        id: ViceId(-300),
        owner: ViceId(-300),
    };
    assert_eq!(cell.ask(ADMIN, own).map(drop), Ok(()), "its own owner");
    assert_eq!(cell.owned(-300), ids([-300]));
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
        cell.ask(ANYONE, WhereIsIt { id: ViceId(id) })
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
