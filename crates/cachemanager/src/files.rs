//! Open files, their lengths and attributes, and the free space in their volume.

use std::sync::Arc;

use cellar_wire::abort::AbortCode;
use cellar_wire::acl::Rights;
use cellar_wire::ids::{AfsTime, ViceId};
use cellar_wire::rxafs::{AfsStoreStatus, FileType, GetVolumeStatus};

pub(crate) mod opens;

use crate::Cache;
use crate::reads::ReadPosition;
use crate::request::refused;
use crate::user::User;
use crate::vnode::{Attributes, Vnode};
use cellar_client::error::Result;
use cellar_client::volume::Volume;

/// The largest length of a file in AFS's 64-bit calls.
pub(crate) const LENGTH_MAX: u64 = i64::MAX as u64;

/// An open file. [`Handle::close`] must be called.
#[derive(Debug)]
pub struct Handle {
    cache: Arc<Cache>,
    user: Arc<User>,
    vnode: Arc<Vnode>,
    position: ReadPosition,
    open: bool,
}

impl Drop for Handle {
    /// Counts a handle as closed if its task was cancelled before the close.
    fn drop(&mut self) {
        if self.open {
            self.vnode.state.lock().opens.remove();
        }
    }
}

/// The attributes that a program sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewAttributes {
    /// The low 12 bits of the mode.
    pub mode: Option<u32>,
    /// The owner.
    pub owner: Option<ViceId>,
    /// The group.
    pub group: Option<ViceId>,
    /// The length.
    pub length: Option<u64>,
    /// The modification time.
    pub modified: Option<AfsTime>,
}

/// The size and free space of a volume, in KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The quota, or the size of the partition if there is no quota.
    pub total: u64,
    /// The free part of it. Not more than the partition has.
    pub free: u64,
}

impl Cache {
    /// Opens a file. `cut`: truncates it.
    ///
    /// # Errors
    /// `EACCES`; `EISDIR`; the server's error.
    pub async fn open(
        self: &Arc<Self>,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        wanted: Rights,
        cut: bool,
    ) -> Result<Handle> {
        self.env.audience.notified(vnode).await;
        let status = self.statuses.status(user, vnode).await?;
        if status.file_type == FileType::Directory {
            return Err(refused("opening a directory", AbortCode::EISDIR));
        }
        // open(2) lets a program truncate a file that it opens for reading.
        let wanted = match cut {
            true => wanted.union(Rights::WRITE),
            false => wanted,
        };
        if wanted.contains(Rights::WRITE) && vnode.volume().is_read_only() {
            return Err(refused("opening a file to write", AbortCode::EROFS));
        }
        self.statuses.may(user, vnode, wanted).await?;
        let handle = self.opened(user, vnode);
        if !cut {
            self.reads.lengthen(user, vnode).await;
        }
        self.env.audience.notified(vnode).await;
        if cut {
            let now = self.env.now();
            let changed = self
                .write_back
                .changed(user, vnode, |body| body.set_length(0, now))
                .await;
            if let Err(error) = changed {
                handle.close().await;
                return Err(error);
            }
            vnode.state.lock().kernel.lower_length(0);
        }
        Ok(handle)
    }

    /// Returns a handle of a file that its user has just created.
    pub fn opened(self: &Arc<Self>, user: &Arc<User>, vnode: &Arc<Vnode>) -> Handle {
        vnode.state.lock().opens.add(user);
        Handle {
            cache: self.clone(),
            user: user.clone(),
            vnode: vnode.clone(),
            position: ReadPosition::default(),
            open: true,
        }
    }

