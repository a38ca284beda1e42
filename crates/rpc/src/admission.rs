//! Admission: which of the calls that have arrived is run next, and which is refused.
//!
//! 1. Calls wait in a queue for each host (address without port), and hosts take turns. So a host
//!    that floods the server delays its own calls; another host's call waits for at most one call of
//!    each host that is active.
//! 2. Both resources, places in the queue and calls running, are shared by a moving limit: a host
//!    may hold as many as are still free. One host alone gets half of them; `n` hosts that take all
//!    they can get `1/(n+1)` each, and there is always room for the next host's first call.
//! 3. "Running" counts calls that use this machine: being answered, waiting for a disk or for
//!    another server. A call that waits for its own peer's packets is not counted, so slow clients
//!    cannot fill the server.
//! 4. What is refused is told so at once. Everything here is bounded and takes constant time.

use std::collections::VecDeque;
use std::net::IpAddr;

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
    waiting: VecDeque<T>,
    running: usize,
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

    /// Takes a call into its host's queue.
    ///
    /// # Errors
    /// The call comes back when its host has its share of the queue.
    pub(crate) fn offer(&mut self, host: IpAddr, call: T) -> Result<(), T> {
        let entry = self.hosts.entry(host).or_insert_with(|| Host {
            waiting: VecDeque::new(),
            running: 0,
        });
        if entry.waiting.len() >= self.waiting_max - self.waiting {
            if entry.waiting.is_empty() && entry.running == 0 {
                self.hosts.remove(&host);
            }
            return Err(call);
        }
        entry.waiting.push_back(call);
        self.waiting += 1;
        if entry.waiting.len() == 1 {
            self.turns.push_back(host);
        }
        Ok(())
    }

    /// The call that is to be run now, if any may.
    pub(crate) fn next(&mut self) -> Option<T> {
        while self.running < self.running_max {
            let host = self.turns.pop_front()?;
            let Some(entry) = self.hosts.get_mut(&host) else {
                continue;
            };
            if entry.running >= self.running_max - self.running {
                self.held.push_back(host);
                continue;
            }
            let Some(call) = entry.waiting.pop_front() else {
                continue;
            };
            self.waiting -= 1;
            if !entry.waiting.is_empty() {
                self.turns.push_back(host);
            } else if entry.running == 0 {
                self.hosts.remove(&host);
            }
            return Some(call);
        }
        None
    }

    /// A call of `host` uses this machine from now on, beyond its first poll.
    pub(crate) fn begin(&mut self, host: IpAddr) {
        self.running += 1;
        self.hosts
            .entry(host)
            .or_insert_with(|| Host {
                waiting: VecDeque::new(),
                running: 0,
            })
            .running += 1;
    }

    /// A call of `host` that had begun has ended, or waits for its peer. Answers whether a call
    /// that waits may now be run.
    pub(crate) fn end(&mut self, host: IpAddr) -> bool {
        self.running = self.running.saturating_sub(1);
        if let Some(entry) = self.hosts.get_mut(&host) {
            entry.running = entry.running.saturating_sub(1);
            if entry.running == 0 && entry.waiting.is_empty() {
                self.hosts.remove(&host);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn host(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    #[test]
    fn hosts_take_turns() {
        let mut queue = Admission::new(100, 10);
        for call in 0..10 {
            queue.offer(host(1), (1, call)).unwrap();
        }
        queue.offer(host(2), (2, 0)).unwrap();
        queue.offer(host(3), (3, 0)).unwrap();
        queue.offer(host(2), (2, 1)).unwrap();
        let order: Vec<_> = std::iter::from_fn(|| queue.next()).take(6).collect();
        assert_eq!(order, [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (1, 2)]);
    }

    #[test]
    fn a_flooding_host_leaves_room_in_the_queue() {
        let mut queue = Admission::new(100, 10);
        let taken = (0..1000)
            .filter(|call| queue.offer(host(1), *call).is_ok())
            .count();
        assert_eq!(taken, 50);
        let others = (0..1000)
            .filter(|call| queue.offer(host(2), *call).is_ok())
            .count();
        assert_eq!(others, 25);
        assert!(queue.offer(host(3), 0).is_ok());
        assert_eq!(queue.waiting(), 76);
    }

    #[test]
    fn a_host_runs_at_most_what_is_free() {
        let mut queue = Admission::new(1000, 8);
        for call in 0..100 {
            queue.offer(host(1), call).unwrap();
        }
        let mut run = 0;
        while queue.next().is_some() {
            queue.begin(host(1));
            run += 1;
        }
        assert_eq!(run, 4);
        queue.offer(host(2), 0).unwrap();
        assert_eq!(
            queue.next(),
            Some(0),
            "another host's first call is run at once"
        );
        queue.begin(host(2));
        assert_eq!(queue.next(), None);
        assert!(queue.end(host(1)));
        assert!(queue.end(host(2)));
        assert!(queue.next().is_some());
    }

    #[test]
    fn nothing_is_kept_of_hosts_that_are_done() {
        let mut queue = Admission::new(10, 4);
        for n in 0..200 {
            queue.offer(host(n), 0).unwrap();
            assert!(queue.next().is_some());
            queue.begin(host(n));
            queue.end(host(n));
        }
        assert!(queue.hosts.is_empty());
        assert_eq!((queue.waiting(), queue.running()), (0, 0));
        assert!(!queue.has_next());
    }

    #[test]
    fn a_refused_call_leaves_no_trace() {
        let mut queue = Admission::new(2, 2);
        queue.offer(host(1), 1).unwrap();
        queue.offer(host(2), 2).unwrap();
        assert_eq!(queue.offer(host(3), 3), Err(3));
        assert_eq!(queue.hosts.len(), 2);
    }
}
