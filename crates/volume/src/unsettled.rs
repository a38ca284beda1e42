//! Which vnodes have changes that are not durable yet.
//!
//! A change is visible to readers before the journal has it. If a reader were told of it at once
//! and the power failed then, the vnode would come back with its former data version, and the next
//! change would give the reader's number to other bytes: a cache that trusts the number would keep
//! what never was. So an answer about a vnode waits for the vnode's last change
//! ([`crate::Volume::settled`]); it costs something only where somebody is writing.
//!
//! 1. A change enters its vnodes here while it holds their locks; who sees its result, under the
//!    lock, finds its ticket here or a later one.
//! 2. Entries that have landed are swept when the table has grown. Those that failed stay: what
//!    they changed may be lost with the next start, so nobody is told of it any more.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::ticket::Ticket;

/// Entries beyond which landed ones are swept. More changes than this are rarely in flight.
const SWEEP: usize = 256;

/// The last change of each vnode of a volume that changed lately.
#[derive(Debug, Default)]
pub(crate) struct Unsettled {
    any: AtomicBool,
    tickets: Mutex<HashMap<u32, Ticket>>,
    /// The change that made the volume.
    made: Option<Ticket>,
}

impl Unsettled {
    /// Of a volume that `made` made: nothing of it is durable before that.
    pub(crate) fn since(made: &Ticket) -> Self {
        Self {
            made: (!is_settled(made)).then(|| made.clone()),
            ..Self::default()
        }
    }

    /// Whether nothing is entered that is not durable: it can be forgotten.
    pub(crate) fn is_quiet(&self) -> bool {
        if !self.made.as_ref().is_none_or(is_settled) {
            return false;
        }
        !self.any.load(Ordering::Acquire) || self.tickets.lock().values().all(is_settled)
    }

    /// Enters a change of `vnodes`, whose locks the caller holds.
    pub(crate) fn note(&self, vnodes: &[u32], ticket: &Ticket) {
        if is_settled(ticket) {
            return;
        }
        let mut tickets = self.tickets.lock();
        if tickets.len() >= SWEEP {
            tickets.retain(|_, ticket| !is_settled(ticket));
        }
        for &vnode in vnodes {
            tickets.insert(vnode, ticket.clone());
        }
        self.any.store(true, Ordering::Release);
    }

    /// The ticket of the last change of `vnode`; a ready one if that is durable.
    pub(crate) fn of(&self, vnode: u32) -> Ticket {
        // A change of the vnode is in the journal after the one that made the volume.
        let made = || self.made.clone().unwrap_or_else(Ticket::ready);
        if !self.any.load(Ordering::Acquire) {
            return made();
        }
        let mut tickets = self.tickets.lock();
        match tickets.get(&vnode) {
            Some(ticket) if !is_settled(ticket) => return ticket.clone(),
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

/// Whether a change is durable: under way or failed, it is not.
fn is_settled(ticket: &Ticket) -> bool {
    ticket.is_ready() && ticket.wait().is_ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Unsettled;
    use crate::error::Error;
    use crate::ticket::{Flight, Ticket};

    #[test]
    fn a_vnode_is_settled_when_its_last_change_is_durable() {
        let unsettled = Unsettled::default();
        let (first, second): (Arc<Flight>, Arc<Flight>) = Default::default();
        unsettled.note(&[1, 2], &Ticket::of(first.clone()));
        unsettled.note(&[2], &Ticket::of(second.clone()));
        first.land(Ok(()));
        assert!(unsettled.of(1).is_ready() && !unsettled.is_quiet());
        assert!(unsettled.of(3).is_ready());
        assert!(!unsettled.of(2).is_ready());
        second.land(Ok(()));
        assert!(unsettled.is_quiet() && unsettled.of(2).is_ready());
    }

    #[test]
    fn nothing_of_a_volume_is_settled_before_it_is_made() {
        let (made, changed): (Arc<Flight>, Arc<Flight>) = Default::default();
        let unsettled = Unsettled::since(&Ticket::of(made.clone()));
        unsettled.note(&[1], &Ticket::of(changed.clone()));
        assert!(!unsettled.of(1).is_ready() && !unsettled.of(2).is_ready());
        made.land(Ok(()));
        assert!(!unsettled.of(1).is_ready() && unsettled.of(2).is_ready());
        changed.land(Ok(()));
        assert!(unsettled.of(1).is_ready());
    }

    #[test]
    fn a_change_that_failed_is_never_settled() {
        let unsettled = Unsettled::default();
        let flight: Arc<Flight> = Arc::default();
        unsettled.note(&[1], &Ticket::of(flight.clone()));
        flight.land(Err(Error::Stopped("no disk".into())));
        for vnode in 10..2000 {
            unsettled.note(&[vnode], &Ticket::of(Arc::default()));
        }
        assert!(unsettled.of(1).wait().is_err());
    }

    #[test]
    fn what_has_landed_is_swept() {
        let unsettled = Unsettled::default();
        for vnode in 0..10_000 {
            let flight: Arc<Flight> = Arc::default();
            unsettled.note(&[vnode], &Ticket::of(flight.clone()));
            flight.land(Ok(()));
        }
        assert!(unsettled.tickets.lock().len() <= super::SWEEP);
    }
}
