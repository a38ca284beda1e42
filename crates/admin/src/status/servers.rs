//! Questions to the file servers of a cell, and to the volume servers beside them.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

use cellar_client::{Cell, Client};
use cellar_rpc::{CallError, CallOptions, Connection};
use cellar_wire::ids::PartitionId;
use cellar_wire::{AbortCode, Package, Procedure, afsosd, afsvol, rxafs};
use futures_util::future::{join, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt as _};

use super::places::ServerList;
use super::volumes::{Found, examine};
use super::{FileServer, Limits, Repairs, version_of};
use crate::error::{Error, Result};
use crate::vos::{PartitionScrub, PartitionSpace, ServerAddresses, Volumes};

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
        scrubs: Vec::new(),
        repairs: None,
    };
    // Both servers are asked at all addresses at once, so a dead machine costs one time limit.
    let ask = |address: &IpAddr| VolumeServer {
        client,
        cell,
        address: *address,
        limits,
    };
    let addresses = &listed.addresses;
    let files = addresses
        .iter()
        .map(ask)
        .map(async |server| times(&server).await);
    let volumes = addresses
        .iter()
        .map(ask)
        .map(async |server| partition_ids(&server).await);
    let (files, volumes) = join(first(files), first(volumes)).await;
    if let Some((address, times)) = files {
        server.reachable = true;
        server.answered = Some(address);
        if let Some([now, started]) = times {
            server.started = Some(started);
            server.uptime_seconds = Some(now.saturating_sub(started));
            server.clock_offset_seconds = now.checked_signed_diff(own_time());
        }
    }
    server.volume_server = volumes.is_some();
    let of_file_server = async {
        let Some(address) = server.answered else {
            return (None, None);
        };
        let peer = SocketAddr::new(address, cell.ports.fileserver);
        let asked = ask(&address);
        join(version_of(peer, limits.answer), repairs(&asked)).await
    };
    let of_volume_server = async {
        let (address, ids) = volumes?;
        let mut asked = ask(&address);
        if !server.reachable {
            // OpenAFS's volume server waits for its file server.
            asked.limits.listing = limits.answer;
        }
        let scrubs = scrubs(&asked, &ids);
        Some(join(scrubs, partitions(&asked, ids.clone())).await)
    };
    let ((version, repairs), found) = join(of_file_server, of_volume_server).await;
    server.version = version;
    server.repairs = repairs;
    let Some((scrubs, (partitions, found))) = found else {
        return (server, Found::default());
    };
    server.partitions = Some(partitions);
    server.scrubs = scrubs;
    (server, found)
}

/// The first answer of several addresses of a server.
async fn first<T>(
    asked: impl Iterator<Item = impl Future<Output = Option<(IpAddr, T)>>>,
) -> Option<(IpAddr, T)> {
    let mut asked: FuturesUnordered<_> = asked.collect();
    while let Some(answer) = asked.next().await {
        if answer.is_some() {
            return answer;
        }
    }
    None
}

/// This machine's time in seconds since 1970.
fn own_time() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}

/// The address of a file server that answers, with its time and that of its start, if it reports
/// them.
async fn times(server: &VolumeServer<'_>) -> Option<(IpAddr, Option<[u64; 2]>)> {
    let connection = server.connection(server.cell.ports.fileserver, &rxafs::PACKAGE);
    let arguments = rxafs::GetStatistics64 {
        version: rxafs::STATISTICS64_LEN as i32,
    };
    match server.call(&connection, &arguments).await {
        Ok(reply) => Some((
            server.address,
            match reply.statistics[..] {
                [now, _, started, ..] => Some([now, started]),
                _ => None,
            },
        )),
        Err(CallError::Aborted(_)) => Some((server.address, None)),
        Err(_) => None,
    }
}

/// The partitions that a volume server lists, or the code of its refusal.
type PartitionIds = std::result::Result<Vec<PartitionId>, AbortCode>;

/// The address of a volume server that answers, with its partitions.
async fn partition_ids(server: &VolumeServer<'_>) -> Option<(IpAddr, PartitionIds)> {
    let connection = server.volumes();
    match server.call(&connection, &afsvol::XListPartitions {}).await {
        Ok(listed) => {
            let ids = listed.partitions.iter();
            let ids = ids.filter_map(|id| PartitionId::new(*id)).collect();
            Some((server.address, Ok(ids)))
        }
        Err(CallError::Aborted(code)) => Some((server.address, Err(code))),
        Err(_) => None,
    }
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

/// The scrubs of the partitions, as far as the server reports them.
async fn scrubs(server: &VolumeServer<'_>, ids: &PartitionIds) -> Vec<PartitionScrub> {
    let connection = server.volumes();
    let asked = ids.iter().flatten().map(async |id| {
        let arguments = afsvol::ScrubStatus {
            partition: id.number(),
        };
        let reply = server.call(&connection, &arguments).await.ok()?;
        Some(PartitionScrub::of(*id, &reply))
    });
    join_all(asked).await.into_iter().flatten().collect()
}

/// The partitions of a volume server with their volumes.
async fn partitions(server: &VolumeServer<'_>, ids: PartitionIds) -> (Vec<PartitionSpace>, Found) {
    let connection = server.volumes();
    let mut found = Found::default();
    let ids = match ids {
        Ok(ids) => ids,
        Err(code) => {
            found.not_known.push(format!(
                "partitions of {}: the server refuses with {code}",
                server.address
            ));
            return (Vec::new(), found);
        }
    };
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
        return (spaces.into_iter().flatten().collect(), found);
    }
    let examined = join_all(ids.iter().map(|id| examine(server, *id))).await;
    let mut lists = ServerList {
        address: server.address,
        partitions: HashMap::new(),
    };
    for (id, (examined, list)) in ids.iter().zip(examined) {
        found.append(examined);
        lists.partitions.insert(*id, list);
    }
    found.lists.push(lists);
    (spaces.into_iter().flatten().collect(), found)
}
