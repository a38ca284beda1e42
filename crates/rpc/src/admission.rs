//! Admission control: selects the next call to run, and refuses calls beyond the limits.
//!
//! 1. Each client (address and port) has a queue of calls. Hosts (addresses) take turns, and the
//!    clients of a host take turns within its turns. A client that floods the server thus delays
//!    its own calls. A call of another host waits for at most one call of each active host. A call
//!    of another client on the same host (or behind the same NAT) waits for at most one call of
//!    each client there. Clients of a host share its time, not the number of calls. A client that
//!    used more than its share misses turns until the others have used as much (deficit round
//!    robin; the cost is known afterwards). The same applies to hosts for long calls.
//! 2. Two resources are shared by moving limits: places in the queue, and running calls. A host may
//!    hold as many as are free. A client may hold as many as its host may still take. A single host
//!    gets half of all; `n` hosts that take all they can get `1/(n+1)` each. There is always room
//!    for the first call of the next host and of the next client.
//! 3. "Running" counts calls that use this machine: they execute, or wait for a disk or another
//!    server. A call that waits for packets of its own peer is not counted, so slow clients cannot
//!    fill the server.
//! 4. Refusals are sent at once. All memory here is bounded by the number of places in the queue.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use hashbrown::HashMap;

/// The queues of one port on one shard; `T` is a waiting call.
#[derive(Debug)]
pub(crate) struct Admission<T> {
    hosts: HashMap<IpAddr, Host<T>>,
    /// Hosts with waiting calls that may run one, in the order of their turns.
    turns: VecDeque<IpAddr>,
    /// Hosts with waiting calls that already run as many as they may.
    held: VecDeque<IpAddr>,
    waiting: usize,
    running: usize,
    waiting_max: usize,
    running_max: usize,
}

#[derive(Debug)]
struct Host<T> {
    clients: HashMap<u16, Client<T>>,
    /// Clients with waiting calls, in the order of their turns.
    turns: VecDeque<u16>,
    waiting: usize,
    running: usize,
    credit: Credit,
}

#[derive(Debug)]
struct Client<T> {
    waiting: VecDeque<T>,
    running: usize,
    credit: Credit,
}

/// Time that may be used before a turn is missed, microseconds; negative after more was used.
#[derive(Debug)]
struct Credit(i64);

impl Credit {
    fn new(turn: i64) -> Self {
        Self(turn)
    }

    /// Returns whether this turn is taken, or missed. `alone`: no other queue waits for a turn;
    /// time that no other queue wanted is not charged. `turn`: the value of one turn.
    fn takes_turn(&mut self, turn: i64, alone: bool) -> bool {
        if alone {
            self.0 = turn;
        } else if self.0 <= 0 {
            self.0 += turn;
        }
        self.0 > 0
    }

    fn charge(&mut self, micros: u64) {
        let used = i64::try_from(micros).unwrap_or(i64::MAX);
        self.0 = self.0.saturating_sub(used).max(-DEBT_MICROS_MAX);
    }
}

impl<T> Admission<T> {
    pub(crate) fn new(waiting_max: usize, running_max: usize) -> Self {
        Self {
            hosts: HashMap::new(),
            turns: VecDeque::new(),
            held: VecDeque::new(),
            waiting: 0,
            running: 0,
            waiting_max: waiting_max.max(2),
            running_max: running_max.max(2),
        }
    }

    /// Adds a call to its client's queue.
    ///
    /// # Errors
    /// Returns the call if its host or client already has its share of the queue.
    pub(crate) fn offer(&mut self, from: SocketAddr, call: T) -> Result<(), T> {
        let free = self.waiting_max - self.waiting;
        let host = self.hosts.get(&from.ip());
        let host_waiting = host.map_or(0, |host| host.waiting);
        let client = host.and_then(|host| host.clients.get(&from.port()));
        let client_waiting = client.map_or(0, |client| client.waiting.len());
        if client_waiting >= free.saturating_sub(host_waiting) {
            return Err(call);
        }
        let host = self.hosts.entry(from.ip()).or_insert_with(Host::new);
        let client = host.clients.entry(from.port()).or_insert_with(Client::new);
        client.waiting.push_back(call);
        if client.waiting.len() == 1 {
            host.turns.push_back(from.port());
        }
        host.waiting += 1;
        if host.waiting == 1 {
            self.turns.push_back(from.ip());
        }
        self.waiting += 1;
        Ok(())
    }

