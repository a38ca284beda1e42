//! The integration tests of this crate, one program: `cargo test -p cellar-policy --test all MODULE`.

#![allow(clippy::unwrap_used, reason = "a failed test says where")]

mod evaluate;
mod language;
mod noise;
