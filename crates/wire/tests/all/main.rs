//! The integration tests of this crate, in one program: `cargo test -p cellar-wire --test all
//! MODULE`.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests read clocks, open sockets, and say where they fail"
)]

mod deltas;
mod directories;
mod dumps;
mod error_codes;
mod every_message;
mod fuzz_smoke;
mod golden_messages;
mod packages;
mod rpc_index;
mod seeded;
mod words;
