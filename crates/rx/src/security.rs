//! What a security class does for a connection. The null class is here; rxkad is in `auth`.
//!
//! 1. A client connection owns a [`ClientSecurity`]; a server connection one made by the service's
//!    [`ServerSecurity`] when the first packet came.
//! 2. A server connection that is not authenticated is sent the CHALLENGE; its calls wait. The
//!    RESPONSE is judged once; then calls go to the driver. A refusal ends the connection with an
//!    abort, sent one second later so that guessing stays slow.
//! 3. DATA packets pass `protect` each time they are sent (also again), `unprotect` once, in order, when
//!    the application reads. Both see the identity of the packet, which classes bind into checksums.
//!    A class may leave part of its work on packets to `seal`, which sees all packets of a run.
//! 4. A failing `unprotect` ends the whole connection with its code.

use std::fmt::{self, Debug};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::Caller;

/// Which packet a class protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketIdentity {
    /// Epoch of the connection.
    pub epoch: u32,
    /// Connection id with the channel in bits 1-0.
    pub cid: u32,
    /// Call number.
    pub call_number: u32,
    /// Sequence number of the packet.
    pub seq: u32,
    /// Whether the client end of the connection sent it.
    pub from_client: bool,
    /// Security index of the connection.
    pub security_index: u8,
    /// Seconds since 1970.
    pub unix_seconds: u64,
}

/// The connection that a CHALLENGE or RESPONSE is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionIdentity {
    /// The other end.
    pub peer: SocketAddr,
    /// Epoch of the connection.
    pub epoch: u32,
    /// Connection id, channel bits 0.
    pub cid: u32,
    /// Service id.
    pub service: u16,
    /// Security index.
    pub security_index: u8,
    /// For each channel the number of its last call; at a client's `respond`, of the oldest call that
    /// may still run: one more if the last is over. 0: none yet.
    pub call_numbers: [u32; 4],
    /// Header checksum of the packet that created the connection (server end; else 0).
    pub first_checksum: u16,
    /// Seconds since 1970.
    pub unix_seconds: u64,
}

/// Room that a class needs in each DATA packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Overhead {
    /// Bytes in front of the user's.
    pub header: u16,
    /// Most bytes behind them.
    pub trailer: u16,
}

/// What `rxdebug` shows of a connection's security.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SecurityDetails {
    /// 0 unknown, 1 null, 3 rxkad, 4 rxgk.
    pub kind: u8,
    /// Level: 0 clear, 1 auth, 2 crypt.
    pub level: u8,
    /// 1 unallocated, 2 authenticated, 4 expired, 8 checksum in use.
    pub flags: u32,
    /// Expiry, Unix time; 0: none.
    pub expires: u32,
}

/// The part that both ends do for each DATA packet.
pub trait PacketSecurity: Send + Debug {
    /// Room needed; asked again for each packet, so it may change with the level agreed on.
    fn overhead(&self) -> Overhead;

    /// Protects a packet in place: `payload[start..]` is `overhead().header` zero bytes and the
    /// user's bytes; it may grow by `overhead().trailer`. Returns the header's checksum field.
    ///
    /// # Errors
    /// An abort code (say, the ticket expired); the connection fails with it.
    fn protect(
        &mut self,
        packet: &PacketIdentity,
        payload: &mut Vec<u8>,
        start: usize,
    ) -> Result<u16, i32>;

    /// Finishes the packets that `protect` has just seen, before they are sent: `bodies` are the places of
    /// their payloads in `run`. For classes that work faster on several packets at a time.
    fn seal(&mut self, run: &mut [u8], bodies: &[Range<usize>]) {
        let _ = (run, bodies);
    }

    /// Checks and opens a packet; returns the user's bytes.
    ///
    /// # Errors
    /// The abort code for the connection.
    fn unprotect(
        &mut self,
        packet: &PacketIdentity,
        checksum: u16,
        payload: Bytes,
    ) -> Result<Bytes, i32>;

    /// What `rxdebug` shows.
    fn details(&self) -> SecurityDetails;

