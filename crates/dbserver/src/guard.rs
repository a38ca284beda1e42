//! The identification of callers, and the audit of their acts.
//!
//! Without a guard, only the socket of the local administrator proves an identity. With a guard,
//! callers with a ticket have a name, and the `UserList` names the superusers. Each administrative
//! act is written to the audit log, with the caller, the address and the outcome.

use cellar_auth::Authority;
use cellar_auth::audit::{Audit, Details, Record};
use cellar_rpc::{Caller, IncomingCall};
use cellar_wire::{AbortCode, AfsTime};

use crate::Answer;

/// The source of identities and the destination of audit records.
#[derive(Clone, Default)]
pub struct Guard {
    authority: Option<Authority>,
    audit: Option<Audit>,
}

impl Guard {
    pub(crate) fn new(authority: Authority, audit: Audit) -> Self {
        Self {
            authority: Some(authority),
            audit: Some(audit),
        }
    }

    /// The identity of a caller.
    pub(crate) fn identify(&self, caller: &Caller) -> cellar_auth::Identity {
        match &self.authority {
            Some(authority) => authority.identify(caller),
            None => cellar_auth::Identity::without_ticket(caller),
        }
    }

    /// Starts the record of an act, if there is an audit log.
    pub(crate) fn begin<S, P: Answer<S>>(&self, arguments: &P) -> Option<Act<'_>> {
        Some(Act {
            guard: self,
            audit: self.audit.as_ref()?,
            name: P::QUALIFIED_NAME,
            details: arguments.details(),
        })
    }
}

/// An administrative act without an outcome yet.
pub(crate) struct Act<'a> {
    guard: &'a Guard,
    audit: &'a Audit,
    name: &'static str,
    details: Details,
}

impl Act<'_> {
    /// Writes the record.
    pub(crate) fn end<T>(self, now: AfsTime, call: &IncomingCall, outcome: &Result<T, AbortCode>) {
        let who = self.guard.identify(call.caller());
        let code = outcome.as_ref().err().map_or(0, |code| code.0);
        let record = Record::new(now, self.name, &who, call.address(), code);
        self.audit.record(record.with_all(self.details));
    }
}
