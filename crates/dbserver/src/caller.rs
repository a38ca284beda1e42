//! Identities of callers, as the database servers distinguish them.

use cellar_wire::ViceId;

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
