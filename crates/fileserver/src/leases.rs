//! Leases of directories: for some seconds no other host reads or changes a directory before the
//! holder was asked and returned it.
//!
//! The holder creates entries in the directory locally. It answers its programs (a name is free, a
//! file exists) before this server knows of the entries. **Invariant**: everything that other hosts
//! see and do happens before the lease, or after its end. The argument:
//!
//! 1. Every call that looks at a directory checks here first ([`Leases::check`], by
//!    `rxafs::common::look`). If another host has the lease, the call recalls it
//!    ([`Callbacks::recall`](crate::callbacks::Callbacks::recall)), waits for its end without
//!    occupying a thread, and starts again.
//! 2. The check and the promise or change that follows are one piece of work, which begins with
//!    [`Leases::enter`]. A grant first enters the lease into the table, and then waits for all work
//!    that had begun before ([`gate`]). So each piece of work either ends before the holder gets
//!    the status with which its lease begins, or sees the lease.
//! 3. Promises of other hosts for the directory are broken before the grant is answered, as for a
//!    change. So no other host trusts its cached copy.
//! 4. A lease ends in one of three ways:
//!    - The holder returns it (ReturnDirectories), after it has sent all its pending creates.
//!    - Its time is over. The holder counts from before it asked, and the server adds
//!      [`LEASE_MARGIN`].
//!    - The host gives up its promises, or is asked who it is, because it may be another client
//!      process.
//! 5. A recall is an ordinary CallBack for the directory. It is sent even if the holder has no
//!    promise in the table. A recalled lease is never renewed.
//!
//! A directory that two hosts want is leased to no host for [`LEASE_CONTESTED`]; otherwise it would
//! move back and forth. Leases are kept in memory only, and a restart ends them all. Entries
//! created under them can still be sent afterwards (MakeMany), if their names are still free.

mod gate;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cellar_wire::ids::Fid;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use crate::abort_map::Refusal;
use crate::host::HostSlot;
use crate::limits::{
    LEASE_CONTESTED, LEASE_GRANT_PATIENCE, LEASE_MARGIN, LEASES_CONTESTED_MAX, LEASES_MAX,
    LEASES_PER_HOST, LEASES_SWEEP_INTERVAL,
};
use gate::{Gate, GateGuard};

/// All leases.
#[derive(Default)]
pub(crate) struct Leases {
    /// The number of leases in the table: nearly always 0.
    count: AtomicUsize,
    table: Mutex<Table>,
    /// Signalled when leases ended.
    ended: Notify,
    gate: Gate,
}

#[derive(Default)]
struct Table {
    held: HashMap<Fid, Lease>,
    of_host: HashMap<HostSlot, usize>,
    /// Directories that are leased to no host until the given time.
    contested: HashMap<Fid, Instant>,
    last: u64,
    /// The time of the last sweep for expired leases.
    swept: Option<Instant>,
}

#[derive(Clone, Copy)]
struct Lease {
    host: HostSlot,
    until: Instant,
    recalled: bool,
    /// Distinguishes it from other leases of the same directory.
    number: u64,
}

/// The outcome of [`Leases::request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseOutcome {
    /// The host already had the lease, which is now extended.
    Renewed,
    /// The lease is in the table. It is granted when all earlier work has ended.
    Begun(u64),
    /// Other hosts use the directory, or there are too many leases.
    Refused,
}

/// A lease whose end a call waits for.
#[derive(Clone, Copy)]
pub(crate) struct Recalled {
    pub(crate) host: HostSlot,
    number: u64,
    until: Instant,
    /// This is the first recall of the lease.
    pub(crate) first: bool,
}

impl Table {
    fn current(&self, fid: Fid, now: Instant) -> Option<Lease> {
        self.held
            .get(&fid)
            .copied()
            .filter(|lease| lease.until > now)
    }

    fn remove(&mut self, fid: Fid) {
        if let Some(lease) = self.held.remove(&fid)
            && let Some(count) = self.of_host.get_mut(&lease.host)
        {
            *count -= 1;
            if *count == 0 {
                self.of_host.remove(&lease.host);
            }
        }
    }

