//! What all users of a machine know together of the way to servers: who was silent, and which connections are good.
//!
//! 1. An Rx server answers a connection where that connection's first packet came from, whatever comes later. So when this
//!    machine gets another address, or an address translator gives it another port, the server hears us and we do not
//!    hear it, for as long as the connection is used. A packet's address proves nothing, so servers are right to do so
//!    (OpenAFS's do, and ours): it is for the client to make another connection.
//! 2. So a server that was silent is called over new connections from then on: a translator may have given us another port
//!    without our noticing. A server that only stood still takes what comes on several connections in any
//!    order, also what was given up meanwhile: whoever minds waits until it has ([`crate::course::Course::settle`]).
//! 3. After a change of our own address, or a sleep, no connection is used that was made before, nobody counts as silent, and
//!    what failed because of it is tried once more ([`Reach::changes`]).
//! 4. Whoever keeps promises is told when a server that was silent answers again: what it promised may have been broken meanwhile,
//!    without our having heard it. Until then nobody can say more than the promise does, and what is here is used.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
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
    longest_idle: OnceLock<Duration>,
    patience: OnceLock<Duration>,
}

#[derive(Debug, Default)]
struct State {
    /// Since when an address is silent.
    down: HashMap<SocketAddr, Instant>,
    /// How often an address was silent.
    silences: HashMap<SocketAddr, u64>,
    /// Since when addresses are silent that have not answered since.
    away: HashMap<SocketAddr, Instant>,
    /// When one of those answered again.
    returned: HashMap<SocketAddr, Instant>,
    /// When an address last answered.
    heard: HashMap<SocketAddr, Instant>,
    /// Up to when all that was given up at an address is done there, or never will be.
    settled: HashMap<SocketAddr, Instant>,
    changes: u64,
    /// How often a server said that it knows nothing of this machine.
    forgotten: u64,
    /// How often a call failed that had been sent more than once.
    repeated: u64,
}

impl fmt::Debug for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reach").finish_non_exhaustive()
    }
}

impl Reach {
    /// How long a call to a file server may go without anything of it being sent or received, though the server's host
    /// answers: whoever waits for one that hangs is told so then. The first counts; by itself there is no longest time.
    pub(crate) fn set_longest_idle(&self, time: Duration) {
        let _earlier = self.longest_idle.set(time);
    }

    /// What [`Self::set_longest_idle`] said.
    pub(crate) fn longest_idle(&self) -> Option<Duration> {
        self.longest_idle.get().copied()
    }

    /// How long operations go on while no server of theirs can be reached. The first counts; by
    /// itself they fail at once.
    pub(crate) fn set_patience(&self, time: Duration) {
        let _earlier = self.patience.set(time);
    }

    /// What [`Self::set_patience`] said.
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.patience.get().copied()
    }

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
        let goes_on = state.down.insert(peer, now).is_some();
        *bounded(&mut state.silences, peer).or_default() += 1;
        if state.away.len() >= ADDRESSES_MAX {
            let State { away, down, .. } = &mut *state;
            away.retain(|peer, _| down.contains_key(peer));
        }
        let since = state.away.entry(peer).or_insert(now);
        if !goes_on {
            *since = now;
        }
    }

    /// An address answered.
    pub(crate) fn answered(&self, peer: SocketAddr) {
        let returns = {
            let mut state = self.state.lock();
            if !state.down.is_empty() {
                state.down.remove(&peer);
            }
            let now = Instant::now();
            bounded(&mut state.heard, peer).insert_entry(now);
            let returns = !state.away.is_empty() && state.away.remove(&peer).is_some();
            if returns {
                bounded(&mut state.returned, peer).insert_entry(now);
            }
            returns
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

    /// Since when an address cannot be reached, if it cannot. The time begins again after
    /// [`DOWN_TIME`] without a call: the server may have been there meanwhile.
    pub(crate) fn away_since(&self, peer: SocketAddr) -> Option<Instant> {
        self.state.lock().away.get(&peer).copied()
    }

    /// A server said that it knows nothing of this machine: it was started again, or this is the
    /// first that it hears of it.
    pub(crate) fn was_forgotten(&self) {
        self.state.lock().forgotten += 1;
    }

    /// A call failed that had been sent more than once.
    pub(crate) fn was_repeated(&self) {
        self.state.lock().repeated += 1;
    }

    /// What was told so far about restarts that no call failed for.
    pub(crate) fn marks(&self) -> Marks {
        let state = self.state.lock();
        Marks {
            forgotten: state.forgotten,
            repeated: state.repeated,
        }
    }

    /// When the address last answered.
    pub(crate) fn heard_at(&self, peer: SocketAddr) -> Option<Instant> {
        self.state.lock().heard.get(&peer).copied()
    }

    /// Whether the address was silent after `asked`, and has answered since: what it promised by that answer may be broken.
    pub(crate) fn returned_since(&self, peer: SocketAddr, asked: Instant) -> bool {
        let state = self.state.lock();
        state.returned.get(&peer).is_some_and(|at| *at >= asked)
    }

    /// An address answered at that time, and has had a while since for whatever it had got before.
    pub(crate) fn has_settled(&self, peer: SocketAddr, answered: Instant) {
        let mut state = self.state.lock();
        let settled = bounded(&mut state.settled, peer).or_insert(answered);
        *settled = answered.max(*settled);
    }

    /// Whether nothing comes any more of what was given up at an address then.
    pub(crate) fn has_settled_since(&self, peer: SocketAddr, given_up: Instant) -> bool {
        let state = self.state.lock();
        let settled = state.settled.get(&peer);
        settled.is_some_and(|settled| *settled > given_up)
    }

    /// Connections to this address that were made at another age are not to be used.
    pub(crate) fn age(&self, peer: SocketAddr) -> Age {
        let state = self.state.lock();
        Age {
            changes: state.changes,
            silences: state.silences.get(&peer).copied().unwrap_or(0),
        }
    }

    /// Our own address is another, or this machine has slept.
    pub(crate) fn changed(&self) {
        let mut state = self.state.lock();
        state.changes += 1;
        state.down.clear();
    }

    /// How often [`Reach::changed`] was told.
    pub(crate) fn changes(&self) -> u64 {
        self.state.lock().changes
    }
}

/// What there was of signs that a server was started again under a call: it was sent a second
/// time, and a server knew nothing of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    forgotten: u64,
    repeated: u64,
}

