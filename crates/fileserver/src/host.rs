//! Hosts: the client machines, as the file server knows them.
//!
//! The file server identifies a host by the address *and port* of its calls, because many hosts may
//! share one address. It also identifies a host by the UUID that the host reports, because one host
//! may have many addresses and may move. Promises are kept by host, under a small dense number, its
//! *slot*. The server calls a host back at the address where it last reached it.
//!
//! A call may come from another address that belonged to the host, and with a new epoch. It may be
//! a new process of the host, or another host to which an address translator or the system gave
//! that port. The server therefore asks at that address for the UUID. The caller is the same host
//! only if it reports the same UUID.
//!
//! States are flags that a call reads with one load:
//!
//! * not `KNOWN`: the server has not asked the host who it is since it appeared;
//! * `VERIFY`: restored from before a restart, or seen with a new epoch, and not yet asked again;
//! * `DOWN`: it did not answer a break or a question;
//! * `RESET`: the server must tell it to forget everything before it gets another answer;
//! * `GONE`: the record was dropped; a call that still holds it looks the host up again.
//!
//! A host with `KNOWN` alone is served at once. Calls of every other host go through `contact`
//! first.
//!
//! Breaks for a host go through its *outbox*: numbered fids that are still to be delivered. While
//! the host answers, one task at a time empties the outbox, with up to 50 fids in one call, from
//! any number of changes. A change waits for the number of its own entry. When the host does not
//! answer, the outbox is its list of delayed breaks. An outbox over its bound is emptied and
//! replaced by `RESET`.

mod contact;
mod housekeeping;
mod questions;
mod table;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cellar_rpc::Connection;
use cellar_wire::acl::Cps;
use cellar_wire::ids::{AfsUuid, Fid};
use parking_lot::Mutex;
use tokio::sync::{MutexGuard, Notify};
use tokio::time::Instant;

pub use contact::{ContactCounters, Contacts, NotReady};
pub(crate) use table::canonical;
pub use table::{HostCounts, HostTable, Networks};

use crate::limits::{
    ADDRESSES_PER_HOST, BREAK_WAIT_FACTOR, BREAK_WAIT_LEAST, BREAK_WAIT_MOST,
    CALLS_WAITING_PER_HOST, DELAYED_BREAKS_PER_HOST,
};

/// The dense number under which a host's promises are kept. Reused after the host is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostSlot(pub(crate) u32);

/// One client machine.
pub struct Host {
    slot: HostSlot,
    flags: AtomicU32,
    /// Server's seconds of the last call of any kind.
    last_call: AtomicU32,
    /// Server's seconds of the last call that shows user activity on the host.
    active: AtomicU32,
    waiting: AtomicU32,
    /// Smoothed response time of the host's callback service, in microseconds; 0 before the first
    /// answer.
    answers_in: AtomicU32,
    record: Mutex<Record>,
    /// Held during an introduction, a reset or a delivery of breaks.
    talk: tokio::sync::Mutex<()>,
    /// Signalled when entries left the outbox or the host went down.
    moved: Notify,
    /// Signalled when the server found the host at another address.
    readdressed: Notify,
}

struct Record {
    uuid: Option<AfsUuid>,
    primary: SocketAddr,
    alternates: Vec<SocketAddr>,
    /// Rx epoch of the newest connection. A client process keeps one epoch for its life.
    epoch: Option<u32>,
    connection: Option<Connection>,
    /// Groups of the host, and the generation in which they were loaded.
    cps: Option<(Cps, u64)>,
    /// When the current or the last contact began.
    talking_since: Option<Instant>,
    /// When the last contact that failed began. Calls that had arrived by then share its outcome. A
    /// call that arrived later shows that the host is there.
    failed_since: Option<Instant>,
    outbox: VecDeque<Fid>,
    /// How many fids were ever put into the outbox, and how many have left it.
    queued: u64,
    delivered: u64,
    /// Whether a task empties the outbox, or is about to.
    delivering: bool,
}

