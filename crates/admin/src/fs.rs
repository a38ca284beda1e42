//! Files, directories and mount points, for administrators: the operations of `fs`.
//!
//! OpenAFS's `fs` asks the cache manager of its machine; these operations ask the file servers.

mod access_lists;
mod acl;
mod objects;
mod older;
mod quota;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use cellar_client::path::split_last;
use cellar_client::{Cell, CellName, Client, Follow, MountPoint, Node, mounted};
use cellar_rpc::{CallError, CallOptions};
use cellar_wire::AbortCode;
use cellar_wire::acl::Rights;
use cellar_wire::ids::{Fid, VolumeId};
use cellar_wire::rxafs;
use futures_util::{StreamExt, stream};
use serde::Serialize;

pub use access_lists::AclChange;
pub use acl::{Acl, AclEntry, BadAcl, RightsChange, parse_rights};
pub(crate) use objects::retry_until_loaded;
pub use objects::{Piece, Pieces, Policies};
pub use older::{Older, Restored};
pub use quota::{DISK_HEAD, QUOTA_HEAD, VolumeStatus};

use crate::error::{Error, Result};
use crate::vos::Volumes;

/// The time for which `checkservers` waits for a server.
const PROBE_TIME: Duration = Duration::from_secs(5);
/// The number of servers that it asks at the same time.
const PROBES: usize = 64;

/// A mount point, as `fs lsmount` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mount {
    /// The given path.
    pub path: String,
    /// The text of the mount point with its leading sign, without the final dot.
    pub text: String,
    /// The path is a symbolic link that leads to the mount point.
    pub symbolic_link: bool,
}

/// The result of [`Files::make_mount`].
#[derive(Debug)]
pub struct NewMount {
    /// The mount point; if the user gave another name of the cell, it has the cell's own name.
    pub mount: MountPoint,
    /// The reason why the mount point may lead nowhere, if that was checked.
    pub doubt: Option<Error>,
}

/// The fields that `fs setvol` changes; `None` keeps the old value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeChange {
    /// Quota in KiB; 0 is none.
    pub quota_kib: Option<i32>,
    /// The message that users see while the volume is off-line.
    pub offline_message: Option<String>,
    /// The message of the day, which file servers store.
    pub message_of_the_day: Option<String>,
}

/// The identity of a file, and the caller's rights to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Examined {
    /// The given path.
    pub path: String,
    /// The fid that the path leads to.
    pub fid: String,
    /// The cell of the file.
    pub cell: String,
    /// The rights of the caller.
    #[serde(serialize_with = "crate::json::display")]
    pub access: Rights,
}

/// Files and volumes through the client.
#[derive(Clone, Copy)]
pub struct Files<'a> {
    client: &'a Client,
}

impl<'a> Files<'a> {
    /// Operations through `client`.
    pub fn new(client: &'a Client) -> Self {
        Self { client }
    }

    /// The node at the end of a path, in a mounted AFS or below `/afs`. Any other word without
    /// slashes is the name of a volume, and stands for its root directory. In a mounted AFS such a
    /// word is always a file name.
    async fn find(&self, path: &str) -> Result<Node> {
        if let Some((cell, fid)) = mounted::place(Path::new(path)) {
            return self.node(&cell, fid).await;
        }
        if is_list_of_cells(path) {
            return Err(no_cell(path));
        }
        let is_volume = is_volume(path, || is_mounted(Path::new(".")))?;
        let Some(home) = self.client.home().filter(|_| is_volume) else {
            return Ok(self.client.find(path, Follow::ALL).await?);
        };
        let mount = MountPoint {
            read_write: true,
            cell: None,
            volume: path.to_owned(),
        };
        let volume = self.client.mounted(None, &home.name, &mount).await?;
        let root = cellar_wire::Fid::root(volume.id);
        Ok(self.client.node(&volume, root).await?)
    }

    async fn node(&self, cell: &CellName, fid: Fid) -> Result<Node> {
        let mount = MountPoint {
            read_write: false,
            cell: Some(cell.clone()),
            volume: fid.volume.0.to_string(),
        };
        let volume = self.client.mounted(None, cell, &mount).await?;
        Ok(self.client.node(&volume, fid).await?)
    }

