//! The databases on other machines, Cellar's or OpenAFS's, for a file server that has joined a
//! cell.
//!
//! They are called with the cell's key. A protection server reveals the groups of an identity only
//! to a holder of the key. A location server lets only such a caller register. The ticket for it is
//! made with the newest key. After that key is retired the servers refuse the ticket, and another
//! is made.
//!
//! The file server keeps answers for two hours, like OpenAFS's, and asks again after `FlushCPS`.
//! Servers on other machines do not announce that their answers have changed.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use cellar_auth::{Authority, Level};
use cellar_client::{Cell, CellName, Client, Config, Error, Renewal};
use cellar_fileserver::protection::BoxFuture;
use cellar_fileserver::{Cps, FileServer, Locations, Protection, ProtectionError};
use cellar_rpc::{CallError, Runtime, Security};
use cellar_wire::AbortCode;
use cellar_wire::ids::ViceId;
use cellar_wire::package::{Package, Procedure};
use cellar_wire::{pr, vl};

use super::join;
use crate::cell_directory::Identity;
use crate::failure::{Failure, Outcome};

/// The name that has the id which unknown names get.
const ANONYMOUS_NAME: &[u8] = b"anonymous";

/// A client of the cell's database servers.
pub(super) struct RemoteDatabases {
    client: Client,
    cell: Cell,
}

/// Makes tickets with the cell's key.
struct TicketMaker(Authority);

impl std::fmt::Debug for TicketMaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OfTheKey")
    }
}

impl Renewal for TicketMaker {
    fn renew<'a>(
        &'a self,
        _cell: &'a CellName,
    ) -> Pin<Box<dyn Future<Output = Option<Security>> + Send + 'a>> {
        Box::pin(std::future::ready(self.0.localauth(Level::Crypt).ok()))
    }
}

impl RemoteDatabases {
    /// Makes the client. No call is made yet.
    /// `CellServDB` in `server_etc` names the servers in the log.
    pub(super) fn new(
        runtime: &Runtime,
        cell: &Cell,
        authority: &Authority,
        server_etc: Option<&Path>,
    ) -> Outcome<Self> {
        let security = authority
            .localauth(Level::Crypt)
            .map_err(|cause| Failure::new(format!("cannot call the database servers: {cause}")))?;
        let port = runtime
            .client_port()
            .map_err(|cause| Failure::new(format!("cannot open a UDP port for calls: {cause}")))?;
        let config = Config {
            cells: vec![cell.clone()],
            administrator: None,
            security: HashMap::from([(cell.name.clone(), security)]),
            renewal: Some(Arc::new(TicketMaker(authority.clone()))),
        };
        let client = Client::new(port, config)?;
        for (address, name) in server_etc.map(join::server_names).unwrap_or_default() {
            client.servers().names().add_host(address, &name);
        }
        Ok(Self {
            client,
            cell: cell.clone(),
        })
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn cell(&self) -> &Cell {
        &self.cell
    }

    /// Registers the file server in the background.
    pub(super) fn register(
        &self,
        runtime: &Runtime,
        server: &FileServer,
        identity: &Identity,
        addresses: &[IpAddr],
    ) {
        let servers = self.cell.location_servers();
        let connections = servers
            .map(|peer| {
                let pool = self.client.servers();
                pool.connection(&self.cell.name, peer, &vl::PACKAGE)
            })
            .collect();
        let port = identity.cell.ports.fileserver;
        let addresses = addresses.iter().map(|own| SocketAddr::new(*own, port));
        server.register(runtime, connections, &addresses.collect::<Vec<_>>());
    }

    /// Calls a service of the location servers: the first server that answers. Blocks; used at the
    /// start, before anything is served.
    pub(super) fn ask_now<P: Procedure>(
        &self,
        package: &'static Package,
        asked: &P,
    ) -> Result<P::Reply, AbortCode> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.map_err(|_| AbortCode::EIO)?;
        runtime.block_on(async {
            let mut last = AbortCode::RX_CALL_DEAD;
            for peer in self.cell.location_servers() {
                let pool = self.client.servers();
                let connection = pool.connection(&self.cell.name, peer, package);
                match connection.call(asked).await {
                    Ok(reply) => return Ok(reply),
                    Err(CallError::Aborted(code)) => last = code,
                    Err(cause) => {
                        let name = pool.names().of(peer.ip()).host;
                        let name = name.as_deref();
                        tracing::warn!(server = %peer, name, %cause, "a database server does not answer");
                    }
                }
            }
            Err(last)
        })
    }

