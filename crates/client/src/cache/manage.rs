//! What administrators and users ask of a cache manager that runs: forgetting, other cells, what is not stored.

use cellar_cachestore::{Unstored, aside_in};

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::Cache;
use super::names::path_error;
use super::user::{ANYBODY, User};
use super::vnode::Vnode;
use crate::cell::{Cell, CellName};
use crate::error::{PathProblem, Result};

/// A file that is not stored, and why its last store failed, if it did (an errno).
pub type Waiting = (Unstored, Option<i32>);

impl Cache {
    /// Forgets what is known of a file or directory, but for what is not stored.
    ///
    /// # Errors
    /// The user may not see it.
    pub async fn flush(&self, user: &Arc<User>, vnode: &Arc<Vnode>) -> Result<()> {
        self.status(user, vnode).await?;
        self.forget(vnode);
        Ok(())
    }

    /// The same of all that is known of the volume that a file is in, and where that is.
    ///
    /// # Errors
    /// The user may not see the file.
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

    /// The same of everything, and where all volumes are.
    pub fn flush_all(&self) {
        self.forget_all(|_| true);
        self.check_volumes();
    }

    /// Forgets what a mount point (or symbolic link) says, and where that leads.
    ///
    /// # Errors
    /// There is no such name; the user may not look.
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
        // The kernel has the name as where it led.
        self.doubt(&[directory]);
        Ok(())
    }

    /// Forgets which volume a name in the dynamic root leads to (a cell's, also with a dot before
    /// it, or one in `.:mount`), and where all volumes are.
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

    /// Where volumes are is asked for again, and which of them cells' names lead to.
    fn forget_places(&self) {
        for user in self.users().all() {
            user.client().locations().forget_all();
        }
        self.known_cells().forget_silence();
        self.audience.cells_changed();
    }

    /// Where volumes are, and what mount points lead to, is asked for again; silent cells too.
    pub fn check_volumes(&self) {
        self.forget_places();
        self.distrust_directories();
    }

    /// Done when the kernel has heard of all that was forgotten before.
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
            // What was made here and not told stands nowhere else.
            if state.untold == 0 && state.life.pending().is_none() {
                state.listing = None;
                state.link = None;
            }
        }
        vnode.body.lock().forget_clean();
        self.take_back(vnode);
    }

    /// A cell is known from now on, or is where this says.
    pub fn new_cell(&self, cell: Cell) -> bool {
        self.known_cells().add(cell)
    }

    /// A cell gets another name. `false`: that is a cell's name, or there are too many.
    ///
    /// # Errors
    /// The cell is not known.
    pub async fn new_alias(&self, alias: CellName, cell: &CellName) -> Result<bool> {
        let cell = self.known_cells().find(cell).await?.name;
        Ok(self.known_cells().add_alias(alias, cell))
    }

    /// Other names of cells, and what they are names of, in their order.
    pub fn aliases(&self) -> Vec<(CellName, CellName)> {
        self.known_cells().aliases()
    }

    /// Servers that were silent a short while ago, in their order: the cell, and the address.
    pub fn silent_servers(&self) -> BTreeSet<(CellName, IpAddr)> {
        let users = self.users().all().into_iter();
        let silent = users.flat_map(|user| user.client().servers().silent());
        silent.map(|(cell, server)| (cell, server.ip())).collect()
    }

    /// Vnodes that are remembered now.
    pub fn vnodes_known(&self) -> usize {
        self.vnodes.lock().len()
    }

    /// Bytes that no server has.
    pub fn dirty(&self) -> u64 {
        self.space.dirty.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// What is not stored, of one user or of all.
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

    /// The texts about what was put aside, of one user or of all: nothing, where the cache is in memory.
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

    /// Whether what is sent and received for users with tokens is encrypted.
    pub fn encrypts(&self) -> bool {
        self.identities().encrypts()
    }

    /// Sets that: calls from now on are made so.
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
