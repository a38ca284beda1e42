//! Received datagrams: finds their connection, or the answer if there is none.
//!
//! 1. VERSION and DEBUG are handled before any connection.
//! 2. A connection is found by epoch, cid and direction. The address must match too, unless the
//!    epoch is random (bit 31) or we are the client and the port matches (rx-wire facts 1.3).
//!    Answers still go to the address of the connection's first packet. The sender address of a
//!    packet proves nothing, and a peer that guesses the numbers could otherwise direct answers to
//!    any address. A client with another address creates another connection.
//! 3. Only DATA creates a server connection, and only for a service and security index that exist.
//!    All other packets without a connection cost no memory: they are dropped, or answered with a
//!    raw abort.
//! 4. The number of connections with the same epoch and cid is bounded, since they are searched
//!    linearly.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;

use super::aging::Aging;
use super::{Endpoint, Host};
use crate::code;
use crate::config::{ConnectionOptions, DebugMode};
use crate::connection::{Connection, SecurityState, connection_key};
use crate::event::Event;
use crate::packet::{Flags, HEADER_SIZE, Header, PacketType, decode_debug_query};
use crate::peer::Peer;
use crate::security::ConnectionIdentity;
use crate::table::NONE;
use crate::time::Time;

/// Most server connections with one epoch and cid, which differ by address only. Clients choose
/// these numbers at random. More than two or three are an attack on the linear search, which every
/// packet needs.
const SAME_KEY_MAX: usize = 32;

impl Endpoint {
    /// Processes one datagram. `local` is the address it was sent to, if known; answers are sent
    /// from there. Received data is kept as slices of `datagram`, so small datagrams need their own
    /// buffers.
    pub fn handle_datagram(
        &mut self,
        now: Time,
        from: SocketAddr,
        local: Option<IpAddr>,
        datagram: Bytes,
    ) {
        let now = self.advance(now);
        self.drop_excess(now);
        let Some(header) = Header::decode(&datagram) else {
            self.count_bogus(from);
            return;
        };
        let index = usize::from(header.packet_type.0).wrapping_sub(1);
        if let Some(count) = self.statistics.packets_read.get_mut(index) {
            *count = count.wrapping_add(1);
        }
        match header.packet_type {
            PacketType::VERSION if !header.from_client() => return self.take_version(now, from),
            PacketType::VERSION | PacketType::DEBUG => {
                self.take_question(from, local, &header, &datagram);
                return;
            }
            PacketType(9..=11) if header.call_number == 0 => return,
            _ => {}
        }
        let slot = match self.find_connection(&header, from) {
            Some(slot) => slot,
            None => match self.make_server_connection(now, from, local, &header) {
                Some(slot) => slot,
                None => return,
            },
        };
        self.dispatch(now, slot, &header, datagram);
    }

    /// Processes a run of datagrams of `segment` bytes each (the last may be shorter), as receive
    /// offload delivers them.
    pub fn handle_segments(
        &mut self,
        now: Time,
        from: SocketAddr,
        local: Option<IpAddr>,
        mut datagrams: Bytes,
        segment: usize,
    ) {
        while segment > 0 && datagrams.len() > segment {
            let datagram = datagrams.split_to(segment);
            self.handle_datagram(now, from, local, datagram);
        }
        self.handle_datagram(now, from, local, datagrams);
    }

    fn count_bogus(&mut self, from: SocketAddr) {
        self.statistics.bogus_packets = self.statistics.bogus_packets.wrapping_add(1);
        if let IpAddr::V4(address) = from.ip() {
            self.statistics.bogus_host = u32::from(address);
        }
    }

    fn take_question(
        &mut self,
        from: SocketAddr,
        local: Option<IpAddr>,
        header: &Header,
        datagram: &[u8],
    ) {
        let payload = datagram.get(HEADER_SIZE..).unwrap_or(&[]);
        let Some(query) = decode_debug_query(header, payload) else {
            return;
        };
        match self.config.debug {
            DebugMode::Silent => {}
            DebugMode::Answer => {
                let answer = self.debug_answer(&query);
                self.answer_debug(from, local, &query, &answer);
            }
            DebugMode::Event => {
                if self.events.len() < self.config.limits.control_packets {
                    self.events.push_back(Event::Debug { from, local, query });
                }
            }
        }
    }

