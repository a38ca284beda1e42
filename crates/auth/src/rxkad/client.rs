//! The client's side of a connection.
//!
//! If the server's challenge demands a higher level than the client was configured for, the client
//! refuses. If it demands a lower one, the client still uses its own level. So an attacker on the
//! path gains nothing by changing the challenge.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use cellar_rx::{
    ClientSecurity, ConnectionIdentity, Overhead, PacketIdentity, PacketSecurity, SecurityDetails,
};
use cellar_wire::AbortCode;

use super::INDEX;
use super::response::{self, Challenge, Claims};
use super::session::Session;
use crate::{Level, Token};

/// A client connection that presents a token.
pub(crate) struct Client {
    session: Session,
    kvno: u32,
    ticket: Bytes,
}

impl Client {
    pub(crate) fn new(token: &Token, ticket: Bytes, level: Level) -> Self {
        Self {
            session: Session::new(token.session_key.clone(), level, token.expires.0),
            kvno: token.kvno,
            ticket,
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("level", &self.session.level())
            .finish_non_exhaustive()
    }
}

impl PacketSecurity for Client {
    fn overhead(&self) -> Overhead {
        self.session.overhead()
    }

    fn protect(
        &mut self,
        packet: &PacketIdentity,
        payload: &mut Vec<u8>,
        start: usize,
    ) -> Result<u16, i32> {
        let protected = self.session.protect(packet, payload, start);
        protected.map_err(|code| code.0)
    }

    fn seal(&mut self, run: &mut [u8], bodies: &[Range<usize>]) {
        self.session.seal(run, bodies);
    }

    fn unprotect(
        &mut self,
        packet: &PacketIdentity,
        checksum: u16,
        payload: Bytes,
    ) -> Result<Bytes, i32> {
        let opened = self.session.unprotect(packet, checksum, payload);
        opened.map_err(|code| code.0)
    }

    fn details(&self) -> SecurityDetails {
        self.session.details()
    }
}

impl ClientSecurity for Client {
    fn index(&self) -> u8 {
        INDEX
    }

    fn respond(
        &mut self,
        connection: &ConnectionIdentity,
        challenge: &[u8],
    ) -> Result<Vec<u8>, i32> {
        let challenge = Challenge::decode(challenge).map_err(|code| code.0)?;
        let level = self.session.level().to_wire();
        if challenge.level_min > level {
            return Err(AbortCode::RXKADLEVELFAIL.0);
        }
        let claims = Claims {
            epoch: connection.epoch,
            cid: connection.cid & !3,
            security_index: INDEX.into(),
            call_numbers: connection.call_numbers,
            answer: challenge.nonce.wrapping_add(1),
            level,
        };
        let (cipher, key) = (self.session.cipher(), self.session.key());
        response::encode(&claims, cipher, key, self.kvno, &self.ticket)
            .ok_or(AbortCode::RXKADTICKETLEN.0)
    }
}
