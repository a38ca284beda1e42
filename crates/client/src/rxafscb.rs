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
use cellar_wire::package::{Package, Procedure};
use cellar_wire::rxafscb::{self, *};
use parking_lot::Mutex;

/// Completes when the client has processed the end of promises; the server is answered then.
pub type Settled<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// The receiver of the end of promises. They have ended when a method returns.
pub trait Promises: Send + Sync + 'static {
    /// The promises for these fids are broken; vnode 0 means every vnode of the volume.
    fn broken(&self, fids: &[Fid]) -> Settled<'_>;
    /// Every promise of this server has ended.
    fn all_broken(&self, server: SocketAddr) -> Settled<'_>;
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

    async fn answer(&self, call: &mut IncomingCall) -> Result<(), AbortCode> {
        match call.opcode().await? {
            CallBack::OPCODE => {
                let arguments: CallBack = call.arguments().await?;
                self.promises.broken(&arguments.fids).await;
                call.reply(&CallBackReply {});
            }
            InitCallBackState::OPCODE => {
                let _: InitCallBackState = call.arguments().await?;
                self.promises.all_broken(call.peer().address).await;
                call.reply(&InitCallBackStateReply {});
            }
            InitCallBackState3::OPCODE => {
                let _: InitCallBackState3 = call.arguments().await?;
                self.promises.all_broken(call.peer().address).await;
                call.reply(&InitCallBackState3Reply {});
            }
            Probe::OPCODE => {
                let _: Probe = call.arguments().await?;
                call.reply(&ProbeReply {});
            }
            ProbeUuid::OPCODE => {
                let arguments: ProbeUuid = call.arguments().await?;
                if arguments.client_uuid != self.uuid {
                    return Err(AbortCode(1));
                }
                call.reply(&ProbeUuidReply {});
            }
            WhoAreYou::OPCODE => {
                let _: WhoAreYou = call.arguments().await?;
                call.reply(&WhoAreYouReply {
                    address: self.interfaces(),
                });
            }
            TellMeAboutYourself::OPCODE => {
                let _: TellMeAboutYourself = call.arguments().await?;
                let capabilities =
                    Capabilities::from_iter_cut([client_capability::ERROR_TRANSLATION]);
                let address = self.interfaces();
                call.reply(&TellMeAboutYourselfReply {
                    address,
                    capabilities,
                });
            }
            _ => return Err(AbortCode::RXGEN_OPCODE),
        }
        Ok(())
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
