//! Locations of volumes: calls to a cell's VL servers, and a cache of their answers.
//!
//! 1. The newest form of the call is tried first (`GetEntryByNameU`), and `GetEntryByNameN` at a
//!    server that knows no other form. The addresses of a server that an entry names by UUID are
//!    fetched with `GetAddrsU`.
//! 2. Any VL server answers reads. The servers are tried in the cell's order, those that were
//!    silent lately last. The next server is also called when those before it are silent for
//!    [`NEXT_TIME`], or after a `U` code (no quorum, not the sync site). Servers that stay silent
//!    while all others answer with such a code are waited for as long. A server that executes a
//!    change is not silent while it answers another call: two servers would make the change twice.
//! 3. An answer is valid for [`ENTRY_LIFETIME`]. It is dropped at once when a file server says
//!    `VNOVOL` or `VMOVED` ([`Locations::forget`]).
//! 4. A mount also keeps the answer that there is no such volume, for [`ABSENCE_LIFETIME`].
//!    Commands do not: they create volumes themselves.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cellar_rpc::{CallError, CallOptions, EncodedRequest};
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::{AfsUuid, PartitionId, VolumeId};
use cellar_wire::package::Procedure;
use cellar_wire::vl;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::cell::{Cell, CellName};
use crate::error::{Error, Result};
use crate::mount_point::{Existing, VolumeKind, split_suffix};
use crate::patience::Waits;
use crate::servers::Servers;
use crate::volume::Volume;

/// The time for which an entry is valid.
pub const ENTRY_LIFETIME: Duration = Duration::from_secs(600);

/// The time for which a mount believes that there is no such volume. A volume that is created
/// meanwhile appears after this time at the latest, or after `cellar fs checkvolumes`.
pub const ABSENCE_LIFETIME: Duration = Duration::from_secs(5);

/// The time for which database servers may be silent until one more is called.
pub const NEXT_TIME: Duration = Duration::from_secs(1);

/// The part of [`NEXT_TIME`] in which a server that executes a change answers another call.
const ALIVE_TIME: Duration = Duration::from_millis(400);

/// The most entries kept; when more are needed, the cache is emptied.
const ENTRIES_MAX: usize = 100_000;

/// A file server, as the VLDB names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fileserver {
    /// Its UUID, if it has registered one.
    pub uuid: Option<AfsUuid>,
    /// Its addresses, in the VLDB's order, without port.
    pub addresses: Vec<IpAddr>,
}

/// A server and partition that hold a volume of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The server.
    pub server: Arc<Fileserver>,
    /// The partition.
    pub partition: Option<PartitionId>,
    /// `VLSF_*`.
    pub flags: u32,
}

/// The VLDB entry of a family of volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// The cell.
    pub cell: CellName,
    /// The name without suffix.
    pub name: String,
    /// Read-write, read-only and backup id.
    pub ids: [VolumeId; 3],
    /// `VLF_*` and `VLOP_*`.
    pub flags: u32,
    /// The sites, in the order of the entry.
    pub sites: Vec<Site>,
}

impl Family {
    /// The volumes of the family that exist.
    pub fn existing(&self) -> Existing {
        Existing {
            read_write: self.flags & vl::VLF_RWEXISTS != 0,
            read_only: self.flags & vl::VLF_ROEXISTS != 0,
            backup: self.flags & vl::VLF_BACKEXISTS != 0,
        }
    }

    /// The id of one of its volumes.
    pub fn id(&self, kind: VolumeKind) -> VolumeId {
        self.ids[kind as usize]
    }

    /// The kind of the volume with this id.
    pub fn kind_of(&self, id: VolumeId) -> Option<VolumeKind> {
        let kinds = [
            VolumeKind::ReadWrite,
            VolumeKind::ReadOnly,
            VolumeKind::Backup,
        ];
        kinds
            .into_iter()
            .find(|kind| self.id(*kind) == id && id.0 != 0)
    }

