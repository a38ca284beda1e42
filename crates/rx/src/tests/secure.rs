//! Security classes: a test class with a challenge, room on both sides, and a checksum.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::harness::{Answer, Link, SERVICE, Seed, World, pattern};
use super::stock::Desk;
use crate::packet::{Flags, Header, PacketType};
use crate::*;

/// Adds eight bytes before and padding to eight bytes after the data, and XORs all with the
/// packet's identity.
#[derive(Debug, Clone, Default)]
struct Toy {
    nonce: u32,
    authenticated: bool,
    key: u8,
    responses: Arc<AtomicU32>,
}

fn mask(packet: &PacketIdentity, key: u8) -> u8 {
    (packet.epoch ^ packet.cid ^ packet.call_number ^ packet.seq) as u8
        ^ key
        ^ u8::from(packet.from_client)
}

impl PacketSecurity for Toy {
    fn overhead(&self) -> Overhead {
        Overhead {
            header: 8,
            trailer: 8,
        }
    }

    fn protect(
        &mut self,
        packet: &PacketIdentity,
        payload: &mut Vec<u8>,
        start: usize,
    ) -> Result<u16, i32> {
        let length = payload.len() - start - 8;
        payload[start..start + 4].copy_from_slice(&(length as u32).to_be_bytes());
        while !(payload.len() - start).is_multiple_of(8) {
            payload.push(0);
        }
        let mask = mask(packet, self.key);
        payload[start..].iter_mut().for_each(|byte| *byte ^= mask);
        Ok(u16::from(mask) + 1)
    }

    fn unprotect(
        &mut self,
        packet: &PacketIdentity,
        checksum: u16,
        payload: Bytes,
    ) -> Result<Bytes, i32> {
        let mask = mask(packet, self.key);
        let plain: Vec<u8> = payload.iter().map(|byte| byte ^ mask).collect();
        if checksum != u16::from(mask) + 1 || plain.len() < 8 {
            return Err(19_270_410);
        }
        let length = u32::from_be_bytes(plain[..4].try_into().unwrap()) as usize;
        plain
            .get(8..8 + length)
            .map(Bytes::copy_from_slice)
            .ok_or(19_270_411)
    }

    fn details(&self) -> SecurityDetails {
        SecurityDetails {
            kind: 3,
            level: 2,
            flags: 2,
            expires: 0,
        }
    }
}

impl ClientSecurity for Toy {
    fn index(&self) -> u8 {
        2
    }

    fn respond(&mut self, _: &ConnectionIdentity, challenge: &[u8]) -> Result<Vec<u8>, i32> {
        self.responses.fetch_add(1, Ordering::Relaxed);
        let nonce: [u8; 4] = challenge.try_into().map_err(|_| 19_270_401)?;
        Ok((u32::from_be_bytes(nonce) + u32::from(self.key))
            .to_be_bytes()
            .to_vec())
    }
}

impl ServerSecurity for Toy {
    fn accept(&self, connection: &ConnectionIdentity) -> Box<dyn ServerConnectionSecurity> {
        assert_ne!(connection.first_checksum, 0);
        Box::new(self.clone())
    }
}

impl ServerConnectionSecurity for Toy {
    fn authenticated(&self) -> bool {
        self.authenticated
    }

    fn challenge(&mut self, _: &ConnectionIdentity, random: u64) -> Vec<u8> {
        if self.nonce == 0 {
            self.nonce = (random as u32) >> 1 | 1;
        }
        self.nonce.to_be_bytes().to_vec()
    }

    fn response(
        &mut self,
        connection: &ConnectionIdentity,
        _: u16,
        response: &[u8],
    ) -> Result<[u32; 4], i32> {
        if response != (self.nonce + u32::from(self.key)).to_be_bytes() {
            return Err(19_270_404);
        }
        self.authenticated = true;
        Ok(connection.call_numbers)
    }

    fn caller(&self) -> Caller {
        Caller::Principal(Arc::new(self.key))
    }
}

/// Gives the server the class whose key is 9.
fn serve(world: &mut World) {
    let server = Toy {
        key: 9,
        ..Toy::default()
    };
    world.nodes[1].endpoint.add_service(ServiceConfig {
        id: SERVICE,
        security: vec![(2, Arc::new(server))],
        reach_check: true,
        idle_dead_time: None,
    });
}

