//! The engine, over a real database, with a clock that tests move.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests read clocks, and say where they fail"
)]

mod crash;
mod engine;
mod script;
#[path = "../../../celldb/tests/all/simulated_disk.rs"]
mod simulated_disk;
mod states;
