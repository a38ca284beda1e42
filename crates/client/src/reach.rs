//! Reachability of servers, shared by all users of a machine: which servers were silent, and which
//! connections are good.
//!
//! 1. An Rx server sends its answers to the address from which the first packet of the connection
//!    came. Later packets do not change that. Suppose that this machine gets another address, or
//!    that an address translator gives it another port. Then the server receives our packets, but
//!    we do not receive its answers, for as long as the connection is used. A packet's address
//!    proves nothing, so servers are right to do so (OpenAFS's do, and ours): the client must make
//!    another connection.
//! 2. So after a silence, calls to the server use new connections: a translator may have given us
//!    another port without our noticing. A server that only stalled processes the packets of
//!    several connections in any order, including calls that the client gave up meanwhile. A caller
//!    to which that matters waits until these calls are done
//!    (`VolumeOperation::wait_out_stalled_calls`).
//! 3. After a change of our own address, or a sleep, connections made before are not used, and no
//!    server counts as silent. Calls that failed because of the change are repeated once
//!    ([`Reach::changes`]).
//! 4. The holder of promises is notified when a silent server answers again. The server may have
//!    broken promises meanwhile, and those breaks did not reach us. Until that answer a copy under
//!    a promise is used: nothing newer can be learned.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::cell::CellName;
use crate::server_names::{ServerName, ServerNames};

/// The time for which an address that did not answer is tried after all others.
pub(crate) const DOWN_TIME: Duration = Duration::from_secs(60);

/// The most addresses in each table.
const ADDRESSES_MAX: usize = 1_000;

type Listener = Box<dyn Fn(SocketAddr) + Send + Sync>;
type NewServer = Box<dyn Fn(IpAddr) + Send + Sync>;

/// The reachability of servers.
#[derive(Default)]
pub struct Reach {
    state: Mutex<State>,
    names: ServerNames,
    back: OnceLock<Listener>,
    new_server: OnceLock<NewServer>,
    longest_idle: OnceLock<Duration>,
    patience: OnceLock<Duration>,
}

#[derive(Debug, Default)]
struct State {
    /// The time of the last unanswered call, for each address that is down.
    down: HashMap<SocketAddr, Instant>,
    /// The number of silences of each address.
    silences: HashMap<SocketAddr, u64>,
    /// The start of the silence of each address that has not answered since.
    away: HashMap<SocketAddr, Instant>,
    /// The time at which an address of `away` answered again.
    returned: HashMap<SocketAddr, Instant>,
    /// The time of the last answer of each address.
    last_answers: HashMap<SocketAddr, Instant>,
    /// For each address: all calls given up before this time are done at the server, or never will
    /// be.
    grace_ended: HashMap<SocketAddr, Instant>,
    changes: u64,
    /// The number of times that a server said that it does not know this machine.
    forgotten: u64,
    /// The number of failed calls that had been sent more than once.
    repeated: u64,
    /// The number of waits for a busy server.
    busy_answers: u64,
}

impl fmt::Debug for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reach").finish_non_exhaustive()
    }
}

impl Reach {
    /// Sets the longest time for which a call to a file server may be idle (nothing sent or
    /// received) though the server's host answers. The call fails then. Only the first call of this
    /// function has an effect; without one there is no limit.
    pub fn set_longest_idle(&self, time: Duration) {
        let _earlier = self.longest_idle.set(time);
    }

    /// The time that [`Self::set_longest_idle`] has set.
    pub(crate) fn longest_idle(&self) -> Option<Duration> {
        self.longest_idle.get().copied()
    }

    /// Sets the time for which operations are retried while none of their servers can be reached.
    /// Only the first call has an effect; without one such operations fail at once.
    pub fn set_patience(&self, time: Duration) {
        let _earlier = self.patience.set(time);
    }

