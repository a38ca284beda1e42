//! Open files, their lengths and attributes, and the room in their volume.

use std::sync::Arc;

use cellar_wire::abort::AbortCode;
use cellar_wire::acl::Rights;
use cellar_wire::ids::{AfsTime, ViceId};
use cellar_wire::rxafs::{AfsStoreStatus, FileType, GetVolumeStatus};

use super::Cache;
use super::read::Course;
use super::status::refused;
use super::user::User;
use super::vnode::{Attributes, Vnode};
use crate::error::Result;
use crate::volume::Volume;

/// The largest file, as AFS's 64-bit calls have it.
pub(crate) const LENGTH_MAX: u64 = i64::MAX as u64;

/// An open file. [`Handle::close`] must be called.
#[derive(Debug)]
pub struct Handle {
    cache: Arc<Cache>,
    user: Arc<User>,
    vnode: Arc<Vnode>,
    course: Course,
    open: bool,
}

impl Drop for Handle {
    /// One that was not closed, because whoever opened it gave up: the file is open once less all the same.
    fn drop(&mut self) {
        if self.open {
            let mut state = self.vnode.state.lock();
            state.opens = state.opens.saturating_sub(1);
        }
    }
}

/// What a program wants changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The low 12 bits of the mode.
    pub mode: Option<u32>,
    /// The owner.
    pub owner: Option<ViceId>,
    /// The group.
    pub group: Option<ViceId>,
    /// The length.
    pub length: Option<u64>,
    /// The time of change.
    pub modified: Option<AfsTime>,
}

/// The room in a volume, in KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// What there is: the quota, or the partition where there is none.
    pub total: u64,
    /// What is free of it, and of the partition.
    pub free: u64,
}

impl Cache {
    /// Opens a file. `cut`: its contents go.
    ///
    /// # Errors
    /// `EACCES`; `EISDIR`; the server's.
    pub async fn open(
        self: &Arc<Self>,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        wanted: Rights,
        cut: bool,
    ) -> Result<Handle> {
        self.audience.told(vnode).await;
        let status = self.status(user, vnode).await?;
        if status.file_type == FileType::Directory {
            return Err(refused("opening a directory", AbortCode::EISDIR));
        }
        // open(2) lets a program cut what it opens to read.
        let wanted = match cut {
            true => wanted.union(Rights::WRITE),
            false => wanted,
        };
        if wanted.contains(Rights::WRITE) && vnode.volume.is_read_only() {
            return Err(refused("opening a file to write", AbortCode::EROFS));
        }
        self.may(user, vnode, wanted).await?;
        let handle = self.opened(user, vnode);
        if !cut {
            self.lengthen(user, vnode).await;
        }
        self.audience.told(vnode).await;
        if cut {
            let now = self.now();
            let changed = self
                .changed(user, vnode, |body| body.set_length(0, now))
                .await;
            if let Err(error) = changed {
                handle.close().await;
                return Err(error);
            }
        }
        Ok(handle)
    }

    /// A handle of a file that its user has just made.
    pub fn opened(self: &Arc<Self>, user: &Arc<User>, vnode: &Arc<Vnode>) -> Handle {
        {
            let mut state = vnode.state.lock();
            state.opens += 1;
            state.opener = Some(user.clone());
        }
        Handle {
            cache: self.clone(),
            user: user.clone(),
            vnode: vnode.clone(),
            course: Course::default(),
            open: true,
        }
    }

