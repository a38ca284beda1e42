//! The server's side: one challenge for each connection, and one check of its response.
//!
//! The checks are in this order: form, key, ticket, the ticket's times, seal, connection,
//! challenge, level. Whatever check fails, Rx sends the refusal to the peer one second later.
//! Refusals are counted ([`super::Failures`]).

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use cellar_rx::{
    Caller, ConnectionIdentity, Overhead, PacketIdentity, PacketSecurity, SecurityDetails,
    ServerConnectionSecurity, ServerSecurity,
};
use cellar_wire::{AbortCode, AfsTime};

use super::INDEX;
use super::response::{Challenge, Response};
use super::session::{self, Session};
use super::times;
use crate::kerberos::{self, Opened, Refusal};
use crate::{Authority, KVNO_ENCRYPTED_PART, KVNO_KERBEROS_TICKET, Level, Principal};

/// The client name of a ticket that a holder of the cell's key made.
const KEY_HOLDER: &str = "afs";

/// The server's side of security index 2.
pub(crate) struct Server(Authority);

impl Server {
    pub(crate) fn new(authority: Authority) -> Self {
        Self(authority)
    }
}

impl ServerSecurity for Server {
    fn accept(&self, _: &ConnectionIdentity) -> Box<dyn ServerConnectionSecurity> {
        Box::new(ServerConnection {
            authority: self.0.clone(),
            asked: None,
            nonce: None,
            authenticated: None,
        })
    }
}

/// A connection to a server.
struct ServerConnection {
    authority: Authority,
    /// The time when a challenge was first due, Unix time.
    asked: Option<u64>,
    nonce: Option<u32>,
    authenticated: Option<(Session, Arc<Principal>)>,
}

impl fmt::Debug for ServerConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let principal = self.authenticated.as_ref().map(|(_, principal)| principal);
        f.debug_struct("ServerConnection")
            .field("principal", &principal)
            .finish_non_exhaustive()
    }
}

impl ServerConnection {
    fn judge(
        &self,
        connection: &ConnectionIdentity,
        payload: &[u8],
    ) -> Result<([u32; 4], Session, Principal), AbortCode> {
        let response = Response::decode(payload)?;
        let ticket = self.open_ticket(response.kvno, response.ticket)?;
        if ticket.invalid {
            return Err(AbortCode::RXKADNOAUTH);
        }
        times::check(ticket.starts, ticket.ends, connection.unix_seconds)?;
        // The level is known only after the seal has been opened. Nothing of the session depends on
        // it yet.
        let opening = Session::new(ticket.session_key.clone(), Level::Clear, ticket.ends);
        let claims = response.open(opening.cipher(), opening.key())?;
        let here = (connection.epoch, connection.cid & !3, u32::from(INDEX));
        if (claims.epoch, claims.cid, claims.security_index) != here {
            return Err(AbortCode::RXKADSEALEDINCON);
        }
        if claims
            .call_numbers
            .iter()
            .any(|&number| number > i32::MAX as u32)
        {
            return Err(AbortCode::RXKADSEALEDINCON);
        }
        if self.nonce.map(|nonce| nonce.wrapping_add(1)) != Some(claims.answer) {
            return Err(AbortCode::RXKADOUTOFSEQUENCE);
        }
        let level = Level::from_wire(claims.level).ok_or(AbortCode::RXKADLEVELFAIL)?;
        if level < self.authority.policy().level_min {
            return Err(AbortCode::RXKADLEVELFAIL);
        }
        let session = Session::new(ticket.session_key.clone(), level, ticket.ends);
        Ok((claims.call_numbers, session, self.principal(ticket, level)))
    }

