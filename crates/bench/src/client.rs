//! One simulated client machine: its own UDP port with a callback service, and connections.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cellar_rpc::{
    Connection, ConnectionOptions, IncomingCall, LocalBoxFuture, Port, PortConfig, Runtime,
    RuntimeConfig, Security, Service, Spread,
};
use cellar_wire::abort::AbortCode;
use cellar_wire::host::{Capabilities, InterfaceAddr, client_capability};
use cellar_wire::ids::AfsUuid;
use cellar_wire::package::{Package, Procedure};
use cellar_wire::{pr, rxafs, rxafscb, vl};

/// Addresses of the servers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Servers {
    pub(crate) file: SocketAddr,
    pub(crate) location: SocketAddr,
    pub(crate) protection: SocketAddr,
}

/// A client machine as the servers see it: one address and port, one UUID.
#[derive(Clone)]
pub(crate) struct Client {
    runtime: Runtime,
    shard: usize,
    port: Port,
    security: Security,
    file_server: SocketAddr,
    pub(crate) file: Connection,
    pub(crate) location: Connection,
    pub(crate) protection: Connection,
    pub(crate) breaks: Arc<CallbackService>,
}

impl Client {
    /// Starts `count` clients on the threads of one runtime with an event loop per processor. A
    /// process for each client would take processor time from the servers on the same machine.
    /// The clients take the servers in turn. Nothing is sent yet.
    pub(crate) fn start_all(
        bind: IpAddr,
        servers: &[Servers],
        security: &Security,
        count: usize,
    ) -> io::Result<Vec<Self>> {
        let processors = std::thread::available_parallelism()?.get();
        let runtime = Runtime::start(RuntimeConfig {
            shards: processors.min(count).max(1),
            blocking_threads: 1,
            name: "load".to_owned(),
            ..RuntimeConfig::default()
        })?;
        (0..count)
            .map(|number| {
                let shard = number % runtime.shards();
                let servers = &servers[number % servers.len()];
                Self::start(&runtime, shard, bind, servers, security)
            })
            .collect()
    }

    /// Opens a port on `bind` and prepares connections.
    fn start(
        runtime: &Runtime,
        shard: usize,
        bind: IpAddr,
        servers: &Servers,
        security: &Security,
    ) -> io::Result<Self> {
        let breaks = Arc::new(CallbackService::new());
        let config = PortConfig::new(SocketAddr::new(bind, 0))
            .service(breaks.clone())
            .spread(Spread::OneShard(shard));
        let port = runtime.open(config)?;
        let connect = |server, package: &Package| {
            port.connect_with(server, package.service_id, security.clone(), options())
        };
        Ok(Self {
            file: connect(servers.file, &rxafs::PACKAGE),
            location: connect(servers.location, &vl::PACKAGE),
            protection: connect(servers.protection, &pr::PACKAGE),
            security: security.clone(),
            file_server: servers.file,
            port,
            runtime: runtime.clone(),
            shard,
            breaks,
        })
    }

    /// Creates another connection to the file server, which must be authenticated again.
    pub(crate) fn reconnect(&self) -> Connection {
        let service = rxafs::PACKAGE.service_id;
        self.port
            .connect_with(self.file_server, service, self.security.clone(), options())
    }

    /// Starts a task on the thread of the client's port.
    pub(crate) fn spawn<F, T>(&self, make: F)
    where
        F: FnOnce() -> T + Send + 'static,
        T: Future<Output = ()> + 'static,
    {
        self.runtime.spawn(self.shard, make);
    }

    /// Ends all clients that were started together.
    pub(crate) fn shutdown(&self) {
        self.runtime.shutdown();
    }
}

fn options() -> ConnectionOptions {
    ConnectionOptions {
        dead_time: Some(Duration::from_secs(30)),
        calls_max: Some(256),
        ..ConnectionOptions::default()
    }
}

/// Answers the file server as a cache manager would, and counts broken promises.
pub(crate) struct CallbackService {
    uuid: AfsUuid,
    broken: AtomicU64,
    reset: AtomicU64,
}

impl CallbackService {
    fn new() -> Self {
        let uuid = AfsUuid(uuid::Uuid::new_v4().into_bytes());
        Self {
            uuid,
            broken: AtomicU64::new(0),
            reset: AtomicU64::new(0),
        }
    }

    /// Returns the number of fids whose promise was broken, and of breaks of all promises.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (
            self.broken.load(Ordering::Relaxed),
            self.reset.load(Ordering::Relaxed),
        )
    }

    async fn answer(&self, call: &mut IncomingCall) -> Result<(), AbortCode> {
        match call.opcode().await? {
            rxafscb::CallBack::OPCODE => {
                let arguments: rxafscb::CallBack = call.arguments().await?;
                self.broken
                    .fetch_add(arguments.fids.len() as u64, Ordering::Relaxed);
            }
            rxafscb::InitCallBackState::OPCODE | rxafscb::InitCallBackState3::OPCODE => {
                self.reset.fetch_add(1, Ordering::Relaxed);
            }
            rxafscb::Probe::OPCODE => {}
            rxafscb::ProbeUuid::OPCODE => {
                let arguments: rxafscb::ProbeUuid = call.arguments().await?;
                if arguments.client_uuid != self.uuid {
                    return Err(AbortCode(1));
                }
            }
            rxafscb::WhoAreYou::OPCODE => {
                call.reply(&rxafscb::WhoAreYouReply {
                    address: self.address(),
                });
            }
            rxafscb::TellMeAboutYourself::OPCODE => {
                let capabilities =
                    Capabilities::from_iter_cut([client_capability::ERROR_TRANSLATION]);
                call.reply(&rxafscb::TellMeAboutYourselfReply {
                    address: self.address(),
                    capabilities,
                });
            }
            _ => return Err(AbortCode::RXGEN_OPCODE),
        }
        Ok(())
    }

    fn address(&self) -> InterfaceAddr {
        InterfaceAddr {
            uuid: self.uuid,
            ..InterfaceAddr::default()
        }
    }
}

impl Service for CallbackService {
    fn package(&self) -> &'static Package {
        &rxafscb::PACKAGE
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(self.answer(call))
    }
}