    /// The servers of one of its volumes, in order.
    ///
    /// Sites without a first release are left out. During a release only sites that have the new
    /// version serve. The backup volume is on the server of the read-write volume.
    pub fn servers(&self, kind: VolumeKind) -> Vec<Arc<Fileserver>> {
        let wanted = match kind {
            VolumeKind::ReadOnly => vl::VLSF_ROVOL,
            VolumeKind::ReadWrite | VolumeKind::Backup => vl::VLSF_RWVOL,
        };
        let usable = |site: &&Site| site.flags & wanted != 0 && site.flags & vl::VLSF_DONTUSE == 0;
        let mut sites: Vec<_> = self.sites.iter().filter(usable).collect();
        if kind == VolumeKind::ReadOnly
            && sites
                .iter()
                .any(|site| site.flags & vl::VLSF_NEWREPSITE != 0)
        {
            sites.retain(|site| site.flags & vl::VLSF_NEWREPSITE != 0);
        }
        sites.into_iter().map(|site| site.server.clone()).collect()
    }
}

/// The time of a request for an entry, and the entry.
type CachedFamily = (Instant, Arc<Family>);

/// The VL servers of all cells, and a cache of their answers.
#[derive(Debug)]
pub struct Locations {
    servers: Arc<Servers>,
    entries: Mutex<HashMap<(CellName, String), CachedFamily>>,
    /// Volumes that did not exist, with the times of the answers.
    absent: Mutex<HashMap<(CellName, String), Instant>>,
    fileservers: Mutex<HashMap<(CellName, AfsUuid, u32), Arc<Fileserver>>>,
}

impl Locations {
    /// Makes an empty cache.
    pub fn new(servers: Arc<Servers>) -> Self {
        Self {
            servers,
            entries: Mutex::default(),
            absent: Mutex::default(),
            fileservers: Mutex::default(),
        }
    }

    /// Calls a read procedure of the cell's VL servers until one answers.
    pub async fn call<P: Procedure>(&self, cell: &Cell, arguments: &P) -> Result<P::Reply> {
        call_database(
            &self.servers,
            cell,
            cell.location_servers().collect(),
            arguments,
        )
        .await
    }

    /// The family that a volume belongs to, by name (with or without suffix) or number.
    pub async fn family(&self, cell: &Cell, volume: &str) -> Result<Arc<Family>> {
        let base = split_suffix(volume).0;
        let key = (cell.name.clone(), base.to_owned());
        if let Some((since, family)) = self.entries.lock().get(&key)
            && since.elapsed() < ENTRY_LIFETIME
        {
            return Ok(family.clone());
        }
        let keeps_absence = self.servers.reach().patience().is_some();
        if keeps_absence && self.is_absent(&key) {
            return Err(no_such_volume(cell, base));
        }
        let asked = self.ask(cell, base).await;
        if keeps_absence && matches!(asked, Err(Error::NoSuchVolume { .. })) {
            let mut absent = self.absent.lock();
            if absent.len() >= ENTRIES_MAX {
                absent.clear();
            }
            absent.insert(key.clone(), Instant::now());
        }
        let family = Arc::new(asked?);
        let mut entries = self.entries.lock();
        if entries.len() >= ENTRIES_MAX {
            entries.clear();
        }
        entries.insert(key, (Instant::now(), family.clone()));
        Ok(family)
    }

    /// Whether a recent answer said that there is no such volume.
    fn is_absent(&self, key: &(CellName, String)) -> bool {
        let mut absent = self.absent.lock();
        let is_recent = absent
            .get(key)
            .is_some_and(|since| since.elapsed() < ABSENCE_LIFETIME);
        if !is_recent {
            absent.remove(key);
        }
        is_recent
    }

    /// The family of a volume, if it is in the cache.
    pub fn known(&self, volume: &Volume) -> Option<Arc<Family>> {
        let base = split_suffix(&volume.name).0;
        let key = (volume.cell.clone(), base.to_owned());
        let entries = self.entries.lock();
        entries.get(&key).map(|(_, family)| family.clone())
    }

    /// Drops the entry of a family, because a file server has said that it is wrong.
    pub fn forget(&self, family: &Family) {
        let same = |other: &Family| other.cell == family.cell && other.name == family.name;
        self.entries.lock().retain(|_, (_, other)| !same(other));
    }

