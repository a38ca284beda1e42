//! The figures of a file server: one table for `cellar statistics` and for the metrics.
//!
//! A row has the place of the figure in the JSON, its metric with the help text, and the figure
//! itself. A figure without a metric is for `cellar statistics` only. A test compares the rows with
//! the fields of the figures, so that a new one cannot be forgotten.

use std::collections::BTreeMap;

use cellar_fileserver::Figures;
use serde_json::{Map, Value};

use crate::metrics::snapshot::Snapshot;

/// A figure under both its names.
struct Row {
    /// The object of the JSON, and the name there. A name `a.b` is in an object `a` of that object.
    section: &'static str,
    name: &'static str,
    kind: Kind,
    metric: &'static str,
    label: Option<(&'static str, &'static str)>,
    help: &'static str,
    value: fn(&Figures) -> u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    /// Has no metric.
    Plain,
}

macro_rules! rows {
    (@label) => { None };
    (@label $label:literal $of:literal) => { Some(($label, $of)) };
    ($($section:literal $name:literal: $kind:ident $metric:literal $([$label:literal $of:literal])?
        $help:literal, $value:expr;)*) => {
        &[$(Row {
            section: $section,
            name: $name,
            kind: Kind::$kind,
            metric: $metric,
            label: rows!(@label $($label $of)?),
            help: $help,
            value: $value,
        }),*]
    };
}