    /// The directory of a path's last name, and that name.
    async fn parent<'p>(&self, path: &'p str) -> Result<(Node, &'p str)> {
        if matches!(
            path.trim_end_matches('/').rsplit('/').next(),
            Some("." | "..")
        ) {
            // The message is that of OpenAFS's fs.
            return Err(Error::Usage(format!(
                "'{path}': you may not use '.' or '..' as the last component of a name in this fs command"
            )));
        }
        let (directory, name) = match last_name(path) {
            Some(name) if mounted::place(Path::new(".")).is_some() => (".", name),
            _ => split_last(path)?,
        };
        Ok((self.find(directory).await?, name))
    }

    /// The node of the name itself: a mount point or symbolic link is not followed.
    async fn literally(&self, path: &str) -> Result<Node> {
        let (directory, name) = match self.parent(path).await {
            Ok(found) => found,
            // The root of the tree has no parent.
            Err(Error::Client(_)) => return Ok(self.client.find(path, Follow::NONE).await?),
            Err(error) => return Err(error),
        };
        match self.client.lookup_name(&directory, name.as_bytes()).await? {
            Some(fid) => Ok(self.client.node(&directory.volume, fid).await?),
            None if is_from_afs(path) => Ok(self.client.find(path, Follow::NONE).await?),
            None => Err(Error::Client(cellar_client::Error::Path {
                path: path.to_owned(),
                problem: cellar_client::PathProblem::NotFound,
            })),
        }
    }

    /// The state and quota of the volume that a path is in.
    ///
    /// # Errors
    /// The path does not exist.
    pub async fn volume_status(&self, path: &str) -> Result<VolumeStatus> {
        let node = self.find(path).await?;
        let volume = node.volume.id;
        let reply = self
            .client
            .call_volume(&node.volume, &path, &rxafs::GetVolumeStatus { volume })
            .await?;
        Ok(VolumeStatus {
            path: path.to_owned(),
            fid: node.fid.to_string(),
            volume: reply.status.volume,
            name: reply.name.to_string(),
            offline_message: reply.offline_message.to_string(),
            quota_kib: reply.status.max_quota,
            used_kib: reply.status.blocks_in_use,
            partition_available_kib: reply.status.partition_blocks_available,
            partition_kib: reply.status.partition_max_blocks,
        })
    }

    /// Sets the quota and the messages of the volume that a path is in.
    ///
    /// # Errors
    /// The path does not exist, a message is too long, or the caller has no permission.
    pub async fn set_volume(&self, path: &str, change: &VolumeChange) -> Result<()> {
        let node = self.find(path).await?;
        // An empty message leaves the server's message unchanged.
        let message = |what: &str, text: &Option<String>| {
            let text = text.as_deref().unwrap_or_default();
            let fits = Some(text).filter(|text| text.len() <= MESSAGE_MAX);
            let fits = fits.and_then(|text| rxafs::AfsPath::new(text.to_owned()).ok());
            fits.ok_or_else(|| {
                Error::Usage(format!("{what}: a message has at most {MESSAGE_MAX} bytes"))
            })
        };
        let arguments = rxafs::SetVolumeStatus {
            volume: node.volume.id,
            status: rxafs::StoreVolumeStatus {
                max_quota: change.quota_kib,
                min_quota: None,
            },
            name: Default::default(),
            offline_message: message("-offlinemsg", &change.offline_message)?,
            message_of_the_day: message("-motd", &change.message_of_the_day)?,
        };
        let set = self
            .client
            .call_volume(&node.volume, &path, &arguments)
            .await;
        match set {
            // The code is that of a missing right, but no access list gives this right.
            Err(cellar_client::Error::Fileserver { what, cause }) => {
                let reason = "Only superusers of the cell set the quota and the messages of a volume: 'cellar \
                              bos listusers SERVER' lists them. Root or the owner of the cell's directory \
                              may, on the server's own machine, with --dir DIR";
                let refused = Error::refused(what, cause);
                Err(refused
                    .advise(AbortCode::EACCES, reason)
                    .advise(AbortCode::EPERM, reason))
            }
            other => Ok(other.map(drop)?),
        }
    }

    /// Creates a mount point. With `look`, checks whether the volume exists.
    ///
    /// # Errors
    /// The name is taken, or the caller has no `a` right.
    pub async fn make_mount(&self, path: &str, mount: &MountPoint, look: bool) -> Result<NewMount> {
        let (directory, name) = self.parent(path).await?;
        let cell = mount.cell.as_ref().unwrap_or(&directory.volume.cell);
        // The DNS is used too, as by a client that follows the mount point.
        let doubt = match look {
            true => self.client.mounted(None, cell, mount).await.err(),
            false => None,
        };
        // An alias of the cell is known on this machine only.
        let real = |cell: &CellName| match self.client.cell(cell) {
            Ok(known) => known.name,
            Err(cellar_client::Error::UnknownCell(real)) => real,
            Err(_) => cell.clone(),
        };
        let mount = MountPoint {
            cell: mount.cell.as_ref().map(real),
            ..mount.clone()
        };
        self.client
            .place(&directory, name.as_bytes(), path)?
            .make_mount_point(&mount)
            .await?;
        Ok(NewMount {
            mount,
            doubt: doubt.map(Error::from),
        })
    }

    /// Removes a mount point.
    ///
    /// # Errors
    /// The path is no mount point, or the caller has no permission.
    pub async fn remove_mount(&self, path: &str) -> Result<()> {
        self.list_mount(path).await?;
        let (directory, name) = self.parent(path).await?;
        self.client
            .place(&directory, name.as_bytes(), path)?
            .remove_file()
            .await?;
        Ok(())
    }

    /// The text of a mount point.
    ///
    /// # Errors
    /// The path is no mount point.
    pub async fn list_mount(&self, path: &str) -> Result<Mount> {
        let mut place = path.to_owned();
        for followed in 0..LINKS_MAX {
            let node = self.literally(&place).await?;
            if !node.is_mount_point() && !node.is_link() {
                break;
            }
            let text = self.client.link_text(&node).await?;
            let text = String::from_utf8_lossy(&text);
            if node.is_mount_point() {
                return Ok(Mount {
                    path: path.to_owned(),
                    text: text.strip_suffix('.').unwrap_or(&text).to_owned(),
                    symbolic_link: followed > 0,
                });
            }
            place = beside(&place, &text);
        }
        Err(Error::Usage(format!("'{path}' is not a mount point.")))
    }

    /// The fid of a file and the caller's rights. With `literal`, a mount point or symbolic link is
    /// not followed.
    ///
    /// # Errors
    /// The path does not exist.
    pub async fn examine(&self, path: &str, literal: bool) -> Result<Examined> {
        let node = match last_name(path) {
            Some("." | "..") => self.find(path).await?,
            _ if literal => self.literally(path).await?,
            _ => self.find(path).await?,
        };
        Ok(Examined {
            path: path.to_owned(),
            fid: node.fid.to_string(),
            cell: node.volume.cell.to_string(),
            access: node.status.caller_access,
        })
    }

    /// The file servers that have the volume of a path.
    ///
    /// # Errors
    /// The path does not exist.
    pub async fn where_is(&self, path: &str) -> Result<Vec<IpAddr>> {
        let node = self.find(path).await?;
        let cell = self.client.cell(&node.volume.cell)?;
        let family = self
            .client
            .locations()
            .family(&cell, &node.volume.name)
            .await?;
        let servers = family.servers(node.volume.kind);
        Ok(servers
            .iter()
            .filter_map(|server| server.addresses.first().copied())
            .collect())
    }

    /// The file servers of a cell that do not answer a request for the time.
    ///
    /// # Errors
    /// The VLDB does not answer.
    pub async fn silent_servers(&self, cell: &Cell) -> Result<Vec<IpAddr>> {
        let servers = Volumes::new(self.client, cell).addresses().await?;
        // All servers are asked at once, because each silent one uses up its whole time limit.
        let asked = stream::iter(servers).map(|server| async move {
            let answers = server
                .addresses
                .iter()
                .map(|address| self.answers(cell, *address));
            let answers = futures_util::future::join_all(answers).await;
            let silent = !answers.contains(&true);
            server.addresses.first().copied().filter(|_| silent)
        });
        let silent: Vec<_> = asked.buffered(PROBES).collect().await;
        Ok(silent.into_iter().flatten().collect())
    }

    async fn answers(&self, cell: &Cell, address: IpAddr) -> bool {
        let peer = SocketAddr::new(address, cell.ports.fileserver);
        let servers = self.client.servers();
        let connection = servers.connection(&cell.name, peer, &rxafs::PACKAGE);
        let options = CallOptions {
            timeout: Some(PROBE_TIME),
        };
        let answer = connection.call_with(&rxafs::GetTime {}, options).await;
        // An abort is an answer too.
        matches!(answer, Ok(_) | Err(CallError::Aborted(_)))
    }

    /// The cell and volume of a path.
    ///
    /// # Errors
    /// The path does not exist.
    pub async fn volume_of(&self, path: &str) -> Result<(String, VolumeId)> {
        let node = self.find(path).await?;
        Ok((node.volume.cell.to_string(), node.volume.id))
    }
}

