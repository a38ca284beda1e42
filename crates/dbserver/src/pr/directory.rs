//! The protection database for other roles in the same process.
//!
//! A file server maps names in access lists, and asks once per connection for the ids of its
//! caller. It may keep the results while [`Directory::version`] stays the same.

use cellar_wire::ViceId;
use cellar_wire::pr::PrName;

use super::{Pr, cps};

/// Names, ids and memberships.
pub trait Directory: Send + Sync {
    /// The id of a name, if it exists. The name must be in lower case, as entries are.
    fn id(&self, name: &[u8]) -> Option<ViceId>;

    /// The name of an id, if it exists.
    fn name(&self, id: ViceId) -> Option<PrName>;

    /// The ids under which a user acts, in ascending order: itself, its groups, the groups in which
    /// these are nested, and system:anyuser. Users of this cell also have system:authuser. `None`
    /// for an unknown id.
    fn cps(&self, id: ViceId) -> Option<Vec<ViceId>>;

    /// The groups of a host by its IPv4 address (192.0.2.1 is 0xc0000201), in ascending order.
    fn host_cps(&self, host: u32) -> Vec<ViceId>;

    /// A number that changes whenever any of these results may change.
    fn version(&self) -> u64;
}

impl Directory for Pr {
    fn id(&self, name: &[u8]) -> Option<ViceId> {
        let name = PrName::new(name).ok()?;
        self.id_of(&self.replica.read(), &name)
    }

    fn name(&self, id: ViceId) -> Option<PrName> {
        self.replica
            .read()
            .get(id)
            .map(|record| record.name.clone())
    }

    fn cps(&self, id: ViceId) -> Option<Vec<ViceId>> {
        let model = self.replica.read();
        let cps = cps::of_user(&model, model.get(id)?).ok()?;
        Some(cps.into_iter().collect())
    }

    fn host_cps(&self, host: u32) -> Vec<ViceId> {
        cps::of_host(&self.replica.read(), host)
            .into_iter()
            .collect()
    }

    fn version(&self) -> u64 {
        self.replica.version()
    }
}
