//! What a service is told of its callers, and what it writes down of them.
//!
//! Without a guard only the local administrator's socket proves anything. With one, callers that
//! showed a ticket are known by their names, the `UserList` says who is a superuser, and each
//! administrative act is written to the audit log: by whom, from where, with which outcome.

use cellar_auth::Authority;
use cellar_auth::audit::{Audit, Record};
use cellar_rpc::{Caller, IncomingCall};
use cellar_wire::{AbortCode, AfsTime, Procedure};

/// Bytes of arguments that a record shows.
const SHOWN_MAX: usize = 512;

/// What a service trusts and where it writes down what was done.
#[derive(Clone, Default)]
pub(crate) struct Guard {
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

    /// Who a caller is.
    pub(crate) fn identify(&self, caller: &Caller) -> cellar_auth::Identity {
        match &self.authority {
            Some(authority) => authority.identify(caller),
            None => cellar_auth::Identity::without_ticket(caller),
        }
    }

    /// Begins the record of an act, if acts are recorded.
    pub(crate) fn begin<P: Procedure>(&self, arguments: &P) -> Option<Act<'_>> {
        let audit = self.audit.as_ref()?;
        let mut what = format!("{arguments:?}");
        what.truncate(what.floor_char_boundary(SHOWN_MAX));
        Some(Act {
            guard: self,
            audit,
            name: P::QUALIFIED_NAME,
            what,
        })
    }
}

/// An administrative act whose outcome is not known yet.
pub(crate) struct Act<'a> {
    guard: &'a Guard,
    audit: &'a Audit,
    name: &'static str,
    what: String,
}

impl Act<'_> {
    /// Writes the record.
    pub(crate) fn end<T>(self, now: AfsTime, call: &IncomingCall, outcome: &Result<T, AbortCode>) {
        let who = self.guard.identify(call.caller());
        let code = outcome.as_ref().err().map_or(0, |code| code.0);
        let record = Record::new(now, self.name, &who, call.address(), code);
        self.audit.record(record.with("arguments", self.what));
    }
}
