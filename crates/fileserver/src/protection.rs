//! The interface to the protection database, as a trait: the database may be in the same process or
//! across the network.

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
    /// No protection server could be reached; the caller should retry.
    #[error("the protection database cannot be reached: {0}")]
    Unreachable(String),
    /// The database answered with an error.
    #[error("the protection database refused: {0}")]
    Refused(String),
}

/// The protection database, as a file server uses it.
///
/// Answers may come from a cache. The file server itself keeps ids and groups for two hours, until
/// [`Protection::version`] changes, or until `FlushCPS`.
pub trait Protection: Send + Sync + 'static {
    /// A number that changes when any of the answers may have changed. It is read for every call,
    /// so it must cost no more than a load. The default, for a database across the network, never
    /// changes.
    fn version(&self) -> u64 {
        0
    }

    /// The id of the user that a ticket names, by [`Principal::vice_name`]. Anonymous for a user
    /// without an entry, as in OpenAFS.
    fn id_of_principal<'a>(
        &'a self,
        principal: &'a Principal,
    ) -> BoxFuture<'a, Result<ViceId, ProtectionError>> {
        Box::pin(async move {
            let ids = self.ids_of(&[principal.vice_name().into()]).await?;
            let id = ids.first().copied().flatten();
            // A principal whose name equals that of a group does not become that group.
            let user = id.filter(|id| !id.is_group());
            Ok(user.unwrap_or(ViceId::ANONYMOUS))
        })
    }

    /// The CPS (identity and groups) of an id: itself, its groups, `system:anyuser`, and, except
    /// for anonymous, `system:authuser`. An id without an entry gets the CPS of anonymous.
    fn cps(&self, id: ViceId) -> BoxFuture<'_, Result<Cps, ProtectionError>>;

    /// The groups that an address is a member of, by entries of its own or of its networks.
    fn host_cps(&self, address: IpAddr) -> BoxFuture<'_, Result<Cps, ProtectionError>>;

    /// The ids of names, in their order; `None` for an unknown name.
    fn ids_of<'a>(
        &'a self,
        names: &'a [Bytes],
    ) -> BoxFuture<'a, Result<Vec<Option<ViceId>>, ProtectionError>>;

    /// The names of ids, in their order; `None` for an unknown id.
    fn names_of<'a>(
        &'a self,
        ids: &'a [ViceId],
    ) -> BoxFuture<'a, Result<Vec<Option<Bytes>>, ProtectionError>>;
}
