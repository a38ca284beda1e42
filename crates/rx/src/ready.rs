//! Queue of the calls with data to send, in the order of their turns.
//!
//! 1. Hosts (addresses) take turns, the peers (ports) of a host within its turns, and the calls of
//!    a peer within those. A turn is [`TURN_BYTES`]. Data for a peer therefore waits for at most
//!    one turn of each other host, or of each other peer at its own address. The number of their
//!    calls and the amount of their data do not matter.
//! 2. Short replies to one peer stay together and leave in one segmented send.
//! 3. Queues are indexed by slot number. If a slot is reused while its old entry still waits, the
//!    new occupant gets an early turn, or a turn with nothing to send. No entry is ever lost.

use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(crate) struct Ready {
    hosts: VecDeque<u32>,
    /// By host: its peers that have calls in the queue.
    peers: Vec<VecDeque<u32>>,
    /// By peer: its calls in the queue.
    calls: Vec<VecDeque<u32>>,
    /// Bytes sent so far in the turn of the first host's first peer; `None` if its turn has not
    /// begun.
    turn: Option<usize>,
}

impl Ready {
    /// Adds a call, which must not be here already.
    pub(crate) fn push(&mut self, host: u32, peer: u32, call: u32) {
        let calls = at(&mut self.calls, peer);
        calls.push_back(call);
        if calls.len() > 1 {
            return;
        }
        let peers = at(&mut self.peers, host);
        peers.push_back(peer);
        if peers.len() == 1 {
            self.hosts.push_back(host);
        }
    }

    /// Releases memory of hosts and peers with slots above the given bounds that have no calls
    /// here.
    pub(crate) fn shrink(&mut self, hosts: u32, peers: u32) {
        shrink(&mut self.peers, hosts);
        shrink(&mut self.calls, peers);
    }

    /// The next call.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        let host = *self.hosts.front()?;
        let peers = at(&mut self.peers, host);
        let peer = *peers.front()?;
        let calls = at(&mut self.calls, peer);
        let call = calls.pop_front();
        if calls.is_empty() {
            // The peer has no calls left; if it gets new ones now, they queue behind the others.
            self.next_peer(false);
        } else {
            self.turn.get_or_insert(0);
        }
        call
    }

    /// Records that `bytes` were sent for the call that [`Ready::pop`] returned last.
    pub(crate) fn sent(&mut self, bytes: usize) {
        if let Some(turn) = &mut self.turn {
            *turn += bytes;
            if *turn >= TURN_BYTES {
                self.next_peer(true);
            }
        }
    }

    /// Ends the turn of the first host and its first peer. `again`: the peer has more calls.
    fn next_peer(&mut self, again: bool) {
        self.turn = None;
        let Some(host) = self.hosts.pop_front() else {
            return;
        };
        let peers = at(&mut self.peers, host);
        let peer = peers.pop_front();
        if again {
            peers.extend(peer);
        }
        if !peers.is_empty() {
            self.hosts.push_back(host);
        }
    }
}

#[expect(
    clippy::indexing_slicing,
    reason = "the queue was extended to this slot"
)]
fn at(queues: &mut Vec<VecDeque<u32>>, slot: u32) -> &mut VecDeque<u32> {
    let slot = slot as usize;
    if queues.len() <= slot {
        queues.resize_with(slot + 1, VecDeque::new);
    }
    &mut queues[slot]
}

fn shrink(queues: &mut Vec<VecDeque<u32>>, bound: u32) {
    let waiting = queues.iter().rposition(|queue| !queue.is_empty());
    let used = waiting.map_or(0, |last| last + 1).max(bound as usize);
    queues.truncate(used);
    queues.shrink_to(2 * used);
    for queue in queues {
        queue.shrink_to(2 * queue.len());
    }
}

/// Bytes of one turn: about one segmented send.
const TURN_BYTES: usize = 65_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Pops all calls; each sends `bytes` once.
    fn order(ready: &mut Ready, bytes: usize) -> Vec<u32> {
        std::iter::from_fn(|| {
            let call = ready.pop();
            ready.sent(bytes);
            call
        })
        .collect()
    }

    #[test]
    fn hosts_take_turns_and_so_do_their_peers() {
        let mut ready = Ready::default();
        for call in 0..4 {
            ready.push(0, 0, call);
        }
        ready.push(0, 1, 10);
        ready.push(1, 2, 20);
        ready.push(1, 2, 21);
        assert_eq!(order(&mut ready, 65_000), [0, 20, 10, 21, 1, 2, 3]);
        assert!(ready.hosts.is_empty());
    }

    #[test]
    fn short_replies_to_one_peer_stay_together() {
        let mut ready = Ready::default();
        for call in 0..3 {
            ready.push(0, 0, call);
            ready.push(1, 1, 10 + call);
        }
        assert_eq!(order(&mut ready, 100), [0, 1, 2, 10, 11, 12]);
    }

    #[test]
    fn a_call_with_more_waits_for_the_others() {
        let mut ready = Ready::default();
        ready.push(0, 0, 1);
        ready.push(1, 1, 2);
        assert_eq!(ready.pop(), Some(1));
        ready.sent(65_000);
        ready.push(0, 0, 1);
        assert_eq!(ready.pop(), Some(2));
        assert_eq!(ready.pop(), Some(1));
        assert_eq!(ready.pop(), None);
    }
}
