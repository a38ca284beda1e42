//! A UDP relay that simulates a bad path, for systems whose kernel has no `netem`. It simulates
//! delay, jitter, loss, reordering, duplicates, and a rate limit with a queue.
//!
//! 1. A client sends to the relay's address. Each client gets its own socket towards the server, as
//!    behind an address translator. The server can thus distinguish the clients, and its answers
//!    reach them.
//! 2. Each direction is a line. The fate of a datagram is decided on arrival, from a seed: it is
//!    just the times at which copies of it leave. The same datagrams at the same times therefore
//!    have the same fate.
//! 3. One thread moves all datagrams. It manages about 50,000 datagrams per second; the rate of a
//!    line should stay below.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

/// One direction of a path. The default changes nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Path {
    /// Delay of each datagram.
    pub delay: Duration,
    /// Largest additional delay, uniformly distributed; datagrams stay in order.
    pub jitter: Duration,
    /// Part of the datagrams that is lost, 0 to 1.
    pub loss: f64,
    /// Part that arrives twice.
    pub duplicate: f64,
    /// Part that is overtaken: these take a tenth of the delay, and at least 1 ms, longer.
    pub reorder: f64,
    /// Rate of IP packets, bits per second; `None`: no limit.
    pub rate: Option<u64>,
    /// Size of the queue under the rate limit, bytes; further datagrams are dropped.
    pub queue_bytes: u64,
    /// Largest IP packet; larger ones are dropped silently.
    pub mtu: usize,
}

impl Default for Path {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            rate: None,
            queue_bytes: 512 * 1024,
            mtu: 1500,
        }
    }
}

/// Counters of the datagrams of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Arrived at the relay.
    pub arrived: u64,
    /// Lost at random.
    pub lost: u64,
    /// Dropped because the queue was full.
    pub overflowed: u64,
    /// Dropped because they exceeded the MTU.
    pub too_big: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// Delayed so that others overtake them.
    pub reordered: u64,
}

/// State of one direction.
#[derive(Debug)]
struct Line {
    path: Path,
    random: StdRng,
    /// Time at which the last accepted byte has passed the rate limit.
    free_at: Instant,
    /// Datagrams in order leave no earlier than this.
    last_due: Instant,
    counts: Counts,
}

impl Line {
    fn new(path: Path, seed: u64, now: Instant) -> Self {
        Self {
            path,
            random: StdRng::seed_from_u64(seed),
            free_at: now,
            last_due: now,
            counts: Counts::default(),
        }
    }

    /// Returns the times at which a datagram of `len` bytes of payload that arrives now and its
    /// copy leave.
    fn take(&mut self, now: Instant, len: usize) -> [Option<Instant>; 2] {
        let path = self.path;
        self.counts.arrived += 1;
        let size = len + HEADER_BYTES;
        if size > path.mtu {
            self.counts.too_big += 1;
            return [None; 2];
        }
        let mut sent = now;
        if let Some(rate) = path.rate {
            let start = self.free_at.max(now);
            let waiting = (start - now).as_secs_f64() * rate as f64 / 8.0;
            if waiting + size as f64 > path.queue_bytes as f64 {
                self.counts.overflowed += 1;
                return [None; 2];
            }
            sent = start + Duration::from_secs_f64(size as f64 * 8.0 / rate.max(1) as f64);
            self.free_at = sent;
        }
        // A lost datagram uses its part of the rate: it is lost behind the queue.
        if self.random.random_bool(path.loss.clamp(0.0, 1.0)) {
            self.counts.lost += 1;
            return [None; 2];
        }
        let mut due = sent + path.delay + path.jitter.mul_f64(self.random.random());
        if self.random.random_bool(path.reorder.clamp(0.0, 1.0)) {
            self.counts.reordered += 1;
            due += (path.delay / 10).max(Duration::from_millis(1));
        } else {
            due = due.max(self.last_due);
            self.last_due = due;
        }
        let twice = self.random.random_bool(path.duplicate.clamp(0.0, 1.0));
        self.counts.duplicated += u64::from(twice);
        [Some(due), twice.then_some(due)]
    }
}

/// A datagram in flight.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Underway {
    due: Instant,
    /// Keeps datagrams with equal times in the order of arrival.
    number: u64,
    flow: usize,
    back: bool,
    bytes: Vec<u8>,
}

