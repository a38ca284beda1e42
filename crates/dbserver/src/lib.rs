//! The database servers of a cell: volume location (VL), protection (PR), object storage devices
//! and policies (OSDDB). Through the votes (VOTE) `udebug` sees their state.
//!
//! Each server consists of tables over [`cellar_celldb`] and a typed copy in memory that answers
//! every lookup ([`Vl`], [`Pr`], [`OsdDb`]). A procedure is one function from caller and arguments
//! to results ([`Answer`]). It is used over Rx ([`VlService`], [`PrService`], [`OsdDbService`]) and
//! by other roles in the same process.

use std::sync::Arc;

use cellar_wire::AfsTime;

mod answer;
mod caller;
mod error;
mod guard;
pub mod osddb;
pub mod pr;
mod replica;
mod row;
mod service;
pub mod vl;
mod vote;

pub use answer::{Answer, Kind};
pub use caller::{Identity, Origin};
pub use error::Error;
pub use osddb::OsdDb;
pub use pr::{Directory, Pr, Rules as PrRules};
pub use service::DbService;
pub use vl::{Rules as VlRules, Vl};
pub use vote::{Database, DiskService, SyncSite, VoteService};

/// The service that answers VL calls.
pub type VlService = DbService<Vl>;
/// The service that answers PR calls.
pub type PrService = DbService<Pr>;
/// The service that answers OSDDB calls.
pub type OsdDbService = DbService<OsdDb>;

/// The clock of a server.
pub type Clock = Arc<dyn Fn() -> AfsTime + Send + Sync>;