/// The longest message of a volume, in bytes.
const MESSAGE_MAX: usize = 127;

/// The most symbolic links that are followed one after the other. Source: path_resolution(7).
const LINKS_MAX: usize = 40;

/// The path that a symbolic link at `path` leads to.
fn beside(path: &str, text: &str) -> String {
    match path.trim_end_matches('/').rsplit_once('/') {
        _ if text.starts_with('/') => text.to_owned(),
        Some((above, _)) => format!("{above}/{text}"),
        None => text.to_owned(),
    }
}

/// The path, if it is a single name. Slashes at its end do not count: shells add them to the names
/// of directories.
fn last_name(path: &str) -> Option<&str> {
    let name = path.trim_end_matches('/');
    (!name.is_empty() && !name.contains('/')).then_some(name)
}

/// Whether a path begins with `/afs`, wherever the file system is mounted.
fn is_from_afs(path: &str) -> bool {
    let rest = path.strip_prefix("/afs");
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// An attribute of every file in a mount by `cellar mount`, also of its root, which is in no cell.
const STATUS: &str = "afs.cellar.status";

/// Whether a directory is in a mounted AFS.
fn is_mounted(directory: &Path) -> bool {
    mounted::place(directory).is_some() || mounted::attribute(directory, STATUS).is_ok()
}

/// Whether a path leads to the root of a mount that shows cells. A path that begins with `/afs` is
/// never treated as one.
pub fn is_list_of_cells(path: &str) -> bool {
    let place = Path::new(path);
    !is_from_afs(path) && mounted::place(place).is_none() && is_mounted(place)
}

/// Whether a path leads to a local file that is in no AFS. This is false for a path that begins
/// with `/afs`, and for a word that may be the name of a volume.
pub fn is_outside(path: &str) -> bool {
    let place = Path::new(path);
    path.contains('/') && !is_from_afs(path) && place.exists() && !is_mounted(place)
}

/// The error for such a path.
pub fn outside(path: &str) -> Error {
    Error::Client(cellar_client::Error::Path {
        path: path.to_owned(),
        problem: cellar_client::PathProblem::NotAfs,
    })
}

/// The error for the root of a mount that shows cells.
pub fn no_cell(path: &str) -> Error {
    Error::Usage(format!(
        "{path}: the list of cells is on no server: name a path in a cell"
    ))
}

/// Whether a path that leads to nothing in a mounted AFS is the name of a volume. If not, it begins
/// with `/afs`.
///
/// # Errors
/// The path can be neither. In a mounted AFS a word is the name of a file. If a mistyped name
/// counted as a volume of the home cell, the command would change that volume's root directory.
fn is_volume(path: &str, in_mount: impl Fn() -> bool) -> Result<bool> {
    if matches!(path, "." | "..") {
        return Err(Error::Usage(format!(
            "'{path}' is not in a mounted AFS: name a path in one, a path from /afs on, or a volume"
        )));
    }
    if path.contains('/') {
        return Ok(false);
    }
    if in_mount() {
        let problem = match std::fs::metadata(path) {
            Ok(_) => "is not in AFS".to_owned(),
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                "no such file or directory".to_owned()
            }
            Err(cause) => cause.to_string(),
        };
        return Err(Error::Usage(format!(
            "{path}: {problem}. In a mounted AFS a word without slashes is a file's name; to name a \
             volume, use a directory that is not in AFS"
        )));
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
