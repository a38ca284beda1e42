//! The locations of a file's pieces, and the policies of directories and volumes.

use std::time::Duration;

use cellar_client::{Client, Node};
use cellar_policy::shape;
use cellar_wire::afsosd::{GetPieces, GetPiecesReply, GetPolicy, SetPolicy};
use cellar_wire::object::{Layout, Scheme};
use cellar_wire::osddb::OsdListed;
use cellar_wire::{AbortCode, Fid, Procedure};
use serde::Serialize;

use super::Files;
use crate::error::{Error, Result, is_unknown_there};
use crate::hsm::Archives;
use crate::osd::{Device, Osds, State};
use crate::table::{Side, Table};

/// The number of times, one second apart, that a file server is asked to accept a new policy.
const HEARING_TRIES: usize = 15;

/// One object of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Piece {
    /// `stripe 0`, `copy 1 of stripe 0`, `data 0`, `parity 1`.
    pub part: String,
    /// The object, as `osd examine` takes it.
    pub object: String,
    /// The version that belongs to the file; 0: never written, all zeros.
    pub version: u64,
    /// The device.
    pub osd: u32,
    /// Its name.
    pub osd_name: String,
    /// The state of the piece: `well`, `empty`, `stale`, or the state of its device.
    pub state: String,
}

/// A file and its pieces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pieces {
    /// The given path.
    pub path: String,
    /// The fid that the path leads to.
    pub fid: String,
    /// Length in bytes.
    pub length: u64,
    /// The layout in words; `None` if the bytes are on the file server.
    pub shape: Option<String>,
    /// Whether the bytes are in archives only.
    pub wiped: bool,
    /// The archives that have good copies of a wiped file.
    pub archives: Vec<String>,
    /// Whether no data is lost, as far as is known.
    pub readable: bool,
    /// Whether every piece is well.
    pub redundant: bool,
    /// The objects.
    pub pieces: Vec<Piece>,
}

impl Pieces {
    fn of(path: &str, fid: Fid, reply: &GetPiecesReply) -> Self {
        let mut all = Self {
            path: path.to_owned(),
            fid: fid.to_string(),
            length: reply.length,
            shape: None,
            wiped: false,
            archives: Vec::new(),
            readable: true,
            redundant: true,
            pieces: Vec::new(),
        };
        if let Some(layout) = reply.layout.first() {
            all.shape = Some(shape(&layout.shape));
            all.pieces = pieces(fid, layout, &reply.devices);
            all.redundant = all.pieces.iter().all(is_well);
            all.readable = is_readable(layout, &all.pieces);
        }
        all
    }

    /// The text for users.
    pub fn text(&self) -> String {
        let length = cellar_policy::bytes(self.length);
        if self.wiped {
            let state = match &self.archives[..] {
                [] => "NOT READABLE: no archive has a good copy".to_owned(),
                archives => format!("good copies in {}", archives.join(", ")),
            };
            return format!(
                "{} ({}): {length}, wiped, only in archives: {state}\n",
                self.path, self.fid
            );
        }
        let Some(shape) = &self.shape else {
            return format!(
                "{} ({}): {length} on the file server's own disk\n",
                self.path, self.fid
            );
        };
        let state = match (self.readable, self.redundant) {
            (false, _) => "NOT READABLE",
            (true, false) => "readable, not all pieces are well",
            (true, true) => "well",
        };
        let mut text = format!("{} ({}): {length}, {shape}: {state}\n", self.path, self.fid);
        let mut table = Table::new([
            ("Piece", Side::Left),
            ("Object", Side::Left),
            ("Version", Side::Right),
            ("Osd", Side::Right),
            ("Name", Side::Left),
            ("State", Side::Left),
        ]);
        for piece in &self.pieces {
            table.row([
                piece.part.clone(),
                piece.object.clone(),
                piece.version.to_string(),
                piece.osd.to_string(),
                piece.osd_name.clone(),
                piece.state.clone(),
            ]);
        }
        for line in table.to_string().lines() {
            text.push_str(&format!("    {line}\n"));
        }
        text
    }
}

fn is_well(piece: &Piece) -> bool {
    matches!(&*piece.state, "well" | "empty" | "draining")
}

/// Whether the piece can at least be read: a device whose store refuses writes can still be read.
fn is_there(piece: &Piece) -> bool {
    is_well(piece) || piece.state == State::Readonly.word()
}

