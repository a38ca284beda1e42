//! The pair harness: a seeded network that loses, delays, reorders, duplicates, corrupts and
//! replays.
//!
//! Everything runs in virtual time and in one thread, so a run depends only on the seed. A failing
//! test prints it; `CELLAR_SEED=n cargo test -p cellar-rx NAME` repeats the run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::packet::{Ack, AckReason, Flags, Header, PacketType};
use crate::random::Random;
use crate::*;

/// Behaviour of the network; probabilities in thousandths.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) delay: Duration,
    /// Random addition to the delay, uniformly distributed; causes reordering.
    pub(crate) jitter: Duration,
    pub(crate) loss: u64,
    pub(crate) duplicate: u64,
    pub(crate) corrupt: u64,
    /// Probability that an old datagram is sent again.
    pub(crate) replay: u64,
    /// Bits per second; 0: unlimited.
    pub(crate) rate: u64,
    /// Queue of the bottleneck, bytes.
    pub(crate) queue: u64,
    /// Largest UDP payload that is delivered, bytes.
    pub(crate) mtu: usize,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            delay: Duration::from_micros(50),
            jitter: Duration::ZERO,
            loss: 0,
            duplicate: 0,
            corrupt: 0,
            replay: 0,
            rate: 0,
            queue: 256 << 10,
            mtu: 1472,
        }
    }
}

type Arrival = Reverse<(Time, u64, SocketAddr, SocketAddr, Vec<u8>)>;

/// Prints the seed when a test fails.
pub(crate) struct Seed(pub(crate) u64);

impl Seed {
    pub(crate) fn from_environment(default: u64) -> Self {
        let seed = std::env::var("CELLAR_SEED")
            .ok()
            .and_then(|s| s.parse().ok());
        Self(seed.unwrap_or(default))
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("to repeat: CELLAR_SEED={}", self.0);
        }
    }
}

/// Behaviour of the server for a call.
#[derive(Clone)]
pub(crate) enum Answer {
    /// Echoes the request.
    Echo,
    /// Sends the number of request bytes, big-endian.
    Count,
    /// Sends this many bytes of the pattern.
    Bytes(usize),
    /// Never answers.
    Silence,
    /// Aborts with this code once the request is complete.
    Abort(i32),
    /// Refuses the call at once.
    Refuse(Refusal),
    /// Sends an empty answer after this time.
    Late(Duration),
}

/// One end of the network.
pub(crate) struct Node {
    pub(crate) endpoint: Endpoint,
    pub(crate) address: SocketAddr,
    pub(crate) answer: Answer,
    requests: BTreeMap<CallId, Vec<u8>>,
    replies: BTreeMap<CallId, (Vec<u8>, usize)>,
    late: Vec<(Time, CallId)>,
    pub(crate) served: usize,
    pub(crate) results: BTreeMap<CallId, Result<Vec<u8>, i32>>,
    pub(crate) closed: usize,
    pub(crate) failed_connections: Vec<i32>,
    pub(crate) debug_answers: usize,
}

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) nodes: Vec<Node>,
    pub(crate) link: Link,
    arrivals: BinaryHeap<Arrival>,
    random: Random,
    sequence: u64,
    busy_until: BTreeMap<SocketAddr, Time>,
    old: Vec<(SocketAddr, SocketAddr, Vec<u8>)>,
    buffer: TransmitBuffer,
    /// First packet and previous packet of the last ACK of each call.
    acked: BTreeMap<(SocketAddr, u32, u32, u32), (u32, u32)>,
    /// Datagrams sent: time, sender, bytes.
    pub(crate) log: Option<Vec<(Time, SocketAddr, Vec<u8>)>>,
    pub(crate) dropped: usize,
    pub(crate) delivered_bytes: u64,
}

pub(crate) const SERVICE: u16 = 147;

pub(crate) fn address(n: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, n], 7000 + u16::from(n)))
}

pub(crate) fn null_service(reach_check: bool) -> ServiceConfig {
    ServiceConfig {
        id: SERVICE,
        security: vec![(0, Arc::new(NullSecurity))],
        reach_check,
        idle_dead_time: None,
    }
}

impl World {
    pub(crate) fn new(seed: u64, link: Link) -> Self {
        Self::with_configs(seed, link, Config::default(), Config::default())
    }

