//! Requests that OpenAFS's programs sent (`testdata/messages`), with damage.

use cellar_rpc::Runtime;
use cellar_wire::package::Package;
use cellar_wire::{afsosd, disk, rxperf, rxstats, vote};

use crate::hostile::cell::{Cell, PORTS, Random, begin, code_of, run, within};

const SS_UNMARSHAL: i32 = -453;
const DECODE: i32 = -454;
const OPCODE: i32 = -455;
const INVALID_OPERATION: i32 = -2;

struct Message {
    offset: u16,
    package: &'static Package,
    /// Opcode and arguments.
    request: Vec<u8>,
}

/// Every recorded request to a server, with the scratch volume in place of the recorded one.
fn recorded(volume: u32) -> Vec<Message> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../testdata/messages/openafs-1.8.9.txt"
    );
    let text = std::fs::read_to_string(path).unwrap();
    let message = |line: &str| {
        let words: Vec<_> = line.split(' ').collect();
        let [package, opcode, "arguments", hex] = words[..] else {
            return None;
        };
        let services = PORTS.iter().map(|(_, offset, package)| (*offset, *package));
        let mut services = services.chain([(3, &vote::PACKAGE), (2, &disk::PACKAGE)]);
        let (offset, package) = services.find(|(_, known)| known.name == package)?;
        let mut request = opcode.parse::<u32>().unwrap().to_be_bytes().to_vec();
        let digits = hex
            .as_bytes()
            .chunks(2)
            .map(|pair| std::str::from_utf8(pair).unwrap());
        request.extend(digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()));
        for at in (4..request.len() - request.len() % 4).step_by(4) {
            if request[at..at + 4] == 0x2000_0003u32.to_be_bytes() {
                request[at..at + 4].copy_from_slice(&volume.to_be_bytes());
            }
        }
        Some(Message {
            offset,
            package,
            request,
        })
    };
    let messages: Vec<_> = text.lines().filter_map(message).collect();
    assert!(messages.len() > 60);
    messages
}

/// Cut at every byte, each gets the code for arguments that do not parse, and is counted.
#[test]
fn requests_cut_at_every_byte() {
    run(async {
        let (mut cell, client, _, root) = begin().await;
        let volume = root.volume.0;
        let mut sent = 0;
        for message in recorded(volume) {
            let connection = cell
                .target
                .connect(&client, message.offset, message.package);
            let whole = code_of(&connection, message.package, message.request.clone()).await;
            if whole == OPCODE {
                continue;
            }
            for len in 0..message.request.len() {
                let code = code_of(
                    &connection,
                    message.package,
                    message.request[..len].to_vec(),
                )
                .await;
                let expected = if len < 4 { DECODE } else { SS_UNMARSHAL };
                let what = &message.request[..4];
                assert_eq!(
                    code, expected,
                    "{} {what:?} cut at {len}",
                    message.package.name
                );
                sent += 1;
            }
        }
        assert!(sent > 2000, "{sent}");
        cell.assert_well(&client).await;
        let statistics = cell.statistics();
        let bad = statistics["files"]["refused"]["bad_arguments"]
            .as_u64()
            .unwrap();
        assert!(bad > 500, "{statistics}");
        let aborts: u64 = statistics["ports"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|port| port["procedures"].as_array().unwrap())
            .map(|procedure| procedure["aborts"].as_u64().unwrap())
            .sum();
        assert!(aborts + 4 * 70 >= sent, "{aborts} of {sent}");
    });
}

/// With flipped bits they are other requests. Any answer is right, but there must be one, and
/// quickly.
#[test]
fn requests_with_bits_flipped() {
    run(async {
        let (mut cell, client, _, root) = begin().await;
        let volume = root.volume.0;
        let mut random = Random(0x5eed_0001_1234_4321);
        let messages = recorded(volume);
        let connections: Vec<_> = messages
            .iter()
            .map(|message| {
                cell.target
                    .connect(&client, message.offset, message.package)
            })
            .collect();
        for round in 0..60 {
            if round == 5 {
                // Memory that is allocated once is allocated by now.
                cell.assert_well(&client).await;
            }
            for (message, connection) in messages.iter().zip(&connections) {
                let mut request = message.request.clone();
                for _ in 0..1 + random.below(4) {
                    let at = random.below(request.len() * 8);
                    request[at / 8] ^= 1 << (at % 8);
                }
                if round % 4 == 0 {
                    // An absurd length or number.
                    let word = random.below(request.len() / 4) * 4;
                    let value: [u32; 4] = [u32::MAX, 0x7fff_ffff, 0x8000_0000, 0x00ff_ffff];
                    request[word..word + 4].copy_from_slice(&value[random.below(4)].to_be_bytes());
                }
                code_of(connection, message.package, request).await;
            }
        }
        cell.assert_well(&client).await;
    });
}

#[test]
fn opcodes_and_services_that_do_not_exist() {
    run(async {
        let mut cell = Cell::start();
        let client = Runtime::client_only().unwrap();
        for (name, offset, package) in PORTS {
            let connection = cell.target.connect(&client, offset, package);
            for opcode in [0u32, 1, 99, 999, 64_000, 65_550, 0x7fff_ffff, u32::MAX] {
                let mut request = opcode.to_be_bytes().to_vec();
                request.extend([0xff; 40]);
                let code = code_of(&connection, package, request).await;
                if package.procedure(opcode).is_none() {
                    assert_eq!(code, OPCODE, "{name} {opcode}");
                }
            }
            for service_id in [0u16, 2, 7, 51, 100, 1999, 65_535] {
                let there = [
                    &vote::PACKAGE,
                    &disk::PACKAGE,
                    &rxstats::PACKAGE,
                    &rxperf::PACKAGE,
                ];
                // The port of RXAFS also offers direct access to files in objects.
                let beside = offset == 0 && service_id == afsosd::PACKAGE.service_id;
                if package.service_id == service_id
                    || beside
                    || there.iter().any(|p| p.service_id == service_id)
                {
                    continue;
                }
                let nobody = client
                    .connect(
                        cell.target.port(offset),
                        service_id,
                        cellar_rpc::Security::null(),
                    )
                    .unwrap();
                let code = code_of(&nobody, package, vec![0, 0, 0, 130]).await;
                assert_eq!(code, INVALID_OPERATION, "{name} service {service_id}");
            }
        }
        let statistics = cell.statistics();
        assert!(
            statistics["files"]["refused"]["unknown_opcode"]
                .as_u64()
                .unwrap()
                >= 8,
            "{statistics}"
        );
        for port in statistics["ports"].as_array().unwrap() {
            assert!(port["unknown_opcodes"].as_u64().unwrap() >= 5, "{port}");
            assert!(
                port["transport"]["aborts_sent"].as_u64().unwrap() >= 12,
                "{port}"
            );
        }
        within(cell.assert_well(&client)).await;
    });
}
