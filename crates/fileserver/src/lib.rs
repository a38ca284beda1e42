//! The file server: RXAFS and AFSVol in one process that owns its partitions.
//!
//! * [`FileServer`]: what the program makes, starts and stops;
//! * [`rxafs`](self): the calls of clients, one file a procedure;
//! * [`afsosd`](self): the calls of clients that read and write objects themselves;
//! * [`afsvol`](self): the calls of administrators about volumes;
//! * [`host`]: the client machines, who they are and what they have still to be told;
//! * [`callback`]: the promises to tell them, with the argument why no break is lost;
//! * `leases`: directories that one host has to itself for some seconds;
//! * [`lock`]: advisory locks on files;
//! * [`protection`]: what is needed of the protection database;
//! * `objects`: files whose bytes are on object storage devices;
//! * `access`: who may do what; `abort_map`: the one place that picks a code.
//!
//! A handler runs on a shard's thread and never blocks it: what is in memory is answered on the
//! spot, everything else on a thread of the pool. Time is an argument ([`Config::clock`]).

mod abort_map;
mod access;
mod afsosd;
mod afsvol;
mod audit;
pub mod callback;
mod config;
mod figures;
pub mod host;
mod leases;
pub mod limits;
mod locations;
pub mod lock;
mod network;
mod objects;
pub mod protection;
mod register;
mod rxafs;
mod server;
mod service;
mod session;
mod statistics;
mod status;
mod stripe;
mod volumes;

pub use config::{Config, WallClock};
pub use figures::{CallbackFigures, ContactFigures, Figures, ObjectFigures, StoreFigures};
pub use locations::Locations;
pub use objects::cell::{CellServer, CellServers, Family, FamilySite, Upkeep};
pub use objects::{ObjectConfig, PolicyAnswer, PolicyList, Seal};
pub use protection::{Cps, Protection, ProtectionError};
pub use server::FileServer;
pub use statistics::{DurationFigures, OperationFigures, RefusalKind, TransferFigures};
