//! The basis of a server's trust: the files of its configuration directory, and rules.

use std::path::Path;
use std::sync::Arc;

use cellar_rx::{Caller, Security, ServerSecurity};
use cellar_wire::AfsTime;

use crate::kerberos::{self, NEVER};
use crate::realms::Realms;
use crate::rxkad::{Failures, Server};
use crate::{
    Error, Figures, Identity, KVNO_ENCRYPTED_PART, Keys, Level, Principal, Result, Superusers,
    Token, kdf,
};

/// Rules of a server that are in no file.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// The lowest level that a connection may have; a lower one is refused with `RXKADLEVELFAIL`.
    /// Default: clear, as in OpenAFS.
    pub level_min: Level,
    /// Whether a principal's first component may hold a dot (`-allow-dotted-principals`). Default:
    /// no, since `user.admin` would be taken for `user/admin`.
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

/// The keys, superusers, realms and rules of a server. Clones share everything.
#[derive(Clone)]
pub struct Authority(Arc<Inner>);

struct Inner {
    cell: String,
    policy: Policy,
    superusers: Superusers,
    keys: Keys,
    realms: Realms,
    failures: Failures,
}

impl Authority {
    /// Reads `KeyFileExt`, `rxkad.keytab`, `UserList`, `krb.conf` and `krb.excl` in `directory`. A
    /// missing file counts as an empty one. A changed file is read again at its next use. If a file
    /// becomes unreadable, its last good contents stay in force.
    ///
    /// # Errors
    /// [`crate::Error::File`], [`crate::Error::Malformed`].
    pub fn open(directory: &Path, cell: &str) -> Result<Self> {
        Self::open_with(directory, cell, Policy::default())
    }

    /// Like [`Self::open`], with other rules.
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub fn open_with(directory: &Path, cell: &str, policy: Policy) -> Result<Self> {
        Ok(Self(Arc::new(Inner {
            cell: cell.to_owned(),
            policy,
            superusers: Superusers::open(directory.join("UserList"), cell)?,
            keys: Keys::open(directory)?,
            realms: Realms::open(directory, cell)?,
            failures: Failures::default(),
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

    /// The security class with index 2, for a port.
    #[must_use]
    pub fn server_security(&self) -> Arc<dyn ServerSecurity> {
        Arc::new(Server::new(self.clone()))
    }

    /// A token whose ticket proves that the bearer holds the cell's key. It is made with the newest
    /// key, and valid until that key is retired.
    ///
    /// # Errors
    /// [`Error::NoKey`].
    pub fn localauth_token(&self) -> Result<Token> {
        let (info, key) = self.0.keys.newest().ok_or(Error::NoKey)?;
        let session_key = kdf::random_key();
        Ok(Token {
            cell: self.0.cell.clone(),
            principal: "afs".to_owned(),
            kvno: KVNO_ENCRYPTED_PART,
            ticket: kerberos::mint(&key, info.kvno, &session_key)?,
            session_key,
            begins: AfsTime(0),
            expires: AfsTime(NEVER),
        })
    }

    /// Security for calls as a holder of the cell's key: `-localauth`, and calls among servers. The
    /// ticket is made once, here. After a change of the cell's key, make another.
    ///
    /// # Errors
    /// [`Error::NoKey`].
    pub fn localauth(&self, level: Level) -> Result<Security> {
        Ok(self.localauth_token()?.security(level))
    }

    /// The keys, for listing and changing them.
    #[must_use]
    pub fn keys(&self) -> &Keys {
        &self.0.keys
    }

    /// Counts of accepted and refused connections since [`Self::open`].
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.0.failures.figures()
    }

    /// Whether `name@realm` is a user of this cell, who is known by the bare name. That is a user
    /// of one of our realms, unless `krb.excl` lists the user.
    #[must_use]
    pub fn is_ours(&self, name: &str, realm: &str) -> bool {
        let (name, instance) = name.split_once('.').unwrap_or((name, ""));
        self.realms().foreign(name, instance, realm).is_none()
    }

    pub(crate) fn realms(&self) -> &Realms {
        &self.0.realms
    }

    pub(crate) fn failures(&self) -> &Failures {
        &self.0.failures
    }

    /// The superusers, for listing and changing them.
    #[must_use]
    pub fn superusers(&self) -> &Superusers {
        &self.0.superusers
    }

    /// The identity of a caller. The `UserList` is checked each time: a user who is removed from it
    /// stops being a superuser with the next call. Principals of another crate's security class are
    /// anonymous here.
    #[must_use]
    pub fn identify(&self, caller: &Caller) -> Identity {
        let Caller::Principal(any) = caller else {
            return Identity::without_ticket(caller);
        };
        match any.clone().downcast::<Principal>() {
            Ok(principal) if principal.key_holder => {
                Identity::Superuser("holder of the cell's key".to_owned())
            }
            Ok(principal) if self.0.superusers.contains(&principal) => {
                Identity::Superuser(principal.vice_name())
            }
            Ok(principal) => Identity::User(principal),
            Err(_) => Identity::Anonymous,
        }
    }
}
