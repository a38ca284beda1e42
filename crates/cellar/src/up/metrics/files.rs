//! The file server: transfers, refusals, callbacks, hosts, and files in objects.

use cellar_fileserver::{CallbackFigures, ContactFigures, Figures, ObjectFigures};

use cellar_wire::afsosd::Repairing;

use crate::metrics::snapshot::Snapshot;

/// Adds the figures of a file server.
pub(super) fn add(snapshot: &mut Snapshot, figures: &Figures) {
    for (direction, transfers) in [("fetch", &figures.fetched), ("store", &figures.stored)] {
        for (name, help, value) in [
            (
                "cellar_file_transfers",
                "Fetches and stores of data",
                transfers.transfers,
            ),
            (
                "cellar_file_transfers_succeeded",
                "Fetches and stores that moved all their bytes",
                transfers.succeeded,
            ),
            (
                "cellar_file_transfer_bytes",
                "Bytes fetched and stored",
                transfers.bytes,
            ),
        ] {
            snapshot
                .counters(name, help)
                .sample([("direction", &direction)], value);
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
    for (state, count) in [
        ("known", figures.hosts.hosts),
        ("active", figures.hosts.active),
        ("down", figures.hosts.down),
    ] {
        snapshot
            .gauges(
                "cellar_file_hosts",
                "Client machines; active ones called within 15 minutes",
            )
            .sample([("state", &state)], count as u64);
    }
    for (name, help, value) in [
        (
            "cellar_file_clients",
            "Connections of hosts, each with its user",
            figures.clients,
        ),
        (
            "cellar_file_volumes_used",
            "Volumes that calls have used",
            figures.volumes,
        ),
        ("cellar_file_locks", "File locks held", figures.locks),
        (
            "cellar_file_leases",
            "Leases of directories",
            figures.leases,
        ),
        (
            "cellar_volume_transactions",
            "Volume transactions open",
            figures.transactions,
        ),
    ] {
        snapshot.gauge(name, help, value as u64);
    }
    add_callbacks(snapshot, &figures.callbacks);
    add_contacts(snapshot, &figures.contacts);
    add_objects(snapshot, &figures.objects);
    add_repairs(snapshot, &figures.repairs);
}

// Destructured by name, so that a new counter cannot be forgotten here.

fn add_callbacks(snapshot: &mut Snapshot, figures: &CallbackFigures) {
    let CallbackFigures {
        held,
        capacity,
        files,
        bytes,
        collections,
        broken,
        delayed,
        late,
        breaking,
        files_deleted,
        promised,
        given_up,
        given_up_whole,
        timed_out,
        room_made,
    } = *figures;
    for (name, help, value) in [
        ("cellar_callback_promises", "Promises held", held as u64),
        (
            "cellar_callback_promises_max",
            "Promises that can be held",
            capacity as u64,
        ),
        (
            "cellar_callback_files",
            "Files with at least one promise",
            files as u64,
        ),
        (
            "cellar_callback_table_bytes",
            "Memory of the table of promises",
            bytes as u64,
        ),
        (
            "cellar_callback_breaking_changes",
            "Changes that wait for hosts",
            breaking,
        ),
    ] {
        snapshot.gauge(name, help, value);
    }
    for (name, help, value) in [
        (
            "cellar_callback_promised",
            "Promises given or extended",
            promised,
        ),
        ("cellar_callback_broken", "Promises broken", broken),
        (
            "cellar_callback_delayed",
            "Breaks kept for a host that was down",
            delayed,
        ),
        (
            "cellar_callback_late_hosts",
            "Hosts marked down because they were late",
            late,
        ),
        (
            "cellar_callback_collections",
            "Changes that looked for promises",
            collections,
        ),
        (
            "cellar_callback_expired",
            "Promises that expired",
            timed_out,
        ),
        (
            "cellar_callback_given_up",
            "Promises that hosts gave up one by one",
            given_up,
        ),
        (
            "cellar_callback_given_up_hosts",
            "Hosts that gave up all promises",
            given_up_whole,
        ),
        (
            "cellar_callback_room_made",
            "Times that the full table made room",
            room_made,
        ),
        ("cellar_file_deleted_files", "Files deleted", files_deleted),
    ] {
        snapshot.counter(name, help, value);
    }
}

fn add_contacts(snapshot: &mut Snapshot, figures: &ContactFigures) {
    let ContactFigures {
        introductions,
        moves,
        resets,
        breaks_told,
        silences,
        expired,
    } = *figures;
    for (name, help, value) in [
        (
            "cellar_host_introductions",
            "Hosts asked for their identity",
            introductions,
        ),
        (
            "cellar_host_moves",
            "Known hosts found at a new address",
            moves,
        ),
        (
            "cellar_host_resets",
            "Hosts that were told to forget everything",
            resets,
        ),
        (
            "cellar_host_breaks",
            "CallBack calls that hosts answered",
            breaks_told,
        ),
        (
            "cellar_host_silences",
            "Calls to hosts without an answer",
            silences,
        ),
        ("cellar_host_expired", "Hosts that were dropped", expired),
    ] {
        snapshot.counter(name, help, value);
    }
}

fn add_objects(snapshot: &mut Snapshot, figures: &ObjectFigures) {
    let ObjectFigures {
        fetched,
        fetches_failed,
        stored,
        stores_failed,
        moved_out,
        problems,
        pruned,
        copies_made,
        copies_failed,
        copies_bad,
        wiped,
        recalled,
        recalls_failed,
        recalls_running,
    } = *figures;
    snapshot.gauge(
        "cellar_archive_recalls_running",
        "Recalls from archives in progress",
        recalls_running,
    );
    for (name, help, value) in [
        (
            "cellar_object_fetches",
            "Reads from objects for clients without objects",
            fetched,
        ),
        (
            "cellar_object_fetches_failed",
            "Reads from objects that failed",
            fetches_failed,
        ),
        (
            "cellar_object_stores",
            "Stores into objects for clients without objects",
            stored,
        ),
        (
            "cellar_object_stores_failed",
            "Stores into objects that failed",
            stores_failed,
        ),
        (
            "cellar_object_moved_files",
            "Files that moved from the local disk to objects",
            moved_out,
        ),
        (
            "cellar_object_problems",
            "Objects that could not be used and were skipped",
            problems,
        ),
        ("cellar_object_prunes", "Removals of old versions", pruned),
        (
            "cellar_archive_copies",
            "Copies of files that were made in archives",
            copies_made,
        ),
        (
            "cellar_archive_copies_failed",
            "Copies that could not be made in an archive",
            copies_failed,
        ),
        (
            "cellar_archive_copies_bad",
            "Copies in archives that were found to be bad",
            copies_bad,
        ),
        (
            "cellar_archive_wiped_files",
            "Files that were wiped from online devices",
            wiped,
        ),
        (
            "cellar_archive_recalled_files",
            "Files that were recalled from archives",
            recalled,
        ),
        (
            "cellar_archive_recalls_failed",
            "Recalls from archives that failed",
            recalls_failed,
        ),
    ] {
        snapshot.counter(name, help, value);
    }
}

fn add_repairs(snapshot: &mut Snapshot, repairs: &Repairing) {
    // `rate` is left out: Prometheus computes it from the bytes.
    let Repairing {
        waiting,
        waiting_bytes,
        running,
        repaired,
        healed,
        failed,
        bytes,
        rate: _,
        looking,
    } = *repairs;
    for (name, help, value) in [
        (
            "cellar_repair_waiting_objects",
            "Objects that wait for their repair",
            waiting,
        ),
        (
            "cellar_repair_waiting_bytes",
            "Bytes of these objects, approximately",
            waiting_bytes,
        ),
        ("cellar_repair_running_files", "Files under repair", running),
        (
            "cellar_repair_failing_objects",
            "Objects whose repair failed more than twice",
            failed,
        ),
        (
            "cellar_repair_examining",
            "1 while all files are examined",
            u64::from(looking),
        ),
    ] {
        snapshot.gauge(name, help, value);
    }
    for (name, help, value) in [
        (
            "cellar_repair_repaired_objects",
            "Objects repaired",
            repaired,
        ),
        (
            "cellar_repair_healed_objects",
            "Repaired objects that were damaged",
            healed,
        ),
        (
            "cellar_repair_bytes",
            "Bytes copied or computed by repairs",
            bytes,
        ),
    ] {
        snapshot.counter(name, help, value);
    }
}
