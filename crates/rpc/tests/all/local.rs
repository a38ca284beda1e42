//! The local administrator's socket.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use cellar_rpc::{CallError, CallOptions, Runtime, RuntimeConfig, local};
use cellar_wire::abort::AbortCode;

struct Socket {
    _runtime: Runtime,
    listener: local::Listener,
    directory: tempfile::TempDir,
}

fn listen() -> Socket {
    let config = RuntimeConfig {
        shards: 1,
        name: "test".into(),
        ..RuntimeConfig::default()
    };
    let runtime = Runtime::start(config).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admin.sock");
    let listener = local::Listener::bind(&runtime, path, vec![Arc::new(Test::default())]).unwrap();
    Socket {
        _runtime: runtime,
        listener,
        directory,
    }
}

#[test]
fn the_same_service_answers_the_superuser() {
    run(async {
        let socket = listen();
        let mode = std::fs::metadata(socket.listener.path())
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        let connection = local::connect(socket.listener.path()).await.unwrap();
        assert_eq!(connection.peer(), None);
        for value in 0..100 {
            assert_eq!(connection.call(&Echo { value }).await.unwrap().value, value);
        }
        assert!(connection.call(&Peer {}).await.unwrap().superuser);
    });
}

#[test]
fn codes_streams_and_time_outs_are_as_over_rx() {
    run(async {
        let socket = listen();
        let connection = local::connect(socket.listener.path()).await.unwrap();
        let failure = connection.call(&Fail { code: 102 }).await.unwrap_err();
        assert_eq!(failure.code(), AbortCode(102));
        let unknown = raw(&connection, &[0, 0, 0, 99]).await.unwrap_err();
        assert_eq!(unknown.code(), AbortCode::RXGEN_OPCODE);
        let short = raw(&connection, &[0, 0, 0, 1, 0]).await.unwrap_err();
        assert_eq!(short.code(), AbortCode::RXGEN_SS_UNMARSHAL);
        for len in [0, 1, 5_000_000] {
            assert_eq!(store(&connection, len).await.unwrap().len, len);
            fetch(&connection, len).await.unwrap();
        }
        let options = CallOptions {
            timeout: Some(Duration::from_millis(100)),
        };
        let late = connection.call_with(&Late { millis: 5000 }, options).await;
        assert!(matches!(late, Err(CallError::Timeout)), "{late:?}");
        assert_eq!(connection.call(&Echo { value: 1 }).await.unwrap().value, 1);
    });
}

#[test]
fn a_server_that_gives_up_writing_says_so_to_a_slow_reader() {
    run(async {
        let socket = listen();
        let connection = local::connect(socket.listener.path()).await.unwrap();
        let mut call = connection.open(&Hasty { len: 20_000_000 }).await.unwrap();
        call.finish();
        // The reader is slow.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let read = async {
            while call.read_chunk().await?.is_some() {}
            Ok::<_, CallError>(())
        };
        let ended = tokio::time::timeout(Duration::from_secs(20), read).await;
        assert_eq!(ended.unwrap().unwrap_err().code(), AbortCode(4712));
        assert_eq!(connection.call(&Echo { value: 1 }).await.unwrap().value, 1);
    });
}

#[test]
fn many_calls_at_a_time_and_dropped_ones() {
    run(async {
        let socket = listen();
        let connection = local::connect(socket.listener.path()).await.unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        for value in 0..40 {
            let connection = connection.clone();
            tasks.spawn(async move {
                connection.call(&Late { millis: 20 }).await.unwrap();
                assert_eq!(connection.call(&Echo { value }).await.unwrap().value, value);
                let mut call = connection.open(&Fetch { len: 1 << 40 }).await.unwrap();
                assert!(call.read_chunk().await.unwrap().is_some());
            });
        }
        while let Some(result) = tasks.join_next().await {
            result.unwrap();
        }
        assert_eq!(connection.call(&Echo { value: 1 }).await.unwrap().value, 1);
    });
}

#[test]
fn an_unknown_service_and_nonsense_are_refused() {
    run(async {
        let socket = listen();
        let connection = local::connect(socket.listener.path()).await.unwrap();
        let request = bytes::Bytes::from_static(&[0, 0, 0, 1]);
        let other = &cellar_wire::rxstats::PACKAGE;
        let mut call = connection
            .open_raw(other, request, CallOptions::default())
            .unwrap();
        let failure = call.read_chunk().await.unwrap_err();
        assert_eq!(failure.code(), AbortCode::RX_INVALID_OPERATION);
        // A stream with invalid data is closed, and nothing else.
        let mut rubbish = UnixStream::connect(socket.listener.path()).unwrap();
        rubbish.write_all(&[0xff; 100]).unwrap();
        rubbish
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let mut answer = Vec::new();
        let end = rubbish.read_to_end(&mut answer);
        assert!(matches!(end, Ok(0) | Err(_)), "{answer:?}");
        assert_eq!(connection.call(&Echo { value: 1 }).await.unwrap().value, 1);
    });
}

#[test]
fn a_second_server_is_refused_and_a_dead_one_replaced() {
    run(async {
        let socket = listen();
        let config = RuntimeConfig {
            shards: 1,
            ..RuntimeConfig::default()
        };
        let runtime = Runtime::start(config).unwrap();
        let path = socket.directory.path().join("admin.sock");
        let second = local::Listener::bind(&runtime, &path, Vec::new()).unwrap_err();
        assert_eq!(second.kind(), std::io::ErrorKind::AddrInUse);
        // A socket without a listener, as a killed server leaves it.
        let dead = socket.directory.path().join("dead.sock");
        drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
        let service = Arc::new(Test::default());
        let replaced = local::Listener::bind(&runtime, &dead, vec![service]).unwrap();
        let connection = local::connect(replaced.path()).await.unwrap();
        assert_eq!(connection.call(&Echo { value: 1 }).await.unwrap().value, 1);
        drop(replaced);
        assert!(!dead.exists());
        assert!(local::connect(&dead).await.is_err());
    });
}
