//! The client: the state shared by all operations on all cells.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cellar_rpc::{CallOptions, Port, Security};
use cellar_wire::ids::{AfsUuid, Fid, VolumeId};
use cellar_wire::rxafs::{self, AfsFetchStatus};

use crate::cell::{Cell, CellName, Dns, KnownCells};
use crate::directory::Directories;
use crate::error::{Error, PathProblem, Result};
use crate::mount_point::{MountPoint, VolumeKind, choose, leads_on};
use crate::objects::CellDevices;
use crate::path::{Follow, Node, Tree, walk};
use crate::reach::Reach;
use crate::rxafscb::{BreakHandled, CallbackService, Promises};
use crate::servers::{Administrator, Renewal, Servers};
use crate::volume::Volume;
use crate::volume_location::{Family, Locations};

/// The longest text of a symbolic link, in bytes. Source: `AFSPATHMAX`.
const LINK_TEXT_MAX: u64 = 1024;

/// The longest wait for each file server when a client ends.
const GOODBYE_TIME: Duration = Duration::from_secs(2);

/// The configuration of a client.
#[derive(Debug)]
pub struct Config {
    /// The known cells. The first is the home cell.
    pub cells: Vec<Cell>,
    /// An administrator's socket, and the server to which it belongs.
    pub administrator: Option<Administrator>,
    /// The security of the calls to each cell, for its VL, PR and file servers alike. Calls to a
    /// cell that is not in the map are anonymous.
    pub security: HashMap<CellName, Security>,
    /// The source of a new token after one has expired. Without a source the calls fail then.
    pub renewal: Option<Arc<dyn Renewal>>,
}

/// A client without a mount: access to paths, files and directories of cells over RPCs.
pub struct Client {
    cells: Arc<KnownCells>,
    home: Option<Cell>,
    servers: Arc<Servers>,
    locations: Locations,
    directories: Arc<Directories>,
    devices: CellDevices,
}

impl Client {
    /// Makes a client that calls from `port`, and starts its callback service there.
    ///
    /// # Errors
    /// None at present.
    pub fn new(port: Port, config: Config) -> Result<Self> {
        let directories = Arc::new(Directories::default());
        let uuid = AfsUuid(*uuid::Uuid::new_v4().as_bytes());
        let first_server = config
            .cells
            .iter()
            .find_map(|cell| cell.location_servers().next());
        let addresses = first_server.and_then(own_address).into_iter().collect();
        let service = CallbackService::new(uuid, addresses, directories.clone());
        port.add_service(&(Arc::new(service) as Arc<dyn cellar_rpc::Service>));
        let cells = KnownCells::new(config.cells.clone());
        let reach = Arc::default();
        Ok(Self::with_directories(
            port,
            cells,
            config,
            directories,
            reach,
        ))
    }

    /// Makes a client that calls from a port on which another service answers callbacks. It is one
    /// of several users of a cache manager, which share the known cells. The client keeps no data
    /// that only a promise keeps valid.
    pub fn without_callbacks(
        port: Port,
        cells: Arc<KnownCells>,
        config: Config,
        reach: Arc<Reach>,
    ) -> Self {
        Self::with_directories(port, cells, config, Arc::default(), reach)
    }

    fn with_directories(
        port: Port,
        cells: Arc<KnownCells>,
        config: Config,
        directories: Arc<Directories>,
        reach: Arc<Reach>,
    ) -> Self {
        let servers = Servers::reaching(port, config.administrator, config.renewal, reach);
        let servers = Arc::new(servers);
        for (cell, security) in config.security {
            servers.set_security(&cell, security);
        }
        Self {
            home: cells.home(),
            cells,
            locations: Locations::new(servers.clone()),
            servers,
            directories,
            devices: CellDevices::default(),
        }
    }

    /// The name, servers and ports of a known cell.
    ///
    /// # Errors
    /// [`Error::UnknownCell`].
    pub fn cell(&self, name: &CellName) -> Result<Cell> {
        self.cells.known(name)
    }

    /// The home cell: the first of the configuration.
    pub fn home(&self) -> Option<&Cell> {
        self.home.as_ref()
    }

    /// All known cells.
    pub fn cells(&self) -> Vec<Cell> {
        self.cells.all()
    }

    /// Looks unknown cells of paths and mount points up in `dns` from now on.
    pub fn discover(&self, dns: Dns) {
        self.cells.discover(dns);
    }

