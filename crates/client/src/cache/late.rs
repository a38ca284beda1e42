//! Modes and times of leased directories: set here at once, told to the server later.
//!
//! Whoever unpacks an archive sets each directory's mode and times after what is in it was made, one after the other. Nobody else sees a
//! leased directory before it is returned ([`super::leases`]), so these wait, like what was made: [`AGE`] at most, and until whoever asks
//! the server about the directory, or changes it, is answered ([`Cache::told`]). What is made in the directory goes first, as that would
//! change its time; what is made after a time was set ends that.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellar_wire::ids::AfsTime;
use cellar_wire::rxafs::{AfsFetchStatus, AfsStoreStatus};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::attributes::is_refusal;
use super::entry::merge;
use super::unborn::AGE;
use super::user::User;
use super::vnode::{State, Vnode};
use super::{Cache, Key, Leases};
use crate::error::Result;

/// Directories that servers are told of at once.
const AT_ONCE: usize = 16;
/// Directories that wait; more are told of at once.
const WAITING_MAX: usize = 10_000;

/// Directories of which something waits.
pub(crate) type Waiting = Mutex<HashMap<Key, Arc<Vnode>>>;

/// What waits of one.
#[derive(Clone, Debug)]
pub(crate) struct Late {
    user: Arc<User>,
    set: AfsStoreStatus,
    /// When it was last set, by our clock.
    touched: AfsTime,
    since: Instant,
}

impl State {
    /// A directory's status as programs here have set it.
    pub(crate) fn with_late(&self, mut status: AfsFetchStatus) -> AfsFetchStatus {
        if let Some(Late { set, touched, .. }) = &self.late {
            status.server_mod_time = status.server_mod_time.max(*touched);
            status.unix_mode = set.unix_mode.unwrap_or(status.unix_mode);
            status.client_mod_time = set.client_mod_time.unwrap_or(status.client_mod_time);
        }
        status
    }
}

impl Late {
    /// Something more was made in the directory: a time that was set before is over.
    pub(crate) fn time_is_over(&mut self) {
        self.set.client_mod_time = None;
    }
}

impl Cache {
    /// Sets mode or time of a directory, if the server may be told later.
    pub(crate) fn set_late(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        set: &AfsStoreStatus,
    ) -> bool {
        if self.options().leases != Leases::All {
            return false;
        }
        let now = Instant::now();
        let mut waiting = self.early.late.lock();
        let mut state = directory.state.lock();
        let others = state
            .late
            .as_ref()
            .is_some_and(|late| late.user.id() != user.id());
        if !state.is_leased(now) || others || waiting.len() >= WAITING_MAX {
            return false;
        }
        let late = state.late.get_or_insert_with(|| Late {
            user: user.clone(),
            set: AfsStoreStatus::default(),
            touched: AfsTime(0),
            since: now,
        });
        late.touched = self.now();
        merge(&mut late.set, set);
        if waiting.insert(directory.key, directory.clone()).is_none() {
            self.early.untold.fetch_add(1, Ordering::AcqRel);
        }
        true
    }

    /// Tells the server what waits of a directory.
    pub(crate) async fn tell_late(&self, directory: &Arc<Vnode>) -> Result<()> {
        let Some(Late { user, set, .. }) = directory.state.lock().late.clone() else {
            return Ok(());
        };
        let told = match set == AfsStoreStatus::default() {
            true => Ok(()),
            false => self.send_status(&user, directory, set).await.map(|_| ()),
        };
        if let Err(error) = &told {
            tracing::info!(fid = %directory.fid(), %error, "attributes are not told yet");
            if !is_refusal(error) && !directory.is_gone() {
                return told;
            }
            // They are as the server has them.
            self.take_back_attributes(directory);
        }
        {
            let mut waiting = self.early.late.lock();
            let mut state = directory.state.lock();
            // What was set meanwhile waits on.
            if state.late.as_ref().is_some_and(|late| late.set == set) {
                state.late = None;
                if waiting.remove(&directory.key).is_some() {
                    self.early.untold.fetch_sub(1, Ordering::AcqRel);
                }
            }
        }
        Ok(())
    }

    /// Tells of those that have waited for long, beside everything else.
    pub(crate) fn tell_old_late(&self) {
        let nothing = self.early.late.lock().is_empty();
        let Some(cache) = self.me().filter(|_| !nothing) else {
            return;
        };
        if self.early.telling_late.swap(true, Ordering::AcqRel) {
            return;
        }
        tokio::spawn(async move {
            cache.tell_all_late(false).await;
            cache.early.telling_late.store(false, Ordering::Release);
        });
    }

    /// Tells of those that have waited for so long, or of all.
    pub(crate) async fn tell_all_late(&self, all: bool) {
        let now = Instant::now();
        let mut due: Vec<_> = {
            let waiting = self.early.late.lock();
            let old = |vnode: &&Arc<Vnode>| {
                let state = vnode.state.lock();
                let since = state.late.as_ref().map(|late| late.since);
                all || since.is_none_or(|since| now - since >= AGE)
            };
            waiting.values().filter(old).cloned().collect()
        };
        let mut telling = JoinSet::new();
        while let Some(directory) = due.pop() {
            let Some(cache) = self.me() else {
                return;
            };
            if telling.len() >= AT_ONCE {
                let _told = telling.join_next().await;
            }
            telling.spawn(async move {
                // What fails is tried again.
                let _told = cache.told(&directory).await;
            });
        }
        while telling.join_next().await.is_some() {}
    }
}
