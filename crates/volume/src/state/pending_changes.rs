//! The vnodes that have changes which are not durable yet.
//!
//! A change is visible to readers before the journal has it. Suppose that a reader's answer left
//! the server at once, and then the power failed. The vnode would come back with its former data
//! version, and the next change would give the new number to other bytes. A cache that trusts the
//! number would keep bytes that never existed. So an answer about a vnode waits for the vnode's
//! last change ([`crate::Volume::last_change`]). This costs something only while the vnode is being
//! written.
//!
//! 1. A change enters its vnodes here while it holds their locks. So a reader that sees its result,
//!    under the lock, finds the change's ticket here or a later one.
//! 2. Entries whose changes are durable are removed when the table has grown. Entries of failed
//!    changes stay: the next start may lose these changes, so they are not shown to clients any
//!    more.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::state::ticket::Ticket;

/// The number of entries beyond which durable ones are removed. More changes are rarely in flight.
const SWEEP: usize = 256;

/// The last change of each vnode of a volume that changed recently.
#[derive(Debug, Default)]
pub(crate) struct PendingChanges {
    any: AtomicBool,
    tickets: Mutex<HashMap<u32, Ticket>>,
    /// The change that made the volume.
    made: Option<Ticket>,
}

impl PendingChanges {
    /// For a volume that the change `made` has made: nothing of the volume is durable before that
    /// change.
    pub(crate) fn since(made: &Ticket) -> Self {
        Self {
            made: (!is_durable(made)).then(|| made.clone()),
            ..Self::default()
        }
    }

    /// Returns whether there is no entry that is not durable, so that this can be dropped.
    pub(crate) fn is_quiet(&self) -> bool {
        if !self.made.as_ref().is_none_or(is_durable) {
            return false;
        }
        !self.any.load(Ordering::Acquire) || self.tickets.lock().values().all(is_durable)
    }

    /// Enters a change of `vnodes`, whose locks the caller holds.
    pub(crate) fn note(&self, vnodes: &[u32], ticket: &Ticket) {
        if is_durable(ticket) {
            return;
        }
        let mut tickets = self.tickets.lock();
        if tickets.len() >= SWEEP {
            tickets.retain(|_, ticket| !is_durable(ticket));
        }
        for &vnode in vnodes {
            tickets.insert(vnode, ticket.clone());
        }
        self.any.store(true, Ordering::Release);
    }

    /// The ticket of the last change of `vnode`; a ready one if that change is durable.
    pub(crate) fn of(&self, vnode: u32) -> Ticket {
        // The journal has a change of the vnode after the change that made the volume.
        let made = || self.made.clone().unwrap_or_else(Ticket::ready);
        if !self.any.load(Ordering::Acquire) {
            return made();
        }
        let mut tickets = self.tickets.lock();
        match tickets.get(&vnode) {
            Some(ticket) if !is_durable(ticket) => return ticket.clone(),
            Some(_) => {
                tickets.remove(&vnode);
            }
            None => {}
        }
        if tickets.is_empty() {
            self.any.store(false, Ordering::Release);
        }
        made()
    }
}

/// Returns whether a change is durable; false also if it has failed.
fn is_durable(ticket: &Ticket) -> bool {
    ticket.is_ready() && ticket.wait().is_ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::PendingChanges;
    use crate::error::Error;
    use crate::state::ticket::{Flight, Ticket};

    #[test]
    fn a_vnode_is_durable_when_its_last_change_is_durable() {
        let pending_changes = PendingChanges::default();
        let (first, second): (Arc<Flight>, Arc<Flight>) = Default::default();
        pending_changes.note(&[1, 2], &Ticket::of(first.clone()));
        pending_changes.note(&[2], &Ticket::of(second.clone()));
        first.resolve(Ok(()));
        assert!(pending_changes.of(1).is_ready() && !pending_changes.is_quiet());
        assert!(pending_changes.of(3).is_ready());
        assert!(!pending_changes.of(2).is_ready());
        second.resolve(Ok(()));
        assert!(pending_changes.is_quiet() && pending_changes.of(2).is_ready());
    }

    #[test]
    fn nothing_of_a_volume_is_durable_before_it_is_made() {
        let (made, changed): (Arc<Flight>, Arc<Flight>) = Default::default();
        let pending_changes = PendingChanges::since(&Ticket::of(made.clone()));
        pending_changes.note(&[1], &Ticket::of(changed.clone()));
        assert!(!pending_changes.of(1).is_ready() && !pending_changes.of(2).is_ready());
        made.resolve(Ok(()));
        assert!(!pending_changes.of(1).is_ready() && pending_changes.of(2).is_ready());
        changed.resolve(Ok(()));
        assert!(pending_changes.of(1).is_ready());
    }

    #[test]
    fn a_change_that_failed_is_never_durable() {
        let pending_changes = PendingChanges::default();
        let flight: Arc<Flight> = Arc::default();
        pending_changes.note(&[1], &Ticket::of(flight.clone()));
        flight.resolve(Err(Error::Stopped("no disk".into())));
        for vnode in 10..2000 {
            pending_changes.note(&[vnode], &Ticket::of(Arc::default()));
        }
        assert!(pending_changes.of(1).wait().is_err());
    }

    #[test]
    fn finished_work_is_swept() {
        let pending_changes = PendingChanges::default();
        for vnode in 0..10_000 {
            let flight: Arc<Flight> = Arc::default();
            pending_changes.note(&[vnode], &Ticket::of(flight.clone()));
            flight.resolve(Ok(()));
        }
        assert!(pending_changes.tickets.lock().len() <= super::SWEEP);
    }
}
