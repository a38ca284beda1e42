//! Admission: which of the calls that have arrived is run next, and which is refused.
//!
//! 1. Calls wait in a queue for each client (address and port). Hosts (addresses) take turns, and the
//!    clients of a host take turns within its turns. So a client that floods the server delays its
//!    own calls; another host's call waits for at most one call of each host that is active, another
//!    client's on the same host (or behind the same NAT) for at most one call of each of these.
//!    Clients of a host share its time, not the number of calls: who asked for much sits out turns until
//!    the others have had as much (deficit round robin, the cost being known afterwards). Hosts do so
//!    for long calls.
//! 2. Both resources, places in the queue and calls running, are shared by moving limits: a host may
//!    hold as many as are free, and a client of it as many as its host may take in addition. One host
//!    alone gets half of all; `n` hosts that take all they can get `1/(n+1)` each; and there is always
//!    room for the next host's, and the next client's, first call.
//! 3. "Running" counts calls that use this machine: being answered, waiting for a disk or for
//!    another server. A call that waits for its own peer's packets is not counted, so slow clients
//!    cannot fill the server.
//! 4. What is refused is told so at once. Everything here is bounded by the places in the queue.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use hashbrown::HashMap;

/// The queues of one port on one shard; `T` is a call that waits.
#[derive(Debug)]
pub(crate) struct Admission<T> {
    hosts: HashMap<IpAddr, Host<T>>,
    /// Hosts with waiting calls that may run one, in the order of their turns.
    turns: VecDeque<IpAddr>,
    /// Hosts with waiting calls that run as many as they may.
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

/// Time that may still be used before a turn is sat out, microseconds; negative when more was used.
#[derive(Debug)]
struct Credit(i64);

impl Credit {
    fn new(turn: i64) -> Self {
        Self(turn)
    }

    /// Whether this turn may be taken, or is sat out. `alone`: nobody else waits for one, and what
    /// nobody else wanted is not held against anybody. `turn`: what one is worth.
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

    /// Takes a call into its client's queue.
    ///
    /// # Errors
    /// The call comes back when its host, or client, has its share of the queue.
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

    /// The call that is to be run now, if any may.
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

    /// A call of a client has used so much time.
    pub(crate) fn charge(&mut self, from: SocketAddr, micros: u64) {
        // Whoever is not here has nothing waiting, and so takes nothing from anybody.
        if let Some(host) = self.hosts.get_mut(&from.ip()) {
            host.credit.charge(micros);
            if let Some(client) = host.clients.get_mut(&from.port()) {
                client.credit.charge(micros);
            }
        }
    }

    /// A call of a client uses this machine from now on, beyond its first poll.
    pub(crate) fn begin(&mut self, from: SocketAddr) {
        self.running += 1;
        let host = self.hosts.entry(from.ip()).or_insert_with(Host::new);
        host.running += 1;
        host.clients
            .entry(from.port())
            .or_insert_with(Client::new)
            .running += 1;
    }

    /// A call that had begun has ended, or waits for its peer. Answers whether a call that waits may
    /// now be run.
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
        // Each host that was held may have got a larger share: let them try again, in order.
        self.turns.append(&mut self.held);
        !self.turns.is_empty()
    }

    /// Calls that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Calls that run.
    pub(crate) fn running(&self) -> usize {
        self.running
    }

    /// Whether [`Admission::next`] would answer a call, as far as can be told cheaply.
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

    /// The next call of the client whose turn it is, when the host may run `more` calls. Clients
    /// that run as many as that wait for another time.
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
                // It will take one of the next.
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

/// What a client's turn is worth: the smallest call. More would let those with small calls have less
/// than their share; less would cost more turns that are sat out.
const CLIENT_TURN_MICROS: i64 = 5;
/// What a host's turn is worth: several small calls, so that only long ones are paid for. A host may be
/// a translator with hundreds of clients, which the time of one would not serve.
const HOST_TURN_MICROS: i64 = 100;
/// No call counts for more than this, so that one slow answer does not shut its client out for long.
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

    /// A client whose calls take 500 us waits while another makes so many that take 5.
    fn time_is_shared(expensive: SocketAddr, cheap: SocketAddr, calls_for_one: u32) {
        let mut queue = Admission::new(10_000, 10);
        let mut calls = [0_u32; 2];
        for n in [0, 1].repeat(4) {
            queue.offer([expensive, cheap][n], n).unwrap();
        }
        for _ in 0..100_000 {
            // Who was answered asks again.
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

    /// Whatever comes in whatever order, the numbers agree with the queues.
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
