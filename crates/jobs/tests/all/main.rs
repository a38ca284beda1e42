//! The engine, over a real database, with a clock that tests move.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests read clocks, and say where they fail"
)]

mod engine;
mod script;
mod states;
