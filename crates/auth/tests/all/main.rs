//! The integration tests of this crate, one program: `cargo test -p cellar-auth --test all MODULE`.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests read clocks, open sockets, and say where they fail"
)]

mod attacks;
mod common;
mod connections;
mod files;
mod fuzz_smoke;
