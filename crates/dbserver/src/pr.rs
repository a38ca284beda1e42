//! PR, the protection server: users, groups and memberships. Port 7002, service 73.
//!
//! Each procedure is in the file named after it, or after the subject that it shares with others.
//! Reads are answered from `model`, in memory. Writes go through `tables` in a transaction, and are
//! answered when they are durable and visible. `access` decides about permissions. Its rules are
//! OpenAFS's, in the same order, so that each refusal has the code that `pts` explains.

use std::sync::Arc;

use cellar_auth::{Authority, Principal};
use cellar_celldb::CellDb;
use cellar_rpc::Caller;
use cellar_wire::pr::PrName;
use cellar_wire::{AbortCode, ViceId, pr as wire};

use crate::answer::{Answer, Kind, Server, serves};
use crate::guard::Guard;
use crate::replica::Replica;
use crate::{Clock, Error, Identity};

mod access;
mod bootstrap;
mod change_entry;
mod cps;
mod delete;
mod directory;
mod dump_entry;
mod limits;
mod list_entry;
mod membership;
mod model;
mod names;
mod new_entry;
mod record;
mod reserved_ids;
mod set_fields_entry;
mod tables;
#[cfg(test)]
mod tests;

pub use directory::Directory;

/// The permissions that a cell restricts beyond OpenAFS's defaults.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// Only administrators create, change and delete entries or memberships, independent of their
    /// owners (`-restricted`).
    pub restricted: bool,
    /// A caller without an identity may only map names to ids, and see the members and owned groups
    /// that an entry shows to everyone (`-restrict_anonymous`).
    pub restrict_anonymous: bool,
}

/// The protection server of a cell.
pub struct Pr {
    rules: Rules,
    replica: Replica<model::Protection>,
    reserved_ids: reserved_ids::ReservedIds,
    clock: Clock,
    cell: String,
    /// Knows further realms of this cell, besides the one with its name.
    authority: Option<Authority>,
}

impl Pr {
    /// Loads the protection database of `cell`; an empty one gets the entries of every cell.
    ///
    /// # Errors
    /// The database cannot be read or written, or holds rows that do not parse.
    pub fn open(db: Arc<dyn CellDb>, clock: Clock, cell: &str) -> Result<Self, Error> {
        let now = clock();
        let replica = Replica::open(db, |transaction| bootstrap::fill(transaction, now))?;
        Ok(Self {
            rules: Rules::default(),
            replica,
            reserved_ids: reserved_ids::ReservedIds::default(),
            clock,
            cell: cell.to_owned(),
            authority: None,
        })
    }

    /// The same server with other rules.
    #[must_use]
    pub fn with_rules(self, rules: Rules) -> Self {
        Self { rules, ..self }
    }

    /// The same server in a cell with several realms: `name@realm` is `name` if `authority` says
    /// that the realm is the cell's.
    #[must_use]
    pub fn with_realms(self, authority: Authority) -> Self {
        let authority = Some(authority);
        Self { authority, ..self }
    }

    /// Executes a procedure for a caller in this process. A procedure that changes data blocks
    /// until the change is durable.
    ///
    /// # Errors
    /// The code that a remote caller would get.
    pub fn ask<P: Answer<Self>>(&self, who: Identity, arguments: P) -> Result<P::Reply, AbortCode> {
        Server::ask(self, who, arguments)
    }

    /// Refuses callers that may not map ids to names. A request without ids is always permitted:
    /// `pts` makes it when it has only names.
    fn check_may_see_names(&self, who: Identity) -> Result<(), AbortCode> {
        let hidden = self.rules.restrict_anonymous && who == Identity::ANONYMOUS;
        if hidden || who == Identity::Stranger {
            return Err(AbortCode::PRPERM);
        }
        Ok(())
    }

    /// The identity of a caller with a ticket. A name of a group identifies no user.
    fn known_as(&self, principal: &Principal) -> Identity {
        if principal.key_holder {
            return Identity::Superuser;
        }
        let name = PrName::new(principal.vice_name().as_bytes()).ok();
        let id = name.and_then(|name| self.replica.read().id_of(&name));
        match id.filter(|id| !id.is_group()) {
            Some(id) => Identity::User(id),
            None => Identity::Stranger,
        }
    }

    /// Refuses the deletion or renaming of entries that every cell has.
    fn check_not_fixed(id: ViceId) -> Result<(), AbortCode> {
        match id {
            ViceId::ADMINISTRATORS | ViceId::ANYUSER | ViceId::AUTHUSER | ViceId::ANONYMOUS => {
                Err(AbortCode::PRPERM)
            }
            _ => Ok(()),
        }
    }

    fn check_owner_or_administrator(
        people: &impl access::Memberships,
        who: Identity,
        record: &record::Record,
    ) -> Result<(), Error> {
        let may =
            access::is_owner(people, who.id(), record)? || access::is_administrator(people, who)?;
        if may {
            Ok(())
        } else {
            Err(AbortCode::PRPERM.into())
        }
    }
}

impl Server for Pr {
    const DAMAGED: AbortCode = AbortCode::PRDBBAD;

    serves!(wire);

    /// The `UserList` has no effect here: the administrators of users are the members of
    /// system:administrators.
    fn identify(&self, caller: &Caller, _: &Guard) -> Identity {
        match caller {
            Caller::Superuser => Identity::Superuser,
            Caller::Principal(principal) => principal
                .downcast_ref()
                .map_or(Identity::ANONYMOUS, |principal| self.known_as(principal)),
            _ => Identity::ANONYMOUS,
        }
    }

    fn admit(&self, who: Identity, kind: Kind) -> Result<(), AbortCode> {
        let Rules {
            restricted,
            restrict_anonymous,
        } = self.rules;
        let refused = match who {
            Identity::Superuser => false,
            // aklog asks this way whether it has to register the user.
            Identity::Stranger => kind != Kind::Names,
            Identity::ANONYMOUS if restrict_anonymous && kind == Kind::Listing => true,
            who if restricted && kind == Kind::Change => {
                let administrator = access::is_administrator(&*self.replica.read(), who);
                !administrator.map_err(|_| Self::DAMAGED)?
            }
            Identity::User(_) => false,
        };
        if refused {
            return Err(AbortCode::PRPERM);
        }
        Ok(())
    }
}
