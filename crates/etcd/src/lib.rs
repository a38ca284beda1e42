//! Cell databases in an etcd cluster, shared by several database servers.
//!
//! [`Etcd`] is an engine of [`cellar_celldb`]. Every server writes, and none has to be elected.
//!
//! 1. Each server has a copy of all tables in memory, kept up to date by one watch.
//!    Reads never wait for the network.
//! 2. A transaction runs against the copy, and the rows that it reads are recorded. It is committed
//!    on condition that none of them has changed. Otherwise it runs again on a newer copy.
//! 3. Transactions that wait for each other are committed together as one group. Groups that have
//!    nothing in common are in flight at the same time.
//! 4. Each commit has an id in etcd. After a cut connection, the id shows whether the commit has
//!    happened; the proof that it has not also prevents it.
//! 5. A commit is answered when the server's own copy has it. Revisions are those of etcd, plus a
//!    constant of the database. So all servers give a transaction the same number.
//! 6. A transaction that is too large for one request is staged, and committed by one request that
//!    names it.
//! 7. Without a majority of the cluster, writes fail at once with
//!    [`Unavailable`](cellar_celldb::Error::Unavailable), and reads go on from the copy.
//!
//! The client is tonic with the few messages that the engine needs (decision 0031).

// Foreign bytes are parsed here: nothing may panic on them.
#![cfg_attr(
    not(test),
    deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

mod certificates;
mod client;
mod commit;
mod copy;
mod engine;
mod fill;
mod follow;
mod guards;
mod keys;
mod large;
mod messages;
mod monitor;
mod pages;
mod slots;
mod status;

pub use certificates::{Certificate, Tls, Validity};
pub use engine::{Etcd, Settings};
pub use fill::{fill, is_empty};
pub use status::{Member, Place, Status};