/// A host as it is saved over a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SavedHost {
    pub(crate) uuid: AfsUuid,
    pub(crate) translates_errors: bool,
    pub(crate) address: SocketAddr,
}

const KNOWN: u32 = 1;
const VERIFY: u32 = 2;
const DOWN: u32 = 4;
const RESET: u32 = 8;
const GONE: u32 = 16;
/// The host understands universal errno codes.
const ERRORTRANS: u32 = 32;
/// The host answers, but serves no callback calls. It gets no promises.
const NO_SERVICE: u32 = 64;

/// The outcome of [`Host::queue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queued {
    /// The fid is the entry with this number. A task empties the outbox.
    At(u64),
    /// As `At`, but no task empties the outbox. The caller must start one.
    Deliver(u64),
    /// The host is down. The break is delivered at its next call.
    Delayed,
}

impl Host {
    pub(crate) fn new(slot: HostSlot, primary: SocketAddr, now: u32) -> Self {
        Self {
            slot,
            flags: AtomicU32::new(0),
            last_call: AtomicU32::new(now),
            active: AtomicU32::new(now),
            waiting: AtomicU32::new(0),
            answers_in: AtomicU32::new(0),
            record: Mutex::new(Record {
                uuid: None,
                primary,
                alternates: Vec::new(),
                epoch: None,
                connection: None,
                cps: None,
                talking_since: None,
                failed_since: None,
                outbox: VecDeque::new(),
                queued: 0,
                delivered: 0,
                delivering: false,
            }),
            talk: tokio::sync::Mutex::new(()),
            moved: Notify::new(),
            readdressed: Notify::new(),
        }
    }

    /// The slot under which its promises are kept.
    #[must_use]
    pub fn slot(&self) -> HostSlot {
        self.slot
    }

