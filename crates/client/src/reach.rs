//! What all users of a machine know together of the way to servers: who was silent, and which connections are good.
//!
//! 1. An Rx server answers a connection where that connection's first packet came from, whatever comes later. So when this
//!    machine gets another address, or an address translator gives it another port, the server hears us and we do not
//!    hear it, for as long as the connection is used. A packet's address proves nothing, so servers are right to do so
//!    (OpenAFS's do, and ours): it is for the client to make another connection.
//! 2. After a call that got no answer no user calls that address over a connection made before.
//! 3. After a change of our own address, or a sleep, none is used that was made before, nobody counts as silent, and
//!    what failed because of it is tried once more ([`Reach::changes`]).
//! 4. Whoever keeps promises is told of rule 2: what that server promised may have been broken meanwhile, without our
//!    having heard it.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How long an address that did not answer is asked after all others.
pub(crate) const DOWN_TIME: Duration = Duration::from_secs(60);

/// Addresses about which something is remembered. When there are more, all connections are made anew.
const ADDRESSES_MAX: usize = 1_000;

type Listener = Box<dyn Fn(SocketAddr) + Send + Sync>;

/// The way to servers.
#[derive(Default)]
pub(crate) struct Reach {
    state: Mutex<State>,
    silent: OnceLock<Listener>,
}

#[derive(Debug, Default)]
struct State {
    /// Since when an address is silent.
    down: HashMap<SocketAddr, Instant>,
    /// When an address last answered.
    heard: HashMap<SocketAddr, Instant>,
    /// Rises with each of the two below.
    count: u64,
    /// The count when all connections became stale.
    all: u64,
    /// The same of one address.
    one: HashMap<SocketAddr, u64>,
    changes: u64,
}

impl fmt::Debug for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reach").finish_non_exhaustive()
    }
}

impl Reach {
    /// Who is told when a server was silent. The first counts.
    pub(crate) fn on_silence(&self, listener: Listener) {
        if self.silent.set(listener).is_err() {
            tracing::debug!("somebody is told of silent servers already");
        }
    }

    /// An address did not answer.
    pub(crate) fn silent(&self, peer: SocketAddr) {
        {
            let mut state = self.state.lock();
            let now = Instant::now();
            state
                .down
                .retain(|_, since| now.duration_since(*since) < DOWN_TIME);
            state.down.insert(peer, now);
            state.count += 1;
            let count = state.count;
            if state.one.len() >= ADDRESSES_MAX {
                state.one.clear();
                state.all = count;
            }
            state.one.insert(peer, count);
        }
        if let Some(silent) = self.silent.get() {
            silent(peer);
        }
    }

    /// An address answered.
    pub(crate) fn answered(&self, peer: SocketAddr) {
        let mut state = self.state.lock();
        if !state.down.is_empty() {
            state.down.remove(&peer);
        }
        if state.heard.len() >= ADDRESSES_MAX && !state.heard.contains_key(&peer) {
            state.heard.clear();
        }
        state.heard.insert(peer, Instant::now());
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
        state.count += 1;
        state.changes += 1;
        state.all = state.count;
        state.one.clear();
        state.down.clear();
    }

    /// How often [`Reach::changed`] was told.
    pub(crate) fn changes(&self) -> u64 {
        self.state.lock().changes
    }

    /// A number that is another when connections to the address that were made before are not to be used.
    pub(crate) fn age(&self, peer: SocketAddr) -> u64 {
        let state = self.state.lock();
        let one = state.one.get(&peer).copied().unwrap_or(0);
        one.max(state.all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_ages_the_connections_to_one_address_and_a_change_all() {
        let reach = Reach::default();
        let one = SocketAddr::from(([192, 0, 2, 1], 7000));
        let other = SocketAddr::from(([192, 0, 2, 2], 7000));
        let before = (reach.age(one), reach.age(other));
        reach.silent(one);
        assert!(reach.is_down(one));
        assert_ne!(reach.age(one), before.0);
        assert_eq!((reach.age(other), reach.changes()), (before.1, 0));
        let aged = reach.age(one);
        reach.answered(one);
        assert!(!reach.is_down(one));
        assert_eq!(reach.age(one), aged);
        reach.silent(one);
        assert_ne!(reach.age(one), aged);
        let before = (reach.age(one), reach.age(other));
        reach.changed();
        assert_ne!(reach.age(one), before.0);
        assert_ne!(reach.age(other), before.1);
        assert!(!reach.is_down(one));
        assert_eq!(reach.changes(), 1);
    }

    #[test]
    fn what_is_remembered_of_addresses_has_a_bound() {
        let reach = Reach::default();
        let address = |n: u32| SocketAddr::from((n.to_be_bytes(), 7000));
        let far = address(u32::MAX);
        let before = reach.age(far);
        for n in 0..2 * ADDRESSES_MAX as u32 {
            reach.silent(address(n));
            reach.answered(address(n));
        }
        assert_ne!(reach.age(far), before, "forgotten, so made anew");
        let state = reach.state.lock();
        assert!(state.one.len() <= ADDRESSES_MAX);
        assert!(state.heard.len() <= ADDRESSES_MAX);
    }
}
