//! Attacks, each refused with the code that clients understand, and counted.

use crate::common;

use crate::common::{
    ATTACKER, CLIENT, Cell, Datagram, Network, Shared, address, at_every_level, code, pattern,
    shared,
};
use cellar_auth::{Enctype, Level, Policy, SecretKey};
use cellar_rx::ConnectionId;
use cellar_rx::packet::{HEADER_SIZE, PacketType};

/// Keeps a copy of each datagram of that type.
fn record(network: &mut Network, packet_type: PacketType) -> Shared<Vec<Datagram>> {
    let kept = shared(Vec::new());
    let list = kept.clone();
    network.on_path = Box::new(move |datagram, _| {
        if datagram.is(packet_type) {
            list.lock().unwrap().push(datagram.clone());
        }
        true
    });
    kept
}

#[test]
fn a_ticket_sealed_with_the_key_of_another_cell() {
    let (cell, other) = (Cell::new(), Cell::new());
    let mut network = Network::new(&cell, 1);
    // The other cell's key has the same version and type.
    let connection = network.connect(&other.token(), Level::Crypt);
    let begin = network.now;
    let outcome = network.ask(connection, b"hello");
    assert_eq!(outcome, Err(code("RXKADBADTICKET")));
    assert!(network.now.since(begin).as_millis() >= 1000, "told late");
    assert_eq!(cell.refused("RXKADBADTICKET"), 1);

    other
        .authority
        .keys()
        .add_random(Enctype::Aes256Sha1)
        .unwrap();
    let connection = network.connect(&other.token(), Level::Crypt);
    let outcome = network.ask(connection, b"hello");
    assert_eq!(outcome, Err(code("RXKADUNKNOWNKEY")));
    assert_eq!(cell.refused("RXKADUNKNOWNKEY"), 1);
    assert_eq!(network.served(), 0);
}

#[test]
fn forged_tickets() {
    let cell = Cell::new();
    let mut network = Network::new(&cell, 2);
    let token = cell.token();
    let attempts = [
        (vec![0x30; 100], 213, "RXKADBADTICKET"),
        (token.ticket.clone(), 256, "RXKADBADTICKET"),
        (token.ticket.clone(), 1, "RXKADUNKNOWNKEY"),
        (token.ticket.clone(), 300, "RXKADUNKNOWNKEY"),
        (token.ticket[..31].to_vec(), 213, "RXKADTICKETLEN"),
        (token.ticket[..64].to_vec(), 213, "RXKADBADTICKET"),
        ([&token.ticket[..], &[0]].concat(), 213, "RXKADBADTICKET"),
    ];
    for (ticket, kvno, name) in attempts {
        let mut forged = token.clone();
        forged.ticket = ticket;
        forged.kvno = kvno;
        let connection = network.connect(&forged, Level::Clear);
        assert_eq!(network.ask(connection, b"hello"), Err(code(name)), "{kvno}");
    }
    let mut changed = token.clone();
    let last = changed.ticket.len() - 1;
    changed.ticket[last] ^= 1;
    let connection = network.connect(&changed, Level::Clear);
    let outcome = network.ask(connection, b"hello");
    assert_eq!(outcome, Err(code("RXKADBADTICKET")));
    assert_eq!(cell.refused("RXKADBADTICKET"), 5);
    assert_eq!(cell.refused("RXKADUNKNOWNKEY"), 2);
    assert_eq!(cell.refused("RXKADTICKETLEN"), 1);
    assert_eq!(network.served(), 0);
}

#[test]
fn a_stolen_ticket_without_its_session_key() {
    let cell = Cell::new();
    let mut network = Network::new(&cell, 3);
    let mut stolen = cell.token();
    stolen.session_key[3] ^= 0x10;
    at_every_level(|level| {
        let connection = network.connect(&stolen, level);
        let outcome = network.ask(connection, b"hello");
        assert_eq!(outcome, Err(code("RXKADSEALEDINCON")));
    });
    assert_eq!(cell.refused("RXKADSEALEDINCON"), 3);
    assert_eq!(network.served(), 0);
}

#[test]
fn a_response_replayed_on_another_connection() {
    let cell = Cell::new();
    let mut network = Network::new(&cell, 4);
    let responses = record(&mut network, PacketType::RESPONSE);
    let data = network.connect(&cell.token(), Level::Clear);
    network.ask(data, b"hello").unwrap();
    let response = responses.lock().unwrap()[0].clone();
    let first = network
        .log
        .iter()
        .find(|datagram| datagram.is(PacketType::DATA));
    let first = first.unwrap().clone();

    // The attacker opens a connection with the recorded call, and answers with the recorded
    // response.
    for (epoch, cid) in [(0, 0x100), (1, 0)] {
        let renumber = |datagram: &Datagram| {
            let mut header = datagram.header();
            header.epoch ^= epoch;
            header.cid ^= cid;
            let mut datagram = datagram.clone();
            datagram.from = address(ATTACKER);
            datagram.set_header(&header);
            datagram
        };
        network.inject(renumber(&first));
        network.run(1, |_| false);
        network.inject(renumber(&response));
        network.run(3, |_| false);
    }
    assert_eq!(cell.refused("RXKADSEALEDINCON"), 2);
    assert_eq!(network.served(), 1);
}