    /// Returns the next call to run, if any may run.
    pub(crate) fn next(&mut self) -> Option<T> {
        while self.running < self.running_max {
            let address = self.turns.pop_front()?;
            let Some(host) = self.hosts.get_mut(&address) else {
                continue;
            };
            if !host
                .credit
                .takes_turn(HOST_TURN_MICROS, self.turns.is_empty())
            {
                self.turns.push_back(address);
                continue;
            }
            let free = self.running_max - self.running;
            let Some(call) = host.next(free.saturating_sub(host.running)) else {
                self.held.push_back(address);
                continue;
            };
            self.waiting -= 1;
            if host.waiting > 0 {
                self.turns.push_back(address);
            } else if host.clients.is_empty() {
                self.hosts.remove(&address);
            }
            return Some(call);
        }
        None
    }

    /// Charges a client for the time that one of its calls used.
    pub(crate) fn charge(&mut self, from: SocketAddr, micros: u64) {
        // A host or client without an entry has no waiting calls, and so takes no time from others.
        if let Some(host) = self.hosts.get_mut(&from.ip()) {
            host.credit.charge(micros);
            if let Some(client) = host.clients.get_mut(&from.port()) {
                client.credit.charge(micros);
            }
        }
    }

    /// Records that a call uses this machine beyond its first poll.
    pub(crate) fn begin(&mut self, from: SocketAddr) {
        self.running += 1;
        let host = self.hosts.entry(from.ip()).or_insert_with(Host::new);
        host.running += 1;
        host.clients
            .entry(from.port())
            .or_insert_with(Client::new)
            .running += 1;
    }

    /// Records that a running call ended or waits for its peer. Returns whether a waiting call may
    /// run now.
    pub(crate) fn end(&mut self, from: SocketAddr) -> bool {
        self.running = self.running.saturating_sub(1);
        if let Some(host) = self.hosts.get_mut(&from.ip()) {
            host.running = host.running.saturating_sub(1);
            if let Some(client) = host.clients.get_mut(&from.port()) {
                client.running = client.running.saturating_sub(1);
                if client.is_idle() {
                    host.clients.remove(&from.port());
                }
            }
            if host.clients.is_empty() {
                self.hosts.remove(&from.ip());
            }
        }
        // The share of each held host may have grown: they retry, in order.
        self.turns.append(&mut self.held);
        !self.turns.is_empty()
    }

    /// Number of waiting calls.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Number of running calls.
    pub(crate) fn running(&self) -> usize {
        self.running
    }

    /// Whether [`Admission::next`] would probably return a call; a cheap estimate.
    pub(crate) fn has_next(&self) -> bool {
        self.running < self.running_max && !self.turns.is_empty()
    }
}

impl<T> Host<T> {
    fn new() -> Self {
        Self {
            clients: HashMap::new(),
            turns: VecDeque::new(),
            waiting: 0,
            running: 0,
            credit: Credit::new(HOST_TURN_MICROS),
        }
    }

    /// Returns the next call of the client whose turn it is, if the host may run `more` calls.
    /// Clients that already run as many as they may keep waiting.
    fn next(&mut self, more: usize) -> Option<T> {
        if more == 0 {
            return None;
        }
        let mut held = 0;
        while held < self.turns.len() {
            let port = self.turns.pop_front()?;
            let Some(client) = self.clients.get_mut(&port) else {
                continue;
            };
            if client.running >= more {
                self.turns.push_back(port);
                held += 1;
                continue;
            }
            if !client
                .credit
                .takes_turn(CLIENT_TURN_MICROS, self.turns.is_empty())
            {
                self.turns.push_back(port);
                // It will take one of the next turns.
                held = 0;
                continue;
            }
            let Some(call) = client.waiting.pop_front() else {
                continue;
            };
            self.waiting -= 1;
            if !client.waiting.is_empty() {
                self.turns.push_back(port);
            } else if client.is_idle() {
                self.clients.remove(&port);
            }
            return Some(call);
        }
        None
    }
}

