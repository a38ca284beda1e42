//! Carries out each request of the kernel with the cache.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use cellar_cachemanager::{Attributes, Cache, Lookup, NewAttributes, User, Vnode};
use cellar_client::{Error, errno};
use cellar_wire::acl::Rights;
use cellar_wire::rxafs::FileType as Kind;
use fuser::{Errno, FileAttr, INodeNo};
use parking_lot::Mutex;

use crate::caller::{Caller, Interrupts};
use crate::directories::Opened;
use crate::inodes::{Inodes, Node};
use crate::mount::Options;
use crate::notices::Kernel;
use crate::passthrough::Passthrough;

mod attributes;
mod changes;
mod locks;
mod opens;

pub(crate) use attributes::{attr, nothing};
use attributes::{cell_attr, link_attr, root_attr, volumes_attr};
pub(crate) use opens::Open;
use opens::OpenFile;

/// How long the kernel may use the target of a cell's name or a mount point.
const CROSSING_TIME: Duration = Duration::from_secs(60);
/// How long the dynamic root stays unchanged: for the life of this process.
const ROOT_TIME: Duration = Duration::from_secs(3_600);
/// The name in the dynamic root that contains volumes. Source: OpenAFS's dynamic root.
const VOLUMES: &[u8] = b".:mount";
/// The longest total wait of one request, in units of the cache's patience: servers are asked in
/// turn.
const PATIENCE_TIMES: u32 = 4;

pub(crate) type Answer<T> = Result<T, Errno>;

/// The shared state of all requests.
pub(crate) struct Requests {
    pub(crate) cache: Arc<Cache>,
    pub(crate) inodes: Arc<Inodes>,
    all_users: bool,
    /// The user who mounted.
    pub(crate) owner: u32,
    /// Whether set-id bits take effect.
    pub(crate) suid: bool,
    pub(crate) next: AtomicU64,
    files: Mutex<HashMap<u64, OpenFile>>,
    pub(crate) interrupts: Arc<Interrupts>,
    pub(crate) passthrough: Passthrough,
    /// The kernel, which gets contents at an open.
    kernel: OnceLock<Arc<Kernel>>,
    /// Held by the open that decides whether to give contents.
    giving: Mutex<()>,
    pub(crate) directories: Mutex<HashMap<u64, Arc<Opened>>>,
}

/// A directory at a moment. Results from it are valid as long as its promise is not broken since.
pub(crate) struct DirectoryMoment {
    /// The directory, and the number of breaks at that moment. `None` for the dynamic root.
    pub(crate) directory: Option<(Arc<Vnode>, u64)>,
}

impl DirectoryMoment {
    /// Returns whether the directory may have changed since.
    pub(crate) fn is_over(&self) -> bool {
        let directory = self.directory.as_ref();
        directory.is_some_and(|(vnode, breaks)| vnode.breaks() != *breaks)
    }
}

/// The answer for a name.
pub(crate) struct Entry {
    pub(crate) attr: FileAttr,
    pub(crate) generation: u64,
    pub(crate) attr_time: Duration,
    pub(crate) entry_time: Duration,
    /// The vnode that the name leads to, and the number of breaks of its promise at that moment.
    shown: Option<(Arc<Vnode>, u64)>,
}

pub(crate) fn code(error: Error) -> Errno {
    let errno = errno(&error);
    if errno == Errno::EIO.code() || errno == Errno::ETIMEDOUT.code() {
        tracing::info!(%error, "a request failed");
    }
    Errno::from_i32(errno)
}

impl Requests {
    pub(crate) fn new(cache: Arc<Cache>, inodes: Arc<Inodes>, options: &Options) -> Self {
        Self {
            passthrough: Passthrough::new(inodes.clone()),
            cache,
            inodes,
            all_users: options.all_users,
            owner: rustix::process::geteuid().as_raw(),
            suid: options.suid,
            next: AtomicU64::new(1),
            files: Mutex::default(),
            interrupts: Arc::default(),
            kernel: OnceLock::new(),
            giving: Mutex::default(),
            directories: Mutex::default(),
        }
    }

