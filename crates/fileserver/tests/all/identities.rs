//! The identities of callers: tickets, superusers, changing groups, and the audit log.

use std::sync::atomic::Ordering;

use crate::common::{ALICE, Cell, Machine, NOW, OPEN, list, mode, name, quota, run, stated};
use cellar_auth::Principal;
use cellar_auth::audit::Audit;
use cellar_rpc::Connection;
use cellar_until::until_some_blocking;
use cellar_wire::AfsTime;
use cellar_wire::afsvol;
use cellar_wire::ids::{Fid, VolumeId};
use cellar_wire::rxafs::{self, AfsStoreStatus};

const FRIENDS: i32 = -300;
const ADMINISTRATORS: i32 = -204;

async fn rights(who: &Connection, fid: Fid) -> String {
    let status = who.call(&rxafs::FetchStatus { fid }).await.unwrap();
    status.status.caller_access.to_string()
}

const FLUSH: fn() -> rxafs::FlushCPS = || rxafs::FlushCPS {
    ids: Default::default(),
    addresses: Default::default(),
    spare1: 0,
};

fn new_volume(volume: u32) -> afsvol::CreateVolume {
    afsvol::CreateVolume {
        partition: 0,
        name: format!("v{volume}").as_str().try_into().unwrap(),
        volume_type: afsvol::READWRITE,
        parent: VolumeId(0),
        volume: VolumeId(volume),
    }
}

#[test]
fn one_machine_has_many_users() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let root = Fid::root(OPEN);
        cell.set_list(root, list(&[(ALICE, "rlidwk"), (-102, "l")]));
        let (alice, bob) = (machine.user("alice"), machine.user("bob"));
        assert_eq!(rights(&alice, root).await, "rlidwk");
        assert_eq!(rights(&bob, root).await, "l");
        assert_eq!(rights(&machine.connection, root).await, "");
        let figures = cell.server.figures();
        assert_eq!((figures.hosts.hosts, figures.clients), (1, 3));
        assert_eq!(figures.contacts.introductions, 1, "identified once");
        let new = rxafs::CreateFile {
            dir_fid: root,
            name: name("f"),
            in_status: mode(0o644),
        };
        let made = alice.call(&new).await.unwrap();
        assert_eq!((made.status.owner.0, made.status.author.0), (ALICE, ALICE));
        assert_eq!(machine.take_breaks(), [], "its host made the change");
    });
}

#[test]
fn a_list_counts_at_once_and_other_machines_are_told() {
    let cell = Cell::start();
    let (machine, other) = (Machine::new(&cell, 1), Machine::new(&cell, 2));
    run(async {
        let root = Fid::root(OPEN);
        let alice = machine.user("alice");
        let far = other.user("alice");
        assert_eq!(rights(&alice, root).await, "rlidwka");
        assert_eq!(rights(&far, root).await, "rlidwka");
        let text = rxafs::AfsOpaque::try_from("1\n0\nalice\t1\n\0").unwrap();
        let shut = rxafs::StoreACL {
            fid: root,
            access_list: text,
        };
        let reply = alice.call(&shut).await.unwrap();
        assert_eq!(reply.status.caller_access.to_string(), "r");
        assert_eq!(other.take_breaks(), [root], "its cached rights are invalid");
        assert_eq!(rights(&far, root).await, "r");
    });
}

#[test]
fn groups_change_at_once_or_when_flushed_or_after_two_hours() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let root = Fid::root(OPEN);
        cell.set_list(root, list(&[(FRIENDS, "rl"), (-400, "w"), (-401, "k")]));
        let alice = machine.user("alice");
        assert_eq!(rights(&alice, root).await, "");
        cell.names.join(ALICE, FRIENDS);
        assert_eq!(rights(&alice, root).await, "rl", "the database is ours");
        cell.names.join_unseen(ALICE, -400);
        assert_eq!(rights(&alice, root).await, "rl", "it is elsewhere");
        assert_eq!(alice.call(&FLUSH()).await.unwrap_err().code().0, 1);
        cell.admin().await.call(&FLUSH()).await.unwrap();
        assert_eq!(rights(&alice, root).await, "rlw");
        cell.names.join_unseen(ALICE, -401);
        cell.wait_secs(2 * 3600 - 1);
        assert_eq!(rights(&alice, root).await, "rlw");
        cell.wait_secs(1);
        assert_eq!(rights(&alice, root).await, "rlwk");
    });
}

