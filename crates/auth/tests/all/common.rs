//! Two endpoints and a network that loses, doubles and reorders datagrams as a seed says. An
//! attacker on the path sees each datagram, and may change it, drop it, or send others. Virtual
//! time, one thread.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use cellar_auth::{Authority, Enctype, Level, Policy, Principal, Token};
use cellar_rx::packet::{HEADER_SIZE, Header, PacketType};
use cellar_rx::{
    CallId, Caller, Config, ConnectionId, ConnectionOptions, Endpoint, Event, ReadOutcome,
    ServiceConfig, Time, TransmitBuffer,
};
use tempfile::TempDir;

pub(crate) const SERVICE: u16 = 52;
pub(crate) const CELL: &str = "demo.cell";
/// When virtual time begins, Unix time in seconds.
pub(crate) const START: u64 = 1_800_000_000;

pub(crate) fn address(n: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, n], 7003))
}

pub(crate) const CLIENT: u8 = 1;
pub(crate) const SERVER: u8 = 2;
pub(crate) const ATTACKER: u8 = 66;

/// A cell with a directory of its own and one key.
pub(crate) struct Cell {
    _directory: TempDir,
    pub(crate) authority: Authority,
}

impl Cell {
    pub(crate) fn new() -> Self {
        Self::with(Policy::default())
    }

    pub(crate) fn with(policy: Policy) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::open_with(directory.path(), CELL, policy).unwrap();
        authority.keys().add_random(Enctype::Aes256Sha1).unwrap();
        Self {
            _directory: directory,
            authority,
        }
    }

    pub(crate) fn token(&self) -> Token {
        self.authority.localauth_token().unwrap()
    }

    /// How often responses were refused with that name's code.
    pub(crate) fn refused(&self, name: &str) -> u64 {
        count(&self.authority.figures().refused, name)
    }

    /// How often connections were ended for a packet.
    pub(crate) fn broken(&self, name: &str) -> u64 {
        count(&self.authority.figures().broken, name)
    }
}

fn count(list: &[(cellar_wire::AbortCode, u64)], name: &str) -> u64 {
    list.iter()
        .find(|(code, _)| code.name() == Some(name))
        .map_or(0, |(_, count)| *count)
}

/// The abort code of that name.
pub(crate) fn code(name: &str) -> i32 {
    (19_270_400..19_270_413)
        .find(|&code| cellar_wire::AbortCode(code).name() == Some(name))
        .unwrap()
}

/// A small generator: the same seed, the same run.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        self.0 >> 33
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Datagram {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}

impl Datagram {
    pub(crate) fn header(&self) -> Header {
        Header::decode(&self.bytes).unwrap()
    }

    pub(crate) fn is(&self, packet_type: PacketType) -> bool {
        self.header().packet_type == packet_type
    }

    pub(crate) fn set_header(&mut self, header: &Header) {
        self.bytes[..HEADER_SIZE].copy_from_slice(&header.encode());
    }
}

struct Node {
    endpoint: Endpoint,
    address: SocketAddr,
    requests: BTreeMap<CallId, Vec<u8>>,
    principals: BTreeMap<CallId, Principal>,
}

/// Decides about a datagram on the path: `true` passes it on.
pub(crate) type OnPath = Box<dyn FnMut(&mut Datagram, &mut Vec<Datagram>) -> bool>;

pub(crate) struct Network {
    pub(crate) now: Time,
    nodes: Vec<Node>,
    arrivals: BinaryHeap<Reverse<(Time, u64, Datagram)>>,
    sequence: u64,
    random: Random,
    /// In thousandths.
    pub(crate) loss: u64,
    pub(crate) on_path: OnPath,
    /// Every datagram put on the wire, after `on_path`.
    pub(crate) log: Vec<Datagram>,
    pub(crate) results: BTreeMap<CallId, Result<Vec<u8>, i32>>,
    /// The callers of the calls that the server read to their end and answered, in order.
    pub(crate) callers: Vec<Principal>,
}

impl Network {
    pub(crate) fn new(cell: &Cell, seed: u64) -> Self {
        Self::with_epoch(cell, seed, 0x4000_0000)
    }

    /// With the upper bits of the client's epoch.
    pub(crate) fn with_epoch(cell: &Cell, seed: u64, epoch: u32) -> Self {
        Self::beginning(cell, seed, epoch, START)
    }