    /// Ends work after the time limit, or when its program is killed. The time begins again while
    /// servers say that they are busy: a recall from an archive can take hours.
    pub(crate) async fn within<T>(
        &self,
        caller: &Caller,
        work: impl Future<Output = Answer<T>>,
    ) -> Answer<T> {
        let longest = self.cache.options().patience * PATIENCE_TIMES;
        let reach = self.cache.reach();
        let limit = async {
            let mut busy_answers = reach.busy_answers();
            loop {
                tokio::time::sleep(longest).await;
                let before = std::mem::replace(&mut busy_answers, reach.busy_answers());
                if busy_answers == before {
                    break;
                }
            }
        };
        tokio::select! {
            biased;
            result = work => result,
            () = limit => Err(Errno::ETIMEDOUT),
            () = caller.killed() => Err(Errno::EINTR),
        }
    }

    pub(crate) async fn user(&self, uid: u32) -> Answer<Arc<User>> {
        self.cache.user(uid).await.map_err(code)
    }

    pub(crate) fn node(&self, number: INodeNo) -> Answer<Node> {
        self.inodes.node(number.0).ok_or(Errno::ESTALE)
    }

    /// The vnode of a number. The dynamic root has none that could be read or changed.
    fn vnode(&self, number: INodeNo) -> Answer<Arc<Vnode>> {
        match self.node(number)? {
            Node::Vnode(vnode) => Ok(vnode),
            Node::Cells | Node::Volumes | Node::Cell(_) | Node::Link(_) => Err(Errno::EROFS),
        }
    }

    /// How long the kernel may keep names of a directory: as long as the directory's promise. If
    /// some user of the mount may not see the names, it may not keep them, so that each look-up is
    /// checked.
    pub(crate) fn entry_time(&self, directory: &Vnode) -> Duration {
        match directory.attributes_with_names() {
            Some(Attributes { status, .. })
                if self.all_users && !status.anonymous_access.contains(Rights::LOOKUP) =>
            {
                Duration::ZERO
            }
            Some(attributes) => attributes.valid,
            None => Duration::ZERO,
        }
    }

    /// `seen` is the directory before the name was looked up.
    fn entry(
        &self,
        parent: INodeNo,
        name: &[u8],
        found: &Lookup,
        seen: &DirectoryMoment,
    ) -> Answer<Entry> {
        let vnode = &found.vnode;
        let breaks = vnode.breaks();
        let attributes = vnode.attributes().ok_or(Errno::EIO)?;
        // Enter the inode before the directory is checked: a notice from now on includes this name.
        let number = self
            .inodes
            .enter(parent.0, name, vnode, found.crossed, true);
        let entry_time = match &seen.directory {
            None => CROSSING_TIME,
            Some((directory, _)) => {
                let time = self.entry_time(directory);
                if seen.is_over() {
                    Duration::ZERO
                } else if found.crossed {
                    time.min(CROSSING_TIME)
                } else {
                    time
                }
            }
        };
        // The kernel takes the number in this answer as the inode's. The number that programs see
        // must come from a request for attributes.
        let attr_time = if self.inodes.shown(number) == number {
            attributes.valid
        } else {
            Duration::ZERO
        };
        Ok(Entry {
            attr: attr(number, &attributes.status),
            generation: vnode.key().1.uniquifier.0.into(),
            attr_time,
            entry_time,
            shown: Some((vnode.clone(), breaks)),
        })
    }

    /// If the node is a listed cell's name, finds the root directory of the cell: the caller wants
    /// something in it.
    pub(crate) async fn find_root(&self, uid: u32, number: INodeNo) -> Answer<()> {
        let Node::Cell(name) = self.node(number)? else {
            return Ok(());
        };
        let user = self.user(uid).await?;
        let found = self
            .cache
            .names()
            .lookup_cell(&user, &name)
            .await
            .map_err(code)?;
        self.inodes.set_cell_root(number.0, &found.vnode);
        Ok(())
    }