impl<T> Client<T> {
    fn new() -> Self {
        Self {
            waiting: VecDeque::new(),
            running: 0,
            credit: Credit::new(CLIENT_TURN_MICROS),
        }
    }

    fn is_idle(&self) -> bool {
        self.running == 0 && self.waiting.is_empty()
    }
}

/// Value of a client's turn: the duration of the smallest call. With more, clients with small calls
/// would get less than their share. With less, more turns would be missed.
const CLIENT_TURN_MICROS: i64 = 5;
/// Value of a host's turn: several small calls, so that only long calls are charged. A host may be
/// a translator with hundreds of clients, for which the time of one client would be too little.
const HOST_TURN_MICROS: i64 = 100;
/// Most time charged for a call, so that one slow answer does not block its client for long.
const DEBT_MICROS_MAX: i64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn client(host: u8, port: u16) -> SocketAddr {
        SocketAddr::new(IpAddr::from([10, 0, 0, host]), port)
    }

    #[test]
    fn hosts_take_turns_and_so_do_their_clients() {
        let mut queue = Admission::new(200, 10);
        for call in 0..10 {
            queue.offer(client(1, 7001), (1, 7001, call)).unwrap();
        }
        queue.offer(client(1, 5000), (1, 5000, 0)).unwrap();
        queue.offer(client(2, 7001), (2, 7001, 0)).unwrap();
        queue.offer(client(3, 7001), (3, 7001, 0)).unwrap();
        queue.offer(client(2, 7001), (2, 7001, 1)).unwrap();
        let order: Vec<_> = std::iter::from_fn(|| queue.next()).take(7).collect();
        let expected = [
            (1, 7001, 0),
            (2, 7001, 0),
            (3, 7001, 0),
            (1, 5000, 0),
            (2, 7001, 1),
            (1, 7001, 1),
            (1, 7001, 2),
        ];
        assert_eq!(order, expected);
    }

    /// A client whose calls take 500 us shares time with one whose many calls take 5 us.
    fn time_is_shared(expensive: SocketAddr, cheap: SocketAddr, calls_for_one: u32) {
        let mut queue = Admission::new(10_000, 10);
        let mut calls = [0_u32; 2];
        for n in [0, 1].repeat(4) {
            queue.offer([expensive, cheap][n], n).unwrap();
        }
        for _ in 0..100_000 {
            // The answered client makes the next call.
            let n = queue.next().unwrap();
            let (from, cost) = [(expensive, 500), (cheap, 5)][n];
            queue.offer(from, n).unwrap();
            queue.charge(from, cost);
            calls[n] += 1;
        }
        let share = calls[1] as f64 / calls[0] as f64 / f64::from(calls_for_one);
        assert!((0.8..1.25).contains(&share), "{calls:?}");
    }

    #[test]
    fn hosts_pay_for_long_calls() {
        time_is_shared(client(1, 7001), client(2, 7001), 5);
    }

    #[test]
    fn clients_of_a_host_share_time() {
        time_is_shared(client(1, 7001), client(1, 7002), 100);
    }

    #[test]
    fn a_flooding_client_leaves_room_in_the_queue() {
        let mut queue = Admission::new(100, 10);
        let mut fill = |from| {
            (0..1000)
                .filter(|call| queue.offer(from, *call).is_ok())
                .count()
        };
        assert_eq!(fill(client(1, 1)), 34, "one client");
        assert_eq!(fill(client(1, 2)), 11, "another of the same host");
        assert_eq!(fill(client(2, 1)), 19, "another host");
        assert_eq!(fill(client(3, 1)), 12, "a third one");
        assert!(queue.offer(client(4, 1), 0).is_ok());
        assert_eq!(queue.waiting(), 34 + 11 + 19 + 12 + 1);
    }

    #[test]
    fn a_host_with_many_clients_gets_half() {
        let mut queue = Admission::new(100, 10);
        let taken = (0..1000)
            .filter(|port| queue.offer(client(1, *port), 0).is_ok())
            .count();
        assert_eq!(taken, 50);
        assert!(queue.offer(client(2, 1), 0).is_ok());
    }

    #[test]
    fn running_is_shared_like_waiting() {
        let mut queue = Admission::new(1000, 8);
        for call in 0..100 {
            queue.offer(client(1, 1), call).unwrap();
        }
        let mut run = 0;
        while queue.next().is_some() {
            queue.begin(client(1, 1));
            run += 1;
        }
        assert_eq!(run, 3);
        queue.offer(client(1, 2), 1000).unwrap();
        assert_eq!(queue.next(), None, "held until something ends");
        assert!(queue.end(client(1, 1)));
        assert_eq!(queue.next(), Some(3), "its turn had come");
        queue.begin(client(1, 1));
        assert_eq!(
            queue.next(),
            Some(1000),
            "then the other client's, which has none yet"
        );
        queue.begin(client(1, 2));
        queue.offer(client(2, 1), 2000).unwrap();
        assert_eq!(
            queue.next(),
            Some(2000),
            "another host's first call is run at once"
        );
        queue.begin(client(2, 1));
        assert!(queue.end(client(1, 2)));
        assert!(queue.end(client(2, 1)));
        assert_eq!(queue.next(), None, "three of its own still run");
        assert!(queue.end(client(1, 1)));
        assert!(queue.next().is_some());
    }

    #[test]
    fn nothing_is_kept_of_clients_that_are_done() {
        let mut queue = Admission::new(10, 4);
        for n in 0..200 {
            queue.offer(client(n, 7001), 0).unwrap();
            assert!(queue.next().is_some());
            queue.begin(client(n, 7001));
            queue.end(client(n, 7001));
            queue.offer(client(1, u16::from(n)), 0).unwrap();
            assert!(queue.next().is_some());
        }
        assert!(queue.hosts.is_empty());
        assert_eq!((queue.waiting(), queue.running()), (0, 0));
        assert!(!queue.has_next());
    }

    #[test]
    fn a_refused_call_leaves_no_trace() {
        let mut queue = Admission::new(2, 2);
        queue.offer(client(1, 1), 1).unwrap();
        queue.offer(client(2, 1), 2).unwrap();
        assert_eq!(queue.offer(client(3, 1), 3), Err(3));
        assert_eq!(queue.hosts.len(), 2);
    }

    /// The counters match the queues after random operations.
    #[test]
    fn the_books_balance() {
        let mut queue = Admission::new(64, 8);
        let mut running: Vec<SocketAddr> = Vec::new();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..200_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let from = client((random >> 8) as u8 % 4, (random >> 16) as u16 % 4);
            match random % 3 {
                0 => drop(queue.offer(from, from)),
                1 => {
                    if let Some(call) = queue.next() {
                        queue.begin(call);
                        running.push(call);
                    }
                }
                _ if !running.is_empty() => {
                    let index = (random >> 32) as usize % running.len();
                    queue.end(running.swap_remove(index));
                }
                _ => {}
            }
            assert!(queue.waiting() <= 64 && queue.running() == running.len());
            let waiting: usize = queue.hosts.values().map(|host| host.waiting).sum();
            assert_eq!(waiting, queue.waiting());
        }
        while !running.is_empty() || queue.waiting() > 0 {
            while let Some(call) = queue.next() {
                queue.begin(call);
                running.push(call);
            }
            queue.end(
                running
                    .pop()
                    .expect("a call that waits is run when nothing else runs"),
            );
        }
        assert!(queue.hosts.is_empty());
    }
}
