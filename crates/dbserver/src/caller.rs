//! Who asks, as the database servers tell callers apart.

use cellar_wire::ViceId;

/// A caller's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The local administrator, or a server that holds the cell's key: may do everything.
    Superuser,
    /// A user of the protection database; [`ViceId::ANONYMOUS`] for who did not say.
    User(ViceId),
    /// Somebody who has proved a name that the protection database does not have.
    Stranger,
}

impl Identity {
    /// Who did not say who they are.
    pub const ANONYMOUS: Self = Self::User(ViceId::ANONYMOUS);

    /// Whether this is the superuser.
    pub fn is_superuser(self) -> bool {
        self == Self::Superuser
    }

    /// The id by which access is judged; a superuser acts as system:administrators, a stranger as
    /// nobody.
    pub fn id(self) -> ViceId {
        match self {
            Self::Superuser => ViceId::ADMINISTRATORS,
            Self::User(id) => id,
            Self::Stranger => ViceId::ANONYMOUS,
        }
    }
}
