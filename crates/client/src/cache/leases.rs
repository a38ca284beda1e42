//! Leases of directories: the server hears later of the files that programs here make in them.
//!
//! 1. Servers that know it keep others out of a directory for some seconds ([`LeaseDirectory`]): nobody else sees it or changes it
//!    before we were told so, by an ordinary break of its promise, and have returned it. Whoever has a directory's names, its
//!    promise and its lease knows which names are free: `early.rs` makes files there without
//!    asking.
//! 2. A lease is asked for when a second file is made in a directory within [`BUSY_TIME`]. What we
//!    make in a leased directory
//!    makes it last longer; else it ends by itself, at ours [`MARGIN`] earlier than there.
//! 3. When it is to be returned, nothing is made there any more, the server is told of what was
//!    ([`super::pending`]), and then
//!    the lease goes back. A lease that ended without our knowing (a restart of the server, a lost way) costs nothing but what
//!    others made of the same name meanwhile: each thing is made by the server only if its name is free.
//! 4. A directory that others use too is left alone for [`REFUSED_TIME`]; servers that know no leases for [`UNKNOWN_TIME`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cellar_wire::abort::AbortCode;
use cellar_wire::rxafs::{Fids, LeaseDirectory, ReturnDirectories};
use tokio::time::Instant;

use super::Cache;
use super::status::Asked;
use super::user::User;
use super::vnode::{State, Vnode};

/// Within which time a second file has to be made for a lease to be worth a call.
const BUSY_TIME: Duration = Duration::from_secs(10);
/// A lease ends this much earlier for us than for the server.
const MARGIN: Duration = Duration::from_secs(2);
/// How long nothing is asked about a directory that others use.
const REFUSED_TIME: Duration = Duration::from_secs(30);
/// How long a server that knows no leases is not asked again.
const UNKNOWN_TIME: Duration = Duration::from_secs(300);

/// A lease that a server gave.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    /// Until then, by the server.
    until: Instant,
    /// Who asked for it.
    user: Arc<User>,
    /// Nothing is made under it any more.
    ended: bool,
}

impl Lease {
    fn holds(&self, now: Instant) -> bool {
        !self.ended && now + MARGIN < self.until
    }
}

/// What is known of a directory that decides whether a lease of it is asked for.
#[derive(Debug, Default)]
pub(crate) struct Busy {
    /// When a file was last made in it by asking.
    made: Option<Instant>,
    /// Until when no lease is asked for.
    refused: Option<Instant>,
}

impl State {
    /// Whether nobody else sees or changes this directory now.
    pub(crate) fn is_leased(&self, now: Instant) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.holds(now))
    }

    /// The server says for how many seconds from `asked` on the lease lasts; 0: there is none any more. Answers whether one that
    /// was held is lost.
    pub(crate) fn lease_lasts(&mut self, asked: Instant, seconds: u32) -> bool {
        let Some(lease) = &mut self.lease else {
            return false;
        };
        if seconds > 0 {
            let until = asked + Duration::from_secs(seconds.into());
            lease.until = lease.until.max(until);
            return false;
        }
        !std::mem::replace(&mut lease.ended, true)
    }
}

impl Cache {
    /// Whether the directory is leased, or a lease of it could be had now.
    pub(crate) async fn has_lease(&self, user: &Arc<User>, directory: &Arc<Vnode>) -> bool {
        let now = Instant::now();
        {
            let state = directory.state.lock();
            if state.is_leased(now) {
                return true;
            }
            let is_busy = state.busy.made.is_some_and(|at| now - at < BUSY_TIME);
            let is_refused = state.busy.refused.is_some_and(|until| now < until);
            if !is_busy || is_refused {
                return false;
            }
        }
        if self.knows_no_leases(directory) {
            return false;
        }
        self.take_lease(user, directory).await
    }

    /// A file was made in the directory by asking the server.
    pub(crate) fn made_by_asking(&self, directory: &Vnode) {
        directory.state.lock().busy.made = Some(Instant::now());
    }

    async fn take_lease(&self, user: &Arc<User>, directory: &Arc<Vnode>) -> bool {
        let what = format!("a lease of {}", directory.fid());
        let asked = Asked::about(directory);
        let arguments = LeaseDirectory {
            dir_fid: directory.fid(),
        };
        let client = user.client();
        let answer = client.call_volume_at(&directory.volume, &what, &arguments);
        let (reply, by) = match answer.await {
            Ok(answered) => answered,
            Err(error) => {
                tracing::debug!(%error, "no lease");
                let mut unknown = self.early.unknown.lock();
                let now = Instant::now();
                if error.code() == Some(AbortCode::RXGEN_OPCODE) {
                    unknown.retain(|_, until| now < *until);
                    unknown.insert(
                        (directory.key.0, directory.key.1.volume),
                        now + UNKNOWN_TIME,
                    );
                } else {
                    directory.state.lock().busy.refused = Some(now + REFUSED_TIME);
                }
                return false;
            }
        };
        let promise = Some((reply.callback, asked.answered_by(by)));
        self.heard(user, directory, &reply.status, promise);
        {
            let mut state = directory.state.lock();
            state.lease = Some(Lease {
                until: asked.at + Duration::from_secs(reply.lease_secs.into()),
                user: user.clone(),
                ended: false,
            });
        }
        // It may have been asked back before it was here.
        if directory.breaks.load(Ordering::Acquire) != asked.breaks {
            self.lease_ends(directory);
        }
        directory.state.lock().is_leased(Instant::now())
    }

    fn knows_no_leases(&self, directory: &Vnode) -> bool {
        let unknown = self.early.unknown.lock();
        let until = unknown.get(&(directory.key.0, directory.key.1.volume));
        until.is_some_and(|until| Instant::now() < *until)
    }

    /// Rule 3: if there is a lease of the directory, or the server may think so, it goes back.
    pub(crate) fn lease_ends(&self, directory: &Arc<Vnode>) {
        let user = {
            let mut state = directory.state.lock();
            let Some(lease) = state.lease.take() else {
                return;
            };
            state.busy.refused = Some(Instant::now() + REFUSED_TIME);
            if lease.until < Instant::now() {
                return;
            }
            lease.user
        };
        let Some(cache) = self.me() else {
            return;
        };
        let directory = directory.clone();
        tokio::spawn(async move {
            let fid = directory.fid();
            if let Err(error) = cache.told(&directory).await {
                tracing::debug!(%fid, %error, "what was made in a leased directory");
            }
            let fids = Fids::from_iter_cut([fid]);
            let what = format!("returning {fid}");
            let client = user.client();
            let returned = client
                .call_volume(&directory.volume, &what, &ReturnDirectories { fids })
                .await;
            if let Err(error) = returned {
                tracing::debug!(%fid, %error, "a lease ends by itself");
            }
        });
    }
}
