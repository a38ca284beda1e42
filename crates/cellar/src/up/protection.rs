//! The databases of this process, for its file server.

use std::future::ready;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use cellar_dbserver::{Directory, Identity, Pr, Vl};
use cellar_fileserver::protection::BoxFuture;
use cellar_fileserver::{Locations, Protection, ProtectionError};
use cellar_wire::AbortCode;
use cellar_wire::acl::Cps;
use cellar_wire::ids::ViceId;
use cellar_wire::vl::{GetEntryByNameO, VldbEntry, VolumeNameArgument};

/// Answers from the database's memory.
pub(super) struct OwnProtection(pub(super) Arc<Pr>);

impl Protection for OwnProtection {
    fn version(&self) -> u64 {
        Directory::version(&*self.0)
    }

    fn cps(&self, id: ViceId) -> BoxFuture<'_, Result<Cps, ProtectionError>> {
        let cps = Directory::cps(&*self.0, id).map_or_else(Cps::anonymous, Cps::new);
        Box::pin(ready(Ok(cps)))
    }

    fn host_cps(&self, address: IpAddr) -> BoxFuture<'_, Result<Cps, ProtectionError>> {
        let cps = match address {
            IpAddr::V4(ip) => Cps::new(Directory::host_cps(&*self.0, u32::from(ip))),
            // Host entries are dotted quads.
            IpAddr::V6(_) => Cps::new(Vec::new()),
        };
        Box::pin(ready(Ok(cps)))
    }

    fn ids_of<'a>(
        &'a self,
        names: &'a [Bytes],
    ) -> BoxFuture<'a, Result<Vec<Option<ViceId>>, ProtectionError>> {
        let id = |name: &Bytes| self.0.id(&name.to_ascii_lowercase());
        Box::pin(ready(Ok(names.iter().map(id).collect())))
    }

    fn names_of<'a>(
        &'a self,
        ids: &'a [ViceId],
    ) -> BoxFuture<'a, Result<Vec<Option<Bytes>>, ProtectionError>> {
        let name = |id: &ViceId| {
            self.0
                .name(*id)
                .map(|name| Bytes::copy_from_slice(name.as_bytes()))
        };
        Box::pin(ready(Ok(ids.iter().map(name).collect())))
    }
}

/// Locations of volumes, from the database's memory.
pub(super) struct OwnLocations(pub(super) Arc<Vl>);

impl Locations for OwnLocations {
    fn entry<'a>(
        &'a self,
        name: &'a VolumeNameArgument,
    ) -> BoxFuture<'a, Result<VldbEntry, AbortCode>> {
        let asked = GetEntryByNameO {
            volumename: name.clone(),
        };
        let answer = self.0.ask(Identity::Superuser, asked);
        Box::pin(ready(answer.map(|reply| reply.entry)))
    }
}
