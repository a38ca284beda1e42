//! Directories whose promise a server breaks: finds the names that changed.
//!
//! The kernel may hold thousands of names of a directory. Without a comparison, each file that
//! another machine creates would cost a notice for each name. Each name that is used again would
//! cost a request, too.
//!
//! 1. The new names are fetched while the server waits for the answer to its break. The server has
//!    made the change visible by then, and the machine that made it has not been answered. So the
//!    kernel may use the old names until the comparison ends.
//! 2. The old names ([`Before`]) are those that were promised when the promise was broken. All
//!    names that the kernel holds are among them, or were looked up later.
//! 3. A comparison counts if the new names are promised when it ends, and no other break came in
//!    between. Then all names that do not differ are true, and the new promise covers them.
//! 4. The access rights must be unchanged: the kernel shows its names to every user.
//! 5. If any of these conditions fails, the kernel drops all names, as without a comparison. That
//!    includes a server that does not answer within [`PATIENCE`]: OpenAFS's file server locks a
//!    directory while it breaks promises, and far servers take too long. Such a server is not asked
//!    again for [`SLOW_TIME`].
//! 6. A directory is compared once in one second. After a second break in that time the kernel
//!    drops all names, and there is no promise until a program uses the directory again. So many
//!    changes in a row cost the machine that makes them one comparison.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cellar_wire::rxafs::AfsFetchStatus;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use crate::broken_directory::Before;
use crate::names::Names;
use crate::statuses::cached_names::Listing;

/// How long the comparison waits for the new names. A server waits longer for the answer to a
/// break.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long a server that did not answer in that time is not asked again.
const SLOW_TIME: Duration = Duration::from_secs(600);

/// The servers that did not answer in time, each with the time.
#[derive(Debug, Default)]
pub(crate) struct SlowServers(Mutex<HashMap<SocketAddr, Instant>>);

impl SlowServers {
    fn contains(&self, server: SocketAddr) -> bool {
        let mut servers = self.0.lock();
        servers.retain(|_, since| since.elapsed() < SLOW_TIME);
        servers.contains_key(&server)
    }

    fn insert(&self, server: SocketAddr) {
        self.0.lock().insert(server, Instant::now());
    }
}

impl Names {
    /// Returns the names of a directory that changed since its promise was broken. `None`: any name
    /// may have changed.
    pub async fn changed_names(self: &Arc<Self>, before: &Before) -> Option<Vec<Bytes>> {
        let vnode = &before.vnode;
        let server = vnode.promised_by()?;
        if self.slow.contains(server) {
            return None;
        }
        // A separate task, which a timeout here does not stop: programs may wait for the same
        // answer.
        let (cache, user, directory) = (self.clone(), before.user.clone(), vnode.clone());
        let listing = tokio::spawn(async move { cache.statuses.listing(&user, &directory).await });
        let Ok(listing) = timeout(PATIENCE, listing).await else {
            tracing::debug!(%server, "the names of a directory are not compared: no answer in time");
            self.slow.insert(server);
            return None;
        };
        let after = listing.ok()?.ok()?;
        let status = vnode.promised(&before.user)?;
        let is_promised = {
            let state = vnode.state.lock();
            let current = state.contents.listing(status.data_version);
            current.is_some_and(|listing| Arc::ptr_eq(listing, &after))
        };
        let is_counted =
            is_promised && vnode.breaks() == before.breaks && same_access(&before.status, &status);
        is_counted.then(|| difference(&before.listing, &after))
    }
}

/// Returns whether the same users may see the names.
fn same_access(a: &AfsFetchStatus, b: &AfsFetchStatus) -> bool {
    let access = |status: &AfsFetchStatus| {
        (
            status.anonymous_access,
            status.caller_access,
            status.unix_mode,
            status.owner,
            status.group,
        )
    };
    access(a) == access(b)
}

/// The names that are in only one of the listings, or have another fid.
fn difference(before: &Listing, after: &Listing) -> Vec<Bytes> {
    let gone = before
        .iter()
        .filter(|(name, fid)| after.get(*name) != Some(fid));
    let new = after.keys().filter(|name| !before.contains_key(*name));
    gone.map(|(name, _)| name).chain(new).cloned().collect()
}

#[cfg(test)]
mod tests {
    use cellar_wire::ids::{Fid, Uniquifier, VnodeId, VolumeId};

    use super::*;

    fn listing(names: &[(&'static str, u32)]) -> Listing {
        let entry = |(name, vnode): &(&'static str, u32)| {
            let fid = Fid {
                volume: VolumeId(1),
                vnode: VnodeId(*vnode),
                uniquifier: Uniquifier(1),
            };
            (Bytes::from_static(name.as_bytes()), fid)
        };
        names.iter().map(entry).collect()
    }

    #[test]
    fn names_that_came_went_or_lead_elsewhere_differ() {
        let before = listing(&[("gone", 1), ("other", 3), ("same", 5)]);
        let after = listing(&[("new", 7), ("other", 9), ("same", 5)]);
        let names = difference(&before, &after);
        assert_eq!(names, ["gone", "other", "new"].map(str::as_bytes));
        assert!(difference(&after, &after).is_empty());
    }
}
