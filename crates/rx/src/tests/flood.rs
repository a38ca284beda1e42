//! Floods of datagrams with forged addresses: service for honest clients, and cost.
//!
//! Two endpoints of one process share one port, as on two processors; a third serves another port.
//! All share the process's bounds. Honest clients connect meanwhile.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::harness::{SERVICE, Seed, address, null_service, pattern};
use crate::packet::{Flags, Header, PacketType};
use crate::random::Random;
use crate::*;

/// Round trip of honest clients.
const ROUND_TRIP: Duration = Duration::from_millis(10);
/// A request with this first byte gets a reply of [`LONG_REPLY`] bytes; any other gets a short one.
const LONG: u8 = 9;
const LONG_REPLY: usize = 20_000;
/// A request with this first byte occupies its handler forever.
const HANG: u8 = 5;

/// The endpoints of one process, and handlers that answer at once.
struct Process {
    endpoints: Vec<Endpoint>,
    shared: Arc<Shared>,
    now: Time,
    out: TransmitBuffer,
    /// Handlers with a part of the reply that did not fit yet.
    writers: Vec<(usize, CallId, Bytes)>,
    /// Handlers that are occupied forever.
    busy: std::collections::HashSet<(usize, CallId)>,
}

impl Process {
    fn new(seed: u64, limits: &Limits) -> Self {
        let shared = Shared::new(limits);
        let endpoint = |n: u64| {
            let config = Config {
                shared: Some(shared.clone()),
                limits: limits.clone(),
                ..Config::default()
            };
            let mut endpoint = Endpoint::new(config, seed + n);
            endpoint.add_service(null_service(false));
            endpoint
        };
        Self {
            endpoints: (0..3).map(endpoint).collect(),
            shared: shared.clone(),
            now: Time::from_micros(1),
            out: TransmitBuffer::new(64),
            writers: Vec::new(),
            busy: std::collections::HashSet::new(),
        }
    }

    /// Gives a datagram to the shard of the flooded port that its connection belongs to.
    fn take(&mut self, from: SocketAddr, datagram: Vec<u8>) {
        let cid = u32::from_be_bytes(datagram[4..8].try_into().unwrap());
        let shard = (cid >> 2) as usize % 2;
        self.endpoints[shard].handle_datagram(self.now, from, None, Bytes::from(datagram));
    }

    /// Answers all requests; returns the datagrams sent.
    fn work(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        let now = self.now;
        let mut sent = Vec::new();
        for (shard, endpoint) in self.endpoints.iter_mut().enumerate() {
            if endpoint.poll_timeout().is_some_and(|due| due <= now) {
                endpoint.handle_timeout(now);
            }
            while let Some(event) = endpoint.poll_event() {
                match event {
                    Event::NewCall { call, .. } => {
                        let mut request = Vec::new();
                        while let ReadOutcome::Chunk(bytes) = endpoint.read(now, call) {
                            request.extend_from_slice(&bytes);
                        }
                        if request.first() == Some(&HANG) {
                            self.busy.insert((shard, call));
                            continue;
                        }
                        let size = if request.first() == Some(&LONG) {
                            LONG_REPLY
                        } else {
                            100
                        };
                        self.writers.push((shard, call, Bytes::from(pattern(size))));
                    }
                    Event::CallFailed { call, .. } => {
                        self.busy.remove(&(shard, call));
                        self.writers
                            .retain(|(at, of, _)| (*at, *of) != (shard, call));
                    }
                    _ => {}
                }
            }
        }
        for (shard, call, reply) in std::mem::take(&mut self.writers) {
            let endpoint = &mut self.endpoints[shard];
            match endpoint.write(now, call, reply) {
                Ok(WriteOutcome::Accepted) => endpoint.finish(now, call),
                Ok(WriteOutcome::Full(reply)) => self.writers.push((shard, call, reply)),
                Err(_) => {}
            }
        }
        for endpoint in &mut self.endpoints {
            while endpoint.poll_transmit(now, &mut self.out) {
                for segment in self.out.segments() {
                    sent.push((self.out.destination(), segment.to_vec()));
                }
            }
        }
        sent
    }

    fn statistics(&self) -> Statistics {
        let mut sum = Statistics::default();
        for endpoint in &self.endpoints {
            sum.merge(&endpoint.statistics());
        }
        sum
    }
}

