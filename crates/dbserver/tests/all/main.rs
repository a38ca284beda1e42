//! The integration tests of this crate, one program: `cargo test -p cellar-dbserver --test all MODULE`.

#![allow(clippy::unwrap_used, reason = "a failed test says where")]

mod calls;
mod crash;
mod openafs_tools;
