//! The integration tests of this crate, one program: `cargo test -p cellar-rpc --test all MODULE`.

#![allow(clippy::unwrap_used, reason = "a failed test says where")]

mod calls;
mod common;
mod flood;
mod hostile;
mod local;
mod statistics;
