//! Calls over real sockets on loopback: results, aborts, streams, concurrency, both address
//! families.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use cellar_rpc::{
    CallError, CallOptions, ConnectionOptions, PortConfig, Runtime, Security, Spread,
};
use cellar_wire::abort::AbortCode;

#[test]
fn a_call_answers() {
    run(async {
        let server = Server::start(1);
        let client = Runtime::client_only().unwrap();
        let connection = server.connect(&client);
        for value in [0, 1, u64::MAX] {
            assert_eq!(connection.call(&Echo { value }).await.unwrap().value, value);
        }
        let peer = connection.call(&Peer {}).await.unwrap();
        assert_ne!(peer.port, 0);
        assert!(!peer.v6);
        assert!(!peer.superuser);
    });
}

#[test]
fn failures_have_their_codes() {
    run(async {
        let server = Server::start(1);
        let client = Runtime::client_only().unwrap();
        let connection = server.connect(&client);
        for code in [1, 102, -455, 363_524, -100] {
            let failure = connection.call(&Fail { code }).await.unwrap_err();
            assert_eq!(failure.code(), AbortCode(code));
        }
        let zero = connection.call(&Fail { code: 0 }).await.unwrap_err();
        assert_eq!(zero.code(), AbortCode::RX_USER_ABORT);
        // Unknown opcode, arguments cut short, no opcode at all: rx-wire facts 3.2.
        let code = |failure: CallError| failure.code();
        let unknown = raw(&connection, &[0, 0, 0, 99]).await.map_err(code);
        assert_eq!(unknown, Err(AbortCode::RXGEN_OPCODE));
        let short = raw(&connection, &[0, 0, 0, 1, 0, 0]).await.map_err(code);
        assert_eq!(short, Err(AbortCode::RXGEN_SS_UNMARSHAL));
        let empty = raw(&connection, &[]).await.map_err(code);
        assert_eq!(empty, Err(AbortCode::RXGEN_DECODE));
        // A service that does not exist.
        let other = client
            .connect(server.address(), 999, Security::null())
            .unwrap();
        let failure = other.call(&Echo { value: 1 }).await.unwrap_err();
        assert_eq!(failure.code(), AbortCode::RX_INVALID_OPERATION);
        // The connection still works.
        assert_eq!(connection.call(&Echo { value: 5 }).await.unwrap().value, 5);
    });
}

#[test]
fn announced_files_are_gathered_and_no_more() {
    run(async {
        let server = Server::start(1);
        let client = Runtime::client_only().unwrap();
        let connection = server.connect(&client);
        let gather = async |announced, wanted, sent: usize| {
            let mut call = connection.open(&Gather { announced, wanted }).await?;
            call.write(pattern_bytes(0, sent)).await?;
            call.results::<GatherReply>().await
        };
        let reply = gather(100_000, 30_000, 100_000).await.unwrap();
        assert!((30_000..100_000).contains(&reply.gathered), "{reply:?}");
        assert_eq!((reply.gathered + reply.left, reply.behind), (100_000, 0));
        let reply = gather(100_000, u64::MAX, 150_001).await.unwrap();
        let GatherReply {
            gathered,
            left,
            behind,
        } = reply;
        assert_eq!((gathered, left, behind), (100_000, 0, 50_001));
        let reply = gather(0, 10, 7).await.unwrap();
        assert_eq!((reply.gathered, reply.behind), (0, 7));
        let early = gather(100, 100, 99).await.unwrap_err();
        assert_eq!(early.code(), AbortCode::RX_CALL_DEAD);
    });
}

#[test]
fn streams_arrive_whole_both_ways() {
    run(async {
        let server = Server::start(1);
        let client = Runtime::client_only().unwrap();
        let connection = server.connect(&client);
        for len in [0, 1, 1416, 1417, 1_000_000, 20_000_000] {
            let reply = store(&connection, len).await.unwrap();
            assert_eq!(reply.len, len);
            fetch(&connection, len).await.unwrap();
        }
    });
}