/// A client, and its socket towards the server.
#[derive(Debug)]
struct Flow {
    client: SocketAddr,
    socket: UdpSocket,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    counts: [[AtomicU64; 6]; 2],
}

/// A relay that runs until it is dropped.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Relays datagrams from `listen` (port 0: any) to `server` over `there`, and the answers over
    /// `back`.
    ///
    /// # Errors
    /// `listen` cannot be bound.
    pub fn start(
        listen: SocketAddr,
        server: SocketAddr,
        there: Path,
        back: Path,
        seed: u64,
    ) -> io::Result<Self> {
        let socket = open(listen)?;
        let address = socket.local_addr()?;
        let shared = Arc::new(Shared::default());
        let now = Instant::now();
        let mover = Mover {
            socket,
            server,
            flows: Vec::new(),
            lines: [Line::new(there, seed, now), Line::new(back, !seed, now)],
            underway: BinaryHeap::new(),
            next: 0,
            buffer: vec![0; 65_536],
        };
        let for_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("relay".to_owned())
            .spawn(move || mover.run(&for_thread))?;
        Ok(Self {
            address,
            shared,
            thread: Some(thread),
        })
    }

    /// Address to which clients send.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the counters so far: to the server, and back.
    #[must_use]
    pub fn counts(&self) -> [Counts; 2] {
        let read = |line: &[AtomicU64; 6]| {
            let [arrived, lost, overflowed, too_big, duplicated, reordered] =
                line.each_ref().map(|count| count.load(Ordering::Relaxed));
            Counts {
                arrived,
                lost,
                overflowed,
                too_big,
                duplicated,
                reordered,
            }
        };
        self.shared.counts.each_ref().map(read)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its panic is on standard error already.
            let _panicked = thread.join();
        }
    }
}

/// State of the relay's thread.
struct Mover {
    socket: UdpSocket,
    server: SocketAddr,
    flows: Vec<Flow>,
    lines: [Line; 2],
    underway: BinaryHeap<Reverse<Underway>>,
    next: u64,
    buffer: Vec<u8>,
}

impl Mover {
    fn run(mut self, shared: &Shared) {
        while !shared.stop.load(Ordering::Relaxed) {
            self.take_requests();
            for flow in 0..self.flows.len() {
                self.take_answers(flow);
            }
            self.deliver();
            for (shown, line) in shared.counts.iter().zip(&self.lines) {
                let now = line.counts;
                let now = [
                    now.arrived,
                    now.lost,
                    now.overflowed,
                    now.too_big,
                    now.duplicated,
                    now.reordered,
                ];
                for (shown, now) in shown.iter().zip(now) {
                    shown.store(now, Ordering::Relaxed);
                }
            }
            self.wait();
        }
    }

    fn take_requests(&mut self) {
        for _ in 0..BATCH {
            let Ok((len, from)) = self.socket.recv_from(&mut self.buffer) else {
                return;
            };
            let known = self.flows.iter().position(|flow| flow.client == from);
            let Some(flow) = known.or_else(|| self.add_client(from)) else {
                continue;
            };
            self.send_on(flow, false, len);
        }
    }

    fn take_answers(&mut self, flow: usize) {
        for _ in 0..BATCH {
            // An error concerns an earlier datagram, or means that there is nothing more.
            let Ok(len) = self.flows[flow].socket.recv(&mut self.buffer) else {
                return;
            };
            self.send_on(flow, true, len);
        }
    }

    /// Adds a client. Beyond [`FLOWS_MAX`] clients, their datagrams are dropped.
    fn add_client(&mut self, client: SocketAddr) -> Option<usize> {
        if self.flows.len() >= FLOWS_MAX {
            return None;
        }
        let any = SocketAddr::new(self.socket.local_addr().ok()?.ip(), 0);
        let socket = open(any).ok()?;
        socket.connect(self.server).ok()?;
        self.flows.push(Flow { client, socket });
        Some(self.flows.len() - 1)
    }

    fn send_on(&mut self, flow: usize, back: bool, len: usize) {
        let times = self.lines[usize::from(back)].take(Instant::now(), len);
        for due in times.into_iter().flatten() {
            self.next += 1;
            self.underway.push(Reverse(Underway {
                due,
                number: self.next,
                flow,
                back,
                bytes: self.buffer[..len].to_vec(),
            }));
        }
    }

