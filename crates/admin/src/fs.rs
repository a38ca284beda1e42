//! Files, directories and mount points as an administrator sees them: the operations of `fs`.
//!
//! `fs` of the originals asks the cache manager of its machine; this one asks the file servers.

mod acl;
mod objects;
mod quota;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use cellar_client::path::split_last;
use cellar_client::{Cell, CellName, Client, Follow, MountPoint, Node, mounted};
use cellar_rpc::{CallError, CallOptions};
use cellar_wire::acl::Rights;
use cellar_wire::ids::{Fid, ViceId, VolumeId};
use cellar_wire::rxafs;
use futures_util::{StreamExt, stream};
use serde::Serialize;

pub use acl::{Acl, AclEntry, BadAcl, RightsChange, parse_rights};
pub(crate) use objects::patiently;
pub use objects::{Piece, Pieces, Policies};
pub use quota::{DISK_HEAD, QUOTA_HEAD, VolumeStatus};

use crate::error::{Error, Result};
use crate::pts::Protection;
use crate::vos::Volumes;

/// How long `checkservers` waits for a server.
const PROBE_TIME: Duration = Duration::from_secs(5);
/// Servers that it asks at a time.
const PROBES: usize = 64;

/// How `fs setacl` changes a list.
#[derive(Clone, Debug)]
pub struct AclChange {
    /// Names and what becomes of the rights of each.
    pub entries: Vec<(String, RightsChange)>,
    /// Drop everything else first.
    pub clear: bool,
    /// The entries are negative ones.
    pub negative: bool,
}

/// What a mount point says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mount {
    /// The path that was asked about.
    pub path: String,
    /// The text with its sign, without the final dot.
    pub text: String,
    /// The path is a symbolic link that leads to the mount point.
    pub symbolic_link: bool,
}

/// A mount point that was made.
#[derive(Debug)]
pub struct NewMount {
    /// What it says, with the cell's own name where another name of it was given.
    pub mount: MountPoint,
    /// Why it may lead nowhere, if that was looked for.
    pub doubt: Option<Error>,
}

/// What `fs setvol` changes; what is `None` stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeChange {
    /// Quota in KiB; 0 is none.
    pub quota_kib: Option<i32>,
    /// What users are told while the volume is off-line.
    pub offline_message: Option<String>,
    /// What file servers keep as its message of the day.
    pub message_of_the_day: Option<String>,
}

/// A file's numbers, and what the caller may do with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Examined {
    /// The path that was asked about.
    pub path: String,
    /// What it leads to.
    pub fid: String,
    /// The cell that it is in.
    pub cell: String,
    /// What the caller may do.
    #[serde(serialize_with = "crate::json::display")]
    pub access: Rights,
}

/// Files and volumes through the client.
#[derive(Clone, Copy)]
pub struct Files<'a> {
    client: &'a Client,
}

impl<'a> Files<'a> {
    /// Through `client`.
    pub fn new(client: &'a Client) -> Self {
        Self { client }
    }

    /// What a path leads to: in a mounted AFS, or from `/afs` on. Any other word without slashes is a volume's name, its
    /// root directory, unless this is run in a mounted AFS.
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