    /// With the Unix time at which virtual time begins.
    pub(crate) fn beginning(cell: &Cell, seed: u64, epoch: u32, start: u64) -> Self {
        let endpoint = |n: u8, seed| {
            let config = Config {
                unix_start_micros: start * 1_000_000,
                epoch: epoch + u32::from(n),
                ..Config::default()
            };
            Node {
                endpoint: Endpoint::new(config, seed),
                address: address(n),
                requests: BTreeMap::new(),
                principals: BTreeMap::new(),
            }
        };
        let mut nodes = vec![endpoint(CLIENT, seed), endpoint(SERVER, seed ^ 0x5a5a)];
        nodes[1].endpoint.add_service(service(cell));
        Self {
            now: Time::ZERO,
            nodes,
            arrivals: BinaryHeap::new(),
            sequence: 0,
            random: Random(seed),
            loss: 0,
            on_path: Box::new(|_, _| true),
            log: Vec::new(),
            results: BTreeMap::new(),
            callers: Vec::new(),
        }
    }

    /// The server loses all its state and starts again.
    pub(crate) fn restart_server(&mut self, cell: &Cell, seed: u64) {
        let config = Config {
            unix_start_micros: START * 1_000_000,
            epoch: 0x4000_0099,
            ..Config::default()
        };
        self.nodes[1].endpoint = Endpoint::new(config, seed);
        self.nodes[1].endpoint.add_service(service(cell));
        self.nodes[1].requests.clear();
    }

    pub(crate) fn connect(&mut self, token: &Token, level: Level) -> ConnectionId {
        let security = token.client_security(level);
        let now = self.now;
        self.nodes[0].endpoint.connect(
            now,
            address(SERVER),
            SERVICE,
            security,
            ConnectionOptions::default(),
        )
    }

    /// Starts a call; the server echoes the request.
    pub(crate) fn call(&mut self, connection: ConnectionId, request: &[u8]) -> CallId {
        let now = self.now;
        let endpoint = &mut self.nodes[0].endpoint;
        let call = endpoint.start_call(now, connection).unwrap();
        endpoint
            .write(now, call, Bytes::copy_from_slice(request))
            .unwrap();
        endpoint.finish(now, call);
        // Asks to be told when there is something.
        self.read(0, call);
        call
    }

    /// Makes a call and waits for what becomes of it.
    pub(crate) fn ask(&mut self, connection: ConnectionId, request: &[u8]) -> Result<Vec<u8>, i32> {
        let call = self.call(connection, request);
        self.wait(call)
    }

    pub(crate) fn wait(&mut self, call: CallId) -> Result<Vec<u8>, i32> {
        self.run(240, |network| network.results.contains_key(&call));
        self.results
            .remove(&call)
            .expect("an outcome within minutes")
    }

    /// Sends a datagram from anywhere, past the one on the path.
    pub(crate) fn inject(&mut self, datagram: Datagram) {
        let at = self.now;
        self.arrive(at, datagram);
    }

    fn arrive(&mut self, at: Time, datagram: Datagram) {
        self.sequence += 1;
        self.arrivals.push(Reverse((at, self.sequence, datagram)));
    }

    /// Lets virtual time pass until `done`, at most that many seconds.
    pub(crate) fn run(&mut self, seconds: u64, mut done: impl FnMut(&Self) -> bool) {
        let end = self.now.as_micros() + seconds * 1_000_000;
        loop {
            self.run_until_idle();
            if done(self) {
                return;
            }
            let timers = self.nodes.iter_mut();
            let timer = timers.filter_map(|node| node.endpoint.poll_timeout()).min();
            let arrival = self.arrivals.peek().map(|Reverse((at, ..))| *at);
            let Some(next) = [timer, arrival].into_iter().flatten().min() else {
                return;
            };
            if next.as_micros() > end {
                self.now = Time::from_micros(end);
                return;
            }
            self.now = self.now.max(next);
            while let Some(Reverse((at, ..))) = self.arrivals.peek()
                && *at <= self.now
            {
                let Some(Reverse((_, _, datagram))) = self.arrivals.pop() else {
                    break;
                };
                self.deliver(datagram);
            }
            let now = self.now;
            for node in &mut self.nodes {
                node.endpoint.handle_timeout(now);
            }
        }
    }

