//! When the way between a client and its file server becomes another one: an address translator on
//! paper.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cellar_cachemanager::Cache;
use cellar_client::errno;
use cellar_rpc::{Runtime, RuntimeConfig};
use cellar_wire::rxafs;
use tokio::net::UdpSocket;
use tokio::sync::watch;

use crate::bench::{Bench, Client, NOW, Tokens};

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(120);

/// The type of packets that end a call. Source: rx-wire facts 1.4.
const ABORT: u8 = 4;

/// Stands between clients and the file server: has its address for them, and an address of its own
/// for the server.
struct Translator {
    address: SocketAddr,
    outside: watch::Sender<Arc<UdpSocket>>,
    /// Datagrams that keep a mapping and are no part of any connection.
    kept: Arc<AtomicUsize>,
    /// Whether packets that abort calls are lost on the way to the server.
    loses_aborts: Arc<AtomicBool>,
}

async fn socket() -> Arc<UdpSocket> {
    let bound = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await;
    Arc::new(bound.expect("socket"))
}

impl Translator {
    async fn start(server: u16) -> Self {
        let inside = socket().await;
        let (outside, mut seen) = watch::channel(socket().await);
        let kept = Arc::new(AtomicUsize::new(0));
        let address = inside.local_addr().expect("address");
        let count = kept.clone();
        let loses_aborts = Arc::new(AtomicBool::new(false));
        let loses = loses_aborts.clone();
        tokio::spawn(async move {
            let server = SocketAddr::from((Ipv4Addr::LOCALHOST, server));
            let mut client = None;
            let (mut there, mut back) = (vec![0; 65_536], vec![0; 65_536]);
            loop {
                let out = seen.borrow_and_update().clone();
                tokio::select! {
                    Ok((length, from)) = inside.recv_from(&mut there) => {
                        client = Some(from);
                        // VERSION without the bit of clients. Source: rx-wire facts 2.9.
                        if there[20..22] == [13, 4] {
                            count.fetch_add(1, Ordering::SeqCst);
                        }
                        if there[20] == ABORT && loses.load(Ordering::SeqCst) {
                            continue;
                        }
                        let _lost = out.send_to(&there[..length], server).await;
                    }
                    Ok((length, _)) = out.recv_from(&mut back) => {
                        if let Some(client) = client {
                            let _lost = inside.send_to(&back[..length], client).await;
                        }
                    }
                    Ok(()) = seen.changed() => {}
                    else => return,
                }
            }
        });
        Self {
            address,
            outside,
            kept,
            loses_aborts,
        }
    }

    /// From now on the server sees another port, and what it sends to the one before goes nowhere.
    async fn forget(&self) {
        let _before = self.outside.send_replace(socket().await);
    }
}

/// A client behind a translator. Calls die after `dead_time`.
async fn behind(
    bench: &Bench,
    dead_time: Duration,
    nat_ping: Option<Duration>,
) -> (Client, Translator, Runtime) {
    let mut options = cellar_cachemanager::Options {
        nat_ping,
        ..bench.cache_options()
    };
    let ports = &mut options.cells[0].ports;
    let translator = Translator::start(ports.fileserver).await;
    ports.fileserver = translator.address.port();
    let runtime = Runtime::start(RuntimeConfig {
        shards: 1,
        dead_time,
        ..RuntimeConfig::default()
    });
    let runtime = runtime.expect("runtime");
    let port = runtime.client_port().expect("port");
    let cache = Cache::new(port, options, Arc::new(Tokens(None)), || NOW).expect("cache");
    let user = cache.user(0).await.expect("user");
    let root = cache
        .names()
        .root(&user)
        .await
        .expect("root")
        .expect("a volume");
    (Client { cache, user, root }, translator, runtime)
}

#[tokio::test]
async fn after_a_silence_a_server_is_asked_again_and_promises_last_until_its_answer() {
    let bench = Bench::start();
    let a = bench.client().await;
    let file = a.make("file").await;
    a.put(&file, b"one").await.expect("stored");
    let (b, translator, runtime) = behind(&bench, Duration::from_secs(6), None).await;
    let seen = b.find("file").await;
    assert_eq!(b.get(&seen).await, b"one");
    assert!(!seen.attributes().expect("known").valid.is_zero());
    translator.forget().await;
    a.put(&file, b"another").await.expect("stored");
    let made = b
        .cache
        .names()
        .create_file(&b.user, &b.root, b"lost", 0o644)
        .await
        .expect_err("the answer goes to where we were");
    assert_eq!(errno(&made), 110);
    let known = seen.attributes().expect("known");
    assert!(!known.valid.is_zero(), "nobody can say more");
    // The server answers a connection that it meets now where that comes from. It may have done
    // what it was asked before.
    let again = b
        .cache
        .names()
        .create_file(&b.user, &b.root, b"lost", 0o644)
        .await;
    assert!(
        again
            .map_err(|error| errno(&error))
            .map_or_else(|error| error == 17, |_| true)
    );
    assert_eq!(b.get(&seen).await, b"another");
    runtime.shutdown();
    bench.end();
}