    /// Node 0 is the client, node 1 the server.
    pub(crate) fn with_configs(seed: u64, link: Link, client: Config, server: Config) -> Self {
        let mut random = Random::new(seed);
        let mut node = |config: Config, n: u8| Node {
            endpoint: Endpoint::new(config, random.next()),
            address: address(n),
            answer: Answer::Echo,
            requests: BTreeMap::new(),
            replies: BTreeMap::new(),
            late: Vec::new(),
            served: 0,
            results: BTreeMap::new(),
            closed: 0,
            failed_connections: Vec::new(),
            debug_answers: 0,
        };
        let mut nodes = vec![node(client, 1), node(server, 2)];
        nodes[1].endpoint.add_service(null_service(false));
        Self {
            now: Time::from_micros(1),
            nodes,
            link,
            arrivals: BinaryHeap::new(),
            random,
            sequence: 0,
            busy_until: BTreeMap::new(),
            old: Vec::new(),
            buffer: TransmitBuffer::new(64),
            acked: BTreeMap::new(),
            log: None,
            dropped: 0,
            delivered_bytes: 0,
        }
    }

    pub(crate) fn connect(&mut self) -> ConnectionId {
        let to = self.nodes[1].address;
        let now = self.now;
        self.nodes[0].endpoint.connect(
            now,
            to,
            SERVICE,
            Box::new(NullSecurity),
            ConnectionOptions::default(),
        )
    }

    /// Starts a call and writes the whole request.
    pub(crate) fn call(&mut self, connection: ConnectionId, request: &[u8]) -> CallId {
        let now = self.now;
        let client = &mut self.nodes[0];
        let call = client
            .endpoint
            .start_call(now, connection)
            .expect("channel");
        client.replies.insert(call, (request.to_vec(), 0));
        client.requests.insert(call, Vec::new());
        client.work(now, call);
        call
    }

    /// Replaces the server by a new process on the same port, without any state.
    pub(crate) fn restart_server(&mut self) {
        let config = Config {
            debug: DebugMode::Answer,
            ..Config::default()
        };
        let endpoint = Endpoint::new(config, self.random.next());
        let node = &mut self.nodes[1];
        node.endpoint = endpoint;
        node.endpoint.add_service(null_service(false));
        node.requests.clear();
        node.replies.clear();
        node.late.clear();
        let address = node.address;
        self.acked.retain(|(from, ..), _| *from != address);
    }

    fn chance(&mut self, thousandths: u64) -> bool {
        thousandths > 0 && self.random.next() % 1000 < thousandths
    }

    pub(crate) fn inject(&mut self, from: SocketAddr, to: SocketAddr, bytes: Vec<u8>) {
        self.sequence += 1;
        let at = self.now;
        self.arrivals
            .push(Reverse((at, self.sequence, to, from, bytes)));
    }

    /// Checks every packet of every test for what stock peers reject (rx-wire facts 2.2, 2.3).
    fn check_manners(&mut self, from: SocketAddr, bytes: &[u8]) {
        let header = Header::decode(bytes).expect("a header");
        let (flags, kind) = (header.flags, header.packet_type);
        let bare = [PacketType::ABORT, PacketType::DEBUG, PacketType::VERSION].contains(&kind);
        assert!(header.serial > 0 || bare);
        let server = !header.from_client();
        if kind == PacketType::DATA {
            assert!(header.seq > 0);
            let last = flags.has(Flags::LAST_PACKET);
            assert!(
                !(server && last && flags.has(Flags::REQUEST_ACK)),
                "requests an ACK at the end of a reply"
            );
        } else if kind != PacketType::DEBUG && kind != PacketType::VERSION {
            assert_eq!((header.seq, header.checksum), (0, 0));
        }
        if kind != PacketType::ACK {
            return;
        }
        let ack = Ack::decode(&bytes[28..]).expect("an ACK");
        let fatal =
            ack.reason == AckReason::EXCEEDS_WINDOW || ack.reason == AckReason::OUT_OF_SEQUENCE;
        assert!(
            !(fatal && ack.previous_packet == 0),
            "kAFS would end the call"
        );
        assert!(
            ack.trailer
                .is_some_and(|t| t.jumbo_max.is_some() && t.window.unwrap() >= 1)
        );
        assert_eq!(ack.reason == AckReason::PING, flags.has(Flags::REQUEST_ACK));
        assert!(ack.acks.len() == 255 || ack.acks.last().is_none_or(|last| *last == 1));
        let key = (from, header.epoch, header.cid, header.call_number);
        let (first, previous) = self
            .acked
            .insert(key, (ack.first_packet, ack.previous_packet))
            .unwrap_or((0, 0));
        assert!(
            ack.first_packet >= first && ack.previous_packet >= previous,
            "an ACK went back"
        );
        assert!(ack.first_packet <= ack.previous_packet + 1);
    }

