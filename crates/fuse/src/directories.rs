//! Reads directories: names alone, or names with their attributes (`readdirplus`).
//!
//! 1. Statuses are requested in batches, since the type of a name is not known without its status.
//! 2. A name is sent with its inode and attributes if the kernel may use both for a while. The name
//!    is valid under the directory's promise. The directory must still have it, since an open
//!    directory is read as it was at its open. The attributes are valid under their own promise.
//!    Each such name counts as looked up.
//! 3. All others are sent as names only: mount points, cells, names that not every user may see,
//!    and vnodes without a promise. Each mount point would have to be followed to another volume.
//! 4. A break that came while the answer was on its way is repeated after the answer: the kernel
//!    may have received it too early.
//! 5. The kernel may keep a listing for the next open: `inodes/listings.rs` describes when.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use cellar_cachemanager::{Listing, Vnode};
use cellar_client::CellName;
use cellar_wire::rxafs::FileType as Kind;
use fuser::{
    Errno, FileAttr, FileType, FopenFlags, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus,
};

use crate::inodes::{self, ListingMode, Node};
use crate::requests::{Answer, DirectoryMoment, Requests, attr, code, nothing};

/// Number of statuses requested at a time while a directory is read.
const WALK: usize = 50;

/// A directory as it was when it was opened.
pub(crate) enum Opened {
    Cells(Vec<(Bytes, FileType)>),
    Vnode(Arc<Vnode>, Arc<Listing>, ListingMode),
}

/// The result of opening a directory.
#[derive(Debug)]
pub(crate) struct OpenDir {
    pub(crate) handle: u64,
    mode: ListingMode,
}

impl OpenDir {
    pub(crate) fn flags(&self) -> FopenFlags {
        match self.mode {
            ListingMode::Kept => FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE,
            ListingMode::Keep => FopenFlags::FOPEN_CACHE_DIR,
            ListingMode::Pass => FopenFlags::FOPEN_KEEP_CACHE,
        }
    }
}

/// One line of a directory.
pub(crate) struct DirectoryLine<'a> {
    number: u64,
    offset: u64,
    kind: FileType,
    name: &'a [u8],
    /// The inode and attributes, if the kernel may have them.
    entry: Option<GivenInode>,
}

/// The inode and attributes that are sent with a name.
pub(crate) struct GivenInode {
    vnode: Arc<Vnode>,
    /// The number of breaks before the attributes were read.
    breaks: u64,
    attr: FileAttr,
    time: Duration,
}

/// The inodes that an answer gives to the kernel. If the answer is not sent, they do not count as
/// looked up.
pub(crate) struct GivenInodes<'a> {
    requests: &'a Requests,
    seen: DirectoryMoment,
    given: Vec<GivenInode>,
}

impl GivenInodes<'_> {
    /// The answer was sent. Applies rule 4.
    pub(crate) fn sent(mut self) {
        let given = std::mem::take(&mut self.given);
        for one in given {
            if one.vnode.breaks() != one.breaks {
                self.requests.cache.promises().invalidate(&one.vnode);
            }
        }
        self.requests.answered(&self.seen);
    }
}

impl Drop for GivenInodes<'_> {
    fn drop(&mut self) {
        for one in &self.given {
            self.requests.inodes.forget(one.attr.ino.0, 1);
        }
    }
}

/// An answer to the kernel that receives lines until it is full.
pub(crate) trait DirectoryReply {
    /// Whether names are sent with their inodes and attributes.
    const PLUS: bool;
    /// Adds a line; returns `true` if there is no space for it.
    fn is_full(&mut self, line: &DirectoryLine<'_>) -> bool;
    /// Sends the answer.
    fn send(self);
    /// Sends an error.
    fn refuse(self, errno: Errno);
}

impl DirectoryReply for ReplyDirectory {
    const PLUS: bool = false;

    fn is_full(&mut self, line: &DirectoryLine<'_>) -> bool {
        let name = OsStr::from_bytes(line.name);
        self.add(INodeNo(line.number), line.offset, line.kind, name)
    }

    fn send(self) {
        self.ok();
    }

    fn refuse(self, errno: Errno) {
        self.error(errno);
    }
}

impl DirectoryReply for ReplyDirectoryPlus {
    const PLUS: bool = true;

