//! Questions to the file servers of a cell, and to the volume servers beside them.

use std::net::{IpAddr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

use cellar_client::{Cell, Client};
use cellar_rpc::{CallError, CallOptions, Connection};
use cellar_wire::ids::PartitionId;
use cellar_wire::{Package, Procedure, afsosd, afsvol, rxafs};
use futures_util::future::{join_all, join3};
use futures_util::stream::{FuturesUnordered, StreamExt as _};

use super::volumes::{Found, examine};
use super::{FileServer, Limits, Repairs, version_of};
use crate::error::{Error, Result};
use crate::vos::{PartitionSpace, ServerAddresses, Volumes};

/// A server's volumes, for the questions below.
pub(super) struct VolumeServer<'a> {
    client: &'a Client,
    cell: &'a Cell,
    pub(super) address: IpAddr,
    pub(super) limits: Limits,
}

impl VolumeServer<'_> {
    pub(super) fn connection(&self, port: u16, package: &'static Package) -> Connection {
        let peer = SocketAddr::new(self.address, port);
        let servers = self.client.servers();
        servers.direct_connection(&self.cell.name, peer, package)
    }

    /// The connection to the volume server.
    pub(super) fn volumes(&self) -> Connection {
        self.connection(self.cell.ports.volume, &afsvol::PACKAGE)
    }

    async fn call<P: Procedure>(
        &self,
        connection: &Connection,
        arguments: &P,
    ) -> std::result::Result<P::Reply, CallError> {
        let options = CallOptions {
            timeout: Some(self.limits.answer),
        };
        connection.call_with(arguments, options).await
    }
}

/// Asks all file servers of the VLDB in parallel.
///
/// # Errors
/// The VLDB does not list the servers.
pub(super) async fn ask(
    client: &Client,
    cell: &Cell,
    limits: Limits,
) -> Result<Vec<(FileServer, Found)>> {
    let volumes = Volumes::new(client, cell);
    let listed = tokio::time::timeout(limits.listing, volumes.addresses()).await;
    let listed = listed.map_err(|_| Error::Usage("the list takes too long".to_owned()))??;
    let servers = listed.iter();
    let servers = servers.map(|server| ask_one(client, cell, server, limits));
    Ok(join_all(servers).await)
}

async fn ask_one(
    client: &Client,
    cell: &Cell,
    listed: &ServerAddresses,
    limits: Limits,
) -> (FileServer, Found) {
    let mut server = FileServer {
        uuid: listed.uuid.map(|uuid| uuid.to_string()),
        addresses: listed.addresses.clone(),
        answered: None,
        reachable: false,
        volume_server: false,
        version: None,
        started: None,
        uptime_seconds: None,
        clock_offset_seconds: None,
        partitions: None,
        repairs: None,
    };
    let mut addresses: FuturesUnordered<_> = listed
        .addresses
        .iter()
        .map(|address| times(client, cell, *address, limits))
        .collect();
    while let Some((address, answered)) = addresses.next().await {
        let Some(times) = answered else { continue };
        server.reachable = true;
        server.answered = Some(address);
        if let Some([now, started]) = times {
            server.started = Some(started);
            server.uptime_seconds = Some(now.saturating_sub(started));
            server.clock_offset_seconds = now.checked_signed_diff(own_time());
        }
        break;
    }
    // The volume server may answer if the file server does not.
    let first = server.answered.or(listed.addresses.first().copied());
    let Some(address) = first else {
        return (server, Found::default());
    };
    let volumes = VolumeServer {
        client,
        cell,
        address,
        limits,
    };
    let peer = SocketAddr::new(address, cell.ports.fileserver);
    let ((partitions, found), version, repairs) = join3(
        partitions(&volumes),
        version_of(peer, limits.answer),
        repairs(&volumes),
    )
    .await;
    server.volume_server = partitions.is_some();
    server.partitions = partitions;
    server.version = version;
    server.repairs = repairs;
    (server, found)
}

/// This machine's time in seconds since 1970.
fn own_time() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}

/// The time of a file server and that of its start, if it answers at an address and reports them.
async fn times(
    client: &Client,
    cell: &Cell,
    address: IpAddr,
    limits: Limits,
) -> (IpAddr, Option<Option<[u64; 2]>>) {
    let server = VolumeServer {
        client,
        cell,
        address,
        limits,
    };
    let connection = server.connection(cell.ports.fileserver, &rxafs::PACKAGE);
    let arguments = rxafs::GetStatistics64 {
        version: rxafs::STATISTICS64_LEN as i32,
    };
    let answer = match server.call(&connection, &arguments).await {
        Ok(reply) => Some(match reply.statistics[..] {
            [now, _, started, ..] => Some([now, started]),
            _ => None,
        }),
        Err(CallError::Aborted(_)) => Some(None),
        Err(_) => None,
    };
    (address, answer)
}

async fn repairs(server: &VolumeServer<'_>) -> Option<Repairs> {
    let connection = server.connection(server.cell.ports.fileserver, &afsosd::PACKAGE);
    let status = server.call(&connection, &afsosd::RepairStatus {}).await;
    let status = status.ok()?.status;
    Some(Repairs {
        waiting: status.waiting,
        running: status.running,
        failed: status.failed,
    })
}

/// The partitions of a volume server with their volumes; `None` if it does not answer.
async fn partitions(server: &VolumeServer<'_>) -> (Option<Vec<PartitionSpace>>, Found) {
    let connection = server.volumes();
    let listed = server.call(&connection, &afsvol::XListPartitions {}).await;
    let mut found = Found::default();
    let listed = match listed {
        Ok(listed) => listed.partitions,
        Err(CallError::Aborted(code)) => {
            found.not_known.push(format!(
                "partitions of {}: the server refuses with {code}",
                server.address
            ));
            return (Some(Vec::new()), found);
        }
        Err(_) => return (None, found),
    };
    let ids: Vec<_> = listed
        .iter()
        .filter_map(|id| PartitionId::new(*id))
        .collect();
    let spaces = ids.iter().map(async |id| {
        let name = afsvol::PartitionName::try_from(id.to_string()).unwrap_or_default();
        let arguments = afsvol::PartitionInfo64 { name };
        let space = server.call(&connection, &arguments).await.ok()?.partition;
        Some(PartitionSpace {
            partition: *id,
            free_kib: space.free,
            total_kib: space.min_free,
        })
    });
    let spaces: Vec<_> = join_all(spaces).await;
    for (id, space) in ids.iter().zip(&spaces) {
        if space.is_none() {
            let line = format!("room of {id} of {}: no answer", server.address);
            found.not_known.push(line);
        }
    }
    if !server.limits.volumes {
        return (Some(spaces.into_iter().flatten().collect()), found);
    }
    for examined in join_all(ids.iter().map(|id| examine(server, *id))).await {
        found.append(examined);
    }
    (Some(spaces.into_iter().flatten().collect()), found)
}