    async fn ask<P: Procedure>(&self, arguments: &P) -> Result<P::Reply, ProtectionError> {
        let answer = self.client.call_protection(&self.cell, arguments).await;
        answer.map_err(|error| match error {
            Error::Database { .. } => ProtectionError::Refused(error.to_string()),
            _ => ProtectionError::Unreachable(error.to_string()),
        })
    }
}

impl Protection for RemoteDatabases {
    fn cps(&self, id: ViceId) -> BoxFuture<'_, Result<Cps, ProtectionError>> {
        Box::pin(async move {
            let asked = pr::GetCPS { id };
            match self.client.call_protection(&self.cell, &asked).await {
                Ok(reply) => Ok(Cps::new(reply.list.into_vec())),
                Err(Error::Database { cause, .. }) if cause.code() == AbortCode::PRNOENT => {
                    Ok(Cps::anonymous())
                }
                Err(error @ Error::Database { .. }) => {
                    Err(ProtectionError::Refused(error.to_string()))
                }
                Err(error) => Err(ProtectionError::Unreachable(error.to_string())),
            }
        })
    }

    fn host_cps(&self, address: IpAddr) -> BoxFuture<'_, Result<Cps, ProtectionError>> {
        Box::pin(async move {
            let host = match address {
                IpAddr::V4(ip) => u32::from(ip),
                // Host entries are dotted quads.
                IpAddr::V6(_) => return Ok(Cps::new(Vec::new())),
            };
            let reply = self.ask(&pr::GetHostCPS { host }).await?;
            Ok(Cps::new(reply.list.into_vec()))
        })
    }

    fn ids_of<'a>(
        &'a self,
        names: &'a [Bytes],
    ) -> BoxFuture<'a, Result<Vec<Option<ViceId>>, ProtectionError>> {
        Box::pin(async move {
            let mut found = vec![None; names.len()];
            // A name that the protocol cannot carry belongs to no user.
            let (mut places, mut asked) = (Vec::new(), pr::NameList::new());
            for (place, name) in names.iter().enumerate() {
                let lower = name.to_ascii_lowercase();
                if !lower.contains(&0)
                    && let Ok(name) = pr::PrName::new(&lower)
                    && asked.push(name).is_ok()
                {
                    places.push(place);
                }
            }
            let reply = self.ask(&pr::NameToID { names: asked }).await?;
            for (place, id) in places.into_iter().zip(reply.ids.iter()) {
                let unknown =
                    *id == ViceId::ANONYMOUS && !names[place].eq_ignore_ascii_case(ANONYMOUS_NAME);
                found[place] = (!unknown).then_some(*id);
            }
            Ok(found)
        })
    }

    fn names_of<'a>(
        &'a self,
        ids: &'a [ViceId],
    ) -> BoxFuture<'a, Result<Vec<Option<Bytes>>, ProtectionError>> {
        Box::pin(async move {
            let asked = pr::IdList::from_iter_cut(ids.iter().copied());
            let reply = self.ask(&pr::IDToName { ids: asked }).await?;
            let mut names: Vec<_> = ids
                .iter()
                .zip(reply.names.iter())
                .map(|(id, name)| {
                    let name = name.as_bytes();
                    // An id without an entry comes back as its digits.
                    let known = name != id.0.to_string().as_bytes();
                    known.then(|| Bytes::copy_from_slice(name))
                })
                .collect();
            names.resize(ids.len(), None);
            Ok(names)
        })
    }
}

impl Locations for RemoteDatabases {
    fn entry<'a>(
        &'a self,
        name: &'a vl::VolumeNameArgument,
    ) -> BoxFuture<'a, Result<vl::VldbEntry, AbortCode>> {
        Box::pin(async move {
            let asked = vl::GetEntryByNameO {
                volumename: name.clone(),
            };
            let locations = self.client.locations();
            let answer = locations.call(&self.cell, &asked).await;
            answer
                .map(|reply| reply.entry)
                .map_err(|error| match error {
                    Error::Database { cause, .. } | Error::DatabaseUnreachable { cause, .. } => {
                        cause.code()
                    }
                    _ => AbortCode::RX_CALL_DEAD,
                })
        })
    }
}
