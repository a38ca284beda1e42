//! The integration tests of this crate, one program: `cargo test -p cellar-client --test all
//! MODULE`.

#![allow(clippy::unwrap_used, reason = "a failed test says where")]

mod callbacks;
mod rotation;