#[test]
fn known_callers_stay_known_without_databases() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let root = Fid::root(OPEN);
        cell.set_list(root, list(&[(ALICE, "rl")]));
        let alice = machine.user("alice");
        assert_eq!(rights(&alice, root).await, "rl");
        cell.names.unreachable.store(true, Ordering::Relaxed);
        let call = rxafs::FetchStatus { fid: root };
        let stranger = machine.user("bob").call(&call).await.unwrap_err();
        assert_eq!(stranger.code().0, -1001);
        cell.wait_secs(2 * 3600);
        assert_eq!(rights(&alice, root).await, "rl");
        cell.names.unreachable.store(false, Ordering::Relaxed);
        cell.names.join_unseen(ALICE, FRIENDS);
        cell.set_list(root, list(&[(FRIENDS, "w")]));
        assert_eq!(rights(&alice, root).await, "", "asked recently");
        cell.wait_secs(60);
        assert_eq!(rights(&alice, root).await, "w");
        // After an administrator's flush, cached groups are no longer used.
        cell.names.unreachable.store(true, Ordering::Relaxed);
        cell.admin().await.call(&FLUSH()).await.unwrap();
        assert_eq!(alice.call(&call).await.unwrap_err().code().0, -1001);
    });
}

#[test]
fn a_user_taken_off_the_list_is_gone_without_databases() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let root = Fid::root(OPEN);
        cell.set_list(root, list(&[(ADMINISTRATORS, "rl")]));
        let superusers = cell.config.authority.as_ref().unwrap().superusers();
        assert!(superusers.add("alice").unwrap());
        let alice = machine.user("alice");
        assert_eq!(rights(&alice, root).await, "rl");
        cell.names.unreachable.store(true, Ordering::Relaxed);
        cell.wait_secs(10);
        assert_eq!(rights(&alice, root).await, "rl", "listed and known");
        assert!(superusers.remove("alice").unwrap());
        cell.wait_secs(10);
        let call = rxafs::FetchStatus { fid: root };
        assert_eq!(alice.call(&call).await.unwrap_err().code().0, -1001);
    });
}

#[test]
fn a_ticket_that_ends_ends_the_rights() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let root = Fid::root(OPEN);
        let brief = Principal {
            expires: AfsTime(NOW as u32 + 100),
            ..stated::user("alice")
        };
        let alice = machine.principal(brief, 1);
        let call = rxafs::FetchStatus { fid: root };
        cell.wait_secs(100);
        alice.call(&call).await.unwrap();
        cell.wait_secs(1);
        let refused = alice.call(&call).await.unwrap_err();
        assert_eq!(refused.code().0, 1235, "VICETOKENDEAD");
        // Calls that need no identity are answered.
        alice.call(&rxafs::GetTime {}).await.unwrap();
        machine.status(root).await;
    });
}

#[test]
fn superusers_change_volumes_and_have_every_right() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let root = Fid::root(OPEN);
        cell.set_list(root, list(&[(ADMINISTRATORS, "rl")]));
        let volumes = |who: Principal| machine.principal(who, afsvol::PACKAGE.service_id);
        let files = |who: Principal| machine.principal(who, rxafs::PACKAGE.service_id);
        let holder = Principal {
            key_holder: true,
            ..stated::user("afs")
        };
        let listed = stated::user("alice");
        let superusers = cell.config.authority.as_ref().unwrap().superusers();
        assert!(superusers.add("alice").unwrap());
        cell.names.join(8, ADMINISTRATORS);
        let refused = 1_492_325_127;
        let attempts = [
            (listed.clone(), 0),
            (holder.clone(), 0),
            (stated::user("bob"), refused),
            (stated::user("carol"), refused),
        ];
        for (number, (who, expected)) in (600_000_000..).zip(attempts) {
            let outcome = volumes(who.clone()).call(&new_volume(number)).await;
            let code = outcome.map_or_else(|cause| cause.code().0, |_| 0);
            assert_eq!(code, expected, "{who:?}");
        }
        let anonymous = machine.port.connect(
            cell.address(),
            afsvol::PACKAGE.service_id,
            cellar_rpc::Security::null(),
        );
        let outcome = anonymous.call(&new_volume(600_000_009)).await;
        assert_eq!(outcome.unwrap_err().code().0, refused);
        // The holder of the key is system:administrators itself; a listed user keeps its own id and
        // is a member.
        assert_eq!(
            rights(&files(holder.clone()), root).await,
            "rlidwkaABCDEFGH"
        );
        let alice = files(listed);
        assert_eq!(rights(&alice, root).await, "rl");
        let owner = AfsStoreStatus {
            owner: Some(cellar_wire::ViceId(ALICE)),
            ..AfsStoreStatus::default()
        };
        let chown = rxafs::StoreStatus {
            fid: root,
            in_status: owner,
        };
        alice.call(&chown).await.unwrap();
        alice.call(&FLUSH()).await.unwrap();
        // Removed from the list: not a superuser at the next act, and not an administrator within
        // seconds.
        assert!(superusers.remove("alice").unwrap());
        let again = volumes(stated::user("alice"));
        let outcome = again.call(&new_volume(600_000_010)).await;
        assert_eq!(outcome.unwrap_err().code().0, refused);
        cell.wait_secs(10);
        assert_eq!(rights(&alice, root).await, "");
    });
}