    /// Enters a lease, if there is room.
    fn enter(&mut self, fid: Fid, host: HostSlot, until: Instant, now: Instant) -> Option<u64> {
        self.remove(fid);
        let is_full =
            |table: &Self| table.held.len() >= LEASES_MAX || table.of(host) >= LEASES_PER_HOST;
        let is_due = |at| now - at >= LEASES_SWEEP_INTERVAL;
        if is_full(self) && self.swept.is_none_or(is_due) {
            self.sweep(now);
        }
        if is_full(self) {
            return None;
        }
        self.last += 1;
        let lease = Lease {
            host,
            until,
            recalled: false,
            number: self.last,
        };
        self.held.insert(fid, lease);
        *self.of_host.entry(host).or_default() += 1;
        Some(lease.number)
    }

    fn of(&self, host: HostSlot) -> usize {
        self.of_host.get(&host).copied().unwrap_or(0)
    }

    fn contest(&mut self, fid: Fid, now: Instant) {
        if self.contested.len() >= LEASES_CONTESTED_MAX {
            self.contested.retain(|_, until| *until > now);
        }
        if self.contested.len() < LEASES_CONTESTED_MAX {
            self.contested.insert(fid, now + LEASE_CONTESTED);
        }
    }

    fn sweep(&mut self, now: Instant) {
        self.swept = Some(now);
        let over = self.held.iter().filter(|(_, lease)| lease.until <= now);
        let over: Vec<Fid> = over.map(|(fid, _)| *fid).collect();
        for fid in over {
            self.remove(fid);
        }
        self.contested.retain(|_, until| *until > now);
    }
}

