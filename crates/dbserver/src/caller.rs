//! Identities of callers, as the database servers distinguish them.

use std::net::{IpAddr, SocketAddr};

use cellar_auth::Principal;
use cellar_rpc::Caller;
use cellar_wire::ViceId;

use crate::guard::Guard;

/// A caller's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The local administrator, or a server with the cell's key. It has all permissions.
    Superuser,
    /// A user of the protection database; [`ViceId::ANONYMOUS`] for a caller without an identity.
    User(ViceId),
    /// A caller with a proved name that the protection database does not have.
    Stranger,
}

impl Identity {
    /// A caller without an identity.
    pub const ANONYMOUS: Self = Self::User(ViceId::ANONYMOUS);

    /// Whether this is the superuser.
    pub fn is_superuser(self) -> bool {
        self == Self::Superuser
    }

    /// The id for access checks. A superuser acts as system:administrators, a stranger as
    /// anonymous.
    pub fn id(self) -> ViceId {
        match self {
            Self::Superuser => ViceId::ADMINISTRATORS,
            Self::User(id) => id,
            Self::Stranger => ViceId::ANONYMOUS,
        }
    }
}

/// The origin of a call from another process.
#[derive(Clone)]
pub struct Origin {
    caller: Caller,
    guard: Guard,
    address: Option<SocketAddr>,
}

impl Origin {
    /// `address` is absent for a caller on the local administrator's socket.
    pub(crate) fn new(caller: &Caller, guard: &Guard, address: Option<SocketAddr>) -> Self {
        Self {
            caller: caller.clone(),
            guard: guard.clone(),
            address,
        }
    }

    /// The caller's name in logs.
    pub(crate) fn who(&self) -> String {
        self.guard.identify(&self.caller).who()
    }

    /// The caller's IPv4 address (192.0.2.1 is 0xc0000201); 0 for the local administrator's socket.
    pub(crate) fn ipv4(&self) -> u32 {
        match self.address.map(|address| address.ip()) {
            Some(IpAddr::V4(ip)) => u32::from(ip),
            _ => 0,
        }
    }

    /// The proved name of a caller from another cell: `user@cell`.
    pub(crate) fn foreign_name(&self) -> Option<String> {
        let principal: &Principal = match &self.caller {
            Caller::Principal(principal) => principal.downcast_ref()?,
            _ => return None,
        };
        principal.cell.is_some().then(|| principal.vice_name())
    }
}
