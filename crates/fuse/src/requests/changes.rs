//! Requests that change names: creations, links, removals and renames.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use cellar_cachemanager::{Lookup, User, Vnode};
use cellar_client::errno;
use fuser::{Errno, INodeNo, RenameFlags};

use crate::inodes::Node;

use super::{Answer, DirectoryMoment, Entry, O_EXCL, Open, RENAME_NOREPLACE, Requests, code};

impl Requests {
    /// The directory in which a user makes a name, the user, and the state before the change.
    async fn before_change(
        &self,
        uid: u32,
        parent: INodeNo,
    ) -> Answer<(Arc<Vnode>, Arc<User>, DirectoryMoment)> {
        let directory = self.vnode(parent)?;
        let user = self.user(uid).await?;
        Ok((directory, user, self.seen(parent)?))
    }

    pub(crate) async fn create(
        &self,
        uid: u32,
        parent: INodeNo,
        name: &[u8],
        mode: u32,
        (flags, kills_set_id): (i32, bool),
    ) -> Answer<(Entry, Open)> {
        let (directory, user, seen) = self.before_change(uid, parent).await?;
        let made = self
            .cache
            .names()
            .create_file(&user, &directory, name, mode)
            .await;
        let (vnode, handle) = match made {
            Ok(vnode) => {
                let handle = self.cache.opened(&user, &vnode);
                (vnode, handle)
            }
            // Another client was faster.
            Err(error) if errno(&error) == Errno::EEXIST.code() && flags & O_EXCL == 0 => {
                let seen = self.seen(parent)?;
                let entry = self.lookup(uid, parent, name, &seen).await?;
                // No backing file: files in a writable volume are never lent.
                let none = |_: &File| Err(io::ErrorKind::Unsupported.into());
                let open = self
                    .open(uid, entry.attr.ino, (flags, kills_set_id), none)
                    .await?;
                return Ok((entry, open));
            }
            Err(error) => return Err(code(error)),
        };
        self.cache
            .reads()
            .attributes(&user, &vnode)
            .await
            .map_err(code)?;
        let found = Lookup {
            vnode,
            crossed: false,
        };
        let entry = match self.entry(parent, name, &found, &seen) {
            Ok(entry) => entry,
            Err(error) => {
                handle.close().await;
                return Err(error);
            }
        };
        self.inodes
            .pages_are(entry.attr.ino.0, found.vnode.content_generation());
        let open = Open {
            handle: self.keep(handle, None),
            backing: None,
            pages_are_right: true,
        };
        Ok((entry, open))
    }

    async fn made(
        &self,
        user: &Arc<User>,
        parent: INodeNo,
        name: &[u8],
        vnode: Arc<Vnode>,
        seen: &DirectoryMoment,
    ) -> Answer<Entry> {
        self.cache
            .reads()
            .attributes(user, &vnode)
            .await
            .map_err(code)?;
        let found = Lookup {
            vnode,
            crossed: false,
        };
        self.entry(parent, name, &found, seen)
    }

    /// Makes a file or a directory.
    pub(crate) async fn make(
        &self,
        uid: u32,
        parent: INodeNo,
        name: &[u8],
        mode: u32,
        is_directory: bool,
    ) -> Answer<Entry> {
        let (directory, user, seen) = self.before_change(uid, parent).await?;
        let made = match is_directory {
            true => {
                self.cache
                    .names()
                    .make_dir(&user, &directory, name, mode)
                    .await
            }
            false => {
                self.cache
                    .names()
                    .make_node(&user, &directory, name, mode)
                    .await
            }
        };
        let made = made.map_err(code)?;
        self.made(&user, parent, name, made, &seen).await
    }

    pub(crate) async fn symlink(
        &self,
        uid: u32,
        parent: INodeNo,
        name: &[u8],
        text: &[u8],
    ) -> Answer<Entry> {
        let (directory, user, seen) = self.before_change(uid, parent).await?;
        let made = self
            .cache
            .names()
            .symlink(&user, &directory, name, text)
            .await;
        let made = made.map_err(code)?;
        let is_mount_point = cellar_client::MountPoint::parse(text).is_some();
        let mut entry = self.made(&user, parent, name, made, &seen).await?;
        if is_mount_point {
            // The kernel accepts only a link as the answer. The next look-up finds the target.
            entry.entry_time = Duration::ZERO;
        }
        Ok(entry)
    }

    pub(crate) async fn link(
        &self,
        uid: u32,
        number: INodeNo,
        parent: INodeNo,
        name: &[u8],
    ) -> Answer<Entry> {
        let (file, directory) = (self.vnode(number)?, self.vnode(parent)?);
        let user = self.user(uid).await?;
        let seen = self.seen(parent)?;
        let linked = self
            .cache
            .names()
            .link(&user, &directory, name, &file)
            .await;
        linked.map_err(code)?;
        self.made(&user, parent, name, file, &seen).await
    }

    pub(crate) async fn unlink(&self, uid: u32, parent: INodeNo, name: &[u8]) -> Answer<()> {
        let directory = self.vnode(parent)?;
        let user = self.user(uid).await?;
        let removed = self
            .cache
            .names()
            .remove_file(&user, &directory, name)
            .await;
        removed.map_err(code)?;
        self.inodes.removed(parent.0, name);
        Ok(())
    }

    pub(crate) async fn remove_dir(&self, uid: u32, parent: INodeNo, name: &[u8]) -> Answer<()> {
        let directory = self.vnode(parent)?;
        let user = self.user(uid).await?;
        let removed = self.cache.names().remove_dir(&user, &directory, name).await;
        removed.map_err(|error| match errno(&error) {
            // Servers return this code for a directory that is not empty.
            17 => Errno::ENOTEMPTY,
            _ => code(error),
        })?;
        self.inodes.removed(parent.0, name);
        Ok(())
    }

    pub(crate) async fn rename(
        &self,
        uid: u32,
        from: (INodeNo, &[u8]),
        to: (INodeNo, &[u8]),
        flags: RenameFlags,
    ) -> Answer<()> {
        let (old, new) = (self.vnode(from.0)?, self.vnode(to.0)?);
        let user = self.user(uid).await?;
        if flags.bits() & !RENAME_NOREPLACE != 0 {
            return Err(Errno::EINVAL);
        }
        if flags.bits() & RENAME_NOREPLACE != 0 {
            let listing = self
                .cache
                .statuses()
                .listing(&user, &new)
                .await
                .map_err(code)?;
            if listing.contains_key(to.1) {
                return Err(Errno::EEXIST);
            }
        }
        let renamed = self
            .cache
            .names()
            .rename(&user, (&old, from.1), (&new, to.1))
            .await;
        renamed.map_err(|error| match errno(&error) {
            17 => Errno::ENOTEMPTY,
            _ => code(error),
        })?;
        self.inodes.renamed((from.0.0, from.1), (to.0.0, to.1));
        Ok(())
    }

    /// Waits until the server knows what was made in a directory. Acknowledged changes are durable.
    pub(crate) async fn sync_dir(&self, number: INodeNo) -> Answer<()> {
        match self.node(number)? {
            Node::Vnode(directory) => self
                .cache
                .creates()
                .flush_pending(&directory)
                .await
                .map_err(code),
            Node::Cells | Node::Volumes | Node::Cell(_) | Node::Link(_) => Ok(()),
        }
    }
}
