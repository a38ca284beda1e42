//! Packet formats: packets of stock peers, round trips of every type, every truncation.
//!
//! Hex comes from exchanges with OpenAFS 1.8.9 (rx-wire facts 1.1, 2.1, 3.5, 4.2).

use crate::packet::*;
use crate::security::SecurityDetails;
use crate::statistics::Statistics;

pub(super) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

const FINAL_ACK: &str = "8be54e16 6e091198 00000001 00000000 00000003 02 21 00 02 ee23 0034
    0000 0000 00000002 00000001 00000000 08 00 000000 0000163c 000005a4 00000020 00000004";

#[test]
fn a_stock_final_ack() {
    let bytes = hex(FINAL_ACK);
    assert_eq!(bytes.len(), 65);
    let header = Header::decode(&bytes).unwrap();
    assert_eq!(header.epoch, 0x8be5_4e16);
    assert_eq!((header.cid, header.channel()), (0x6e09_1198, 0));
    assert_eq!((header.call_number, header.seq, header.serial), (1, 0, 3));
    assert_eq!(header.packet_type, PacketType::ACK);
    assert!(header.from_client() && header.flags.has(Flags::SLOW_START_OK));
    // The checksum field contains stale bytes.
    assert_eq!(
        (header.security_index, header.checksum, header.service),
        (2, 0xee23, 52)
    );
    assert_eq!(header.encode(), bytes[..28]);
    let ack = Ack::decode(&bytes[28..]).unwrap();
    assert_eq!(
        (ack.first_packet, ack.previous_packet, ack.serial),
        (2, 1, 0)
    );
    assert_eq!((ack.reason, ack.acks.len()), (AckReason::DELAY, 0));
    let trailer = Trailer {
        max_datagram: 5692,
        interface_mtu: Some(1444),
        window: Some(32),
        jumbo_max: Some(4),
    };
    assert_eq!((ack.trailer, ack.cellar.clone()), (Some(trailer), None));
    let mut again = Vec::new();
    ack.encode(&mut again);
    assert_eq!(again, bytes[28..]);
}

#[test]
fn a_stock_out_of_order_ack() {
    let bytes = hex(
        "0000 0000 00000001 00000002 00000001 03 02 0001 000000 000005a4 000005a4 00000010 00000001",
    );
    let ack = Ack::decode(&bytes).unwrap();
    assert_eq!(
        (ack.first_packet, ack.previous_packet, ack.serial),
        (1, 2, 1)
    );
    assert_eq!(
        (ack.reason, ack.acks),
        (AckReason::OUT_OF_SEQUENCE, &[0, 1][..])
    );
    assert_eq!(ack.trailer.unwrap().window, Some(16));
    let mut again = Vec::new();
    ack.encode(&mut again);
    assert_eq!(again, bytes);
}

#[test]
fn acks_with_less_than_everything() {
    let bytes = hex(
        "0000 0000 00000001 00000002 00000001 03 02 0001 000000 000005a4 000005a4 00000010 00000001",
    );
    for length in 0..=bytes.len() {
        let ack = Ack::decode(&bytes[..length]);
        assert_eq!(ack.is_some(), length >= 18, "{length}");
        let Some(ack) = ack else { continue };
        assert_eq!(ack.acks.len(), (length - 18).min(2));
        let words = length.saturating_sub(23) / 4;
        assert_eq!(ack.trailer.is_some(), words >= 1);
        assert_eq!(
            ack.trailer.and_then(|t| t.interface_mtu).is_some(),
            words >= 2
        );
        assert_eq!(ack.trailer.and_then(|t| t.window).is_some(), words >= 3);
        assert_eq!(ack.trailer.and_then(|t| t.jumbo_max).is_some(), words >= 4);
    }
    // Padding of an MTU probe is no extension. The ACK announces 255 bytes and contains 2.
    let mut padded = bytes.clone();
    padded.resize(1400, 0);
    assert_eq!(Ack::decode(&padded), Ack::decode(&bytes));
    let mut short = bytes[..20].to_vec();
    short[17] = 255;
    assert_eq!(Ack::decode(&short).unwrap().acks, &[0, 1]);
}