    fn put_on_wire(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        self.check_manners(from, bytes);
        if let Some(log) = &mut self.log {
            log.push((self.now, from, bytes.to_vec()));
        }
        let loss = self.link.loss;
        let replay = self.link.replay;
        if bytes.len() > self.link.mtu || self.chance(loss) {
            self.dropped += 1;
            return;
        }
        let mut leaves = self.now;
        if self.link.rate > 0 {
            let busy = self.busy_until.entry(from).or_insert(Time::ZERO);
            let start = (*busy).max(self.now);
            let waiting = start.since(self.now).as_micros() as u64 * self.link.rate / 8_000_000;
            if waiting > self.link.queue {
                self.dropped += 1;
                return;
            }
            let wire = (bytes.len() as u64 + 28) * 8_000_000 / self.link.rate;
            *busy = start + Duration::from_micros(wire.max(1));
            leaves = *busy;
        }
        let copies = 1 + u64::from(self.chance(self.link.duplicate));
        for _ in 0..copies {
            let jitter = self.link.jitter.as_micros() as u64;
            let jitter = if jitter > 0 {
                self.random.next() % jitter
            } else {
                0
            };
            let at = leaves + self.link.delay + Duration::from_micros(jitter);
            let mut datagram = bytes.to_vec();
            if self.chance(self.link.corrupt) {
                let at = (self.random.next() as usize) % datagram.len();
                datagram[at] ^= 1 << (self.random.next() % 8);
            }
            self.sequence += 1;
            self.arrivals
                .push(Reverse((at, self.sequence, to, from, datagram)));
        }
        if replay > 0 {
            self.old.push((from, to, bytes.to_vec()));
            if self.chance(replay) {
                let (from, to, bytes) =
                    self.old[(self.random.next() as usize) % self.old.len()].clone();
                self.sequence += 1;
                let at = leaves + self.link.delay;
                self.arrivals
                    .push(Reverse((at, self.sequence, to, from, bytes)));
            }
        }
    }

    /// Processes everything that is due at the current time.
    pub(crate) fn run_due(&mut self) {
        loop {
            for i in 0..self.nodes.len() {
                self.nodes[i].work_all(self.now);
                let from = self.nodes[i].address;
                let mut buffer = std::mem::replace(&mut self.buffer, TransmitBuffer::new(1));
                let mut rounds = 0;
                while self.nodes[i].endpoint.poll_transmit(self.now, &mut buffer) {
                    rounds += 1;
                    assert!(rounds < 100_000, "endpoint {i} sends without end");
                    let to = buffer.destination();
                    assert!(buffer.segment_size() > 0 && !buffer.bytes().is_empty());
                    for segment in buffer.segments() {
                        self.put_on_wire(from, to, segment);
                    }
                }
                self.buffer = buffer;
            }
            let mut arrived = false;
            while let Some(Reverse((at, ..))) = self.arrivals.peek() {
                if *at > self.now {
                    break;
                }
                let Some(Reverse((_, _, to, from, bytes))) = self.arrivals.pop() else {
                    break;
                };
                self.delivered_bytes += bytes.len() as u64;
                if let Some(node) = self.nodes.iter_mut().find(|node| node.address == to) {
                    let datagram = Bytes::from(bytes);
                    node.endpoint
                        .handle_datagram(self.now, from, None, datagram);
                    arrived = true;
                }
            }
            if !arrived {
                break;
            }
        }
    }

    /// Returns the time of the next arrival or timer.
    fn next(&mut self) -> Option<Time> {
        let mut next = self.arrivals.peek().map(|Reverse((at, ..))| *at);
        for node in &mut self.nodes {
            let late = node.late.iter().map(|(at, _)| *at).min();
            for time in [node.endpoint.poll_timeout(), late].into_iter().flatten() {
                next = Some(next.map_or(time, |n| n.min(time)));
            }
        }
        next
    }

