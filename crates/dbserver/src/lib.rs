//! The database servers of a cell: volume location (VL), protection (PR), object storage devices
//! and policies (OSDDB), and the votes (VOTE) through which `udebug` sees their state.
//!
//! Each server consists of tables over [`cellar_celldb`] and a typed copy in memory that answers
//! every lookup ([`Vl`], [`Pr`], [`OsdDb`]). A procedure is one function from caller and arguments
//! to results ([`Answer`]). It is used over Rx ([`VlService`], [`PrService`], [`OsdDbService`]) and
//! by other roles in the same process.

use std::sync::Arc;

use cellar_wire::AfsTime;

mod answer;
mod caller;
mod dispatch;
mod error;
mod guard;
pub mod osddb;
pub mod pr;
mod replica;
mod row;
pub mod vl;
mod vote;

pub use answer::Answer;
pub use caller::Identity;
pub use error::Error;
pub use osddb::{OsdDb, OsdDbService};
pub use pr::{Directory, Pr, PrService, Rules as PrRules};
pub use vl::{Rules as VlRules, Vl, VlService};
pub use vote::{Database, DiskService, VoteService};

/// The clock of a server.
pub type Clock = Arc<dyn Fn() -> AfsTime + Send + Sync>;