#[test]
fn arguments_larger_than_packets_and_their_limit() {
    run(async {
        let service = Test {
            argument_bytes_max: Some(200_000),
            ..Test::default()
        };
        let server = Server::start_with(1, service, |config| config);
        let client = Runtime::client_only().unwrap();
        let connection = server.connect(&client);
        let whole = |len: usize| Whole {
            bytes: pattern_bytes(0, len).try_into().unwrap(),
        };
        assert_eq!(connection.call(&whole(150_000)).await.unwrap().len, 150_000);
        let failure = connection.call(&whole(5_000_000)).await.unwrap_err();
        assert_eq!(failure.code(), AbortCode::RXGEN_SS_UNMARSHAL);
        assert_eq!(connection.call(&whole(10)).await.unwrap().len, 10);
    });
}

#[test]
fn thousands_of_calls_from_many_connections_on_two_shards() {
    run(async {
        let server = Server::start(2);
        let client = Runtime::client_only().unwrap();
        // Each port of a client belongs to one shard of the server.
        let ports: Vec<_> = (0..10)
            .map(|_| {
                client
                    .open(PortConfig::new("127.0.0.1:0".parse().unwrap()))
                    .unwrap()
            })
            .collect();
        let connections: Vec<_> = (0..40)
            .map(|n| ports[n % 10].connect(server.address(), PACKAGE.service_id, Security::null()))
            .collect();
        let mut tasks = tokio::task::JoinSet::new();
        for (number, connection) in connections.iter().enumerate() {
            for caller in 0..6 {
                let connection = connection.clone();
                tasks.spawn(async move {
                    for call in 0..50u64 {
                        let value = (number as u64) << 32 | caller << 16 | call;
                        assert_eq!(connection.call(&Echo { value }).await.unwrap().value, value);
                    }
                });
            }
        }
        while let Some(result) = tasks.join_next().await {
            result.unwrap();
        }
        let figures = server.port.statistics().procedures();
        let echo = figures
            .iter()
            .find(|f| f.package.name == "TEST" && f.index == 0)
            .unwrap();
        assert_eq!(echo.invocations, 12_000);
        assert_eq!(echo.aborts, 0);
        assert_eq!(
            (echo.bytes_received, echo.bytes_sent),
            (12_000 * 12, 12_000 * 8)
        );
        // Both shards have connections: neither took all the calls.
        let shards = server.port.statistics().by_shard();
        assert_eq!(shards.len(), 2);
        assert!(
            shards.iter().all(|shard| shard.calls_inline > 1000),
            "{shards:?}"
        );
    });
}

#[test]
fn data_kept_with_a_connection_stays_there() {
    run(async {
        let server = Server::start(2);
        let client = Runtime::client_only().unwrap();
        let first = server.connect(&client);
        let second = server.connect(&client);
        for calls in 1..=5 {
            assert_eq!(first.call(&Count {}).await.unwrap().calls, calls);
        }
        assert_eq!(second.call(&Count {}).await.unwrap().calls, 1);
    });
}

#[test]
fn more_calls_than_channels_wait_or_get_more_connections() {
    run(async {
        let server = Server::start(1);
        let client = Runtime::client_only().unwrap();
        let port = client.client_port().unwrap();
        let options = ConnectionOptions {
            calls_max: Some(8),
            ..ConnectionOptions::default()
        };
        let connection = port.connect_with(
            server.address(),
            PACKAGE.service_id,
            Security::null(),
            options,
        );
        let start = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..24 {
            let connection = connection.clone();
            tasks.spawn(async move { connection.call(&Late { millis: 200 }).await });
        }
        while let Some(result) = tasks.join_next().await {
            result.unwrap().unwrap();
        }
        // Eight at a time: three rounds, neither sequential nor all at once.
        let elapsed = start.elapsed();
        assert!(elapsed >= Duration::from_millis(590), "{elapsed:?}");
        assert!(elapsed < Duration::from_millis(2500), "{elapsed:?}");
    });
}