/// Whether each stripe has a readable copy. For an erasure code: whether as many objects are
/// readable as there are data objects.
fn is_readable(layout: &Layout, pieces: &[Piece]) -> bool {
    let stripes = layout.shape.stripes as usize;
    match layout.shape.scheme {
        Scheme::Erasure => pieces.iter().filter(|piece| is_there(piece)).count() >= stripes,
        Scheme::Striped => (0..stripes).all(|stripe| {
            let mut copies = pieces.iter().skip(stripe).step_by(stripes);
            copies.any(is_there)
        }),
    }
}

fn pieces(fid: Fid, layout: &Layout, devices: &[OsdListed]) -> Vec<Piece> {
    let stripes = layout.shape.stripes as usize;
    let copies = layout.shape.copies;
    let part = |place: usize| match (layout.shape.scheme, place / stripes, place % stripes) {
        (Scheme::Erasure, 0, data) => format!("data {data}"),
        (Scheme::Erasure, ..) => format!("parity {}", place - stripes),
        (Scheme::Striped, _, stripe) if copies == 1 => format!("stripe {stripe}"),
        (Scheme::Striped, copy, stripe) => format!("stripe {stripe} copy {copy}"),
    };
    let piece = |(place, placed): (usize, &cellar_wire::object::Placed)| {
        let device = devices.iter().find(|device| device.entry.id == placed.osd);
        let device = device.map(Device::of);
        let object = layout.object(fid.vnode, fid.uniquifier, placed);
        let state = match &device {
            _ if placed.stale => "stale",
            None => "device is gone",
            Some(device) if device.state != State::Up => device.state.word(),
            Some(_) if placed.version == 0 => "empty",
            Some(_) => "well",
        };
        Piece {
            part: part(place),
            object: crate::osd::object_name(&object),
            version: placed.version,
            osd: placed.osd,
            osd_name: device.map_or_else(|| "?".to_owned(), |device| device.name),
            state: state.to_owned(),
        }
    };
    layout.objects.iter().enumerate().map(piece).collect()
}

/// The policies that apply in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Policies {
    /// The given path.
    pub path: String,
    /// The policy of the directory; 0: none of its own.
    pub directory: u32,
    /// The policy of its volume; 0: no objects at all, 1: by size.
    pub volume: u32,
    /// The volume's name.
    pub volume_name: String,
    /// The path of the directory in the volume.
    #[serde(skip)]
    pub path_in_volume: String,
    /// Length, owner and group of the file, if it exists.
    #[serde(skip)]
    pub file: Option<(u64, i32, i32)>,
}