    /// A directory as it is before a look-up in it or a change of it.
    pub(crate) fn seen(&self, parent: INodeNo) -> Answer<DirectoryMoment> {
        let directory = match self.node(parent)? {
            Node::Cells | Node::Volumes => None,
            // Nothing is known of a cell that was not looked up.
            Node::Cell(_) => return Err(Errno::ETIMEDOUT),
            Node::Link(_) => return Err(Errno::ENOTDIR),
            Node::Vnode(directory) => {
                let breaks = directory.breaks();
                Some((directory, breaks))
            }
        };
        Ok(DirectoryMoment { directory })
    }

    /// Called after an answer was sent. The kernel may have received a notice before this answer,
    /// and then believes the answer; so the notice is repeated.
    pub(crate) fn answered(&self, seen: &DirectoryMoment) {
        if let Some((directory, _)) = seen.directory.as_ref().filter(|_| seen.is_over()) {
            self.cache.promises().invalidate(directory);
        }
    }

    /// Called after an entry was sent. If the kernel had no inode yet, an earlier notice had no
    /// effect; so it is repeated.
    pub(crate) fn entered(&self, entry: &Entry) {
        if let Some((vnode, breaks)) = &entry.shown
            && vnode.breaks() != *breaks
        {
            self.cache.promises().invalidate(vnode);
        }
    }

    pub(crate) async fn lookup(
        &self,
        uid: u32,
        parent: INodeNo,
        name: &[u8],
        seen: &DirectoryMoment,
    ) -> Answer<Entry> {
        let node = self.node(parent)?;
        if let (Node::Cells, Some(text)) = (&node, self.cache.names().alias_of(name)) {
            return Ok(self.alias(name, &text));
        }
        if let Node::Cells = node
            && name == VOLUMES
        {
            return Ok(self.volumes());
        }
        if let Node::Cells = node
            && self.cache.names().lists(name)
            && let Some(number) = self.inodes.enter_cell(name)
        {
            return Ok(Entry {
                attr: cell_attr(number),
                // The generation of a volume's root, which it becomes.
                generation: cellar_wire::ids::Uniquifier::ROOT.0.into(),
                attr_time: Duration::ZERO,
                entry_time: CROSSING_TIME,
                shown: None,
            });
        }
        let user = self.user(uid).await?;
        let found = match node {
            Node::Link(_) => return Err(Errno::ENOTDIR),
            Node::Cell(_) => return Err(Errno::ETIMEDOUT),
            Node::Cells => self
                .cache
                .names()
                .lookup_cell(&user, name)
                .await
                .map_err(code)?,
            Node::Volumes => self
                .cache
                .names()
                .lookup_volume(&user, name)
                .await
                .map_err(code)?,
            Node::Vnode(directory) => self
                .cache
                .names()
                .lookup(&user, &directory, name)
                .await
                .map_err(code)?,
        };
        self.cache
            .reads()
            .attributes(&user, &found.vnode)
            .await
            .map_err(code)?;
        self.entry(parent, name, &found, seen)
    }

    /// The directory that contains volumes by cell and name. The dynamic root does not list it.
    fn volumes(&self) -> Entry {
        Entry {
            attr: volumes_attr(self.inodes.enter_volumes(VOLUMES)),
            generation: 0,
            attr_time: ROOT_TIME,
            entry_time: ROOT_TIME,
            shown: None,
        }
    }

    /// The entry of a cell's alias in the dynamic root.
    fn alias(&self, name: &[u8], text: &str) -> Entry {
        let number = self.inodes.enter_link(name, text.as_bytes());
        Entry {
            attr: link_attr(number, text.len()),
            generation: 0,
            attr_time: CROSSING_TIME,
            entry_time: CROSSING_TIME,
            shown: None,
        }
    }