    /// The time that [`Self::set_patience`] has set.
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.patience.get().copied()
    }

    /// Sets the function to call when a silent server answers again. Only the first call has an
    /// effect.
    pub fn on_return(&self, listener: Listener) {
        if self.back.set(listener).is_err() {
            tracing::debug!("a listener for returning servers is set already");
        }
    }

    /// Sets the function to call when an address answers for the first time. It must not wait. Only
    /// the first call has an effect.
    pub fn on_new_server(&self, listener: NewServer) {
        if self.new_server.set(listener).is_err() {
            tracing::debug!("a listener for new servers is set already");
        }
    }

    /// The names of servers, for the log.
    pub fn names(&self) -> &ServerNames {
        &self.names
    }

    /// Notes that an address did not answer.
    pub fn silent(&self, peer: SocketAddr) {
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
        let is_new = !state.away.contains_key(&peer);
        let since = state.away.entry(peer).or_insert(now);
        if !goes_on {
            *since = now;
        }
        drop(state);
        if is_new {
            let ServerName { host, cell } = self.names.of(peer.ip());
            let (name, cell) = (host.as_deref(), cell.as_ref().map(CellName::as_str));
            tracing::info!(server = %peer, name, cell, "a server does not answer");
        }
    }

    /// Notes that an address answered.
    pub fn answered(&self, peer: SocketAddr) {
        let (returns, is_new) = {
            let mut state = self.state.lock();
            if !state.down.is_empty() {
                state.down.remove(&peer);
            }
            let now = Instant::now();
            let is_new = match bounded(&mut state.last_answers, peer) {
                Entry::Occupied(mut last) => {
                    last.insert(now);
                    false
                }
                Entry::Vacant(first) => {
                    first.insert(now);
                    true
                }
            };
            let away = match state.away.is_empty() {
                true => None,
                false => state.away.remove(&peer),
            };
            if away.is_some() {
                bounded(&mut state.returned, peer).insert_entry(now);
            }
            (away.map(|since| now.duration_since(since)), is_new)
        };
        if let Some(away) = returns {
            let ServerName { host, cell } = self.names.of(peer.ip());
            let (name, cell) = (host.as_deref(), cell.as_ref().map(CellName::as_str));
            tracing::info!(server = %peer, name, cell, ?away, "a server answers again");
        }
        if is_new && let Some(new_server) = self.new_server.get() {
            new_server(peer.ip());
        }
        if returns.is_some()
            && let Some(back) = self.back.get()
        {
            back(peer);
        }
    }

    /// Whether the address did not answer a call in the last [`DOWN_TIME`].
    pub(crate) fn is_down(&self, peer: SocketAddr) -> bool {
        let state = self.state.lock();
        let since = state.down.get(&peer);
        since.is_some_and(|since| since.elapsed() < DOWN_TIME)
    }

    /// The time since which an address cannot be reached; `None` if it can. The time begins again
    /// after [`DOWN_TIME`] without a call: the server may have been reachable meanwhile.
    pub(crate) fn away_since(&self, peer: SocketAddr) -> Option<Instant> {
        self.state.lock().away.get(&peer).copied()
    }

    /// Notes that a server said that it does not know this machine: the server was restarted, or
    /// this is the machine's first call to it.
    pub fn was_forgotten(&self) {
        self.state.lock().forgotten += 1;
    }

    /// Notes that a call failed that had been sent more than once.
    pub(crate) fn was_repeated(&self) {
        self.state.lock().repeated += 1;
    }

    /// Notes that an operation waits for a busy server.
    pub(crate) fn note_busy_answer(&self) {
        self.state.lock().busy_answers += 1;
    }

    /// The number of waits for busy servers so far. A growing number says that an operation may
    /// take long, because a server recalls a file from an archive.
    pub fn busy_answers(&self) -> u64 {
        self.state.lock().busy_answers
    }

    /// The signs of server restarts counted so far.
    pub fn marks(&self) -> Marks {
        let state = self.state.lock();
        Marks {
            forgotten: state.forgotten,
            repeated: state.repeated,
        }
    }

    /// The time at which the address last answered.
    pub fn last_answer(&self, peer: SocketAddr) -> Option<Instant> {
        self.state.lock().last_answers.get(&peer).copied()
    }

    /// Whether the address was silent and answered again after `asked`: the promises of a reply to
    /// a call sent at `asked` may be broken.
    pub fn returned_since(&self, peer: SocketAddr, asked: Instant) -> bool {
        let state = self.state.lock();
        state.returned.get(&peer).is_some_and(|at| *at >= asked)
    }

    /// Notes that an address answered at that time, and has since had enough time for all calls
    /// that it had received before.
    pub(crate) fn note_grace_ended(&self, peer: SocketAddr, answered: Instant) {
        let mut state = self.state.lock();
        let ended = bounded(&mut state.grace_ended, peer).or_insert(answered);
        *ended = answered.max(*ended);
    }

    /// Whether the calls that were given up at this time can no longer take effect at the address.
    pub(crate) fn grace_ended_since(&self, peer: SocketAddr, given_up: Instant) -> bool {
        let state = self.state.lock();
        let ended = state.grace_ended.get(&peer);
        ended.is_some_and(|ended| *ended > given_up)
    }

    /// The age of connections made now. A connection of another age must not be used.
    pub(crate) fn age(&self, peer: SocketAddr) -> Age {
        let state = self.state.lock();
        Age {
            changes: state.changes,
            silences: state.silences.get(&peer).copied().unwrap_or(0),
        }
    }

    /// Notes that our own address has changed, or that this machine has slept.
    pub fn changed(&self) {
        let mut state = self.state.lock();
        state.changes += 1;
        state.down.clear();
    }

    /// The number of calls of [`Reach::changed`].
    pub fn changes(&self) -> u64 {
        self.state.lock().changes
    }
}

