//! PR over Rx and the local socket.

use std::sync::Arc;

use cellar_rpc::{IncomingCall, LocalBoxFuture, Service};
use cellar_wire::package::Package;
use cellar_wire::pr as wire;
use cellar_wire::{AbortCode, Procedure};

use super::Pr;
use crate::dispatch::answer;

/// The service that answers PR calls.
#[derive(Clone)]
pub struct PrService(Arc<Pr>);

impl PrService {
    /// A service over a server.
    pub fn new(pr: Arc<Pr>) -> Self {
        Self(pr)
    }
}

impl Service for PrService {
    fn package(&self) -> &'static Package {
        &wire::PACKAGE
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(dispatch(&self.0, call))
    }
}

async fn dispatch(pr: &Arc<Pr>, call: &mut IncomingCall) -> Result<(), AbortCode> {
    macro_rules! dispatch {
        ($opcode:expr; $($procedure:ident)*) => {
            match $opcode {
                $( wire::$procedure::OPCODE => answer::<wire::$procedure, _>(pr, call).await, )*
                _ => Err(AbortCode::RXGEN_OPCODE),
            }
        };
    }
    dispatch! { call.opcode().await?;
        NameToID IDToName GetCPS GetHostCPS GetCPS2 ListEntry ListElements ListOwned ListMax
        IsAMemberOf ListSuperGroups ListEntries INewEntry NewEntry AddToGroup RemoveFromGroup Delete
        ChangeEntry UpdateEntry SetFieldsEntry SetMax WhereIsIt DumpEntry
    }
}