/// An honest client that makes one call.
struct Client {
    endpoint: Endpoint,
    address: SocketAddr,
    call: CallId,
    /// Start of its call; below, end and result.
    began: Time,
    reply: Vec<u8>,
    ended: Option<(Time, Result<usize, i32>)>,
}

impl Client {
    fn start(now: Time, number: u32, request: u8) -> Self {
        let config = Config {
            epoch: number.wrapping_mul(0x9e37_79b9),
            ..Config::default()
        };
        let mut endpoint = Endpoint::new(config, u64::from(number) + 1_000);
        let to = address(200);
        let options = ConnectionOptions::default();
        let connection = endpoint.connect(now, to, SERVICE, Box::new(NullSecurity), options);
        let call = endpoint.start_call(now, connection).unwrap();
        let outcome = endpoint.write(now, call, Bytes::from(vec![request; 4]));
        assert_eq!(outcome, Ok(WriteOutcome::Accepted));
        endpoint.finish(now, call);
        let ip = IpAddr::from([172, 16, (number >> 8) as u8, number as u8]);
        Self {
            endpoint,
            address: SocketAddr::new(ip, 40_000),
            call,
            began: now,
            reply: Vec::new(),
            ended: None,
        }
    }

    fn work(&mut self, now: Time) -> Vec<Vec<u8>> {
        if self.endpoint.poll_timeout().is_some_and(|due| due <= now) {
            self.endpoint.handle_timeout(now);
        }
        while self.endpoint.poll_event().is_some() {}
        while self.ended.is_none() {
            match self.endpoint.read(now, self.call) {
                ReadOutcome::Chunk(bytes) => self.reply.extend_from_slice(&bytes),
                ReadOutcome::Pending => break,
                ReadOutcome::End => {
                    assert_eq!(self.reply, pattern(self.reply.len()));
                    self.ended = Some((now, Ok(self.reply.len())));
                }
                ReadOutcome::Failed(code) => self.ended = Some((now, Err(code))),
            }
        }
        let mut sent = Vec::new();
        let mut out = TransmitBuffer::new(64);
        while self.endpoint.poll_transmit(now, &mut out) {
            sent.extend(out.segments().map(<[u8]>::to_vec));
        }
        sent
    }
}

/// The flood, the process, and the clients.
struct Storm {
    process: Process,
    clients: Vec<Client>,
    /// Number of clients so far.
    numbers: u32,
    random: Random,
    /// Datagrams in flight to and from clients: time, client, whether to the process, bytes.
    wire: std::collections::VecDeque<(Time, usize, bool, Vec<u8>)>,
    forged: u64,
}

const STEP: Duration = Duration::from_millis(1);

impl Storm {
    fn new(seed: u64, limits: &Limits) -> Self {
        Self {
            process: Process::new(seed, limits),
            clients: Vec::new(),
            numbers: 0,
            random: Random::new(seed ^ 0xf100d),
            wire: std::collections::VecDeque::new(),
            forged: 0,
        }
    }

    /// Sends one datagram of 60 bytes with a forged address.
    fn forge(&mut self, request: u8) {
        let random = self.random.next();
        let ip = (random as u32).to_be_bytes();
        let from = SocketAddr::from((ip, 1024 + (random >> 48) as u16 / 2));
        let random = self.random.next();
        let header = Header {
            epoch: (random >> 32) as u32 | 0x8000_0000,
            cid: random as u32 & !3,
            call_number: 1,
            seq: 1,
            serial: 1,
            packet_type: PacketType::DATA,
            flags: Flags(Flags::CLIENT_INITIATED | Flags::LAST_PACKET),
            user_status: 0,
            security_index: 0,
            checksum: 0,
            service: SERVICE,
        };
        let mut datagram = header.encode().to_vec();
        datagram.resize(60, request);
        self.forged += 1;
        self.process.take(from, datagram);
    }

    fn client(&mut self, request: u8) -> usize {
        let now = self.process.now;
        self.clients.push(Client::start(now, self.numbers, request));
        self.numbers += 1;
        self.clients.len() - 1
    }