    /// The address at which the server calls it back.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.record.lock().primary
    }

    /// The UUID that it reported, if any.
    #[must_use]
    pub fn uuid(&self) -> Option<AfsUuid> {
        self.record.lock().uuid
    }

    /// Whether calls of this host can be answered without contacting it first.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.flags.load(Ordering::Acquire) & (KNOWN | VERIFY | DOWN | RESET | GONE) == KNOWN
    }

    /// Whether the host has identified itself.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.has(KNOWN)
    }

    /// Whether the host did not answer the last break or question.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.has(DOWN)
    }

    /// Whether the host takes callbacks, so that it can be given promises.
    #[must_use]
    pub fn takes_callbacks(&self) -> bool {
        !self.has(NO_SERVICE)
    }

    /// Whether a connection with this epoch, from this address, may come from another host that
    /// owns the address now.
    pub(crate) fn may_be_another(&self, epoch: u32, address: SocketAddr) -> bool {
        let record = self.record.lock();
        record.primary != address && record.epoch.is_some_and(|known| known != epoch)
    }

    /// Notes the epoch of a connection of this host. A new epoch means a new client process. The
    /// server must ask it who it is, although its address is known.
    pub(crate) fn seen_epoch(&self, epoch: u32) {
        let mut record = self.record.lock();
        if record
            .epoch
            .replace(epoch)
            .is_some_and(|before| before != epoch)
            && self.has(KNOWN)
        {
            self.set(VERIFY);
        }
    }

    /// Whether errors travel to it as universal errno codes.
    #[must_use]
    pub fn understands_uae(&self) -> bool {
        self.has(ERRORTRANS)
    }

    /// Notes a call at `now`. `active` says that the call shows user activity on the host.
    pub(crate) fn note_call(&self, now: u32, active: bool) {
        // Storing only when the second changes keeps the cache line shared between threads.
        if self.last_call.load(Ordering::Relaxed) != now {
            self.last_call.store(now, Ordering::Relaxed);
        }
        if active && self.active.load(Ordering::Relaxed) != now {
            self.active.store(now, Ordering::Relaxed);
        }
    }

    /// The host's groups, if they were loaded in this generation.
    pub(crate) fn known_cps(&self, generation: u64) -> Option<Cps> {
        let record = self.record.lock();
        record
            .cps
            .as_ref()
            .filter(|(_, of)| *of == generation)
            .map(|(cps, _)| cps.clone())
    }

    pub(crate) fn set_cps(&self, cps: Cps, generation: u64) {
        self.record.lock().cps = Some((cps, generation));
    }

    pub(crate) fn last_call(&self) -> u32 {
        self.last_call.load(Ordering::Relaxed)
    }

    pub(crate) fn last_active(&self) -> u32 {
        self.active.load(Ordering::Relaxed)
    }

    fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Acquire) & flag != 0
    }

    fn set(&self, flag: u32) {
        self.flags.fetch_or(flag, Ordering::AcqRel);
    }

    fn clear(&self, flag: u32) {
        self.flags.fetch_and(!flag, Ordering::AcqRel);
    }

    /// Puts a fid into the outbox.
    pub(crate) fn queue(&self, fid: Fid) -> Queued {
        let mut record = self.record.lock();
        if self.has(RESET) {
            // The host will forget everything anyway.
            return Queued::Delayed;
        }
        if record.outbox.len() >= DELAYED_BREAKS_PER_HOST {
            record.delivered += record.outbox.len() as u64;
            record.outbox.clear();
            self.set(RESET | DOWN);
            drop(record);
            self.moved.notify_waiters();
            return Queued::Delayed;
        }
        if self.has(DOWN) {
            if !record.outbox.contains(&fid) {
                record.outbox.push_back(fid);
                record.queued += 1;
            }
            return Queued::Delayed;
        }
        record.outbox.push_back(fid);
        record.queued += 1;
        let number = record.queued;
        if std::mem::replace(&mut record.delivering, true) {
            Queued::At(number)
        } else {
            Queued::Deliver(number)
        }
    }

    /// The next fids to deliver, at most `limit` and without duplicates, and the number of outbox
    /// entries that they stand for. `None` if the outbox is empty; the host is then no longer down,
    /// and no task delivers to it.
    fn outbox_front(&self, limit: usize) -> Option<(Vec<Fid>, usize)> {
        let mut record = self.record.lock();
        if record.outbox.is_empty() {
            // Under the record's lock. Otherwise another thread could queue a fid for a host that
            // is up again and has no delivering task.
            record.delivering = false;
            self.clear(DOWN);
            return None;
        }
        let mut fids: Vec<Fid> = Vec::with_capacity(limit.min(record.outbox.len()));
        let mut entries = 0;
        for &fid in &record.outbox {
            if !fids.contains(&fid) {
                if fids.len() == limit {
                    break;
                }
                fids.push(fid);
            }
            entries += 1;
        }
        Some((fids, entries))
    }

    /// Removes the first `entries` of the outbox, which were delivered.
    fn remove_delivered(&self, entries: usize) {
        let mut record = self.record.lock();
        let entries = entries.min(record.outbox.len());
        record.outbox.drain(..entries);
        record.delivered += entries as u64;
        drop(record);
        self.moved.notify_waiters();
    }

    /// Removes everything from the outbox, because the host forgets all promises.
    fn outbox_clear(&self) {
        let entries = self.record.lock().outbox.len();
        self.remove_delivered(entries);
    }

    /// Marks the host down: it did not answer. The entries of the outbox wait for its next call.
    pub(crate) fn mark_down(&self) {
        {
            let mut record = self.record.lock();
            record.failed_since = record.talking_since;
            record.delivering = false;
            self.set(DOWN);
        }
        self.moved.notify_waiters();
    }

    /// Notes the response time of the host.
    pub(crate) fn answered_in(&self, took: Duration) {
        let took = u32::try_from(took.as_micros()).unwrap_or(u32::MAX).max(1);
        let before = self.answers_in.load(Ordering::Relaxed);
        let smoothed = match before {
            0 => took,
            _ => before - before / 8 + took / 8,
        };
        self.answers_in.store(smoothed, Ordering::Relaxed);
    }

    /// How long a change waits for this host to acknowledge a break.
    pub(crate) fn break_wait(&self) -> Duration {
        let usual = Duration::from_micros(self.answers_in.load(Ordering::Relaxed).into());
        (usual * BREAK_WAIT_FACTOR).clamp(BREAK_WAIT_LEAST, BREAK_WAIT_MOST)
    }

    /// Marks the host down if entry `number` has not left the outbox in time. The delivery
    /// continues, and calls of the host wait for it. Returns `false` if the entry was delivered in
    /// the meantime.
    ///
    /// Under the record's lock. While the entry is in the outbox, a task is delivering it. That
    /// task clears the mark when the outbox is empty.
    pub(crate) fn mark_late(&self, number: u64) -> bool {
        let record = self.record.lock();
        let late = record.delivered < number && !self.has(DOWN | GONE);
        if late {
            self.set(DOWN);
        }
        late
    }

    /// Waits until no other task contacts the host.
    pub(crate) async fn talk(&self) -> MutexGuard<'_, ()> {
        let talk = self.talk.lock().await;
        self.record.lock().talking_since = Some(Instant::now());
        talk
    }

    /// Whether a contact that began after `arrived` has failed.
    pub(crate) fn failed_after(&self, arrived: Instant) -> bool {
        let failed = self.record.lock().failed_since;
        failed.is_some_and(|since| since >= arrived)
    }

    /// Waits until entry `number` has left the outbox, or the host is down.
    pub(crate) async fn wait_for_delivery(&self, number: u64) {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if self.record.lock().delivered >= number || self.has(DOWN | GONE) {
                return;
            }
            moved.await;
        }
    }

    /// The state to save over a clean restart. `None` for a host that is down, has not identified
    /// itself, or has no UUID by which it could be recognised. Such a host must forget everything
    /// when it calls again.
    pub(crate) fn to_save(&self) -> Option<SavedHost> {
        let flags = self.flags.load(Ordering::Acquire);
        if flags & KNOWN == 0 || flags & (DOWN | RESET | GONE | NO_SERVICE) != 0 {
            return None;
        }
        let record = self.record.lock();
        if !record.outbox.is_empty() {
            return None;
        }
        Some(SavedHost {
            uuid: record.uuid?,
            translates_errors: flags & ERRORTRANS != 0,
            address: record.primary,
        })
    }

    /// Takes a place among the calls that wait for this host; `None` when there are too many.
    pub(crate) fn wait_place(&self) -> Option<WaitPlace<'_>> {
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let place = WaitPlace(self);
        (before < CALLS_WAITING_PER_HOST).then_some(place)
    }

    /// Notes another address of the host.
    fn add_alternate(&self, address: SocketAddr) {
        let mut record = self.record.lock();
        let known = record.primary == address || record.alternates.contains(&address);
        if !known && record.alternates.len() < ADDRESSES_PER_HOST {
            record.alternates.push(address);
        }
    }

    /// Removes another address of the host. Returns `false` if it is the address that is called
    /// back.
    fn give_up_address(&self, address: SocketAddr) -> bool {
        let mut record = self.record.lock();
        record.alternates.retain(|&other| other != address);
        record.primary != address
    }

    /// Makes `address` the one that is called back.
    fn set_primary(&self, address: SocketAddr) {
        let mut record = self.record.lock();
        if record.primary != address {
            let old = std::mem::replace(&mut record.primary, address);
            record.alternates.retain(|&other| other != address);
            if record.alternates.len() < ADDRESSES_PER_HOST {
                record.alternates.push(old);
            }
            record.connection = None;
        }
    }
}