impl Leases {
    /// Whether there are no leases at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// The number of leases, including expired ones.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Begins a piece of work that checks leases and acts on the result. It ends when the value is
    /// dropped. The work must not await anything in between.
    pub(crate) fn enter(&self) -> GateGuard<'_> {
        self.gate.enter()
    }

    /// Checks that no host except the caller's has the lease of a directory. `caller` is `None` if
    /// the caller is no host.
    ///
    /// # Errors
    /// [`Refusal::Leased`], for which `rxafs::common::run` recalls the lease and starts again.
    pub(crate) fn check(&self, fid: Fid, caller: Option<HostSlot>) -> Result<(), Refusal> {
        if self.is_empty() || !fid.vnode.is_directory() {
            return Ok(());
        }
        let lease = self.table.lock().current(fid, Instant::now());
        match lease {
            Some(lease) if Some(lease.host) != caller => Err(Refusal::Leased(fid, caller)),
            _ => Ok(()),
        }
    }

    /// Asks for the lease of a directory for `term`.
    pub(crate) fn request(&self, fid: Fid, host: HostSlot, term: Duration) -> LeaseOutcome {
        let now = Instant::now();
        let until = now + term + LEASE_MARGIN;
        self.change(|table| {
            if let Some(lease) = table.current(fid, now) {
                if lease.host == host && !lease.recalled {
                    if let Some(lease) = table.held.get_mut(&fid) {
                        lease.until = until;
                    }
                    return LeaseOutcome::Renewed;
                }
                table.contest(fid, now);
                return LeaseOutcome::Refused;
            }
            if table.contested.get(&fid).is_some_and(|until| *until > now) {
                return LeaseOutcome::Refused;
            }
            match table.enter(fid, host, until, now) {
                Some(number) => LeaseOutcome::Begun(number),
                None => LeaseOutcome::Refused,
            }
        })
    }

    /// Waits until all work that began before has ended. Returns `false` if that takes too long.
    pub(crate) async fn alone(&self) -> bool {
        timeout(LEASE_GRANT_PATIENCE, self.gate.passed())
            .await
            .is_ok()
    }

    /// Gives the host the lease of a directory that it is creating now and that no other host
    /// knows. Returns `false` if the host has too many.
    pub(crate) fn grant_new(&self, fid: Fid, host: HostSlot, term: Duration) -> bool {
        let now = Instant::now();
        let until = now + term + LEASE_MARGIN;
        self.change(|table| match table.current(fid, now) {
            Some(_) => false,
            None => table.enter(fid, host, until, now).is_some(),
        })
    }

    /// Extends the lease to `term` from now, if the host has it and it was not recalled.
    pub(crate) fn extend(&self, fid: Fid, host: HostSlot, term: Duration) -> bool {
        if self.is_empty() {
            return false;
        }
        let now = Instant::now();
        let mut table = self.table.lock();
        match table.held.get_mut(&fid) {
            Some(lease) if lease.host == host && lease.until > now && !lease.recalled => {
                lease.until = now + term + LEASE_MARGIN;
                true
            }
            _ => false,
        }
    }

    /// Ends the lease of a directory, if the host has it.
    pub(crate) fn end(&self, fid: Fid, host: HostSlot) {
        self.end_where(|of, lease| of == fid && lease.host == host, Some(fid));
    }

    /// Ends the lease with that number.
    fn end_number(&self, fid: Fid, number: u64) {
        self.end_where(|of, lease| of == fid && lease.number == number, Some(fid));
    }

    /// Ends all leases of the host.
    pub(crate) fn end_all(&self, host: HostSlot) {
        if !self.is_empty() {
            self.end_where(|_, lease| lease.host == host, None);
        }
    }

    /// Removes expired leases.
    pub(crate) fn sweep(&self) {
        self.change(|table| table.sweep(Instant::now()));
    }

    fn end_where(&self, ends: impl Fn(Fid, &Lease) -> bool, only: Option<Fid>) {
        let ended = self.change(|table| {
            let gone: Vec<Fid> = match only {
                Some(fid) => {
                    let lease = table.held.get(&fid);
                    lease.filter(|lease| ends(fid, lease)).map(|_| fid)
                }
                .into_iter()
                .collect(),
                None => {
                    let all = table.held.iter();
                    all.filter(|(fid, lease)| ends(**fid, lease))
                        .map(|(fid, _)| *fid)
                        .collect()
                }
            };
            for fid in &gone {
                table.remove(*fid);
            }
            !gone.is_empty()
        });
        if ended {
            self.ended.notify_waiters();
        }
    }

    /// Changes the table, and updates the count before another thread sees the change.
    fn change<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.table.lock();
        let outcome = change(&mut table);
        self.count.store(table.held.len(), Ordering::SeqCst);
        outcome
    }

    /// Marks the lease as recalled and returns it, if a host other than the caller's has it.
    pub(crate) fn recall(&self, fid: Fid, caller: Option<HostSlot>) -> Option<Recalled> {
        let now = Instant::now();
        let mut table = self.table.lock();
        let lease = table.current(fid, now)?;
        if Some(lease.host) == caller {
            return None;
        }
        table.contest(fid, now);
        if let Some(lease) = table.held.get_mut(&fid) {
            lease.recalled = true;
        }
        Some(Recalled {
            host: lease.host,
            number: lease.number,
            until: lease.until,
            first: !lease.recalled,
        })
    }

    /// Waits until a lease has ended.
    pub(crate) async fn wait_until_ended(&self, fid: Fid, recalled: Recalled) {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            let lease = self.table.lock().current(fid, Instant::now());
            if lease.is_none_or(|lease| lease.number != recalled.number) {
                return;
            }
            // A recalled lease is never renewed, so its end does not move.
            if timeout_at(recalled.until, ended).await.is_err() {
                self.end_number(fid, recalled.number);
            }
        }
    }
}

/// A lease that is being granted. It ends when this value is dropped, unless [`Granting::grant`]
/// succeeded.
pub(crate) struct Granting<'a> {
    leases: &'a Leases,
    fid: Fid,
    number: Option<u64>,
}

impl<'a> Granting<'a> {
    pub(crate) fn new(leases: &'a Leases, fid: Fid, number: u64) -> Self {
        Self {
            leases,
            fid,
            number: Some(number),
        }
    }

    /// Gives the lease to the host, unless it was recalled in the meantime.
    pub(crate) fn grant(mut self, host: HostSlot, term: Duration) -> bool {
        let kept = self.leases.extend(self.fid, host, term);
        if kept {
            self.number = None;
        }
        kept
    }
}