    /// Runs one millisecond with `forged` forged datagrams.
    fn step(&mut self, forged: u64, request: u8) {
        self.process.now = self.process.now + STEP;
        let now = self.process.now;
        // In batches, as from a socket.
        for n in 0..forged.max(1) {
            if n < forged {
                self.forge(request);
            }
            if n % 16 == 15 || n + 1 >= forged {
                for (to, bytes) in self.process.work() {
                    if let Some(of) = self.clients.iter().position(|c| c.address == to) {
                        self.wire
                            .push_back((now + ROUND_TRIP / 2, of, false, bytes));
                    }
                }
            }
        }
        while self.wire.front().is_some_and(|(at, ..)| *at <= now) {
            let (_, of, inward, bytes) = self.wire.pop_front().unwrap();
            if inward {
                let from = self.clients[of].address;
                self.process.take(from, bytes);
            } else {
                let endpoint = &mut self.clients[of].endpoint;
                endpoint.handle_datagram(now, address(200), None, Bytes::from(bytes));
            }
        }
        for of in 0..self.clients.len() {
            for bytes in self.clients[of].work(now) {
                self.wire.push_back((now + ROUND_TRIP / 2, of, true, bytes));
            }
        }
    }

    fn run(&mut self, time: Duration, forged_per_second: u64, request: u8) {
        let mut owed = 0;
        for _ in 0..time.as_millis() {
            owed += forged_per_second;
            self.step(owed / 1_000, request);
            owed %= 1_000;
        }
    }

    /// Asserts that every client so far got its answer within `round_trips`.
    fn assert_served(&mut self, round_trips: u32) {
        for (number, client) in self.clients.drain(..).enumerate() {
            let (at, outcome) = client.ended.unwrap_or_else(|| panic!("{number} waits"));
            assert!(outcome.is_ok(), "{number}: {outcome:?}");
            let took = at.since(client.began);
            assert!(
                took <= ROUND_TRIP * round_trips + 3 * STEP,
                "{number}: {took:?}"
            );
        }
        self.wire.clear();
    }
}

/// 600,000 datagrams in 17 seconds, then 4,000 per second, while new clients connect.
#[test]
fn new_clients_are_answered_at_once_during_a_flood() {
    let seed = Seed::from_environment(300);
    let limits = Limits::default();
    let mut storm = Storm::new(seed.0, &limits);
    for second in 0..17u8 {
        storm.client(second % 2 * LONG);
        storm.run(Duration::from_secs(1), 600_000 / 17 + 1, 1);
        let statistics = storm.process.statistics();
        assert!(statistics.unverified as usize <= limits.unverified_connections);
        assert!(
            statistics.peers <= statistics.server_connections + 20,
            "{statistics:?}"
        );
        assert!(
            statistics.calls <= 2 * statistics.server_connections,
            "{statistics:?}"
        );
    }
    assert!(storm.forged >= 600_000, "{}", storm.forged);
    // A long reply takes one more round trip.
    storm.assert_served(2);
    let statistics = storm.process.statistics();
    assert!(statistics.evicted > 500_000, "{statistics:?}");
    assert_eq!(statistics.overload_aborts, 0);
    for n in 0..34 {
        storm.client(n % 2 * LONG);
        storm.run(Duration::from_millis(50), 4_000, 1);
    }
    storm.assert_served(2);
    // The other port has its own part of the bounds.
    let (connections, _) = storm.process.shared.unverified();
    assert!(
        connections < limits.unverified_connections * 5 / 6,
        "{connections}"
    );
    // Afterwards nothing is left.
    for _ in 0..20 {
        storm.process.now = storm.process.now + Duration::from_secs(60);
        storm.process.work();
    }
    let statistics = storm.process.statistics();
    assert_eq!(
        (
            statistics.server_connections,
            statistics.peers,
            statistics.calls
        ),
        (0, 0, 0)
    );
    assert_eq!(storm.process.shared.unverified(), (0, 0));
    for endpoint in &storm.process.endpoints {
        assert!(
            endpoint.table_entries() < 4_096,
            "{}",
            endpoint.table_entries()
        );
    }
}

/// Requests for long replies use memory while they wait for the proof; this is bounded too.
#[test]
fn long_replies_for_forged_addresses_hold_little() {
    let seed = Seed::from_environment(301);
    let limits = Limits {
        unverified_bytes: 8 << 20,
        ..Limits::default()
    };
    let mut storm = Storm::new(seed.0, &limits);
    for n in 0..20 {
        storm.client(n % 2 * LONG);
        storm.run(Duration::from_millis(100), 10_000, LONG);
        let (_, bytes) = storm.process.shared.unverified();
        assert!(bytes <= (8 << 20) + 2 * LONG_REPLY, "{bytes}");
        let held = storm.process.statistics().send_buffered;
        assert!(held <= bytes as u64 + 40_000, "{held} of {bytes}");
    }
    storm.assert_served(2);
}

