//! Hosts: addresses, UUIDs, restarts of clients and of the server.

use std::net::UdpSocket;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::common::{CacheManager, Cell, Machine, OPEN, list, name, run, uuid};
use cellar_until::until_some;
use cellar_wire::acl::Rights;
use cellar_wire::ids::{Fid, ViceId};
use cellar_wire::rxafs;

/// Creates a file as `writer`, for which `machine` then holds an unbroken promise.
async fn promised(writer: &Machine, machine: &Machine) -> Fid {
    let fid = writer.create(Fid::root(OPEN), "f").await;
    machine.status(fid).await;
    machine.forgot();
    fid
}

#[test]
fn a_host_that_moves_keeps_its_promises() {
    let cell = Cell::start();
    let writer = Machine::new(&cell, 1);
    let machine = Machine::new(&cell, 2);
    run(async {
        let fid = promised(&writer, &machine).await;
        let service = machine.service.clone();
        drop(machine);
        // The same client process at another address.
        let moved = Machine::with_service(cell.address(), service);
        moved.status(Fid::root(OPEN)).await;
        assert_eq!(moved.forgot(), 0, "it is known, and forgets nothing");
        writer.store(fid, 0, b"x").await.unwrap();
        assert_eq!(moved.take_breaks(), [fid]);
        let figures = cell.server.figures();
        assert_eq!((figures.hosts.hosts, figures.contacts.moves), (2, 1));
    });
}

#[test]
fn a_host_that_moved_while_it_was_told_is_not_waited_for_where_it_was() {
    let cell = Cell::start();
    let writer = Machine::new(&cell, 1);
    let machine = Machine::new(&cell, 2);
    run(async {
        let fid = promised(&writer, &machine).await;
        let (service, before) = (machine.service.clone(), machine.port.local_address());
        drop(machine);
        // Simulates a lost network: no answer, and no report that the port is closed.
        let silent = until_some("a free address", async || UdpSocket::bind(before).ok());
        let _silent = silent.await;
        // A change waits a short time for the host, and then the delivery continues.
        writer.store(fid, 0, b"x").await.unwrap();
        let moved = Machine::with_service(cell.address(), service);
        let begun = Instant::now();
        moved.status(Fid::root(OPEN)).await;
        let took = begun.elapsed();
        assert!(took < Duration::from_millis(2500), "{took:?}");
        assert_eq!((moved.take_breaks(), moved.forgot()), (vec![fid], 0));
        let figures = cell.server.figures();
        assert_eq!((figures.hosts.hosts, figures.contacts.moves), (2, 1));
    });
}

#[test]
fn another_client_at_a_known_address_is_another_host() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 2);
    run(async {
        machine.status(Fid::root(OPEN)).await;
        assert_eq!(machine.forgot(), 1);
        *machine.service.uuid.lock() = Some(uuid(9));
        let address = machine.port.local_address();
        let service = machine.service.clone();
        drop(machine);
        // A new process on the same port, recognisable by the epoch of its connections.
        let another = Machine::at(cell.address(), address, service);
        another.status(Fid::root(OPEN)).await;
        assert_eq!(another.forgot(), 1);
        assert_eq!(cell.server.figures().hosts.hosts, 1);
    });
}

#[test]
fn a_reused_port_belongs_to_another_host() {
    let cell = Cell::start();
    let writer = Machine::new(&cell, 1);
    let machine = Machine::new(&cell, 2);
    run(async {
        let fid = promised(&writer, &machine).await;
        let (service, left) = (machine.service.clone(), machine.port.local_address());
        drop(machine);
        let moved = Machine::with_service(cell.address(), service);
        moved.status(fid).await;
        // Another client gets the port while the first one is elsewhere and alive. Then the first
        // one gets the port of the other.
        let other = Machine::at(cell.address(), left, CacheManager::new(Some(uuid(9))));
        let begun = Instant::now();
        other.status(fid).await;
        assert!(
            begun.elapsed() < Duration::from_secs(4),
            "{:?}",
            begun.elapsed()
        );
        assert_eq!((other.forgot(), moved.forgot()), (1, 0));
        writer.store(fid, 0, b"x").await.unwrap();
        assert_eq!(
            (moved.take_breaks(), other.take_breaks()),
            (vec![fid], vec![fid])
        );
        let figures = cell.server.figures();
        assert_eq!((figures.hosts.hosts, figures.contacts.moves), (3, 1));
        // A client that is still the same keeps its record.
        let service = moved.service.clone();
        drop((moved, other));
        let back = Machine::at(cell.address(), left, service);
        back.status(fid).await;
        assert_eq!(back.take_breaks(), [] as [Fid; 0]);
        writer.store(fid, 0, b"y").await.unwrap();
        assert_eq!(back.take_breaks(), [fid]);
    });
}

#[test]
fn an_old_client_without_uuid_is_served() {
    let cell = Cell::start();
    let machine = Machine::with_uuid(&cell, None);
    let writer = Machine::new(&cell, 1);
    run(async {
        let fid = writer.create(Fid::root(OPEN), "f").await;
        machine.status(fid).await;
        assert_eq!(machine.forgot(), 1);
        writer.store(fid, 0, b"x").await.unwrap();
        assert_eq!(machine.take_breaks(), [fid]);
    });
}