/// A place among the calls that wait for a host.
pub(crate) struct WaitPlace<'a>(&'a Host);

impl Drop for WaitPlace<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Host {
        let host = Host::new(HostSlot(0), SocketAddr::from(([192, 0, 2, 1], 7001)), 0);
        host.set(KNOWN);
        host
    }

    #[test]
    fn one_delivery_at_a_time_and_many_fids_in_one() {
        let host = host();
        assert_eq!(host.queue(Fid::new(1, 2, 3)), Queued::Deliver(1));
        assert_eq!(host.queue(Fid::new(1, 4, 3)), Queued::At(2));
        assert_eq!(host.queue(Fid::new(1, 2, 3)), Queued::At(3));
        let (fids, entries) = host.outbox_front(50).unwrap();
        assert_eq!(fids, [Fid::new(1, 2, 3), Fid::new(1, 4, 3)]);
        assert_eq!(entries, 3);
        assert_eq!(host.queue(Fid::new(1, 6, 3)), Queued::At(4));
        host.remove_delivered(entries);
        assert_eq!(host.record.lock().delivered, 3);
        assert_eq!(host.outbox_front(50), Some((vec![Fid::new(1, 6, 3)], 1)));
        host.remove_delivered(1);
        assert_eq!(host.outbox_front(50), None);
        assert_eq!(host.queue(Fid::new(1, 8, 3)), Queued::Deliver(5));
    }

    #[test]
    fn breaks_for_a_host_that_is_down_wait_and_are_bounded() {
        let host = host();
        host.mark_down();
        assert!(!host.is_ready());
        for _ in 0..3 {
            assert_eq!(host.queue(Fid::new(1, 2, 3)), Queued::Delayed);
        }
        assert_eq!(
            host.record.lock().outbox.len(),
            1,
            "the same fid waits once"
        );
        for vnode in 0..DELAYED_BREAKS_PER_HOST as u32 + 10 {
            assert_eq!(host.queue(Fid::new(1, 100 + vnode, 3)), Queued::Delayed);
        }
        assert!(host.has(RESET));
        assert_eq!(host.record.lock().outbox.len(), 0);
    }

    #[test]
    fn a_late_host_is_down_until_its_outbox_is_empty() {
        let host = host();
        assert_eq!(host.queue(Fid::new(1, 2, 3)), Queued::Deliver(1));
        assert!(host.mark_late(1));
        assert!(!host.is_ready());
        assert!(!host.mark_late(1), "it is down already");
        // A later change joins the same delivery and does not wait for the host.
        assert_eq!(host.queue(Fid::new(1, 4, 3)), Queued::Delayed);
        let (fids, entries) = host.outbox_front(50).unwrap();
        assert_eq!(fids.len(), 2);
        host.remove_delivered(entries);
        assert_eq!(host.outbox_front(50), None);
        assert!(host.is_ready());
        assert!(!host.mark_late(1), "told too late, but told");
        assert!(host.is_ready());
    }

    #[test]
    fn a_change_waits_longer_for_hosts_that_are_far_away() {
        let host = host();
        assert_eq!(host.break_wait(), BREAK_WAIT_LEAST);
        host.answered_in(Duration::from_micros(300));
        assert_eq!(host.break_wait(), BREAK_WAIT_LEAST);
        let far = self::host();
        far.answered_in(Duration::from_millis(150));
        assert_eq!(far.break_wait(), Duration::from_millis(600));
        far.answered_in(Duration::from_secs(8));
        assert_eq!(far.break_wait(), BREAK_WAIT_MOST);
        for _ in 0..40 {
            far.answered_in(Duration::from_millis(1));
        }
        assert_eq!(far.break_wait(), BREAK_WAIT_LEAST);
    }

    #[test]
    fn calls_that_wait_are_bounded() {
        let host = host();
        let places: Vec<_> = (0..CALLS_WAITING_PER_HOST)
            .map(|_| host.wait_place())
            .collect();
        assert!(places.iter().all(Option::is_some));
        assert!(host.wait_place().is_none());
        drop(places);
        assert!(host.wait_place().is_some());
    }

    #[test]
    fn a_new_primary_keeps_the_old_address_as_alternate() {
        let host = host();
        let (old, new) = (host.address(), SocketAddr::from(([192, 0, 2, 9], 7001)));
        host.add_alternate(new);
        host.set_primary(new);
        assert_eq!(host.address(), new);
        assert_eq!(host.record.lock().alternates, [old]);
    }
}