#[test]
fn the_extension_there_and_back_and_cut() {
    let ack = Ack {
        first_packet: 7,
        previous_packet: 600,
        serial: 9,
        reason: AckReason::IDLE,
        acks: &[1; 255],
        trailer: Some(Trailer {
            max_datagram: 1444,
            interface_mtu: Some(1444),
            window: Some(255),
            jumbo_max: Some(1),
        }),
        cellar: Some(Cellar {
            window: 4096,
            initial_window: 512,
            max_datagram: 16_384,
            ranges: vec![(255, 100), (400, 1), (600, 3000)],
        }),
    };
    let mut bytes = Vec::new();
    ack.encode(&mut bytes);
    assert_eq!(Ack::decode(&bytes), Some(ack.clone()));
    // A stock reader sees the same in the first 18 + 255 + 3 + 16 bytes.
    assert_eq!(Ack::decode(&bytes[..292]).unwrap().trailer, ack.trailer);
    for length in 292..bytes.len() {
        let cut = Ack::decode(&bytes[..length]).unwrap();
        let ranges = (length.saturating_sub(308)) / 4;
        assert_eq!(cut.cellar.is_some(), length >= 308);
        if let Some(cellar) = cut.cellar {
            assert_eq!(cellar.ranges.len(), ranges);
        }
    }
    // A range that does not ascend, or is empty, ends the list.
    let at = bytes.len() - 8;
    bytes[at..at + 4].copy_from_slice(&[1, 0, 0, 1]);
    assert_eq!(Ack::decode(&bytes).unwrap().cellar.unwrap().ranges.len(), 1);
    bytes[at..at + 4].copy_from_slice(&[1, 255, 0, 0]);
    assert_eq!(Ack::decode(&bytes).unwrap().cellar.unwrap().ranges.len(), 1);
    // An absurd count yields nothing.
    let count = 292 + 12;
    bytes[count..count + 4].copy_from_slice(&[255; 4]);
    assert_eq!(Ack::decode(&bytes).unwrap().cellar.unwrap().ranges.len(), 0);
}

#[test]
fn many_ranges_travel_as_a_bitmap() {
    let every_other: Vec<(u16, u16)> = (0..3_900).map(|i| (256 + 2 * i, 1)).collect();
    for ranges in [
        every_other,
        vec![(255, 1), (257, 2), (260, 30), (300, 1), (303, 1)],
    ] {
        let ack = Ack {
            first_packet: 1,
            previous_packet: 8_000,
            serial: 0,
            reason: AckReason::DELAY,
            acks: &[0; 255],
            trailer: Some(Trailer {
                max_datagram: 1444,
                interface_mtu: Some(1444),
                window: Some(255),
                jumbo_max: Some(1),
            }),
            cellar: Some(Cellar {
                window: 8_192,
                initial_window: 1,
                max_datagram: 1444,
                ranges,
            }),
        };
        let mut bytes = Vec::new();
        ack.encode(&mut bytes);
        assert!(bytes.len() + 28 < 1444);
        assert_eq!(Ack::decode(&bytes), Some(ack));
        for length in 0..bytes.len() {
            let _ = Ack::decode(&bytes[..length]);
        }
    }
}

#[test]
fn every_type_there_and_back_and_every_short_header_refused() {
    for kind in 0..=255 {
        let header = Header {
            epoch: 0x8123_4567,
            cid: 0x89ab_cdef,
            call_number: 3,
            seq: 4,
            serial: 5,
            packet_type: PacketType(kind),
            flags: Flags(kind ^ 0xff),
            user_status: 1,
            security_index: 2,
            checksum: 0xbeef,
            service: 1,
        };
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Some(header));
        for length in 0..28 {
            assert_eq!(Header::decode(&bytes[..length]), None);
        }
    }
}

