//! Notifies hosts that files in their caches have changed, in parallel and within bounds.
//!
//! [`Breaker::collect`] removes the promises of the changed files from the table and puts the fids
//! into the outboxes of their hosts. Separate tasks deliver them. The change then waits, with
//! [`Breaker::wait_for_delivery`], until every host has been notified, is down, or is *late*.
//!
//! **Late hosts.** A host answers a break without asking another machine, so a live host takes one
//! round trip. A change waits for each host four times its usual response time, at least 250 ms and
//! at most a second ([`crate::limits`]). So a live host is notified before the change is answered,
//! even if one packet is lost.
//!
//! A late host is marked down, and the task that notifies it continues. It is treated as a host
//! that did not answer. No change waits for it again, and it gets no answer itself before the break
//! was delivered. It can still use its cache without a call, as any client does that the network
//! has cut off. AFS promises no more about such clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cellar_wire::ids::{Fid, VolumeId};
use tokio::time::{Instant, timeout_at};
use tracing::debug;

use super::CallbackTable;
use crate::host::{Contacts, Host, HostSlot, HostTable};

/// Counters of breaks.
#[derive(Debug, Default)]
pub struct BreakCounters {
    /// Files and volumes whose promises were collected.
    pub collections: AtomicU64,
    /// Promises broken.
    pub broken: AtomicU64,
    /// Of these, breaks for hosts that were down, to be delivered later.
    pub delayed: AtomicU64,
    /// Hosts marked down because they were late.
    pub late: AtomicU64,
    /// Deleted files, whose promises were dropped without a break.
    pub files_deleted: AtomicU64,
    /// Changes that wait now for hosts to be notified.
    pub breaking: AtomicU64,
}

/// A waiting change. Counted until it is dropped, because its client may hang up.
struct Breaking<'a>(&'a AtomicU64);

impl<'a> Breaking<'a> {
    fn new(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Breaking<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Breaks callbacks.
pub struct Breaker {
    callbacks: Arc<CallbackTable>,
    hosts: Arc<HostTable>,
    contacts: Arc<Contacts>,
    /// Counters.
    pub counters: BreakCounters,
}

/// Breaks under delivery.
#[derive(Default)]
#[must_use = "a change is answered only when its breaks were told"]
pub struct Pending {
    waiting: Vec<QueuedBreak>,
}

/// A host, the number of the break in its outbox, and the time until which the change waits for it.
struct QueuedBreak {
    host: Arc<Host>,
    number: u64,
    deadline: Instant,
}

impl Breaker {
    /// Breaks promises of `callbacks`, held by `hosts`, through `contacts`.
    #[must_use]
    pub fn new(
        callbacks: Arc<CallbackTable>,
        hosts: Arc<HostTable>,
        contacts: Arc<Contacts>,
    ) -> Self {
        Self {
            callbacks,
            hosts,
            contacts,
            counters: BreakCounters::default(),
        }
    }

    /// Breaks the promises for the files of a change. Readers must already see the change.
    /// `originator` made it, and keeps its promises.
    pub fn collect(&self, fids: &[Fid], originator: Option<HostSlot>, now: u32) -> Pending {
        let mut pending = Pending::default();
        let mut hosts = Vec::new();
        for &fid in fids {
            self.callbacks.collect(fid, originator, now, &mut hosts);
            self.queue(fid, &mut hosts, &mut pending);
        }
        pending
    }

    /// Drops the promises for a deleted file. The break of its directory notifies the hosts.
    pub fn forget(&self, fid: Fid, now: u32) {
        self.counters.files_deleted.fetch_add(1, Ordering::Relaxed);
        self.callbacks.collect(fid, None, now, &mut Vec::new());
    }

    /// Asks the host that has the lease of a directory to return it. The break is sent even if the
    /// host has no promise in the table. No other host has a promise for the directory.
    pub(crate) fn recall(&self, fid: Fid, holder: HostSlot, now: u32) -> Pending {
        let mut pending = Pending::default();
        let mut hosts = Vec::new();
        self.callbacks.collect(fid, None, now, &mut hosts);
        if !hosts.contains(&holder) {
            hosts.push(holder);
        }
        self.queue(fid, &mut hosts, &mut pending);
        pending
    }

    /// Breaks the promises for everything in a volume that was replaced or removed.
    pub fn collect_volume(&self, volume: VolumeId, now: u32) -> Pending {
        let mut pending = Pending::default();
        let mut hosts = Vec::new();
        self.callbacks.collect_volume(volume, now, &mut hosts);
        self.queue(Fid::whole_volume(volume), &mut hosts, &mut pending);
        pending
    }

    fn queue(&self, fid: Fid, hosts: &mut Vec<HostSlot>, pending: &mut Pending) {
        self.counters.collections.fetch_add(1, Ordering::Relaxed);
        if hosts.is_empty() {
            return;
        }
        self.counters
            .broken
            .fetch_add(hosts.len() as u64, Ordering::Relaxed);
        debug!(%fid, hosts = hosts.len(), "breaking callbacks");
        for slot in hosts.drain(..) {
            let Some(host) = self.hosts.by_slot(slot) else {
                continue;
            };
            match self.contacts.queue_break(&host, fid) {
                Some(number) => {
                    let deadline = Instant::now() + host.break_wait();
                    pending.waiting.push(QueuedBreak {
                        host,
                        number,
                        deadline,
                    });
                }
                None => {
                    self.counters.delayed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Waits until every host was notified, is down, or is late. Late hosts are marked down, and
    /// their breaks are still delivered.
    pub async fn wait_for_delivery(&self, pending: Pending) {
        if pending.is_empty() {
            return;
        }
        let _breaking = Breaking::new(&self.counters.breaking);
        for QueuedBreak {
            host,
            number,
            deadline,
        } in pending.waiting
        {
            if timeout_at(deadline, host.wait_for_delivery(number))
                .await
                .is_err()
                && host.mark_late(number)
            {
                self.counters.late.fetch_add(1, Ordering::Relaxed);
                debug!(host = %host.address(), "host is late to answer a break");
            }
        }
    }
}

impl Pending {
    /// Adds the breaks of `other`.
    pub(crate) fn join(&mut self, other: Self) {
        self.waiting.extend(other.waiting);
    }

    /// Whether there is no host to wait for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
