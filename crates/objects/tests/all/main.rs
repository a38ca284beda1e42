//! The integration tests of this crate, one program: `cargo test -p cellar-objects --test all MODULE`.

#![allow(clippy::unwrap_used, reason = "a failed test says where")]

mod cell;
mod devices;
mod failures;
mod model;
