//! Changes in directories. Each change is one call, and its answer has the directory's new status.
//! If that status has the version that follows ours, the change is applied to our copy of the names
//! too, and the copy stays valid.

use std::sync::Arc;

use bytes::Bytes;
use cellar_wire::AfsName;
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{self, AfsFetchStatus, AfsPath, Callback};

use crate::changes::Verify;
use crate::names::Names;
use crate::names::silly_rename::{Removing, Replaced};
use crate::promises::status_request::StatusRequest;
use crate::request::afs_name;
use crate::request::path_error;
use crate::request::refused;
use crate::user::User;
use crate::vnode::Vnode;
use cellar_client::error::{PathProblem, Result};
use cellar_client::mount_point::{MOUNT_POINT_MODE, MountPoint};

/// The answer of a server that created something.
struct NewEntry {
    fid: Fid,
    status: AfsFetchStatus,
    directory: AfsFetchStatus,
    callback: Callback,
}

impl Names {
    /// Creates an empty file.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn create_file(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        name: &[u8],
        mode: u32,
    ) -> Result<Arc<Vnode>> {
        match self
            .creates
            .create_locally(user, directory, name, mode)
            .await?
        {
            Some(made) => Ok(made),
            None => self.make_node(user, directory, name, mode).await,
        }
    }

    /// Creates an empty file that no program has open. It is not created locally: no close would
    /// follow that could report an error of the server.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn make_node(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        name: &[u8],
        mode: u32,
    ) -> Result<Arc<Vnode>> {
        let in_status = self.env.new_status(mode);
        let create = |dir_fid, name| rxafs::CreateFile {
            dir_fid,
            name,
            in_status,
        };
        let entry_of = |reply: rxafs::CreateFileReply| NewEntry {
            fid: reply.fid,
            status: reply.status,
            directory: reply.dir_status,
            callback: reply.callback,
        };
        let made = self.make(user, directory, name, create, entry_of).await?;
        made.state.lock().opens.created();
        Ok(made)
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn make_dir(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        name: &[u8],
        mode: u32,
    ) -> Result<Arc<Vnode>> {
        let in_status = self.env.new_status(mode);
        let make = |dir_fid, name| rxafs::MakeDir {
            dir_fid,
            name,
            in_status,
        };
        let entry_of = |reply: rxafs::MakeDirReply| NewEntry {
            fid: reply.fid,
            status: reply.status,
            directory: reply.dir_status,
            callback: reply.callback,
        };
        self.make(user, directory, name, make, entry_of).await
    }

    /// Creates a file or directory. The server gives a promise about it.
    async fn make<P: Verify>(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        name: &[u8],
        arguments: impl FnOnce(Fid, AfsName) -> P,
        entry_of: impl FnOnce(P::Reply) -> NewEntry,
    ) -> Result<Arc<Vnode>> {
        let asked = self.promises.begin_new();
        let reply = self
            .changes
            .change_at(user, (directory, None), name, arguments);
        let (reply, by) = reply.await?;
        let made = entry_of(reply);
        let asked = by.map_or(asked, |by| asked.answered_by(by));
        self.entered(user, directory, &made.directory, name, made.fid);
        let promise = Some((made.callback, asked));
        let vnode = self.made(user, directory, made.fid, &made.status, promise)?;
        if vnode.is_directory() {
            // The new directory is empty in the version of the answer.
            let version = made.status.data_version;
            vnode.state.lock().contents.set_empty(version);
        } else {
            self.creates
                .learn(user, directory, &made.directory, &made.status);
        }
        Ok(vnode)
    }

    /// Creates a symbolic link, or a mount point if the text is that of one.
    ///
    /// # Errors
    /// The server's refusal; a text over 1024 bytes.
    pub async fn symlink(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        name: &[u8],
        text: &[u8],
    ) -> Result<Arc<Vnode>> {
        let link_contents = AfsPath::new(text.to_vec())
            .map_err(|_| refused("a symbolic link", AbortCode::from_errno(36)))?;
        let mode = match MountPoint::parse(text) {
            Some(_) => MOUNT_POINT_MODE,
            None => 0o755,
        };
        let reply = self
            .changes
            .change(user, (directory, None), name, |dir_fid, name| {
                rxafs::Symlink {
                    dir_fid,
                    name,
                    link_contents,
                    in_status: self.env.new_status(mode),
                }
            })
            .await?;
        self.entered(user, directory, &reply.dir_status, name, reply.fid);
        let vnode = self.made(user, directory, reply.fid, &reply.status, None)?;
        let text = Bytes::copy_from_slice(text);
        let version = reply.status.data_version;
        vnode.state.lock().contents.set_link_text(version, text);
        Ok(vnode)
    }

    /// Adds another name for a file in its directory.
    ///
    /// # Errors
    /// `EXDEV` for another directory than its own; the server's refusal.
    pub async fn link(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        name: &[u8],
        file: &Arc<Vnode>,
    ) -> Result<()> {
        if file.key().0 != directory.key().0 || file.fid().volume != directory.fid().volume {
            return Err(refused("a link", AbortCode::EXDEV));
        }
        let reply = self
            .changes
            .change(user, (directory, Some(file)), name, |dir_fid, name| {
                rxafs::Link {
                    dir_fid,
                    name,
                    existing_fid: file.fid(),
                }
            })
            .await?;
        self.entered(user, directory, &reply.dir_status, name, file.fid());
        self.promises.apply_status(user, file, &reply.status, None);
        Ok(())
    }

    /// Removes the name of a file, link or mount point. An open file without another name is
    /// renamed, and its new name is removed at the last close.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn remove_file(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        name: &[u8],
    ) -> Result<()> {
        let file = self.entry(user, directory, name).await?;
        let open = file.is_open();
        let last = file
            .last_status()
            .is_none_or(|status| status.link_count <= 1);
        if open && last {
            let renamed = self.silly_rename(user, directory, name, &file).await?;
            self.silly_renamed(&file, renamed).await;
            return Ok(());
        }
        let _removing = last.then(|| Removing::of(&file));
        let at = self.changes.remove_name(user, directory, name).await?;
        self.unlinked(user, &file, at).await;
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn remove_dir(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        name: &[u8],
    ) -> Result<()> {
        let removed = self.entry(user, directory, name).await?;
        let reply = self
            .changes
            .change(user, (directory, None), name, |dir_fid, name| {
                rxafs::RemoveDir { dir_fid, name }
            })
            .await?;
        self.promises
            .directory_changed(user, directory, &reply.dir_status, |listing| {
                listing.remove(name);
            });
        if removed.is_directory() {
            removed.directory_removed();
            self.creates.abandon_creates_in(&removed);
        }
        Ok(())
    }

    /// Moves a name. A file that has the new name is replaced.
    ///
    /// # Errors
    /// `EXDEV` between volumes; the server's refusal.
    pub async fn rename(
        &self,
        user: &Arc<User>,
        from: (&Arc<Vnode>, &[u8]),
        to: (&Arc<Vnode>, &[u8]),
    ) -> Result<()> {
        let ((old_dir, old_name), (new_dir, new_name)) = (from, to);
        if old_dir.key().0 != new_dir.key().0 || old_dir.fid().volume != new_dir.fid().volume {
            return Err(refused("a rename", AbortCode::EXDEV));
        }
        if Arc::ptr_eq(old_dir, new_dir) && old_name == new_name {
            return Ok(());
        }
        let moved = self.entry(user, old_dir, old_name).await?;
        let listing = self.statuses.listing(user, new_dir).await?;
        let replaced = match listing.get(new_name) {
            Some(fid) if *fid == moved.fid() => {
                // Two names of one file: both stay. Source: rename(2).
                return Ok(());
            }
            Some(fid) => Some(self.vnodes.vnode(new_dir.volume(), *fid)?),
            None => None,
        };
        drop(listing);
        // The bytes of a file that replaces another one are stored first, so that no other client
        // finds an empty file in its place.
        if replaced.is_some() && moved.body.lock().is_changed() {
            self.write_back.store(&moved, false).await?;
        }
        let new = afs_name(new_name)?;
        let mut left_over = None;
        let mut removing = None;
        if let Some(file) = &replaced
            && !file.is_directory()
            && !moved.is_directory()
        {
            let open = file.is_open();
            let last = file
                .last_status()
                .is_none_or(|status| status.link_count <= 1);
            if open && last {
                left_over = Some(Replaced::take(self, user, new_dir, new_name, file).await?);
            } else if last {
                removing = Some(Removing::of(file));
            }
        }
        let renamed = self
            .changes
            .change(
                user,
                (old_dir, Some(new_dir)),
                old_name,
                |old_dir_fid, old_name| rxafs::Rename {
                    old_dir_fid,
                    old_name,
                    new_dir_fid: new_dir.fid(),
                    new_name: new,
                },
            )
            .await;
        let was_open = left_over.is_some();
        if let Some(left_over) = left_over {
            left_over.renamed(renamed.is_ok()).await;
        }
        let reply = renamed?;
        let fid = moved.fid();
        let name = Bytes::copy_from_slice(new_name);
        if Arc::ptr_eq(old_dir, new_dir) {
            self.promises
                .directory_changed(user, old_dir, &reply.new_dir_status, |listing| {
                    listing.remove(old_name);
                    listing.insert(name, fid);
                });
        } else {
            self.promises
                .directory_changed(user, old_dir, &reply.old_dir_status, |listing| {
                    listing.remove(old_name);
                });
            self.promises
                .directory_changed(user, new_dir, &reply.new_dir_status, |listing| {
                    listing.insert(name, fid);
                });
            if moved.is_directory() {
                // The server changed the entry `..` in its data.
                let owed = moved.broken();
                self.promises.send_notices(&moved, owed);
            } else {
                moved.moved_to(new_dir.fid());
            }
        }
        if let Some(file) = replaced.filter(|_| !was_open) {
            self.unlinked(user, &file, reply.new_dir_status.server_mod_time)
                .await;
        }
        drop(removing);
        Ok(())
    }

    /// Returns the vnode of a name. A mount point is not followed.
    async fn entry(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        name: &[u8],
    ) -> Result<Arc<Vnode>> {
        let listing = self.statuses.listing(user, directory).await?;
        let fid = listing
            .get(name)
            .ok_or_else(|| path_error(name, PathProblem::NotFound))?;
        self.vnodes.vnode(directory.volume(), *fid)
    }

    /// Returns the vnode of something that was just created in a directory.
    fn made(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        fid: Fid,
        status: &AfsFetchStatus,
        promise: Option<(Callback, StatusRequest)>,
    ) -> Result<Arc<Vnode>> {
        let vnode = self.vnodes.vnode(directory.volume(), fid)?;
        self.promises.apply_status(user, &vnode, status, promise);
        Ok(vnode)
    }

    fn entered(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        status: &AfsFetchStatus,
        name: &[u8],
        fid: Fid,
    ) {
        self.promises
            .directory_changed(user, directory, status, |listing| {
                listing.insert(Bytes::copy_from_slice(name), fid);
            });
    }
}
