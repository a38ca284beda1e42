//! Tests of callers with tickets, and of the restrictions of a cell.

use cellar_auth::audit::Audit;
use cellar_auth::{Level, Principal};

use super::*;
use crate::Origin;

fn principal(name: &str, cell: Option<&str>) -> Principal {
    let (name, instance) = name.split_once('.').unwrap_or((name, ""));
    Principal {
        name: name.to_owned(),
        instance: instance.to_owned(),
        cell: cell.map(str::to_owned),
        kvno: 1,
        level: Level::Crypt,
        expires: AfsTime(u32::MAX),
        key_holder: false,
    }
}

fn known_as(cell: &Cell, principal: Principal) -> Identity {
    // The UserList has no effect: a superuser of the servers is an ordinary user here.
    let etc = tempfile::tempdir().unwrap();
    let superuser = format!("{}\n", principal.vice_name());
    std::fs::write(etc.path().join("UserList"), superuser).unwrap();
    let authority = Authority::open(etc.path(), "example.org").unwrap();
    let guard = Guard::new(authority, Audit::none());
    let caller = Caller::Principal(Arc::new(principal));
    Server::identify(&cell.pr, &caller, &guard)
}

#[test]
fn tickets_lead_to_entries() {
    let cell = cell();
    let jane = cell.user("jane");
    let admin = cell.user("jane.admin");
    cell.group("system:authuser@other.cell", -204);
    let bob = cell.user("bob@other.cell");
    let known = |name, realm| known_as(&cell, principal(name, realm));
    assert_eq!(known("jane", None), user(jane));
    assert_eq!(known("Jane", None), user(jane), "in lower case");
    assert_eq!(known("jane.admin", None), user(admin));
    assert_eq!(known("bob", Some("OTHER.CELL")), user(bob));
    assert_eq!(known("jane", Some("other.cell")), Identity::Stranger);
    assert_eq!(known("mallory", None), Identity::Stranger);
    assert_eq!(
        known("system:administrators", None),
        Identity::Stranger,
        "a group is no caller"
    );
    let afs = Principal {
        key_holder: true,
        ..principal("afs", None)
    };
    assert_eq!(known_as(&cell, afs), Identity::Superuser);
    let identify = |caller| {
        let guard = Guard::default();
        Server::identify(&cell.pr, &caller, &guard)
    };
    assert_eq!(identify(Caller::Superuser), Identity::Superuser);
    assert_eq!(identify(Caller::Anonymous), ANYONE);
    assert_eq!(identify(Caller::Principal(Arc::new(7))), ANYONE);
}

#[test]
fn strangers_only_learn_ids() {
    let cell = cell();
    let jane = cell.user("jane");
    let who = Identity::Stranger;
    let names = NameList::from_iter_cut([PrName::new(b"jane").unwrap()]);
    let asked = NameToID { names };
    assert_eq!(cell.ask(who, asked).unwrap().ids.into_vec(), ids([jane]));
    let entry = ListEntry { id: ViceId(jane) };
    assert_eq!(cell.ask(who, entry.clone()), Err(AbortCode::PRPERM));
    let names = |ids: &[i32]| {
        let ids = IdList::from_iter_cut(ids.iter().copied().map(ViceId));
        cell.ask(who, IDToName { ids })
            .map(|reply| reply.names.len())
    };
    assert_eq!(names(&[jane]), Err(AbortCode::PRPERM));
    assert_eq!(names(&[]), Ok(0));
    assert!(cell.ask(ANYONE, entry).is_ok());
    assert_eq!(cell.ask(who, ListMax {}), Err(AbortCode::PRPERM));
    let new = cell.new_entry(who, "mallory:g", PRGRP, 0);
    assert_eq!(new, Err(AbortCode::PRPERM));
}

#[test]
fn users_of_other_cells_enter_themselves() {
    let cell = cell();
    let asked = |name: &str, flag: u32, owner| NewEntry {
        name: name.try_into().unwrap(),
        flag: flag as i32,
        owner: ViceId(owner),
    };
    let caller = |name| {
        let caller = Caller::Principal(Arc::new(principal(name, Some("other.cell"))));
        Origin::new(&caller, &Guard::default(), None)
    };
    let register = |asked| cell.pr.ask_for(Identity::Stranger, &caller("bob"), asked);
    let bob = asked("bob@other.cell", 0, 0);
    assert_eq!(register(bob.clone()), Err(AbortCode::PRBADNAM), "no group");
    let group = cell.group("system:authuser@other.cell", -204);
    for more in [
        asked("bob@other.cell", 0, 1),
        asked("bob@other.cell", PRGRP, 0),
        asked("bob@other.cell", PRFOREIGN, 0),
    ] {
        assert_eq!(register(more), Err(AbortCode::PRPERM));
    }
    let other = asked("carol@other.cell", 0, 0);
    assert_eq!(register(other), Err(AbortCode::PRPERM), "another name");
    let id = register(bob.clone()).unwrap().id.0;
    assert_eq!(id, 1 << 16 | (group & 0xffff));
    let entry = cell.entry(id).unwrap();
    assert_eq!((entry.owner.0, entry.creator.0), (-204, 32766));
    assert_eq!(register(bob.clone()), Err(AbortCode::PREXIST));
    cell.check();
    let restricted = Rules {
        restricted: true,
        ..Rules::default()
    };
    let cell = Cell {
        pr: cell.pr.with_rules(restricted),
        ..cell
    };
    let eve = asked("eve@other.cell", 0, 0);
    let refused = cell.pr.ask_for(Identity::Stranger, &caller("eve"), eve);
    assert_eq!(refused, Err(AbortCode::PRPERM));
}