/// Requests that occupy handlers: only few begin, and a client that proves its address does not
/// wait.
#[test]
fn busy_handlers_do_not_keep_new_clients_out() {
    let seed = Seed::from_environment(304);
    let limits = Limits {
        unverified_calls: 48,
        ..Limits::default()
    };
    let mut storm = Storm::new(seed.0, &limits);
    storm.run(Duration::from_millis(200), 10_000, HANG);
    for n in 0..20 {
        storm.client(n % 2 * LONG);
        storm.run(Duration::from_millis(100), 10_000, HANG);
        let busy = storm.process.busy.len();
        assert!((24..=48).contains(&busy), "{busy}");
    }
    // The ping takes the round trip that the long reply would have taken.
    storm.assert_served(2);
    assert_eq!(storm.process.statistics().overload_aborts, 0);
}

/// One address has a bound, however many ports it uses.
#[test]
fn one_address_has_a_share() {
    let seed = Seed::from_environment(302);
    let limits = Limits::default();
    let mut storm = Storm::new(seed.0, &limits);
    let early = storm.client(0);
    storm.run(Duration::from_millis(20), 0, 0);
    assert!(storm.clients[early].ended.is_some());
    let mut random = Random::new(seed.0);
    for port in 0..20_000u32 {
        let header = Header {
            epoch: 0x8000_0000 | random.next() as u32,
            cid: port << 2,
            call_number: 1,
            seq: 1,
            serial: 1,
            packet_type: PacketType::DATA,
            flags: Flags(Flags::CLIENT_INITIATED | Flags::LAST_PACKET),
            user_status: 0,
            security_index: 0,
            checksum: 0,
            service: SERVICE,
        };
        let from = SocketAddr::from(([10, 7, 7, 7], 1 + (port % 60_000) as u16));
        storm.process.take(from, header.encode().to_vec());
        if port % 16 == 0 {
            storm.process.work();
        }
    }
    let statistics = storm.process.statistics();
    assert_eq!(
        statistics.unverified as usize,
        2 * limits.unverified_per_host + 1
    );
    assert_eq!(statistics.overload_aborts, 0);
}

/// A verified client keeps its connection and its call during a flood, even as the oldest.
#[test]
fn a_verified_client_is_not_pushed_out() {
    let seed = Seed::from_environment(303);
    let mut storm = Storm::new(seed.0, &Limits::default());
    let client = storm.client(LONG);
    storm.run(Duration::from_millis(40), 0, 0);
    assert!(storm.clients[client].ended.is_some());
    storm.run(Duration::from_secs(2), 30_000, 1);
    let known = |endpoint: &Endpoint| {
        (0..endpoint.debug_connection_count(false)).any(|n| {
            let record = endpoint.debug_connection(n, false).unwrap();
            record.address == [172, 16, 0, 0] && record.port == 40_000
        })
    };
    assert!(storm.process.endpoints.iter().any(known));
}

/// The network reports a forged address as unreachable: its state is released at once.
#[test]
fn unreachable_forged_addresses_are_forgotten() {
    let seed = Seed::from_environment(305);
    let mut storm = Storm::new(seed.0, &Limits::default());
    let client = storm.client(LONG);
    storm.run(Duration::from_millis(40), 0, 0);
    assert!(storm.clients[client].ended.is_some());
    storm.run(Duration::from_millis(100), 10_000, LONG);
    let now = storm.process.now;
    for endpoint in &mut storm.process.endpoints {
        let peers: Vec<SocketAddr> = (0..endpoint.debug_peer_count())
            .filter_map(|n| endpoint.debug_peer(n))
            .map(|peer| SocketAddr::from((peer.address, peer.port)))
            .collect();
        for peer in peers {
            endpoint.handle_unreachable(now, peer);
        }
    }
    let statistics = storm.process.statistics();
    assert_eq!(
        (statistics.unverified, statistics.server_connections),
        (0, 1)
    );
    assert_eq!((statistics.send_buffered, statistics.peers), (0, 1));
    assert_eq!(storm.process.shared.unverified(), (0, 0));
}
