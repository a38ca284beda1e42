//! Rx: packets, round trips, windows; and the sockets below it.

use cellar_rpc::{Port, ROUND_TRIP_BOUNDS_MICROS, SocketFigures, TransportStatistics};

use crate::metrics::snapshot::Snapshot;

const SECOND_MICROS: f64 = 1e6;

/// Adds the transport of all open ports.
pub(super) async fn add(snapshot: &mut Snapshot, ports: &[(&'static str, Port)]) {
    for (name, port) in ports {
        if let Some(statistics) = port.transport_statistics().await {
            add_packets(snapshot, name, &statistics);
            add_state(snapshot, name, &statistics);
        }
        if let Some(figures) = port.socket_figures().await {
            add_sockets(snapshot, name, figures);
        }
    }
}

fn add_packets(snapshot: &mut Snapshot, port: &str, statistics: &TransportStatistics) {
    for (name, help, value) in [
        (
            "cellar_rx_data_sent_packets",
            "DATA packets sent the first time",
            statistics.data_sent,
        ),
        (
            "cellar_rx_data_resent_packets",
            "DATA packets sent again",
            statistics.data_resent,
        ),
        (
            "cellar_rx_data_received_packets",
            "DATA packets accepted",
            statistics.data_read,
        ),
        (
            "cellar_rx_duplicate_packets",
            "DATA packets received before",
            statistics.duplicates,
        ),
        (
            "cellar_rx_spurious_packets",
            "DATA packets of finished calls, or beyond the window",
            statistics.spurious,
        ),
        (
            "cellar_rx_bogus_packets",
            "Datagrams without a valid header",
            statistics.bogus_packets,
        ),
        (
            "cellar_rx_busy_packets",
            "BUSY packets sent",
            statistics.busies_sent,
        ),
        (
            "cellar_rx_abort_packets",
            "ABORT packets sent",
            statistics.aborts_sent,
        ),
        (
            "cellar_rx_overload_aborts",
            "Calls refused for load",
            statistics.overload_aborts,
        ),
        (
            "cellar_rx_withheld_packets",
            "Packets withheld from unverified addresses",
            statistics.withheld,
        ),
        (
            "cellar_rx_evicted_connections",
            "Connections from unverified addresses that were dropped to make room",
            statistics.evicted,
        ),
    ] {
        snapshot
            .counters(name, help)
            .sample([("port", &port)], value.into());
    }
    for (name, help, value) in [
        (
            "cellar_rx_received_bytes",
            "Bytes of user data received",
            statistics.bytes_received,
        ),
        (
            "cellar_rx_sent_bytes",
            "Bytes of user data sent",
            statistics.bytes_sent,
        ),
    ] {
        snapshot
            .counters(name, help)
            .sample([("port", &port)], value);
    }
    let bounds = ROUND_TRIP_BOUNDS_MICROS.map(|bound| bound as f64 / SECOND_MICROS);
    let bounds = bounds.into_iter().chain([f64::INFINITY]);
    let counts = statistics.rtt_counts.into_iter().map(u64::from);
    snapshot
        .histograms("cellar_rx_round_trip_seconds", "Measured round trips")
        .histogram(
            [("port", &port)],
            statistics.rtt_sum_micros as f64 / SECOND_MICROS,
            bounds.zip(counts).collect(),
        );
}

fn add_state(snapshot: &mut Snapshot, port: &str, statistics: &TransportStatistics) {
    for (kind, value) in [
        ("server", statistics.server_connections),
        ("client", statistics.client_connections),
        ("unverified", statistics.unverified),
    ] {
        snapshot
            .gauges(
                "cellar_rx_connections",
                "Connections; the unverified are also among those of the server",
            )
            .sample([("port", &port), ("kind", &kind)], value.into());
    }
    for (name, help, value) in [
        (
            "cellar_rx_peers",
            "Peers that are remembered",
            statistics.peers.into(),
        ),
        (
            "cellar_rx_sending_calls",
            "Calls that send data and measure their path",
            statistics.sending_calls.into(),
        ),
        (
            "cellar_rx_send_window_bytes",
            "Congestion windows of the sending calls together",
            statistics.send_windows,
        ),
        (
            "cellar_rx_unread_bytes",
            "Bytes received that no handler has read",
            statistics.receive_buffered,
        ),
        (
            "cellar_rx_unacknowledged_bytes",
            "Bytes written that no peer has acknowledged",
            statistics.send_buffered,
        ),
    ] {
        snapshot.gauges(name, help).sample([("port", &port)], value);
    }
}

fn add_sockets(snapshot: &mut Snapshot, port: &str, figures: SocketFigures) {
    let SocketFigures {
        drops,
        receive_queue,
        receive_buffers,
    } = figures;
    snapshot
        .counters(
            "cellar_socket_dropped_datagrams",
            "Datagrams that the system dropped because the receive buffer was full",
        )
        .sample([("port", &port)], drops);
    for (name, help, value) in [
        (
            "cellar_socket_receive_queue_bytes",
            "Memory of datagrams that wait in the sockets",
            receive_queue,
        ),
        (
            "cellar_socket_receive_buffer_bytes",
            "Sizes of the receive buffers together",
            receive_buffers,
        ),
    ] {
        snapshot.gauges(name, help).sample([("port", &port)], value);
    }
}