impl Marks {
    /// Whether there were both since `before`: what a call came to may be the answer to its
    /// second copy.
    pub(crate) fn show_restart_since(self, before: Self) -> bool {
        self.forgotten != before.forgotten && self.repeated != before.repeated
    }
}

/// What connections to one address were made under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Age {
    changes: u64,
    silences: u64,
}

/// The entry of an address, in a table that starts anew when it is full.
fn bounded<V>(table: &mut HashMap<SocketAddr, V>, peer: SocketAddr) -> Entry<'_, SocketAddr, V> {
    if table.len() >= ADDRESSES_MAX && !table.contains_key(&peer) {
        table.clear();
    }
    table.entry(peer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_ages_all_connections_and_silence_those_to_one() {
        let reach = Reach::default();
        let one = SocketAddr::from(([192, 0, 2, 1], 7000));
        let other = SocketAddr::from(([192, 0, 2, 2], 7000));
        let returned = std::sync::Arc::new(Mutex::new(Vec::new()));
        let told = returned.clone();
        reach.on_return(Box::new(move |server| told.lock().push(server)));
        reach.answered(one);
        let (before, young) = (reach.age(one), reach.age(other));
        let asked = Instant::now();
        reach.silent(one);
        reach.silent(one);
        assert!(reach.is_down(one) && !reach.is_down(other));
        assert_eq!(reach.changes(), 0);
        assert_ne!(reach.age(one), before);
        assert_eq!(reach.age(other), young);
        assert!(!reach.returned_since(one, asked));
        assert!(returned.lock().is_empty(), "it has not answered");
        reach.answered(other);
        reach.answered(one);
        reach.answered(one);
        assert_eq!(*returned.lock(), [one]);
        assert!(!reach.is_down(one));
        assert!(reach.returned_since(one, asked) && !reach.returned_since(other, asked));
        assert!(!reach.returned_since(one, Instant::now() + DOWN_TIME));
        reach.silent(one);
        reach.changed();
        assert!(!reach.is_down(one));
        assert_eq!(reach.changes(), 1);
        assert_ne!(reach.age(other), young);
    }

    #[test]
    fn what_is_remembered_of_addresses_has_a_bound() {
        let reach = Reach::default();
        let address = |n: u32| SocketAddr::from((n.to_be_bytes(), 7000));
        for n in 0..2 * ADDRESSES_MAX as u32 {
            reach.silent(address(n));
            reach.answered(address(n));
        }
        let silent = |n: u32| address(n + (1 << 24));
        for n in 0..2 * ADDRESSES_MAX as u32 {
            reach.silent(silent(n));
            assert!(reach.state.lock().away.contains_key(&silent(n)));
        }
        let state = reach.state.lock();
        for table in [
            state.heard.len(),
            state.returned.len(),
            state.silences.len(),
        ] {
            assert!(table <= ADDRESSES_MAX);
        }
    }
}
