//! The integration tests of this crate, one program: `cargo test -p cellar-auth --test all MODULE`.

#![allow(clippy::unwrap_used, reason = "a failed test says where")]

mod attacks;
mod common;
mod connections;
mod files;
mod fuzz_smoke;
