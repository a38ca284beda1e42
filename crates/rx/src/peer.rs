//! State of a remote address and port, shared by all connections to it.

use std::net::SocketAddr;

use crate::allowance::{Allowance, Proof};
use crate::congestion::PathModel;
use crate::mtu::PathMtu;
use crate::packet::Trailer;
use crate::rtt::Rtt;
use crate::share::Share;
use crate::time::Time;

/// Highest rate expected of a call, bytes per microsecond.
const FASTEST: u64 = 2_000;
/// Smallest receive window of a call, bytes.
const LEAST_WINDOW: u64 = 512 << 10;

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// Slot of the host: the address without port.
    pub(crate) host: u32,
    pub(crate) connections: u32,
    /// The number of these that count as unverified.
    pub(crate) unverified: u32,
    pub(crate) rtt: Rtt,
    pub(crate) mtu: PathMtu,
    /// Largest datagram that the peer announced to accept.
    pub(crate) takes: u16,
    /// Largest datagram that path MTU discovery may try.
    pub(crate) probe_limit: u16,
    /// Most packets in a jumbogram that the peer accepts.
    pub(crate) jumbo_max: u8,
    pub(crate) path: Option<PathModel>,
    pub(crate) share: Share,
    pub(crate) received_at: Time,
    /// Time of the last version query to it.
    pub(crate) asked_at: Time,
    /// Proof that the address receives.
    pub(crate) proof: Proof,
    /// Limit of what may be sent without such a proof.
    pub(crate) allowance: Allowance,
    /// Calls that wait for the proof: slot and call number.
    pub(crate) waiting: Vec<(u32, u32)>,
    pub(crate) packets_sent: u32,
    pub(crate) packets_resent: u32,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    /// Largest datagram received from it, bytes.
    pub(crate) largest_received: u16,
    /// Congestion window used last, packets.
    pub(crate) window_packets: u16,
}

impl Peer {
    pub(crate) fn new(address: SocketAddr, host: u32, base_mtu: u16, now: Time) -> Self {
        Self {
            address,
            host,
            connections: 0,
            unverified: 0,
            rtt: Rtt::default(),
            mtu: PathMtu::new(base_mtu),
            takes: base_mtu,
            probe_limit: base_mtu,
            jumbo_max: 1,
            path: None,
            share: Share::default(),
            received_at: now,
            asked_at: Time::ZERO,
            proof: Proof::default(),
            allowance: Allowance::default(),
            waiting: Vec::new(),
            packets_sent: 0,
            packets_resent: 0,
            bytes_sent: 0,
            bytes_received: 0,
            largest_received: base_mtu,
            window_packets: 0,
        }
    }

    /// Returns the receive window for a call from this peer, in packets, at most `limit`.
    ///
    /// The window holds as many bytes as [`FASTEST`] delivers in one round trip, and at least
    /// [`LEAST_WINDOW`].
    ///
    /// With a larger window, bursts of a nearby peer overflow our socket. The calls of all peers
    /// share its buffer, and each peer sends as if it were alone.
    pub(crate) fn receive_window(&self, limit: u32) -> u32 {
        if self.rtt.samples == 0 {
            return limit;
        }
        let bytes = (FASTEST * self.rtt.least).max(LEAST_WINDOW);
        let packets = bytes / u64::from(self.largest_received.max(1));
        limit.min(u32::try_from(packets).unwrap_or(limit))
    }

    /// Registers a call to continue when the address is proved to receive.
    pub(crate) fn awaits_proof(&mut self, slot: u32, number: u32) {
        if self.waiting.contains(&(slot, number)) {
            return;
        }
        if self.waiting.len() >= WAITING_MAX {
            // The oldest entries belong to calls that ended long ago.
            self.waiting.remove(0);
        }
        self.waiting.push((slot, number));
    }

    /// Largest packet (not jumbogram) to send, bytes.
    pub(crate) fn packet_size(&self) -> u16 {
        self.mtu.proven().min(self.takes)
    }

    /// Applies the sizes of an ACK's trailer. Without a trailer, uses OpenAFS's fallback: Ethernet
    /// size, no jumbograms.
    pub(crate) fn learn_sizes(&mut self, trailer: Option<&Trailer>, cellar_max: Option<u16>) {
        if let Some(max) = cellar_max {
            self.takes = max.clamp(MIN_DATAGRAM, MAX_DATAGRAM);
            self.probe_limit = self.takes;
            self.jumbo_max = 1;
            return;
        }
        let clamp = |n: u32| {
            u16::try_from(n.clamp(u32::from(MIN_DATAGRAM), u32::from(MAX_DATAGRAM)))
                .unwrap_or(MAX_DATAGRAM)
        };
        let Some(trailer) = trailer else {
            self.takes = ETHERNET;
            self.jumbo_max = 1;
            return;
        };
        let max = clamp(trailer.max_datagram);
        let announced = trailer.interface_mtu.map_or(max, |mtu| clamp(mtu).min(max));
        // Linux reports the MTU of its loopback here; single packets of that size are for Cellar
        // peers only.
        self.takes = announced.min(self.mtu.base());
        let jumbo = trailer
            .jumbo_max
            .unwrap_or(1)
            .clamp(1, u32::from(MAX_JUMBO));
        self.jumbo_max = u8::try_from(jumbo).unwrap_or(1);
        self.probe_limit = if self.jumbo_max > 1 { max } else { self.takes };
    }
}

/// Calls of one peer that may wait for the proof. A call that is dropped from the list continues
/// with its own next packet.
const WAITING_MAX: usize = 256;
/// Most packets in a jumbogram.
pub(crate) const MAX_JUMBO: u8 = 6;
const ETHERNET: u16 = 1444;
/// Smallest datagram size that is accepted from a peer's ACK, bytes.
const MIN_DATAGRAM: u16 = 520;
/// Largest datagram size that is accepted from a peer's ACK, bytes.
const MAX_DATAGRAM: u16 = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_peer_has_a_window_in_bytes() {
        let address = SocketAddr::from(([192, 0, 2, 1], 7000));
        let mut peer = Peer::new(address, 0, 1444, Time::ZERO);
        assert_eq!(peer.receive_window(4096), 4096, "not known yet");
        peer.rtt.sample(100_000);
        assert_eq!(peer.receive_window(4096), 4096, "far");
        peer.rtt.sample(1_000);
        assert_eq!(peer.receive_window(4096), 1385, "2 MB");
        peer.rtt.sample(50);
        assert_eq!(peer.receive_window(4096), 363, "the least");
        peer.largest_received = 15_000;
        assert_eq!(peer.receive_window(4096), 34);
        assert_eq!(peer.receive_window(32), 32);
    }
}