#[test]
fn a_response_and_calls_replayed_to_a_server_that_started_again() {
    let cell = Cell::new();
    let mut network = Network::new(&cell, 5);
    let connection = network.connect(&cell.token(), Level::Clear);
    for _ in 0..3 {
        network.ask(connection, b"pay 100").unwrap();
    }
    let sent: Vec<_> = network
        .log
        .iter()
        .filter(|datagram| datagram.from == address(CLIENT))
        .cloned()
        .collect();
    network.restart_server(&cell, 99);
    for datagram in sent {
        network.inject(datagram);
        network.run(3, |_| false);
    }
    assert_eq!(network.served(), 3, "nothing ran again");
    assert!(cell.refused("RXKADOUTOFSEQUENCE") >= 1);
}

/// A client's four calls on the channels of a connection, which are over, and the packets that they
/// came in.
fn after_four_calls(cell: &Cell, seed: u64) -> (Network, ConnectionId, Vec<Datagram>) {
    let mut network = Network::new(cell, seed);
    let connection = network.connect(&cell.token(), Level::Clear);
    let calls: Vec<_> = (0..4)
        .map(|_| network.call(connection, b"pay 100"))
        .collect();
    for call in calls {
        network.wait(call).unwrap();
    }
    let sent = network.log.iter();
    let sent =
        sent.filter(|datagram| datagram.from == address(CLIENT) && datagram.is(PacketType::DATA));
    let sent = sent.cloned().collect();
    (network, connection, sent)
}

#[test]
fn finished_calls_replayed_while_the_client_authenticates_again() {
    let cell = Cell::new();
    let (mut network, connection, old) = after_four_calls(&cell, 6);
    network.restart_server(&cell, 98);
    // The client's own call lets the new server authenticate the connection; then come old packets.
    network.ask(connection, b"look").unwrap();
    assert_eq!(network.served(), 5);
    for datagram in old {
        network.inject(datagram);
    }
    network.run(5, |_| false);
    assert_eq!(network.served(), 5, "nothing ran again");
}

#[test]
fn finished_calls_replayed_before_the_client_authenticates_again() {
    let cell = Cell::new();
    let (mut network, connection, old) = after_four_calls(&cell, 14);
    network.restart_server(&cell, 97);
    // The old packets are there first; it is them whom the client's answer would let in.
    for datagram in old {
        network.inject(datagram);
    }
    network.run(1, |_| false);
    network.ask(connection, b"look").unwrap();
    network.run(5, |_| false);
    assert_eq!(network.served(), 5, "nothing ran again");
    network.ask(connection, b"look").unwrap();
}

#[test]
fn challenges_cannot_be_foretold() {
    // An attacker that knows the next one can obtain an answer in advance and replay a whole
    // connection later.
    let challenge = || {
        let cell = Cell::new();
        let mut network = Network::new(&cell, 15);
        let challenges = record(&mut network, PacketType::CHALLENGE);
        let connection = network.connect(&cell.token(), Level::Clear);
        network.ask(connection, b"hello").unwrap();
        challenges.lock().unwrap()[0].bytes[HEADER_SIZE..].to_vec()
    };
    assert_ne!(challenge(), challenge(), "of the same seed");
}

#[test]
fn the_level_lowered_by_an_attacker_on_the_path() {
    let cell = Cell::with(Policy {
        level_min: Level::Crypt,
        ..Policy::default()
    });
    let lower_demand = || -> common::OnPath {
        Box::new(|datagram, _| {
            if datagram.is(PacketType::CHALLENGE) {
                datagram.bytes[HEADER_SIZE + 8..HEADER_SIZE + 12].fill(0);
            }
            true
        })
    };
    let mut network = Network::new(&cell, 7);
    network.on_path = lower_demand();
    let connection = network.connect(&cell.token(), Level::Clear);
    let outcome = network.ask(connection, b"secret");
    assert_eq!(outcome, Err(code("RXKADLEVELFAIL")), "by the server");
    assert_eq!(cell.refused("RXKADLEVELFAIL"), 1);
    // A client that wants to encrypt does, whatever it is told.
    let connection = network.connect(&cell.token(), Level::Crypt);
    network.ask(connection, b"secret").unwrap();
    assert_eq!(network.callers.last().unwrap().level, Level::Crypt);

    // The level inside the response is sealed.
    let mut network = Network::new(&cell, 8);
    network.on_path = Box::new(|datagram, _| {
        if datagram.is(PacketType::RESPONSE) {
            datagram.bytes[HEADER_SIZE + 47] ^= 2;
        }
        true
    });
    let connection = network.connect(&cell.token(), Level::Crypt);
    let outcome = network.ask(connection, b"secret");
    assert_eq!(outcome, Err(code("RXKADSEALEDINCON")));
    assert_eq!(network.served(), 0);
}