static ROWS: &[Row] = rows! {
    "files" "fetched.transfers": Counter "cellar_file_transfers" ["direction" "fetch"]
        "Fetches and stores of data", |all| all.fetched.transfers;
    "files" "fetched.succeeded": Counter "cellar_file_transfers_succeeded" ["direction" "fetch"]
        "Fetches and stores that moved all their bytes", |all| all.fetched.succeeded;
    "files" "fetched.bytes": Counter "cellar_file_transfer_bytes" ["direction" "fetch"]
        "Bytes fetched and stored", |all| all.fetched.bytes;
    "files" "stored.transfers": Counter "cellar_file_transfers" ["direction" "store"]
        "Fetches and stores of data", |all| all.stored.transfers;
    "files" "stored.succeeded": Counter "cellar_file_transfers_succeeded" ["direction" "store"]
        "Fetches and stores that moved all their bytes", |all| all.stored.succeeded;
    "files" "stored.bytes": Counter "cellar_file_transfer_bytes" ["direction" "store"]
        "Bytes fetched and stored", |all| all.stored.bytes;
    "files" "looks_at_directories": Plain "" "", |all| all.looks_at_directories;
    "files" "looks_at_files": Plain "" "", |all| all.looks_at_files;
    "files" "volumes": Gauge "cellar_file_volumes_used"
        "Volumes that calls have used", |all| all.volumes as u64;
    "files" "locks": Gauge "cellar_file_locks" "File locks held", |all| all.locks as u64;
    "files" "leases": Gauge "cellar_file_leases" "Leases of directories", |all| all.leases as u64;
    "files" "volume_transactions": Gauge "cellar_volume_transactions"
        "Volume transactions open", |all| all.transactions as u64;

    "hosts" "known": Gauge "cellar_file_hosts" ["state" "known"]
        "Client machines; active ones called within 15 minutes", |all| all.hosts.hosts as u64;
    "hosts" "active": Gauge "cellar_file_hosts" ["state" "active"]
        "Client machines; active ones called within 15 minutes", |all| all.hosts.active as u64;
    "hosts" "unknown": Plain "" "", |all| all.hosts.unknown as u64;
    "hosts" "down": Gauge "cellar_file_hosts" ["state" "down"]
        "Client machines; active ones called within 15 minutes", |all| all.hosts.down as u64;
    "hosts" "clients": Gauge "cellar_file_clients"
        "Connections of hosts, each with its user", |all| all.clients as u64;

    "callbacks" "held": Gauge "cellar_callback_promises"
        "Promises held", |all| all.callbacks.held as u64;
    "callbacks" "capacity": Gauge "cellar_callback_promises_max"
        "Promises that can be held", |all| all.callbacks.capacity as u64;
    "callbacks" "files": Gauge "cellar_callback_files"
        "Files with at least one promise", |all| all.callbacks.files as u64;
    "callbacks" "bytes": Gauge "cellar_callback_table_bytes"
        "Memory of the table of promises", |all| all.callbacks.bytes as u64;
    "callbacks" "breaking": Gauge "cellar_callback_breaking_changes"
        "Changes that wait for hosts", |all| all.callbacks.breaking;
    "callbacks" "promised": Counter "cellar_callback_promised"
        "Promises given or extended", |all| all.callbacks.promised;
    "callbacks" "broken": Counter "cellar_callback_broken"
        "Promises broken", |all| all.callbacks.broken;
    "callbacks" "delayed": Counter "cellar_callback_delayed"
        "Breaks kept for a host that was down", |all| all.callbacks.delayed;
    "callbacks" "late": Counter "cellar_callback_late_hosts"
        "Hosts marked down because they were late", |all| all.callbacks.late;
    "callbacks" "collections": Counter "cellar_callback_collections"
        "Changes that looked for promises", |all| all.callbacks.collections;
    "callbacks" "timed_out": Counter "cellar_callback_expired"
        "Promises that expired", |all| all.callbacks.timed_out;
    "callbacks" "given_up": Counter "cellar_callback_given_up"
        "Promises that hosts gave up one by one", |all| all.callbacks.given_up;
    "callbacks" "given_up_whole": Counter "cellar_callback_given_up_hosts"
        "Hosts that gave up all promises", |all| all.callbacks.given_up_whole;
    "callbacks" "room_made": Counter "cellar_callback_room_made"
        "Times that the full table made room", |all| all.callbacks.room_made;
    "callbacks" "files_deleted": Counter "cellar_file_deleted_files"
        "Files deleted", |all| all.callbacks.files_deleted;

    "contacts" "introductions": Counter "cellar_host_introductions"
        "Hosts asked for their identity", |all| all.contacts.introductions;
    "contacts" "moves": Counter "cellar_host_moves"
        "Known hosts found at a new address", |all| all.contacts.moves;
    "contacts" "resets": Counter "cellar_host_resets"
        "Hosts that were told to forget everything", |all| all.contacts.resets;
    "contacts" "breaks_told": Counter "cellar_host_breaks"
        "CallBack calls that hosts answered", |all| all.contacts.breaks_told;
    "contacts" "silences": Counter "cellar_host_silences"
        "Calls to hosts without an answer", |all| all.contacts.silences;
    "contacts" "expired": Counter "cellar_host_expired"
        "Hosts that were dropped", |all| all.contacts.expired;

    "files_in_objects" "fetched": Counter "cellar_object_fetches"
        "Reads from objects for clients without objects", |all| all.objects.fetched;
    "files_in_objects" "fetches_failed": Counter "cellar_object_fetches_failed"
        "Reads from objects that failed", |all| all.objects.fetches_failed;
    "files_in_objects" "stored": Counter "cellar_object_stores"
        "Stores into objects for clients without objects", |all| all.objects.stored;
    "files_in_objects" "stores_failed": Counter "cellar_object_stores_failed"
        "Stores into objects that failed", |all| all.objects.stores_failed;
    "files_in_objects" "moved_out": Counter "cellar_object_moved_files"
        "Files that moved from the local disk to objects", |all| all.objects.moved_out;
    "files_in_objects" "problems": Counter "cellar_object_problems"
        "Objects that could not be used and were skipped", |all| all.objects.problems;
    "files_in_objects" "pruned": Counter "cellar_object_prunes"
        "Removals of old versions", |all| all.objects.pruned;
    "files_in_objects" "copies_made": Counter "cellar_archive_copies"
        "Copies of files that were made in archives", |all| all.objects.copies_made;
    "files_in_objects" "copied_bytes": Counter "cellar_archive_copied_bytes"
        "Bytes of copies that were made in archives", |all| all.objects.copied_bytes;
    "files_in_objects" "copies_failed": Counter "cellar_archive_copies_failed"
        "Copies that could not be made in an archive", |all| all.objects.copies_failed;
    "files_in_objects" "copies_verified": Counter "cellar_archive_copies_verified"
        "Copies in archives that were read back and had the recorded bytes", |all| all.objects.copies_verified;
    "files_in_objects" "verified_bytes": Counter "cellar_archive_verified_bytes"
        "Bytes of copies that were read back and were as recorded", |all| all.objects.verified_bytes;
    "files_in_objects" "copies_bad": Counter "cellar_archive_copies_bad"
        "Copies in archives that were found to be bad", |all| all.objects.copies_bad;
    "files_in_objects" "wiped": Counter "cellar_archive_wiped_files"
        "Files that were wiped from online devices", |all| all.objects.wiped;
    "files_in_objects" "wiped_bytes": Counter "cellar_archive_wiped_bytes"
        "Bytes of files that were wiped from online devices", |all| all.objects.wiped_bytes;
    "files_in_objects" "recalled": Counter "cellar_archive_recalled_files"
        "Files that were recalled from archives", |all| all.objects.recalled;
    "files_in_objects" "recalled_bytes": Counter "cellar_archive_recalled_bytes"
        "Bytes of files that were recalled from archives", |all| all.objects.recalled_bytes;
    "files_in_objects" "recalls_failed": Counter "cellar_archive_recalls_failed"
        "Recalls from archives that failed", |all| all.objects.recalls_failed;
    "files_in_objects" "recalls_running": Gauge "cellar_archive_recalls_running"
        "Recalls from archives in progress", |all| all.objects.recalls_running;

    "repairs" "waiting": Gauge "cellar_repair_waiting_objects"
        "Objects that wait for their repair", |all| all.repairs.waiting;
    "repairs" "waiting_bytes": Gauge "cellar_repair_waiting_bytes"
        "Bytes of these objects, approximately", |all| all.repairs.waiting_bytes;
    "repairs" "running": Gauge "cellar_repair_running_files"
        "Files under repair", |all| all.repairs.running;
    "repairs" "failed": Gauge "cellar_repair_failing_objects"
        "Objects whose repair failed more than twice", |all| all.repairs.failed;
    "repairs" "looking": Gauge "cellar_repair_examining"
        "1 while all files are examined", |all| u64::from(all.repairs.looking);
    "repairs" "repaired": Counter "cellar_repair_repaired_objects"
        "Objects repaired", |all| all.repairs.repaired;
    "repairs" "healed": Counter "cellar_repair_healed_objects"
        "Repaired objects that were damaged", |all| all.repairs.healed;
    "repairs" "bytes": Counter "cellar_repair_bytes"
        "Bytes copied or computed by repairs", |all| all.repairs.bytes;
    // Prometheus computes the rate from the bytes.
    "repairs" "rate": Plain "" "", |all| all.repairs.rate;
};