/// When many calls fail at once, each is notified, and a waiting call gets one of their channels.
#[test]
fn all_are_told_when_many_calls_fail_at_once_and_more_wait() {
    run(async {
        let server = Server::start(1);
        let client = Runtime::client_only().unwrap();
        let options = ConnectionOptions {
            calls_max: Some(MEETING),
            ..ConnectionOptions::default()
        };
        let connection = client.client_port().unwrap().connect_with(
            server.address(),
            PACKAGE.service_id,
            Security::null(),
            options,
        );
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..4 * MEETING {
            let connection = connection.clone();
            let code = 1_000 + i32::try_from(number).unwrap();
            tasks.spawn(async move { (code, connection.call(&Meet { code }).await) });
        }
        // The client finds many answers at its next turn.
        let busy = Arc::new(AtomicBool::new(true));
        let still = busy.clone();
        client.spawn(0, move || async move {
            while still.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
                tokio::task::yield_now().await;
            }
        });
        while let Some(result) = tasks.join_next().await {
            let (code, result) = result.unwrap();
            assert_eq!(result.unwrap_err().code(), AbortCode(code));
        }
        busy.store(false, Ordering::Relaxed);
    });
}

#[test]
fn a_call_ends_when_its_time_is_over() {
    run(async {
        let server = Server::start(1);
        let client = Runtime::client_only().unwrap();
        let connection = server.connect(&client);
        let options = CallOptions {
            timeout: Some(Duration::from_millis(200)),
        };
        let start = Instant::now();
        let late = connection.call_with(&Late { millis: 5000 }, options).await;
        assert!(matches!(late, Err(CallError::Timeout)), "{late:?}");
        assert!(start.elapsed() < Duration::from_secs(2));
        assert_eq!(connection.call(&Echo { value: 3 }).await.unwrap().value, 3);
    });
}

#[test]
fn a_dropped_call_frees_its_channel_and_its_server() {
    run(async {
        let server = Server::start(1);
        let client = Runtime::client_only().unwrap();
        let connection = server.connect(&client);
        for _ in 0..20 {
            let mut call = connection.open(&Fetch { len: 1 << 40 }).await.unwrap();
            assert!(call.read_chunk().await.unwrap().is_some());
            drop(call);
        }
        assert_eq!(connection.call(&Echo { value: 3 }).await.unwrap().value, 3);
        // The server notices: none of the 20 calls continues.
        server.until_at_work(0).await;
    });
}

#[test]
fn a_slow_reader_stops_its_writer_and_no_other() {
    run(async {
        let server = Server::start(1);
        let client = Runtime::client_only().unwrap();
        let connection = server.connect(&client);
        let mut slow = connection.open(&Fetch { len: 1 << 40 }).await.unwrap();
        assert!(slow.read_chunk().await.unwrap().is_some());
        // The data in flight is bounded: our buffer, the window, the server's send buffer. The
        // server has stopped if it writes nothing for some time.
        let mut fetched = 0;
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let now = server.service.fetched.load(Ordering::Relaxed);
            if now == std::mem::replace(&mut fetched, now) {
                break;
            }
        }
        assert!(fetched < 32 << 20, "{fetched}");
        for value in 0..100 {
            assert_eq!(connection.call(&Echo { value }).await.unwrap().value, value);
        }
        // A waiting handler does not count as running.
        assert_eq!(server.port.statistics().port().calls_running, 0);
        // The stream continues when the client reads.
        let mut position = 0u64;
        while position < 50 << 20 {
            position += slow.read_chunk().await.unwrap().unwrap().len() as u64;
        }
        assert!(server.service.fetched.load(Ordering::Relaxed) > fetched);
    });
}

#[test]
fn a_handler_that_panics_costs_its_call_only() {
    run(async {
        let server = Server::start(1);
        let client = Runtime::client_only().unwrap();
        let connection = server.connect(&client);
        let failure = connection.call(&Panic {}).await.unwrap_err();
        assert_eq!(failure.code(), AbortCode::RX_USER_ABORT);
        assert_eq!(connection.call(&Echo { value: 3 }).await.unwrap().value, 3);
        assert_eq!(server.port.statistics().port().handler_panics, 1);
    });
}

