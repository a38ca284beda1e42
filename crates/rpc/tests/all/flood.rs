//! Datagrams with forged addresses, on real sockets: new clients are served, and memory stays
//! bounded.
//!
//! Loopback has 16 million addresses, so no raw socket is needed to send from many.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use cellar_rpc::{CallError, Runtime, Security, limits};
use cellar_until::until;
use quinn_udp::{Transmit, UdpSockRef, UdpSocketState};

/// Sends from any loopback address.
struct Forger {
    socket: UdpSocket,
    state: UdpSocketState,
    random: u64,
}

impl Forger {
    fn new(seed: u64) -> Self {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        let state = UdpSocketState::new(UdpSockRef::from(&socket)).expect("a socket");
        Self {
            socket,
            state,
            random: seed,
        }
    }

    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Sends a whole call on a new connection.
    fn send(&mut self, to: SocketAddr, request: &[u8]) {
        let (random, host) = (self.next(), self.next() as u32);
        let mut packet = Vec::with_capacity(60);
        packet.extend((random as u32 | 0x8000_0000).to_be_bytes());
        packet.extend(((random >> 32) as u32 & !3).to_be_bytes());
        for word in [1u32, 1, 1] {
            packet.extend(word.to_be_bytes());
        }
        // DATA, from a client, the last packet.
        packet.extend([1, 5, 0, 0, 0, 0]);
        packet.extend(PACKAGE.service_id.to_be_bytes());
        packet.extend(request);
        packet.resize(packet.len().max(60), 0);
        let [_, a, b, c] = host.to_be_bytes();
        let transmit = Transmit {
            destination: to,
            ecn: None,
            contents: &packet,
            segment_size: None,
            src_ip: Some(IpAddr::V4(Ipv4Addr::new(127, a, b, c.clamp(1, 254)))),
        };
        // Losses at a full buffer of either end are expected.
        let _dropped = self
            .state
            .try_send(UdpSockRef::from(&self.socket), &transmit);
    }
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("its status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    kib.and_then(|kib| kib.parse::<u64>().ok()).expect("VmRSS") * 1024
}

/// Makes a new client's first call, which must be answered without a retransmission.
async fn new_client(server: &Server, value: u64) -> Duration {
    let client = Runtime::client_only().expect("a client");
    let began = Instant::now();
    let connection = server.connect(&client);
    let outcome = connection.call(&Echo { value }).await;
    assert_eq!(outcome.expect("an answer").value, value);
    let took = began.elapsed();
    client.shutdown();
    took
}

#[test]
fn new_clients_get_in_and_memory_stays() {
    run(async {
        let server = Arc::new(Server::start(2));
        new_client(&server, 0).await;
        let before = resident();
        let stop = Arc::new(AtomicBool::new(false));
        let sent = Arc::new(AtomicU64::new(0));
        let flood = {
            let (to, stop, sent) = (server.address(), stop.clone(), sent.clone());
            let server = server.clone();
            let received = |server: &Server| server.port.statistics().port().datagrams_received;
            std::thread::spawn(move || {
                let mut forger = Forger::new(0x5eed_f00d_0bad_cafe);
                let short = [[0, 0, 0, 1].as_slice(), &7u64.to_be_bytes()].concat();
                // A request for a reply of many packets.
                let long = [[0, 0, 0, 4].as_slice(), &100_000u64.to_be_bytes()].concat();
                while !stop.load(Ordering::Relaxed) {
                    for n in 0..50 {
                        forger.send(to, if n == 0 { &long } else { &short });
                    }
                    sent.fetch_add(50, Ordering::Relaxed);
                    // As fast as the machine receives them: losses at a full socket would hide the
                    // effect.
                    while sent.load(Ordering::Relaxed) > received(&server) + 1_000
                        && !stop.load(Ordering::Relaxed)
                    {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            })
        };
        let mut slowest = Duration::ZERO;
        let mut value = 0;
        while sent.load(Ordering::Relaxed) < 60_000 {
            value += 1;
            slowest = slowest.max(new_client(&server, value).await);
        }
        let statistics = server.port.transport_statistics().await.unwrap();
        let grown = resident().saturating_sub(before);
        stop.store(true, Ordering::Relaxed);
        flood.join().unwrap();
        eprintln!(
            "{value} clients, slowest {slowest:?}; {} MiB more; {} began, {} evicted, {} kept",
            grown >> 20,
            statistics.calls_started,
            statistics.evicted,
            statistics.unverified
        );
        assert!(value >= 5, "{value}");
        assert!(statistics.evicted > 20_000, "{statistics:?}");
        assert!(statistics.unverified as usize <= limits::UNVERIFIED_CONNECTIONS_MAX);
        assert!(statistics.peers <= statistics.server_connections + value as u32);
        assert_eq!(statistics.overload_aborts, 0);
        // Without delay, apart from the machine's other load.
        assert!(slowest < Duration::from_secs(5), "{slowest:?}");
        assert!(grown < 96 << 20, "{} MiB", grown >> 20);
        assert_eq!(server.port.statistics().port().handler_panics, 0);
    });
}

/// Clients that give up calls with running handlers leave no place occupied.
#[test]
fn calls_that_are_given_up_give_their_places_back() {
    run(async {
        let server = Server::start(1);
        let client = Runtime::client_only().unwrap();
        let connection = client
            .connect(server.address(), PACKAGE.service_id, Security::null())
            .unwrap();
        for value in 0..20 {
            let call = connection.call(&Sleep { millis: 300 });
            let given_up = tokio::time::timeout(Duration::from_millis(20), call).await;
            assert!(given_up.is_err());
            // The channel's next call, while the first one's handler sleeps.
            let echo = connection.call(&Echo { value }).await;
            assert!(!matches!(echo, Err(CallError::Dead)), "{echo:?}");
        }
        let running = || server.port.statistics().port().calls_running;
        until("at rest", async || running() == 0).await;
        let echo = connection.call(&Echo { value: 1 }).await;
        assert_eq!(echo.unwrap().value, 1);
    });
}
