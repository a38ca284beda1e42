//! Two endpoints and a network between them, in virtual time and from a seed.

mod exchange;
mod harness;
mod storms;
mod throughput;
