//! The integration tests of this crate, one program: `cargo test -p cellar-fileserver --test all
//! MODULE`.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests read clocks, open sockets, and say where they fail"
)]

mod callbacks;
mod common;
mod dumps;
mod files;
mod forward;
mod hosts;
mod identities;
mod io_errors;
mod leases;
mod make_many;
mod moves;
mod objects;
mod objects_archived;
mod objects_archived_moves;
mod objects_away;
mod objects_collect;
mod objects_direct;
mod objects_full;
mod objects_hsm;
mod objects_moves;
mod objects_older;
mod objects_policies;
mod objects_races;
mod objects_recall_modes;
mod objects_recalls;
mod objects_repair;
mod objects_replicas;
mod objects_volumes;
mod range_locks;
mod refusals;
mod rights;
mod traffic;
mod volumes;
