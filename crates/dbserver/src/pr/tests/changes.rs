//! Tests of access, deletion, and changes of names, owners and ids.

use super::*;

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
    // Defaults: everyone sees the status of all entries, and the members of groups.
    assert!(status(ANYONE, jane) && status(ANYONE, group) && members(ANYONE, group));
    assert!(!members(ANYONE, jane) && !cps(ANYONE, jane) && !owned(ANYONE, jane));
    assert!(members(jane_id, jane) && cps(jane_id, jane) && owned(jane_id, jane));
    assert!(!members(joe_id, jane));
    // A group that only its members may see.
    cell.set_access(jane_id, group, PRP_STATUS_MEM | PRP_MEMBER_MEM)
        .unwrap();
    assert!(!status(ANYONE, group) && !members(joe_id, group));
    assert!(status(john_id, group) && members(john_id, group) && status(jane_id, group));
    assert!(
        owned(john_id, group) && !owned(joe_id, group),
        "every member may list the groups that it owns"
    );
    assert_eq!(
        cell.entry(group).unwrap().flags,
        PRP_STATUS_MEM | PRP_MEMBER_MEM
    );
    // Viewers see everything, but may change nothing.
    cell.add(ADMIN, joe, -203).unwrap();
    assert!(status(joe_id, group) && members(joe_id, jane) && owned(joe_id, jane));
    assert_eq!(cell.add(joe_id, joe, group), Err(AbortCode::PRPERM));
    assert_eq!(cell.set_access(joe_id, group, 0), Err(AbortCode::PRPERM));
    // A group without access bits shows the defaults, but gives no permissions.
    cell.set_access(jane_id, group, 0).unwrap();
    assert!(!status(john_id, group) && status(jane_id, group));
    assert_eq!(cell.entry(group).unwrap().flags, PRP_GROUP_DEFAULT);
    // Ownership and administration.
    cell.set_access(ADMIN, jane, PRP_OWNED_ANY).unwrap();
    assert!(owned(ANYONE, jane));
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
    assert!(!all(ANYONE) && !all(jane_id) && all(ADMIN));
    cell.add(ADMIN, jane, -204).unwrap();
    assert!(all(jane_id));
    // Fixed entries, and wrong arguments.
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
    assert!(cell.ask(ANYONE, nothing).is_ok());
    cell.check();
}

#[test]
fn writes_are_refused_to_who_does_not_say_who_they_are() {
    let cell = cell();
    let jane = cell.user("jane");
    let group = cell.group("jane:g", jane);
    // All bits except the one that lets everyone add members.
    cell.set_access(ADMIN, group, 0xff & !PRP_ADD_ANY).unwrap();
    let (id, gid, uid) = (ViceId(jane), ViceId(group), ViceId(jane));
    let name: PrNameArgument = "x".try_into().unwrap();
    macro_rules! refused {
        ($($arguments:expr),* $(,)?) => {
            $( assert_eq!(cell.ask(ANYONE, $arguments).map(drop), Err(AbortCode::PRPERM)); )*
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
    assert_eq!(cell.set_access(ANYONE, group, 0), Err(AbortCode::PRPERM));
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
        "users belong to the administrators"
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
    assert_eq!(cell.user("jane"), 3, "ids are not reused automatically");
    let own = cell.group("own", -204);
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
    assert_eq!(cell.name(group), "john:h", "until the group itself changes");
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