    fn open_ticket(&self, form: u32, ticket: &[u8]) -> Result<Opened, AbortCode> {
        let find = |kvno, enctype| self.authority.keys().find(kvno, enctype);
        let dots = self.authority.policy().allow_dotted_principals;
        let opened = match form {
            KVNO_ENCRYPTED_PART => kerberos::open_encrypted_part(ticket, dots, find),
            KVNO_KERBEROS_TICKET => kerberos::open_ticket(ticket, dots, find),
            // Sealed with single DES, for which this server has no keys.
            _ => Err(Refusal::UnknownKey),
        };
        opened.map_err(|refusal| match refusal {
            Refusal::UnknownKey => AbortCode::RXKADUNKNOWNKEY,
            Refusal::Bad => AbortCode::RXKADBADTICKET,
        })
    }

    fn principal(&self, ticket: Opened, level: Level) -> Principal {
        let Opened {
            name,
            instance,
            realm,
            ..
        } = ticket;
        // No KDC has an empty realm, so only a holder of the key can have made such a ticket.
        let key_holder = name == KEY_HOLDER && instance.is_empty() && realm.is_empty();
        Principal {
            cell: self.authority.realms().foreign(&name, &instance, &realm),
            name,
            instance,
            kvno: ticket.kvno,
            level,
            expires: AfsTime(ticket.ends),
            key_holder,
        }
    }

    fn session(&mut self) -> Result<&mut Session, i32> {
        match &mut self.authenticated {
            Some((session, _)) => Ok(session),
            None => Err(AbortCode::RXKADINCONSISTENCY.0),
        }
    }
}

impl PacketSecurity for ServerConnection {
    fn overhead(&self) -> Overhead {
        match &self.authenticated {
            Some((session, _)) => session.overhead(),
            None => Overhead::default(),
        }
    }

    fn protect(
        &mut self,
        packet: &PacketIdentity,
        payload: &mut Vec<u8>,
        start: usize,
    ) -> Result<u16, i32> {
        let protected = self.session()?.protect(packet, payload, start);
        protected.map_err(|code| {
            self.authority.failures().broken(code);
            code.0
        })
    }

    fn seal(&mut self, run: &mut [u8], bodies: &[Range<usize>]) {
        if let Some((session, _)) = &self.authenticated {
            session.seal(run, bodies);
        }
    }

    fn unprotect(
        &mut self,
        packet: &PacketIdentity,
        checksum: u16,
        payload: Bytes,
    ) -> Result<Bytes, i32> {
        let opened = self.session()?.unprotect(packet, checksum, payload);
        opened.map_err(|code| {
            self.authority.failures().broken(code);
            code.0
        })
    }

    fn details(&self) -> SecurityDetails {
        match &self.authenticated {
            Some((session, _)) => session.details(),
            None => SecurityDetails {
                kind: session::KIND,
                ..SecurityDetails::default()
            },
        }
    }
}

impl ServerConnectionSecurity for ServerConnection {
    fn authenticated(&self) -> bool {
        self.authenticated.is_some()
    }

    fn challenge(&mut self, connection: &ConnectionIdentity, _: u64) -> Vec<u8> {
        let now = connection.unix_seconds;
        let asked = *self.asked.get_or_insert(now);
        let failures = self.authority.failures();
        if failures.withholds(connection.peer.ip(), asked, now) {
            return Vec::new();
        }
        // The endpoint's random numbers are not used here: a few of them would reveal the next
        // ones.
        let nonce = *self.nonce.get_or_insert_with(rand::random);
        let challenge = Challenge {
            nonce,
            level_min: self.authority.policy().level_min.to_wire(),
        };
        challenge.encode()
    }

    fn response(
        &mut self,
        connection: &ConnectionIdentity,
        _: u16,
        response: &[u8],
    ) -> Result<[u32; 4], i32> {
        match self.judge(connection, response) {
            Ok((call_numbers, session, principal)) => {
                self.authority.failures().authenticated();
                self.authenticated = Some((session, Arc::new(principal)));
                Ok(call_numbers)
            }
            Err(code) => {
                let (peer, now) = (connection.peer.ip(), connection.unix_seconds);
                self.authority.failures().refused(peer, code, now);
                Err(code.0)
            }
        }
    }

    fn caller(&self) -> Caller {
        match &self.authenticated {
            Some((_, principal)) => Caller::Principal(principal.clone()),
            None => Caller::Anonymous,
        }
    }
}