    fn deliver(&mut self, datagram: Datagram) {
        let now = self.now;
        let to = datagram.to;
        if let Some(node) = self.nodes.iter_mut().find(|node| node.address == to) {
            let bytes = Bytes::from(datagram.bytes);
            node.endpoint
                .handle_datagram(now, datagram.from, None, bytes);
        }
    }

    /// Works through events and sends until nothing is left to do at this moment.
    fn run_until_idle(&mut self) {
        let mut buffer = TransmitBuffer::new(16);
        let mut busy = true;
        while busy {
            busy = false;
            for at in 0..self.nodes.len() {
                while let Some(event) = self.nodes[at].endpoint.poll_event() {
                    busy = true;
                    self.work(at, event);
                }
                let now = self.now;
                while self.nodes[at].endpoint.poll_transmit(now, &mut buffer) {
                    busy = true;
                    let (from, to) = (self.nodes[at].address, buffer.destination());
                    let datagrams = buffer.segments().map(|bytes| Datagram {
                        from,
                        to,
                        bytes: bytes.to_vec(),
                    });
                    for datagram in datagrams.collect::<Vec<_>>() {
                        self.send(datagram);
                    }
                }
            }
        }
    }

    fn send(&mut self, mut datagram: Datagram) {
        let mut others = Vec::new();
        let passes = (self.on_path)(&mut datagram, &mut others);
        for other in others {
            let at = self.now;
            self.arrive(at, other);
        }
        if !passes {
            return;
        }
        self.log.push(datagram.clone());
        let copies = match self.random.next() % 1000 {
            chance if chance < self.loss => 0,
            chance if chance < self.loss + self.loss / 4 => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let jitter = if self.loss > 0 {
                self.random.next() % 400
            } else {
                0
            };
            let at = Time::from_micros(self.now.as_micros() + 50 + jitter);
            self.arrive(at, datagram.clone());
        }
    }

    fn work(&mut self, at: usize, event: Event) {
        match event {
            Event::NewCall {
                call, connection, ..
            } => {
                let info = self.nodes[at].endpoint.connection(connection).unwrap();
                let Caller::Principal(identity) = info.caller else {
                    panic!("rxkad identifies every caller");
                };
                let principal = identity.downcast::<Principal>().unwrap();
                self.nodes[at].principals.insert(call, (*principal).clone());
                self.nodes[at].requests.insert(call, Vec::new());
                self.read(at, call);
            }
            Event::Readable(call) => self.read(at, call),
            Event::CallFailed { call, code } => self.fail(at, call, code),
            _ => {}
        }
    }

    fn fail(&mut self, at: usize, call: CallId, code: i32) {
        self.nodes[at].requests.remove(&call);
        if at == 0 {
            self.results.insert(call, Err(code));
        }
    }

    fn read(&mut self, at: usize, call: CallId) {
        let now = self.now;
        loop {
            let node = &mut self.nodes[at];
            let bytes = node.requests.entry(call).or_default();
            match node.endpoint.read(now, call) {
                ReadOutcome::Chunk(chunk) => bytes.extend_from_slice(&chunk),
                ReadOutcome::Pending => return,
                ReadOutcome::Failed(code) => {
                    self.fail(at, call, code);
                    return;
                }
                ReadOutcome::End => break,
            }
        }
        let bytes = self.nodes[at].requests.remove(&call).unwrap_or_default();
        if at == 0 {
            self.results.insert(call, Ok(bytes));
        } else {
            self.callers.extend(self.nodes[at].principals.remove(&call));
            let endpoint = &mut self.nodes[at].endpoint;
            endpoint.write(now, call, bytes.into()).unwrap();
            endpoint.finish(now, call);
        }
    }

    /// How many calls the server has answered.
    pub(crate) fn served(&self) -> usize {
        self.callers.len()
    }
}

fn service(cell: &Cell) -> ServiceConfig {
    ServiceConfig {
        id: SERVICE,
        security: vec![(2, cell.authority.server_security())],
        reach_check: false,
        idle_dead_time: None,
    }
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 251) as u8).collect()
}

/// Runs a test at every level.
pub(crate) fn at_every_level(mut test: impl FnMut(Level)) {
    for level in [Level::Clear, Level::Auth, Level::Crypt] {
        test(level);
    }
}

/// Shares a list with the one on the path.
pub(crate) type Shared<T> = Arc<std::sync::Mutex<T>>;

pub(crate) fn shared<T>(value: T) -> Shared<T> {
    Arc::new(std::sync::Mutex::new(value))
}
