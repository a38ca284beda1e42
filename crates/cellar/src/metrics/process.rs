//! The metrics of this process, under the names that Prometheus's own libraries use.

use procfs::process::Process;

use super::snapshot::Snapshot;

/// Adds the version of the program, and the process's memory, processor time and descriptors.
/// Figures that the system does not show are left out.
pub(crate) fn add(snapshot: &mut Snapshot) {
    snapshot
        .gauges(
            "cellar_build_info",
            "The version of the running program; always 1",
        )
        .sample([("version", &env!("CARGO_PKG_VERSION"))], 1);
    let Ok(process) = Process::myself() else {
        return;
    };
    if let Ok(stat) = process.stat() {
        let ticks = procfs::ticks_per_second() as f64;
        snapshot
            .counters(
                "process_cpu_seconds",
                "Processor time used, in user and system mode",
            )
            .seconds([], (stat.utime + stat.stime) as f64 / ticks);
        if let Ok(boot) = procfs::boot_time_secs() {
            snapshot
                .gauges(
                    "process_start_time_seconds",
                    "When the process started, since 1970",
                )
                .seconds([], boot as f64 + stat.starttime as f64 / ticks);
        }
        let resident = stat.rss * procfs::page_size();
        snapshot.gauge("process_resident_memory_bytes", "Memory in use", resident);
        snapshot.gauge("process_virtual_memory_bytes", "Address space", stat.vsize);
        snapshot.gauge(
            "process_threads",
            "Threads",
            u64::try_from(stat.num_threads).unwrap_or(0),
        );
    }
    if let Ok(open) = process.fd_count() {
        snapshot.gauge("process_open_fds", "Open file descriptors", open as u64);
    }
    if let Ok(limits) = process.limits()
        && let procfs::process::LimitValue::Value(most) = limits.max_open_files.soft_limit
    {
        snapshot.gauge(
            "process_max_fds",
            "Most file descriptors that may be open",
            most,
        );
    }
}
