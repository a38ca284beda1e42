//! A service for tests, and runtimes to call it.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test program uses a part of this"
)]
use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use cellar_rpc::{
    CallError, CallOptions, Connection, IncomingCall, LocalBoxFuture, Port, PortConfig, Runtime,
    RuntimeConfig, Security, Service, ServiceOptions, blocking,
};
use cellar_until::{PATIENCE, until};
use cellar_wire::abort::AbortCode;
use cellar_wire::package::{Package, ProcedureInfo, Stream};
use cellar_xdr::xdr_struct;

/// The package of the test service.
pub static PACKAGE: Package = Package {
    name: "TEST",
    service_id: 7777,
    port: 0,
    statistics_index: 77,
    procedures: &[
        procedure(1, "Echo", 0),
        procedure(2, "Fail", 1),
        procedure(3, "Store", 2),
        procedure(4, "Fetch", 3),
        procedure(5, "Sleep", 4),
        procedure(6, "Peer", 5),
        procedure(7, "Panic", 6),
        procedure(8, "Count", 7),
        procedure(9, "Late", 8),
        procedure(10, "Whole", 9),
        procedure(11, "Hasty", 10),
        procedure(12, "Gather", 11),
        procedure(13, "Meet", 12),
    ],
};

const fn procedure(opcode: u32, name: &'static str, index: usize) -> ProcedureInfo {
    ProcedureInfo {
        opcode,
        name,
        index,
        stream: Stream::None,
        refuses: None,
    }
}

macro_rules! procedures {
    ($($opcode:literal $name:ident { $($field:ident: $type:ty),* } -> $reply:ident { $($result:ident: $result_type:ty),* };)*) => {$(
        xdr_struct! {
            pub struct $name { $(pub $field: $type),* }
            pub struct $reply { $(pub $result: $result_type),* }
        }
        impl cellar_wire::package::Procedure for $name {
            type Reply = $reply;
            const OPCODE: u32 = $opcode;
            const NAME: &'static str = stringify!($name);
            const STREAM: Stream = Stream::None;
            const INDEX: usize = $opcode - 1;
            fn package() -> &'static Package { &PACKAGE }
        }
    )*};
}

procedures! {
    1 Echo { value: u64 } -> EchoReply { value: u64 };
    2 Fail { code: i32 } -> FailReply { };
    3 Store { len: u64 } -> StoreReply { len: u64, sum: u64 };
    4 Fetch { len: u64 } -> FetchReply { sum: u64 };
    5 Sleep { millis: u32 } -> SleepReply { };
    6 Peer { } -> PeerReply { port: u32, v6: bool, superuser: bool };
    7 Panic { } -> PanicReply { };
    8 Count { } -> CountReply { calls: u64 };
    9 Late { millis: u32 } -> LateReply { };
    10 Whole { bytes: cellar_xdr::Opaque<10000000> } -> WholeReply { len: u32 };
    11 Hasty { len: u64 } -> HastyReply { };
    12 Gather { announced: u64, wanted: u64 } -> GatherReply { gathered: u64, left: u64, behind: u64 };
    13 Meet { code: i32 } -> MeetReply { };
}

/// State of the test service.
#[derive(Debug)]
pub struct Test {
    /// Bytes that Store has read so far, over all calls.
    pub stored: AtomicU64,
    /// Bytes that Fetch has sent so far.
    pub fetched: AtomicU64,
    /// Calls whose handlers run or wait.
    pub at_work: AtomicU64,
    pub argument_bytes_max: Option<usize>,
    /// Barrier at which calls of Meet wait for each other.
    pub meeting: tokio::sync::Barrier,
}

/// Number of calls of Meet that fail at the same time.
pub const MEETING: usize = 64;

impl Default for Test {
    fn default() -> Self {
        Self {
            stored: AtomicU64::default(),
            fetched: AtomicU64::default(),
            at_work: AtomicU64::default(),
            argument_bytes_max: None,
            meeting: tokio::sync::Barrier::new(MEETING),
        }
    }
}

/// Counts one call while its handler exists.
struct AtWork<'a>(&'a AtomicU64);