fn jumbogram(sizes: &[usize]) -> Vec<u8> {
    let mut bytes = Header {
        epoch: 1,
        cid: 4,
        call_number: 1,
        seq: 10,
        serial: 20,
        packet_type: PacketType::DATA,
        flags: Flags(if sizes.len() > 1 { 0x21 } else { 0x01 }),
        user_status: 1,
        security_index: 0,
        checksum: 0x1111,
        service: 1,
    }
    .encode()
    .to_vec();
    for (i, size) in sizes.iter().enumerate() {
        bytes.resize(bytes.len() + size, i as u8);
        if i + 1 < sizes.len() {
            let flags = if i + 2 < sizes.len() { 0x20 } else { 0x04 };
            bytes.extend_from_slice(&[flags, 0, 0x22, i as u8]);
        }
    }
    bytes
}

#[test]
fn jumbograms_split() {
    let bytes = jumbogram(&[1412, 1412, 1412, 77]);
    let header = Header::decode(&bytes).unwrap();
    let parts: Vec<SubPacket> = JumboSplit::new(header, &bytes).collect();
    assert_eq!(parts.len(), 4);
    for (i, part) in parts.iter().enumerate() {
        assert_eq!(part.header.seq, 10 + i as u32);
        assert_eq!(part.header.serial, 20 + i as u32);
        assert_eq!(part.header.flags.0, if i == 3 { 0x05 } else { 0x01 });
        assert_eq!(
            part.header.checksum,
            if i == 0 {
                0x1111
            } else {
                0x2200 + i as u16 - 1
            }
        );
        assert_eq!(part.header.user_status, u8::from(i == 0));
        assert!(bytes[part.start..part.end].iter().all(|b| *b == i as u8));
        assert_eq!(part.end - part.start, if i == 3 { 77 } else { 1412 });
    }
    // An empty last sub-packet counts.
    let bytes = jumbogram(&[1412, 0]);
    let header = Header::decode(&bytes).unwrap();
    assert_eq!(
        JumboSplit::new(header, &bytes).last().unwrap().header.seq,
        11
    );
    // A truncated datagram ends the walk with the part that is there.
    let bytes = jumbogram(&[1412, 1412, 5]);
    for length in 28..bytes.len() {
        let cut = &bytes[..length];
        let parts: Vec<SubPacket> = JumboSplit::new(header, cut).collect();
        assert_eq!(parts.last().unwrap().end, length);
        assert_eq!(
            parts.len(),
            1 + (length >= 28 + 1416) as usize + (length >= 28 + 2832) as usize
        );
    }
}

