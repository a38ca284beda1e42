//! The protection database for another role in the same process.
//!
//! A file server maps names in access lists, and asks once a connection what its caller is. It may
//! keep the answers for as long as [`Directory::version`] stays the same.

use cellar_wire::ViceId;
use cellar_wire::pr::PrName;

use super::{Pr, cps};

/// Names, ids and what they stand for.
pub trait Directory: Send + Sync {
    /// The id behind a name, if there is one. The name is taken as it is: entries are in lower case.
    fn id(&self, name: &[u8]) -> Option<ViceId>;

    /// The name of an id, if there is such an entry.
    fn name(&self, id: ViceId) -> Option<PrName>;

    /// Everything that a user is: itself, its groups, the groups around them, system:anyuser and,
    /// for users of this cell, system:authuser; in ascending order. `None` for an unknown id.
    fn cps(&self, id: ViceId) -> Option<Vec<ViceId>>;

    /// The groups that a host is in by its IPv4 address (192.0.2.1 is 0xc0000201), in ascending
    /// order.
    fn host_cps(&self, host: u32) -> Vec<ViceId>;

    /// A number that changes when any of these may answer otherwise.
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