impl<'a> AtWork<'a> {
    fn new(calls: &'a AtomicU64) -> Self {
        calls.fetch_add(1, Ordering::Relaxed);
        Self(calls)
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Period of the pattern, bytes.
const PATTERN_PERIOD: usize = 1 << 24;

/// Part of every stream: at most one period, from any position. The pattern is generated once,
/// since generating it for each call takes seconds in a test build.
pub fn pattern_bytes(position: u64, len: usize) -> Bytes {
    static TWICE: LazyLock<Bytes> = LazyLock::new(|| {
        let byte = |n: usize| (n ^ (n >> 8) ^ (n >> 16)) as u8;
        let period: Vec<u8> = (0..PATTERN_PERIOD).map(byte).collect();
        [&period[..], &period[..]].concat().into()
    });
    let begin = position as usize % PATTERN_PERIOD;
    TWICE.slice(begin..begin + len)
}

pub fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}

impl Service for Test {
    fn package(&self) -> &'static Package {
        &PACKAGE
    }

    fn options(&self) -> ServiceOptions {
        let usual = ServiceOptions::default();
        let argument_bytes_max = self.argument_bytes_max.unwrap_or(usual.argument_bytes_max);
        ServiceOptions {
            argument_bytes_max,
            ..usual
        }
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(async move {
            let _at_work = AtWork::new(&self.at_work);
            match call.opcode().await? {
                1 => {
                    let Echo { value } = call.arguments().await?;
                    call.reply(&EchoReply { value });
                }
                2 => {
                    let Fail { code } = call.arguments().await?;
                    return Err(AbortCode(code));
                }
                3 => self.store(call).await?,
                4 => {
                    let Fetch { len } = call.arguments().await?;
                    call.reply(&len);
                    let mut total = 0;
                    let mut position = 0;
                    while position < len {
                        let piece = (len - position).min(100_000);
                        let bytes = pattern_bytes(position, piece as usize);
                        total += sum(&bytes);
                        call.write(bytes).await?;
                        self.fetched.fetch_add(piece, Ordering::Relaxed);
                        position += piece;
                    }
                    call.reply(&FetchReply { sum: total });
                }
                5 => {
                    let Sleep { millis } = call.arguments().await?;
                    let time = Duration::from_millis(u64::from(millis));
                    blocking(move || std::thread::sleep(time)).await;
                    call.reply(&SleepReply {});
                }
                6 => {
                    let Peer {} = call.arguments().await?;
                    let address = call.peer().address;
                    call.reply(&PeerReply {
                        port: u32::from(address.port()),
                        v6: address.is_ipv6(),
                        superuser: call.caller().is_superuser(),
                    });
                }
                7 => panic!("as the test asked for"),
                8 => {
                    let counter = match call.connection_data::<AtomicU64>() {
                        Some(counter) => counter,
                        None => {
                            let counter = Arc::new(AtomicU64::new(0));
                            call.set_connection_data(counter.clone());
                            counter
                        }
                    };
                    let calls = counter.fetch_add(1, Ordering::Relaxed) + 1;
                    call.reply(&CountReply { calls });
                }
                9 => {
                    let Late { millis } = call.arguments().await?;
                    tokio::time::sleep(Duration::from_millis(u64::from(millis))).await;
                    call.reply(&LateReply {});
                }
                10 => {
                    let Whole { bytes } = call.arguments().await?;
                    call.reply(&WholeReply {
                        len: bytes.as_bytes().len() as u32,
                    });
                }
                11 => {
                    let Hasty { len } = call.arguments().await?;
                    let bytes = pattern_bytes(0, len as usize);
                    let patience = Duration::from_millis(100);
                    let _late = tokio::time::timeout(patience, call.write(bytes)).await;
                    return Err(AbortCode(4712));
                }
                12 => {
                    let Gather { announced, wanted } = call.arguments().await?;
                    let mut left = announced;
                    let bytes = call.gather(&mut left, wanted).await?.concat();
                    let gathered = bytes.len() as u64;
                    assert_eq!(bytes, pattern_bytes(0, bytes.len()));
                    let missing = left;
                    call.gather(&mut left, u64::MAX).await?;
                    let mut behind = 0;
                    while let Some(chunk) = call.read_chunk().await? {
                        behind += chunk.len() as u64;
                    }
                    call.reply(&GatherReply {
                        gathered,
                        left: missing,
                        behind,
                    });
                }
                13 => {
                    let Meet { code } = call.arguments().await?;
                    self.meeting.wait().await;
                    return Err(AbortCode(code));
                }
                _ => return Err(AbortCode::RXGEN_OPCODE),
            }
            Ok(())
        })
    }
}

