//! Who may do what with which object.
//!
//! A capability names a device and says what its holder may do there. A superuser of the cell (a
//! ticket, or the local administrator's socket) may do everything, and names the device only.

use std::sync::Arc;

use cellar_auth::capability::{Act, Asked, device_of};
use cellar_rpc::IncomingCall;
use cellar_wire::object::{Capability, ObjectId, named_device};

use crate::device::Device;
use crate::refusal::Refusal;
use crate::server::Server;

impl Server {
    /// The device of a call that is allowed to do that.
    pub(crate) fn admit(
        &self,
        call: &IncomingCall,
        capability: &Capability,
        object: ObjectId,
        act: Act,
    ) -> Result<Arc<Device>, Refusal> {
        if let Some(id) = named_device(capability) {
            self.check_superuser(call)?;
            return self.device(id).ok_or(Refusal::NoDevice);
        }
        // One that names no device of ours is refused all the same, with the reason, and counted.
        let named = device_of(capability).and_then(|id| self.device(id));
        let asked = Asked {
            osd: named.as_ref().map_or(0, |device| device.id),
            object,
            act,
            client: call.peer().address.ip(),
            now: self.now(),
        };
        match self.config.keys.admit(capability, &asked) {
            Ok(_) => named.ok_or(Refusal::NoDevice),
            Err(refused) => {
                let peer = call.peer().address;
                tracing::debug!(%peer, %object, ?act, %refused, "capability refused");
                Err(Refusal::Capability)
            }
        }
    }

    /// The device of a call that servers of the cell make.
    pub(crate) fn admit_all(
        &self,
        call: &IncomingCall,
        capability: &Capability,
    ) -> Result<Arc<Device>, Refusal> {
        self.admit(call, capability, ObjectId::default(), Act::All)
    }

    fn check_superuser(&self, call: &IncomingCall) -> Result<(), Refusal> {
        let identity = self.config.authority.identify(call.caller());
        match identity.is_superuser() {
            true => Ok(()),
            false => Err(Refusal::NotSuperuser),
        }
    }
}
