//! The breaks of promises that file servers send.

use std::net::SocketAddr;
use std::sync::Weak;

use cellar_wire::ids::Fid;

use crate::Cache;
use crate::reads::Renewals;
use cellar_client::rxafscb::{BreakHandled, Promises};

/// Receives the breaks of file servers.
pub(super) struct Breaks(pub(super) Weak<Cache>);

impl Breaks {
    async fn all_delivered(&self) {
        if let Some(cache) = self.0.upgrade() {
            cache.env.audience.all_delivered().await;
        }
    }
}

impl Promises for Breaks {
    fn broken(&self, fids: &[Fid]) -> BreakHandled<'_> {
        let mut renewals = Renewals::default();
        if let Some(cache) = self.0.upgrade() {
            for fid in fids {
                for vnode in cache.statuses.break_promises(*fid) {
                    renewals.renew(&cache.reads, &vnode);
                }
            }
        }
        Box::pin(async move {
            tokio::join!(self.all_delivered(), renewals.done());
        })
    }

    fn all_broken(&self, _server: SocketAddr) -> BreakHandled<'_> {
        if let Some(cache) = self.0.upgrade() {
            cache.env.reach.was_forgotten();
            cache.locks.may_be_lost();
            // The server may call from an address that this cache does not know. So all promises
            // end.
            cache.statuses.promises_end(None);
        }
        Box::pin(self.all_delivered())
    }
}
