//! The object storage server: [`cellar_wire::osd`] over the objects of several devices.
//!
//! * [`OsdServer`]: what the program makes, starts and stops;
//! * `admit`: who may do what with which object;
//! * `read`, `write`, `copy`: the calls that carry bytes;
//! * `manage`: all others;
//! * `heartbeat`: how the cell's database learns of the devices;
//! * `upkeep`: scrubs and the end of soft deletes;
//! * `limits`: every bound, with its reason; `refusal`: the one place that picks a code.
//!
//! A handler runs on a shard's thread and never blocks it: what is in memory is answered on the
//! spot, everything else on a thread of the pool.

mod admit;
mod copy;
mod device;
mod heartbeat;
pub mod limits;
mod manage;
mod read;
mod refusal;
mod server;
mod service;
mod statistics;
mod streams;
mod upkeep;
mod write;

pub use server::{Config, OsdServer};
