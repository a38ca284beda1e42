//! A security class in which the server accepts every stated identity. It stands for the proof by a
//! ticket.

use std::sync::Arc;

use bytes::Bytes;
use cellar_auth::{Level, Principal};
use cellar_rpc::Security;
use cellar_rx::{
    Caller, ClientSecurity, ConnectionIdentity, Overhead, PacketIdentity, PacketSecurity,
    SecurityDetails, ServerConnectionSecurity, ServerSecurity,
};
use cellar_wire::AfsTime;

/// The index of rxkad, which this class replaces.
pub(crate) const INDEX: u8 = 2;

/// A user of this cell with a ticket that never expires.
pub(crate) fn user(name: &str) -> Principal {
    Principal {
        name: name.to_owned(),
        instance: String::new(),
        cell: None,
        kvno: 1,
        level: Level::Clear,
        expires: AfsTime(u32::MAX),
        key_holder: false,
    }
}

/// The security with which a client connects as `principal`.
pub(crate) fn security(principal: Principal) -> Security {
    let principal = Arc::new(principal);
    Security::new(move || Box::new(Stated(Some(principal.clone()))))
}

/// Accepts every caller.
pub(crate) struct Everybody;

impl ServerSecurity for Everybody {
    fn accept(&self, _: &ConnectionIdentity) -> Box<dyn ServerConnectionSecurity> {
        Box::new(Stated(None))
    }
}

/// One end of a connection.
#[derive(Debug)]
struct Stated(Option<Arc<Principal>>);

impl PacketSecurity for Stated {
    fn overhead(&self) -> Overhead {
        Overhead::default()
    }

    fn protect(&mut self, _: &PacketIdentity, _: &mut Vec<u8>, _: usize) -> Result<u16, i32> {
        Ok(0)
    }

    fn unprotect(&mut self, _: &PacketIdentity, _: u16, payload: Bytes) -> Result<Bytes, i32> {
        Ok(payload)
    }

    fn details(&self) -> SecurityDetails {
        SecurityDetails::default()
    }
}

impl ClientSecurity for Stated {
    fn index(&self) -> u8 {
        INDEX
    }

    fn respond(&mut self, _: &ConnectionIdentity, _: &[u8]) -> Result<Vec<u8>, i32> {
        let who = self.0.as_ref().ok_or(1)?;
        let mut response = who.expires.0.to_be_bytes().to_vec();
        response.push(u8::from(who.key_holder));
        response.extend_from_slice(who.name.as_bytes());
        Ok(response)
    }
}

impl ServerConnectionSecurity for Stated {
    fn authenticated(&self) -> bool {
        self.0.is_some()
    }

    fn challenge(&mut self, _: &ConnectionIdentity, _: u64) -> Vec<u8> {
        vec![0; 4]
    }

    fn response(
        &mut self,
        _: &ConnectionIdentity,
        _: u16,
        response: &[u8],
    ) -> Result<[u32; 4], i32> {
        let (expires, rest) = response.split_first_chunk().ok_or(1)?;
        let (holder, name) = rest.split_first().ok_or(1)?;
        self.0 = Some(Arc::new(Principal {
            expires: AfsTime(u32::from_be_bytes(*expires)),
            key_holder: *holder == 1,
            ..user(std::str::from_utf8(name).map_err(|_| 1)?)
        }));
        Ok([0; 4])
    }

    fn caller(&self) -> Caller {
        match &self.0 {
            Some(who) => Caller::Principal(who.clone()),
            None => Caller::Anonymous,
        }
    }
}
