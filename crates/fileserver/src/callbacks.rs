//! The state that the server keeps for client machines: who they are, the promises that they hold,
//! their leases of directories and their locks.
//!
//! A change touches all of it in one step: it breaks promises ([`Callbacks::collect`]), and it is
//! not made in a directory that another machine has leased ([`Callbacks::recall`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cellar_volume::VnodeStatus;
use cellar_wire::ids::{AfsTime, Fid};
use cellar_wire::rxafs::AfsFetchStatus;
use tracing::{error, info};

use crate::access::Access;
use crate::callback::saved::{self, SavedState};
use crate::callback::{Breaker, CallbackTable, Pending, fid_hash};
use crate::config::{Config, WallClock};
use crate::host::{Contacts, HostSlot, HostTable};
use crate::leases::Leases;
use crate::lock::LockTable;
use crate::session::Session;
use crate::status::fetch_status;

/// Hosts, promises, leases and locks.
pub(crate) struct Callbacks {
    pub(crate) hosts: Arc<HostTable>,
    /// The promises.
    pub(crate) table: Arc<CallbackTable>,
    pub(crate) contacts: Arc<Contacts>,
    pub(crate) breaker: Breaker,
    /// Directories that hosts use exclusively.
    pub(crate) leases: Arc<Leases>,
    pub(crate) locks: LockTable,
    /// The duration of a lease.
    pub(crate) lease_term: Duration,
    clock: WallClock,
    /// The file in which the state is saved over a clean restart.
    saved: Option<PathBuf>,
    making_room: AtomicBool,
}

/// The vnodes that a change touched, whose promises it breaks.
#[derive(Default)]
pub(crate) struct Touched {
    /// Files and directories with a new status. All hosts are notified except the originator, which
    /// gets the status with the answer. Unused slots have volume 0.
    pub(crate) changed: [Fid; 4],
    /// All hosts are notified, because no answer carries its new status.
    pub(crate) unseen: Option<Fid>,
    /// A deleted vnode. Its promises are dropped silently; the break of its directory notifies the
    /// hosts.
    pub(crate) deleted: Option<Fid>,
}

impl Touched {
    /// Vnodes with a changed status.
    pub(crate) fn changed<const N: usize>(fids: [Fid; N]) -> Self {
        const { assert!(N <= 4) };
        let mut touched = Self::default();
        touched.changed[..N].copy_from_slice(&fids);
        touched
    }
}

impl Callbacks {
    /// Takes the saved state, if there is some.
    pub(crate) fn new(config: &Config) -> Self {
        let seed = (config.clock)().as_nanos() as u64 ^ fid_hash(Fid::new(0, 0, 0), 1);
        let uuid = u128::from_be_bytes(config.uuid.0);
        let table = Arc::new(CallbackTable::new(
            config.callbacks_max,
            seed ^ (uuid >> 64) as u64,
        ));
        let hosts = Arc::new(HostTable::new(config.hosts_max));
        let contacts = Arc::new(Contacts::new(hosts.clone(), table.clone(), config.uuid));
        let callbacks = Self {
            breaker: Breaker::new(table.clone(), hosts.clone(), contacts.clone()),
            leases: contacts.leases.clone(),
            hosts,
            table,
            contacts,
            locks: LockTable::default(),
            lease_term: config.lease,
            clock: config.clock.clone(),
            saved: config.callback_state.clone(),
            making_room: AtomicBool::new(false),
        };
        if let Some(path) = &callbacks.saved {
            callbacks.restore(path);
        }
        callbacks
    }

    /// Saves the state, if the configuration names a file for it.
    pub(crate) fn save(&self) {
        let Some(path) = &self.saved else {
            return;
        };
        let state = SavedState::of(&self.hosts, &self.table, &self.locks);
        match saved::save(path, &state) {
            Ok(()) => info!(hosts = state.hosts.len(), "callback state saved"),
            Err(cause) => error!(%cause, path = %path.display(), "callback state not saved"),
        }
    }

    fn restore(&self, path: &Path) {
        match saved::take(path) {
            Ok(Some(state)) => {
                let hosts = state.hosts.len();
                let promises =
                    state.restore(&self.hosts, &self.table, &self.locks, self.now_secs());
                info!(hosts, promises, "callback state restored");
            }
            Ok(None) => {}
            // As after a crash, every host is told to forget everything.
            Err(cause) => error!(%cause, path = %path.display(), "callback state not restored"),
        }
    }

    fn now_secs(&self) -> u32 {
        AfsTime::after_1970((self.clock)()).0
    }

    /// Removes expired promises, locks and leases.
    pub(crate) fn sweep(&self) {
        let now = self.now_secs();
        self.table.sweep(now);
        self.locks.sweep(now);
        self.leases.sweep();
    }

    /// Makes room in the full callback table, unless another task does so already.
    pub(crate) fn make_room_for_promises(self: &Arc<Self>) {
        if !self.making_room.swap(true, Ordering::AcqRel) {
            let callbacks = self.clone();
            tokio::spawn(async move {
                callbacks.table.sweep(callbacks.now_secs());
                callbacks.contacts.make_room_for_promises().await;
                callbacks.making_room.store(false, Ordering::Release);
            });
        }
    }

    /// Makes room in the full host table, unless another task does so already.
    pub(crate) fn make_room_for_hosts(self: &Arc<Self>) {
        if !self.making_room.swap(true, Ordering::AcqRel) {
            let callbacks = self.clone();
            tokio::spawn(async move {
                callbacks.contacts.make_room_for_hosts().await;
                callbacks.making_room.store(false, Ordering::Release);
            });
        }
    }

    /// Removes the promises that a change breaks from the table, and starts to notify their hosts.
    pub(crate) fn collect(
        &self,
        touched: &Touched,
        originator: Option<HostSlot>,
        now: u32,
    ) -> Pending {
        if let Some(fid) = touched.deleted {
            self.breaker.forget(fid, now);
            self.locks.forget(fid);
        }
        let used = touched
            .changed
            .iter()
            .position(|fid| fid.volume.0 == 0)
            .unwrap_or(4);
        let mut pending = self
            .breaker
            .collect(&touched.changed[..used], originator, now);
        if let Some(fid) = touched.unseen {
            pending.join(self.breaker.collect(&[fid], None, now));
        }
        pending
    }

    /// Recalls the lease of a directory if a host other than the caller's has it. Waits until that
    /// host has returned it, or it has expired.
    pub(crate) async fn recall(&self, fid: Fid, caller: Option<HostSlot>) {
        let Some(recalled) = self.leases.recall(fid, caller) else {
            return;
        };
        let gone = self.leases.wait_until_ended(fid, recalled);
        if !recalled.first {
            return gone.await;
        }
        tracing::debug!(%fid, "lease recalled");
        let pending = self.breaker.recall(fid, recalled.host, self.now_secs());
        tokio::join!(self.breaker.wait_for_delivery(pending), gone);
    }

    /// The status as the caller sees it, with the present locks.
    pub(crate) fn show(
        &self,
        session: &Session,
        status: &VnodeStatus,
        access: Access,
    ) -> AfsFetchStatus {
        let locks = self.locks.count(status.fid, session.now.0);
        fetch_status(status, session.identity(), access, locks)
    }
}
