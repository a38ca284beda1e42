//! Calls by procedure, and the queue of each port.

use cellar_rpc::{LATENCY_BOUNDS_MICROS, Port, PortFigures, ProcedureFigures};

use crate::metrics::snapshot::Snapshot;

const SECOND_MICROS: f64 = 1e6;

/// Adds the calls of all ports. Procedures that nothing has called have no series.
pub(super) fn add(snapshot: &mut Snapshot, ports: &[(&'static str, Port)]) {
    for (port, figures) in ports {
        for procedure in figures.statistics().procedures() {
            if procedure.invocations > 0 {
                add_procedure(snapshot, port, &procedure);
            }
        }
        let unknown = figures.statistics().unknown_opcodes();
        snapshot
            .counters(
                "cellar_rpc_unknown_calls",
                "Calls with an opcode that no service has",
            )
            .sample([("port", port)], unknown);
        add_queue(snapshot, port, &figures.statistics().port());
    }
}

fn add_procedure(snapshot: &mut Snapshot, port: &str, figures: &ProcedureFigures) {
    let Some(procedure) = figures.package.procedures.get(figures.index) else {
        return;
    };
    let labels: [(&'static str, &dyn std::fmt::Display); 3] = [
        ("port", &port),
        ("service", &figures.package.name),
        ("procedure", &procedure.name),
    ];
    snapshot
        .counters("cellar_rpc_calls", "Calls that ended, successful or not")
        .sample(labels, figures.invocations);
    snapshot
        .counters(
            "cellar_rpc_errors",
            "Calls that ended with an abort of the server",
        )
        .sample(labels, figures.aborts);
    snapshot
        .counters("cellar_rpc_request_bytes", "Bytes of requests")
        .sample(labels, figures.bytes_received);
    snapshot
        .counters("cellar_rpc_reply_bytes", "Bytes of replies")
        .sample(labels, figures.bytes_sent);
    snapshot
        .counters(
            "cellar_rpc_queue_seconds",
            "Time that calls waited for their start",
        )
        .seconds(labels, figures.queued.sum as f64 / SECOND_MICROS);
    let bounds = LATENCY_BOUNDS_MICROS.map(|bound| bound as f64 / SECOND_MICROS);
    let bounds = bounds.into_iter().chain([f64::INFINITY]);
    let counts = figures.latencies.into_iter();
    snapshot
        .histograms(
            "cellar_rpc_duration_seconds",
            "Time between start and end of calls",
        )
        .histogram(
            labels,
            figures.executed.sum as f64 / SECOND_MICROS,
            bounds.zip(counts).collect(),
        );
}

fn add_queue(snapshot: &mut Snapshot, port: &str, figures: &PortFigures) {
    // Destructured by name, so that a new counter cannot be forgotten here.
    let PortFigures {
        datagrams_received,
        receive_calls,
        runs_passed_on,
        send_calls,
        calls_inline,
        calls_pending,
        calls_refused,
        calls_waiting,
        calls_running,
        send_failures,
        handler_panics,
    } = *figures;
    for (name, help, value) in [
        (
            "cellar_rx_received_datagrams",
            "Datagrams received",
            datagrams_received,
        ),
        (
            "cellar_rx_receive_syscalls",
            "System calls that received datagrams",
            receive_calls,
        ),
        (
            "cellar_rx_send_syscalls",
            "System calls that sent datagrams",
            send_calls,
        ),
        (
            "cellar_rx_forwarded_runs",
            "Runs of datagrams that arrived at another thread and were passed on",
            runs_passed_on,
        ),
        (
            "cellar_rx_send_failures",
            "Sends that the system rejected",
            send_failures,
        ),
        (
            "cellar_rpc_immediate_calls",
            "Calls that were answered without waiting",
            calls_inline,
        ),
        (
            "cellar_rpc_pending_calls",
            "Calls whose handler had to wait",
            calls_pending,
        ),
        (
            "cellar_rpc_refused_calls",
            "Calls refused because the queue of the port was full",
            calls_refused,
        ),
        (
            "cellar_rpc_handler_panics",
            "Handlers that ended with a panic: a bug",
            handler_panics,
        ),
    ] {
        snapshot
            .counters(name, help)
            .sample([("port", &port)], value);
    }
    for (name, help, value) in [
        (
            "cellar_rpc_waiting_calls",
            "Calls that wait to be run",
            calls_waiting,
        ),
        (
            "cellar_rpc_running_calls",
            "Running calls, without those that wait for their peers",
            calls_running,
        ),
    ] {
        snapshot.gauges(name, help).sample([("port", &port)], value);
    }
}