#[tokio::test]
async fn with_another_address_what_waits_is_asked_again_and_promises_are_over() {
    let bench = Bench::start();
    let a = bench.client().await;
    let file = a.make("file").await;
    a.put(&file, b"one").await.expect("stored");
    let (b, translator, runtime) = behind(&bench, LIMIT * 10, None).await;
    let seen = b.find("file").await;
    assert_eq!(b.get(&seen).await, b"one");
    let mine = b.make("mine").await;
    let b = Arc::new(b);
    translator.forget().await;
    a.put(&file, b"another").await.expect("stored");
    let (storing, making) = (b.clone(), b.clone());
    let stored = tokio::spawn(async move { storing.put(&mine, b"written").await });
    let made = tokio::spawn(async move {
        let (cache, user, root) = (&making.cache, &making.user, &making.root);
        cache.names().create_file(user, root, b"made", 0o644).await
    });
    // Both were heard, and no answer comes back.
    let heard = async {
        while bench.calls::<rxafs::StoreData64>() < 3 || bench.calls::<rxafs::CreateFile>() < 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, heard)
        .await
        .expect("both are heard");
    assert!(!stored.is_finished() && !made.is_finished());
    assert_eq!(b.get(&seen).await, b"one", "nobody could tell");
    b.cache.statuses().network_changed(Vec::new(), true);
    let stored = tokio::time::timeout(LIMIT, stored).await;
    let stored = stored.expect("in time").expect("a task");
    stored.expect("stored once more");
    // A name is not created twice: it is unknown whether the first call created it.
    let made = tokio::time::timeout(LIMIT, made).await;
    let made = made.expect("in time").expect("a task");
    assert_eq!(errno(&made.expect_err("no answer")), 110);
    assert_eq!(b.contents("mine").await, b"written");
    assert_eq!(b.get(&seen).await, b"another");
    b.make("more").await;
    runtime.shutdown();
    bench.end();
}

#[tokio::test]
async fn a_store_that_was_given_up_does_not_come_behind_its_successor() {
    let bench = Bench::start();
    let a = bench.client().await;
    let (b, translator, runtime) = behind(&bench, LIMIT * 10, None).await;
    translator.loses_aborts.store(true, Ordering::SeqCst);
    let file = b.make("file").await;
    let seen = a.find("file").await;
    let b = Arc::new(b);
    // The server has got it, and stands still.
    let held = bench.hold::<rxafs::StoreData64>();
    let (storing, first) = (b.clone(), file.clone());
    let first = tokio::spawn(async move { storing.put(&first, b"a long first one").await });
    let heard = async {
        while held.count() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, heard)
        .await
        .expect("it is heard");
    held.let_others_pass();
    first.abort();
    assert!(first.await.expect_err("given up").is_cancelled());
    b.cache.statuses().network_changed(Vec::new(), true);
    let going_on = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(500)).await;
        drop(held);
    });
    b.put(&file, b"two").await.expect("stored");
    going_on.await.expect("a task");
    // Whatever was there to come has come.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(a.get(&seen).await, b"two");
    runtime.shutdown();
    bench.end();
}

#[tokio::test]
async fn a_mapping_is_kept_as_long_as_something_is_promised() {
    let bench = Bench::start();
    let every = Some(Duration::from_secs(1));
    let (b, translator, runtime) = behind(&bench, LIMIT, every).await;
    let keeper = tokio::spawn(b.cache.clone().keep());
    let kept = || translator.kept.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(kept(), 0, "nothing is promised yet");
    // With its first call the server tells that it knows of no promise.
    b.make("first").await;
    let file = b.make("file").await;
    assert!(!file.attributes().expect("known").valid.is_zero());
    let start = Instant::now();
    while kept() < 2 {
        assert!(start.elapsed() < LIMIT, "nothing is sent");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    keeper.abort();
    runtime.shutdown();
    bench.end();
}