/// Adds the metrics.
pub(super) fn add(snapshot: &mut Snapshot, figures: &Figures) {
    for row in ROWS {
        let family = match row.kind {
            Kind::Counter => snapshot.counters(row.metric, row.help),
            Kind::Gauge => snapshot.gauges(row.metric, row.help),
            Kind::Plain => continue,
        };
        let value = (row.value)(figures);
        match &row.label {
            Some((label, of)) => family.sample([(*label, of)], value),
            None => family.sample([], value),
        }
    }
    for (kind, count) in &figures.refusals {
        snapshot
            .counters(
                "cellar_file_refusals",
                "Calls refused, by the kind of the reason",
            )
            .sample([("kind", kind)], *count);
    }
}

/// The figures as the objects of `cellar statistics`.
pub(super) fn json(figures: &Figures) -> Map<String, Value> {
    // The objects by their paths; one within another has a dot in its path.
    let mut objects: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    for row in ROWS {
        let (path, name) = match row.name.split_once('.') {
            Some((inner, name)) => (format!("{}.{inner}", row.section), name),
            None => (row.section.to_owned(), row.name),
        };
        let object = objects.entry(path).or_default();
        object.insert(name.to_owned(), (row.value)(figures).into());
    }
    let refused = figures.refusals.iter();
    let refused = refused.map(|(kind, count)| ((*kind).to_owned(), (*count).into()));
    objects.insert("files.refused".to_owned(), refused.collect());
    let mut all = Map::new();
    all.insert("started".to_owned(), figures.started.as_secs().into());
    all.insert("now".to_owned(), figures.now.as_secs().into());
    // A path comes after the path that it begins with.
    while let Some((path, object)) = objects.pop_last() {
        match path.split_once('.') {
            Some((outer, inner)) => {
                let outer = objects.entry(outer.to_owned()).or_default();
                outer.insert(inner.to_owned(), object.into());
            }
            None => {
                all.insert(path, object.into());
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use cellar_fileserver::{CallbackFigures, ContactFigures, ObjectFigures};
    use cellar_wire::afsosd::Repairing;
    use serde_json::json;

    use super::*;

    #[test]
    fn every_field_has_one_row_and_each_metric_one_kind() {
        // Named fields: a new one must be added here, and then it needs a row.
        let Repairing {
            waiting,
            waiting_bytes,
            running,
            repaired,
            healed,
            failed,
            bytes,
            rate,
            looking,
        } = Repairing::default();
        let repairs = json!({
            "waiting": waiting, "waiting_bytes": waiting_bytes, "running": running,
            "repaired": repaired, "healed": healed, "failed": failed, "bytes": bytes,
            "rate": rate, "looking": looking,
        });
        for (section, fields) in [
            ("callbacks", json!(CallbackFigures::default())),
            ("contacts", json!(ContactFigures::default())),
            ("files_in_objects", json!(ObjectFigures::default())),
            ("repairs", repairs),
        ] {
            let of_section = ROWS.iter().filter(|row| row.section == section);
            let mut rows: Vec<&str> = of_section.map(|row| row.name).collect();
            rows.sort_unstable();
            let mut fields: Vec<&String> = fields.as_object().expect("fields").keys().collect();
            fields.sort_unstable();
            assert_eq!(rows, fields, "{section}");
        }
        for row in ROWS {
            assert_eq!(
                row.kind == Kind::Plain,
                row.metric.is_empty(),
                "{}",
                row.name
            );
            let same = |other: &&Row| (other.metric, other.label) == (row.metric, row.label);
            let alike = ROWS.iter().filter(same).count();
            assert!(alike == 1 || row.metric.is_empty(), "{}", row.metric);
            for other in ROWS.iter().filter(|other| other.metric == row.metric) {
                assert_eq!(
                    (other.kind, other.help),
                    (row.kind, row.help),
                    "{}",
                    row.metric
                );
            }
        }
    }
}