    #[inline]
    fn find_connection(&self, header: &Header, from: SocketAddr) -> Option<u32> {
        let server = header.from_client();
        let mut slot = *self
            .by_key
            .get(&connection_key(header.epoch, header.cid, server))?;
        while let Some(connection) = self.connections.get(slot) {
            if connection.address == from
                || header.epoch & 0x8000_0000 != 0
                || (!server && connection.address.port() == from.port())
            {
                return Some(slot);
            }
            slot = connection.same_key;
        }
        None
    }

    /// Answers a packet that has no connection: serial 0, call number and ids echoed.
    pub(super) fn raw_abort(
        &mut self,
        to: SocketAddr,
        local: Option<IpAddr>,
        header: &Header,
        code: i32,
    ) {
        let packet_type = PacketType::ABORT;
        self.raw_answer(to, local, header, packet_type, &code.to_be_bytes());
        self.statistics.aborts_sent = self.statistics.aborts_sent.wrapping_add(1);
    }

    pub(super) fn raw_answer(
        &mut self,
        to: SocketAddr,
        local: Option<IpAddr>,
        header: &Header,
        packet_type: PacketType,
        payload: &[u8],
    ) {
        let flags = Flags(!header.flags.0 & Flags::CLIENT_INITIATED);
        let answer = Header {
            seq: 0,
            serial: 0,
            packet_type,
            flags,
            user_status: 0,
            checksum: 0,
            ..*header
        };
        self.send_control(to, local, &answer, payload);
    }

    fn make_server_connection(
        &mut self,
        now: Time,
        from: SocketAddr,
        local: Option<IpAddr>,
        header: &Header,
    ) -> Option<u32> {
        if !header.from_client() || header.packet_type == PacketType::ABORT {
            return None;
        }
        let class = self
            .services
            .iter()
            .find(|service| service.id == header.service)
            .and_then(|service| {
                let (_, class) = service
                    .security
                    .iter()
                    .find(|(i, _)| *i == header.security_index)?;
                Some((class.clone(), service.reach_check, service.idle_dead_time))
            });
        let Some((class, reach_check, idle_dead_time)) = class else {
            self.raw_abort(from, local, header, code::INVALID_OPERATION);
            return None;
        };
        if header.packet_type != PacketType::DATA || header.call_number == 0 {
            if header.call_number == 0 && !known_type(header.packet_type) {
                self.raw_abort(from, local, header, code::PROTOCOL_ERROR);
            }
            return None;
        }
        if self.is_crowded(header) || !self.has_place(now, from) {
            self.statistics.overload_aborts = self.statistics.overload_aborts.wrapping_add(1);
            self.raw_abort(from, local, header, code::BUSY);
            return None;
        }
        let Some(peer) = self.peer_of(now, from) else {
            self.raw_abort(from, local, header, code::BUSY);
            return None;
        };
        let identity = ConnectionIdentity {
            peer: from,
            epoch: header.epoch,
            cid: header.cid & !3,
            service: header.service,
            security_index: header.security_index,
            call_numbers: [0; 4],
            first_checksum: header.checksum,
            unix_seconds: self.unix_seconds(now),
        };
        let security = SecurityState::Server(class.accept(&identity));
        let options = ConnectionOptions {
            idle_dead_time,
            ..ConnectionOptions::default()
        };
        let serial = self.serial_base();
        let connection = Connection {
            local,
            reach_check,
            serial,
            serial_base: serial,
            ..Connection::new(now, &identity, peer, security, options)
        };
        let slot = self.insert_connection(connection);
        self.counts.connections.add(1);
        self.begin_unverified(now, slot);
        Some(slot)
    }

    /// Whether the number of connections with this epoch and cid is at its bound.
    fn is_crowded(&self, header: &Header) -> bool {
        let key = connection_key(header.epoch, header.cid, header.from_client());
        let mut slot = self.by_key.get(&key).copied().unwrap_or(NONE);
        let mut count = 0;
        while let Some(connection) = self.connections.get(slot) {
            slot = connection.same_key;
            count += 1;
        }
        count >= SAME_KEY_MAX
    }