impl Test {
    async fn store(&self, call: &mut IncomingCall) -> Result<(), AbortCode> {
        let Store { len } = call.arguments().await?;
        let mut position = 0;
        let mut total = 0;
        while position < len {
            let Some(chunk) = call.read_chunk().await? else {
                return Err(AbortCode::RXGEN_SS_UNMARSHAL);
            };
            if chunk != pattern_bytes(position, chunk.len()) {
                return Err(AbortCode(4711));
            }
            total += sum(&chunk);
            position += chunk.len() as u64;
            self.stored.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        }
        call.reply(&StoreReply {
            len: position,
            sum: total,
        });
        Ok(())
    }
}

/// A server on a free loopback port.
pub struct Server {
    pub runtime: Runtime,
    pub port: Port,
    pub service: Arc<Test>,
}

impl Server {
    pub fn start(shards: usize) -> Self {
        Self::start_with(shards, Test::default(), |config| config)
    }

    pub fn start_with(
        shards: usize,
        service: Test,
        configure: impl FnOnce(PortConfig) -> PortConfig,
    ) -> Self {
        let config = RuntimeConfig {
            shards,
            name: "test".into(),
            open_statistics: true,
            ..RuntimeConfig::default()
        };
        let runtime = Runtime::start(config).unwrap();
        let service = Arc::new(service);
        let config = PortConfig::new("127.0.0.1:0".parse().unwrap()).service(service.clone());
        let port = runtime.open(configure(config)).unwrap();
        Self {
            runtime,
            port,
            service,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.port.local_address()
    }

    /// Waits until `calls` calls are with their handlers.
    pub async fn until_at_work(&self, calls: u64) {
        let at_work = || self.service.at_work.load(Ordering::Relaxed);
        until("calls at work", async || at_work() == calls).await;
    }

    /// Creates a connection from a client runtime of its own.
    pub fn connect(&self, client: &Runtime) -> Connection {
        client
            .connect(self.address(), PACKAGE.service_id, Security::null())
            .unwrap()
    }
}

/// Runs a test's body, which must end before long. Any wait in it fails first, with its name.
pub fn run<T>(body: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        tokio::time::timeout(PATIENCE + Duration::from_secs(10), body)
            .await
            .expect("the test hangs")
    })
}

/// Streams `len` bytes to the server.
pub async fn store(connection: &Connection, len: u64) -> Result<StoreReply, CallError> {
    let mut call = connection.open(&Store { len }).await?;
    let mut position = 0;
    while position < len {
        let piece = (len - position).min(100_000) as usize;
        call.write(pattern_bytes(position, piece)).await?;
        position += piece as u64;
    }
    call.results().await
}

/// Streams `len` bytes from the server and checks them.
pub async fn fetch(connection: &Connection, len: u64) -> Result<u64, CallError> {
    let mut call = connection.open(&Fetch { len }).await?;
    assert_eq!(call.read::<u64>().await?, len);
    let mut position = 0;
    let mut total = 0;
    call.read_exact(len, |chunk| {
        assert!(chunk == pattern_bytes(position, chunk.len()));
        position += chunk.len() as u64;
        total += sum(&chunk);
    })
    .await?;
    let reply: FetchReply = call.results().await?;
    assert_eq!(reply.sum, total);
    Ok(total)
}

/// A raw call: opcode and bytes.
pub async fn raw(connection: &Connection, request: &[u8]) -> Result<Bytes, CallError> {
    let request = Bytes::copy_from_slice(request);
    let mut call = connection.open_raw(&PACKAGE, request, CallOptions::default())?;
    let mut reply = Vec::new();
    while let Some(chunk) = call.read_chunk().await? {
        reply.extend_from_slice(&chunk);
    }
    Ok(reply.into())
}
