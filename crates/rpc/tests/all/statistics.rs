//! Queries to a server: rxdebug, RXSTATS; and rxperf between our own ends.

use std::process::Command;
use std::sync::Arc;

use crate::common::*;
use cellar_rpc::rxperf::{self, ClientOptions};
use cellar_rpc::{PortConfig, Runtime, RuntimeConfig, Security};
use cellar_until::until;
use cellar_wire::abort::AbortCode;
use cellar_wire::rxstats::{
    self, ClearProcessRPCStats, QueryPeerRPCStats, QueryProcessRPCStats, QueryRPCStatsVersion,
    RetrievePeerRPCStats, RetrieveProcessRPCStats,
};

/// Output of OpenAFS's rxdebug for a server; `None` if it is not installed.
fn rxdebug(server: &Server, options: &[&str]) -> Option<String> {
    let address = server.address();
    let output = Command::new("rxdebug")
        .arg(address.ip().to_string())
        .arg(address.port().to_string())
        .args(options)
        .output();
    let output = match output {
        Ok(output) => output,
        Err(cause) => {
            eprintln!("skipped: rxdebug (Debian's openafs-client): {cause}");
            return None;
        }
    };
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn openafs_rxdebug_prints_what_is_true() {
    run(async {
        let server = Server::start(2);
        // Clients with their own ports, so that both shards have some.
        let clients: Vec<_> = (0..6).map(|_| Runtime::client_only().unwrap()).collect();
        let connections: Vec<_> = (0..12).map(|n| server.connect(&clients[n / 2])).collect();
        for connection in &connections {
            for value in 0..3 {
                connection.call(&Echo { value }).await.unwrap();
            }
        }
        let waiting = connections[0].clone();
        let late = tokio::spawn(async move { waiting.call(&Late { millis: 10_000 }).await });
        // The client's last acknowledgements are delayed; until then the calls are not finished.
        tokio::time::sleep(std::time::Duration::from_millis(1700)).await;
        tokio::task::spawn_blocking(move || {
            let Some(version) = rxdebug(&server, &["-version"]) else {
                return;
            };
            assert!(version.contains("AFS version: Cellar"), "{version}");

            let all = rxdebug(&server, &["-allconnections", "-long"]).unwrap();
            let ports: Vec<_> = clients
                .iter()
                .map(|client| client.client_port().unwrap().local_address().port())
                .collect();
            for port in &ports {
                let line = format!("Connection from host 127.0.0.1, port {port}");
                assert_eq!(all.matches(&line).count(), 2, "{all}");
            }
            assert_eq!(all.matches("Connection from").count(), 12, "{all}");
            // 12 x 3, plus the waiting one.
            assert!(all.contains("calls: 37"), "{all}");
            assert!(all.contains("# 4, state active"), "{all}");
            assert!(all.contains("# 3, state dally"), "{all}");
            assert!(all.contains("server conn"), "{all}");

            let nodally = rxdebug(&server, &["-allconnections", "-nodally"]).unwrap();
            assert_eq!(nodally.matches("Connection from").count(), 1, "{nodally}");

            let interesting = rxdebug(&server, &[]).unwrap();
            assert_eq!(
                interesting.matches("Connection from").count(),
                1,
                "{interesting}"
            );

            let rxstats = rxdebug(&server, &["-rxstats", "-noconns"]).unwrap();
            assert!(rxstats.contains("12 server connections"), "{rxstats}");
            let read = rxstats.split("packets read: data ").nth(1).unwrap();
            let read: u32 = read.split_whitespace().next().unwrap().parse().unwrap();
            assert!((37..60).contains(&read), "{rxstats}");

            let peers = rxdebug(&server, &["-peers", "-long", "-noconns"]).unwrap();
            for port in ports {
                let line = format!("Peer at host 127.0.0.1, port {port}");
                assert!(peers.contains(&line), "{peers}");
            }
        })
        .await
        .unwrap();
        late.abort();
    });
}

#[test]
fn rxstats_counts_what_was_called() {
    run(async {
        let server = Server::start(2);
        let client = Runtime::client_only().unwrap();
        let connections: Vec<_> = (0..4).map(|_| server.connect(&client)).collect();
        for value in 0..40 {
            connections[value as usize % 4]
                .call(&Echo { value })
                .await
                .unwrap();
        }
        let _failed = connections[0].call(&Fail { code: 5 }).await;
        let asker = client
            .connect(
                server.address(),
                rxstats::PACKAGE.service_id,
                Security::null(),
            )
            .unwrap();
        let reply = asker
            .call(&RetrieveProcessRPCStats { client_version: 1 })
            .await
            .unwrap();
        assert_eq!(reply.server_version, 1);
        assert_eq!(reply.stat_count as usize, reply.stats.records().len());
        let records: Vec<_> = reply
            .stats
            .records()
            .iter()
            .filter(|record| record.interface == 77)
            .collect();
        assert_eq!(records.len(), PACKAGE.procedures.len());
        let echo = records[0];
        assert_eq!(
            (echo.peer, echo.port, echo.peer_is_server),
            (u32::MAX, u32::MAX, 0)
        );
        assert_eq!(
            (echo.function_count, echo.function),
            (PACKAGE.procedures.len() as u32, 0)
        );
        assert_eq!(echo.invocations, 40);
        assert_eq!((echo.bytes_received, echo.bytes_sent), (480, 320));
        assert_eq!(records[1].invocations, 1, "failed calls count too");
        assert_eq!(records[2].execution.min.seconds, 9_999_999, "never called");
        assert!(echo.execution.max.seconds < 60);

        assert_eq!(asker.call(&QueryProcessRPCStats {}).await.unwrap().on, 1);
        assert_eq!(asker.call(&QueryPeerRPCStats {}).await.unwrap().on, 0);
        assert_eq!(
            asker.call(&QueryRPCStatsVersion {}).await.unwrap().version,
            1
        );
        let peers = asker
            .call(&RetrievePeerRPCStats { client_version: 1 })
            .await
            .unwrap();
        assert_eq!(peers.stat_count, 0);
        let refused = asker
            .call(&ClearProcessRPCStats { clear_flag: 1 })
            .await
            .unwrap_err();
        assert_eq!(refused.code(), AbortCode(1), "only for superusers");

        server.port.clear_statistics(rxstats::CLEAR_ALL);
        connections[0].call(&Echo { value: 1 }).await.unwrap();
        let echoes = || {
            let figures = server.port.statistics().procedures();
            let mut figures = figures.iter();
            let echo = figures.find(|f| f.package.name == "TEST" && f.index == 0);
            echo.unwrap().invocations
        };
        until("cleared", async || echoes() <= 1).await;
    });
}

/// By default, a server shows its statistics to superusers only.
#[test]
fn rxstats_is_not_for_everybody() {
    run(async {
        let server = Runtime::start(RuntimeConfig::default()).unwrap();
        let port = server
            .open(PortConfig::new("127.0.0.1:0".parse().unwrap()))
            .unwrap();
        let client = Runtime::client_only().unwrap();
        let service = rxstats::PACKAGE.service_id;
        let asker = client
            .connect(port.local_address(), service, Security::null())
            .unwrap();
        let refused = [
            asker
                .call(&RetrieveProcessRPCStats { client_version: 1 })
                .await
                .unwrap_err(),
            asker
                .call(&RetrievePeerRPCStats { client_version: 1 })
                .await
                .unwrap_err(),
            asker.call(&QueryProcessRPCStats {}).await.unwrap_err(),
            asker.call(&QueryPeerRPCStats {}).await.unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.code(), AbortCode(1));
        }
        let version = asker.call(&QueryRPCStatsVersion {}).await.unwrap().version;
        assert_eq!(version, 1);
    });
}

