//! The identity of a caller, after the list of superusers was checked.

use std::sync::Arc;

use cellar_rx::Caller;

use crate::Principal;

/// The identity of a caller.
#[derive(Clone, Debug)]
pub enum Identity {
    /// A caller without credentials.
    Anonymous,
    /// A caller who may do everything; the text names it in logs.
    Superuser(String),
    /// A caller with a ticket who is not a superuser.
    User(Arc<Principal>),
}

impl Identity {
    /// The identity of a caller at a service that accepts no tickets: the local administrator, or
    /// an anonymous caller.
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

    /// The caller's name in logs, or `anonymous`.
    #[must_use]
    pub fn who(&self) -> String {
        match self {
            Self::Anonymous => "anonymous".to_owned(),
            Self::Superuser(who) => who.clone(),
            Self::User(principal) => principal.vice_name(),
        }
    }
}
