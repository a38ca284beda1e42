//! What a server trusts: the files of its configuration directory, and rules.

use std::path::Path;
use std::sync::Arc;

use cellar_rpc::Caller;

use crate::{Identity, Level, Principal, Result, Superusers};

/// Rules of a server that no file tells.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Lowest level that a connection may have; less is refused with `RXKADLEVELFAIL`.
    /// Default: clear, as OpenAFS.
    pub level_min: Level,
    /// Whether a principal's first component may hold a dot (`-allow-dotted-principals`). Default: no,
    /// since `user.admin` would be taken for `user/admin`.
    pub allow_dotted_principals: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            level_min: Level::Clear,
            allow_dotted_principals: false,
        }
    }
}

/// What a server trusts. Clones share everything.
#[derive(Clone)]
pub struct Authority(Arc<Inner>);

struct Inner {
    cell: String,
    policy: Policy,
    superusers: Superusers,
}

impl Authority {
    /// Reads `UserList` in `directory`. Files that are missing are empty ones; changes are seen
    /// at the next use.
    ///
    /// # Errors
    /// [`crate::Error::File`], [`crate::Error::Malformed`].
    pub fn open(directory: &Path, cell: &str) -> Result<Self> {
        Self::open_with(directory, cell, Policy::default())
    }

    /// [`Self::open`] with other rules.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(directory: &Path, cell: &str, policy: Policy) -> Result<Self> {
        Ok(Self(Arc::new(Inner {
            cell: cell.to_owned(),
            policy,
            superusers: Superusers::open(directory.join("UserList"), cell)?,
        })))
    }

    /// The cell.
    #[must_use]
    pub fn cell(&self) -> &str {
        &self.0.cell
    }

    /// The rules.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.0.policy
    }

    /// The superusers, to list and change.
    #[must_use]
    pub fn superusers(&self) -> &Superusers {
        &self.0.superusers
    }

    /// Who a caller is. The `UserList` is asked each time: who is taken off it stops being a superuser
    /// with the next call. Principals of another crate's security class are anonymous here.
    #[must_use]
    pub fn identify(&self, caller: &Caller) -> Identity {
        match caller {
            Caller::Superuser => Identity::Superuser("local administrator".to_owned()),
            Caller::Principal(any) => match any.clone().downcast::<Principal>() {
                Ok(principal) if principal.key_holder => {
                    Identity::Superuser("holder of the cell's key".to_owned())
                }
                Ok(principal) if self.0.superusers.contains(&principal) => {
                    Identity::Superuser(principal.vice_name())
                }
                Ok(principal) => Identity::User(principal),
                Err(_) => Identity::Anonymous,
            },
            _ => Identity::Anonymous,
        }
    }
}