#[test]
fn administrative_acts_are_written_down() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("audit.log");
    let mut cell = Some(Cell::start_with(|config| cellar_fileserver::Config {
        audit: Audit::open(&log).unwrap(),
        ..config
    }));
    let machine = Machine::new(cell.as_ref().unwrap(), 1);
    run(async {
        let cell = cell.take().unwrap();
        let root = Fid::root(OPEN);
        let alice = machine.user("alice");
        cell.names.join(ALICE, ADMINISTRATORS);
        let chown = rxafs::StoreStatus {
            fid: root,
            in_status: AfsStoreStatus {
                owner: Some(cellar_wire::ViceId(8)),
                ..AfsStoreStatus::default()
            },
        };
        alice.call(&chown).await.unwrap();
        let text = rxafs::AfsOpaque::try_from("1\n0\nbob\t127\n\0").unwrap();
        let shut = rxafs::StoreACL {
            fid: root,
            access_list: text,
        };
        alice.call(&shut).await.unwrap();
        machine.user("bob").call(&FLUSH()).await.unwrap_err();
        let volumes = machine.principal(stated::user("carol"), afsvol::PACKAGE.service_id);
        volumes.call(&new_volume(600_000_001)).await.unwrap_err();
        // Calls that every user may make are not audited.
        machine
            .user("bob")
            .call(&rxafs::FetchStatus { fid: root })
            .await
            .unwrap();
        let set_mode = rxafs::StoreStatus {
            fid: root,
            in_status: mode(0o700),
        };
        machine.user("bob").call(&set_mode).await.unwrap();
        cell.admin().await.call(&quota(10)).await.unwrap();
        // The writer ends with the last user of the log.
        cell.runtime.shutdown();
        drop(cell);
    });
    let lines = written(&log, 5);
    let seen = lines.iter().map(|line| {
        let text = |key: &str| line[key].as_str().unwrap_or_default();
        let details = &line["details"];
        format!("{} {} {} {details}", text("act"), text("who"), line["code"])
    });
    let expected = [
        r#"StoreStatus alice 0 {"fid":"536870912.1.1","owner":8}"#,
        r#"StoreACL alice 0 {"fid":"536870912.1.1","list":"1 0 bob 127"}"#,
        r#"FlushCPS bob 1 null"#,
        r#"CreateVolume carol 1492325127 null"#,
        r#"SetVolumeStatus local administrator 0 {"max_quota":10,"volume":536870912}"#,
    ];
    assert_eq!(seen.collect::<Vec<_>>(), expected);
    assert!(lines[0]["peer"].as_str().unwrap().starts_with("127.0.0.1:"));
    assert!(lines[4]["peer"].is_null());
}

#[test]
fn the_records_of_a_volume_transaction_have_its_number() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("audit.log");
    let mut cell = Some(Cell::start_with(|config| cellar_fileserver::Config {
        audit: Audit::open(&log).unwrap(),
        ..config
    }));
    run(async {
        let cell = cell.take().unwrap();
        let volumes = cell.admin().await;
        let made = volumes.call(&new_volume(600_000_001)).await.unwrap();
        let trans = made.trans;
        volumes
            .call(&afsvol::SetFlags { trans, flags: 0 })
            .await
            .unwrap();
        volumes.call(&afsvol::EndTrans { trans }).await.unwrap();
        cell.runtime.shutdown();
        drop(cell);
    });
    let lines = written(&log, 3);
    let acts: Vec<_> = lines.iter().map(|line| line["act"].clone()).collect();
    assert_eq!(acts, ["CreateVolume", "SetFlags", "EndTrans"]);
    let number = &lines[0]["details"]["transaction"];
    assert!(number.is_i64(), "{lines:?}");
    for line in &lines {
        assert_eq!(&line["details"]["transaction"], number, "{line}");
        assert_eq!(line["details"]["volume"], 600_000_001, "{line}");
    }
}

/// The lines of an audit log, once there are `count`.
fn written(log: &std::path::Path, count: usize) -> Vec<serde_json::Value> {
    until_some_blocking("the lines", || {
        let text = std::fs::read_to_string(log).unwrap();
        let lines: Vec<_> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        (lines.len() >= count).then_some(lines)
    })
}
