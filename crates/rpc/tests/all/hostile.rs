//! Garbage, floods and overload: their cost, and the clients that bear it.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use cellar_rpc::{CallError, Runtime, Security};
use cellar_until::until;
use cellar_wire::abort::AbortCode;

/// A small generator, so that a failure can be reproduced.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn garbage_is_counted_and_hurts_no_peer() {
    run(async {
        let server = Server::start(2);
        let client = Runtime::client_only().unwrap();
        let connection = server.connect(&client);
        connection.call(&Echo { value: 1 }).await.unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut random = Random(0x1234_5678_9abc_def1);
        for round in 0..30_000u64 {
            let len = (random.next() % 120) as usize;
            let mut packet: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
            if len >= 28 && round % 2 == 0 {
                // Half of them are plausible: known types and flags, this service.
                packet[20] = (random.next() % 14) as u8;
                packet[21] &= 0x27;
                packet[26..28].copy_from_slice(&PACKAGE.service_id.to_be_bytes());
            }
            // Losses at a full buffer of either end are expected.
            let _dropped = socket.send_to(&packet, server.address());
            if round % 5000 == 0 {
                assert_eq!(
                    connection.call(&Echo { value: round }).await.unwrap().value,
                    round
                );
            }
        }
        for value in 0..50 {
            assert_eq!(connection.call(&Echo { value }).await.unwrap().value, value);
        }
        let figures = server.port.statistics().port();
        assert!(figures.datagrams_received > 10_000, "{figures:?}");
        assert_eq!(figures.handler_panics, 0);
    });
}

/// Running places that one client may take, of a port with eight.
const SHARE: u64 = 3;

#[test]
fn a_client_gets_its_share_of_running_calls() {
    run(async {
        let server = Server::start_with(1, Test::default(), |mut config| {
            config.running_calls_max = 8;
            config
        });
        let client = Runtime::client_only().unwrap();
        let connection = server.connect(&client);
        let mut tasks = tokio::task::JoinSet::new();
        let start = Instant::now();
        for _ in 0..12 {
            let connection = connection.clone();
            tasks.spawn(async move { connection.call(&Sleep { millis: 100 }).await });
        }
        let mut most = 0;
        until("over", async || {
            most = most.max(server.port.statistics().port().calls_running);
            start.elapsed() > Duration::from_millis(250)
        })
        .await;
        assert_eq!(most, SHARE);
        while let Some(result) = tasks.join_next().await {
            result.unwrap().unwrap();
        }
        let elapsed = start.elapsed();
        assert!(
            elapsed >= Duration::from_millis(400),
            "four rounds of three: {elapsed:?}"
        );
    });
}

#[test]
fn calls_over_the_queue_are_refused_with_vbusy() {
    run(async {
        let server = Server::start_with(1, Test::default(), |mut config| {
            config.running_calls_max = 2;
            config.waiting_calls_max = 8;
            config
        });
        let client = Runtime::client_only().unwrap();
        let connection = server.connect(&client);
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..40 {
            let connection = connection.clone();
            tasks.spawn(async move { connection.call(&Sleep { millis: 50 }).await });
        }
        let (mut answered, mut refused) = (0, 0);
        while let Some(result) = tasks.join_next().await {
            match result.unwrap() {
                Ok(_) => answered += 1,
                Err(failure) => {
                    assert_eq!(failure.code(), AbortCode::VBUSY, "{failure:?}");
                    refused += 1;
                }
            }
        }
        assert!(answered >= 3, "{answered} answered");
        assert!(refused >= 20, "{refused} refused");
        assert_eq!(server.port.statistics().port().calls_refused, refused);
        assert_eq!(connection.call(&Echo { value: 1 }).await.unwrap().value, 1);
    });
}

#[test]
fn one_flooding_host_does_not_starve_another() {
    run(async {
        let server = Server::start_with(1, Test::default(), |config| cellar_rpc::PortConfig {
            addresses: vec!["0.0.0.0:0".parse().unwrap()],
            running_calls_max: 16,
            ..config
        });
        let port = server.address().port();
        let flooder = Runtime::client_only().unwrap();
        let target = format!("127.0.0.1:{port}").parse().unwrap();
        let flood = flooder
            .connect(target, PACKAGE.service_id, Security::null())
            .unwrap();
        let answered = Arc::new(AtomicU64::new(0));
        for _ in 0..60 {
            let (flood, answered) = (flood.clone(), answered.clone());
            tokio::spawn(async move {
                while !matches!(
                    flood.call(&Sleep { millis: 20 }).await,
                    Err(CallError::Closed)
                ) {
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        until("a flood", async || answered.load(Ordering::Relaxed) > 20).await;
        // The other host has its own address.
        let quiet = Runtime::start(cellar_rpc::RuntimeConfig {
            shards: 1,
            ..cellar_rpc::RuntimeConfig::default()
        })
        .unwrap();
        let own = cellar_rpc::PortConfig::new("127.0.0.9:0".parse().unwrap());
        let connection =
            quiet
                .open(own)
                .unwrap()
                .connect(target, PACKAGE.service_id, Security::null());
        for _ in 0..20 {
            let start = Instant::now();
            connection.call(&Sleep { millis: 20 }).await.unwrap();
            let elapsed = start.elapsed();
            assert!(elapsed < Duration::from_millis(250), "{elapsed:?}");
        }
    });
}

#[test]
fn a_taken_port_is_refused_also_with_shards() {
    run(async {
        let server = Server::start(2);
        let runtime = Runtime::start(cellar_rpc::RuntimeConfig {
            shards: 2,
            ..cellar_rpc::RuntimeConfig::default()
        })
        .unwrap();
        let config = cellar_rpc::PortConfig::new(server.address());
        let refused = runtime.open(config).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::AddrInUse, "{refused}");
        assert!(refused.to_string().contains(&server.address().to_string()));
    });
}

#[test]
fn a_closed_port_refuses_and_the_others_go_on() {
    run(async {
        let server = Server::start(2);
        let second = server
            .runtime
            .open(cellar_rpc::PortConfig::new("127.0.0.1:0".parse().unwrap()))
            .unwrap();
        second.add_service(&(server.service.clone() as Arc<dyn cellar_rpc::Service>));
        let client = Runtime::client_only().unwrap();
        let service = PACKAGE.service_id;
        let connection = client
            .connect(second.local_address(), service, Security::null())
            .unwrap();
        assert_eq!(connection.call(&Echo { value: 1 }).await.unwrap().value, 1);
        // Calls in progress get an abort that makes them retry.
        let busy = connection.clone();
        let late = tokio::spawn(async move { busy.call(&Late { millis: 30_000 }).await });
        server.until_at_work(1).await;
        second.close();
        let failure = late.await.unwrap().unwrap_err();
        assert_eq!(failure.code(), AbortCode::RX_RESTARTING, "{failure:?}");
        let first = server.connect(&client);
        for value in 0..20 {
            assert_eq!(first.call(&Echo { value }).await.unwrap().value, value);
        }
        // The address is free again.
        let address = second.local_address();
        until("free", async || UdpSocket::bind(address).is_ok()).await;
    });
}
