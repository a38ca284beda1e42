//! Permission checks for calls on objects.
//!
//! A capability names a device and the permissions of its holder there. A superuser of the cell (by
//! a ticket, or on the local administrator's socket) may do everything, and its capability only
//! names the device.

use std::sync::Arc;

use cellar_auth::capability::{Act, CapabilityRequest, device_of};
use cellar_rpc::IncomingCall;
use cellar_wire::object::{Capability, ObjectId, named_device};

use crate::device::Device;
use crate::refusal::Refusal;
use crate::server::Server;

impl Server {
    /// Returns the device of a call whose caller has permission for it.
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
        // A capability for a foreign device is also refused with the reason, and counted.
        let named = device_of(capability).and_then(|id| self.device(id));
        let asked = CapabilityRequest {
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

    /// Returns the device of a call that only servers of the cell may make.
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
