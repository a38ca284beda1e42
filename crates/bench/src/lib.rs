//! Load generators: black-box clients that drive any AFS server and measure it.
//!
//! This crate knows the wire and nothing of our servers, so that the same load meets Cellar and
//! OpenAFS alike. `cellar bench rxafs` is its command; `cellar bench objects` drives the client library.

mod client;
mod cpu;
pub mod first_answer;
mod latency;
mod load;
pub mod make_volumes;
pub mod objects;
mod operation;
pub mod relay;
mod report;
pub mod rxafs;
pub mod walk;
mod workspace;