#[test]
fn blocking_work_does_not_hold_the_shard() {
    run(async {
        let server = Server::start(1);
        let client = Runtime::client_only().unwrap();
        let connection = server.connect(&client);
        let slow = connection.clone();
        let sleeping = tokio::spawn(async move { slow.call(&Sleep { millis: 600 }).await });
        server.until_at_work(1).await;
        let start = Instant::now();
        for value in 0..20 {
            connection.call(&Echo { value }).await.unwrap();
        }
        assert!(start.elapsed() < Duration::from_millis(400));
        sleeping.await.unwrap().unwrap();
    });
}

#[test]
fn ipv6_is_served_beside_ipv4() {
    if std::net::UdpSocket::bind("[::1]:0").is_err() {
        eprintln!("skipped: this system has no IPv6 loopback");
        return;
    }
    run(async {
        let server = Server::start_with(2, Test::default(), |config| {
            config.address("[::1]:0".parse().unwrap())
        });
        let client = Runtime::client_only().unwrap();
        let addresses = server.port.local_addresses();
        assert_eq!(addresses.len(), 2);
        for (address, v6) in addresses.iter().zip([false, true]) {
            let connection = client
                .connect(*address, PACKAGE.service_id, Security::null())
                .unwrap();
            assert_eq!(connection.call(&Peer {}).await.unwrap().v6, v6);
            fetch(&connection, 3_000_000).await.unwrap();
        }
    });
}

#[test]
fn the_reply_leaves_from_the_address_that_was_called() {
    run(async {
        // Bound to no specific address, called at an unusual loopback address.
        let server = Server::start_with(1, Test::default(), |config| PortConfig {
            addresses: vec!["0.0.0.0:0".parse().unwrap()],
            ..config
        });
        let port = server.address().port();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        // Connected: the kernel drops datagrams from other addresses.
        socket.connect(("127.0.0.77", port)).unwrap();
        let packet = echo_packet(0x1230, 42);
        socket.send(&packet).unwrap();
        let mut reply = [0u8; 2000];
        let len = socket.recv(&mut reply).unwrap();
        assert_eq!((len, reply[20]), (36, 1));
        assert_eq!(reply[28..36], 42u64.to_be_bytes());
    });
}

/// A whole Echo call in one packet, as any client might send it.
fn echo_packet(cid: u32, value: u64) -> Vec<u8> {
    let mut packet = vec![0u8; 28];
    packet[..4].copy_from_slice(&0x8123_4567u32.to_be_bytes());
    packet[4..8].copy_from_slice(&cid.to_be_bytes());
    packet[11] = 1; // call number
    packet[15] = 1; // seq
    packet[19] = 1; // serial
    packet[20] = 1; // DATA
    packet[21] = 0x01 | 0x04; // from the client, last
    packet[26..28].copy_from_slice(&PACKAGE.service_id.to_be_bytes());
    packet.extend_from_slice(&1u32.to_be_bytes());
    packet.extend_from_slice(&value.to_be_bytes());
    packet
}

/// Datagrams of several connections in one run arrive at one shard together.
#[test]
fn packets_at_the_wrong_shard_are_passed_on() {
    run(async {
        let server = Server::start(2);
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let state = quinn_udp::UdpSocketState::new((&socket).into()).unwrap();
        if state.max_gso_segments() < 8 {
            eprintln!("skipped: this system sends no runs");
            return;
        }
        socket.set_nonblocking(false).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let packets: Vec<u8> = (0..8u32)
            .flat_map(|n| echo_packet(0x1230 + 4 * n, u64::from(n)))
            .collect();
        let transmit = quinn_udp::Transmit {
            destination: server.address(),
            ecn: None,
            contents: &packets,
            segment_size: Some(40),
            src_ip: None,
        };
        state.try_send((&socket).into(), &transmit).unwrap();
        let mut answered = std::collections::BTreeSet::new();
        let mut buffer = vec![0u8; 65_535];
        while answered.len() < 8 {
            let mut slices = [std::io::IoSliceMut::new(&mut buffer)];
            let mut meta = [quinn_udp::RecvMeta::default()];
            assert_eq!(
                state
                    .recv((&socket).into(), &mut slices, &mut meta)
                    .unwrap(),
                1
            );
            for reply in buffer[..meta[0].len].chunks(meta[0].stride) {
                // DATA with the eight bytes; acknowledgements and pings are ignored.
                if reply.len() == 36 && reply[20] == 1 {
                    answered.insert(u64::from_be_bytes(reply[28..36].try_into().unwrap()));
                }
            }
        }
        assert_eq!(answered, (0..8).collect());
        assert!(server.port.statistics().port().runs_passed_on > 0);
    });
}

