//! Datagrams out: few system calls for many calls.
//!
//! 1. The protocol gives runs of datagrams to one destination. A long run (bulk data) is sent as it
//!    is. Short ones, replies of a few bytes each, are gathered by destination: what goes to one client
//!    process leaves as one segmented send, also when it belongs to many calls and connections.
//! 2. A segmented send has datagrams of one size, the last may be shorter. So a datagram of another
//!    size begins a new run; runs leave in the order in which they were begun, which keeps the order
//!    of the datagrams to each destination.
//! 3. When a socket is full, what is left waits here, and nothing more is asked of the protocol.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::task::{Context, Poll};

use cellar_rx::TransmitBuffer;

use super::Driver;
use crate::socket::{SendOutcome, ShardSocket};

/// Datagrams of one size (the last may be shorter) to one destination.
#[derive(Debug)]
pub(super) struct Run {
    destination: SocketAddr,
    source: Option<IpAddr>,
    segment: usize,
    bytes: Vec<u8>,
    /// The last datagram is of full size, and no run to the same destination was begun since.
    open: bool,
}

/// What a shard's ports take turns in using to gather datagrams.
pub(super) struct Outbox {
    buffer: TransmitBuffer,
    runs: VecDeque<Run>,
    spare: Vec<Vec<u8>>,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self {
            buffer: TransmitBuffer::new(SEGMENTS_MAX),
            runs: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    /// Adds the short run in the buffer to those that are gathered.
    fn gather(&mut self) {
        let Self {
            buffer,
            runs,
            spare,
        } = self;
        let (destination, source) = (buffer.destination(), buffer.source());
        let (bytes, segment) = (buffer.bytes(), buffer.segment_size().max(1));
        let same =
            |run: &&mut Run| run.open && run.destination == destination && run.source == source;
        if let Some(run) = runs.iter_mut().rev().find(same) {
            if run.takes(bytes.len(), segment) {
                run.bytes.extend_from_slice(bytes);
                run.open = run.bytes.len().is_multiple_of(run.segment);
                return;
            }
            run.open = false;
        }
        let mut copy = spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(bytes);
        runs.push_back(Run {
            destination,
            source,
            segment,
            open: bytes.len().is_multiple_of(segment),
            bytes: copy,
        });
    }

    fn recycle(&mut self, run: Run) {
        if self.spare.len() < RUNS_MAX {
            self.spare.push(run.bytes);
        }
    }
}

impl Run {
    /// Whether datagrams of `segment` bytes, `len` in all, can follow those of this run.
    fn takes(&self, len: usize, segment: usize) -> bool {
        // Several of another size cannot; a single shorter one can be the last.
        let fits = segment == self.segment || (len <= segment && len <= self.segment);
        let count = (self.bytes.len() / self.segment) + len.div_ceil(self.segment);
        fits && count <= SEGMENTS_MAX && self.bytes.len() + len <= RUN_BYTES_MAX
    }
}

impl Driver {
    /// Sends what the protocol has to send, until it has nothing more or a socket is full.
    pub(super) fn transmit(
        &self,
        cx: &mut Context<'_>,
        outbox: &mut Outbox,
        unsent: &mut VecDeque<Run>,
    ) {
        while let Some(run) = unsent.front() {
            if !self.send(cx, run.destination, run.source, &run.bytes, run.segment) {
                return;
            }
            unsent.pop_front();
        }
        let now = self.clock.now();
        while self
            .state
            .borrow_mut()
            .endpoint
            .poll_transmit(now, &mut outbox.buffer)
        {
            if outbox.buffer.bytes().len() < DIRECT_BYTES_MIN {
                outbox.gather();
                if outbox.runs.len() >= RUNS_MAX && !self.flush(cx, outbox, unsent) {
                    return;
                }
                continue;
            }
            if !self.flush(cx, outbox, unsent) || !self.send_buffer(cx, outbox) {
                // Datagrams that were not gathered yet: they come after those that were.
                outbox.gather();
                unsent.append(&mut outbox.runs);
                return;
            }
        }
        self.flush(cx, outbox, unsent);
    }

    /// Sends what is gathered; false when a socket is full, with the rest in `unsent`.
    fn flush(&self, cx: &mut Context<'_>, outbox: &mut Outbox, unsent: &mut VecDeque<Run>) -> bool {
        while let Some(run) = outbox.runs.pop_front() {
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

    /// Sends one run; false when its socket is full, and the task will be woken when it is not.
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
        // A path that stopped taking segmented sends still takes the datagrams one by one.
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

/// The socket that reaches `destination`, and is bound to `source` if there is a choice.
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

/// Datagrams that the kernel takes as one segmented send.
const SEGMENTS_MAX: usize = 64;
/// Largest UDP payload over IPv4, which is also the bound of a segmented send.
const RUN_BYTES_MAX: usize = 65_507;
/// Runs of this size are sent without being copied together.
const DIRECT_BYTES_MIN: usize = 8192;
/// Runs that are gathered before they are sent.
const RUNS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn run(bytes: usize, segment: usize) -> Run {
        Run {
            destination: "127.0.0.1:1".parse().unwrap(),
            source: None,
            segment,
            bytes: vec![0; bytes],
            open: true,
        }
    }

    #[test]
    fn a_run_has_datagrams_of_one_size_and_a_last_one() {
        assert!(run(100, 100).takes(100, 100));
        assert!(run(100, 100).takes(60, 60), "a shorter last one");
        assert!(run(100, 100).takes(250, 100), "several, the last shorter");
        assert!(!run(100, 100).takes(101, 101), "a longer one");
        assert!(!run(100, 100).takes(120, 60), "several shorter ones");
    }

    #[test]
    fn a_run_is_what_the_kernel_takes() {
        assert!(run(63 * 36, 36).takes(36, 36));
        assert!(!run(64 * 36, 36).takes(36, 36));
        assert!(!run(65_000, 1300).takes(1300, 1300));
    }
}
