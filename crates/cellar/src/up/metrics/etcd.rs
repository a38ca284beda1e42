//! The databases in an etcd cluster.

use std::time::SystemTime;

use cellar_etcd::Status;

use crate::metrics::snapshot::Snapshot;

/// Adds the state of the cluster and of this server's copy.
pub(super) fn add(snapshot: &mut Snapshot, status: &Status) {
    snapshot.gauge(
        "cellar_etcd_reachable",
        "1 if the cluster answers, so that the databases take writes",
        status.is_reachable.into(),
    );
    snapshot
        .gauges(
            "cellar_etcd_staleness_seconds",
            "Time since the copy in memory was known to be current",
        )
        .seconds([], status.staleness.as_secs_f64());
    snapshot.gauge(
        "cellar_etcd_revision",
        "Number of the last transaction in the copy",
        status.revision,
    );
    for (name, help, value) in [
        (
            "cellar_etcd_transactions",
            "Transactions that were committed",
            status.commits,
        ),
        (
            "cellar_etcd_commits",
            "Commits in etcd; each has one transaction or more",
            status.groups,
        ),
        (
            "cellar_etcd_conflicts",
            "Commits that were repeated because another server changed a row",
            status.conflicts,
        ),
        (
            "cellar_etcd_resolved",
            "Cut writes whose outcome was found out after their answer",
            status.resolved,
        ),
        (
            "cellar_etcd_reloads",
            "Times that the databases were read again after a compaction",
            status.reloads,
        ),
    ] {
        snapshot.counter(name, help, value);
    }
    let alarms = "cellar_etcd_alarms";
    let help = "Alarms of the cluster, by name";
    for name in ["NOSPACE", "CORRUPT"] {
        let count = status.alarms.iter().filter(|(_, alarm)| *alarm == name);
        let count = count.count() as u64;
        snapshot
            .gauges(alarms, help)
            .sample([("alarm", &name)], count);
    }
    for place in &status.places {
        let labels: [(&'static str, &dyn std::fmt::Display); 1] = [("endpoint", &place.address)];
        snapshot
            .gauges("cellar_etcd_member_reachable", "1 if the member answers")
            .sample(labels, place.fault.is_none().into());
        snapshot
            .gauges(
                "cellar_etcd_member_behind_entries",
                "Entries of the log that the member lacks",
            )
            .sample(labels, place.behind);
        snapshot
            .gauges(
                "cellar_etcd_member_answer_seconds",
                "Time in which the member last answered or failed",
            )
            .seconds(labels, place.answered_in.as_secs_f64());
        snapshot
            .gauges(
                "cellar_etcd_member_size_bytes",
                "Size of the member's database",
            )
            .sample(labels, place.bytes);
    }
    for certificate in &status.certificates {
        let end = certificate.not_after.duration_since(SystemTime::UNIX_EPOCH);
        snapshot
            .gauges(
                "cellar_etcd_certificate_expiry_timestamp_seconds",
                "End of a certificate of this server for etcd, seconds since 1970",
            )
            .sample(
                [("file", &certificate.file.display())],
                end.map_or(0, |end| end.as_secs()),
            );
    }
}