impl Files<'_> {
    /// The locations of the pieces of a file.
    ///
    /// # Errors
    /// The path does not lead to a file, or the file server has no object storage.
    pub async fn pieces(&self, path: &str) -> Result<Pieces> {
        let node = self.find(path).await?;
        if node.is_directory() {
            return Err(Error::Usage(format!("{path}: a directory has no pieces")));
        }
        let reply = call(self.client, &node, path, &GetPieces { fid: node.fid }).await?;
        let mut pieces = Pieces::of(path, node.fid, &reply);
        if pieces.shape.is_none() {
            self.find_in_archives(&node, &mut pieces).await?;
        }
        Ok(pieces)
    }

    /// Completes the description of a file without objects: it may be wiped.
    async fn find_in_archives(&self, node: &Node, pieces: &mut Pieces) -> Result<()> {
        let archives = Archives::new(self.client);
        let copies = match archives.copies(node, &pieces.path, &[]).await {
            Ok(copies) if !copies.online => copies,
            // An older file server knows no archives.
            Ok(_) | Err(Error::Usage(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        let devices = match self.client.home() {
            // Without the database the numbers alone are shown.
            Some(home) => Osds::new(self.client, home)
                .list()
                .await
                .unwrap_or_default(),
            None => Vec::new(),
        };
        let name = |osd: u32| {
            let device = devices.iter().find(|device| device.id == osd);
            device.map_or_else(|| osd.to_string(), |device| device.name.clone())
        };
        pieces.wiped = true;
        pieces.archives = copies.good().map(name).collect();
        pieces.readable = !pieces.archives.is_empty();
        pieces.redundant = pieces.archives.len() > 1;
        Ok(())
    }

    /// The policies that apply in a directory, or to a file that is in it or could be.
    ///
    /// # Errors
    /// The path's directory does not exist, or as [`Files::pieces`].
    pub async fn policies(&self, path: &str) -> Result<Policies> {
        let (directory, file, path_of) = match self.find(path).await {
            Ok(node) if node.is_directory() => (node, None, path),
            found => {
                let (parent, _) = cellar_client::path::split_last(path)?;
                let status = found.ok().map(|node| node.status);
                let file = status.map(|file| (file.length, file.owner.0, file.group.0));
                (self.find(parent).await?, file, parent)
            }
        };
        let asked = GetPolicy { fid: directory.fid };
        let reply = call(self.client, &directory, path, &asked).await?;
        Ok(Policies {
            path: path.to_owned(),
            directory: reply.directory,
            volume: reply.volume,
            volume_name: directory.volume.name.clone(),
            path_in_volume: self.path_in_volume(&directory, path_of).await?,
            file,
        })
    }

    /// The path of a directory from the root of its volume: the last names of `path`.
    async fn path_in_volume(&self, directory: &Node, path: &str) -> Result<String> {
        let (mut names, mut node, mut rest) = (Vec::new(), directory.clone(), path);
        let root = Fid::root(directory.volume.id);
        while node.fid != root && node.volume.id == root.volume {
            let (parent, name) = cellar_client::path::split_last(rest)?;
            names.push(name);
            node = self.find(parent).await?;
            rest = parent;
        }
        names.reverse();
        Ok(format!("/{}", names.join("/")))
    }

    /// Sets the policy of a directory; 0 stands for the policy of its volume.
    ///
    /// # Errors
    /// No directory, no such policy, or the caller has no permission.
    pub async fn set_policy(&self, path: &str, policy: u32) -> Result<()> {
        let node = self.find(path).await?;
        if !node.is_directory() {
            return Err(Error::Usage(format!(
                "{path}: only directories have policies"
            )));
        }
        let fid = node.fid;
        retry_until_loaded(async || {
            let set = SetPolicy { fid, policy };
            call(self.client, &node, path, &set).await.map(drop)
        })
        .await
    }
}

/// Sets a policy that is in the database. A file server refuses a new one with EINVAL until it has
/// read it from there some seconds later; this function retries until then.
pub(crate) async fn retry_until_loaded(set: impl AsyncFn() -> Result<()>) -> Result<()> {
    for _ in 0..HEARING_TRIES {
        match set().await {
            Err(error) if error.code() == Some(AbortCode::EINVAL) => {}
            other => return other,
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    set().await
}

/// Makes a call about objects to the file servers of a volume.
async fn call<P: Procedure>(
    client: &Client,
    node: &Node,
    path: &str,
    arguments: &P,
) -> Result<P::Reply> {
    let answer = client.call_volume(&node.volume, &path, arguments).await;
    answer.map_err(|error| match error.code() {
        Some(code) if is_unknown_there(code) => {
            Error::Usage(format!("{path}: the file server has no object storage"))
        }
        _ => error.into(),
    })
}

#[cfg(test)]
mod tests {
    use cellar_wire::List;
    use cellar_wire::object::{Placed, Shape};

    use super::*;

    #[test]
    fn a_device_that_takes_no_writes_can_be_read() {
        let fid = Fid::new(1, 2, 3);
        let reply = |writable, dead, stale| {
            let mut device = OsdListed::default();
            (device.entry.id, device.dead, device.state.writable) = (4, dead, writable);
            let layout = Layout {
                shape: Shape::default(),
                version: 9,
                serial: 1,
                volume: fid.volume,
                objects: List::from_iter_cut([Placed {
                    osd: 4,
                    serial: 1,
                    version: 9,
                    stale,
                }]),
            };
            let reply = GetPiecesReply {
                length: 10,
                layout: List::from_iter_cut([layout]),
                devices: List::from_iter_cut([device]),
            };
            let pieces = Pieces::of("file", fid, &reply);
            (pieces.readable, pieces.redundant)
        };
        assert_eq!(reply(true, false, false), (true, true));
        assert_eq!(reply(false, false, false), (true, false));
        assert_eq!(reply(false, true, false), (false, false));
        assert_eq!(reply(true, false, true), (false, false));
    }
}
