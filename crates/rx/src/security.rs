//! Interface between a connection and its security class. The null class is here; rxkad is in
//! `auth`.
//!
//! 1. A client connection owns a [`ClientSecurity`]. A server connection owns the object that the
//!    service's [`ServerSecurity`] made when the first packet arrived.
//! 2. The endpoint sends the CHALLENGE to an unauthenticated server connection, and its calls wait.
//!    The RESPONSE is checked once; then calls go to the driver. A refusal ends the connection with
//!    an abort, sent one second later to slow down guessing.
//! 3. DATA packets pass `protect` each time they are sent (also when retransmitted), and
//!    `unprotect` once, in order, when the application reads. Both see the identity of the packet,
//!    which classes bind into checksums. A class may leave part of the work to `seal`, which sees
//!    all packets of a run.
//! 4. If `unprotect` fails, the whole connection fails with its code.

use std::fmt::{self, Debug};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::Caller;

/// Identity of the packet to protect.
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
    /// Address of the other end.
    pub peer: SocketAddr,
    /// Epoch of the connection.
    pub epoch: u32,
    /// Connection id, channel bits 0.
    pub cid: u32,
    /// Service id.
    pub service: u16,
    /// Security index.
    pub security_index: u8,
    /// For each channel the number of its last call; 0: none yet. In a client's `respond`, the
    /// number of the oldest call that may still run: one more if the last call is over.
    pub call_numbers: [u32; 4],
    /// Header checksum of the packet that created the connection (server end; otherwise 0).
    pub first_checksum: u16,
    /// Seconds since 1970.
    pub unix_seconds: u64,
}

/// Bytes that a class adds to each DATA packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Overhead {
    /// Bytes before the user's data.
    pub header: u16,
    /// Most bytes after the user's data.
    pub trailer: u16,
}

/// Security state of a connection as `rxdebug` shows it.
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

/// Processing of DATA packets, the same at both ends.
pub trait PacketSecurity: Send + Debug {
    /// Returns the room needed. Called for each packet, so the value may change with the negotiated
    /// level.
    fn overhead(&self) -> Overhead;

    /// Protects a packet in place and returns the checksum field of the header.
    ///
    /// `payload[start..]` contains `overhead().header` zero bytes followed by the user's data. It
    /// may grow by `overhead().trailer`.
    ///
    /// # Errors
    /// An abort code (for instance, the ticket has expired); the connection fails with it.
    fn protect(
        &mut self,
        packet: &PacketIdentity,
        payload: &mut Vec<u8>,
        start: usize,
    ) -> Result<u16, i32>;

    /// Finishes the packets that `protect` has just processed, before they are sent.
    ///
    /// `bodies` are the ranges of their payloads in `run`. For classes that are faster on several
    /// packets at a time.
    fn seal(&mut self, run: &mut [u8], bodies: &[Range<usize>]) {
        let _ = (run, bodies);
    }

    /// Checks and decrypts a packet; returns the user's data.
    ///
    /// # Errors
    /// The abort code for the connection.
    fn unprotect(
        &mut self,
        packet: &PacketIdentity,
        checksum: u16,
        payload: Bytes,
    ) -> Result<Bytes, i32>;

    /// Returns the state that `rxdebug` shows.
    fn details(&self) -> SecurityDetails;

    /// Whether packets pass unchanged and unchecked; if so, the endpoint skips the calls above.
    fn is_null(&self) -> bool {
        false
    }
}

/// Security state of a client connection.
pub trait ClientSecurity: PacketSecurity {
    /// Security index of the packets.
    fn index(&self) -> u8;

    /// Returns the payload of the RESPONSE to a challenge.
    ///
    /// # Errors
    /// The code with which the connection fails locally.
    fn respond(
        &mut self,
        connection: &ConnectionIdentity,
        challenge: &[u8],
    ) -> Result<Vec<u8>, i32>;
}

/// Server side of a security class for one security index; creates the state of each new
/// connection.
pub trait ServerSecurity: Send + Sync {
    /// Creates the state of a new connection.
    fn accept(&self, connection: &ConnectionIdentity) -> Box<dyn ServerConnectionSecurity>;
}

/// Security state of a server connection.
pub trait ServerConnectionSecurity: PacketSecurity {
    /// Whether calls may proceed. Until then, challenges are sent and calls wait.
    fn authenticated(&self) -> bool;

    /// Returns the payload of the CHALLENGE. Called again for each repetition, which should use the
    /// same nonce.
    ///
    /// `random` comes from the endpoint's seeded source, for the first nonce. If the result is
    /// empty, no challenge is sent this time and the calls continue to wait.
    fn challenge(&mut self, connection: &ConnectionIdentity, random: u64) -> Vec<u8>;

    /// Checks a RESPONSE, whose header has the checksum field `checksum`.
    ///
    /// On success returns the call numbers that the client claims for its channels; earlier calls
    /// are refused from then on. Afterwards `authenticated` must return true.
    ///
    /// # Errors
    /// The abort code for the connection.
    fn response(
        &mut self,
        connection: &ConnectionIdentity,
        checksum: u16,
        response: &[u8],
    ) -> Result<[u32; 4], i32>;

    /// Returns the identity of the caller; anonymous until authenticated.
    fn caller(&self) -> Caller;
}

/// Security of a client's connections: creates a security object for each of them.
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