fn world(seed: u64, link: Link, client_key: u8) -> (World, ConnectionId, Arc<AtomicU32>) {
    let mut world = World::new(seed, link);
    serve(&mut world);
    let client = Toy {
        key: client_key,
        ..Toy::default()
    };
    let responses = client.responses.clone();
    let to = world.nodes[1].address;
    let now = world.now;
    let connection = world.nodes[0].endpoint.connect(
        now,
        to,
        SERVICE,
        Box::new(client),
        ConnectionOptions::default(),
    );
    (world, connection, responses)
}

const LIMIT: Duration = Duration::from_secs(200);

#[test]
fn one_challenge_for_a_connection() {
    let (mut world, connection, responses) = world(1, Link::default(), 9);
    for size in [0, 1, 1399, 1400, 1401, 50_000] {
        let request = pattern(size);
        let call = world.call(connection, &request);
        assert_eq!(world.finish(LIMIT, call), Ok(request));
    }
    let calls: Vec<CallId> = (0..4)
        .map(|_| world.call(connection, b"parallel"))
        .collect();
    for call in calls {
        assert_eq!(world.finish(LIMIT, call), Ok(b"parallel".to_vec()));
    }
    assert_eq!(responses.load(Ordering::Relaxed), 1);
    let record = world.nodes[1].endpoint.debug_connection(0, false).unwrap();
    assert_eq!((record.security_index, record.security.kind), (2, 3));
}

#[test]
fn a_new_challenge_ends_the_calls_that_an_earlier_process_had() {
    let (mut world, connection, responses) = world(4, Link::default(), 9);
    let first = world.call(connection, b"x");
    assert_eq!(world.finish(LIMIT, first), Ok(b"x".to_vec()));
    world.nodes[1].answer = Answer::Silence;
    let acknowledged = world.call(connection, b"y");
    world.run_for(Duration::from_secs(1));
    // This one reaches only the new process.
    world.link.loss = 1000;
    let sent = world.call(connection, b"z");
    world.run_for(Duration::from_millis(1));
    world.link.loss = 0;
    world.restart_server();
    serve(&mut world);
    world.nodes[1].answer = Answer::Echo;
    let begun = world.now;
    let other = world.call(connection, b"other");
    assert_eq!(world.finish(LIMIT, other), Ok(b"other".to_vec()));
    assert_eq!(world.finish(LIMIT, acknowledged), Err(code::GONE));
    let took = world.now.since(begun);
    assert!(took < Duration::from_millis(100), "{took:?}");
    assert_eq!(world.finish(LIMIT, sent), Ok(b"z".to_vec()));
    assert_eq!(responses.load(Ordering::Relaxed), 2);
}

#[test]
fn protected_packets_through_a_bad_network() {
    for seed in 20..26 {
        let seed = Seed::from_environment(seed);
        let link = Link {
            delay: Duration::from_millis(3),
            jitter: Duration::from_millis(2),
            loss: 80,
            duplicate: 50,
            ..Link::default()
        };
        let (mut world, connection, _) = world(seed.0, link, 9);
        for size in [10, 300_000] {
            let request = pattern(size);
            let call = world.call(connection, &request);
            assert!(world.finish(LIMIT, call) == Ok(request));
        }
        world.nodes[1].answer = Answer::Bytes(200_000);
        let call = world.call(connection, b"x");
        assert!(world.finish(LIMIT, call) == Ok(pattern(200_000)));
    }
}

#[test]
fn a_wrong_answer_is_told_one_second_later() {
    let (mut world, connection, _) = world(2, Link::default(), 8);
    let start = world.now;
    let call = world.call(connection, b"x");
    assert_eq!(world.finish(LIMIT, call), Err(19_270_404));
    let took = world.now.since(start);
    assert!(
        took >= Duration::from_secs(1) && took < Duration::from_millis(1_100),
        "{took:?}"
    );
    assert_eq!(world.nodes[0].failed_connections, [19_270_404]);
    let now = world.now;
    let again = world.nodes[0].endpoint.start_call(now, connection);
    assert_eq!(again, Err(StartCallError::Failed(19_270_404)));
    assert_eq!(world.nodes[1].served, 0);
}

