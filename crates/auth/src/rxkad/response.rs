//! CHALLENGE and RESPONSE, byte by byte.
//!
//! The sealed part of a RESPONSE holds:
//!
//! * the connection, so that it is useless for another connection;
//! * the call numbers, so that older calls cannot be replayed;
//! * the answer to the challenge, the level, and a checksum.
//!
//! The forms from before 1990 (8 and 16 bytes) are neither sent nor accepted.

use cellar_wire::AbortCode;

use crate::bytes::{take, take_array, take_u32};
use crate::fcrypt::{Schedule, block_of};

const VERSION: u32 = 2;
/// The position of the sealed part in the header.
const SEALED: std::ops::Range<usize> = 8..48;
/// Bytes before the ticket.
const HEADER: usize = 56;
/// The position of the checksum.
const CHECKSUM: std::ops::Range<usize> = 16..20;
/// The shortest ticket, in bytes.
const TICKET_MIN: usize = 32;
/// The longest ticket, in bytes, as in OpenAFS (`MAXKTCTICKETLEN`).
const TICKET_MAX: usize = 12000;

/// A server's challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Challenge {
    pub(super) nonce: u32,
    /// The lowest level, as received.
    pub(super) level_min: u32,
}

impl Challenge {
    pub(super) fn encode(self) -> Vec<u8> {
        let words = [VERSION, self.nonce, self.level_min, 0];
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    pub(super) fn decode(mut bytes: &[u8]) -> Result<Self, AbortCode> {
        let short = AbortCode::RXKADPACKETSHORT;
        let version = take_u32(&mut bytes).ok_or(short)?;
        let nonce = take_u32(&mut bytes).ok_or(short)?;
        let level_min = take_u32(&mut bytes).ok_or(short)?;
        take_u32(&mut bytes).ok_or(short)?;
        if version != VERSION {
            return Err(AbortCode::RXKADINCONSISTENCY);
        }
        Ok(Self { nonce, level_min })
    }
}

/// The contents of the sealed part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claims {
    pub(super) epoch: u32,
    /// The connection id, with channel bits 0.
    pub(super) cid: u32,
    pub(super) security_index: u32,
    pub(super) call_numbers: [u32; 4],
    /// The challenge's nonce plus one.
    pub(super) answer: u32,
    /// The level of the connection, as received.
    pub(super) level: u32,
}

/// A RESPONSE before its ticket has been opened.
pub(super) struct Response<'a> {
    header: [u8; HEADER],
    /// The form of the ticket.
    pub(super) kvno: u32,
    pub(super) ticket: &'a [u8],
}

impl<'a> Response<'a> {
    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, AbortCode> {
        let short = AbortCode::RXKADPACKETSHORT;
        let mut rest = bytes;
        let header: [u8; HEADER] = take_array(&mut rest).ok_or(short)?;
        let mut tail = &header[SEALED.end..];
        let kvno = take_u32(&mut tail).ok_or(short)?;
        let length = take_u32(&mut tail).ok_or(short)?;
        let length = usize::try_from(length).map_err(|_| AbortCode::RXKADTICKETLEN)?;
        let ticket = take(&mut rest, length).ok_or(short)?;
        if !(TICKET_MIN..=TICKET_MAX).contains(&length) {
            return Err(AbortCode::RXKADTICKETLEN);
        }
        Ok(Self {
            header,
            kvno,
            ticket,
        })
    }

    /// The claims, if the response was sealed with the session key.
    pub(super) fn open(&self, cipher: &Schedule, key: &[u8; 8]) -> Result<Claims, AbortCode> {
        let mut plain = self.header;
        cipher.open(block_of(key), &mut plain[SEALED]);
        let mut rest = &plain[SEALED];
        let mut words = [0; 10];
        for word in &mut words {
            *word = take_u32(&mut rest).ok_or(AbortCode::RXKADPACKETSHORT)?;
        }
        let [
            epoch,
            cid,
            sum,
            security_index,
            n0,
            n1,
            n2,
            n3,
            answer,
            level,
        ] = words;
        plain[CHECKSUM].fill(0);
        if checksum(&plain) != sum {
            return Err(AbortCode::RXKADSEALEDINCON);
        }
        Ok(Claims {
            epoch,
            cid,
            security_index,
            call_numbers: [n0, n1, n2, n3],
            answer,
            level,
        })
    }
}

