//! The integration tests of this crate, as one program: `cargo test -p cellar-admin --test all
//! MODULE`.

#![allow(clippy::unwrap_used, reason = "a failed test says where")]

mod access_lists;
mod jobs;
mod paper;
