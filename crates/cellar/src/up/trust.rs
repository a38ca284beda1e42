//! The keys and superusers of the servers of this process: one configuration directory for all of
//! them.
//!
//! A new cell has no KDC. So that it can be used, a random key of version 0 is made for it. No KDC
//! issues tickets for that key; only `-localauth` makes them. As soon as a realm's key is imported,
//! which has a higher version, that one is used instead. `cellar key retire 0` removes the first
//! key.
//!
//! A file server that joins a cell has that cell's key, and gets none of its own.

use cellar_auth::audit::Audit;
use cellar_auth::{Authority, Enctype, SecretKey};

use super::pieces::{self, New};
use crate::cell_directory::{CellDirectory, Identity};
use crate::failure::{Failure, Outcome};

/// The version of a new cell's first key.
const FIRST_KVNO: u32 = 0;

/// The keys, superusers and audit log, which every service gets.
pub(super) struct Trust {
    pub(super) authority: Authority,
    pub(super) audit: Audit,
}

impl Trust {
    /// Reads the server's configuration directory; makes what a new cell lacks.
    pub(super) fn open(directory: &CellDirectory, identity: &Identity, new: &New) -> Outcome<Self> {
        let etc = directory.server_etc();
        pieces::check_trust(directory, identity, new)?;
        let at =
            |cause: &dyn std::fmt::Display| Failure::new(format!("{}: {cause}", etc.display()));
        cellar_private::directory(&etc).map_err(|cause| at(&cause))?;
        // In a file server that has joined, the directory belongs to the cell and is only read.
        if identity.part.has_databases() {
            directory.write_server_etc(identity)?;
        }
        let name = identity.cell.name.as_str();
        let authority = Authority::open(&etc, name).map_err(|cause| at(&cause))?;
        let without_key = authority.keys().list().is_empty();
        if without_key && !identity.part.has_databases() {
            return Err(at(&format!(
                "no key of cell {name} here: copy KeyFileExt or rxkad.keytab from another of its servers"
            )));
        }
        if without_key && !pieces::may_make_key(identity, new) {
            return Err(at(&format!(
                "no key of cell {name} here, but the cell has been used: restore KeyFileExt from a copy. 'cellar up \
                 --new-server-etc' makes a new key; the other servers of the cell and its realm do not have that key"
            )));
        }
        if without_key {
            let key = SecretKey::random(Enctype::Aes256Sha1);
            authority
                .keys()
                .add(FIRST_KVNO, &key)
                .map_err(|cause| at(&cause))?;
        }
        let log = directory.audit_log();
        let audit = Audit::open(&log)
            .map_err(|cause| Failure::new(format!("{}: {cause}", log.display())))?;
        Ok(Self { authority, audit })
    }

    /// Returns whether the cell's only key is the first one, so that no realm gives tickets for it.
    pub(super) fn is_alone(&self) -> bool {
        let keys = self.authority.keys().list();
        keys.iter().all(|key| key.kvno == FIRST_KVNO)
    }
}