    /// Replaces the table of aliases of cells.
    pub fn alias(&self, aliases: HashMap<CellName, CellName>) {
        self.cells.alias(aliases);
    }

    /// The connections to servers.
    pub fn servers(&self) -> &Servers {
        &self.servers
    }

    /// The locations of volumes.
    pub fn locations(&self) -> &Locations {
        &self.locations
    }

    pub(crate) fn cell_devices(&self) -> &CellDevices {
        &self.devices
    }

    /// Replaces the connections to devices: this machine has another address, or has slept.
    pub fn renew_devices(&self) {
        self.devices.renew();
    }

    pub(crate) fn directories(&self) -> &Directories {
        &self.directories
    }

    /// Gives up all promises at every file server that was called. Otherwise the next client that
    /// changes something would wait until the server takes this client for dead.
    pub async fn goodbye(&self) {
        let options = CallOptions {
            timeout: Some(GOODBYE_TIME),
        };
        for connection in self.servers.connections_to(&rxafs::PACKAGE) {
            let left = connection
                .call_with(&rxafs::GiveUpAllCallBacks {}, options)
                .await;
            if let Err(cause) = left {
                tracing::debug!(server = ?connection.peer(), %cause, "the server did not answer when its promises were given up");
            }
        }
    }

    /// Forgets the location of a volume.
    pub(crate) async fn forget_location(&self, volume: &Volume) {
        if let Ok(cell) = self.cell(&volume.cell)
            && let Ok(family) = self.locations.family(&cell, &volume.name).await
        {
            self.locations.forget(&family);
        }
    }

    /// Follows a path. `None` stands for `/afs` itself in a home cell without `root.afs`.
    ///
    /// # Errors
    /// The path leads nowhere, or a server on the way does not answer.
    pub async fn walk(&self, path: &str, follow: Follow) -> Result<Option<Node>> {
        walk(&Rooted(self), path, follow).await
    }

    /// [`Client::walk`] for a path that must lead to a vnode.
    ///
    /// # Errors
    /// As [`Client::walk`]; `/afs` without a volume is an error too.
    pub async fn find(&self, path: &str, follow: Follow) -> Result<Node> {
        self.walk(path, follow).await?.ok_or_else(|| Error::Path {
            path: path.to_owned(),
            problem: PathProblem::NotChangeable,
        })
    }

    /// The status of a vnode.
    ///
    /// # Errors
    /// No server of the volume answers the call.
    pub async fn status(&self, volume: &Volume, fid: Fid) -> Result<AfsFetchStatus> {
        let what = format!("status of {fid}");
        let reply = self
            .call_volume(volume, &what, &rxafs::FetchStatus { fid })
            .await?;
        Ok(reply.status)
    }