/// Lets a call pass, then breaks the request of the next with `change`.
fn broken_request(level: Level, mut change: impl FnMut(&mut Datagram) + 'static) -> Cell {
    let cell = Cell::new();
    let mut network = Network::new(&cell, 9);
    let connection = network.connect(&cell.token(), level);
    network.ask(connection, b"first").unwrap();
    network.on_path = Box::new(move |datagram, _| {
        if datagram.from == address(CLIENT) && datagram.is(PacketType::DATA) {
            change(datagram);
        }
        true
    });
    let call = network.call(connection, &pattern(200));
    let outcome = network.wait(call);
    assert_eq!(outcome, Err(code("RXKADSEALEDINCON")), "{level:?}");
    assert_eq!(cell.broken("RXKADSEALEDINCON"), 1);
    cell
}

#[test]
fn swapped_call_numbers() {
    at_every_level(|level| {
        broken_request(level, |datagram| {
            let mut header = datagram.header();
            header.call_number += 1;
            datagram.set_header(&header);
        });
    });
}

#[test]
fn a_packet_moved_to_another_channel() {
    at_every_level(|level| {
        broken_request(level, |datagram| {
            let mut header = datagram.header();
            header.cid ^= 1;
            datagram.set_header(&header);
        });
    });
}

#[test]
fn truncated_and_changed_checksums() {
    at_every_level(|level| {
        for checksum in [0, 0xff00, 0x0001] {
            broken_request(level, move |datagram| {
                let mut header = datagram.header();
                // Keys are drawn at random: one checksum in 256 has none of the bits that this
                // cuts.
                let cut = header.checksum & checksum;
                header.checksum = if cut == header.checksum { cut ^ 2 } else { cut };
                datagram.set_header(&header);
            });
        }
    });
}

#[test]
fn changed_lengths_and_contents() {
    for level in [Level::Auth, Level::Crypt] {
        broken_request(level, |datagram| datagram.bytes[HEADER_SIZE] ^= 1);
        broken_request(level, |datagram| datagram.bytes[HEADER_SIZE + 7] ^= 0x40);
    }
    let cell = Cell::new();
    let mut network = Network::new(&cell, 10);
    let connection = network.connect(&cell.token(), Level::Crypt);
    network.ask(connection, b"first").unwrap();
    network.on_path = Box::new(|datagram, _| {
        if datagram.from == address(CLIENT) && datagram.is(PacketType::DATA) {
            datagram.bytes.truncate(HEADER_SIZE + 13);
        }
        true
    });
    let outcome = network.ask(connection, &pattern(200));
    assert_eq!(outcome, Err(code("RXKADDATALEN")));
    assert_eq!(cell.broken("RXKADDATALEN"), 1);
}

#[test]
fn a_connection_hijacked_from_another_address() {
    // With the highest bit of its epoch a client says that its address may change.
    for epoch in [0x4000_0000, 0x8000_0000] {
        let cell = Cell::new();
        let mut network = Network::with_epoch(&cell, 11, epoch);
        let connection = network.connect(&cell.token(), Level::Clear);
        network.ask(connection, b"first").unwrap();
        let mut sent = network.log.iter();
        let mut forged = sent
            .find(|datagram| datagram.from == address(CLIENT) && datagram.is(PacketType::DATA))
            .unwrap()
            .clone();
        let mut header = forged.header();
        header.call_number += 1;
        forged.set_header(&header);
        forged.from = address(ATTACKER);
        network.log.clear();
        network.inject(forged);
        network.run(10, |_| false);
        assert_eq!(network.served(), 1, "nothing ran for the attacker");
        let mut received = network.log.iter();
        assert!(
            received
                .all(|datagram| datagram.to != address(ATTACKER) || !datagram.is(PacketType::DATA)),
            "no reply went to the attacker"
        );
    }
}