#[test]
fn packets_that_do_not_verify_end_the_connection() {
    let (mut world, connection, _) = world(3, Link::default(), 9);
    let call = world.call(connection, b"x");
    world.finish(LIMIT, call).unwrap();
    // An attacker without the key sends the first packet of the next call.
    let info = world.nodes[0].endpoint.connection(connection).unwrap();
    let header = Header {
        epoch: info.epoch,
        cid: info.cid,
        call_number: 2,
        seq: 1,
        serial: 50,
        packet_type: PacketType::DATA,
        flags: Flags(Flags::CLIENT_INITIATED | Flags::LAST_PACKET),
        user_status: 0,
        security_index: 2,
        checksum: 777,
        service: SERVICE,
    };
    let mut forged = header.encode().to_vec();
    forged.extend_from_slice(&[0; 16]);
    let (from, to) = (world.nodes[0].address, world.nodes[1].address);
    world.inject(from, to, forged);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.nodes[1].failed_connections, [19_270_410]);
    assert_eq!(
        world.nodes[1].results.values().next(),
        Some(&Err(19_270_410))
    );
}

#[test]
fn challenges_are_repeated_fifty_times() {
    let mut desk = Desk::server(Config::default());
    desk.endpoint.add_service(ServiceConfig {
        id: SERVICE,
        security: vec![(
            2,
            Arc::new(Toy {
                key: 9,
                ..Toy::default()
            }),
        )],
        reach_check: false,
        idle_dead_time: None,
    });
    let secure = |header: Header| Header {
        security_index: 2,
        checksum: 5,
        ..header
    };
    // A RESPONSE without a challenge changes nothing.
    let first = desk.put(secure(Desk::header(PacketType::DATA, 1, 2, 1)), b"x");
    assert!(
        first
            .iter()
            .all(|s| s.header.packet_type != PacketType::CHALLENGE)
    );
    assert!(
        desk.put(secure(Desk::header(PacketType::RESPONSE, 0, 0, 1)), &[0; 4])
            .is_empty()
    );
    let seen = desk.put(secure(Desk::header(PacketType::DATA, 1, 1, 2)), b"x");
    let challenge = seen
        .iter()
        .find(|s| s.header.packet_type == PacketType::CHALLENGE)
        .unwrap();
    assert_eq!(
        (challenge.header.call_number, challenge.header.cid & 3),
        (0, 0)
    );
    let mut challenges = 1;
    for i in 0..150 {
        // The client is alive but does not answer the challenge.
        let ack = super::stock::plain_ack(1, 0, 0, packet::AckReason::PING);
        let mut payload = Vec::new();
        ack.encode(&mut payload);
        desk.put(
            secure(Desk::header(PacketType::ACK, 1, 0, 10 + i)),
            &payload,
        );
        for seen in desk.pass(Duration::from_secs(1)) {
            if seen.header.packet_type == PacketType::CHALLENGE {
                challenges += 1;
                assert_eq!(seen.payload, challenge.payload);
            }
        }
    }
    assert_eq!(challenges, 50);
    assert!(desk.events.is_empty());
    assert_eq!(desk.endpoint.statistics().calls_waiting, 0);
}

/// One datagram with a forged address causes one challenge, one ping, and nothing else.
#[test]
fn a_forged_address_is_challenged_once() {
    let mut desk = Desk::server(Config::default());
    desk.endpoint.add_service(ServiceConfig {
        id: SERVICE,
        security: vec![(2, Arc::new(Toy::default()))],
        reach_check: true,
        idle_dead_time: None,
    });
    let header = Header {
        security_index: 2,
        checksum: 5,
        ..Desk::header(PacketType::DATA, 1, 1, 1)
    };
    let mut seen = desk.put(header, b"x");
    seen.extend(desk.pass(Duration::from_secs(600)));
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert_eq!(seen[0].header.packet_type, PacketType::CHALLENGE);
    assert_eq!(seen[1].ack().reason, packet::AckReason::PING);
}

#[test]
fn a_client_is_no_oracle() {
    let (mut world, connection, responses) = world(4, Link::default(), 9);
    let call = world.call(connection, b"x");
    world.finish(LIMIT, call).unwrap();
    assert_eq!(responses.load(Ordering::Relaxed), 1);
    let info = world.nodes[0].endpoint.connection(connection).unwrap();
    let challenge = Header {
        epoch: info.epoch,
        cid: info.cid,
        call_number: 0,
        seq: 0,
        serial: 50,
        packet_type: PacketType::CHALLENGE,
        flags: Flags(0),
        user_status: 0,
        security_index: 2,
        checksum: 0,
        service: SERVICE,
    };
    let mut bytes = challenge.encode().to_vec();
    bytes.extend_from_slice(&[1; 4]);
    let (client, server) = (world.nodes[0].address, world.nodes[1].address);
    world.inject(server, client, bytes.clone());
    world.run_for(Duration::from_secs(1));
    assert_eq!(responses.load(Ordering::Relaxed), 1, "no call was active");
}