    /// The directory that a name is in, and the name.
    async fn parent<'p>(&self, path: &'p str) -> Result<(Node, &'p str)> {
        if matches!(
            path.trim_end_matches('/').rsplit('/').next(),
            Some("." | "..")
        ) {
            // The words are those of OpenAFS's fs.
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

    /// What has a name: a mount point or symbolic link itself, not what it leads to.
    async fn literally(&self, path: &str) -> Result<Node> {
        let (directory, name) = match self.parent(path).await {
            Ok(found) => found,
            // The top of the tree has no parent.
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

    /// Drops users and groups that are no more from the access list of a directory. Answers what it is now; `None`: as it
    /// was.
    ///
    /// A file server that cannot reach the protection database answers numbers for everybody, so that a number alone does
    /// not say that somebody is no more: the database is asked.
    ///
    /// # Errors
    /// As [`Files::set_access_list`]; the protection database does not say whose the numbers are.
    pub async fn clean_access_list(&self, path: &str) -> Result<Option<Acl>> {
        let node = self.find(path).await?;
        let mut acl = self.acl_of(&node, path).await?;
        if !self.clean(&node, path, &mut acl).await? {
            return Ok(None);
        }
        self.store_acl(&node, path, &acl).await?;
        Ok(Some(acl))
    }

    /// Drops the entries of users and groups that are no more, and puts names in the place of other numbers: no file server
    /// takes a number for a name. Answers whether any was dropped.
    async fn clean(&self, node: &Node, path: &str, acl: &mut Acl) -> Result<bool> {
        let numbers = acl.numbers();
        if numbers.is_empty() {
            return Ok(false);
        }
        let cell = self.client.cell(&node.volume.cell)?;
        let names = Protection::new(self.client, &cell).names_of(&numbers).await;
        let names = names.map_err(|cause| Error::Partial {
            what: format!("{path}: cannot tell which users and groups are no more"),
            cause: Box::new(cause),
            left: "The access list is as it was".to_owned(),
        })?;
        let known: HashMap<ViceId, String> = numbers
            .into_iter()
            .zip(names)
            // Those that it does not know it answers as they are.
            .filter(|(id, name)| id.0.to_string() != *name)
            .collect();
        Ok(acl.clean(|id| known.get(&id).cloned()))
    }

    /// The access list of a directory, or of the directory that holds a file.
    ///
    /// # Errors
    /// The path leads nowhere, or its list may not be seen.
    pub async fn access_list(&self, path: &str) -> Result<Acl> {
        let node = self.find(path).await?;
        self.acl_of(&node, path).await
    }

    async fn acl_of(&self, node: &Node, path: &str) -> Result<Acl> {
        let reply = self
            .client
            .call_volume(&node.volume, &path, &rxafs::FetchACL { fid: node.fid })
            .await?;
        Acl::parse(reply.access_list.as_bytes())
            .map_err(|bad| Error::Usage(format!("{path}: {bad}")))
    }

    /// Changes the access list of a directory, and answers what it is now. Users and groups that are no more are dropped,
    /// as OpenAFS's `fs` does.
    ///
    /// # Errors
    /// Not a directory, an unknown name, more than 20 entries, or the caller may not.
    pub async fn set_access_list(&self, path: &str, change: &AclChange) -> Result<Acl> {
        let node = self.find(path).await?;
        if !node.is_directory() {
            return Err(Error::Usage(format!(
                "{path}: only directories have access lists"
            )));
        }
        let mut acl = if change.clear {
            Acl::default()
        } else {
            self.acl_of(&node, path).await?
        };
        self.clean(&node, path, &mut acl).await?;
        for (name, rights) in &change.entries {
            acl.change(name, *rights, change.negative);
        }
        self.store_acl(&node, path, &acl).await?;
        Ok(acl)
    }

    /// Puts the entries of a directory's access list into that of another, and answers what it is now.
    ///
    /// # Errors
    /// As [`Files::set_access_list`].
    pub async fn copy_access_list(&self, from: &str, to: &str, clear: bool) -> Result<Acl> {
        let node = self.find(from).await?;
        let mut source = self.acl_of(&node, from).await?;
        self.clean(&node, from, &mut source).await?;
        let node = self.find(to).await?;
        let mut acl = if clear {
            Acl::default()
        } else {
            self.acl_of(&node, to).await?
        };
        self.clean(&node, to, &mut acl).await?;
        for (list, negative) in [(&source.normal, false), (&source.negative, true)] {
            for entry in list {
                acl.set(&entry.name, entry.rights, negative);
            }
        }
        self.store_acl(&node, to, &acl).await?;
        Ok(acl)
    }

    async fn store_acl(&self, node: &Node, path: &str, acl: &Acl) -> Result<()> {
        let access_list = rxafs::AfsOpaque::new(acl.text()).map_err(|_| {
            Error::Usage(format!(
                "{path}: the access list would be longer than 1024 bytes"
            ))
        })?;
        let (client, volume) = (self.client, &node.volume);
        match client
            .store_access_list(volume, node.fid, access_list, &path)
            .await
        {
            Err(error) if error.code() == Some(cellar_wire::AbortCode::EINVAL) => {
                Err(Error::Usage(format!(
                    "{path}: the file server does not take this list: a name in it may not exist \
                     ('cellar pts examine NAME'), or there are more than 20 entries"
                )))
            }
            Err(error) => Err(error.into()),
            Ok(_) => Ok(()),
        }
    }

    /// The state and quota of the volume behind a path.
    ///
    /// # Errors
    /// The path leads nowhere.
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

    /// Sets the quota of the volume behind a path, and its messages.
    ///
    /// # Errors
    /// The path leads nowhere, a message is too long, or the caller may not.
    pub async fn set_volume(&self, path: &str, change: &VolumeChange) -> Result<()> {
        let node = self.find(path).await?;
        // An empty one leaves the server's as it is.
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
        self.client
            .call_volume(&node.volume, &path, &arguments)
            .await?;
        Ok(())
    }

    /// Makes a mount point; with `look` it is looked whether the volume exists, which it should.
    ///
    /// # Errors
    /// The name is taken, or the caller has no `a` right.
    pub async fn make_mount(&self, path: &str, mount: &MountPoint, look: bool) -> Result<NewMount> {
        let (directory, name) = self.parent(path).await?;
        let cell = mount.cell.as_ref().unwrap_or(&directory.volume.cell);
        // By way of the DNS too, as whoever follows it does.
        let doubt = match look {
            true => self.client.mounted(None, cell, mount).await.err(),
            false => None,
        };
        // Another name of the cell is this machine's alone.
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
    /// It is none, or the caller may not.
    pub async fn remove_mount(&self, path: &str) -> Result<()> {
        self.list_mount(path).await?;
        let (directory, name) = self.parent(path).await?;
        self.client
            .place(&directory, name.as_bytes(), path)?
            .remove_file()
            .await?;
        Ok(())
    }

    /// What a mount point says.
    ///
    /// # Errors
    /// It is none.
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

    /// The numbers of a file, and what the caller may do; `literal`: of a mount point or symbolic link itself.
    ///
    /// # Errors
    /// The path leads nowhere.
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

    /// The file servers that have the volume behind a path.
    ///
    /// # Errors
    /// The path leads nowhere.
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

    /// The file servers of a cell that do not answer. Each is asked for the time.
    ///
    /// # Errors
    /// The VLDB does not answer.
    pub async fn silent_servers(&self, cell: &Cell) -> Result<Vec<IpAddr>> {
        let servers = Volumes::new(self.client, cell).addresses().await?;
        // All at a time: each that is silent takes its time.
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
        // Any answer is one.
        matches!(answer, Ok(_) | Err(CallError::Aborted(_)))
    }

    /// The cell and volume behind a path.
    ///
    /// # Errors
    /// The path leads nowhere.
    pub async fn volume_of(&self, path: &str) -> Result<(String, VolumeId)> {
        let node = self.find(path).await?;
        Ok((node.volume.cell.to_string(), node.volume.id))
    }
}

/// Bytes of a volume's message.
const MESSAGE_MAX: usize = 127;

/// Symbolic links that are followed one after the other. Source: path_resolution(7).
const LINKS_MAX: usize = 40;

/// The path that a symbolic link at `path` leads to.
fn beside(path: &str, text: &str) -> String {
    match path.trim_end_matches('/').rsplit_once('/') {
        _ if text.starts_with('/') => text.to_owned(),
        Some((above, _)) => format!("{above}/{text}"),
        None => text.to_owned(),
    }
}

/// The path, if it is a single name: slashes at its end, which a shell adds to the names of directories, do not count.
fn last_name(path: &str) -> Option<&str> {
    let name = path.trim_end_matches('/');
    (!name.is_empty() && !name.contains('/')).then_some(name)
}

/// Whether a path is one from `/afs` on, wherever that is mounted.
fn is_from_afs(path: &str) -> bool {
    let rest = path.strip_prefix("/afs");
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// An attribute of everything in a mount by `cellar mount`, also of its root, which is in no cell.
const STATUS: &str = "afs.cellar.status";

/// Whether a directory is in a mounted AFS.
fn is_mounted(directory: &Path) -> bool {
    mounted::place(directory).is_some() || mounted::attribute(directory, STATUS).is_ok()
}

/// Whether a path leads to the root of a mount that shows cells. One from `/afs` on is read as such.
pub fn is_list_of_cells(path: &str) -> bool {
    let place = Path::new(path);
    !is_from_afs(path) && mounted::place(place).is_none() && is_mounted(place)
}

/// Whether a path leads to something of this machine that is in no AFS. One from `/afs` on, and a
/// word that may be a volume's name, does not.
pub fn is_outside(path: &str) -> bool {
    let place = Path::new(path);
    path.contains('/') && !is_from_afs(path) && place.exists() && !is_mounted(place)
}

/// What is said of such a path.
pub fn outside(path: &str) -> Error {
    Error::Client(cellar_client::Error::Path {
        path: path.to_owned(),
        problem: cellar_client::PathProblem::NotAfs,
    })
}

/// The complaint about the root of a mount that shows cells.
pub fn no_cell(path: &str) -> Error {
    Error::Usage(format!(
        "{path}: the list of cells is on no server: name a path in a cell"
    ))
}

/// Whether what leads to nothing in a mounted AFS is a volume's name, not a path from `/afs` on.
///
/// # Errors
/// It can be neither. In a mounted AFS a word is a file's name: a mistyped one must not become a volume of the home cell,
/// whose root directory is changed then.
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
            "{path}: {problem}. In a mounted AFS a word without slashes is a file's name; a volume is named from a \
             directory that is not in one"
        )));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_name_in_a_mount_is_no_volume() {
        let sentence = is_volume("dcos", || true).expect_err("a file's name");
        let sentence = sentence.to_string();
        assert!(
            sentence.starts_with("dcos: no such file or directory. In"),
            "{sentence}"
        );
        assert!(is_volume("dcos", || false).expect("a volume's name"));
        for mounted in [true, false] {
            assert!(!is_volume("/afs/a.cell/docs", || mounted).expect("a path"));
            assert!(is_volume(".", || mounted).is_err());
        }
    }

    #[test]
    fn a_slash_at_the_end_does_not_count() {
        for (path, name) in [
            ("m", Some("m")),
            ("m/", Some("m")),
            ("m//", Some("m")),
            ("..", Some("..")),
            ("./", Some(".")),
            ("d/m/", None),
            ("/m", None),
            ("/", None),
            ("", None),
        ] {
            assert_eq!(last_name(path), name, "{path}");
        }
        assert!(is_from_afs("/afs") && is_from_afs("/afs/a.cell/") && !is_from_afs("/afsx"));
    }

    #[test]
    fn other_directories_are_in_no_mount() {
        assert!(!is_mounted(Path::new("/proc")));
        assert!(!is_mounted(Path::new("/nonexistent")));
    }
}
