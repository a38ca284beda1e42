//! The integration tests of this crate, one program: `cargo test -p cellar-celldb --test all
//! MODULE`.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests read clocks, open sockets, and say where they fail"
)]

mod crash;
mod damage;
mod engine;
mod simulated_disk;