    /// Runs until `done`; panics after `limit` of virtual time.
    pub(crate) fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&Self) -> bool) {
        let end = self.now + limit;
        loop {
            self.run_due();
            if done(self) {
                return;
            }
            let next = self.next().expect("a timer");
            assert!(next <= end, "not done after {limit:?}");
            self.now = self.now.max(next);
            for node in &mut self.nodes {
                node.endpoint.handle_timeout(self.now);
            }
        }
    }

    /// Runs for `time`.
    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.run_due();
            let Some(next) = self.next().filter(|next| *next <= end) else {
                break;
            };
            self.now = self.now.max(next);
            for node in &mut self.nodes {
                node.endpoint.handle_timeout(self.now);
            }
        }
        self.now = end;
        self.run_due();
    }

    /// Runs a call to its end.
    pub(crate) fn finish(&mut self, limit: Duration, call: CallId) -> Result<Vec<u8>, i32> {
        self.run_until(limit, |world| world.nodes[0].results.contains_key(&call));
        self.nodes[0].results.remove(&call).expect("result")
    }
}

impl Node {
    fn work_all(&mut self, now: Time) {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::NewCall { call, .. } => {
                    self.served += 1;
                    if let Answer::Refuse(how) = self.answer {
                        self.endpoint.refuse(now, call, how);
                        continue;
                    }
                    self.requests.insert(call, Vec::new());
                    self.work(now, call);
                }
                Event::Readable(call) | Event::Writable(call) => self.work(now, call),
                Event::CallFailed { call, code } => {
                    if self.requests.remove(&call).is_some() {
                        self.results.insert(call, Err(code));
                    }
                    self.replies.remove(&call);
                }
                Event::ConnectionFailed { code, .. } => self.failed_connections.push(code),
                Event::ConnectionClosed { .. } => self.closed += 1,
                Event::ChannelFree(_) => {}
                Event::Debug { .. } => self.debug_answers += 1,
            }
        }
        let due: Vec<CallId> = self
            .late
            .iter()
            .filter(|(at, _)| *at <= now)
            .map(|(_, call)| *call)
            .collect();
        self.late.retain(|(at, _)| *at > now);
        for call in due {
            self.endpoint.finish(now, call);
        }
    }

    /// Writes the rest of the reply, then reads the available data.
    fn work(&mut self, now: Time, call: CallId) {
        if let Some((data, written)) = self.replies.get_mut(&call) {
            let mut done = true;
            while *written < data.len() {
                let end = data.len().min(*written + 65_536);
                let chunk = Bytes::copy_from_slice(&data[*written..end]);
                match self.endpoint.write(now, call, chunk) {
                    Ok(WriteOutcome::Accepted) => *written = end,
                    Ok(WriteOutcome::Full(_)) => {
                        done = false;
                        break;
                    }
                    Err(_) => break,
                }
            }
            if done {
                self.endpoint.finish(now, call);
                self.replies.remove(&call);
            }
        }
        let Some(received) = self.requests.get_mut(&call) else {
            return;
        };
        loop {
            match self.endpoint.read(now, call) {
                ReadOutcome::Chunk(bytes) => received.extend_from_slice(&bytes),
                ReadOutcome::Pending => return,
                ReadOutcome::Failed(code) => {
                    self.requests.remove(&call);
                    self.results.insert(call, Err(code));
                    return;
                }
                ReadOutcome::End => break,
            }
        }
        let received = self.requests.remove(&call).expect("request");
        self.completed(now, call, received);
    }

    fn completed(&mut self, now: Time, call: CallId, received: Vec<u8>) {
        let reply = match self.answer.clone() {
            _ if self.address == address(1) => {
                self.results.insert(call, Ok(received));
                return;
            }
            Answer::Echo => received,
            Answer::Count => (received.len() as u32).to_be_bytes().to_vec(),
            Answer::Bytes(n) => pattern(n),
            Answer::Silence | Answer::Refuse(_) => return,
            Answer::Late(time) => {
                self.late.push((now + time, call));
                return;
            }
            Answer::Abort(code) => {
                self.endpoint.abort(now, call, code);
                return;
            }
        };
        self.replies.insert(call, (reply, 0));
        self.work(now, call);
    }
}

/// Bytes that depend on their position.
pub(crate) fn pattern(n: usize) -> Vec<u8> {
    (0..n)
        .map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ (i >> 16) as u8)
        .collect()
}