    /// Whether packets pass unchanged and unchecked: saves the calls above on each packet.
    fn is_null(&self) -> bool {
        false
    }
}

/// A client connection's security.
pub trait ClientSecurity: PacketSecurity {
    /// Security index to put into the packets.
    fn index(&self) -> u8;

    /// Answers a challenge with the payload of the RESPONSE.
    ///
    /// # Errors
    /// The code with which the connection fails locally.
    fn respond(
        &mut self,
        connection: &ConnectionIdentity,
        challenge: &[u8],
    ) -> Result<Vec<u8>, i32>;
}

/// What a service accepts under one security index; makes the state of each new connection.
pub trait ServerSecurity: Send + Sync {
    /// State for a new connection.
    fn accept(&self, connection: &ConnectionIdentity) -> Box<dyn ServerConnectionSecurity>;
}

/// A server connection's security.
pub trait ServerConnectionSecurity: PacketSecurity {
    /// Whether calls may go ahead. While not, challenges are sent and calls wait.
    fn authenticated(&self) -> bool;

    /// Payload of the CHALLENGE; asked for again at each repetition (same nonce, please).
    /// `random` is fresh from the endpoint's seeded source, for a first nonce. Empty: none is sent this
    /// time, the calls go on waiting.
    fn challenge(&mut self, connection: &ConnectionIdentity, random: u64) -> Vec<u8>;

    /// Judges a RESPONSE, `checksum` being its header's field. On success returns the call numbers
    /// that the client claims for its channels (calls before them are refused from then on), and
    /// `authenticated` must answer true.
    ///
    /// # Errors
    /// The abort code for the connection.
    fn response(
        &mut self,
        connection: &ConnectionIdentity,
        checksum: u16,
        response: &[u8],
    ) -> Result<[u32; 4], i32>;

    /// The maker of the connection's calls; anonymous until authenticated.
    fn caller(&self) -> Caller;
}

/// How the connections of a client are secured: makes a security object for each of them.
#[derive(Clone)]
pub struct Security(Arc<dyn Fn() -> Box<dyn ClientSecurity> + Send + Sync>);

impl Security {
    /// No security: the server sees an anonymous caller.
    #[must_use]
    pub fn null() -> Self {
        Self::new(|| Box::new(NullSecurity))
    }

    /// A security class; `make` is called once for each connection.
    #[must_use]
    pub fn new(make: impl Fn() -> Box<dyn ClientSecurity> + Send + Sync + 'static) -> Self {
        Self(Arc::new(make))
    }

    /// The state of a new connection.
    #[must_use]
    pub fn make(&self) -> Box<dyn ClientSecurity> {
        (self.0)()
    }
}

impl Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Security")
    }
}

/// No security: index 0, every caller anonymous.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullSecurity;

impl PacketSecurity for NullSecurity {
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
        SecurityDetails {
            kind: 1,
            ..SecurityDetails::default()
        }
    }

    fn is_null(&self) -> bool {
        true
    }
}

impl ClientSecurity for NullSecurity {
    fn index(&self) -> u8 {
        0
    }

    fn respond(&mut self, _: &ConnectionIdentity, _: &[u8]) -> Result<Vec<u8>, i32> {
        Err(crate::code::PROTOCOL_ERROR)
    }
}

impl ServerSecurity for NullSecurity {
    fn accept(&self, _: &ConnectionIdentity) -> Box<dyn ServerConnectionSecurity> {
        Box::new(Self)
    }
}

impl ServerConnectionSecurity for NullSecurity {
    fn authenticated(&self) -> bool {
        true
    }

    fn challenge(&mut self, _: &ConnectionIdentity, _: u64) -> Vec<u8> {
        Vec::new()
    }

    fn response(&mut self, _: &ConnectionIdentity, _: u16, _: &[u8]) -> Result<[u32; 4], i32> {
        Err(crate::code::PROTOCOL_ERROR)
    }

    fn caller(&self) -> Caller {
        Caller::Anonymous
    }
}
