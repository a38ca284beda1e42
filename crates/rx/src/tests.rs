//! Two endpoints and a network between them, in virtual time and from a seed.

mod codec;
mod exchange;
mod flood;
mod harness;
mod limits;
mod restarts;
mod secure;
mod stock;
mod storms;
mod throughput;
mod unverified;
