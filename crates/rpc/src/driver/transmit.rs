//! Sending of datagrams: few system calls for many calls.
//!
//! 1. The protocol returns runs of datagrams to one destination. A long run (bulk data) is sent
//!    unchanged. Short runs, replies of a few bytes each, are gathered by destination. Datagrams
//!    for one client process leave as one segmented send, even if they belong to many calls and
//!    connections.
//! 2. A segmented send has datagrams of one size; only the last may be shorter. Datagrams are
//!    therefore gathered by size too. Of requests of three packets each, all full ones make one run
//!    and the short ones at their ends another. Runs leave in the order in which they were begun. A
//!    datagram never joins a run that precedes one with data of its own call, so calls keep their
//!    order.
//! 3. A turn sends for a bounded time. With open windows to many peers there may be tens of
//!    megabytes to send, and other work must not wait for all of it.
//! 4. If a socket is full, the rest waits here, and the protocol is not polled further.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::task::{Context, Poll};

use cellar_rx::TransmitBuffer;

use super::Driver;
use crate::limits::SEND_TIME_MAX;
use crate::socket::{SendOutcome, ShardSocket};

/// Datagrams of one size to one destination.
#[derive(Debug)]
pub(super) struct Run {
    destination: SocketAddr,
    source: Option<IpAddr>,
    segment: usize,
    bytes: Vec<u8>,
    /// The calls that they belong to, as returned by [`call_of`].
    calls: Vec<u32>,
}