    /// Drops the entry of a volume's family.
    pub fn forget_volume(&self, volume: &Volume) {
        if let Some(family) = self.known(volume) {
            self.forget(&family);
        }
    }

    /// Drops all entries.
    pub fn forget_all(&self) {
        self.entries.lock().clear();
        self.absent.lock().clear();
        self.fileservers.lock().clear();
    }

    async fn ask(&self, cell: &Cell, volume: &str) -> Result<Family> {
        let missing = || no_such_volume(cell, volume);
        let name =
            vl::VolumeNameArgument::new(volume.as_bytes().to_vec()).map_err(|_| missing())?;
        let newest = self
            .call(
                cell,
                &vl::GetEntryByNameU {
                    volumename: name.clone(),
                },
            )
            .await;
        match newest {
            Ok(reply) => self.family_of(cell, reply.entry).await,
            Err(error) if error.code() == Some(AbortCode::RXGEN_OPCODE) => {
                match self
                    .call(cell, &vl::GetEntryByNameN { volumename: name })
                    .await
                {
                    Ok(reply) => Ok(from_entry(cell, reply.entry)),
                    Err(error) => Err(or_missing(error, missing)),
                }
            }
            Err(error) => Err(or_missing(error, missing)),
        }
    }

    async fn family_of(&self, cell: &Cell, entry: vl::UvldbEntry) -> Result<Family> {
        let mut sites = Vec::with_capacity(entry.sites.len());
        for site in entry.sites.iter() {
            let server = if site.flags & vl::VLSF_UUID == 0 {
                let address = Ipv4Addr::from(site.server.time_low());
                Arc::new(Fileserver {
                    uuid: None,
                    addresses: vec![address.into()],
                })
            } else {
                self.fileserver(cell, site.server, site.uniquifier).await?
            };
            let partition = PartitionId::new(site.partition);
            sites.push(Site {
                server,
                partition,
                flags: site.flags,
            });
        }
        Ok(Family {
            cell: cell.name.clone(),
            name: entry.name.to_string(),
            ids: entry.volume_ids,
            flags: entry.flags,
            sites,
        })
    }

    /// The addresses of a server with a UUID. The uniquifier rises when they change.
    async fn fileserver(
        &self,
        cell: &Cell,
        uuid: AfsUuid,
        uniquifier: u32,
    ) -> Result<Arc<Fileserver>> {
        let key = (cell.name.clone(), uuid, uniquifier);
        if let Some(known) = self.fileservers.lock().get(&key) {
            return Ok(known.clone());
        }
        let attributes = vl::ListAddrByAttributes {
            mask: vl::VLADDR_UUID,
            uuid,
            ..Default::default()
        };
        let reply = self.call(cell, &vl::GetAddrsU { attributes }).await?;
        let addresses = reply
            .blkaddrs
            .iter()
            .map(|a| Ipv4Addr::from(*a).into())
            .collect();
        let server = Arc::new(Fileserver {
            uuid: Some(uuid),
            addresses,
        });
        let mut known = self.fileservers.lock();
        if known.len() >= ENTRIES_MAX {
            known.clear();
        }
        known.insert(key, server.clone());
        Ok(server)
    }
}

fn no_such_volume(cell: &Cell, volume: &str) -> Error {
    Error::NoSuchVolume {
        cell: cell.name.clone(),
        volume: volume.to_owned(),
    }
}

fn from_entry(cell: &Cell, entry: vl::NvldbEntry) -> Family {
    let site = |site: &vl::Site| Site {
        server: Arc::new(Fileserver {
            uuid: None,
            addresses: vec![Ipv4Addr::from(site.server).into()],
        }),
        partition: PartitionId::new(site.partition),
        flags: site.flags,
    };
    Family {
        cell: cell.name.clone(),
        name: entry.name.to_string(),
        ids: entry.volume_ids,
        flags: entry.flags,
        sites: entry.sites.iter().map(site).collect(),
    }
}

