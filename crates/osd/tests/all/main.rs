//! The integration tests of this crate, one program: `cargo test -p cellar-osd --test all MODULE`.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests read clocks, open sockets, and say where they fail"
)]

mod archival;
mod common;
mod server;
mod upkeep;
