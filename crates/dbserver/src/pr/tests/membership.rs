//! Tests of memberships.

use super::*;

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
    assert_eq!(cell.add(ANYONE, joe, group), Err(AbortCode::PRPERM));
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
    assert_eq!(cell.add(user(joe), joe, group), Ok(()), "every user");
    assert_eq!(
        cell.add(ANYONE, jane, group),
        Ok(()),
        "a caller without an identity"
    );
    assert_eq!(cell.take(ANYONE, jane, group), Err(AbortCode::PRPERM));
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
    // One direct group, and five levels above it.
    let mut expected = ids(groups[..6].iter().copied().chain([jane, -101, -102]));
    expected.sort();
    assert_eq!(cell.cps(jane), expected);
    assert_eq!(cell.cps(32766), ids([-101, 32766]));
    assert_eq!(cell.is_member(jane, groups[4]), Ok(true));
    assert_eq!(
        cell.is_member(jane, groups[5]),
        Ok(false),
        "five levels in all"
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
    // A group cannot be nested in itself, but an imported database may have such a cycle. The
    // search ends at a cycle.
    let around = |id, gid| cell.add(ADMIN, id, gid);
    assert_eq!(around(groups[7], groups[0]), Err(AbortCode::PRINCONSISTENT));
    assert_eq!(around(groups[7], groups[6]), Err(AbortCode::PRINCONSISTENT));
    let circle = |transaction: &mut cellar_celldb::Transaction<'_>| {
        tables::Tables(transaction).add_member(ViceId(groups[0]), ViceId(groups[7]))
    };
    cell.pr.replica.write(circle).unwrap();
    assert_eq!(cell.cps(jane), expected);
    let group = ids([groups[0], groups[1], groups[2], groups[3]]);
    let cps = cell.cps(groups[0]);
    assert!(group.iter().all(|id| cps.contains(id)) && cps.contains(&ViceId(jane)));
    assert!(
        cell.is_member(groups[6], groups[1]).unwrap(),
        "around the cycle"
    );
    // All users of the cell are in a group that has system:authuser as a member.
    let open = cell.group("jane:open", jane);
    cell.add(ADMIN, -102, open).unwrap();
    assert_eq!(
        (cell.is_member(jane, open), cell.is_member(32766, open)),
        (Ok(true), Ok(false))
    );
    assert_eq!(
        cell.ask(ANYONE, GetCPS { id: ViceId(9) }),
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
        cell.ask(ANYONE, GetHostCPS { host })
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