/// Buffers in which a shard's ports gather datagrams, in turn.
pub(super) struct Outbox {
    buffer: TransmitBuffer,
    runs: VecDeque<Run>,
    spare: Vec<Run>,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self {
            buffer: TransmitBuffer::new(SEGMENTS_MAX),
            runs: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    /// Adds the short run in the buffer to the gathered runs.
    fn gather(&mut self) {
        let segment = self.buffer.segment_size().max(1);
        let bytes = self.buffer.bytes();
        let full = bytes.len() - bytes.len() % segment;
        let (full, last) = bytes.split_at(full);
        for (bytes, segment) in [(full, segment), (last, last.len())] {
            if !bytes.is_empty() {
                let (to, from) = (self.buffer.destination(), self.buffer.source());
                join_run(&mut self.runs, &mut self.spare, to, from, bytes, segment);
            }
        }
    }

    /// Returns the next run to send.
    fn take_next(&mut self) -> Option<Run> {
        let mut run = self.runs.pop_front()?;
        // A single shorter datagram that comes next can be the last of this run.
        let next = self.runs.iter().position(|next| next.goes_where(&run));
        if let Some(next) = next.filter(|&next| run.ends_with(&self.runs[next]))
            && let Some(last) = self.runs.remove(next)
        {
            run.bytes.extend_from_slice(&last.bytes);
            self.recycle(last);
        }
        Some(run)
    }

    fn recycle(&mut self, run: Run) {
        if self.spare.len() < RUNS_MAX {
            self.spare.push(run);
        }
    }
}

/// Adds datagrams of one size and one call to a run, a new one if necessary.
fn join_run(
    runs: &mut VecDeque<Run>,
    spare: &mut Vec<Run>,
    destination: SocketAddr,
    source: Option<IpAddr>,
    bytes: &[u8],
    segment: usize,
) {
    let call = call_of(bytes);
    let same = |run: &&mut Run| run.destination == destination && run.source == source;
    for run in runs.iter_mut().rev().filter(same) {
        let known = run.calls.contains(&call);
        if run.takes(bytes.len(), segment) {
            run.bytes.extend_from_slice(bytes);
            if !known {
                run.calls.push(call);
            }
            return;
        }
        if known {
            break;
        }
    }
    let (mut copy, mut calls) = spare
        .pop()
        .map_or_else(Default::default, |run| (run.bytes, run.calls));
    copy.clear();
    copy.extend_from_slice(bytes);
    calls.clear();
    calls.push(call);
    runs.push_back(Run {
        destination,
        source,
        segment,
        bytes: copy,
        calls,
    });
}

/// Returns the connection and channel of a datagram: its connection id, at offset 4.
fn call_of(datagram: &[u8]) -> u32 {
    let id = datagram.get(4..8).and_then(<[u8]>::first_chunk::<4>);
    id.map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

impl Run {
    /// Whether datagrams of `segment` bytes, `len` in total, can be appended to this run.
    fn takes(&self, len: usize, segment: usize) -> bool {
        segment == self.segment && self.has_room(len)
    }

    /// Whether `last` is one datagram that can be the last, shorter one of this run.
    fn ends_with(&self, last: &Self) -> bool {
        let one = last.bytes.len() == last.segment && last.segment < self.segment;
        one && self.has_room(last.segment)
    }

    fn has_room(&self, len: usize) -> bool {
        let count = (self.bytes.len() + len).div_ceil(self.segment);
        count <= SEGMENTS_MAX && self.bytes.len() + len <= RUN_BYTES_MAX
    }

    fn goes_where(&self, other: &Self) -> bool {
        (self.destination, self.source) == (other.destination, other.source)
    }
}

impl Driver {
    /// Sends the protocol's output, until there is no more, a socket is full or the time of the
    /// turn is used up. Returns whether there is more to send in the next turn.
    pub(super) fn transmit(
        &self,
        cx: &mut Context<'_>,
        outbox: &mut Outbox,
        unsent: &mut VecDeque<Run>,
    ) -> bool {
        while let Some(run) = unsent.front() {
            if !self.send(cx, run.destination, run.source, &run.bytes, run.segment) {
                return false;
            }
            unsent.pop_front();
        }
        let mut now = self.clock.now();
        let until = now + SEND_TIME_MAX;
        while self
            .state
            .borrow_mut()
            .endpoint
            .poll_transmit(now, &mut outbox.buffer)
        {
            if outbox.buffer.bytes().len() < DIRECT_BYTES_MIN {
                outbox.gather();
                if outbox.runs.len() >= RUNS_MAX && !self.flush(cx, outbox, unsent) {
                    return false;
                }
                continue;
            }
            if !self.flush(cx, outbox, unsent) || !self.send_buffer(cx, outbox) {
                // Datagrams that were not gathered yet follow those that were.
                outbox.gather();
                unsent.append(&mut outbox.runs);
                return false;
            }
            // Reading the clock costs little compared with a long run.
            now = self.clock.now();
            if now >= until {
                return self.flush(cx, outbox, unsent);
            }
        }
        self.flush(cx, outbox, unsent);
        false
    }

    /// Sends the gathered runs; returns false if a socket is full, with the rest in `unsent`.
    fn flush(&self, cx: &mut Context<'_>, outbox: &mut Outbox, unsent: &mut VecDeque<Run>) -> bool {
        while let Some(run) = outbox.take_next() {
            if !self.send(cx, run.destination, run.source, &run.bytes, run.segment) {
                unsent.push_back(run);
                unsent.append(&mut outbox.runs);
                return false;
            }
            outbox.recycle(run);
        }
        true
    }

    fn send_buffer(&self, cx: &mut Context<'_>, outbox: &Outbox) -> bool {
        let buffer = &outbox.buffer;
        let (destination, source) = (buffer.destination(), buffer.source());
        self.send(
            cx,
            destination,
            source,
            buffer.bytes(),
            buffer.segment_size(),
        )
    }

    /// Sends one run. Returns false if its socket is full; the task will be woken when it is
    /// writable.
    fn send(
        &self,
        cx: &mut Context<'_>,
        destination: SocketAddr,
        source: Option<IpAddr>,
        bytes: &[u8],
        segment: usize,
    ) -> bool {
        let sockets = self.sockets();
        let Some(socket) = choose(&sockets, destination.ip(), source) else {
            self.send_failed(SendOutcome::Unreachable, destination, segment);
            return true;
        };
        // A path that stopped accepting segmented sends still accepts single datagrams.
        let single = segment < bytes.len() && socket.segments_max() == 1;
        let step = if single { segment } else { bytes.len() };
        for piece in bytes.chunks(step.max(1)) {
            loop {
                self.counters.send_calls.add(1);
                match socket.send(destination, source, piece, segment) {
                    SendOutcome::Sent => break,
                    SendOutcome::Full => match socket.poll_writable(cx) {
                        Poll::Ready(Ok(())) => {}
                        Poll::Ready(Err(_)) => break,
                        Poll::Pending => return false,
                    },
                    failure => {
                        self.send_failed(failure, destination, segment);
                        break;
                    }
                }
            }
        }
        true
    }

    fn send_failed(&self, failure: SendOutcome, destination: SocketAddr, segment: usize) {
        self.counters.send_failures.add(1);
        let now = self.turn_time.get();
        let endpoint = &mut self.state.borrow_mut().endpoint;
        match failure {
            SendOutcome::TooBig => endpoint.handle_too_big(now, destination, segment),
            SendOutcome::Unreachable => endpoint.handle_unreachable(now, destination),
            SendOutcome::Sent | SendOutcome::Full | SendOutcome::Failed => {}
        }
    }
}

/// Returns the socket that reaches `destination`, and is bound to `source` if there is a choice.
fn choose(
    sockets: &[ShardSocket],
    destination: IpAddr,
    source: Option<IpAddr>,
) -> Option<&ShardSocket> {
    let mut found = None;
    for socket in sockets {
        if socket.bound().is_ipv4() != destination.is_ipv4() {
            continue;
        }
        if source == Some(socket.bound()) {
            return Some(socket);
        }
        found = found.or(Some(socket));
    }
    found
}

/// Most datagrams in one segmented send.
const SEGMENTS_MAX: usize = 64;
/// Largest UDP payload over IPv4, which also limits a segmented send.
const RUN_BYTES_MAX: usize = 65_507;
/// Runs of at least this size are sent without gathering.
const DIRECT_BYTES_MIN: usize = 8192;
/// Most runs that are gathered before sending.
const RUNS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a datagram of a call.
    fn datagram(call: u32, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        bytes[4..8].copy_from_slice(&call.to_be_bytes());
        bytes[8] = call as u8;
        bytes
    }

    /// Returns the datagrams that leave, run by run, after those of `given`: port, and for each
    /// datagram its call and size.
    fn sent(given: &[(u16, u32, &[usize])]) -> Vec<(u16, Vec<(u8, usize)>)> {
        let (mut runs, mut spare) = (VecDeque::new(), Vec::new());
        for (port, call, sizes) in given {
            let to = SocketAddr::from(([127, 0, 0, 1], *port));
            for &size in *sizes {
                let bytes = datagram(*call, size);
                join_run(&mut runs, &mut spare, to, None, &bytes, size);
            }
        }
        let mut outbox = Outbox::new();
        outbox.runs = runs;
        let all = std::iter::from_fn(|| outbox.take_next());
        all.map(|run| {
            let cut = run.bytes.chunks(run.segment);
            let datagrams = cut.map(|bytes| (bytes[8], bytes.len())).collect();
            (run.destination.port(), datagrams)
        })
        .collect()
    }

    #[test]
    fn requests_of_several_packets_leave_as_two_runs() {
        let sizes: &[usize] = &[1440, 1440, 1200];
        let two = sent(&[(1, 4, sizes), (1, 5, sizes)]);
        let full = vec![(4, 1440), (4, 1440), (5, 1440), (5, 1440)];
        assert_eq!(two, [(1, full), (1, vec![(4, 1200), (5, 1200)])]);
        let one = vec![(4, 1440), (4, 1440), (4, 1200)];
        assert_eq!(sent(&[(1, 4, sizes)]), [(1, one)]);
        let apart = sent(&[(1, 4, sizes), (2, 5, sizes)]);
        assert_eq!(apart.len(), 2, "not across destinations");
    }

    #[test]
    fn a_call_keeps_its_order() {
        let out = sent(&[
            (1, 4, &[100]),
            (1, 5, &[60]),
            (1, 5, &[100]),
            (1, 6, &[100]),
        ]);
        let first = vec![(4, 100), (6, 100)];
        let order: Vec<_> = out.iter().flat_map(|(_, run)| run).collect();
        let five: Vec<_> = order.iter().filter(|(call, _)| *call == 5).collect();
        assert_eq!(five, [&&(5, 60), &&(5, 100)]);
        assert!(
            out.iter().all(|(_, run)| *run != first),
            "6 joins the newest"
        );
        let short = sent(&[(1, 4, &[100]), (1, 5, &[60, 100]), (1, 4, &[60])]);
        let order: Vec<_> = short.iter().flat_map(|(_, run)| run).collect();
        let four: Vec<_> = order.iter().filter(|(call, _)| *call == 4).collect();
        assert_eq!(four, [&&(4, 100), &&(4, 60)]);
    }

    #[test]
    fn a_run_is_what_the_kernel_takes() {
        let run = |bytes: usize, segment: usize| Run {
            destination: SocketAddr::from(([127, 0, 0, 1], 1)),
            source: None,
            segment,
            bytes: vec![0; bytes],
            calls: Vec::new(),
        };
        assert!(run(63 * 36, 36).takes(36, 36));
        assert!(!run(64 * 36, 36).takes(36, 36));
        assert!(!run(65_000, 1300).takes(1300, 1300));
        assert!(run(100, 100).ends_with(&run(60, 60)));
        assert!(!run(100, 100).ends_with(&run(120, 60)), "two of them");
        assert!(!run(100, 100).ends_with(&run(101, 101)), "a longer one");
    }
}
