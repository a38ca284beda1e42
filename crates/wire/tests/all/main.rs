//! The integration tests of this crate, one program: `cargo test -p cellar-wire --test all MODULE`.

#![allow(clippy::unwrap_used, reason = "a failed test says where")]

mod deltas;
mod directories;
mod dumps;
mod every_message;
mod fuzz_smoke;
mod golden_messages;
mod packages;
mod rpc_index;
mod seeded;
mod words;
