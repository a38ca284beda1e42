//! What a caller may claim to be, once the superusers have been asked.

use std::sync::Arc;

use cellar_rx::Caller;

use crate::Principal;

/// Who makes a call.
#[derive(Clone, Debug)]
pub enum Identity {
    /// Somebody without credentials.
    Anonymous,
    /// Somebody who may do everything; the text says who, for logs.
    Superuser(String),
    /// Somebody with a ticket who is no superuser.
    User(Arc<Principal>),
}

impl Identity {
    /// Who a caller is where no ticket is believed: the local administrator, or anybody.
    #[must_use]
    pub fn without_ticket(caller: &Caller) -> Self {
        match caller {
            Caller::Superuser => Self::Superuser("local administrator".to_owned()),
            _ => Self::Anonymous,
        }
    }

    /// Whether the caller may do everything.
    #[must_use]
    pub fn is_superuser(&self) -> bool {
        matches!(self, Self::Superuser(_))
    }

    /// The caller, for logs: a name, or `anonymous`.
    #[must_use]
    pub fn who(&self) -> String {
        match self {
            Self::Anonymous => "anonymous".to_owned(),
            Self::Superuser(who) => who.clone(),
            Self::User(principal) => principal.vice_name(),
        }
    }
}
