//! The processing of each packet on both sides, once they share a session key.
//!
//! 1. Every packet's header has a checksum of 16 bits over connection, channel, call and packet
//!    number. It is always enforced. (OpenAFS accepts connections without any, for clients from
//!    before 1990.)
//! 2. Level auth seals the first eight bytes, which hold the length. Level crypt seals everything.
//! 3. After the ticket has expired, no packet passes in either direction. That ends the connection,
//!    even in the middle of a call.

use std::ops::Range;

use bytes::Bytes;
use cellar_rx::{Overhead, PacketIdentity, SecurityDetails};
use cellar_wire::AbortCode;

use crate::Level;
use crate::fcrypt::{BLOCK, Block, Schedule, block_of, bytes_of};
use crate::kdf::SessionKey;

/// Length and numbers of the packet, in one word.
const WORD: usize = 4;
/// The word, and a word of zeros.
const CRYPT_HEADER: usize = 8;

/// Number of rxkad among the security classes that `rxdebug` knows.
pub(super) const KIND: u8 = 3;
const FLAG_AUTHENTICATED: u32 = 2;
const FLAG_EXPIRED: u32 = 4;
const FLAG_CHECKSUM: u32 = 8;

/// A connection's key and the values derived from it.
pub(super) struct Session {
    cipher: Schedule,
    key: SessionKey,
    /// The value mixed into every header checksum, with its connection (epoch, cid).
    mask: Option<((u32, u32), Block)>,
    level: Level,
    /// Unix time; `u32::MAX`: never.
    expires: u32,
    expired: bool,
}

impl Session {
    pub(super) fn new(key: SessionKey, level: Level, expires: u32) -> Self {
        Self {
            cipher: Schedule::new(&key),
            key,
            mask: None,
            level,
            expires,
            expired: false,
        }
    }

    pub(super) fn cipher(&self) -> &Schedule {
        &self.cipher
    }

    pub(super) fn key(&self) -> &[u8; BLOCK] {
        &self.key
    }

    pub(super) fn level(&self) -> Level {
        self.level
    }

    pub(super) fn overhead(&self) -> Overhead {
        match self.level {
            Level::Clear => Overhead::default(),
            // Up to eight bytes, whatever the length.
            Level::Auth => Overhead {
                header: 4,
                trailer: 4,
            },
            Level::Crypt => Overhead {
                header: 8,
                trailer: 7,
            },
        }
    }

    pub(super) fn details(&self) -> SecurityDetails {
        let expired = if self.expired { FLAG_EXPIRED } else { 0 };
        SecurityDetails {
            kind: KIND,
            level: self.level as u8,
            flags: FLAG_AUTHENTICATED | FLAG_CHECKSUM | expired,
            expires: self.expires,
        }
    }

    pub(super) fn protect(
        &mut self,
        packet: &PacketIdentity,
        payload: &mut Vec<u8>,
        start: usize,
    ) -> Result<u16, AbortCode> {
        self.check_time(packet)?;
        let header = usize::from(self.overhead().header);
        let Some(length) = payload.len().checked_sub(start + header) else {
            return Err(AbortCode::RXKADINCONSISTENCY);
        };
        let length = u16::try_from(length).map_err(|_| AbortCode::RXKADDATALEN)?;
        if self.level != Level::Clear {
            let word = (numbers(packet) << 16) | u32::from(length);
            let sealed = payload.len() - start;
            let padded = match self.level {
                Level::Auth => sealed.max(BLOCK),
                _ => sealed.next_multiple_of(BLOCK),
            };
            payload.resize(start + padded, 0);
            let body = payload
                .get_mut(start..)
                .ok_or(AbortCode::RXKADINCONSISTENCY)?;
            if let Some(first) = body.first_chunk_mut() {
                *first = word.to_be_bytes();
            }
            if self.level == Level::Auth
                && let Some(first) = body.first_chunk_mut()
            {
                *first = bytes_of(self.cipher.encrypt(block_of(first)));
            }
        }
        Ok(self.checksum(packet))
    }

    /// Encrypts the packets that [`Self::protect`] prepared.
    pub(super) fn seal(&self, run: &mut [u8], bodies: &[Range<usize>]) {
        if self.level == Level::Crypt {
            self.cipher.seal_all(block_of(&self.key), run, bodies);
        }
    }

    pub(super) fn unprotect(
        &mut self,
        packet: &PacketIdentity,
        checksum: u16,
        payload: Bytes,
    ) -> Result<Bytes, AbortCode> {
        self.check_time(packet)?;
        if checksum != self.checksum(packet) {
            return Err(AbortCode::RXKADSEALEDINCON);
        }
        let header = match self.level {
            Level::Clear => return Ok(payload),
            Level::Auth => WORD,
            Level::Crypt => CRYPT_HEADER,
        };
        // Opens in place if the datagram has no other owner.
        let mut body = match payload.try_into_mut() {
            Ok(body) => body,
            Err(shared) => shared.as_ref().into(),
        };
        let first = body
            .first_chunk_mut::<BLOCK>()
            .ok_or(AbortCode::RXKADPACKETSHORT)?;
        if self.level == Level::Auth {
            *first = bytes_of(self.cipher.decrypt(block_of(first)));
        } else {
            if !body.len().is_multiple_of(BLOCK) {
                return Err(AbortCode::RXKADDATALEN);
            }
            self.cipher.open(block_of(&self.key), &mut body);
        }
        let word = body.first_chunk().copied().map_or(0, u32::from_be_bytes);
        if word >> 16 != numbers(packet) {
            return Err(AbortCode::RXKADSEALEDINCON);
        }
        let length = usize::try_from(word & 0xffff).map_err(|_| AbortCode::RXKADDATALEN)?;
        let body = body.freeze();
        if length > body.len() - header {
            return Err(AbortCode::RXKADDATALEN);
        }
        Ok(body.slice(header..header + length))
    }

    fn check_time(&mut self, packet: &PacketIdentity) -> Result<(), AbortCode> {
        if self.expires != u32::MAX && packet.unix_seconds > u64::from(self.expires) {
            self.expired = true;
            return Err(AbortCode::RXKADEXPIRED);
        }
        Ok(())
    }

    /// The header's checksum field. It is never 0, which would mean that there is none.
    fn checksum(&mut self, packet: &PacketIdentity) -> u16 {
        let mask = self.mask(packet);
        let channel = packet.cid & 3;
        let place = (channel << 30) | (packet.seq & 0x3fff_ffff);
        let block = [mask[0] ^ packet.call_number, mask[1] ^ place];
        let [_, word] = self.cipher.encrypt(block);
        let [high, low, ..] = word.to_be_bytes();
        u16::from_be_bytes([high, low]).max(1)
    }

    fn mask(&mut self, packet: &PacketIdentity) -> Block {
        let connection = (packet.epoch, packet.cid & !3);
        if let Some((known, mask)) = self.mask
            && known == connection
        {
            return mask;
        }
        let mut bytes = [0; 2 * BLOCK];
        let words = [connection.0, connection.1, 0, packet.security_index.into()];
        for (slot, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *slot = u32::to_be_bytes(word);
        }
        self.cipher.seal(block_of(&self.key), &mut bytes);
        let mask = bytes.last_chunk().map_or([0; 2], block_of);
        self.mask = Some((connection, mask));
        mask
    }
}

/// Packet and call number in 16 bits. The sealed word holds them beside the length.
fn numbers(packet: &PacketIdentity) -> u32 {
    (packet.seq ^ packet.call_number) & 0xffff
}

#[cfg(test)]
mod tests;
