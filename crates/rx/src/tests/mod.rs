//! Two endpoints and a network between them, in virtual time and from a seed.

mod codec;
mod exchange;
mod harness;
mod stock;
mod storms;
mod throughput;