/// Counts of the two signs that a server was restarted during a call. One sign: the call was sent a
/// second time. The other: a server did not know this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    forgotten: u64,
    repeated: u64,
}

impl Marks {
    /// Whether both signs appeared since `before`. Then the result of a call may be the answer to
    /// its second copy.
    pub fn show_restart_since(self, before: Self) -> bool {
        self.forgotten != before.forgotten && self.repeated != before.repeated
    }
}

/// The state of the network path when a connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Age {
    changes: u64,
    silences: u64,
}

/// The entry of an address. A full table is emptied before it gets another address.
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
        let listener = returned.clone();
        reach.on_return(Box::new(move |server| listener.lock().push(server)));
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

    /// The lines of a log in memory.
    #[derive(Clone, Default)]
    struct Lines(std::sync::Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_lost_and_regained_server_has_one_line_each_with_its_names() {
        let lines = Lines::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        let named = SocketAddr::from(([192, 0, 2, 1], 7000));
        let nameless = SocketAddr::from(([192, 0, 2, 2], 7000));
        let reach = Reach::default();
        reach.names().add_host(named.ip(), "fs1.example.org");
        reach.names().add_host(named.ip(), "another.example.org");
        let cell = CellName::new("example.org").expect("name");
        reach.names().add_cell(nameless.ip(), &cell);
        tracing::subscriber::with_default(log, || {
            for peer in [named, nameless] {
                reach.answered(peer);
                (0..3).for_each(|_| reach.silent(peer));
                (0..3).for_each(|_| reach.answered(peer));
            }
        });
        let text = String::from_utf8(lines.0.lock().clone()).expect("text");
        let all: Vec<&str> = text.lines().collect();
        let expected = [
            (
                "a server does not answer",
                "192.0.2.1:7000 name=\"fs1.example.org\"",
            ),
            (
                "a server answers again",
                "192.0.2.1:7000 name=\"fs1.example.org\"",
            ),
            (
                "a server does not answer",
                "192.0.2.2:7000 cell=\"example.org\"",
            ),
            (
                "a server answers again",
                "192.0.2.2:7000 cell=\"example.org\"",
            ),
        ];
        assert_eq!(all.len(), expected.len(), "{text}");
        for (line, (event, server)) in all.iter().zip(expected) {
            assert!(line.contains(event) && line.contains(server), "{line}");
        }
    }

    #[test]
    fn an_address_is_new_once() {
        let reach = Reach::default();
        let seen = std::sync::Arc::new(Mutex::new(Vec::new()));
        let listener = seen.clone();
        reach.on_new_server(Box::new(move |address| listener.lock().push(address)));
        let peer = SocketAddr::from(([192, 0, 2, 1], 7000));
        reach.silent(peer);
        assert!(seen.lock().is_empty(), "it has not answered");
        reach.answered(peer);
        reach.silent(peer);
        reach.answered(peer);
        assert_eq!(*seen.lock(), [peer.ip()]);
    }

    #[test]
    fn the_memory_of_addresses_is_bounded() {
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
            state.last_answers.len(),
            state.returned.len(),
            state.silences.len(),
        ] {
            assert!(table <= ADDRESSES_MAX);
        }
    }
}