    fn is_full(&mut self, line: &DirectoryLine<'_>) -> bool {
        let name = OsStr::from_bytes(line.name);
        // Node 0: the kernel uses nothing but the line.
        let (node, attr, time) = match &line.entry {
            Some(given) => (given.attr.ino, given.attr, given.time),
            None => (
                INodeNo(0),
                mere_name(line.number, line.kind),
                Duration::ZERO,
            ),
        };
        let generation = line
            .entry
            .as_ref()
            .map_or(0, |given| generation(&given.vnode));
        self.add(
            node,
            line.offset,
            name,
            &time,
            &attr,
            Generation(generation),
        )
    }

    fn send(self) {
        self.ok();
    }

    fn refuse(self, errno: Errno) {
        self.error(errno);
    }
}

fn generation(vnode: &Vnode) -> u64 {
    vnode.key().1.uniquifier.0.into()
}

/// The attributes of a line that has only a name, a number and a type.
fn mere_name(number: u64, kind: FileType) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        kind,
        ..nothing()
    }
}

impl Requests {
    pub(crate) async fn open_dir(&self, uid: u32, number: INodeNo) -> Answer<OpenDir> {
        self.find_root(uid, number).await?;
        let opened = match self.node(number)? {
            Node::Cells => {
                let cells = self.cache.cells().into_iter().map(|cell| cell.name);
                let aliases = self
                    .cache
                    .management()
                    .aliases()
                    .into_iter()
                    .map(|(alias, _)| alias);
                let line =
                    |name: CellName, kind| (Bytes::copy_from_slice(name.as_str().as_bytes()), kind);
                let cells = cells.map(|name| line(name, FileType::Directory));
                let aliases = aliases.map(|name| line(name, FileType::Symlink));
                Opened::Cells(cells.chain(aliases).collect())
            }
            // Volumes are not listed: a cell may have hundreds of thousands.
            Node::Volumes => Opened::Cells(Vec::new()),
            Node::Cell(_) => return Err(Errno::ESTALE),
            Node::Link(_) => return Err(Errno::ENOTDIR),
            Node::Vnode(vnode) => {
                let user = self.user(uid).await?;
                let listing = self
                    .cache
                    .statuses()
                    .listing(&user, &vnode)
                    .await
                    .map_err(code)?;
                self.cache.names().will_walk(&vnode);
                let mode = self.inodes.listing_opened(number.0, &listing);
                Opened::Vnode(vnode, listing, mode)
            }
        };
        let mode = match &opened {
            Opened::Vnode(_, _, mode) => *mode,
            Opened::Cells(_) => ListingMode::Pass,
        };
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.directories.lock().insert(handle, Arc::new(opened));
        Ok(OpenDir { handle, mode })
    }

