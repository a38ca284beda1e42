//! The integration tests of this crate, one program: `cargo test -p cellar-osd --test all MODULE`.

#![allow(clippy::unwrap_used, reason = "a failed test says where")]

mod common;
mod server;
mod upkeep;
