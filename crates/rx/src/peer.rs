//! What is known of an address at the other end: shared by all connections to it.

use std::net::SocketAddr;

use crate::allowance::{Allowance, Proof};
use crate::congestion::PathModel;
use crate::mtu::PathMtu;
use crate::packet::Trailer;
use crate::rtt::Rtt;
use crate::share::Share;
use crate::time::Time;

/// No call is expected to be faster, bytes a microsecond.
const FASTEST: u64 = 2_000;
/// The least that a call may have under way, bytes.
const LEAST_WINDOW: u64 = 512 << 10;

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// Entry of the address without port.
    pub(crate) host: u32,
    pub(crate) connections: u32,
    /// Of these, counted as unverified.
    pub(crate) unverified: u32,
    pub(crate) rtt: Rtt,
    pub(crate) mtu: PathMtu,
    /// Largest datagram that the peer takes, as it said.
    pub(crate) takes: u16,
    /// Largest datagram it lets path MTU discovery try.
    pub(crate) probe_limit: u16,
    /// Packets per jumbogram that it takes.
    pub(crate) jumbo_max: u8,
    pub(crate) path: Option<PathModel>,
    pub(crate) share: Share,
    pub(crate) heard_at: Time,
    /// When it was last asked for its version.
    pub(crate) asked_at: Time,
    /// That the address receives.
    pub(crate) proof: Proof,
    /// What may be sent to it without.
    pub(crate) allowance: Allowance,
    /// Calls that wait for the proof: slot and number.
    pub(crate) waiting: Vec<(u32, u32)>,
    pub(crate) packets_sent: u32,
    pub(crate) packets_resent: u32,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    /// Largest datagram that it has sent, bytes.
    pub(crate) largest_received: u16,
    /// Congestion window last used, packets.
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
            heard_at: now,
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

    /// The packets that a call from this peer may have under way, at most `limit`: as many as
    /// [`FASTEST`] brings in a round trip, and [`LEAST_WINDOW`] at least.
    ///
    /// A larger window lets bursts of a near peer overflow our socket: the calls of all peers share
    /// that buffer, and each peer sends as if it were alone.
    pub(crate) fn receive_window(&self, limit: u32) -> u32 {
        if self.rtt.samples == 0 {
            return limit;
        }
        let bytes = (FASTEST * self.rtt.least).max(LEAST_WINDOW);
        let packets = bytes / u64::from(self.largest_received.max(1));
        limit.min(u32::try_from(packets).unwrap_or(limit))
    }

    /// A call goes on when the address is proven to receive.
    pub(crate) fn awaits_proof(&mut self, slot: u32, number: u32) {
        if self.waiting.contains(&(slot, number)) {
            return;
        }
        if self.waiting.len() >= WAITING_MAX {
            // Those whose calls are long over.
            self.waiting.remove(0);
        }
        self.waiting.push((slot, number));
    }

    /// Largest packet (not jumbogram) to send.
    pub(crate) fn packet_size(&self) -> u16 {
        self.mtu.proven().min(self.takes)
    }

    /// Takes in the sizes of an ACK's trailer; without one, OpenAFS's fallback: Ethernet, no jumbograms.
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
        let told = trailer.interface_mtu.map_or(max, |mtu| clamp(mtu).min(max));
        // Linux names its loopback's MTU here; single packets that large are for Cellar peers only.
        self.takes = told.min(self.mtu.base());
        let jumbo = trailer
            .jumbo_max
            .unwrap_or(1)
            .clamp(1, u32::from(MAX_JUMBO));
        self.jumbo_max = u8::try_from(jumbo).unwrap_or(1);
        self.probe_limit = if self.jumbo_max > 1 { max } else { self.takes };
    }
}

/// Calls of one peer that wait for its address to be proven. One pushed out goes on by its own next
/// packet.
const WAITING_MAX: usize = 256;
/// Most packets in a jumbogram.
pub(crate) const MAX_JUMBO: u8 = 6;
const ETHERNET: u16 = 1444;
/// Smallest datagram size that is believed of a peer, bytes.
const MIN_DATAGRAM: u16 = 520;
/// Largest datagram size that is believed of a peer, bytes.
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
