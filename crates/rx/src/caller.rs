//! Identity of the caller, as its security class reports it.

use std::any::Any;
use std::sync::Arc;

/// Identity of the caller of a call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Caller {
    /// A caller without credentials.
    Anonymous,
    /// The administrator of this machine, or a server that holds the cell's key.
    Superuser,
    /// A caller that a security class has identified; the class defines the type.
    Principal(Arc<dyn Any + Send + Sync>),
}

impl Caller {
    /// Whether the caller may do everything.
    #[must_use]
    pub fn is_superuser(&self) -> bool {
        matches!(self, Self::Superuser)
    }
}