    /// Changes attributes. `open`: the program has the file open for writing, whatever its mode is
    /// now.
    ///
    /// # Errors
    /// The server's refusal; `EISDIR` for the length of a directory.
    pub async fn set_attributes(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        wanted: NewAttributes,
        open: bool,
    ) -> Result<Attributes> {
        if let Some(length) = wanted.length {
            let status = self.statuses.status(user, vnode).await?;
            if status.file_type != FileType::File {
                return Err(refused("the length of a directory", AbortCode::EISDIR));
            }
            if length > LENGTH_MAX {
                return Err(refused("a length", AbortCode::from_errno(27)));
            }
            if vnode.volume().is_read_only() {
                return Err(refused("a length", AbortCode::EROFS));
            }
            if !open {
                self.statuses.may(user, vnode, Rights::WRITE).await?;
            }
            let now = self.env.now();
            self.write_back
                .changed(user, vnode, |body| body.set_length(length, now))
                .await?;
            vnode.state.lock().kernel.lower_length(length);
            // No close will follow that could return the server's error.
            if !vnode.is_open() {
                self.write_back.store(vnode, false).await?;
            }
        }
        let set = AfsStoreStatus {
            client_mod_time: wanted.modified,
            owner: wanted.owner,
            group: wanted.group,
            unix_mode: wanted.mode.map(|mode| mode & 0o7777),
            ..AfsStoreStatus::default()
        };
        if set != AfsStoreStatus::default() {
            self.write_back.set(user, vnode, set).await?;
        }
        self.statuses.attributes_now(user, vnode).await
    }

    /// Returns the size and free space of a volume.
    ///
    /// # Errors
    /// No server of the volume answers.
    pub async fn usage(&self, user: &Arc<User>, volume: &Volume) -> Result<Usage> {
        let what = format!("room in {}", volume.full_name());
        let arguments = GetVolumeStatus { volume: volume.id };
        let status = user
            .client()
            .call_volume(volume, &what, &arguments)
            .await?
            .status;
        let kib = |count: i32| u64::from(count.max(0).unsigned_abs());
        let on_partition = kib(status.partition_blocks_available);
        Ok(match kib(status.max_quota) {
            0 => Usage {
                total: kib(status.partition_max_blocks),
                free: on_partition,
            },
            quota => Usage {
                total: quota,
                free: on_partition.min(quota.saturating_sub(kib(status.blocks_in_use))),
            },
        })
    }
}

impl Handle {
    /// The file.
    pub fn vnode(&self) -> &Arc<Vnode> {
        &self.vnode
    }

    /// Reads at most `length` bytes from `start`. Returns fewer only at the end of the file.
    ///
    /// # Errors
    /// The server's error; a failure of the cache.
    pub async fn read(&self, start: u64, length: u64) -> Result<Vec<u8>> {
        let bytes = self
            .cache
            .reads
            .read_file(&self.user, &self.vnode, &self.position, start, length)
            .await?;
        let read = bytes.len() as u64;
        if read < length {
            let mut state = self.vnode.state.lock();
            state.kernel.lower_length(start.saturating_add(read));
        }
        Ok(bytes)
    }

    /// Passes all bytes of a cached file that is not empty and has at most `most` bytes to `give`.
    /// Counts as a read. Programs of this machine must not change the file during the call. Returns
    /// whether the bytes were given and are still valid. The receiver gets a notice of later
    /// changes.
    pub fn give_small(&self, most: u64, give: impl FnOnce(&[u8])) -> bool {
        let (cache, user, vnode) = (&self.cache, &self.user, &self.vnode);
        vnode.hold_contents();
        let Some(status) = vnode.promised(user) else {
            return false;
        };
        let breaks = vnode.breaks();
        let contents = {
            let mut body = vnode.body.lock();
            let length = body.length();
            if length == 0 || length > most || !body.gaps(0, length).is_empty() {
                return false;
            }
            let Ok(bytes) = body.read(0, length) else {
                return false;
            };
            give(&bytes);
            body.content_generation()
        };
        cache.reads.read_all(user, vnode, &status);
        // A break is first counted, then the promise ends, then the notice is sent.
        let is_same = (vnode.breaks(), vnode.content_generation()) == (breaks, contents);
        let holds = is_same && vnode.promised(user).is_some();
        if !holds {
            cache.promises.invalidate(vnode);
        }
        holds
    }