#[test]
fn a_host_that_cannot_be_called_back_is_refused_and_others_are_not_held_up() {
    let cell = Cell::start();
    let silent = Machine::new(&cell, 1);
    silent.service.silent.store(true, Ordering::Relaxed);
    let other = Machine::new(&cell, 2);
    run(async {
        let call = rxafs::FetchStatus {
            fid: Fid::root(OPEN),
        };
        let both = async {
            let begun = std::time::Instant::now();
            other.status(Fid::root(OPEN)).await;
            assert!(begun.elapsed() < Duration::from_secs(2));
        };
        let (refused, ()) = tokio::join!(silent.call(&call), both);
        assert_eq!(refused.unwrap_err().code().0, -1);
        // Calls that need no identity are answered nevertheless.
        silent.ok(&rxafs::GetTime {}).await;
        silent.ok(&rxafs::GetCapabilities {}).await;
        assert_eq!(cell.server.figures().refused("host_silent"), 1);
        silent.service.silent.store(false, Ordering::Relaxed);
        silent.status(Fid::root(OPEN)).await;
    });
}

#[test]
fn errors_are_translated_for_hosts_that_said_so() {
    let cell = Cell::start();
    let plain = Machine::new(&cell, 1);
    let modern = Machine::new(&cell, 2);
    modern
        .service
        .translates_errors
        .store(true, Ordering::Relaxed);
    run(async {
        let missing = rxafs::RemoveFile {
            dir_fid: Fid::root(OPEN),
            name: name("none"),
        };
        assert_eq!(plain.code(&missing).await, 2);
        assert_eq!(modern.code(&missing).await, 49_733_376 + 1);
        let stale = rxafs::FetchStatus {
            fid: Fid::new(OPEN.0, 2, 999),
        };
        assert_eq!(modern.code(&stale).await, 102);
        let fids = rxafs::Fids::from_iter_cut([Fid::new(0, 1, 1)]);
        let bulk = modern.ok(&rxafs::InlineBulkStatus { fids }).await;
        assert_eq!(bulk.statuses[0].error_code.0, 49_733_376 + 21);
    });
}

#[test]
fn groups_of_a_host_count_until_flushed() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let root = Fid::root(OPEN);
        cell.set_list(root, list(&[(-400, "rl")]));
        assert_eq!(
            machine.status(root).await.status.caller_access,
            Rights::NONE
        );
        cell.names
            .host_groups
            .lock()
            .push(("127.0.0.1".parse().unwrap(), ViceId(-400)));
        assert_eq!(
            machine.status(root).await.status.caller_access,
            Rights::NONE,
            "not asked again"
        );
        let flush = rxafs::FlushCPS {
            ids: Default::default(),
            addresses: Default::default(),
            spare1: 0,
        };
        assert_eq!(machine.code(&flush).await, 1);
        cell.admin().await.call(&flush).await.unwrap();
        let status = machine.status(root).await.status;
        assert_eq!(status.caller_access.to_string(), "rl");
        assert_eq!(status.anonymous_access.to_string(), "rl");
    });
}

#[test]
fn a_clean_restart_keeps_promises_and_a_crash_forgets_them() {
    let mut cell = Cell::start();
    let (writer, reader) = (Machine::new(&cell, 1), Machine::new(&cell, 2));
    run(async {
        let fid = writer.create(Fid::root(OPEN), "f").await;
        reader.status(fid).await;
        reader.ok(&rxafs::SetLock { fid, lock_type: 1 }).await;
        reader.forgot();
        writer.forgot();
        cell = tokio::task::block_in_place(|| cell.restart(true));
        assert_eq!(cell.server.figures().callbacks.held, 2);
        // It is notified of the change although it has made no call since, and it has not been
        // reset.
        writer.store(fid, 0, b"x").await.unwrap();
        assert_eq!((reader.take_breaks(), reader.forgot()), (vec![fid], 0));
        assert_eq!(reader.status(fid).await.status.lock_count, -1);
        assert_eq!((reader.forgot(), writer.forgot()), (0, 0));
        cell = tokio::task::block_in_place(|| cell.restart(false));
        assert_eq!(cell.server.figures().callbacks.held, 0);
        writer.store(fid, 0, b"y").await.unwrap();
        assert_eq!(writer.forgot(), 1);
        assert_eq!(reader.take_breaks(), [], "its promise is not known");
        reader.status(fid).await;
        assert_eq!(
            reader.forgot(),
            1,
            "so it forgets all before it is answered"
        );
    });
}

#[test]
fn the_saved_state_is_of_no_use_to_another_client_at_the_same_address() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        machine.status(Fid::root(OPEN)).await;
        machine.forgot();
        let _cell = tokio::task::block_in_place(|| cell.restart(true));
        *machine.service.uuid.lock() = Some(uuid(77));
        machine.status(Fid::root(OPEN)).await;
        assert_eq!(machine.forgot(), 1);
    });
}
