//! The callback service: the calls that file servers make to a client.
//!
//! 1. When a client is new to a file server, the server asks who the client is
//!    (`TellMeAboutYourself`) before it answers the client's first call. A client that does not
//!    answer gets no service. So every client, however short-lived, answers on the port from which
//!    it calls.
//! 2. `CallBack` and `InitCallBackState*` end promises. They are passed to [`Promises`], and
//!    answered after that has returned, because the server's other client waits for the answer.
//! 3. A break only makes the client ask again, so breaks from any sender are believed.
//!
//! Source: afs-rpcs §6 and §7.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use cellar_rpc::{IncomingCall, LocalBoxFuture, Service};
use cellar_wire::abort::AbortCode;
use cellar_wire::host::{Capabilities, Interface, InterfaceAddr, client_capability};
use cellar_wire::ids::{AfsUuid, Fid};
use cellar_wire::package::Package;
use cellar_wire::rxafscb::{self, *};
use cellar_wire::serve::{CallHandler, Handle};
use parking_lot::Mutex;

/// Completes when the client has processed the end of promises; the server is answered then.
pub type BreakHandled<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// The receiver of the end of promises. They have ended when a method returns.
pub trait Promises: Send + Sync + 'static {
    /// The promises for these fids are broken; vnode 0 means every vnode of the volume.
    fn broken(&self, fids: &[Fid]) -> BreakHandled<'_>;
    /// Every promise of this server has ended.
    fn all_broken(&self, server: SocketAddr) -> BreakHandled<'_>;
}

/// The callback service of one client.
pub struct CallbackService {
    uuid: AfsUuid,
    addresses: Mutex<Vec<IpAddr>>,
    promises: Arc<dyn Promises>,
}

impl CallbackService {
    /// Makes the service of a client with this UUID and these addresses.
    pub fn new(uuid: AfsUuid, addresses: Vec<IpAddr>, promises: Arc<dyn Promises>) -> Self {
        Self {
            uuid,
            addresses: Mutex::new(addresses),
            promises,
        }
    }

    /// Sets the addresses at which the client is reachable from now on.
    pub fn set_addresses(&self, addresses: Vec<IpAddr>) {
        *self.addresses.lock() = addresses;
    }

    fn interfaces(&self) -> InterfaceAddr {
        let mut answer = InterfaceAddr {
            uuid: self.uuid,
            ..InterfaceAddr::default()
        };
        for address in self.addresses.lock().iter() {
            if let IpAddr::V4(ip) = address {
                let interface = Interface {
                    address: u32::from(*ip),
                    netmask: u32::MAX << 8,
                    mtu: 1500,
                };
                // The protocol has room for 32 addresses; the rest is left out, as in every client.
                let _full = answer.interfaces.push(interface);
            }
        }
        answer
    }
}

impl CallHandler for CallbackService {
    type Refusal = AbortCode;

    fn failed(code: AbortCode) -> AbortCode {
        code
    }
}

impl Handle<CallBack, IncomingCall> for CallbackService {
    async fn handle(
        &self,
        _: &IncomingCall,
        arguments: CallBack,
    ) -> Result<CallBackReply, AbortCode> {
        self.promises.broken(&arguments.fids).await;
        Ok(CallBackReply {})
    }
}

impl Handle<InitCallBackState, IncomingCall> for CallbackService {
    async fn handle(
        &self,
        call: &IncomingCall,
        _: InitCallBackState,
    ) -> Result<InitCallBackStateReply, AbortCode> {
        self.promises.all_broken(call.peer().address).await;
        Ok(InitCallBackStateReply {})
    }
}

impl Handle<InitCallBackState3, IncomingCall> for CallbackService {
    async fn handle(
        &self,
        call: &IncomingCall,
        _: InitCallBackState3,
    ) -> Result<InitCallBackState3Reply, AbortCode> {
        self.promises.all_broken(call.peer().address).await;
        Ok(InitCallBackState3Reply {})
    }
}

impl Handle<Probe, IncomingCall> for CallbackService {
    async fn handle(&self, _: &IncomingCall, _: Probe) -> Result<ProbeReply, AbortCode> {
        Ok(ProbeReply {})
    }
}

impl Handle<ProbeUuid, IncomingCall> for CallbackService {
    async fn handle(
        &self,
        _: &IncomingCall,
        arguments: ProbeUuid,
    ) -> Result<ProbeUuidReply, AbortCode> {
        if arguments.client_uuid != self.uuid {
            return Err(AbortCode(1));
        }
        Ok(ProbeUuidReply {})
    }
}

impl Handle<WhoAreYou, IncomingCall> for CallbackService {
    async fn handle(&self, _: &IncomingCall, _: WhoAreYou) -> Result<WhoAreYouReply, AbortCode> {
        Ok(WhoAreYouReply {
            address: self.interfaces(),
        })
    }
}

impl Handle<TellMeAboutYourself, IncomingCall> for CallbackService {
    async fn handle(
        &self,
        _: &IncomingCall,
        _: TellMeAboutYourself,
    ) -> Result<TellMeAboutYourselfReply, AbortCode> {
        let capabilities = Capabilities::from_iter_cut([client_capability::ERROR_TRANSLATION]);
        let address = self.interfaces();
        Ok(TellMeAboutYourselfReply {
            address,
            capabilities,
        })
    }
}

impl Service for CallbackService {
    fn package(&self) -> &'static Package {
        &rxafscb::PACKAGE
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(async move { rxafscb::serve(self, call.opcode().await?, call).await })
    }
}