/// Makes the payload of a RESPONSE. `None` if the ticket is longer than any server accepts.
pub(super) fn encode(
    claims: &Claims,
    cipher: &Schedule,
    key: &[u8; 8],
    kvno: u32,
    ticket: &[u8],
) -> Option<Vec<u8>> {
    if ticket.len() > TICKET_MAX {
        return None;
    }
    let [n0, n1, n2, n3] = claims.call_numbers;
    let words = [
        VERSION,
        0,
        claims.epoch,
        claims.cid,
        0,
        claims.security_index,
        n0,
        n1,
        n2,
        n3,
        claims.answer,
        claims.level,
        kvno,
        u32::try_from(ticket.len()).ok()?,
    ];
    let mut header = [0; HEADER];
    for (slot, word) in header.as_chunks_mut().0.iter_mut().zip(words) {
        *slot = word.to_be_bytes();
    }
    let sum = checksum(&header);
    header[CHECKSUM].copy_from_slice(&sum.to_be_bytes());
    cipher.seal(block_of(key), &mut header[SEALED]);
    Some([&header, ticket].concat())
}

/// The checksum over the whole plain header, with zeros in the place of the checksum itself.
fn checksum(plain: &[u8; HEADER]) -> u32 {
    plain.iter().fold(1_000_003, |sum: u32, byte| {
        sum.wrapping_mul(0x1020_4081).wrapping_add(u32::from(*byte))
    })
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;

    use super::*;
    use crate::Level;

    const KEY: [u8; 8] = hex!("58e0c8d910d6a7a2");
    const CLAIMS: Claims = Claims {
        epoch: 0x8be5_4e16,
        cid: 0x6e09_1198,
        security_index: 2,
        call_numbers: [1, 0, 0, 0],
        answer: 0x2117_59c4,
        level: Level::Crypt as u32,
    };
    const SEALED_CLAIMS: [u8; 40] =
        hex!("82ab1bf5cb5a38ed04313f80a694d8cf059e1544a256cf281147161ccb01e647ffb224a42afea5c8");

    #[test]
    fn a_challenge_has_its_known_answer() {
        let bytes = hex!("00000002 034fccac 00000000 00000000");
        let challenge = Challenge::decode(&bytes).unwrap();
        assert_eq!(challenge.nonce, 0x034f_ccac);
        assert_eq!(challenge.level_min, 0);
        assert_eq!(challenge.encode(), bytes);
        let refusal = Challenge::decode(&bytes[..15]);
        assert_eq!(refusal, Err(AbortCode::RXKADPACKETSHORT));
        let old = hex!("00000001 034fccac 00000000 00000000");
        let refusal = Challenge::decode(&old);
        assert_eq!(refusal, Err(AbortCode::RXKADINCONSISTENCY));
    }

    #[test]
    fn a_response_has_its_known_answer() {
        let cipher = Schedule::new(&KEY);
        let ticket = [7; 154];
        let bytes = encode(&CLAIMS, &cipher, &KEY, 213, &ticket).unwrap();
        assert_eq!(bytes[..8], hex!("00000002 00000000"));
        assert_eq!(bytes[SEALED], SEALED_CLAIMS);
        assert_eq!(bytes[48..56], hex!("000000d5 0000009a"));
        let response = Response::decode(&bytes).unwrap();
        assert_eq!((response.kvno, response.ticket), (213, &ticket[..]));
        assert_eq!(response.open(&cipher, &KEY), Ok(CLAIMS));
    }

    #[test]
    fn every_bit_counts() {
        let cipher = Schedule::new(&KEY);
        let bytes = encode(&CLAIMS, &cipher, &KEY, 213, &[7; 154]).unwrap();
        for at in 0..HEADER {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                let Ok(response) = Response::decode(&changed) else {
                    continue;
                };
                let opened = response.open(&cipher, &KEY);
                assert_eq!(opened, Err(AbortCode::RXKADSEALEDINCON), "{at}.{bit}");
            }
        }
    }

    #[test]
    fn lengths_are_checked() {
        let cipher = Schedule::new(&KEY);
        let refused = |length: usize, cut: usize| {
            let bytes = encode(&CLAIMS, &cipher, &KEY, 213, &vec![7; length]).unwrap();
            Response::decode(&bytes[..bytes.len() - cut]).err()
        };
        assert_eq!(refused(32, 0), None);
        assert_eq!(refused(31, 0), Some(AbortCode::RXKADTICKETLEN));
        assert_eq!(refused(12000, 0), None);
        for cut in 1..=88 {
            assert_eq!(refused(32, cut), Some(AbortCode::RXKADPACKETSHORT));
        }
        assert!(encode(&CLAIMS, &cipher, &KEY, 213, &[7; 12001]).is_none());
    }
}