fn or_missing(error: Error, missing: impl Fn() -> Error) -> Error {
    match error.code() {
        Some(AbortCode::VL_NOENT | AbortCode::VL_ENTDELETED | AbortCode::VL_BADNAME) => missing(),
        _ => error,
    }
}

/// Calls a read procedure of a database. The servers are called in their order, those that were
/// silent lately last. The next server is called when one cannot serve, and also when none has
/// answered for [`NEXT_TIME`]. The first answer counts.
pub(crate) async fn call_database<P: Procedure>(
    servers: &Servers,
    cell: &Cell,
    addresses: Vec<SocketAddr>,
    arguments: &P,
) -> Result<P::Reply> {
    let request = EncodedRequest::new(arguments);
    let results = call_encoded(servers, cell, addresses, &request).await?;
    EncodedRequest::reply::<P>(&results).map_err(|cause| refused(&request, cell, cause))
}

async fn call_encoded(
    servers: &Servers,
    cell: &Cell,
    addresses: Vec<SocketAddr>,
    request: &EncodedRequest,
) -> Result<Bytes> {
    let mut waits = Waits::new();
    loop {
        let asked = ask_databases(servers, cell, addresses.clone(), request).await;
        match asked {
            Err(Error::DatabaseUnreachable { ref cause, .. }) if cause.is_unreachable() => {
                let Some(wait) = waits.next(servers.reach(), &addresses) else {
                    return asked;
                };
                tokio::time::sleep(wait).await;
            }
            other => return other,
        }
    }
}

/// One round of [`call_database`], without retries.
async fn ask_databases(
    servers: &Servers,
    cell: &Cell,
    mut addresses: Vec<SocketAddr>,
    request: &EncodedRequest,
) -> Result<Bytes> {
    addresses.sort_by_key(|address| servers.is_down(*address));
    let mut last = CallError::Dead;
    let mut refusal = None;
    let mut asked = FuturesUnordered::new();
    let mut rest = addresses.iter();
    // The servers that have not answered yet, and those among them that were silent for
    // [`NEXT_TIME`].
    let (mut waited_for, mut slow) = (Vec::new(), Vec::new());
    loop {
        if let Some(address) = rest.next() {
            waited_for.push(*address);
            asked.push(ask_database(servers, cell, *address, request));
        }
        let answer = tokio::select! {
            answer = asked.next() => Some(answer),
            () = silence(servers, cell, &waited_for, request) => None,
        };
        let Some(answer) = answer else {
            slow.clone_from(&waited_for);
            if refusal.is_some() && rest.len() == 0 {
                for silent in slow {
                    servers.mark_down(silent);
                }
                break;
            }
            continue;
        };
        let Some((address, answer)) = answer else {
            break;
        };
        for list in [&mut waited_for, &mut slow] {
            list.retain(|other| *other != address);
        }
        match answer {
            Ok(results) => {
                for other in slow {
                    servers.mark_down(other);
                }
                return Ok(results);
            }
            Err(error) if error.is_unreachable() => {
                servers.mark_down(address);
                last = error;
            }
            Err(CallError::Aborted(code)) if is_ubik(code) => {
                refusal = Some(CallError::Aborted(code));
            }
            Err(cause) => return Err(refused(request, cell, cause)),
        }
    }
    let names: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
    Err(Error::DatabaseUnreachable {
        cell: cell.name.clone(),
        role: if request.package().name == "PR" {
            "protection"
        } else {
            "volume location"
        },
        servers: names.join(", "),
        cause: refusal.unwrap_or(last),
    })
}

/// Ends when the called servers have been silent for [`NEXT_TIME`].
async fn silence(servers: &Servers, cell: &Cell, called: &[SocketAddr], request: &EncodedRequest) {
    if is_read(request.name()) {
        return tokio::time::sleep(NEXT_TIME).await;
    }
    loop {
        tokio::time::sleep(NEXT_TIME - ALIVE_TIME).await;
        let mut answers: FuturesUnordered<_> = called
            .iter()
            .map(|address| async {
                let connection = servers.connection(&cell.name, *address, request.package());
                connection.answers(request.package(), ALIVE_TIME).await
            })
            .collect();
        let mut is_alive = false;
        while let Some(answers) = answers.next().await {
            is_alive |= answers;
        }
        if !is_alive {
            return;
        }
    }
}

