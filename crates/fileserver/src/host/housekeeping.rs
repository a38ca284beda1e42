//! Treatment of hosts that fall silent, and of full tables.
//!
//! Both run every few minutes, in parallel and bounded:
//!
//! * Hosts that hold promises and were silent for 15 minutes are probed. So this task finds a host
//!   that is gone, and not the store that has to notify it.
//! * Hosts silent for two hours are told to forget everything, and dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::task::JoinSet;
use tracing::{debug, info};

use super::{Contacts, Host, HostSlot};
use crate::limits::{HOST_EXPIRES_AFTER, HOST_PROBE_AFTER};

impl Contacts {
    /// One round of housekeeping at `now`.
    pub(crate) async fn tidy(self: &Arc<Self>, now: u32) {
        let mut work = JoinSet::new();
        for host in self.hosts.all() {
            let silent = u64::from(now.saturating_sub(host.last_call()));
            // A host that never identified itself holds no promises, so it expires sooner.
            let patience = if host.is_known() {
                HOST_EXPIRES_AFTER
            } else {
                HOST_PROBE_AFTER
            };
            let expired = silent >= patience.as_secs();
            if !expired && silent < HOST_PROBE_AFTER.as_secs() {
                continue;
            }
            let contacts = self.clone();
            work.spawn(async move {
                let _permit = contacts.permits.acquire().await;
                if expired {
                    contacts.expire(&host).await;
                } else if !host.is_down() && contacts.callbacks.holds_any(host.slot()) {
                    contacts.probe(&host).await;
                }
            });
        }
        while work.join_next().await.is_some() {}
        self.reap();
    }

    /// Frees the slots of dropped hosts.
    pub(crate) fn reap(&self) {
        self.hosts.reap(|slot: HostSlot| {
            self.callbacks.give_up_all(slot);
            self.leases.end_all(slot);
        });
    }

    async fn expire(&self, host: &Arc<Host>) {
        debug!(host = %host.address(), "host expired");
        self.counters.expired.fetch_add(1, Ordering::Relaxed);
        if self.callbacks.holds_any(host.slot()) {
            self.dismiss(host).await;
        }
        self.give_up_all(host);
        self.hosts.remove(host);
    }

    /// Makes room for promises: removes all promises of the least active hosts, until a tenth of
    /// the table is free. A host that answers is told at once, and every other host at its next
    /// call.
    pub(crate) async fn make_room_for_promises(self: &Arc<Self>) {
        self.counters.room_made.fetch_add(1, Ordering::Relaxed);
        let enough = self.callbacks.capacity() - self.callbacks.capacity() / 10;
        let mut hosts = self.hosts.all();
        hosts.sort_by_key(|host| host.last_active());
        let mut work = JoinSet::new();
        let mut cleared = 0;
        for host in hosts {
            if self.callbacks.held() <= enough {
                break;
            }
            if !self.callbacks.holds_any(host.slot()) {
                continue;
            }
            // First of all: from now on the host gets no answer before it was told to forget its
            // promises.
            host.set(super::RESET | super::DOWN);
            self.give_up_all(&host);
            cleared += 1;
            let contacts = self.clone();
            work.spawn(async move {
                let _permit = contacts.permits.acquire().await;
                contacts.probe(&host).await;
            });
        }
        info!(
            cleared,
            held = self.callbacks.held(),
            "callback table was full"
        );
        while work.join_next().await.is_some() {}
    }

    /// Makes room for hosts: drops the tenth that has been silent longest.
    pub(crate) async fn make_room_for_hosts(self: &Arc<Self>) {
        let mut hosts = self.hosts.all();
        hosts.sort_by_key(|host| host.last_call());
        let mut work = JoinSet::new();
        let tenth = hosts.len() / 10 + 1;
        for host in hosts.into_iter().take(tenth) {
            let contacts = self.clone();
            work.spawn(async move {
                let _permit = contacts.permits.acquire().await;
                contacts.expire(&host).await;
            });
        }
        while work.join_next().await.is_some() {}
        self.reap();
    }
}
