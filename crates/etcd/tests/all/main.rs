//! The engine with real servers of etcd.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests read clocks, open sockets, and say where they fail"
)]

mod cluster;
mod failures;
mod proxy;
mod several;
mod tls;