impl Drop for Granting<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.leases.end_number(self.fid, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Duration = Duration::from_secs(15);
    const A: HostSlot = HostSlot(1);
    const B: HostSlot = HostSlot(2);

    fn dir(vnode: u32) -> Fid {
        Fid::new(1, vnode, 1)
    }

    fn granted(leases: &Leases, fid: Fid, host: HostSlot) -> bool {
        matches!(leases.request(fid, host, TERM), LeaseOutcome::Begun(_))
    }

    #[tokio::test(start_paused = true)]
    async fn one_host_has_it_and_renews_it() {
        let leases = Leases::default();
        assert!(granted(&leases, dir(1), A));
        assert!(leases.check(dir(1), Some(A)).is_ok());
        assert!(leases.check(dir(3), Some(B)).is_ok());
        for other in [Some(B), None] {
            let refused = leases.check(dir(1), other);
            assert!(matches!(refused, Err(Refusal::Leased(_, by)) if by == other));
        }
        assert_eq!(leases.request(dir(1), A, TERM), LeaseOutcome::Renewed);
        leases.end(dir(1), B);
        assert!(
            leases.check(dir(1), None).is_err(),
            "another's to give back"
        );
        leases.end(dir(1), A);
        assert!(leases.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_directory_that_two_machines_want_is_not_leased_for_a_while() {
        let leases = Leases::default();
        assert!(granted(&leases, dir(1), A));
        assert_eq!(leases.request(dir(1), B, TERM), LeaseOutcome::Refused);
        leases.end(dir(1), A);
        assert!(!granted(&leases, dir(1), A) && !granted(&leases, dir(1), B));
        assert!(granted(&leases, dir(3), A));
        assert!(
            leases
                .recall(dir(3), None)
                .is_some_and(|recalled| recalled.first)
        );
        assert!(
            leases
                .recall(dir(3), Some(B))
                .is_some_and(|recalled| !recalled.first)
        );
        assert!(leases.recall(dir(3), Some(A)).is_none());
        assert_eq!(
            leases.request(dir(3), A, TERM),
            LeaseOutcome::Refused,
            "recalled"
        );
        assert!(!leases.extend(dir(3), A, TERM));
        leases.end(dir(3), A);
        tokio::time::advance(LEASE_CONTESTED - Duration::from_secs(1)).await;
        assert!(!granted(&leases, dir(1), A) && !granted(&leases, dir(3), A));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(granted(&leases, dir(1), B) && granted(&leases, dir(3), A));
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_with_its_time_or_its_host() {
        let leases = Leases::default();
        assert!(granted(&leases, dir(1), A) && granted(&leases, dir(3), A));
        assert!(granted(&leases, dir(5), B));
        let recalled = leases.recall(dir(1), Some(B)).unwrap();
        let begun = Instant::now();
        leases.wait_until_ended(dir(1), recalled).await;
        assert_eq!(begun.elapsed(), TERM + LEASE_MARGIN);
        assert!(leases.check(dir(3), None).is_ok());
        leases.sweep();
        assert!(leases.is_empty());
        assert!(granted(&leases, dir(7), A) && granted(&leases, dir(9), B));
        let recalled = leases.recall(dir(7), Some(B)).unwrap();
        leases.end_all(A);
        leases.wait_until_ended(dir(7), recalled).await;
        assert!(leases.check(dir(9), None).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_has_only_so_many_and_what_is_over_makes_room() {
        let leases = Leases::default();
        let many = |host| {
            let each = 0..LEASES_PER_HOST as u32;
            each.filter(|n| {
                leases.grant_new(dir(2 * n + 1 + (host == B) as u32 * 100_000), host, TERM)
            })
            .count()
        };
        assert_eq!(many(A), LEASES_PER_HOST);
        assert!(!leases.grant_new(dir(99_999), A, TERM));
        assert!(!granted(&leases, dir(99_999), A));
        assert!(leases.grant_new(dir(99_999), B, TERM));
        tokio::time::advance(TERM + 2 * LEASE_MARGIN).await;
        assert!(leases.grant_new(dir(99_997), A, TERM));
        assert_eq!(leases.count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_grant_that_is_given_up_leaves_none() {
        let leases = Leases::default();
        let begin = || match leases.request(dir(1), A, TERM) {
            LeaseOutcome::Begun(number) => Granting::new(&leases, dir(1), number),
            other => panic!("{other:?}"),
        };
        drop(begin());
        assert!(leases.is_empty());
        assert!(begin().grant(A, TERM));
        assert!(!leases.is_empty());
        leases.end(dir(1), A);
        let granting = begin();
        leases.recall(dir(1), Some(B)).unwrap();
        assert!(!granting.grant(A, TERM));
        assert!(leases.is_empty());
    }
}
