//! Questions to the cell. Each has a time limit, and its answer is kept for a few seconds.
//!
//! An answer that did not come is a sentence, which the page shows in the place of the facts.

mod audit;
mod jobs;
mod operations;
mod policies;
mod status;
mod transactions;
mod usage;
mod users;
mod volumes;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cellar_admin::{Error, HostNames};
use cellar_client::{Cell, Client};
use parking_lot::RwLock;

use crate::cache::Cache;
use crate::operations::Operations;

pub(crate) use jobs::{JOBS_MAX, ServerWork, Work};
pub(crate) use operations::{Wish, has_unfinished_release};
pub(crate) use policies::TestFile;
pub(crate) use status::Overview;
pub(crate) use transactions::OpenTransaction;
pub(crate) use usage::{Traversal, Usage, UsageState};
pub(crate) use users::{NAMES_MAX, Names, UserKinds, UserList, UserSearch, UserView};
pub(crate) use volumes::{
    Cursor, SEARCH_BYTES_MAX, SiteView, VolumeList, VolumeRow, VolumeSearch, VolumeView, id_at,
};

/// An answer of the cell, or a sentence that says why there is none.
pub(crate) type Answer<T> = Result<T, String>;

/// Time limits of the questions, and whether names of machines are looked up.
#[derive(Clone, Copy, Debug)]
pub struct SiteLimits {
    /// The longest time in which a server may answer a question.
    pub answer: Duration,
    /// The longest time for the lists of volumes.
    pub listing: Duration,
    /// Look up the names of servers.
    pub resolve: bool,
}

/// The cell, as the console sees it.
pub struct Site {
    client: Arc<Client>,
    cell: Cell,
    limits: SiteLimits,
    hosts: RwLock<Arc<HostNames>>,
    status: Cache<bool, Overview>,
    volume_lists: Cache<VolumeSearch, Answer<VolumeList>>,
    volume_views: Cache<String, Answer<VolumeView>>,
    user_lists: Cache<UserSearch, Answer<UserList>>,
    works: Cache<bool, Answer<Work>>,
    audits: Cache<IpAddr, Answer<String>>,
    traversals: usage::Traversals,
    operations: Operations,
}

impl Site {
    /// A cell, and the client that asks its servers with the identity of the console.
    pub fn new(client: Arc<Client>, cell: Cell, limits: SiteLimits) -> Self {
        Self {
            client,
            cell,
            limits,
            hosts: RwLock::new(Arc::new(HostNames::new(false))),
            status: Cache::default(),
            volume_lists: Cache::default(),
            volume_views: Cache::default(),
            user_lists: Cache::default(),
            works: Cache::default(),
            audits: Cache::default(),
            traversals: usage::Traversals::default(),
            operations: Operations::default(),
        }
    }

    /// The name of the cell.
    pub(crate) fn name(&self) -> String {
        self.cell.name.to_string()
    }

    /// The names of machines that are known so far.
    pub(crate) fn hosts(&self) -> Arc<HostNames> {
        self.hosts.read().clone()
    }

    /// The answer to a question; a sentence if it does not come in time.
    pub(crate) async fn within<T>(
        &self,
        what: &str,
        question: impl Future<Output = cellar_admin::Result<T>>,
    ) -> Answer<T> {
        within(self.limits.listing, what, question).await
    }
}

/// The answer to a question; a sentence if it does not come in `limit`.
pub(crate) async fn within<T>(
    limit: Duration,
    what: &str,
    question: impl Future<Output = cellar_admin::Result<T>>,
) -> Answer<T> {
    match tokio::time::timeout(limit, question).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(sentence(&error)),
        Err(_) => Err(format!("{what}: no answer within {} s", limit.as_secs())),
    }
}

/// The sentence of an error.
pub(crate) fn sentence(error: &Error) -> String {
    error.to_string()
}