    /// Changes attributes. `open`: the program has the file open to write, whatever its mode is now.
    ///
    /// # Errors
    /// The server's refusal; `EISDIR` for the length of a directory.
    pub async fn set_attributes(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        wanted: Wanted,
        open: bool,
    ) -> Result<Attributes> {
        if let Some(length) = wanted.length {
            let status = self.status(user, vnode).await?;
            if status.file_type != FileType::File {
                return Err(refused("the length of a directory", AbortCode::EISDIR));
            }
            if length > LENGTH_MAX {
                return Err(refused("a length", AbortCode::from_errno(27)));
            }
            if vnode.volume.is_read_only() {
                return Err(refused("a length", AbortCode::EROFS));
            }
            if !open {
                self.may(user, vnode, Rights::WRITE).await?;
            }
            let now = self.now();
            self.changed(user, vnode, |body| body.set_length(length, now))
                .await?;
            // Nobody will close it, who would hear what the server says.
            if vnode.state.lock().opens == 0 {
                self.store(vnode, false).await?;
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
            self.set(user, vnode, set).await?;
        }
        self.attributes_now(user, vnode).await
    }

    /// The room in a volume.
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

    /// Bytes from `start`, at most `length`; fewer only at the end.
    ///
    /// # Errors
    /// The server's; our own cache's.
    pub async fn read(&self, start: u64, length: u64) -> Result<Vec<u8>> {
        self.vnode.hold_contents();
        self.cache
            .read_file(&self.user, &self.vnode, &self.course, start, length)
            .await
    }

    /// Gives all of a file of at most `most` bytes away, if it is here and not empty; counts as a read of it. Programs here do not
    /// change it meanwhile. Answers whether it was given, and is still what it was then: whoever has it is told of what comes later.
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
            body.contents()
        };
        cache.read_all(user, vnode, &status);
        // A promise that is being broken is counted first, and then ended, and then that is told.
        let is_same = (vnode.breaks(), vnode.contents()) == (breaks, contents);
        let holds = is_same && vnode.promised(user).is_some();
        if !holds {
            cache.take_back(vnode);
        }
        holds
    }

    /// Puts bytes at `start`.
    ///
    /// # Errors
    /// `EFBIG`; our own cache's; the server's, where too much waited to be stored already.
    pub async fn write(&self, start: u64, bytes: &[u8]) -> Result<()> {
        if start.saturating_add(bytes.len() as u64) > LENGTH_MAX {
            return Err(refused("a write", AbortCode::from_errno(27)));
        }
        self.vnode.hold_contents();
        self.cache.has_room_for(&self.vnode)?;
        let now = self.cache.now();
        self.cache
            .changed(&self.user, &self.vnode, |body| {
                body.write(start, bytes, now)
            })
            .await
    }

    /// Puts bytes at the end, and answers where that was: behind what the server has by now and what programs here
    /// wrote. Where nothing is promised about the file any more, the server is asked. What others store after that answer
    /// and before these bytes are stored is written over, if no lock prevents it.
    ///
    /// # Errors
    /// As [`Handle::write`]; the server's, when it is asked.
    pub async fn append(&self, bytes: &[u8]) -> Result<u64> {
        let (cache, vnode) = (&self.cache, &self.vnode);
        vnode.hold_contents();
        cache.has_room_for(vnode)?;
        cache.status(&self.user, vnode).await?;
        if vnode.body.lock().has_to_judge() {
            // What the server said meanwhile counts when that store has ended.
            drop(vnode.storing.lock().await);
        }
        let now = cache.now();
        let mut too_long = false;
        let put = |body: &mut super::Body| {
            let start = body.length();
            too_long = start.saturating_add(bytes.len() as u64) > LENGTH_MAX;
            if too_long {
                return Err(std::io::ErrorKind::FileTooLarge.into());
            }
            body.write(start, bytes, now)?;
            Ok(start)
        };
        let start = cache.changed(&self.user, vnode, put).await;
        match too_long {
            true => Err(refused("a write", AbortCode::from_errno(27))),
            false => start,
        }
    }

    /// Stores what was written: on each `close(2)`, where some of it may wait, and durably on `fsync(2)`.
    ///
    /// # Errors
    /// The server does not take it: it stays here, and is tried again.
    pub async fn store(&self, durable: bool) -> Result<()> {
        if self.vnode.state.lock().life.is_silly_renamed() {
            // Nobody will ever read it from the server.
            return Ok(());
        }
        self.vnode.state.lock().made = false;
        match durable {
            true => self.cache.store(&self.vnode, true).await?,
            false => self.cache.store_at_close(&self.vnode).await?,
        }
        match self.vnode.state.lock().refused.take() {
            Some(code) => Err(refused("what was written or set before", code)),
            None => Ok(()),
        }
    }

    /// Whose it is.
    pub(crate) fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Who has it open.
    pub fn user(&self) -> &Arc<User> {
        &self.user
    }

    /// The file is open once less.
    pub async fn close(mut self) {
        self.open = false;
        let last = {
            let mut state = self.vnode.state.lock();
            state.opens = state.opens.saturating_sub(1);
            state.opens == 0
        };
        if !last {
            return;
        }
        self.cache.remove_silly_rename(&self.vnode).await;
        let locked = self.cache.is_locked(&self.vnode);
        let stored = match locked {
            true => self.cache.store(&self.vnode, false).await,
            false => self.cache.store_at_close(&self.vnode).await,
        };
        if let Some(error) = stored.err().filter(|_| self.cache.still_waits(&self.vnode)) {
            tracing::warn!(fid = %self.vnode.fid(), %error, "not stored yet; it is tried again");
        }
        self.cache.forget_locks(&self.vnode, false).await;
        self.vnode.body.lock().close();
        self.cache.make_room(None);
    }
}
