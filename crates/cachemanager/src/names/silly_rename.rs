//! Files whose last name is removed while programs have them open, or while they have bytes to
//! store.
//!
//! 1. The file server frees a file with its last name. So the removal of the last name of an open
//!    file is a rename to an unused name `.__afs...`; the last close removes that name.
//! 2. A rename over an open file does the same with the replaced file ([`Replaced`]). If the rename
//!    fails, the replaced file gets its name back. Until the outcome is known, the last close
//!    removes nothing.
//! 3. A directory goes with its name, also while programs have it open. These programs see it in
//!    its last state, with a link count of 0.
//! 4. If this machine removed the file, its dirty bytes are dropped. If another client removed it,
//!    they are put aside (`creates/given_up.rs`).

use std::sync::{Arc, Weak};

use bytes::Bytes;
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::AfsTime;
use cellar_wire::rxafs::{self, AfsFetchStatus};

use crate::life::SillyRename;
use crate::names::Names;
use crate::request::RETRY;
use crate::request::afs_name;
use crate::request::refused;
use crate::user::User;
use crate::vnode::Vnode;
use cellar_client::error::Result;

/// The most names of removed files that are kept for another try.
const SILLY_NAMES_MAX: usize = 4_096;
/// How many names are tried for a removed open file.
const NAME_TRIES: u32 = 100;

/// This machine removes the last name of a file. The answer "no such vnode" is expected then, and
/// no program misses the dirty bytes.
pub(crate) struct Removing(Arc<Vnode>);

impl Removing {
    pub(crate) fn of(file: &Arc<Vnode>) -> Self {
        file.state.lock().names.begin_removal();
        Self(file.clone())
    }
}

impl Drop for Removing {
    fn drop(&mut self) {
        self.0.state.lock().names.end_removal();
    }
}

/// An open file whose name a rename is about to give to another file. If the rename is cancelled,
/// the file gets its name back.
pub(crate) struct Replaced<'a> {
    names: &'a Names,
    name: &'a [u8],
    file: Arc<Vnode>,
    silly: Option<SillyRename>,
}

impl<'a> Replaced<'a> {
    /// Takes a file's last name from it.
    ///
    /// # Errors
    /// The server's refusal; the file still has its name.
    pub(crate) async fn take(
        names: &'a Names,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        name: &'a [u8],
        file: &Arc<Vnode>,
    ) -> Result<Self> {
        let silly = names.silly_rename(user, directory, name, file).await?;
        Ok(Self {
            names,
            name,
            file: file.clone(),
            silly: Some(silly),
        })
    }

    /// The rename ended. `came`: it succeeded.
    pub(crate) async fn renamed(mut self, came: bool) {
        let Some(silly) = self.silly.clone() else {
            return;
        };
        if came {
            self.silly = None;
            self.names.silly_renamed(&self.file, silly).await;
        } else {
            self.names.put_back(self.name, &self.file, silly).await;
            self.silly = None;
        }
    }
}