#[test]
fn rxperf_measures_every_command() {
    run(async {
        let config = RuntimeConfig {
            shards: 2,
            name: "test".into(),
            ..RuntimeConfig::default()
        };
        let server = Runtime::start(config.clone()).unwrap();
        let address = "127.0.0.1:0".parse().unwrap();
        let port = server
            .open(PortConfig::new(address).service(Arc::new(rxperf::Server)))
            .unwrap();
        let client = Runtime::start(config).unwrap();
        let words = vec![100, 0, 30_000].try_into().unwrap();
        for (command, sent, received) in [
            (rxperf::Command::Send { bytes: 300_000 }, 300_000, 0),
            (rxperf::Command::Receive { bytes: 300_000 }, 0, 300_000),
            (
                rxperf::Command::Rpc {
                    send: 3,
                    receive: 30,
                },
                3,
                30,
            ),
            (
                rxperf::Command::Rpc {
                    send: 100_000,
                    receive: 50_000,
                },
                100_000,
                50_000,
            ),
            (rxperf::Command::File { words }, 400, 120_000),
        ] {
            let options = ClientOptions {
                command,
                times: 10,
                callers: 6,
                ..ClientOptions::default()
            };
            let figures = rxperf::client(&client, port.local_address(), &options)
                .await
                .unwrap();
            assert_eq!(figures.calls, 60);
            assert_eq!(
                (figures.bytes_sent, figures.bytes_received),
                (60 * sent, 60 * received)
            );
        }
    });
}

#[test]
fn rxperf_refuses_as_openafs_does() {
    run(async {
        let server = Server::start(1);
        server
            .port
            .add_service(&(Arc::new(rxperf::Server) as Arc<dyn cellar_rpc::Service>));
        let client = Runtime::client_only().unwrap();
        let service = rxperf::PACKAGE.service_id;
        let connection = client
            .connect(server.address(), service, Security::null())
            .unwrap();
        let words = |words: &[u32]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_be_bytes()).collect()
        };
        // The example of rx-wire facts 5.2.
        let right = raw(&connection, &words(&[3, 0, 0x8_0000, 0x8_0000, 4, 0]))
            .await
            .unwrap();
        assert_eq!(right[..], 0x4711u32.to_be_bytes());
        for wrong in [
            &[2, 0, 0x8_0000, 0x8_0000, 4, 0][..], // version
            &[3, 2, 0x8_0000, 0x8_0000, 4, 0],     // command
            &[3, 0, 0x8_0001, 0x8_0000, 4, 0],     // chunk
            &[3, 0, 0x8_0000, 0x8_0000, 8, 0],     // short
            &[3, 3, 0x8_0000, 0x8_0000, 8],        // shorter
        ] {
            let failure = raw(&connection, &words(wrong)).await.unwrap_err();
            assert_eq!(failure.code(), AbortCode(-1), "{wrong:?}");
        }
    });
}
