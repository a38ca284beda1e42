//! A connection: its two ends, its four channels, its security.

use std::net::{IpAddr, SocketAddr};

use crate::config::ConnectionOptions;
use crate::congestion::UNPACED_RTT;
use crate::packet::{Cellar, Flags, Header, PacketType};
use crate::security::{
    ClientSecurity, ConnectionIdentity, Overhead, PacketIdentity, SecurityDetails,
    ServerConnectionSecurity,
};
use crate::table::NONE;
use crate::time::Time;

/// Security state of one end.
#[derive(Debug)]
pub(crate) enum SecurityState {
    Client(Box<dyn ClientSecurity>),
    Server(Box<dyn ServerConnectionSecurity>),
}

/// A channel carries one call at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Channel {
    /// Call slot; `NONE` if the channel has no call.
    pub(crate) call: u32,
    /// Number of the last call.
    pub(crate) number: u32,
    /// Until this time other channels are preferred, since the server sent BUSY.
    pub(crate) busy_until: Time,
}

/// A challenge that is repeated until the client answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Challenge {
    /// Number of times it was due.
    pub(crate) sent: u8,
    /// Whether it was really sent at least once; the class may have withheld it.
    pub(crate) out: bool,
    pub(crate) next_at: Time,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) epoch: u32,
    pub(crate) cid: u32,
    pub(crate) server: bool,
    pub(crate) address: SocketAddr,
    pub(crate) local: Option<IpAddr>,
    pub(crate) peer: u32,
    pub(crate) service: u16,
    pub(crate) security_index: u8,
    pub(crate) security: SecurityState,
    /// Whether packets pass unchanged.
    pub(crate) plain: bool,
    pub(crate) authenticated: bool,
    /// Whether it counts among those of unverified addresses.
    pub(crate) unverified: bool,
    pub(crate) reach_check: bool,
    pub(crate) first_checksum: u16,
    pub(crate) serial: u32,
    /// The serial before that of our first packet.
    pub(crate) serial_base: u32,
    pub(crate) channels: [Channel; 4],
    pub(crate) error: Option<i32>,
    pub(crate) used_at: Time,
    pub(crate) challenge: Option<Challenge>,
    /// Hash of the challenge that this client has answered.
    pub(crate) answered: Option<u64>,
    /// Time to send the abort for a failed authentication.
    pub(crate) abort_at: Option<Time>,
    pub(crate) armed: Time,
    /// Next connection with the same epoch and cid but another address.
    pub(crate) same_key: u32,
    /// Values of the peer's extension, if it is a Cellar peer.
    pub(crate) cellar: Option<CellarPeer>,
    pub(crate) wants_channel: bool,
    /// Time-outs that the driver set instead of the endpoint's.
    pub(crate) options: ConnectionOptions,
    /// Packets received, packets sent, bytes received, bytes sent.
    pub(crate) traffic: [u32; 4],
}

/// Values that a Cellar peer announced for the whole connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellarPeer {
    pub(crate) initial_window: u16,
}

impl CellarPeer {
    pub(crate) const fn new(cellar: &Cellar) -> Self {
        Self {
            initial_window: cellar.initial_window,
        }
    }
}

impl Connection {
    /// Creates an unused connection to the peer in that slot.
    pub(crate) fn new(
        now: Time,
        identity: &ConnectionIdentity,
        peer: u32,
        security: SecurityState,
        options: ConnectionOptions,
    ) -> Self {
        let (server, plain, authenticated) = match &security {
            SecurityState::Client(class) => (false, class.is_null(), true),
            SecurityState::Server(class) => (true, class.is_null(), class.authenticated()),
        };
        Self {
            epoch: identity.epoch,
            cid: identity.cid,
            server,
            address: identity.peer,
            local: None,
            peer,
            service: identity.service,
            security_index: identity.security_index,
            security,
            plain,
            authenticated,
            unverified: false,
            reach_check: false,
            first_checksum: identity.first_checksum,
            serial: 0,
            serial_base: 0,
            channels: identity.call_numbers.map(|number| Channel {
                call: NONE,
                number,
                busy_until: Time::ZERO,
            }),
            error: None,
            used_at: now,
            challenge: None,
            answered: None,
            abort_at: None,
            armed: Time::NEVER,
            same_key: NONE,
            cellar: None,
            wants_channel: false,
            options,
            traffic: [0; 4],
        }
    }

    pub(crate) const fn key(&self) -> u64 {
        connection_key(self.epoch, self.cid, self.server)
    }

    /// Whether its calls share the path with concurrent ones, for a round trip in microseconds.
    /// Calls to a stock peer are limited by its window, and short paths are not paced.
    pub(crate) const fn shares_path(&self, rtt: u64) -> bool {
        self.cellar.is_some() && rtt >= UNPACED_RTT
    }

    pub(crate) fn next_serial(&mut self) -> u32 {
        self.serial = self.serial.wrapping_add(1).max(1);
        self.serial
    }

    /// Whether one of our newest `window` packets had this serial.
    pub(crate) const fn sent_serial(&self, serial: u32, window: u32) -> bool {
        let age = self.serial.wrapping_sub(serial);
        serial != 0 && age < window && age < self.serial.wrapping_sub(self.serial_base)
    }

    /// Creates a header for a packet to the peer, with the next serial.
    pub(crate) fn header(
        &mut self,
        packet_type: PacketType,
        channel: u8,
        call_number: u32,
    ) -> Header {
        Header {
            epoch: self.epoch,
            cid: self.cid | u32::from(channel),
            call_number,
            seq: 0,
            serial: self.next_serial(),
            packet_type,
            flags: Flags(if self.server {
                0
            } else {
                Flags::CLIENT_INITIATED
            }),
            user_status: 0,
            security_index: self.security_index,
            checksum: 0,
            service: self.service,
        }
    }

    pub(crate) fn packet_identity(
        &self,
        channel: u8,
        call_number: u32,
        seq: u32,
        ours: bool,
        unix_seconds: u64,
    ) -> PacketIdentity {
        PacketIdentity {
            epoch: self.epoch,
            cid: self.cid | u32::from(channel),
            call_number,
            seq,
            from_client: self.server != ours,
            security_index: self.security_index,
            unix_seconds,
        }
    }

    pub(crate) fn identity(&self, unix_seconds: u64) -> ConnectionIdentity {
        ConnectionIdentity {
            peer: self.address,
            epoch: self.epoch,
            cid: self.cid,
            service: self.service,
            security_index: self.security_index,
            call_numbers: self.channels.map(|channel| channel.number),
            first_checksum: self.first_checksum,
            unix_seconds,
        }
    }

    pub(crate) fn overhead(&self) -> Overhead {
        match &self.security {
            _ if self.plain => Overhead::default(),
            SecurityState::Client(class) => class.overhead(),
            SecurityState::Server(class) => class.overhead(),
        }
    }

    pub(crate) fn details(&self) -> SecurityDetails {
        match &self.security {
            SecurityState::Client(class) => class.details(),
            SecurityState::Server(class) => class.details(),
        }
    }
}

/// Key of the connection table: epoch, cid, and our end in a bit that cids leave free.
pub(crate) const fn connection_key(epoch: u32, cid: u32, server: bool) -> u64 {
    ((epoch as u64) << 32) | (cid & !3) as u64 | server as u64
}