#[test]
fn debug_questions_and_record_sizes() {
    let question = |kind: u8, flags: u8, payload: &[u8]| {
        let mut bytes = hex("000003e7 00000000 00000065 00000000 00000000 08 05 00 00 0000 0000");
        bytes[20] = kind;
        bytes[21] = flags;
        let header = Header::decode(&bytes).unwrap();
        decode_debug_query(&header, payload)
    };
    let asked = |payload: &[u8]| question(8, 5, payload).map(|q| q.question);
    assert_eq!(
        question(13, 5, &[0]).unwrap().question,
        DebugQuestion::Version
    );
    assert_eq!(question(13, 4, &[0]), None, "a NAT keep-alive");
    assert_eq!(asked(&hex("00000001 00000000")), Some(DebugQuestion::Basic));
    assert_eq!(
        asked(&hex("00000002 00000007")),
        Some(DebugQuestion::Connection(7))
    );
    assert_eq!(
        asked(&hex("00000003 00000007")),
        Some(DebugQuestion::AnyConnection(7))
    );
    assert_eq!(
        asked(&hex("00000004 00000000")),
        Some(DebugQuestion::Statistics)
    );
    assert_eq!(
        asked(&hex("00000005 00000001")),
        Some(DebugQuestion::Peer(1))
    );
    assert_eq!(
        asked(&hex("00000063 00000001")),
        Some(DebugQuestion::Unknown)
    );
    for length in 0..8 {
        assert_eq!(asked(&hex("00000001 00000000")[..length]), None);
    }
    let answer = question(8, 5, &[0; 8]).unwrap().answer_header();
    assert_eq!(
        (answer.flags.0, answer.call_number, answer.epoch),
        (4, 0x65, 999)
    );
    assert_eq!(bad_debug_type(), hex("fffffff8 fffffff8"));
    assert_eq!(version_answer("x").len(), 65);
    assert_eq!(version_answer(&"y".repeat(100))[63..], *b"y\0");
    assert_eq!(ConnectionRecord::default().encode().len(), 176);
    assert_eq!(PeerRecord::default().encode().len(), 132);
    assert_eq!(Statistics::default().encode().len(), 284);
    assert_eq!(Statistics::default().encode()[204..208], hex("0098967f"));
    assert_eq!(end_of_connections()[..8], hex("00000000 ffffffff"));
    assert_eq!(end_of_peers()[..4], hex("ffffffff"));
}

#[test]
fn basic_statistics_as_a_stock_server_wrote_them() {
    let basic = BasicStatistics {
        free_packets: 249,
        sockets: 8,
        idle_threads: 16,
        packets: 817,
        ..BasicStatistics::default()
    };
    let mut expected =
        hex("000000f9 00000000 00000000 00 08 53 00 00000000 00000010 00000000 00000331");
    expected.resize(56, 0);
    assert_eq!(basic.encode(), expected);
}

#[test]
fn fields_of_the_records_stand_where_rxdebug_looks() {
    let record = ConnectionRecord {
        address: [10, 0, 0, 1],
        cid: 0x1234_5678,
        serial: 9,
        call_numbers: [1, 2, 3, 4],
        error: -5,
        port: 7001,
        flags: 4,
        server: true,
        security_index: 2,
        call_states: [3; 4],
        call_modes: [4; 4],
        call_flags: [32; 4],
        call_other: [1; 4],
        security: SecurityDetails {
            kind: 3,
            level: 2,
            flags: 10,
            expires: 77,
        },
        traffic: [11, 12, 13, 14],
        epoch: 0x8000_0001,
    };
    let bytes = record.encode();
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(
        (word(4), word(8), word(12), word(24)),
        (0x1234_5678, 9, 1, 4)
    );
    assert_eq!(bytes[28..32], (-5i32).to_be_bytes());
    assert_eq!(bytes[32..40], hex("1b59 04 01 02 000000"));
    assert_eq!(
        bytes[40..60],
        hex("03030303 04040404 20202020 01010101 0302 0000")
    );
    assert_eq!(
        (word(68), word(72), word(76), word(88), word(132)),
        (10, 77, 11, 14, 0x8000_0001)
    );
    let peer = PeerRecord {
        address: [10, 0, 0, 2],
        port: 7000,
        interface_mtu: 1444,
        srtt: 8,
        deviation: 4,
        rto_micros: 1_220_000,
        sent: 5,
        resent: 1,
        max_mtu: 1444,
        max_jumbo: 1,
        mtu: 1444,
        congestion_window: 16,
        bytes_sent: 1 << 33,
        bytes_received: 6,
        ..PeerRecord::default()
    };
    let bytes = peer.encode();
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(bytes[4..8], hex("1b58 05a4"));
    assert_eq!((word(24), word(28), word(32), word(36)), (8, 4, 1, 220_000));
    assert_eq!((word(40), word(44)), (5, 1));
    assert_eq!(bytes[62..72], hex("05a4 0001 0001 05a4 0010"));
    assert_eq!((word(76), word(80), word(84), word(88)), (2, 0, 0, 6));
}
