//! Authentication and the audit log.

use cellar_auth::Authority;
use cellar_auth::audit::Audit;

use crate::metrics::snapshot::Snapshot;

/// Adds the counts of accepted and refused connections.
pub(super) fn add(snapshot: &mut Snapshot, authority: &Authority, audit: &Audit) {
    let figures = authority.figures();
    let name = "cellar_auth_connections";
    snapshot.counter(
        name,
        "Connections with a token that was accepted",
        figures.authenticated,
    );
    for (name, help, counts) in [
        (
            "cellar_auth_refused",
            "Tokens refused, by abort code",
            &figures.refused,
        ),
        (
            "cellar_auth_broken",
            "Connections ended because of a wrong packet, by abort code",
            &figures.broken,
        ),
    ] {
        for (code, count) in counts {
            snapshot
                .counters(name, help)
                .sample([("code", code)], *count);
        }
    }
    let name = "cellar_auth_withheld_challenges";
    snapshot.counter(
        name,
        "Challenges withheld from peers that had failed",
        figures.withheld,
    );
    let peers = figures.failing_peers as u64;
    snapshot.gauge(
        "cellar_auth_failing_peers",
        "Peers with failed authentications",
        peers,
    );
    let name = "cellar_audit_lost_records";
    snapshot.counter(
        name,
        "Records that the audit log could not take",
        audit.lost(),
    );
}