    /// Writes bytes at `start`.
    ///
    /// # Errors
    /// `EFBIG`; a failure of the cache; the server's error, if too many bytes were dirty already.
    pub async fn write(&self, start: u64, bytes: &[u8]) -> Result<()> {
        if start.saturating_add(bytes.len() as u64) > LENGTH_MAX {
            return Err(refused("a write", AbortCode::from_errno(27)));
        }
        self.vnode.hold_contents();
        self.cache.write_back.has_room_for(&self.vnode)?;
        let now = self.cache.env.now();
        self.cache
            .write_back
            .changed(&self.user, &self.vnode, |body| {
                body.write(start, bytes, now)
            })
            .await
    }

    /// Appends bytes. Returns their position: the end of the file with the bytes that the server
    /// has now and those that programs of this machine wrote. Without a promise about the file, the
    /// server is asked. Bytes that other clients store between that answer and the store of these
    /// bytes are overwritten, if no lock prevents it.
    ///
    /// # Errors
    /// As [`Handle::write`]; the server's error, if it is asked.
    pub async fn append(&self, bytes: &[u8]) -> Result<u64> {
        let (cache, vnode) = (&self.cache, &self.vnode);
        vnode.hold_contents();
        cache.write_back.has_room_for(vnode)?;
        cache.statuses.status(&self.user, vnode).await?;
        if vnode.body.lock().has_deferred_status() {
            // The server's latest answer is applied when that store has ended.
            drop(vnode.store_turn.lock().await);
        }
        let now = cache.env.now();
        let mut too_long = false;
        let put = |body: &mut cellar_cachestore::Body| {
            let start = body.length();
            too_long = start.saturating_add(bytes.len() as u64) > LENGTH_MAX;
            if too_long {
                return Err(std::io::ErrorKind::FileTooLarge.into());
            }
            body.write(start, bytes, now)?;
            Ok(start)
        };
        let start = cache.write_back.changed(&self.user, vnode, put).await;
        match too_long {
            true => Err(refused("a write", AbortCode::from_errno(27))),
            false => start,
        }
    }

    /// Stores the written bytes: on each `close(2)`, where some may be left to write-back, and
    /// durably on `fsync(2)`.
    ///
    /// # Errors
    /// The server refuses the store. The bytes stay dirty, and the store is retried.
    pub async fn store(&self, durable: bool) -> Result<()> {
        if self.vnode.state.lock().life.is_silly_renamed() {
            // No program will ever read it from the server.
            return Ok(());
        }
        self.vnode.state.lock().opens.note_close();
        match durable {
            true => self.cache.write_back.store(&self.vnode, true).await?,
            false => self.cache.write_back.store_at_close(&self.vnode).await?,
        }
        match self.vnode.state.lock().stores.take_refused() {
            Some(code) => Err(refused("an earlier write or change of attributes", code)),
            None => Ok(()),
        }
    }

    /// The cache of the file.
    pub(crate) fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// The user who has it open.
    pub fn user(&self) -> &Arc<User> {
        &self.user
    }

    /// Closes the handle. The last close of a file stores it and releases its locks.
    pub async fn close(mut self) {
        self.open = false;
        let last = self.vnode.state.lock().opens.remove();
        if !last {
            return;
        }
        self.cache.names.remove_silly_rename(&self.vnode).await;
        let locked = self.cache.locks.is_locked(&self.vnode);
        let stored = match locked {
            true => self.cache.write_back.store(&self.vnode, false).await,
            false => self.cache.write_back.store_at_close(&self.vnode).await,
        };
        if let Some(error) = stored
            .err()
            .filter(|_| self.cache.creates.is_retried(&self.vnode))
        {
            tracing::warn!(fid = %self.vnode.fid(), %error, "not stored yet; the store is retried");
        }
        self.cache.locks.forget_locks(&self.vnode, false).await;
        self.vnode.body.lock().close();
        self.cache.reads.make_room(None);
    }
}