    /// How long the kernel may remember that a name is absent, if at all.
    pub(crate) fn absent(
        &self,
        parent: INodeNo,
        name: &[u8],
        seen: &DirectoryMoment,
    ) -> Option<Duration> {
        let (directory, _) = seen.directory.as_ref()?;
        let time = self.entry_time(directory);
        let may = !time.is_zero() && !seen.is_over();
        (may && self.inodes.absent(parent.0, name)).then_some(time)
    }

    pub(crate) async fn attributes(
        &self,
        uid: u32,
        number: INodeNo,
    ) -> Answer<(FileAttr, Duration)> {
        match self.node(number)? {
            Node::Cells => Ok((root_attr(self.cache.cells().len()), ROOT_TIME)),
            Node::Volumes => Ok((volumes_attr(number.0), ROOT_TIME)),
            Node::Cell(_) => Ok((cell_attr(number.0), Duration::ZERO)),
            Node::Link(text) => Ok((link_attr(number.0, text.len()), CROSSING_TIME)),
            Node::Vnode(vnode) => {
                let user = self.user(uid).await?;
                let attributes = self.cache.reads().attributes(&user, &vnode).await;
                let shown = self.inodes.shown(number.0);
                let contents = attributes.is_ok().then(|| vnode.content_generation());
                if let Some(was) = self.passthrough.attributes_at_open(number.0, contents) {
                    return Ok((attr(shown, &was.status), Duration::ZERO));
                }
                let attributes = attributes.map_err(code)?;
                Ok((attr(shown, &attributes.status), attributes.valid))
            }
        }
    }

    pub(crate) async fn set_attributes(
        &self,
        uid: u32,
        number: INodeNo,
        wanted: NewAttributes,
        handle: Option<u64>,
        kills_set_id: bool,
    ) -> Answer<(FileAttr, Duration)> {
        self.find_root(uid, number).await?;
        let vnode = self.vnode(number)?;
        let user = self.user(uid).await?;
        // This is ftruncate(2): the kernel allows it for a file that is open for writing.
        let open = handle.is_some_and(|handle| self.handle(handle).is_ok());
        let mut attributes = self
            .cache
            .set_attributes(&user, &vnode, wanted, open)
            .await
            .map_err(code)?;
        if kills_set_id && wanted.mode.is_none() {
            attributes = self.kill_set_id(&user, &vnode).await.unwrap_or(attributes);
        }
        let shown = self.inodes.shown(number.0);
        Ok((attr(shown, &attributes.status), attributes.valid))
    }

    /// Removes set-id bits after a change by a program that could not set them, and after a change
    /// of owner or group. The kernel decides when, and leaves the removal to us
    /// (FUSE_HANDLE_KILLPRIV_V2). If the server does not permit it, the server itself removes the
    /// bits when it stores the file.
    async fn kill_set_id(&self, user: &Arc<User>, vnode: &Arc<Vnode>) -> Option<Attributes> {
        let status = vnode.attributes()?.status;
        let mode = status.unix_mode & 0o7777;
        // Without execute permission for the group, the group's bit has another meaning. Source:
        // Linux.
        let killed = match mode & 0o010 {
            0 => mode & !0o4000,
            _ => mode & !0o6000,
        };
        if killed == mode || status.file_type != Kind::File {
            return None;
        }
        let wanted = NewAttributes {
            mode: Some(killed),
            ..NewAttributes::default()
        };
        let set = self.cache.set_attributes(user, vnode, wanted, false).await;
        set.ok()
    }

    /// Like [`Self::kill_set_id`], for a write.
    pub(crate) async fn kill_set_id_of(&self, handle: u64) -> Answer<()> {
        let handle = self.handle(handle)?;
        self.kill_set_id(handle.user(), handle.vnode()).await;
        Ok(())
    }

    pub(crate) async fn link_text(&self, uid: u32, number: INodeNo) -> Answer<Bytes> {
        if let Node::Link(text) = self.node(number)? {
            return Ok(text);
        }
        let vnode = self.vnode(number)?;
        let user = self.user(uid).await?;
        self.cache
            .statuses()
            .link_text(&user, &vnode)
            .await
            .map_err(code)
    }

