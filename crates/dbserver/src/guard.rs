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
            None if caller.is_superuser() => {
                cellar_auth::Identity::Superuser("local administrator".to_owned())
            }
            None => cellar_auth::Identity::Anonymous,
        }
    }

    /// Begins the record of an act, if acts are recorded.
    pub(crate) fn begin<P: Procedure>(&self, arguments: &P) -> Option<Act<'_>> {
        let audit = self.audit.as_ref()?;
        let mut what = format!("{arguments:?}");
        if what.len() > SHOWN_MAX {
            let end = (0..=SHOWN_MAX)
                .rev()
                .find(|end| what.is_char_boundary(*end));
            what.truncate(end.unwrap_or_default());
        }
        Some(Act {
            audit,
            name: P::QUALIFIED_NAME,
            what,
        })
    }
}

/// An administrative act whose outcome is not known yet.
pub(crate) struct Act<'a> {
    audit: &'a Audit,
    name: &'static str,
    what: String,
}

impl Act<'_> {
    /// Writes the record.
    pub(crate) fn end<T>(
        self,
        now: AfsTime,
        who: &cellar_auth::Identity,
        call: &IncomingCall,
        outcome: &Result<T, AbortCode>,
    ) {
        // The local administrator's socket has no address.
        let address = Some(call.peer().address).filter(|address| address.port() != 0);
        let code = outcome.as_ref().err().map_or(0, |code| code.0);
        let record = Record::new(now, self.name, who, address, code);
        self.audit.record(record.with("arguments", self.what));
    }
}