#[test]
fn callers_on_the_shard_itself_and_ports_of_their_own() {
    run(async {
        let server = Server::start(2);
        let clients = Runtime::start(cellar_rpc::RuntimeConfig {
            shards: 2,
            ..cellar_rpc::RuntimeConfig::default()
        })
        .unwrap();
        let (results, mut collected) = tokio::sync::mpsc::channel(1);
        for number in 0..20 {
            let address = "127.0.0.1:0".parse().unwrap();
            let config = PortConfig::new(address).spread(Spread::OneShard(number));
            let port = clients.open(config).unwrap();
            let (results, peer) = (results.clone(), server.address());
            clients.spawn(number, move || async move {
                let connection = port.connect(peer, PACKAGE.service_id, Security::null());
                let mut ports = std::collections::BTreeSet::new();
                for value in 0..30 {
                    assert_eq!(connection.call(&Echo { value }).await.unwrap().value, value);
                    ports.insert(connection.call(&Peer {}).await.unwrap().port);
                }
                assert_eq!(ports, [u32::from(port.local_address().port())].into());
                results.send(ports).await.unwrap();
            });
        }
        drop(results);
        let mut seen = std::collections::BTreeSet::new();
        while let Some(ports) = collected.recv().await {
            seen.extend(ports);
        }
        assert_eq!(seen.len(), 20, "each client has a port of its own");
    });
}

#[test]
fn no_server_there() {
    run(async {
        let client = Runtime::client_only().unwrap();
        let port = client.client_port().unwrap();
        // A socket that is open and never answers.
        let mute = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let options = ConnectionOptions {
            dead_time: Some(Duration::from_secs(6)),
            ..ConnectionOptions::default()
        };
        let address = mute.local_addr().unwrap();
        let connection = port.connect_with(address, PACKAGE.service_id, Security::null(), options);
        let start = Instant::now();
        let failure = connection.call(&Echo { value: 1 }).await.unwrap_err();
        assert!(matches!(failure, CallError::Dead), "{failure:?}");
        let elapsed = start.elapsed();
        assert!(
            elapsed > Duration::from_secs(4) && elapsed < Duration::from_secs(12),
            "{elapsed:?}"
        );
    });
}

#[test]
fn a_server_that_is_not_running_is_known_at_once() {
    run(async {
        let client = Runtime::client_only().unwrap();
        let closed = std::net::UdpSocket::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let connection = client
            .connect(closed, PACKAGE.service_id, Security::null())
            .unwrap();
        let server = Server::start(1);
        let other = server.connect(&client);
        for value in 0..5 {
            let start = Instant::now();
            let failure = connection.call(&Echo { value }).await.unwrap_err();
            assert!(matches!(failure, CallError::Gone), "{failure:?}");
            assert!(
                start.elapsed() < Duration::from_secs(3),
                "{:?}",
                start.elapsed()
            );
            // Calls to another server are not affected.
            assert_eq!(other.call(&Echo { value }).await.unwrap().value, value);
        }
    });
}

#[test]
fn a_closed_runtime_says_so() {
    run(async {
        let server = Server::start(1);
        let client = Runtime::client_only().unwrap();
        let connection = server.connect(&client);
        connection.call(&Echo { value: 1 }).await.unwrap();
        let pending = connection.clone();
        let waiting = tokio::spawn(async move { pending.call(&Late { millis: 20_000 }).await });
        server.until_at_work(1).await;
        tokio::task::spawn_blocking(move || client.shutdown())
            .await
            .unwrap();
        assert!(matches!(waiting.await.unwrap(), Err(CallError::Closed)));
        let after = connection.call(&Echo { value: 1 }).await;
        assert!(matches!(after, Err(CallError::Closed)), "{after:?}");
    });
}
