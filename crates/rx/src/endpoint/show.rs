//! State for `rxdebug` and metrics.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::Endpoint;
use crate::call::CallState;
use crate::connection::Connection;
use crate::id::CallId;
use crate::packet::{
    BasicStatistics, ConnectionRecord, DebugQuery, DebugQuestion, PeerRecord, bad_debug_type,
    end_of_connections, end_of_peers, version_answer,
};
use crate::statistics::Statistics;

/// Packet size with which the receive budget is converted into packets, bytes.
const PACKET_BYTES: usize = 1_444;

/// Properties of the path to a peer, as measured by calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Shortest round trip so far.
    pub round_trip: Duration,
    /// Whether the peer is a Cellar endpoint. Calls with it are not limited to the 255 packets per
    /// round trip of the protocol, nor to the 32 that OpenAFS offers.
    pub wide: bool,
}

impl Endpoint {
    /// Returns the path of a call; `None` before the first acknowledgement, and when the call is
    /// gone.
    #[must_use]
    pub fn path(&self, call: CallId) -> Option<Path> {
        let held = self.calls.get(call.slot)?;
        let connection = self.connections.get(held.connection)?;
        let rtt = &self.peers.get(connection.peer)?.rtt;
        let same = held.generation == call.generation && rtt.samples > 0;
        same.then(|| Path {
            round_trip: Duration::from_micros(rtt.least),
            wide: connection.cellar.is_some(),
        })
    }

    /// Whether any data of a call was retransmitted. Also works for a call that has just failed.
    #[must_use]
    pub fn was_resent(&self, call: CallId) -> bool {
        let held = self.calls.get(call.slot);
        held.is_some_and(|held| held.generation == call.generation && held.resent)
    }