#[test]
fn a_cell_may_leave_all_changes_to_administrators() {
    let cell = cell();
    let (jane, john) = (cell.user("jane"), cell.user("john"));
    let group = cell.group("jane:g", jane);
    cell.add(ADMIN, john, -204).unwrap();
    let rules = Rules {
        restricted: true,
        restrict_anonymous: true,
    };
    let cell = Cell {
        pr: cell.pr.with_rules(rules),
        ..cell
    };
    let no = AbortCode::PRPERM;
    assert_eq!(cell.add(user(jane), john, group), Err(no));
    assert_eq!(cell.delete(user(jane), group), Err(no));
    assert_eq!(cell.set_access(user(jane), group, 0), Err(no));
    assert_eq!(cell.new_entry(user(jane), "jane:h", PRGRP, 0), Err(no));
    assert_eq!(cell.change(user(jane), group, "jane:h", 0, 0), Err(no));
    assert_eq!(
        cell.add(user(john), jane, group),
        Ok(()),
        "john is an administrator"
    );
    // The data that a caller without an identity may see.
    assert_eq!(cell.ask(ANYONE, ListMax {}), Err(no));
    let ids = IdList::from_iter_cut([ViceId(jane)]);
    assert_eq!(cell.ask(ANYONE, IDToName { ids }), Err(no));
    assert_eq!(cell.ask(ANYONE, ListEntry { id: ViceId(jane) }), Err(no));
    let elements = ListElements { id: ViceId(group) };
    assert!(cell.ask(ANYONE, elements).is_ok());
    assert!(cell.ask(user(jane), ListMax {}).is_ok());
}

#[test]
fn any_member_sees_what_a_group_owns() {
    let cell = cell();
    let (jane, john) = (cell.user("jane"), cell.user("john"));
    let group = cell.group("jane:g", jane);
    let owned = cell.group("jane:owned", group);
    cell.set_access(ADMIN, group, 0).unwrap();
    let list = |who| {
        let id = ViceId(group);
        let reply = cell.ask(who, ListOwned { id, lastp: 0 })?;
        Ok::<_, AbortCode>(reply.list.into_vec())
    };
    assert_eq!(list(user(john)), Err(AbortCode::PRPERM));
    cell.add(ADMIN, john, group).unwrap();
    assert_eq!(list(user(john)), Ok(ids([owned])));
    let entry = ListEntry { id: ViceId(group) };
    assert_eq!(cell.ask(user(john), entry), Err(AbortCode::PRPERM));
}

#[test]
fn users_of_our_other_realms_are_ours() {
    let cell = cell();
    let jane = cell.user("jane");
    let admin = cell.user("jane.admin");
    let etc = tempfile::tempdir().unwrap();
    let asked = [
        "jane@AD.EXAMPLE.ORG",
        "jane.admin@ad.example.org",
        "root@ad.example.org",
    ];
    let nobody = 32766;
    assert_eq!(cell.to_ids(&asked), ids([nobody; 3]));
    std::fs::write(etc.path().join("krb.conf"), "AD.EXAMPLE.ORG OTHER.ORG\n").unwrap();
    std::fs::write(etc.path().join("krb.excl"), "root@AD.EXAMPLE.ORG\n").unwrap();
    let authority = Authority::open(etc.path(), "example.org").unwrap();
    cell.user("root");
    let cell = Cell {
        pr: cell.pr.with_realms(authority),
        ..cell
    };
    let asked = [
        "jane@AD.EXAMPLE.ORG",
        "jane.admin@ad.example.org",
        "root@AD.EXAMPLE.ORG",
    ];
    assert_eq!(cell.to_ids(&asked), ids([jane, admin, nobody]));
    assert_eq!(cell.to_ids(&["jane@EXAMPLE.ORG"]), ids([jane]));
    assert_eq!(cell.to_ids(&["jane@third.org"]), ids([nobody]));
}
