//! The file server: RXAFS and AFSVol in one process that owns its partitions.
//!
//! * [`FileServer`]: the entry point, which the program creates, starts and stops;
//! * [`rxafs`](self): the calls of clients, one file for each procedure;
//! * [`afsosd`](self): the calls of clients that read and write objects directly;
//! * [`afsvol`](self): the calls of administrators about volumes;
//! * [`host`]: the client machines, their identities and the breaks still to be delivered to them;
//! * [`callback`]: the callback promises, with the argument why no break is lost;
//! * `leases`: directories that one host uses exclusively for some seconds;
//! * [`lock`]: advisory locks on files;
//! * [`protection`]: the interface to the protection database;
//! * `access`: the access rules; `abort_map`: the one place that picks an abort code.
//!
//! Files whose bytes are on object storage devices are the matter of the crate `fileobjects`.
//!
//! A handler runs on a shard's thread and never blocks it. It answers from memory at once; all
//! other work runs on a thread of the pool. Time is an argument ([`Config::clock`]).

mod abort_map;
mod access;
mod afsosd;
mod afsvol;
mod audit;
pub mod callback;
mod callbacks;
mod config;
mod figures;
mod file_server;
pub mod host;
mod leases;
pub mod limits;
mod load;
mod locations;
pub mod lock;
mod network;
pub mod protection;
mod recall;
mod recall_limits;
mod register;
mod rxafs;
mod server;
mod service;
mod services;
mod session;
mod statistics;
mod status;
mod stripe;
mod volumes;

pub use cellar_fileobjects::{
    CellServer, CellServers, Family, FamilySite, HsmConfig, ObjectConfig, ObjectFigures, PinAnswer,
    PinTable, PolicyAnswer, PolicyList, Seal, Upkeep,
};
pub use config::{Config, WallClock};
pub use figures::{CallbackFigures, ContactFigures, Figures, ScrubFigures, StoreFigures};
pub use file_server::FileServer;
pub use locations::Locations;
pub use protection::{Cps, Protection, ProtectionError};
pub use recall_limits::{RECALL_LIMIT_TIME_MAX, RecallLimit, RecallSubject};
pub use statistics::{DurationFigures, OperationFigures, RefusalKind, TransferFigures};
