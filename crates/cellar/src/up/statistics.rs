//! The answer to `cellar statistics`: every counter of the running roles in one JSON object.
//!
//! The names are those of the counters in their crates, where the meaning of each is described.

use cellar_osd::OsdServer;
use cellar_rpc::{Caller, IncomingCall, LocalBoxFuture, Port, Service, TransportStatistics};
use cellar_volume::Partition;
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::PartitionId;
use cellar_wire::package::Package;
use serde_json::{Map, Value, json};

use super::file_figures;
use super::parts::Parts;
use crate::statistics::{PACKAGE, SNAPSHOT};

/// The service on the administrator's socket.
pub(super) struct Statistics(pub(super) Parts);

impl Service for Statistics {
    fn package(&self) -> &'static Package {
        &PACKAGE
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(async move {
            if !matches!(call.caller(), Caller::Superuser) {
                return Err(AbortCode::EPERM);
            }
            match call.opcode().await? {
                SNAPSHOT => {
                    let text = self.snapshot().await.to_string();
                    call.write(text.into()).await
                }
                _ => Err(AbortCode::RXGEN_OPCODE),
            }
        })
    }
}

impl Statistics {
    async fn snapshot(&self) -> Value {
        let mut ports = Vec::new();
        for (name, port) in &self.0.ports {
            let transport = port.transport_statistics().await.unwrap_or_default();
            ports.push(show_port(name, port, &transport));
        }
        let partitions = self.0.partitions.iter();
        let partitions: Vec<_> = partitions
            .map(|(id, partition)| show_partition(*id, partition))
            .collect();
        let mut all = match &self.0.fileserver {
            Some(fileserver) => file_figures::json(&fileserver.figures()),
            None => Map::new(),
        };
        all.insert("authentication".to_owned(), self.authentication());
        all.insert(
            "osds".to_owned(),
            self.0.osds.as_ref().map(show_osds).into(),
        );
        all.insert("partitions".to_owned(), partitions.into());
        all.insert("ports".to_owned(), ports.into());
        Value::Object(all)
    }
}

impl Statistics {
    fn authentication(&self) -> Value {
        let figures = self.0.authority.figures();
        let by_code = |counts: &[(AbortCode, u64)]| -> Map<String, Value> {
            let counts = counts.iter();
            counts
                .map(|(code, count)| (code.to_string(), (*count).into()))
                .collect()
        };
        json!({
            "connections": figures.authenticated,
            "responses_refused": by_code(&figures.refused),
            "connections_broken": by_code(&figures.broken),
            "challenges_withheld": figures.withheld,
            "failing_peers": figures.failing_peers,
            "audit_lines_lost": self.0.audit.lost(),
        })
    }
}

fn show_osds(osds: &OsdServer) -> Value {
    let figures = osds.figures();
    let figures = figures.iter();
    let figures: Map<_, _> = figures
        .map(|figure| (figure.name.to_string(), Value::from(figure.value)))
        .collect();
    json!({ "devices": osds.devices(), "figures": figures })
}

fn show_port(name: &str, port: &Port, transport: &TransportStatistics) -> Value {
    let statistics = port.statistics();
    let figures = statistics.port();
    let procedures: Vec<_> = statistics
        .procedures()
        .iter()
        .filter(|figures| figures.invocations > 0)
        .filter_map(|figures| {
            let procedure = figures.package.procedures.get(figures.index)?;
            Some(json!({
                "name": format!("{}.{}", figures.package.name, procedure.name),
                "calls": figures.invocations,
                "aborts": figures.aborts,
                "bytes_received": figures.bytes_received,
                "bytes_sent": figures.bytes_sent,
                "queued_micros": figures.queued.sum,
                "executed_micros": figures.executed.sum,
                "slowest_micros": figures.executed.maximum,
            }))
        })
        .collect();
    json!({
        "name": name,
        "address": port.local_address().to_string(),
        "datagrams_received": figures.datagrams_received,
        "calls_inline": figures.calls_inline,
        "calls_pending": figures.calls_pending,
        "calls_refused": figures.calls_refused,
        "calls_waiting": figures.calls_waiting,
        "calls_running": figures.calls_running,
        "send_failures": figures.send_failures,
        "handler_panics": figures.handler_panics,
        "unknown_opcodes": statistics.unknown_opcodes(),
        "procedures": procedures,
        "transport": {
            "bogus_packets": transport.bogus_packets,
            "data_read": transport.data_read,
            "acks_read": transport.acks_read,
            "acks_ignored": transport.acks_ignored,
            "duplicates": transport.duplicates,
            "spurious": transport.spurious,
            "aborts_sent": transport.aborts_sent,
            "busies_sent": transport.busies_sent,
            "overload_aborts": transport.overload_aborts,
            "data_sent": transport.data_sent,
            "data_resent": transport.data_resent,
            "server_connections": transport.server_connections,
            "client_connections": transport.client_connections,
            "unverified_connections": transport.unverified,
            "evicted_connections": transport.evicted,
            "withheld_packets": transport.withheld,
            "peers": transport.peers,
            "calls": transport.calls,
            "calls_started": transport.calls_started,
            "bytes_received": transport.bytes_received,
            "bytes_sent": transport.bytes_sent,
            "receive_buffered": transport.receive_buffered,
            "send_buffered": transport.send_buffered,
        },
    })
}

fn show_partition(id: PartitionId, partition: &Partition) -> Value {
    let counters = partition.counters();
    json!({
        "name": id.to_string(),
        "changes": counters.commits,
        "journal_writes": counters.groups,
        "journal_bytes": counters.journal_bytes,
        "block_syncs": counters.block_syncs,
        "flushes": counters.flushes,
        "damaged": counters.damaged,
        "cached_vnodes": counters.cached_vnodes,
        "cached_body_bytes": counters.cached_body_bytes,
        "cache_misses": counters.cache_misses,
        "reaped": counters.reaped,
    })
}
