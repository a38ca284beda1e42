//! Load generators: black-box clients that call any AFS server and measure it.
//!
//! This crate knows the wire format but not our servers, so Cellar and OpenAFS get the same load.
//! `cellar bench rxafs` is its command; `cellar bench objects` uses the client library. Only
//! `cellar bench make-databases` knows the form of an export of our databases, and
//! `cellar bench make-catalogue` the volume store.

pub mod archives;
mod client;
mod cpu;
pub mod databases;
pub mod first_answer;
mod latency;
mod load;
pub mod make_catalogue;
pub mod make_databases;
pub mod make_volumes;
pub mod objects;
mod operation;
pub mod recalls;
pub mod relay;
mod report;
pub mod rxafs;
pub mod walk;
mod workspace;
