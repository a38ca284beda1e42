//! The overall figures that `xstat_fs_test` and `afsmonitor` show: 98 words of the volume package,
//! Rx and hosts.
//!
//! Each word counts the same as the original's, or is 0 if this server has no equivalent. The words
//! that are always 0:
//!
//! | Words | Figures of the original |
//! | --- | --- |
//! | 2, 7 | allocations of vnodes |
//! | 1, 4, 5 | entries and disk accesses of directories; the files' words 6, 9 and 10 count both |
//! | 12, 13 | the volume header cache, except its size |
//! | 14 to 16 | the directory package's buffers |
//! | 17 to 20, 24, 25 | packet buffers, and losses for want of them |
//! | 21 | `SO_GREEDY` |
//! | 27 | sends that had to wait in select |
//! | 44 | packets pushed by a negative acknowledgement |
//! | 59, 65 | blocks of host and client entries |
//! | 66 | the system's name |
//!
//! The spare words are also 0.
//!
//! Source: observed of OpenAFS 1.8's file server and `xstat_fs_test`.

use std::net::{IpAddr, SocketAddr};

use cellar_rpc::{PortFigures, TransportStatistics};

use crate::figures::Figures;
use crate::host::Networks;

/// Words of the overall part.
pub(super) const OVERALL_WORDS: usize = 98;

/// The position of each figure.
mod at {
    pub(super) const CALLS: usize = 0;
    pub(super) const DIRECTORY_GETS: usize = 3;
    pub(super) const FILE_ENTRIES: usize = 6;
    pub(super) const FILE_GETS: usize = 8;
    pub(super) const FILE_READS: usize = 9;
    pub(super) const FILE_WRITES: usize = 10;
    pub(super) const VOLUMES: usize = 11;
    pub(super) const BOGUS_PACKETS: usize = 22;
    pub(super) const RECEIVE_CALLS: usize = 26;
    pub(super) const PACKETS_READ: usize = 28;
    pub(super) const DATA_READ: usize = 31;
    pub(super) const PACKETS_SENT: usize = 35;
    pub(super) const ACKS_SENT: usize = 38;
    pub(super) const ACKS_IGNORED: usize = 45;
    pub(super) const CONNECTIONS: usize = 53;
    pub(super) const HOST_ENTRIES: usize = 58;
    pub(super) const HOSTS: usize = 60;
    pub(super) const CLIENTS: usize = 64;
    pub(super) const RX_BUSIES: usize = 67;
}

/// Counters have 32 bits and wrap.
pub(super) fn word(count: u64) -> i32 {
    count as i32
}

/// The sources of the overall figures.
pub(super) struct Sources<'a> {
    pub(super) figures: &'a Figures,
    pub(super) transport: &'a TransportStatistics,
    pub(super) port: &'a PortFigures,
    pub(super) networks: Networks,
}

/// The address that decides whether hosts are near or far: the one that was called.
pub(super) fn own_address(local: Option<IpAddr>, port: &[SocketAddr]) -> Option<IpAddr> {
    let bound = port.iter().map(SocketAddr::ip);
    local
        .into_iter()
        .chain(bound)
        .find(|address| !address.is_unspecified())
}

pub(super) fn overall(sources: &Sources<'_>) -> Vec<i32> {
    let mut words = vec![0; OVERALL_WORDS];
    let mut put = |at: usize, counts: &[u64]| {
        for (word_at, &count) in (at..).zip(counts) {
            words[word_at] = word(count);
        }
    };
    let Sources {
        figures,
        transport: rx,
        port,
        networks,
    } = sources;
    let store = &figures.store;
    // Includes the current call, which has not ended.
    put(at::CALLS, &[figures.calls("GetXStats") + 1]);
    put(at::DIRECTORY_GETS, &[figures.looks_at_directories]);
    put(at::FILE_ENTRIES, &[store.cached_vnodes]);
    put(at::FILE_GETS, &[figures.looks_at_files]);
    put(at::FILE_READS, &[store.cache_misses]);
    put(at::FILE_WRITES, &[store.commits]);
    put(at::VOLUMES, &[figures.volumes as u64]);
    put(
        at::BOGUS_PACKETS,
        &[rx.bogus_packets.into(), rx.bogus_host.into()],
    );
    put(at::RECEIVE_CALLS, &[port.receive_calls]);
    // Data, acknowledgements, busies: the first three types of packet.
    let three = |types: &[u32; 13]| [types[0], types[1], types[2]].map(u64::from);
    put(at::PACKETS_READ, &three(&rx.packets_read));
    let read = [rx.data_read, rx.acks_read, rx.duplicates, rx.spurious];
    put(at::DATA_READ, &read.map(u64::from));
    put(at::PACKETS_SENT, &three(&rx.packets_sent));
    let sent = [
        rx.acks_sent,
        rx.pings_sent,
        rx.aborts_sent,
        rx.busies_sent,
        rx.data_sent,
        rx.data_resent,
    ];
    put(at::ACKS_SENT, &sent.map(u64::from));
    let time = |micros: u64| [micros / 1_000_000, micros % 1_000_000];
    put(at::ACKS_IGNORED, &[rx.acks_ignored.into()]);
    put(at::ACKS_IGNORED + 1, &time(rx.rtt_sum_micros));
    put(at::ACKS_IGNORED + 3, &time(rx.rtt_min_micros));
    put(at::ACKS_IGNORED + 5, &time(rx.rtt_max_micros));
    put(at::ACKS_IGNORED + 7, &[rx.rtt_samples.into()]);
    let tables = [
        rx.server_connections,
        rx.client_connections,
        rx.peers,
        rx.calls,
        rx.free_calls,
    ];
    put(at::CONNECTIONS, &tables.map(u64::from));
    let hosts = figures.hosts.hosts as u64;
    put(at::HOST_ENTRIES, &[hosts + figures.hosts.retired as u64]);
    let by_network = [networks.same, networks.other_subnet, networks.other_network];
    put(at::HOSTS, &[hosts]);
    put(at::HOSTS + 1, &by_network.map(|count| count as u64));
    put(at::CLIENTS, &[figures.clients as u64]);
    let refused_by_rx = u64::from(rx.overload_aborts) + port.calls_refused;
    put(
        at::RX_BUSIES,
        &[
            refused_by_rx,
            figures.refused("busy"),
            figures.calls("GetCapabilities"),
        ],
    );
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_called_counts_before_those_bound() {
        let bound = |text: &str| text.parse::<SocketAddr>().unwrap();
        let any = [bound("0.0.0.0:7000"), bound("192.0.2.1:7000")];
        let here = "192.0.2.9".parse().unwrap();
        assert_eq!(own_address(Some(here), &any), Some(here));
        assert_eq!(own_address(None, &any), Some(any[1].ip()));
        assert_eq!(own_address(None, &any[..1]), None);
    }
}
