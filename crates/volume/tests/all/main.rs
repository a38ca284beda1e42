//! The integration tests of this crate, one program: `cargo test -p cellar-volume --test all
//! MODULE`.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests read clocks, open sockets, and say where they fail"
)]

mod archives;
mod archives_crashes;
mod common;
mod crashes;
mod damage;
mod full;
mod heads;
mod history;
mod journal;
mod kinds_of_damage;
mod kinds_of_device_damage;
mod last_change;
mod layouts;
mod making;
mod missing;
mod model;
mod objects_crashes;
mod objects_model;
mod objects_streams;
mod operations;
mod replace;
mod restore;
mod restore_crashes;
mod restore_delta;
mod restore_model;
mod restore_threads;
mod retired;
mod round_trip;
mod scrub;
mod taken_over;
mod threads;
mod usage;
