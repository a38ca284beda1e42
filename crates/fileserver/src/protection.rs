//! What the file server needs to know from the protection database, behind a trait: one process may
//! hold both servers, or the database may be across the network.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;

use bytes::Bytes;
use cellar_auth::Principal;
pub use cellar_wire::acl::Cps;
use cellar_wire::ids::ViceId;

/// A future that may be awaited on any thread.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Why the protection database did not answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ProtectionError {
    /// No protection server could be reached; whoever asks should ask again.
    #[error("the protection database cannot be reached: {0}")]
    Unreachable(String),
    /// The database answered with an error.
    #[error("the protection database refused: {0}")]
    Refused(String),
}

/// The protection database, as a file server uses it.
///
/// Answers may come from a cache; the file server itself keeps ids and subdomains for two hours, or
/// until [`Protection::version`] changes, or `FlushCPS`.
pub trait Protection: Send + Sync + 'static {
    /// A number that changes when any of the answers may have changed. Asked for every call: it
    /// must cost no more than a load. The default, for a database across the network, never
    /// changes.
    fn version(&self) -> u64 {
        0
    }

    /// The id of whom a ticket names, by [`Principal::vice_name`]; anonymous for somebody without
    /// entry, as in OpenAFS.
    fn id_of_principal<'a>(
        &'a self,
        principal: &'a Principal,
    ) -> BoxFuture<'a, Result<ViceId, ProtectionError>> {
        Box::pin(async move {
            let ids = self.ids_of(&[principal.vice_name().into()]).await?;
            let id = ids.first().copied().flatten();
            // Somebody whom a realm calls by a group's name is not what that group is.
            let user = id.filter(|id| !id.is_group());
            Ok(user.unwrap_or(ViceId::ANONYMOUS))
        })
    }

    /// The subdomain of an identity: itself, its groups, `system:anyuser`, and for everybody but
    /// anonymous `system:authuser`. An identity without entry gets what anonymous has.
    fn cps(&self, id: ViceId) -> BoxFuture<'_, Result<Cps, ProtectionError>>;

    /// The groups that an address is a member of, by entries of its own or of its networks.
    fn host_cps(&self, address: IpAddr) -> BoxFuture<'_, Result<Cps, ProtectionError>>;

    /// The ids of names, in their order; `None` for a name nobody has.
    fn ids_of<'a>(
        &'a self,
        names: &'a [Bytes],
    ) -> BoxFuture<'a, Result<Vec<Option<ViceId>>, ProtectionError>>;

    /// The names of ids, in their order; `None` for an id nobody has.
    fn names_of<'a>(
        &'a self,
        ids: &'a [ViceId],
    ) -> BoxFuture<'a, Result<Vec<Option<Bytes>>, ProtectionError>>;
}
