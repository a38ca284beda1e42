//! Known answers recorded between OpenAFS 1.8.9's programs, and packets that must be refused.

use hex_literal::hex;

use super::*;

const KEY: [u8; 8] = hex!("58e0c8d910d6a7a2");

fn session(level: Level) -> Session {
    Session::new(SessionKey::new(KEY), level, u32::MAX)
}

fn packet(call_number: u32, channel: u32, seq: u32) -> PacketIdentity {
    PacketIdentity {
        epoch: 0x8be5_4e16,
        cid: 0x6e09_1198 | channel,
        call_number,
        seq,
        from_client: true,
        security_index: 2,
        unix_seconds: 1_000_000,
    }
}

fn sealed(level: Level, packet: &PacketIdentity, data: &[u8]) -> (u16, Vec<u8>) {
    let mut session = session(level);
    let header = usize::from(session.overhead().header);
    // As in Rx: after the packet's header in a longer buffer.
    let mut payload = vec![0xee; 28];
    payload.resize(28 + header, 0);
    payload.extend_from_slice(data);
    let checksum = session.protect(packet, &mut payload, 28).unwrap();
    let end = payload.len();
    session.seal(&mut payload, std::slice::from_ref(&(28..end)));
    let sealed = payload.split_off(28);
    assert_eq!(payload, [0xee; 28]);
    assert!(sealed.len() <= data.len() + header + usize::from(session.overhead().trailer));
    (checksum, sealed)
}

#[test]
fn header_checksums_have_their_known_answers() {
    let mut session = session(Level::Clear);
    assert_eq!(session.checksum(&packet(1, 0, 1)), 0xee23);
    assert_eq!(session.checksum(&packet(1, 0, 2)), 0xdb51);
    assert_eq!(session.checksum(&packet(2, 0, 1)), 0x16b2);
    assert_eq!(session.checksum(&packet(1, 3, 1)), 0x054f);
    assert_eq!(session.mask.unwrap().1, [0x0f79_637e, 0xbf01_d56c]);
}

#[test]
fn bodies_have_their_known_answers() {
    let data = hex!("00000202");
    let (_, auth) = sealed(Level::Auth, &packet(2, 0, 1), &data);
    assert_eq!(auth, hex!("ba08d56c0ff41bff"));
    let (_, crypt) = sealed(Level::Crypt, &packet(2, 0, 1), &data);
    assert_eq!(crypt, hex!("a9fe8f59adc4f0f97e310b04ac7e1229"));

    let mut request = [0; 36];
    request[..4].copy_from_slice(&hex!("00000216"));
    let (_, crypt) = sealed(Level::Crypt, &packet(1, 0, 1), &request);
    assert_eq!(
        crypt,
        hex!(
            "ddeee67cf1ea001c92299ce119f5570d55bac60ce4f1e0a37b5f8213064af8af
             f3756102baadf7d3e306ad13959fbcba"
        )
    );
    let reply = hex!("6b4016bcac2881c4302ddb42c1331ed8b49f6510cc77e489");
    let mut session = session(Level::Crypt);
    let checksum = session.checksum(&packet(1, 0, 1));
    let opened = session.unprotect(&packet(1, 0, 1), checksum, Bytes::copy_from_slice(&reply));
    assert_eq!(opened.unwrap(), hex!("0000000000000000 ffffffff")[..]);
}

#[test]
fn every_length_passes_at_every_level() {
    for level in [Level::Clear, Level::Auth, Level::Crypt] {
        for length in 0..80 {
            let data: Vec<u8> = (0..length).collect();
            let packet = packet(3, 2, 1 + u32::from(length));
            let (checksum, sealed) = sealed(level, &packet, &data);
            let opened = session(level).unprotect(&packet, checksum, sealed.into());
            assert_eq!(opened.unwrap(), data[..], "{level:?} {length}");
        }
    }
}

#[test]
fn packets_are_good_in_their_place_only() {
    for level in [Level::Clear, Level::Auth, Level::Crypt] {
        let place = packet(5, 1, 7);
        let (checksum, body) = sealed(level, &place, b"some bytes of data");
        let elsewhere = [
            packet(6, 1, 7),
            packet(5, 1, 8),
            packet(5, 2, 7),
            PacketIdentity { epoch: 1, ..place },
            PacketIdentity { cid: 0x11, ..place },
        ];
        for other in elsewhere {
            let outcome = session(level).unprotect(&other, checksum, body.clone().into());
            assert_eq!(outcome, Err(AbortCode::RXKADSEALEDINCON));
        }
        let outcome = session(level).unprotect(&place, checksum ^ 0x100, body.clone().into());
        assert_eq!(outcome, Err(AbortCode::RXKADSEALEDINCON));
        let outcome = session(level).unprotect(&place, 0, body.into());
        assert_eq!(outcome, Err(AbortCode::RXKADSEALEDINCON));
    }
}

#[test]
fn sealed_words_are_compared() {
    let place = packet(5, 1, 7);
    for level in [Level::Auth, Level::Crypt] {
        let (checksum, body) = sealed(level, &place, b"some bytes of data");
        for at in 0..BLOCK {
            let mut changed = body.clone();
            changed[at] ^= 0x80;
            let outcome = session(level).unprotect(&place, checksum, changed.into());
            // Any changed bit changes about half of the 64 bits, so almost always some of the upper
            // 16.
            assert!(
                matches!(
                    outcome,
                    Err(AbortCode::RXKADSEALEDINCON | AbortCode::RXKADDATALEN)
                ),
                "byte {at}"
            );
        }
        for length in 0..BLOCK {
            let outcome =
                session(level).unprotect(&place, checksum, body[..length].to_vec().into());
            assert_eq!(outcome, Err(AbortCode::RXKADPACKETSHORT));
        }
        let outcome = session(level).unprotect(&place, checksum, body[..8].to_vec().into());
        assert!(outcome.is_err());
    }
    let (checksum, body) = sealed(Level::Crypt, &place, b"some bytes of data");
    let outcome = session(Level::Crypt).unprotect(&place, checksum, body[..17].to_vec().into());
    assert_eq!(outcome, Err(AbortCode::RXKADDATALEN));
}

#[test]
fn nothing_passes_after_the_end_of_the_ticket() {
    let mut session = Session::new(SessionKey::new(KEY), Level::Crypt, 1_000_000);
    let mut payload = vec![0; 8];
    assert!(session.protect(&packet(1, 0, 1), &mut payload, 0).is_ok());
    let late = PacketIdentity {
        unix_seconds: 1_000_001,
        ..packet(1, 0, 2)
    };
    let mut payload = vec![0; 8];
    let outcome = session.protect(&late, &mut payload, 0);
    assert_eq!(outcome, Err(AbortCode::RXKADEXPIRED));
    let outcome = session.unprotect(&late, 1, Bytes::new());
    assert_eq!(outcome, Err(AbortCode::RXKADEXPIRED));
    assert_eq!(session.details().flags & FLAG_EXPIRED, FLAG_EXPIRED);
}