    pub(super) fn insert_connection(&mut self, mut connection: Connection) -> u32 {
        let key = connection.key();
        let server = connection.server;
        let peer = connection.peer;
        connection.same_key = self.by_key.get(&key).copied().unwrap_or(NONE);
        let slot = self.connections.insert(connection);
        self.by_key.insert(key, slot);
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.connections += 1;
        }
        let count = if server {
            &mut self.statistics.server_connections
        } else {
            &mut self.statistics.client_connections
        };
        *count += 1;
        slot
    }

    /// Returns the record of an address, which may be new; `None` if there are too many.
    pub(super) fn peer_of(&mut self, now: Time, address: SocketAddr) -> Option<u32> {
        if let Some(&slot) = self.by_address.get(&address) {
            return Some(slot);
        }
        if !self.counts.peers.has_room() {
            self.forget_peers(now, true);
            if !self.counts.peers.has_room() {
                return None;
            }
        }
        Some(self.add_peer(now, address))
    }

    pub(super) fn add_peer(&mut self, now: Time, address: SocketAddr) -> u32 {
        let ip = address.ip();
        let host = match self.by_host.get(&ip) {
            Some(&host) => host,
            None => {
                let host = self.hosts.insert(Host {
                    address: ip,
                    peers: 0,
                    calls: 0,
                    unverified: Aging::default(),
                });
                self.by_host.insert(ip, host);
                host
            }
        };
        if let Some(host) = self.hosts.get_mut(host) {
            host.peers += 1;
        }
        let slot = self
            .peers
            .insert(Peer::new(address, host, self.config.mtu, now));
        self.by_address.insert(address, slot);
        self.counts.peers.add(1);
        slot
    }

    fn dispatch(&mut self, now: Time, slot: u32, header: &Header, datagram: Bytes) {
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        if connection.security_index != header.security_index {
            return;
        }
        connection.used_at = now;
        connection.traffic[0] = connection.traffic[0].wrapping_add(1);
        connection.traffic[2] = connection.traffic[2].wrapping_add(datagram.len() as u32);
        let error = connection.error;
        if let Some(peer) = self.peers.get_mut(connection.peer) {
            peer.received_at = now;
            peer.bytes_received += datagram.len() as u64;
            let length = u16::try_from(datagram.len()).unwrap_or(u16::MAX);
            peer.largest_received = peer.largest_received.max(length);
            if !peer.proof.holds(now) {
                peer.allowance.received(datagram.len());
            }
        }
        if error.is_some() {
            if header.packet_type != PacketType::ABORT {
                self.repeat_connection_abort(now, slot);
            }
            return;
        }
        let payload = datagram.get(HEADER_SIZE..).unwrap_or(&[]);
        match header.packet_type {
            PacketType::ABORT => self.take_abort(now, slot, header, payload),
            PacketType::CHALLENGE => self.take_challenge(now, slot, header, payload),
            PacketType::RESPONSE => self.take_response(now, slot, header, payload),
            PacketType(9..=11) if header.call_number == 0 => {}
            _ if header.call_number == 0 => {
                self.fail_connection(now, slot, code::PROTOCOL_ERROR, true);
            }
            PacketType::DATA => self.take_data(now, slot, header, &datagram),
            PacketType::ACK => self.take_ack(now, slot, header, payload),
            PacketType::ACKALL => self.take_ack_all(now, slot, header),
            PacketType::BUSY => self.take_busy(now, slot, header),
            _ => self.take_unknown(now, slot, header),
        }
    }

    /// Handles a packet of an unknown type: aborts its call if there is one.
    fn take_unknown(&mut self, now: Time, slot: u32, header: &Header) {
        if let Some(call) = self.current_call(slot, header) {
            self.abort_call(now, call, code::PROTOCOL_ERROR, true);
        }
    }

    /// Returns the slot of the packet's call, if it is the current one of its channel.
    pub(super) fn current_call(&self, slot: u32, header: &Header) -> Option<u32> {
        let connection = self.connections.get(slot)?;
        let channel = connection.channels.get(header.channel())?;
        let call = self.calls.get(channel.call)?;
        (call.number == header.call_number).then_some(channel.call)
    }
}

fn known_type(packet_type: PacketType) -> bool {
    matches!(packet_type.0, 1..=11 | 13)
}
