//! The object storage server: [`cellar_wire::osd`] over the objects of several devices.
//!
//! * [`OsdServer`]: the server that the program creates, starts and stops;
//! * `admit`: permission checks;
//! * `read`, `write`, `copy`: the calls that carry bytes;
//! * `manage`: all other calls;
//! * `archival`: devices whose objects are copies in an archive, and their part of the calls;
//! * `heartbeat`: reports of the devices to the cell's database;
//! * `upkeep`: scrubs and the end of soft deletes;
//! * `limits`: all bounds, with their reasons; `refusal`: the only place that selects abort codes.
//!
//! A handler runs on a shard's thread and never blocks it. It answers directly from memory, and
//! does everything else on a thread of the pool.

mod admit;
mod archival;
mod copy;
mod device;
mod digest;
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

pub use archival::{ArchivalDevice, NotAPlace, OpenError, Place, cell_id, is_archival};
pub use device::Backing;
pub use server::{Config, DeviceFigures, OsdServer};
