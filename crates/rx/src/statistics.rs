//! Counters for `rxdebug -rxstats` and Cellar's own metrics.

/// Upper bounds of the counts of round trips, µs: from one machine to a satellite.
pub const ROUND_TRIP_BOUNDS_MICROS: [u64; 10] = [
    100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000,
];

/// Counters of one endpoint since its creation. [`Statistics::merge`] adds up several endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Datagrams without a valid header.
    pub bogus_packets: u32,
    /// IPv4 address of the last one (network order).
    pub bogus_host: u32,
    /// Packets received, by type minus 1.
    pub packets_read: [u32; 13],
    /// Packets sent, by type minus 1.
    pub packets_sent: [u32; 13],
    /// DATA packets accepted.
    pub data_read: u32,
    /// ACK packets accepted.
    pub acks_read: u32,
    /// DATA packets received before.
    pub duplicates: u32,
    /// DATA packets of finished calls, or beyond the window.
    pub spurious: u32,
    /// ACKs ignored as outdated or impossible.
    pub acks_ignored: u32,
    /// ACKs sent.
    pub acks_sent: u32,
    /// The number of these that are pings.
    pub pings_sent: u32,
    /// ABORTs sent.
    pub aborts_sent: u32,
    /// BUSYs sent.
    pub busies_sent: u32,
    /// DATA packets sent the first time.
    pub data_sent: u32,
    /// DATA packets sent again.
    pub data_resent: u32,
    /// Packets dropped because the slot of a finished call received something else.
    pub ignored_in_dally: u32,
    /// Calls refused for load.
    pub overload_aborts: u32,
    /// Sum of the measured round trips, microseconds.
    pub rtt_sum_micros: u64,
    /// Smallest round trip, microseconds; 0: no sample yet.
    pub rtt_min_micros: u64,
    /// Largest round trip, microseconds.
    pub rtt_max_micros: u64,
    /// Number of samples.
    pub rtt_samples: u32,
    /// The samples by [`ROUND_TRIP_BOUNDS_MICROS`]. Each is counted once, at the first bound that
    /// is not below it. The last count has the samples above all bounds.
    pub rtt_counts: [u32; ROUND_TRIP_BOUNDS_MICROS.len() + 1],
    /// Current number of server connections.
    pub server_connections: u32,
    /// Current number of client connections.
    pub client_connections: u32,
    /// Current number of peers.
    pub peers: u32,
    /// Current number of call slots.
    pub calls: u32,
    /// The number of these that are free.
    pub free_calls: u32,
    /// Server calls handed to the driver.
    pub calls_started: u64,
    /// Server calls that wait for authentication or a proof of the address now.
    pub calls_waiting: u32,
    /// Server calls that ever waited for it.
    pub calls_waited: u32,
    /// Bytes received and not yet read.
    pub receive_buffered: u64,
    /// Bytes written and not yet acknowledged.
    pub send_buffered: u64,
    /// Bytes of user data received.
    pub bytes_received: u64,
    /// Bytes of user data sent.
    pub bytes_sent: u64,
    /// Sends that the driver reported as failed.
    pub send_failures: u32,
    /// Current number of server connections from unverified addresses.
    pub unverified: u32,
    /// Server connections from unverified addresses that were dropped to make room.
    pub evicted: u32,
    /// Packets withheld from unverified addresses.
    pub withheld: u32,
    /// Path MTU probes that were answered.
    pub mtu_growths: u32,
    /// Paths on which the packet size was reduced.
    pub mtu_shrinks: u32,
    /// Calls that have sent data and measure their path now.
    pub sending_calls: u32,
    /// Sum of the congestion windows of these calls, bytes.
    pub send_windows: u64,
}

impl Statistics {
    /// Adds another endpoint's counters.
    pub fn merge(&mut self, other: &Self) {
        macro_rules! add {
            ($($field:ident),*) => { $(self.$field = self.$field.wrapping_add(other.$field);)* };
        }
        for (mine, theirs) in self.packets_read.iter_mut().zip(other.packets_read) {
            *mine = mine.wrapping_add(theirs);
        }
        for (mine, theirs) in self.packets_sent.iter_mut().zip(other.packets_sent) {
            *mine = mine.wrapping_add(theirs);
        }
        for (mine, theirs) in self.rtt_counts.iter_mut().zip(other.rtt_counts) {
            *mine = mine.wrapping_add(theirs);
        }
        if other.bogus_host != 0 {
            self.bogus_host = other.bogus_host;
        }
        self.rtt_min_micros = match (self.rtt_min_micros, other.rtt_min_micros) {
            (0, n) | (n, 0) => n,
            (a, b) => a.min(b),
        };
        self.rtt_max_micros = self.rtt_max_micros.max(other.rtt_max_micros);
        add!(
            bogus_packets,
            data_read,
            acks_read,
            duplicates,
            spurious,
            acks_ignored,
            acks_sent
        );
        add!(
            pings_sent,
            aborts_sent,
            busies_sent,
            data_sent,
            data_resent,
            ignored_in_dally
        );
        add!(
            overload_aborts,
            rtt_sum_micros,
            rtt_samples,
            sending_calls,
            send_windows,
            server_connections
        );
        add!(
            client_connections,
            peers,
            calls,
            free_calls,
            calls_started,
            calls_waiting
        );
        add!(
            calls_waited,
            receive_buffered,
            bytes_received,
            bytes_sent,
            send_failures
        );
        add!(
            send_buffered,
            mtu_growths,
            mtu_shrinks,
            withheld,
            unverified,
            evicted
        );
    }

    /// Encodes the 284-byte answer to RXSTATS (rx-wire facts 4.5).
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut words = [0u32; 71];
        let micros = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let mut at = |offset: usize, value: u32| {
            if let Some(word) = words.get_mut(offset / 4) {
                *word = value;
            }
        };
        at(20, self.bogus_packets);
        at(24, self.bogus_host);
        for (i, n) in self.packets_read.iter().enumerate() {
            at(44 + 4 * i, *n);
        }
        at(96, self.data_read);
        at(100, self.acks_read);
        at(104, self.duplicates);
        at(108, self.spurious);
        for (i, n) in self.packets_sent.iter().enumerate() {
            at(112 + 4 * i, *n);
        }
        at(164, self.acks_sent);
        at(168, self.pings_sent);
        at(172, self.aborts_sent);
        at(176, self.busies_sent);
        at(180, self.data_sent);
        at(184, self.data_resent);
        at(192, self.acks_ignored);
        at(196, micros(self.rtt_sum_micros / 1_000_000));
        at(200, micros(self.rtt_sum_micros % 1_000_000));
        if self.rtt_samples == 0 {
            at(204, 9_999_999);
        } else {
            at(204, micros(self.rtt_min_micros / 1_000_000));
            at(208, micros(self.rtt_min_micros % 1_000_000));
        }
        at(212, micros(self.rtt_max_micros / 1_000_000));
        at(216, micros(self.rtt_max_micros % 1_000_000));
        at(220, self.rtt_samples);
        at(224, self.server_connections);
        at(228, self.client_connections);
        at(232, self.peers);
        at(236, self.calls);
        at(240, self.free_calls);
        at(244, self.send_failures);
        at(252, self.ignored_in_dally);
        at(264, self.overload_aborts);
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }
}