    /// A vnode with its status.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub async fn node(&self, volume: &Arc<Volume>, fid: Fid) -> Result<Node> {
        let status = self.status(volume, fid).await?;
        Ok(Node {
            volume: volume.clone(),
            fid,
            status,
        })
    }

    /// The text of a symbolic link or mount point.
    ///
    /// # Errors
    /// As [`crate::Fetch::next`].
    pub async fn link_text(&self, node: &Node) -> Result<Bytes> {
        self.fetch_all(node, LINK_TEXT_MAX).await
    }

    /// The root directory of the volume that a mount point leads to.
    ///
    /// # Errors
    /// As [`Client::mounted`] and [`Client::node`]; [`PathProblem::BadMountPoint`] if the text is
    /// no mount point.
    pub async fn mounted_root(&self, mount_point: &Node) -> Result<Node> {
        let text = self.link_text(mount_point).await?;
        let mount = MountPoint::parse(&text).ok_or_else(|| Error::Path {
            path: mount_point.fid.to_string(),
            problem: PathProblem::BadMountPoint(String::from_utf8_lossy(&text).into_owned()),
        })?;
        let from = &mount_point.volume;
        let volume = self.mounted(Some(from), &from.cell, &mount).await?;
        self.node(&volume, Fid::root(volume.id)).await
    }

    /// The volume that a mount point leads to. `from` is the volume of the mount point; `None` is
    /// the start of a path.
    ///
    /// # Errors
    /// The cell is unknown, or the VLDB does not list the volume or the wanted kind of it.
    /// [`PathProblem::BackupInBackup`] if the mount point leads from a backup volume to one.
    pub async fn mounted(
        &self,
        from: Option<&Volume>,
        cell: &CellName,
        mount: &MountPoint,
    ) -> Result<Arc<Volume>> {
        let cell = self.cells.find(mount.cell.as_ref().unwrap_or(cell)).await?;
        let mut family = self.locations.family(&cell, &mount.volume).await?;
        // A mount point in a read-only volume, in another cell or at the top leads to the read-only
        // volume if there is one.
        let prefer_read_only = from.is_none_or(|v| v.is_read_only() || v.cell != cell.name);
        let number = mount.volume.parse().ok().map(VolumeId);
        let chosen = |family: &Family| match number.and_then(|id| family.kind_of(id)) {
            // A number means exactly the volume that has it.
            Some(kind) => Some(kind),
            None => choose(mount, prefer_read_only, family.existing()),
        };
        let mut kind = chosen(&family);
        if kind.is_none() {
            // The volume may have been made since the entry was fetched.
            self.locations.forget(&family);
            family = self.locations.family(&cell, &mount.volume).await?;
            kind = chosen(&family);
        }
        let kind = kind.ok_or_else(|| Error::NoSuchSite {
            cell: cell.name.clone(),
            volume: family.name.clone(),
            wanted: if mount.read_write {
                "read-write"
            } else {
                "usable"
            },
        })?;
        if !leads_on(from.map(|volume| volume.kind), kind) {
            return Err(Error::Path {
                path: mount.to_string(),
                problem: PathProblem::BackupInBackup,
            });
        }
        Ok(volume_of(&family, kind))
    }
}

/// One volume of a family.
pub fn volume_of(family: &Family, kind: VolumeKind) -> Arc<Volume> {
    Arc::new(Volume {
        cell: family.cell.clone(),
        name: family.name.clone(),
        kind,
        id: family.id(kind),
    })
}

impl Promises for Directories {
    fn broken(&self, fids: &[Fid]) -> BreakHandled<'_> {
        for fid in fids {
            self.forget(*fid);
        }
        Box::pin(std::future::ready(()))
    }

    fn all_broken(&self, _server: SocketAddr) -> BreakHandled<'_> {
        self.forget_all();
        Box::pin(std::future::ready(()))
    }
}

/// The client, as the tree in which paths are followed.
struct Rooted<'a>(&'a Client);

impl Tree for Rooted<'_> {
    async fn afs_root(&self) -> Result<Option<Arc<Volume>>> {
        let Some(home) = self.0.home() else {
            return Ok(None);
        };
        self.top(&home.name, "root.afs", false).await
    }

    async fn cell_root(&self, cell: &CellName, read_write: bool) -> Result<Option<Arc<Volume>>> {
        match self.0.cells.find(cell).await {
            Ok(cell) => self.top(&cell.name, "root.cell", read_write).await,
            Err(Error::UnknownCell(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn lookup(&self, directory: &Node, name: &[u8]) -> Result<Option<Fid>> {
        self.0.lookup_name(directory, name).await
    }

    async fn node(&self, volume: &Arc<Volume>, fid: Fid) -> Result<Node> {
        self.0.node(volume, fid).await
    }

    async fn link_text(&self, node: &Node) -> Result<Bytes> {
        self.0.link_text(node).await
    }

    async fn mount(&self, from: &Arc<Volume>, mount: &MountPoint) -> Result<Arc<Volume>> {
        self.0.mounted(Some(from), &from.cell, mount).await
    }
}

impl Rooted<'_> {
    /// A volume at the top of the tree; `None` if the cell has no volume of that name.
    async fn top(
        &self,
        cell: &CellName,
        volume: &str,
        read_write: bool,
    ) -> Result<Option<Arc<Volume>>> {
        let mount = MountPoint {
            read_write,
            cell: None,
            volume: volume.to_owned(),
        };
        match self.0.mounted(None, cell, &mount).await {
            Ok(volume) => Ok(Some(volume)),
            Err(Error::NoSuchVolume { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Our own address from which packets to `peer` leave. Sends no packet.
pub fn own_address(peer: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = if peer.is_ipv4() {
        (IpAddr::from([0, 0, 0, 0]), 0).into()
    } else {
        (IpAddr::from([0u16; 8]), 0).into()
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(peer).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
