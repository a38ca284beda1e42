//! What all users of a machine know together of the way to servers: who was silent, and which connections are good.
//!
//! 1. An Rx server answers a connection where that connection's first packet came from, whatever comes later. So when this
//!    machine gets another address, or an address translator gives it another port, the server hears us and we do not
//!    hear it, for as long as the connection is used. A packet's address proves nothing, so servers are right to do so
//!    (OpenAFS's do, and ours): it is for the client to make another connection.
//! 2. Silence alone is no reason for another connection. A server that stood still answers what came meanwhile in the order of each
//!    connection, and what comes on two in any: a store that was given up would come behind the one that was made in its
//!    place, and undo it. What is lost by that: when a translator gives us another port and we do not notice, calls fail
//!    until the address changes or the mount is made anew.
//! 3. After a change of our own address, or a sleep, none is used that was made before, nobody counts as silent, and
//!    what failed because of it is tried once more ([`Reach::changes`]).
//! 4. Whoever keeps promises is told when a server that was silent answers again: what it promised may have been broken meanwhile,
//!    without our having heard it. Until then nobody can say more than the promise does, and what is here is used.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How long an address that did not answer is asked after all others.
pub(crate) const DOWN_TIME: Duration = Duration::from_secs(60);

/// Addresses about which something is remembered.
const ADDRESSES_MAX: usize = 1_000;

type Listener = Box<dyn Fn(SocketAddr) + Send + Sync>;

/// The way to servers.
#[derive(Default)]
pub(crate) struct Reach {
    state: Mutex<State>,
    back: OnceLock<Listener>,
}

#[derive(Debug, Default)]
struct State {
    /// Since when an address is silent.
    down: HashMap<SocketAddr, Instant>,
    /// Addresses that were silent and have not answered since.
    away: HashSet<SocketAddr>,
    /// When an address last answered.
    heard: HashMap<SocketAddr, Instant>,
    changes: u64,
}

impl fmt::Debug for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reach").finish_non_exhaustive()
    }
}

impl Reach {
    /// Who is told when a server answers that was silent. The first counts.
    pub(crate) fn on_return(&self, listener: Listener) {
        if self.back.set(listener).is_err() {
            tracing::debug!("somebody is told of servers that return already");
        }
    }

    /// An address did not answer.
    pub(crate) fn silent(&self, peer: SocketAddr) {
        let mut state = self.state.lock();
        let now = Instant::now();
        state
            .down
            .retain(|_, since| now.duration_since(*since) < DOWN_TIME);
        state.down.insert(peer, now);
        if state.away.len() < ADDRESSES_MAX {
            state.away.insert(peer);
        }
    }

    /// An address answered.
    pub(crate) fn answered(&self, peer: SocketAddr) {
        let returns = {
            let mut state = self.state.lock();
            if !state.down.is_empty() {
                state.down.remove(&peer);
            }
            if state.heard.len() >= ADDRESSES_MAX && !state.heard.contains_key(&peer) {
                state.heard.clear();
            }
            state.heard.insert(peer, Instant::now());
            !state.away.is_empty() && state.away.remove(&peer)
        };
        if returns && let Some(back) = self.back.get() {
            back(peer);
        }
    }

    /// Whether the address was silent a short while ago.
    pub(crate) fn is_down(&self, peer: SocketAddr) -> bool {
        let state = self.state.lock();
        let since = state.down.get(&peer);
        since.is_some_and(|since| since.elapsed() < DOWN_TIME)
    }

    /// When the address last answered.
    pub(crate) fn heard_at(&self, peer: SocketAddr) -> Option<Instant> {
        self.state.lock().heard.get(&peer).copied()
    }

    /// Our own address is another, or this machine has slept.
    pub(crate) fn changed(&self) {
        let mut state = self.state.lock();
        state.changes += 1;
        state.down.clear();
    }

    /// How often [`Reach::changed`] was told: connections that were made at another number are not to be used.
    pub(crate) fn changes(&self) -> u64 {
        self.state.lock().changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_ages_connections_and_silence_does_not() {
        let reach = Reach::default();
        let one = SocketAddr::from(([192, 0, 2, 1], 7000));
        let other = SocketAddr::from(([192, 0, 2, 2], 7000));
        let returned = std::sync::Arc::new(Mutex::new(Vec::new()));
        let told = returned.clone();
        reach.on_return(Box::new(move |server| told.lock().push(server)));
        reach.answered(one);
        reach.silent(one);
        reach.silent(one);
        assert!(reach.is_down(one) && !reach.is_down(other));
        assert_eq!(reach.changes(), 0);
        assert!(returned.lock().is_empty(), "it has not answered");
        reach.answered(other);
        reach.answered(one);
        reach.answered(one);
        assert_eq!(*returned.lock(), [one]);
        assert!(!reach.is_down(one));
        reach.silent(one);
        reach.changed();
        assert!(!reach.is_down(one));
        assert_eq!(reach.changes(), 1);
    }

    #[test]
    fn what_is_remembered_of_addresses_has_a_bound() {
        let reach = Reach::default();
        let address = |n: u32| SocketAddr::from((n.to_be_bytes(), 7000));
        for n in 0..2 * ADDRESSES_MAX as u32 {
            reach.silent(address(n));
            reach.answered(address(n));
        }
        let state = reach.state.lock();
        assert!(state.heard.len() <= ADDRESSES_MAX);
    }
}
