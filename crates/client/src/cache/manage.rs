//! The management of a running cache manager: flushes, cells, and the files that are not stored.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use cellar_cachestore::{Unstored, aside_in};

use super::Cache;
use super::namespace::path_error;
use super::user::{ANYBODY, User};
use super::vnode::Vnode;
use crate::cell::{Cell, CellName};
use crate::error::{PathProblem, Result};

/// A file that is not stored, and the error of its last store, if it failed (an errno).
pub type Waiting = (Unstored, Option<i32>);

impl Cache {
    /// Drops all cached data of a file or directory, except dirty bytes.
    ///
    /// # Errors
    /// The user has no right to see it.
    pub async fn flush(&self, user: &Arc<User>, vnode: &Arc<Vnode>) -> Result<()> {
        self.status(user, vnode).await?;
        self.forget(vnode);
        Ok(())
    }

    /// Drops all cached data of the volume of a file, except dirty bytes, and the location of the
    /// volume.
    ///
    /// # Errors
    /// The user has no right to see the file.
    pub async fn flush_volume(&self, user: &Arc<User>, vnode: &Arc<Vnode>) -> Result<()> {
        self.status(user, vnode).await?;
        let volume = vnode.volume();
        let (cell, fid) = vnode.key;
        self.forget_all(|key| key.0 == cell && key.1.volume == fid.volume);
        for user in self.users().all() {
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
        let listing = self.listing(user, directory).await?;
        let fid = listing
            .get(name)
            .ok_or_else(|| path_error(name, PathProblem::NotFound))?;
        let mount = self.vnode(&directory.volume, *fid)?;
        self.forget(&mount);
        // The kernel has cached the name with its old target.
        self.end_promises(&[directory]);
        Ok(())
    }

    /// Forgets the volume of a name in the dynamic root, and the locations of all volumes. The name
    /// is that of a cell, with or without a dot before it, or one in `.:mount`.
    ///
    /// # Errors
    /// No such cell is known.
    pub fn flush_cell(&self, name: &[u8]) -> Result<()> {
        let cell = name.split(|byte| *byte == b':').next().unwrap_or_default();
        if !self.lists(cell) && cell != b"@cell" && self.alias_of(cell).is_none() {
            return Err(path_error(name, PathProblem::NotFound));
        }
        self.forget_places();
        Ok(())
    }

    /// Forgets the locations of all volumes, and the volumes of the cells' names.
    fn forget_places(&self) {
        for user in self.users().all() {
            user.client().locations().forget_all();
        }
        self.known_cells().forget_silence();
        self.audience.cells_changed();
    }

    /// Forgets the locations of volumes, the targets of mount points, and which cells were silent.
    pub fn check_volumes(&self) {
        self.forget_places();
        self.distrust_directories();
    }

    /// Waits until the notices for all that was dropped before have taken effect.
    pub async fn heard_all(&self) {
        self.audience.settled().await;
    }

    fn forget_all(&self, which: impl Fn(&super::Key) -> bool) {
        let all: Vec<_> = {
            let vnodes = self.vnodes.lock();
            let wanted = vnodes.values().filter(|vnode| which(&vnode.key));
            wanted.cloned().collect()
        };
        for vnode in all {
            self.forget(&vnode);
        }
    }

    fn forget(&self, vnode: &Arc<Vnode>) {
        let _all = vnode.broken();
        {
            let mut state = vnode.state.lock();
            // Only the listing has the names of pending creates.
            if state.untold == 0 && state.life.pending().is_none() {
                state.listing = None;
                state.link = None;
            }
        }
        vnode.body.lock().forget_clean();
        self.take_back(vnode);
    }

    /// Adds a cell, or replaces its servers.
    pub fn new_cell(&self, cell: Cell) -> bool {
        self.known_cells().add(cell)
    }

    /// Adds another name of a cell. Returns `false` if the name is that of a cell, or if there are
    /// too many.
    ///
    /// # Errors
    /// The cell is not known.
    pub async fn new_alias(&self, alias: CellName, cell: &CellName) -> Result<bool> {
        let cell = self.known_cells().find(cell).await?.name;
        Ok(self.known_cells().add_alias(alias, cell))
    }

    /// Returns the other names of cells, each with its cell, in their order.
    pub fn aliases(&self) -> Vec<(CellName, CellName)> {
        self.known_cells().aliases()
    }

    /// Returns the servers that were silent a short while ago, in their order: cell and address.
    pub fn silent_servers(&self) -> BTreeSet<(CellName, IpAddr)> {
        let users = self.users().all().into_iter();
        let silent = users.flat_map(|user| user.client().servers().silent());
        silent.map(|(cell, server)| (cell, server.ip())).collect()
    }

    /// The number of vnodes in the cache.
    pub fn vnodes_known(&self) -> usize {
        self.vnodes.lock().len()
    }

    /// The number of bytes that no server has.
    pub fn dirty(&self) -> u64 {
        self.space.dirty.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Returns the files of one user, or of all users, that are not stored.
    pub fn waiting(&self, uid: Option<u32>) -> Vec<Waiting> {
        let all = self.unstored().into_iter();
        let one = all.map(|(vnode, failed)| {
            let body = vnode.body.lock();
            let unstored = Unstored {
                cell: vnode.volume.cell.to_string(),
                fid: vnode.fid(),
                bytes: body.unstored_bytes(),
                version: body.version(),
                writer: body.writer(),
                torn: false,
            };
            (unstored, failed)
        });
        let unmade = self.unmade().into_iter().map(|(vnode, writer)| {
            let unmade = Unstored {
                cell: vnode.volume.cell.to_string(),
                fid: vnode.fid(),
                bytes: 0,
                version: 0,
                writer,
                torn: false,
            };
            (unmade, vnode.state.lock().failed)
        });
        one.chain(unmade)
            .filter(|(one, _)| uid.is_none_or(|uid| one.writer == uid || one.writer == ANYBODY))
            .collect()
    }

    /// Returns the paths of the texts about files that were put aside, of one user or of all. Empty
    /// if the cache is in memory.
    pub fn aside(&self, uid: Option<u32>) -> Vec<PathBuf> {
        let directory = self.options.directory.as_deref();
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
        self.identities().encrypts()
    }

    /// Switches the encryption of later calls on or off.
    pub async fn set_encrypt(&self, on: bool) {
        self.identities().set_encrypt(on);
        for user in self.users().all() {
            if user.uid() == ANYBODY {
                continue;
            }
            let securities = self.identities().securities(user.uid()).await;
            for (cell, security) in securities {
                user.client().servers().set_security(&cell, security);
            }
        }
    }
}
