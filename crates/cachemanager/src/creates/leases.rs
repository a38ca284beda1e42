//! Leases of directories: while a lease holds, programs create files that the server learns of
//! later.
//!
//! 1. Some servers support leases ([`LeaseDirectory`]). Such a server admits no other client to a
//!    leased directory for some seconds. Before another client reads or changes it, the server
//!    breaks our promise in the ordinary way, and waits until we have returned the lease. A client
//!    that has a directory's names, its promise and its lease knows which names are free. So
//!    `local_create.rs` creates files there without a call.
//! 2. A lease is requested when a second file is created in a directory within `BUSY_TIME`. A
//!    create in a leased directory extends the lease. Otherwise the lease runs out, on our side
//!    a margin earlier than on the server's.
//! 3. When a lease must be returned, first no more files are created under it. Then the pending
//!    creates are sent to the server (`creates/pending_create.rs`), and then the lease is returned.
//!    A lease may end without our knowledge, after a restart of the server or a loss of the network
//!    path. This costs only the files whose name another client has taken in between: the server
//!    creates each file only if its name is free.
//! 4. After a directory was used by another client, no lease of it is requested for
//!    `REFUSED_TIME`. A server without leases is not asked for [`UNKNOWN_TIME`].

use std::sync::Arc;
use std::time::Duration;

use cellar_wire::abort::AbortCode;
use cellar_wire::rxafs::{Fids, LeaseDirectory, ReturnDirectories};
use tokio::time::Instant;

use crate::creates::Creates;
use crate::promises::status_request::StatusRequest;
use crate::user::User;
use crate::vnode::Vnode;

/// How long a server without leases is not asked again.
const UNKNOWN_TIME: Duration = Duration::from_secs(300);

impl Creates {
    /// Returns whether the directory is leased. Requests a lease if that is worth a call.
    pub(crate) async fn has_lease(&self, user: &Arc<User>, directory: &Arc<Vnode>) -> bool {
        let now = Instant::now();
        {
            let state = directory.state.lock();
            if state.lease.holds(now) {
                return true;
            }
            if !state.lease.is_worth_a_call(now) {
                return false;
            }
        }
        if self.knows_no_leases(directory) {
            return false;
        }
        self.take_lease(user, directory).await
    }

    /// Notes that a file was created in the directory by a call.
    pub(crate) fn note_created_by_call(&self, directory: &Vnode) {
        directory.state.lock().lease.created_by_call(Instant::now());
    }

    async fn take_lease(&self, user: &Arc<User>, directory: &Arc<Vnode>) -> bool {
        let what = format!("a lease of {}", directory.fid());
        let asked = StatusRequest::about(directory);
        let arguments = LeaseDirectory {
            dir_fid: directory.fid(),
        };
        let client = user.client();
        let answer = client.call_volume_at(directory.volume(), &what, &arguments);
        let (reply, by) = match answer.await {
            Ok(answered) => answered,
            Err(error) => {
                tracing::debug!(%error, "no lease");
                let now = Instant::now();
                if error.code() == Some(AbortCode::RXGEN_OPCODE) {
                    let mut unknown = self.unknown.lock();
                    unknown.retain(|_, until| now < *until);
                    unknown.insert(
                        (directory.key().0, directory.key().1.volume),
                        now + UNKNOWN_TIME,
                    );
                } else {
                    directory.state.lock().lease.refuse(now);
                }
                return false;
            }
        };
        let promise = Some((reply.callback, asked.answered_by(by)));
        self.promises
            .apply_status(user, directory, &reply.status, promise);
        let until = asked.at() + Duration::from_secs(reply.lease_secs.into());
        directory.state.lock().lease.grant(until, user);
        // The server may have broken the promise, and so asked for the lease, before the answer was
        // here.
        if directory.changes.broken_since(&asked) {
            self.lease_ends(directory);
        }
        directory.state.lock().lease.holds(Instant::now())
    }

    fn knows_no_leases(&self, directory: &Vnode) -> bool {
        let unknown = self.unknown.lock();
        let until = unknown.get(&(directory.key().0, directory.key().1.volume));
        until.is_some_and(|until| Instant::now() < *until)
    }

    /// Rule 3: returns the lease of the directory, if there is one for us or for the server.
    pub(crate) fn lease_ends(&self, directory: &Arc<Vnode>) {
        let ended = directory.state.lock().lease.end(Instant::now());
        let (Some(user), Some(this)) = (ended, self.me()) else {
            return;
        };
        let directory = directory.clone();
        tokio::spawn(async move {
            let fid = directory.fid();
            if let Err(error) = this.flush_pending(&directory).await {
                tracing::debug!(%fid, %error, "a create in a leased directory failed");
            }
            let fids = Fids::from_iter_cut([fid]);
            let what = format!("returning the lease of {fid}");
            let client = user.client();
            let returned = client
                .call_volume(directory.volume(), &what, &ReturnDirectories { fids })
                .await;
            if let Err(error) = returned {
                tracing::debug!(%fid, %error, "the lease was not returned; it runs out");
            }
        });
    }
}