#[test]
fn an_expired_ticket_ends_connections() {
    let cell = Cell::new();
    let mut network = Network::new(&cell, 12);
    let mut token = cell.token();
    token.expires = cellar_wire::AfsTime(u32::try_from(common::START).unwrap() + 5);
    let connection = network.connect(&token, Level::Crypt);
    network.ask(connection, b"in time").unwrap();
    network.run(10, |_| false);
    let outcome = network.ask(connection, b"too late");
    assert_eq!(outcome, Err(code("RXKADEXPIRED")));
}

#[test]
fn guessing_is_slowed_down_and_others_are_let_in() {
    let (cell, other) = (Cell::new(), Cell::new());
    let mut network = Network::new(&cell, 13);
    let wrong = other.token();
    let connections: Vec<_> = (0..20)
        .map(|_| network.connect(&wrong, Level::Clear))
        .collect();
    let calls: Vec<_> = connections
        .iter()
        .map(|&connection| network.call(connection, b"guess"))
        .collect();
    for call in calls {
        assert_eq!(network.wait(call), Err(code("RXKADBADTICKET")));
    }
    // The twentieth failure within a minute pauses the address; its honest users wait, and go on.
    let begin = network.now;
    let connection = network.connect(&cell.token(), Level::Clear);
    network.ask(connection, b"honest").unwrap();
    let waited = network.now.since(begin).as_secs();
    assert!((5..=12).contains(&waited), "{waited}");
    let figures = cell.authority.figures();
    assert!(figures.withheld >= 2);
    assert_eq!((figures.failing_peers, figures.authenticated), (1, 1));
}

#[test]
fn forged_addresses_delay_their_owner_by_one_pause() {
    let (cell, other) = (Cell::new(), Cell::new());
    let mut network = Network::new(&cell, 16);
    let responses = record(&mut network, PacketType::RESPONSE);
    let connection = network.connect(&other.token(), Level::Clear);
    network.ask(connection, b"guess").unwrap_err();
    let response = responses.lock().unwrap()[0].clone();
    let mut sent = network.log.iter();
    let request = sent
        .find(|datagram| datagram.is(PacketType::DATA))
        .unwrap()
        .clone();
    // An attacker who sees no packets forges packets of the client.
    let on = |datagram: &Datagram, n: u32| {
        let mut header = datagram.header();
        header.cid = 0x1000 + 4 * n;
        let mut datagram = datagram.clone();
        datagram.set_header(&header);
        datagram
    };
    for n in 0..400 {
        network.inject(on(&request, n));
    }
    network.run(1, |_| false);
    for n in 0..20 {
        network.inject(on(&response, n));
    }
    network.run(1, |_| false);
    assert_eq!(cell.refused("RXKADBADTICKET"), 21);

    // While the address gets no challenges, answers to none are not looked at.
    for n in 400..500 {
        network.inject(on(&request, n));
    }
    network.run(1, |_| false);
    for n in 400..500 {
        network.inject(on(&response, n));
    }
    network.run(1, |_| false);
    assert_eq!(cell.refused("RXKADBADTICKET"), 21);

    // Answers to earlier challenges keep the address paused; its owner waits all the same no
    // longer.
    let begin = network.now;
    let connection = network.connect(&cell.token(), Level::Clear);
    let call = network.call(connection, b"honest");
    for n in 20..400 {
        network.inject(on(&response, n));
        if n % 20 == 19 {
            network.run(1, |network| network.results.contains_key(&call));
        }
    }
    assert_eq!(network.wait(call), Ok(b"honest".to_vec()));
    let waited = network.now.since(begin).as_secs();
    assert!((5..=12).contains(&waited), "{waited}");
}

#[test]
fn attacks_are_refused_under_loss_too() {
    for seed in 0..6 {
        let (cell, other) = (Cell::new(), Cell::new());
        let mut network = Network::new(&cell, seed);
        network.loss = 150;
        let good = network.connect(&cell.token(), Level::Crypt);
        let bad = network.connect(&other.token(), Level::Crypt);
        let calls = [
            network.call(good, &pattern(20_000)),
            network.call(bad, &pattern(20_000)),
        ];
        assert_eq!(network.wait(calls[0]), Ok(pattern(20_000)), "seed {seed}");
        let outcome = network.wait(calls[1]);
        assert_eq!(outcome, Err(code("RXKADBADTICKET")), "seed {seed}");
        assert_eq!(network.served(), 1);
    }
}

#[test]
fn secrets_are_not_printed() {
    let cell = Cell::new();
    let token = cell.token();
    let key = SecretKey::new(Enctype::Aes128Sha1, &[0xa5; 16]).unwrap();
    let shown = format!(
        "{token:?} {key:?} {:?}",
        token.client_security(Level::Crypt)
    );
    for secret in ["session_key", "ticket:", "165", "a5a5"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}
