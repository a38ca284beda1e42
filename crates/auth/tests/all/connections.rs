//! Calls of every size at every level between two endpoints, also where much is lost; who the
//! caller is.

use crate::common::{Cell, Network, at_every_level, code, pattern};
use cellar_auth::{Enctype, Identity, Level};
use cellar_rx::Caller;
use cellar_rx::packet::PacketType;

#[test]
fn calls_of_every_size_pass_at_every_level() {
    let cell = Cell::new();
    at_every_level(|level| {
        let mut network = Network::new(&cell, 1);
        let connection = network.connect(&cell.token(), level);
        for length in [
            1, 3, 4, 5, 8, 11, 1400, 1403, 1404, 1405, 1416, 1429, 3000, 100_000,
        ] {
            let request = pattern(length);
            assert_eq!(network.ask(connection, &request), Ok(request), "{length}");
        }
        assert!(network.callers.iter().all(|caller| caller.key_holder
            && caller.level == level
            && caller.vice_name() == "afs"));
        let challenges = network.log.iter();
        let challenges = challenges.filter(|datagram| datagram.is(PacketType::CHALLENGE));
        assert_eq!(challenges.count(), 1, "one challenge for the connection");
    });
    assert_eq!(cell.authority.figures().authenticated, 3);
    assert!(cell.authority.figures().refused.is_empty());
    assert!(cell.authority.figures().broken.is_empty());
}

/// Tickets made with the cell's key are good after the end of 31 bits, and of 32.
#[test]
fn holders_of_the_key_are_let_in_after_2038() {
    let cell = Cell::new();
    for start in [0x7fff_ffff, 0x8000_0000, 0xffff_fff0, 0x1_0000_0010] {
        let mut network = Network::beginning(&cell, 4, 0x4000_0000, start);
        let connection = network.connect(&cell.token(), Level::Crypt);
        for length in [1, 100_000] {
            let request = pattern(length);
            assert_eq!(network.ask(connection, &request), Ok(request), "{start:x}");
            // Past the second in which 31 or 32 bits end.
            network.run(60, |_| false);
        }
        assert!(network.callers.iter().all(|caller| caller.key_holder));
    }
    assert!(cell.authority.figures().refused.is_empty());
    assert!(cell.authority.figures().broken.is_empty());
}

#[test]
fn every_size_of_a_last_packet_passes_encrypted() {
    let cell = Cell::new();
    let mut network = Network::new(&cell, 2);
    let connection = network.connect(&cell.token(), Level::Crypt);
    for length in 1380..1450 {
        let request = pattern(length);
        assert_eq!(network.ask(connection, &request), Ok(request), "{length}");
    }
}

#[test]
fn loss_delays_and_changes_nothing() {
    let cell = Cell::new();
    for seed in 0..12 {
        let mut network = Network::new(&cell, seed);
        network.loss = 100;
        let level = [Level::Clear, Level::Auth, Level::Crypt][seed as usize % 3];
        let connection = network.connect(&cell.token(), level);
        // Four at a time, so that some begin before the connection is authenticated.
        for round in 0..5 {
            let calls: Vec<_> = (0..4)
                .map(|n| {
                    let request = pattern(1 + n * 2000 + round);
                    (network.call(connection, &request), request)
                })
                .collect();
            for (call, request) in calls {
                assert_eq!(network.wait(call), Ok(request), "seed {seed} round {round}");
            }
        }
        assert_eq!(network.served(), 20, "each call ran once");
    }
    assert!(cell.authority.figures().broken.is_empty());
}

#[test]
fn a_server_that_starts_again_challenges_again() {
    let cell = Cell::new();
    let mut network = Network::new(&cell, 3);
    let connection = network.connect(&cell.token(), Level::Crypt);
    for _ in 0..3 {
        assert!(network.ask(connection, b"before").is_ok());
    }
    network.restart_server(&cell, 77);
    assert_eq!(network.ask(connection, b"after"), Ok(b"after".to_vec()));
    assert_eq!(cell.authority.figures().authenticated, 2);
}

#[test]
fn keys_of_several_versions_are_live_at_once() {
    let cell = Cell::new();
    let old = cell.token();
    let keys = cell.authority.keys();
    for enctype in Enctype::ALL {
        keys.add_random(enctype).unwrap();
        let mut network = Network::new(&cell, 4);
        for token in [&old, &cell.token()] {
            let connection = network.connect(token, Level::Auth);
            assert!(network.ask(connection, b"hello").is_ok(), "{enctype}");
        }
        let newest = keys.list().last().unwrap().kvno;
        assert_eq!(network.callers[0].kvno, 1);
        assert_eq!(network.callers[1].kvno, newest);
    }
    keys.retire(1).unwrap();
    let mut network = Network::new(&cell, 5);
    let connection = network.connect(&old, Level::Auth);
    let outcome = network.ask(connection, b"hello");
    assert_eq!(outcome, Err(code("RXKADUNKNOWNKEY")));
}

#[test]
fn a_level_below_the_demand_is_not_even_tried() {
    let cell = Cell::with(cellar_auth::Policy {
        level_min: Level::Crypt,
        ..Default::default()
    });
    let mut network = Network::new(&cell, 6);
    let connection = network.connect(&cell.token(), Level::Crypt);
    assert!(network.ask(connection, b"hello").is_ok());
    let connection = network.connect(&cell.token(), Level::Auth);
    let outcome = network.ask(connection, b"hello");
    assert_eq!(outcome, Err(code("RXKADLEVELFAIL")));
    assert_eq!(cell.refused("RXKADLEVELFAIL"), 0, "the client refused");
}

#[test]
fn callers_are_superusers_by_key_or_by_list() {
    let cell = Cell::new();
    let mut network = Network::new(&cell, 7);
    let connection = network.connect(&cell.token(), Level::Clear);
    network.ask(connection, b"hello").unwrap();
    let holder = std::sync::Arc::new(network.callers[0].clone());
    let identity = cell.authority.identify(&Caller::Principal(holder.clone()));
    assert!(identity.is_superuser());

    let mut alice = (*holder).clone();
    alice.name = "alice".to_owned();
    alice.key_holder = false;
    let alice = Caller::Principal(std::sync::Arc::new(alice));
    let identity = cell.authority.identify(&alice);
    assert!(matches!(identity, Identity::User(_)), "{identity:?}");
    assert!(cell.authority.superusers().add("alice").unwrap());
    assert!(cell.authority.identify(&alice).is_superuser());
    assert!(cell.authority.superusers().remove("alice").unwrap());
    assert!(!cell.authority.identify(&alice).is_superuser());
    assert!(!cell.authority.identify(&Caller::Anonymous).is_superuser());
    assert!(cell.authority.identify(&Caller::Superuser).is_superuser());
}