    /// Adds lines from `offset` on to `page`. Call [`GivenInodes::sent`] on the result after the
    /// page was sent.
    pub(crate) async fn read_dir<P: DirectoryReply>(
        &self,
        uid: u32,
        number: INodeNo,
        handle: u64,
        offset: u64,
        page: &mut P,
    ) -> Answer<GivenInodes<'_>> {
        let opened = self.directories.lock().get(&handle).cloned();
        let opened = opened.ok_or(Errno::EBADF)?;
        if let Opened::Vnode(_, _, ListingMode::Keep) = &*opened {
            self.inodes.listing_dropped(number.0);
        }
        let mut inodes_given = GivenInodes {
            requests: self,
            seen: self.seen(number)?,
            given: Vec::new(),
        };
        let mut offset = offset;
        for (at, name) in [&b"."[..], &b".."[..]].into_iter().enumerate() {
            if offset == at as u64 {
                offset += 1;
                let line = DirectoryLine {
                    number: number.0,
                    offset,
                    kind: FileType::Directory,
                    name,
                    entry: None,
                };
                if page.is_full(&line) {
                    return Ok(inodes_given);
                }
            }
        }
        let skip = usize::try_from(offset - 2).unwrap_or(usize::MAX);
        match &*opened {
            Opened::Cells(names) => {
                for ((name, kind), number) in names.iter().zip(2u64..).skip(skip) {
                    offset += 1;
                    let line = DirectoryLine {
                        number,
                        offset,
                        kind: *kind,
                        name,
                        entry: None,
                    };
                    if page.is_full(&line) {
                        break;
                    }
                }
            }
            Opened::Vnode(directory, listing, _) => {
                let rest = listing.iter().skip(skip);
                let read = self.read_names(
                    uid,
                    number,
                    directory,
                    rest,
                    offset,
                    page,
                    &mut inodes_given,
                );
                let failed = read.await.err();
                // The lines on the page are sent first; the next page reports the failure.
                if let Some(errno) = failed.filter(|_| inodes_given.given.is_empty()) {
                    return Err(errno);
                }
            }
        }
        Ok(inodes_given)
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "whose, of what, from where, into what"
    )]
    async fn read_names<P: DirectoryReply>(
        &self,
        uid: u32,
        number: INodeNo,
        directory: &Arc<Vnode>,
        mut rest: impl Iterator<Item = (&Bytes, &cellar_wire::ids::Fid)>,
        mut offset: u64,
        page: &mut P,
        inodes_given: &mut GivenInodes<'_>,
    ) -> Answer<()> {
        let user = self.user(uid).await?;
        loop {
            let some: Vec<_> = rest.by_ref().take(WALK).collect();
            if some.is_empty() {
                return Ok(());
            }
            let mut vnodes = Vec::with_capacity(some.len());
            for (name, fid) in &some {
                vnodes.push(
                    self.cache
                        .names()
                        .child(directory, name, **fid)
                        .map_err(code)?,
                );
            }
            self.cache
                .statuses()
                .fetch_many(&user, &vnodes)
                .await
                .map_err(code)?;
            // The present contents of the directory, which may differ from those at its open.
            let current = match P::PLUS {
                true => self.cache.statuses().listing(&user, directory).await.ok(),
                false => None,
            };
            for ((name, fid), vnode) in some.into_iter().zip(vnodes) {
                offset += 1;
                let is_there = current
                    .as_ref()
                    .is_some_and(|now| now.get(name) == Some(fid));
                let entry = if is_there {
                    self.given(number, directory, name, &vnode, &inodes_given.seen)
                } else {
                    None
                };
                let line = DirectoryLine {
                    number: inodes::wanted(*fid),
                    offset,
                    kind: line_kind(&vnode),
                    name,
                    entry,
                };
                let is_full = page.is_full(&line);
                if let Some(given) = line.entry {
                    if is_full {
                        self.inodes.forget(given.attr.ino.0, 1);
                    } else {
                        inodes_given.given.push(given);
                    }
                }
                if is_full {
                    return Ok(());
                }
            }
        }
    }

    /// Applies rules 2 and 3.
    fn given(
        &self,
        parent: INodeNo,
        directory: &Vnode,
        name: &[u8],
        vnode: &Arc<Vnode>,
        seen: &DirectoryMoment,
    ) -> Option<GivenInode> {
        let breaks = vnode.breaks();
        let attributes = vnode.attributes()?;
        let time = self.entry_time(directory).min(attributes.valid);
        let is_link = attributes.status.file_type == Kind::Symlink;
        let is_mount_point =
            is_link && cellar_client::mount_point::is_mount_point(attributes.status.unix_mode);
        if is_mount_point || time.is_zero() || seen.is_over() {
            return None;
        }
        let number = self.inodes.enter(parent.0, name, vnode, false, true);
        // As in `entry`.
        let is_shown = self.inodes.shown(number) == number;
        let time = if is_shown { time } else { Duration::ZERO };
        Some(GivenInode {
            vnode: vnode.clone(),
            breaks,
            attr: attr(number, &attributes.status),
            time,
        })
    }

    pub(crate) fn release_dir(&self, number: INodeNo, handle: u64) {
        let opened = self.directories.lock().remove(&handle);
        let Some(Opened::Vnode(_, _, mode)) = opened.as_deref() else {
            return;
        };
        if *mode == ListingMode::Keep {
            self.inodes.listing_dropped(number.0);
        }
        if *mode != ListingMode::Pass {
            self.inodes.listing_closed(number.0);
        }
    }
}

/// The type of a name. For a mount point it is the type of its target.
fn line_kind(vnode: &Vnode) -> FileType {
    match vnode.last_status() {
        _ if vnode.is_directory() => FileType::Directory,
        Some(status) if status.file_type == Kind::Symlink => {
            if cellar_client::mount_point::is_mount_point(status.unix_mode) {
                FileType::Directory
            } else {
                FileType::Symlink
            }
        }
        _ => FileType::RegularFile,
    }
}

#[cfg(test)]
mod tests;