impl Drop for Replaced<'_> {
    fn drop(&mut self) {
        let Some(silly) = self.silly.take() else {
            return;
        };
        let (Some(names), Ok(runtime)) = (self.names.me(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let (name, file) = (Bytes::copy_from_slice(self.name), self.file.clone());
        runtime.spawn(async move { names.put_back(&name, &file, silly).await });
    }
}

impl Names {
    /// A name of the file was removed at the server's time `at`.
    pub(crate) async fn unlinked(&self, user: &Arc<User>, file: &Arc<Vnode>, at: AfsTime) {
        if file.is_directory() {
            return file.directory_removed();
        }
        let waits = file.body.lock().is_changed() && !file.is_open();
        match file.last_status() {
            Some(status) if status.link_count > 1 => {
                let status = AfsFetchStatus {
                    link_count: status.link_count - 1,
                    server_mod_time: status.server_mod_time.max(at),
                    ..status
                };
                let owed = file.apply_status(user.id(), &status, None);
                self.promises.send_notices(file, owed);
            }
            // Another client may have linked it elsewhere, and the break is still under way. Dirty
            // bytes are dropped only when the server answers that the file is gone.
            _ if waits && !self.is_gone_at_server(user, file).await => {}
            _ => {
                file.state.lock().life.removed();
                // The kernel removed the name itself.
                let _known = file.vanished();
                if !file.is_open() {
                    file.body.lock().abandon();
                    self.vnodes.forget_unstored(file);
                }
            }
        }
    }

    async fn is_gone_at_server(&self, user: &Arc<User>, file: &Arc<Vnode>) -> bool {
        let asked = self.statuses.ask(user, file).await;
        asked.is_err_and(|error| error.code() == Some(AbortCode::VNOVNODE))
    }

    /// Renames an open file whose last name a program removes. Returns the argument for
    /// [`Self::silly_renamed`] or [`Self::put_back`]. Source: the name is OpenAFS's.
    pub(crate) async fn silly_rename(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        name: &[u8],
        file: &Arc<Vnode>,
    ) -> Result<SillyRename> {
        let listing = self.statuses.listing(user, directory).await?;
        let free = (0..NAME_TRIES).find_map(|_| {
            let number = self.vnodes.tick();
            let name = format!(".__afs{number:X}{:X}", file.fid().uniquifier.0);
            (!listing.contains_key(name.as_bytes())).then(|| Bytes::from(name))
        });
        let silly = free.ok_or_else(|| refused("no name for an open file", AbortCode::EEXIST))?;
        drop(listing);
        let new = afs_name(&silly)?;
        let reply = self
            .changes
            .change(user, (directory, None), name, |old_dir_fid, old_name| {
                rxafs::Rename {
                    old_dir_fid,
                    old_name,
                    new_dir_fid: old_dir_fid,
                    new_name: new,
                }
            })
            .await?;
        let (fid, silly_name) = (file.fid(), silly.clone());
        self.promises
            .directory_changed(user, directory, &reply.new_dir_status, |listing| {
                listing.remove(name);
                listing.insert(silly_name, fid);
            });
        Ok(SillyRename {
            directory: directory.clone(),
            name: silly,
            user: user.clone(),
        })
    }

    /// Notes the only name that the file has left. The last close removes it, or this call, if the
    /// file was closed meanwhile.
    pub(crate) async fn silly_renamed(&self, file: &Arc<Vnode>, silly: SillyRename) {
        let open = {
            let mut state = file.state.lock();
            state.life.silly_renamed(silly);
            state.opens.is_open()
        };
        if !open {
            self.remove_silly_rename(file).await;
        }
    }

    /// Gives a file its name back after a failed rename over it. The outcome of the rename may be
    /// unknown, so the directory is read first. If another file has the name, it keeps it.
    async fn put_back(&self, name: &[u8], file: &Arc<Vnode>, silly: SillyRename) {
        let SillyRename {
            directory,
            name: old,
            user,
        } = silly;
        let back = async {
            let listing = self.statuses.listing(&user, &directory).await?;
            if listing.contains_key(name) || listing.get(&old) != Some(&file.fid()) {
                return Err(refused("its old name", AbortCode::EEXIST));
            }
            drop(listing);
            let new = afs_name(name)?;
            self.changes
                .change(&user, (&directory, None), &old, |old_dir_fid, old_name| {
                    rxafs::Rename {
                        old_dir_fid,
                        old_name,
                        new_dir_fid: old_dir_fid,
                        new_name: new,
                    }
                })
                .await
        };
        match back.await {
            Ok(reply) => {
                let (fid, new) = (file.fid(), Bytes::copy_from_slice(name));
                self.promises.directory_changed(
                    &user,
                    &directory,
                    &reply.new_dir_status,
                    |listing| {
                        listing.remove(&old);
                        listing.insert(new, fid);
                    },
                );
            }
            // The other name is not removed: it may be the last one of the file.
            Err(error) => {
                let (name, old) = (String::from_utf8_lossy(name), String::from_utf8_lossy(&old));
                tracing::warn!(%name, %old, %error, "a rename failed, and what it was to replace stays under another name");
            }
        }
    }

    /// Removes the last name of a removed file that no program has open.
    pub(crate) async fn remove_silly_rename(&self, file: &Arc<Vnode>) {
        let silly = {
            let mut state = file.state.lock();
            let Some(silly) = state.life.closed() else {
                return;
            };
            silly
        };
        file.body.lock().abandon();
        self.vnodes.forget_unstored(file);
        self.remove_silly_name(silly).await;
        // The kernel has closed the file and needs no notice.
        let _known = file.vanished();
    }

    /// Removes such a name. If no server can be reached, keeps it for another try and returns
    /// `false`.
    async fn remove_silly_name(&self, silly: SillyRename) -> bool {
        let SillyRename {
            directory,
            name,
            user,
        } = &silly;
        let Err(error) = self.changes.remove_name(user, directory, name).await else {
            return true;
        };
        if error.is_not_found() {
            return true;
        }
        let waits = error.is_unreachable() && {
            let mut silly_names = self.silly_names.lock();
            let has_room = silly_names.len() < SILLY_NAMES_MAX;
            if has_room {
                silly_names.push(silly.clone());
            }
            has_room
        };
        if !waits {
            let name = String::from_utf8_lossy(name);
            tracing::warn!(%name, %error, "a removed file stays under this name");
        }
        !waits
    }

    /// Tries again to remove the names that could not be removed, until a server is silent.
    pub(crate) async fn remove_silly_names(&self) {
        let mut silly_names = std::mem::take(&mut *self.silly_names.lock()).into_iter();
        for silly in silly_names.by_ref() {
            if !self.remove_silly_name(silly).await {
                break;
            }
        }
        self.silly_names.lock().extend(silly_names);
    }

    /// Repeats that while the cache exists.
    pub(crate) async fn keep_removing(this: Weak<Self>) {
        loop {
            tokio::time::sleep(RETRY).await;
            let Some(this) = this.upgrade() else {
                return;
            };
            this.remove_silly_names().await;
        }
    }
}