    /// Returns the counters.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let mut statistics = self.statistics.clone();
        let short = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        statistics.peers = short(self.peers.len());
        statistics.unverified = short(self.unverified.count());
        statistics.calls = short(self.calls.len());
        let mut free = 0;
        for (_, call) in self.calls.iter() {
            if let Some(congestion) = &call.congestion {
                statistics.sending_calls += 1;
                statistics.send_windows += congestion.window();
            }
            match call.state {
                CallState::Dally => free += 1,
                CallState::Waiting => statistics.calls_waiting += 1,
                _ => {}
            }
        }
        statistics.free_calls = free;
        statistics.receive_buffered = self.buffered.received as u64;
        statistics.send_buffered = self.buffered.sent as u64;
        statistics
    }

    /// Returns the answer to GETSTATS. Fields about threads are zero, since the driver owns the
    /// threads.
    #[must_use]
    pub fn basic_statistics(&self) -> BasicStatistics {
        let short = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let limit = self.config.limits.receive_buffer;
        let waiting = self
            .calls
            .iter()
            .filter(|(_, c)| c.state == CallState::Waiting)
            .count();
        BasicStatistics {
            free_packets: short(limit.saturating_sub(self.buffered.received) / PACKET_BYTES),
            reclaims: 0,
            calls: u32::try_from(self.statistics.calls_started).unwrap_or(u32::MAX),
            sockets: 1,
            waiting: short(waiting),
            idle_threads: 0,
            waited: self.statistics.calls_waited,
            packets: short(limit / PACKET_BYTES),
        }
    }

    fn shown(&self, interesting: bool) -> impl Iterator<Item = &Connection> {
        self.connections
            .iter()
            .map(|(_, connection)| connection)
            .filter(move |connection| {
                !interesting
                    || connection.wants_channel
                    || connection.channels.iter().any(|channel| {
                        self.calls
                            .get(channel.call)
                            .is_some_and(|c| c.state != CallState::Dally)
                    })
            })
    }

    /// Returns the n-th connection for `rxdebug`; `interesting`: only active ones.
    #[must_use]
    pub fn debug_connection(&self, index: usize, interesting: bool) -> Option<ConnectionRecord> {
        self.shown(interesting)
            .nth(index)
            .map(|connection| self.connection_record(connection))
    }

    /// Number of connections for `debug_connection`.
    #[must_use]
    pub fn debug_connection_count(&self, interesting: bool) -> usize {
        if interesting {
            self.shown(true).count()
        } else {
            self.connections.len()
        }
    }

    fn connection_record(&self, connection: &Connection) -> ConnectionRecord {
        let mut record = ConnectionRecord {
            address: ipv4(connection.address),
            cid: connection.cid,
            serial: connection.serial,
            call_numbers: connection.channels.map(|channel| channel.number),
            error: connection.error.unwrap_or(0),
            port: connection.address.port(),
            flags: u8::from(connection.wants_channel),
            server: connection.server,
            security_index: connection.security_index,
            security: connection.details(),
            traffic: connection.traffic,
            epoch: connection.epoch,
            ..ConnectionRecord::default()
        };
        for (i, channel) in connection.channels.iter().enumerate() {
            let Some(call) = self.calls.get(channel.call) else {
                continue;
            };
            let state = match call.state {
                CallState::Waiting => 1,
                CallState::Active => 2,
                CallState::Dally => 3,
                CallState::Hold => 4,
            };
            let mode = match (call.state, call.code, call.server, call.turned) {
                (CallState::Dally, 0, ..) => 4,
                (CallState::Dally, ..) => 3,
                (_, _, true, true) | (_, _, false, false) => 1,
                _ => 2,
            };
            let flags = u8::from(call.want_read)
                | u8::from(call.send.window_full()) << 1
                | u8::from(call.state == CallState::Waiting) << 4
                | u8::from(call.receive.complete()) << 5;
            let other = u8::from(call.receive.held() > 0) | u8::from(call.send.buffered() > 0) << 1;
            for (array, value) in [
                (&mut record.call_states, state),
                (&mut record.call_modes, mode),
                (&mut record.call_flags, flags),
                (&mut record.call_other, other),
            ] {
                if let Some(place) = array.get_mut(i) {
                    *place = value;
                }
            }
        }
        record
    }

    /// Returns the n-th peer for `rxdebug`.
    #[must_use]
    pub fn debug_peer(&self, index: usize) -> Option<PeerRecord> {
        let (_, peer) = self.peers.iter().nth(index)?;
        let units = |micros: u64, per_milli: u64| {
            u32::try_from(micros.saturating_mul(per_milli) / 1_000).unwrap_or(u32::MAX)
        };
        Some(PeerRecord {
            address: ipv4(peer.address),
            port: peer.address.port(),
            interface_mtu: self.config.mtu,
            idle_since: u32::try_from(self.unix_seconds(peer.received_at)).unwrap_or(u32::MAX),
            references: u16::try_from(peer.connections).unwrap_or(u16::MAX),
            srtt: units(peer.rtt.smoothed, 8),
            deviation: units(peer.rtt.deviation, 4),
            rto_micros: peer.rtt.rto(),
            sent: peer.packets_sent,
            resent: peer.packets_resent,
            max_mtu: peer.takes,
            max_jumbo: u16::from(peer.jumbo_max),
            mtu: peer.packet_size(),
            congestion_window: peer.window_packets,
            bytes_sent: peer.bytes_sent,
            bytes_received: peer.bytes_received,
        })
    }

    /// Number of peers for `debug_peer`.
    #[must_use]
    pub fn debug_peer_count(&self) -> usize {
        self.peers.len()
    }

    /// Returns the payload of the answer to a query, from this endpoint alone.
    #[must_use]
    pub fn debug_answer(&self, query: &DebugQuery) -> Vec<u8> {
        let at = |index: u32| usize::try_from(index).unwrap_or(usize::MAX);
        let connection = |index, interesting| {
            self.debug_connection(at(index), interesting)
                .map_or_else(end_of_connections, |record| record.encode())
        };
        match query.question {
            DebugQuestion::Version => version_answer(&self.config.version),
            DebugQuestion::Basic => self.basic_statistics().encode(),
            DebugQuestion::Connection(index) => connection(index, true),
            DebugQuestion::AnyConnection(index) => connection(index, false),
            DebugQuestion::Statistics => self.statistics().encode(),
            DebugQuestion::Peer(index) => self
                .debug_peer(at(index))
                .map_or_else(end_of_peers, |record| record.encode()),
            DebugQuestion::Unknown => bad_debug_type(),
        }
    }

    /// Sends the answer to a query from [`crate::Event::Debug`].
    pub fn answer_debug(
        &mut self,
        to: SocketAddr,
        local: Option<IpAddr>,
        query: &DebugQuery,
        payload: &[u8],
    ) {
        self.send_control(to, local, &query.answer_header(), payload);
    }
}

fn ipv4(address: SocketAddr) -> [u8; 4] {
    match address.ip() {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => address
            .to_ipv4_mapped()
            .map_or([0; 4], |address| address.octets()),
    }
}
