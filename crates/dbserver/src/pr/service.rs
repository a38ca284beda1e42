//! PR over Rx and the local socket.

use std::sync::Arc;

use cellar_auth::audit::Audit;
use cellar_auth::{Authority, Principal};
use cellar_rpc::{Caller, IncomingCall, LocalBoxFuture, Service};
use cellar_wire::package::Package;
use cellar_wire::pr::{self as wire, NewEntry, NewEntryReply};
use cellar_wire::{AbortCode, Procedure};

use super::Pr;
use crate::dispatch::{answer, respond};
use crate::guard::Guard;
use crate::{Answer, Identity};

/// The service that answers PR calls.
#[derive(Clone)]
pub struct PrService {
    pr: Arc<Pr>,
    guard: Guard,
}

impl PrService {
    /// A service that identifies only the local administrator.
    pub fn new(pr: Arc<Pr>) -> Self {
        let guard = Guard::default();
        Self { pr, guard }
    }

    /// The same service for callers with tickets: `authority` identifies them, `audit` records
    /// their changes.
    #[must_use]
    pub fn with_authority(self, authority: Authority, audit: Audit) -> Self {
        let guard = Guard::new(authority, audit);
        Self { guard, ..self }
    }
}

impl Service for PrService {
    fn package(&self) -> &'static Package {
        &wire::PACKAGE
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(dispatch(&self.pr, &self.guard, call))
    }
}

async fn dispatch(pr: &Arc<Pr>, guard: &Guard, call: &mut IncomingCall) -> Result<(), AbortCode> {
    macro_rules! dispatch {
        ($opcode:expr; $($procedure:ident)*) => {
            match $opcode {
                wire::NewEntry::OPCODE => new_entry(pr, guard, call).await,
                $( wire::$procedure::OPCODE =>
                    answer::<wire::$procedure, _>(pr, guard, call).await, )*
                _ => Err(AbortCode::RXGEN_OPCODE),
            }
        };
    }
    dispatch! { call.opcode().await?;
        NameToID IDToName GetCPS GetHostCPS GetCPS2 ListEntry ListElements ListOwned ListMax
        IsAMemberOf ListSuperGroups ListEntries INewEntry AddToGroup RemoveFromGroup Delete
        ChangeEntry UpdateEntry SetFieldsEntry SetMax WhereIsIt DumpEntry
    }
}

/// NewEntry is the only call that depends on the caller's name: users of other cells may register
/// themselves.
async fn new_entry(pr: &Arc<Pr>, guard: &Guard, call: &mut IncomingCall) -> Result<(), AbortCode> {
    let principal = match call.caller() {
        Caller::Principal(principal) => principal.downcast_ref::<Principal>(),
        _ => None,
    };
    let foreign = principal
        .filter(|principal| principal.cell.is_some())
        .map(Principal::vice_name);
    let work = move |pr: &Pr, who: Identity, asked: NewEntry| match foreign {
        Some(name) if asked.name.eq_ignore_ascii_case(name.as_bytes()) => {
            let id = pr.register(who, &asked)?;
            Ok(NewEntryReply { id })
        }
        _ => pr.ask(who, asked),
    };
    respond(pr, guard, call, NewEntry::BLOCKS, work).await
}