    /// Returns whether a user may open a file in this way.
    async fn may(&self, user: &Arc<User>, vnode: &Arc<Vnode>, wanted: Rights) -> Answer<bool> {
        match self.cache.statuses().may(user, vnode, wanted).await {
            Ok(()) => Ok(true),
            Err(error) if errno(&error) == Errno::EACCES.code() => Ok(false),
            Err(error) => Err(code(error)),
        }
    }

    pub(crate) async fn access(&self, uid: u32, number: INodeNo, mask: i32) -> Answer<()> {
        self.find_root(uid, number).await?;
        let Node::Vnode(vnode) = self.node(number)? else {
            return if mask & 2 == 0 {
                Ok(())
            } else {
                Err(Errno::EROFS)
            };
        };
        let user = self.user(uid).await?;
        let (read, write, execute) = if vnode.is_directory() {
            let granted = self
                .cache
                .statuses()
                .rights(&user, &vnode)
                .await
                .map_err(code)?;
            let has = |rights: Rights| granted.intersects(rights);
            let change = Rights::INSERT.union(Rights::DELETE).union(Rights::WRITE);
            (has(Rights::LOOKUP), has(change), has(Rights::LOOKUP))
        } else {
            let attributes = self
                .cache
                .reads()
                .attributes(&user, &vnode)
                .await
                .map_err(code)?;
            let can_run = attributes.status.unix_mode & 0o111 != 0;
            let read = self.may(&user, &vnode, Rights::READ).await?;
            let write = self.may(&user, &vnode, Rights::WRITE).await?;
            (read, write, read && can_run)
        };
        let refused =
            (mask & 4 != 0 && !read) || (mask & 2 != 0 && !write) || (mask & 1 != 0 && !execute);
        match (refused, mask & 2 != 0 && vnode.volume().is_read_only()) {
            (_, true) => Err(Errno::EROFS),
            (true, _) => Err(Errno::EACCES),
            _ => Ok(()),
        }
    }

    // ---- files

    pub(crate) async fn read(&self, handle: u64, offset: u64, size: u32) -> Answer<Vec<u8>> {
        let handle = self.handle(handle)?;
        handle.read(offset, size.into()).await.map_err(code)
    }

    pub(crate) async fn write(&self, handle: u64, offset: u64, data: &[u8]) -> Answer<u32> {
        let handle = self.handle(handle)?;
        handle.write(offset, data).await.map_err(code)?;
        Ok(data.len() as u32)
    }

    /// Writes at the end of the file. The kernel believes that the end is at `offset`, but cannot
    /// be corrected before it asks for attributes, and puts its pages at that offset.
    pub(crate) async fn append(&self, handle: u64, offset: u64, data: &[u8]) -> Answer<u32> {
        let handle = self.handle(handle)?;
        let start = handle.append(data).await.map_err(code)?;
        if start != offset {
            self.cache.promises().invalidate(handle.vnode());
        }
        Ok(data.len() as u32)
    }

    pub(crate) async fn store(&self, handle: u64, durable: bool) -> Answer<()> {
        let handle = self.handle(handle)?;
        handle.store(durable).await.map_err(code)
    }

    /// Total and free blocks of 1 KiB.
    pub(crate) async fn room(&self, uid: u32, number: INodeNo) -> Answer<(u64, u64)> {
        self.find_root(uid, number).await?;
        match self.node(number)? {
            Node::Cells | Node::Volumes | Node::Cell(_) | Node::Link(_) => Ok((0, 0)),
            Node::Vnode(vnode) => {
                let user = self.user(uid).await?;
                let usage = self
                    .cache
                    .usage(&user, vnode.volume())
                    .await
                    .map_err(code)?;
                Ok((usage.total, usage.free))
            }
        }
    }
}

/// Flags of open(2) and renameat2(2). Source: Linux.
const O_EXCL: i32 = 0o200;
const O_TRUNC: i32 = 0o1000;
pub(crate) const O_APPEND: i32 = 0o2000;
const RENAME_NOREPLACE: u32 = 1;
