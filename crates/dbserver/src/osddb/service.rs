//! OSDDB over Rx and the local socket.

use std::sync::Arc;

use cellar_auth::Authority;
use cellar_auth::audit::Audit;
use cellar_rpc::{IncomingCall, LocalBoxFuture, Service};
use cellar_wire::osddb as wire;
use cellar_wire::package::Package;
use cellar_wire::{AbortCode, Procedure};

use super::OsdDb;
use crate::dispatch::answer;
use crate::guard::Guard;

/// The service that answers OSDDB calls.
#[derive(Clone)]
pub struct OsdDbService {
    osddb: Arc<OsdDb>,
    guard: Guard,
}

impl OsdDbService {
    /// A service that identifies only the local administrator.
    pub fn new(osddb: Arc<OsdDb>) -> Self {
        let guard = Guard::default();
        Self { osddb, guard }
    }

    /// The same service for callers with tickets: `authority` names the superusers, `audit` records
    /// their changes.
    #[must_use]
    pub fn with_authority(self, authority: Authority, audit: Audit) -> Self {
        let guard = Guard::new(authority, audit);
        Self { guard, ..self }
    }
}

impl Service for OsdDbService {
    fn package(&self) -> &'static Package {
        &wire::PACKAGE
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(dispatch(&self.osddb, &self.guard, call))
    }
}

async fn dispatch(
    osddb: &Arc<OsdDb>,
    guard: &Guard,
    call: &mut IncomingCall,
) -> Result<(), AbortCode> {
    macro_rules! dispatch {
        ($opcode:expr; $($procedure:ident)*) => {
            match $opcode {
                $( wire::$procedure::OPCODE =>
                    answer::<wire::$procedure, _>(osddb, guard, call).await, )*
                _ => Err(AbortCode::RXGEN_OPCODE),
            }
        };
    }
    dispatch! { call.opcode().await?;
        GetRevisions ListOsds GetOsd CreateOsd SetOsd Heartbeat ListPolicies SetPolicy DeletePolicy
    }
}