/// Whether a procedure of a database, by its name, changes nothing.
fn is_read(name: &str) -> bool {
    let reads = [
        "Dump", "GetA", "GetC", "GetE", "GetH", "GetS", "IDTo", "Is", "Linked", "List", "NameTo",
        "Probe", "WhereIs",
    ];
    reads.iter().any(|read| name.starts_with(read))
}

fn refused(request: &EncodedRequest, cell: &Cell, cause: CallError) -> Error {
    let (package, name) = (request.package().name, request.name());
    let what = format!("{package} {name} of cell {}", cell.name);
    Error::Database { what, cause }
}

async fn ask_database(
    servers: &Servers,
    cell: &Cell,
    address: SocketAddr,
    request: &EncodedRequest,
) -> (SocketAddr, std::result::Result<Bytes, CallError>) {
    let connect = || servers.connection(&cell.name, address, request.package());
    let limits = CallOptions::default();
    let asked = Instant::now();
    let changes = servers.reach().changes();
    let mut answer = connect().call_encoded(request, limits).await;
    if let Err(error) = &answer
        && error.is_unreachable()
        && servers.reach().changes() != changes
    {
        // The answer went to an address that this machine no longer has.
        answer = connect().call_encoded(request, limits).await;
    }
    if let Err(error) = &answer
        && servers.renewed(&cell.name, error).await
    {
        answer = connect().call_encoded(request, limits).await;
    }
    if answer.is_ok() {
        servers.answered(address, asked.elapsed());
    }
    (address, answer)
}

/// Codes of a database server that has no majority behind it.
fn is_ubik(code: AbortCode) -> bool {
    (5376..5376 + 256).contains(&code.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(sites: &[u32]) -> Family {
        let site = |(index, flags): (usize, &u32)| Site {
            server: Arc::new(Fileserver {
                uuid: None,
                addresses: vec![IpAddr::from([192, 0, 2, index as u8])],
            }),
            partition: PartitionId::new(0),
            flags: *flags,
        };
        Family {
            cell: CellName::new("test.cell").expect("cell"),
            name: "v".to_owned(),
            ids: [VolumeId(10), VolumeId(11), VolumeId(0)],
            flags: vl::VLF_RWEXISTS | vl::VLF_ROEXISTS,
            sites: sites.iter().enumerate().map(site).collect(),
        }
    }

    fn asked(family: &Family, kind: VolumeKind) -> Vec<u8> {
        let last = |server: &Arc<Fileserver>| match server.addresses[0] {
            IpAddr::V4(ip) => ip.octets()[3],
            IpAddr::V6(_) => 0,
        };
        family.servers(kind).iter().map(last).collect()
    }

    #[test]
    fn sites_that_may_serve() {
        let plain = family(&[
            vl::VLSF_RWVOL,
            vl::VLSF_ROVOL,
            vl::VLSF_ROVOL | vl::VLSF_DONTUSE,
        ]);
        assert_eq!(asked(&plain, VolumeKind::ReadWrite), [0]);
        assert_eq!(asked(&plain, VolumeKind::Backup), [0]);
        assert_eq!(asked(&plain, VolumeKind::ReadOnly), [1]);
        let releasing = family(&[
            vl::VLSF_RWVOL,
            vl::VLSF_ROVOL,
            vl::VLSF_ROVOL | vl::VLSF_NEWREPSITE,
        ]);
        assert_eq!(asked(&releasing, VolumeKind::ReadOnly), [2]);
    }

    #[test]
    fn ids_and_kinds() {
        let family = family(&[]);
        assert_eq!(family.kind_of(VolumeId(11)), Some(VolumeKind::ReadOnly));
        assert_eq!(family.kind_of(VolumeId(0)), None);
        assert_eq!(family.kind_of(VolumeId(12)), None);
    }
}
