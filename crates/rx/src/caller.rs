//! The end that makes a call, as its security class knows it.

use std::any::Any;
use std::sync::Arc;

/// The maker of a call, as far as the transport knows.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Caller {
    /// A caller without credentials.
    Anonymous,
    /// The administrator of this machine, or a server that holds the cell's key.
    Superuser,
    /// A caller that a security class has identified; the class decides on the type.
    Principal(Arc<dyn Any + Send + Sync>),
}

impl Caller {
    /// Whether the caller may do everything.
    #[must_use]
    pub fn is_superuser(&self) -> bool {
        matches!(self, Self::Superuser)
    }
}
