//! Attacks below the calls: garbage, damaged packets, floods of connections, forged packets.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use cellar_rpc::Runtime;
use cellar_wire::rxafs;

use crate::hostile::cell::{Cell, PATIENCE, PORTS, Random, begin, mode, name, run, store, within};
use crate::hostile::packet::{
    ABORT, ACK, ACKALL, BUSY, CLIENT, DATA, DELAY, LAST, PING_RESPONSE, Packet, ack,
};
use crate::hostile::words::Words;

fn send(socket: &UdpSocket, bytes: &[u8], to: SocketAddr) {
    // A full buffer at either end may drop packets.
    let _dropped = socket.send_to(bytes, to);
}

/// Waits until the server has processed all packets: it answers in the order of arrival.
async fn wait_until_processed(cell: &mut Cell, client: &Runtime) {
    tokio::time::sleep(Duration::from_millis(200)).await;
    cell.assert_well(client).await;
}

fn transport(statistics: &serde_json::Value, name: &str) -> u64 {
    let ports = statistics["ports"].as_array().unwrap();
    ports
        .iter()
        .map(|port| port["transport"][name].as_u64().unwrap())
        .sum()
}

#[test]
fn garbage_on_every_port() {
    run(async {
        let (mut cell, client, _, root) = begin().await;
        cell.assert_well(&client).await;
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut random = Random(0x0dd_ba11_5eed_0001);
        // The first round is for memory that is allocated once.
        let mut before = 0;
        for round in 0..4 {
            for (_, offset, package) in PORTS {
                let to = cell.target.port(offset);
                for number in 0..4000 {
                    let mut bytes: Vec<u8> = (0..random.below(200))
                        .map(|_| random.next() as u8)
                        .collect();
                    if number % 2 == 0 && bytes.len() >= 28 {
                        // Plausible packets: known types and flags, no security, this service.
                        bytes[20] = random.below(14) as u8;
                        bytes[21] &= 0x27;
                        bytes[23] = 0;
                        bytes[26..28].copy_from_slice(&package.service_id.to_be_bytes());
                    }
                    if number % 500 == 0 {
                        bytes.resize(9000, 0xaa);
                    }
                    send(&socket, &bytes, to);
                    if number % 200 == 0 {
                        // The socket of the server has a small buffer.
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                }
                // A real request cut at every byte, as a packet, and with every type.
                let request = Words::opcode(132).fid(root).bytes().to_vec();
                for len in 0..request.len() + 28 {
                    let packet = Packet {
                        epoch: 0x8000_0000 | random.next() as u32,
                        cid: (random.next() as u32) & !3,
                        call: 1,
                        seq: 1,
                        serial: 1,
                        kind: DATA,
                        flags: CLIENT | LAST,
                        service: package.service_id,
                    };
                    send(&socket, &packet.bytes(&request)[..len], to);
                    let packet = Packet {
                        kind: len as u8,
                        ..packet
                    };
                    send(&socket, &packet.bytes(&request), to);
                    let packet = Packet {
                        kind: ACK,
                        flags: CLIENT,
                        ..packet
                    };
                    send(
                        &socket,
                        &packet.bytes(&ack(DELAY, u32::MAX, 1, u32::MAX)),
                        to,
                    );
                }
            }
            wait_until_processed(&mut cell, &client).await;
            if round == 1 {
                before = cell.resident();
            }
        }
        let grown = cell.resident().saturating_sub(before);
        eprintln!("40,000 datagrams of garbage: {} KiB", grown >> 10);
        assert!(grown < 48 << 20, "{} MiB", grown >> 20);
        let statistics = cell.statistics();
        assert!(
            transport(&statistics, "bogus_packets") > 1000,
            "{statistics:#}"
        );
        assert!(
            transport(&statistics, "aborts_sent") > 1000,
            "{statistics:#}"
        );
    });
}

/// A new connection for each call, many of which never continue, from a host that never answers.
/// Another host is served meanwhile.
#[test]
fn floods_of_connections() {
    run(async {
        let (mut cell, client, _, root) = begin().await;
        cell.assert_well(&client).await;
        let before = cell.resident();
        let to = cell.target.port(0);
        let status = Words::opcode(132).fid(root);
        let store = Words::opcode(65538)
            .fid(root)
            .words([0; 6])
            .long(0)
            .long(1 << 30)
            .long(1 << 30);
        let mut sent = 0u32;
        for port in 0..50u32 {
            let socket = UdpSocket::bind("127.0.0.9:0").unwrap();
            for number in 0..600u32 {
                let (request, flags) = match number % 3 {
                    // Whole calls; stores that never continue; requests that never end.
                    0 => (status.bytes(), CLIENT | LAST),
                    1 => (store.bytes(), CLIENT),
                    _ => (&status.bytes()[..6], CLIENT),
                };
                let packet = Packet {
                    epoch: 0x4000_0000 + port,
                    cid: number << 2,
                    call: 1,
                    seq: 1,
                    serial: 1,
                    kind: DATA,
                    flags,
                    service: 1,
                };
                send(&socket, &packet.bytes(request), to);
                sent += 1;
                if number % 100 == 0 {
                    // The socket of the server has a small buffer.
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
        }
        wait_until_processed(&mut cell, &client).await;
        let grown = cell.resident().saturating_sub(before);
        let statistics = cell.statistics();
        let connections = transport(&statistics, "server_connections");
        let evicted = transport(&statistics, "evicted_connections");
        eprintln!(
            "{sent} calls on as many connections, {connections} kept: {} MiB",
            grown >> 20
        );
        assert!(grown < 48 << 20, "{} MiB", grown >> 20);
        assert!(evicted > 5000, "the flood did not arrive: {statistics:#}");
        // One address has a share at each processor.
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        assert!(connections < 1_100 * processors as u64, "{connections}");
    });
}

/// One client fetches a file slowly; an attacker forges ends, acknowledgements and data for that
/// call.
#[test]
fn forged_packets_change_nothing() {
    run(async {
        let (mut cell, client, files, root) = begin().await;
        let create = rxafs::CreateFile {
            dir_fid: root,
            name: name("f"),
            in_status: mode(0o644),
        };
        let fid = within(files.call(&create)).await.unwrap().fid;
        within(store(&files, fid, 0, 200_000, vec![5; 200_000].into()))
            .await
            .unwrap();
        // The victim, by hand: its epoch binds the connection to its address.
        let to = cell.target.port(0);
        let victim = UdpSocket::bind("127.0.0.1:0").unwrap();
        victim
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let call = Packet {
            epoch: 0x1234_5678,
            cid: 0x4242_4240,
            call: 1,
            seq: 1,
            serial: 1,
            kind: DATA,
            flags: CLIENT | LAST,
            service: 1,
        };
        let fetch = Words::opcode(65537).fid(fid).long(0).long(200_000);
        send(&victim, &call.bytes(fetch.bytes()), to);
        let forger = UdpSocket::bind("127.0.0.1:0").unwrap();
        let forge = || {
            for epoch in [call.epoch, call.epoch ^ 1, 0x8000_0000 | call.epoch] {
                for number in [0, 1, 2] {
                    let at = Packet {
                        epoch,
                        call: number,
                        serial: 900,
                        flags: CLIENT,
                        ..call
                    };
                    send(
                        &forger,
                        &Packet { kind: ABORT, ..at }.bytes(&(-6i32).to_be_bytes()),
                        to,
                    );
                    send(&forger, &Packet { kind: ACKALL, ..at }.bytes(&[]), to);
                    send(&forger, &Packet { kind: BUSY, ..at }.bytes(&[]), to);
                    send(
                        &forger,
                        &Packet { kind: ACK, ..at }.bytes(&ack(DELAY, u32::MAX / 2, 1, 65_535)),
                        to,
                    );
                    send(
                        &forger,
                        &Packet {
                            kind: DATA,
                            seq: 1,
                            flags: CLIENT | LAST,
                            ..at
                        }
                        .bytes(&[0; 40]),
                        to,
                    );
                }
            }
        };
        // Collects the reply packet by packet; the attacker answers each, too.
        let mut packets = std::collections::BTreeMap::new();
        let mut last = None;
        let mut serial = 1;
        let mut buffer = [0; 20_000];
        let mut first = 1;
        let start = Instant::now();
        while last.is_none_or(|last| first <= last) {
            assert!(start.elapsed() < PATIENCE, "at packet {first} of {last:?}");
            forge();
            let mut reason = DELAY;
            let (len, from) = victim.recv_from(&mut buffer).expect("the reply goes on");
            assert_eq!(from, to);
            let header = &buffer[..28];
            let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
            if header[21] & CLIENT != 0 {
                // The server asks for our identity and resets our callbacks. We send the fewest
                // answers that it accepts.
                if header[20] == DATA {
                    let opcode = u32::from_be_bytes(buffer[28..32].try_into().unwrap());
                    let answer = Packet {
                        epoch: word(0),
                        cid: word(4),
                        call: word(8),
                        flags: LAST,
                        ..call
                    };
                    if matches!(opcode, 205 | 213) {
                        send(&victim, &answer.bytes(&[]), to);
                    } else {
                        let answer = Packet {
                            kind: ABORT,
                            flags: 0,
                            ..answer
                        };
                        send(&victim, &answer.bytes(&(-455i32).to_be_bytes()), to);
                    }
                }
                continue;
            }
            match header[20] {
                DATA => {
                    assert_eq!(header[21] & 0x20, 0, "no jumbograms were asked for");
                    let seq = word(12);
                    if header[21] & LAST != 0 {
                        last = Some(seq);
                    }
                    packets.insert(seq, buffer[28..len].to_vec());
                    while packets.contains_key(&first) {
                        first += 1;
                    }
                }
                ABORT => panic!("the call was aborted: {:?}", &buffer[28..len]),
                // A check whether we can be reached.
                ACK => reason = PING_RESPONSE,
                other => panic!("a packet of type {other}"),
            }
            serial += 1;
            let answer = Packet {
                kind: ACK,
                flags: CLIENT,
                seq: 0,
                serial,
                ..call
            };
            send(&victim, &answer.bytes(&ack(reason, first, word(16), 4)), to);
        }
        let reply: Vec<u8> = packets.into_values().flatten().collect();
        assert_eq!(reply[..8], 200_000u64.to_be_bytes());
        assert!(reply[8..200_008].iter().all(|byte| *byte == 5));
        wait_until_processed(&mut cell, &client).await;
    });
}