    fn deliver(&mut self) {
        while let Some(Reverse(first)) = self.underway.peek() {
            if first.due > Instant::now() {
                return;
            }
            let Some(Reverse(datagram)) = self.underway.pop() else {
                return;
            };
            let flow = &self.flows[datagram.flow];
            // A full socket loses datagrams, as a network does.
            let _sent = if datagram.back {
                self.socket.send_to(&datagram.bytes, flow.client)
            } else {
                flow.socket.send(&datagram.bytes)
            };
        }
    }

    /// Sleeps until a datagram arrives or is due.
    fn wait(&self) {
        let next = self.underway.peek().map_or(LOOK_UP, |Reverse(first)| {
            first
                .due
                .saturating_duration_since(Instant::now())
                .min(LOOK_UP)
        });
        let sockets = self.flows.iter().map(|flow| &flow.socket);
        let mut waited: Vec<_> = std::iter::once(&self.socket)
            .chain(sockets)
            .map(|socket| PollFd::new(socket, PollFlags::IN))
            .collect();
        let time = Timespec {
            tv_sec: 0,
            tv_nsec: next.subsec_nanos().into(),
        };
        // Whether interrupted or not: everything is checked again.
        let _ready = poll(&mut waited, Some(&time));
    }
}

/// Opens a non-blocking socket, with room for bursts if the system permits it.
fn open(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    if sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER_BYTES).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, BUFFER_BYTES)?;
    }
    Ok(socket)
}

/// Size of the IPv4 and UDP headers, bytes.
const HEADER_BYTES: usize = 28;
/// Datagrams received from one socket before the others are polled.
const BATCH: usize = 64;
/// Most concurrent clients.
const FLOWS_MAX: usize = 64;
/// Longest sleep of the thread: well below a second, since stopping takes as long.
const LOOK_UP: Duration = Duration::from_millis(20);
const BUFFER_BYTES: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn line(path: Path) -> (Line, Instant) {
        let now = Instant::now();
        (Line::new(path, 7, now), now)
    }

    #[test]
    fn a_rate_spaces_datagrams_and_a_full_queue_drops_them() {
        let path = Path {
            delay: Duration::from_millis(50),
            rate: Some(8_000_000),
            queue_bytes: 10_000,
            ..Path::default()
        };
        let (mut line, now) = line(path);
        // 1000 bytes with headers take a millisecond each, and ten of them fit.
        let dues: Vec<_> = (0..20).filter_map(|_| line.take(now, 972)[0]).collect();
        assert_eq!(dues.len(), 10);
        for (n, due) in dues.iter().enumerate() {
            let after = due.duration_since(now).as_micros() as i64;
            assert!((after - 51_000 - 1000 * n as i64).abs() < 10, "{after}");
        }
        assert_eq!(line.counts.overflowed, 10);
        let later = now + Duration::from_millis(5);
        assert!(line.take(later, 972)[0].is_some(), "half of it has left");
    }

    #[test]
    fn shares_are_about_what_was_asked_for() {
        let path = Path {
            loss: 0.01,
            duplicate: 0.1,
            reorder: 0.05,
            jitter: Duration::from_millis(3),
            ..Path::default()
        };
        let (mut line, now) = line(path);
        let mut overtaken = 0;
        let mut last = now;
        for n in 0..100_000 {
            if let Some(due) = line.take(now + Duration::from_micros(n * 10), 100)[0] {
                overtaken += u64::from(due < last);
                last = due;
            }
        }
        let counts = line.counts;
        assert!((800..1200).contains(&counts.lost), "{counts:?}");
        assert!((9_500..10_500).contains(&counts.duplicated), "{counts:?}");
        assert!((4_500..5_500).contains(&counts.reordered), "{counts:?}");
        assert!(overtaken > 1000, "{overtaken}");
    }

    #[test]
    fn only_what_is_said_to_be_out_of_order_is() {
        let path = Path {
            jitter: Duration::from_millis(5),
            ..Path::default()
        };
        let (mut line, now) = line(path);
        let dues: Vec<_> = (0..1000)
            .filter_map(|n| line.take(now + Duration::from_micros(n * 100), 100)[0])
            .collect();
        assert_eq!(dues.len(), 1000);
        assert!(dues.is_sorted());
    }

    #[test]
    fn too_large_packets_are_dropped() {
        let (mut line, now) = line(Path::default());
        assert!(line.take(now, 1472)[0].is_some());
        assert_eq!(line.take(now, 1473), [None; 2]);
        assert_eq!(line.counts.too_big, 1);
    }
}
