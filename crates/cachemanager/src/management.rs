//! The management of a running cache manager: flushes, cells, and the files that are not stored.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use cellar_cachestore::{Unstored, aside_in};

use crate::Cache;
use crate::request::path_error;
use crate::user::{ANONYMOUS, User};
use crate::vnode::Vnode;
use cellar_client::cell::{Cell, CellName};
use cellar_client::error::{PathProblem, Result};

/// A file that is not stored, and the error of its last store, if it failed (an errno).
pub type UnstoredFile = (Unstored, Option<i32>);

/// Requests of an administrator. They use the whole cache.
pub struct Management<'a>(pub(super) &'a Cache);

impl Management<'_> {
    /// The most bytes that the cache keeps.
    pub fn size(&self) -> u64 {
        self.0.env.size()
    }

    /// The bytes that the cache keeps now.
    pub fn used(&self) -> u64 {
        self.0.env.used()
    }

    /// Sets the size. Bytes above it are dropped at once, except dirty ones.
    pub fn set_size(&self, bytes: u64) {
        self.0.env.set_size(bytes);
        self.0.reads.make_room(None);
    }

    /// The number of bytes of a file that may stay dirty when a program closes it.
    pub fn store_behind(&self) -> u64 {
        self.0.env.store_behind()
    }

    /// Sets that number, for files that have no value of their own.
    pub fn set_store_behind(&self, bytes: u64) {
        self.0.env.set_store_behind(bytes);
    }

    /// The names that replace `@sys`. The cache takes the first one that exists.
    pub fn sysnames(&self) -> Arc<[String]> {
        self.0.env.sysnames()
    }

    /// Sets these names, for later lookups.
    pub fn set_sysnames(&self, names: &[String]) {
        self.0.env.set_sysnames(names);
        // Names with @sys may lead to other vnodes now.
        self.0.promises.distrust_directories();
    }

    /// Drops all cached data of a file or directory, except dirty bytes.
    ///
    /// # Errors
    /// The user has no right to see it.
    pub async fn flush(&self, user: &Arc<User>, vnode: &Arc<Vnode>) -> Result<()> {
        self.0.statuses.status(user, vnode).await?;
        self.forget(vnode);
        Ok(())
    }

    /// Drops all cached data of the volume of a file, except dirty bytes, and the location of the
    /// volume.
    ///
    /// # Errors
    /// The user has no right to see the file.
    pub async fn flush_volume(&self, user: &Arc<User>, vnode: &Arc<Vnode>) -> Result<()> {
        self.0.statuses.status(user, vnode).await?;
        let volume = vnode.volume();
        let (cell, fid) = vnode.key();
        self.forget_all(|key| key.0 == cell && key.1.volume == fid.volume);
        for user in self.0.env.users.all() {
            user.client().locations().forget_volume(volume);
        }
        Ok(())
    }

    /// Drops all cached data, except dirty bytes, and the locations of all volumes.
    pub fn flush_all(&self) {
        self.forget_all(|_| true);
        self.check_volumes();
    }

    /// Drops the cached text of a mount point (or symbolic link) and its target.
    ///
    /// # Errors
    /// There is no such name; the user has no right to look.
    pub async fn flush_mount(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        name: &[u8],
    ) -> Result<()> {
        let listing = self.0.statuses.listing(user, directory).await?;
        let fid = listing
            .get(name)
            .ok_or_else(|| path_error(name, PathProblem::NotFound))?;
        let mount = self.0.vnodes.vnode(directory.volume(), *fid)?;
        self.forget(&mount);
        // The kernel has cached the name with its old target.
        self.0.promises.end_promises(&[directory]);
        Ok(())
    }

    /// Forgets the volume of a name in the dynamic root, and the locations of all volumes. The name
    /// is that of a cell, with or without a dot before it, or one in `.:mount`.
    ///
    /// # Errors
    /// No such cell is known.
    pub fn flush_cell(&self, name: &[u8]) -> Result<()> {
        let cell = name.split(|byte| *byte == b':').next().unwrap_or_default();
        if !self.0.names.lists(cell) && cell != b"@cell" && self.0.names.alias_of(cell).is_none() {
            return Err(path_error(name, PathProblem::NotFound));
        }
        self.forget_places();
        Ok(())
    }

    /// Forgets the locations of all volumes, and the volumes of the cells' names.
    fn forget_places(&self) {
        for user in self.0.env.users.all() {
            user.client().locations().forget_all();
        }
        self.0.env.cells.forget_silence();
        self.0.env.audience.cells_changed();
    }

    /// Forgets the locations of volumes, the targets of mount points, and which cells were silent.
    pub fn check_volumes(&self) {
        self.forget_places();
        self.0.promises.distrust_directories();
    }

    /// Waits until the notices for all that was dropped before have taken effect.
    pub async fn wait_for_notices(&self) {
        self.0.env.audience.all_delivered().await;
    }

    fn forget_all(&self, which: impl Fn(&crate::Key) -> bool) {
        for vnode in self.0.vnodes.matching(|vnode| which(&vnode.key())) {
            self.forget(&vnode);
        }
    }

    fn forget(&self, vnode: &Arc<Vnode>) {
        let _all = vnode.broken();
        {
            let mut state = vnode.state.lock();
            // Only the listing has the names of pending creates.
            if !state.lease.has_pending() && state.life.pending().is_none() {
                state.contents.forget();
            }
        }
        vnode.body.lock().forget_clean();
        self.0.promises.invalidate(vnode);
    }

    /// Adds a cell, or replaces its servers.
    pub fn new_cell(&self, cell: Cell) -> bool {
        self.0.env.cells.add(cell)
    }

    /// Adds another name of a cell. Returns `false` if the name is that of a cell, or if there are
    /// too many.
    ///
    /// # Errors
    /// The cell is not known.
    pub async fn new_alias(&self, alias: CellName, cell: &CellName) -> Result<bool> {
        let cell = self.0.env.cells.find(cell).await?.name;
        Ok(self.0.env.cells.add_alias(alias, cell))
    }

    /// Returns the other names of cells, each with its cell, in their order.
    pub fn aliases(&self) -> Vec<(CellName, CellName)> {
        self.0.env.cells.aliases()
    }

    /// Returns the servers that were silent a short while ago, in their order: cell and address.
    pub fn silent_servers(&self) -> BTreeSet<(CellName, IpAddr)> {
        let users = self.0.env.users.all().into_iter();
        let silent = users.flat_map(|user| user.client().servers().silent());
        silent.map(|(cell, server)| (cell, server.ip())).collect()
    }

    /// The number of vnodes in the cache.
    pub fn vnodes_known(&self) -> usize {
        self.0.vnodes.count()
    }

    /// The number of bytes that no server has.
    pub fn dirty(&self) -> u64 {
        self.0
            .env
            .space
            .dirty
            .load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Returns the files of one user, or of all users, that are not stored.
    pub fn waiting(&self, uid: Option<u32>) -> Vec<UnstoredFile> {
        let all = self.0.write_back.unstored().into_iter();
        let one = all.map(|(vnode, failed)| {
            let body = vnode.body.lock();
            let unstored = Unstored {
                cell: vnode.volume().cell.to_string(),
                fid: vnode.fid(),
                bytes: body.unstored_bytes(),
                version: body.version(),
                writer: body.writer(),
                torn: false,
            };
            (unstored, failed)
        });
        let refused_creates =
            self.0
                .creates
                .refused_creates()
                .into_iter()
                .map(|(vnode, writer)| {
                    let refused_creates = Unstored {
                        cell: vnode.volume().cell.to_string(),
                        fid: vnode.fid(),
                        bytes: 0,
                        version: 0,
                        writer,
                        torn: false,
                    };
                    (refused_creates, vnode.state.lock().stores.failed())
                });
        one.chain(refused_creates)
            .filter(|(one, _)| uid.is_none_or(|uid| one.writer == uid || one.writer == ANONYMOUS))
            .collect()
    }

    /// Returns the paths of the texts about files that were put aside, of one user or of all. Empty
    /// if the cache is in memory.
    pub fn aside(&self, uid: Option<u32>) -> Vec<PathBuf> {
        let directory = self.0.env.options.directory.as_deref();
        let mut all = directory
            .map_or(Ok(Vec::new()), aside_in)
            .unwrap_or_default();
        if let Some(uid) = uid {
            let his = [format!("writer user {uid}"), "writer anybody".to_owned()];
            all.retain(|path| {
                let text = std::fs::read_to_string(path).unwrap_or_default();
                text.lines().any(|line| his.iter().any(|his| his == line))
            });
        }
        all
    }

    /// Whether calls for users with tokens are encrypted.
    pub fn encrypts(&self) -> bool {
        self.0.env.identities.encrypts()
    }

    /// Switches the encryption of later calls on or off.
    pub async fn set_encrypt(&self, on: bool) {
        self.0.env.identities.set_encrypt(on);
        for user in self.0.env.users.all() {
            if user.uid() == ANONYMOUS {
                continue;
            }
            let securities = self.0.env.identities.securities(user.uid()).await;
            for (cell, security) in securities {
                user.client().servers().set_security(&cell, security);
            }
        }
    }
}
