//! The integration tests of this crate, as one program: `cargo test -p cellar-dbserver --test all
//! MODULE`.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests read clocks, open sockets, and say where they fail"
)]

mod calls;
mod crash;
mod damaged_rows;
mod openafs_tools;
