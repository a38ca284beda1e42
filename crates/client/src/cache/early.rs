//! Making things in leased directories ([`super::leases`]) without asking the server.
//!
//! 1. A new vnode needs a number: the server reserves some for us, [`cellar_wire::rxafs::ReserveVnodes`].
//! 2. It needs a status to be shown. What the server would answer is known from what it answered when the same user last made
//!    such a thing in a directory with the same rights, owner and group: the first of its kind is made by asking.
//! 3. The name is free if our copy of the directory's names does not have it: it is promised, and nobody else changes it.
//! 4. What is made stands in the line of its volume and user before anybody is told ([`super::unborn`]), under the same lock that
//!    says whether the lease holds: whoever ends it finds all that was made.
//!
//! What the server refuses later (a quota, rights that changed, a name that somebody else has after all) is told to whoever closes
//! the file, as of bytes; directories and links without names of their own to be told are tried again, and listed when the mount ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use cellar_wire::abort::AbortCode;
use cellar_wire::acl::Rights;
use cellar_wire::ids::{Fid, Uniquifier, ViceId, VnodeId, VolumeId};
use cellar_wire::rxafs::{
    AfsFetchStatus, AfsPath, Callback, FileType, Making, RESERVE_MAX, ReserveVnodes,
};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::change::afs_name;
use super::entry::MadeHere;
use super::status::{Asked, refused};
use super::unborn::{Queue, Unborn};
use super::user::User;
use super::vnode::Vnode;
use super::{Cache, Key, Leases};
use crate::error::Result;
use crate::mount_point::VolumeKind;

/// Numbers that are asked for first; each time four times as many.
const RESERVE_FIRST: u32 = 64;
/// Names in a directory from which on the server is asked: it says when there is no room.
const NAMES_MAX: usize = 30_000;
/// Statuses that are remembered for rule 2.
const TEMPLATES_MAX: usize = 256;
/// For how long the status of what no server knows is shown without looking again.
const SHOWN_SECS: u32 = 600;
/// Mode bits that the server may refuse to set.
const SET_ID: u32 = 0o7000;

/// Everything that was made and not told.
#[derive(Debug, Default)]
pub(crate) struct Early {
    /// Things that servers have not been told of.
    pub(super) untold: AtomicUsize,
    pub(super) queues: Mutex<HashMap<(u32, VolumeId, u32), Arc<Queue>>>,
    /// Directories of which attributes wait.
    pub(super) late: super::late::Waiting,
    /// Servers are being told of some.
    pub(super) telling_late: AtomicBool,
    /// Volumes on servers that know no leases, and until when that is believed.
    pub(super) unknown: Mutex<HashMap<(u32, VolumeId), Instant>>,
    numbers: Mutex<HashMap<(u32, VolumeId), Numbers>>,
    templates: Mutex<HashMap<Template, AfsFetchStatus>>,
}

/// Numbers in a volume that are ours to give.
#[derive(Debug, Default)]
struct Numbers {
    files: Block,
    directories: Block,
    /// How many were asked for last.
    asked: u32,
}

#[derive(Debug, Default)]
struct Block {
    vnode: u32,
    uniquifier: u32,
    left: u32,
}

impl Block {
    fn take(&mut self) -> Option<(VnodeId, Uniquifier)> {
        self.left = self.left.checked_sub(1)?;
        let taken = (VnodeId(self.vnode), Uniquifier(self.uniquifier));
        self.vnode += 2;
        self.uniquifier += 1;
        Some(taken)
    }
}

/// Who made what kind of thing in what kind of directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Template {
    cell: u32,
    volume: VolumeId,
    user: u32,
    kind: FileType,
    rights: Rights,
    anonymous: Rights,
    owner: ViceId,
    group: ViceId,
}

impl Template {
    fn new(user: &User, (cell, fid): Key, directory: &AfsFetchStatus, kind: FileType) -> Self {
        Self {
            cell,
            volume: fid.volume,
            user: user.id(),
            kind,
            rights: directory.caller_access,
            anonymous: directory.anonymous_access,
            owner: directory.owner,
            group: directory.group,
        }
    }
}

/// What is to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct New<'a> {
    pub(crate) kind: FileType,
    pub(crate) mode: u32,
    /// Where a link leads.
    pub(crate) text: &'a [u8],
}

impl Cache {
    /// A server answered this of something that a user made in a directory.
    pub(crate) fn learn(
        &self,
        user: &User,
        directory: &Arc<Vnode>,
        dir_status: &AfsFetchStatus,
        status: &AfsFetchStatus,
    ) {
        self.made_by_asking(directory);
        let key = Template::new(user, directory.key, dir_status, status.file_type);
        let mut templates = self.early.templates.lock();
        if templates.len() >= TEMPLATES_MAX {
            templates.clear();
        }
        templates.insert(key, *status);
    }

    /// Makes something without asking, if that may be; `None`: the server has to be asked.
    ///
    /// # Errors
    /// There is something of that name.
    pub(crate) async fn make_early(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        name: &[u8],
        new: New<'_>,
    ) -> Result<Option<Arc<Vnode>>> {
        if self.options().leases == Leases::None
            || directory.volume.kind != VolumeKind::ReadWrite
            || new.mode & SET_ID != 0
        {
            return Ok(None);
        }
        let Some(template) = self.template(user, directory, new.kind) else {
            return Ok(None);
        };
        let afs = afs_name(name)?;
        if !self.has_lease(user, directory).await {
            return Ok(None);
        }
        let queue = self.queue(user, directory);
        if queue.is_full() {
            self.told(directory).await?;
        }
        let Some((vnode, uniquifier)) = self.number(user, directory, new.kind).await else {
            return Ok(None);
        };
        let (parent, now) = (directory.fid(), self.now());
        let fid = Fid {
            volume: parent.volume,
            vnode,
            uniquifier,
        };
        let making = Making {
            dir_vnode: parent.vnode,
            dir_uniquifier: parent.uniquifier,
            name: afs,
            vnode,
            uniquifier,
            kind: new.kind,
            in_status: self.new_status(new.mode),
            text: AfsPath::new(new.text.to_vec())
                .map_err(|_| refused("a symbolic link", AbortCode::from_errno(36)))?,
            length: 0,
        };
        let status = AfsFetchStatus {
            link_count: if new.kind == FileType::Directory {
                2
            } else {
                1
            },
            length: match new.kind {
                FileType::Directory => template.length,
                _ => new.text.len() as u64,
            },
            unix_mode: new.mode & 0o777,
            parent_vnode: parent.vnode,
            parent_uniquifier: parent.uniquifier,
            client_mod_time: now,
            server_mod_time: now,
            lock_count: 0,
            ..template
        };
        let made = self.unborn(user, directory, (fid, &status), new.text)?;
        let name = Bytes::copy_from_slice(name);
        let is_new = {
            let mut state = directory.state.lock();
            let state = &mut *state;
            // Rules 3 and 4.
            let leased = state.is_leased(Instant::now());
            let current = match &mut state.listing {
                Some((version, listing)) if leased => {
                    let known = state.status.as_mut().filter(|s| s.data_version == *version);
                    known.zip(Some(listing))
                }
                _ => None,
            };
            match current {
                Some((_, listing)) if listing.contains_key(&name) => Err(AbortCode::EEXIST),
                Some((of_directory, listing)) if listing.len() < NAMES_MAX => {
                    Arc::make_mut(listing).insert(name.clone(), fid);
                    of_directory.client_mod_time = now;
                    of_directory.server_mod_time = of_directory.server_mod_time.max(now);
                    state.untold += 1;
                    if let Some(late) = &mut state.late {
                        late.time_is_over();
                    }
                    if new.kind == FileType::Directory {
                        state.untold_directories += 1;
                        of_directory.link_count += 1;
                    }
                    self.early.untold.fetch_add(1, Ordering::AcqRel);
                    let number = queue.number();
                    made.state.lock().unborn = Some(Unborn {
                        queue: queue.clone(),
                        number,
                        name: name.clone(),
                    });
                    if new.kind == FileType::File {
                        made.body.lock().is_made(|| MadeHere {
                            directory: (parent.vnode, parent.uniquifier),
                            mode: new.mode,
                            name: name[..].into(),
                        });
                    }
                    queue.enter(number, &made, directory, (making, false));
                    Ok(true)
                }
                _ => Ok(false),
            }
        };
        match is_new {
            Ok(true) => Ok(Some(made)),
            other => {
                // Nobody has heard of it; its number is lost.
                self.vnodes.lock().remove(&made.key);
                match other {
                    Err(code) => Err(refused(String::from_utf8_lossy(&name), code)),
                    Ok(_) => Ok(None),
                }
            }
        }
    }

    /// Before whoever made something is answered: the server knows it, where nothing but files may be told later.
    ///
    /// # Errors
    /// The server does not take it, or says nothing: then it is not here either.
    pub(crate) async fn at_once(
        &self,
        directory: &Arc<Vnode>,
        name: &[u8],
        made: Arc<Vnode>,
    ) -> Result<Arc<Vnode>> {
        if self.options().leases == Leases::All {
            return Ok(made);
        }
        let Err(error) = self.born(&made).await else {
            return Ok(made);
        };
        if let Some((_, listing)) = &mut directory.state.lock().listing
            && listing.get(name) == Some(&made.fid())
        {
            Arc::make_mut(listing).remove(name);
        }
        self.never_born(&made);
        // A call that was not answered may be done still.
        self.undecided(&[directory]);
        Err(error)
    }

    /// A file without contents that no server was told of is to be made also after a crash.
    pub(crate) fn note_made(&self, vnode: &Arc<Vnode>) {
        let maker = {
            let state = vnode.state.lock();
            state
                .unborn
                .as_ref()
                .map(|unborn| unborn.queue.user().uid())
        };
        if let Some(maker) = maker {
            vnode.body.lock().note_made(maker, self.now());
        }
    }

    /// A file that an earlier cache manager made, which may not have told the server, stands in the line again.
    pub(crate) async fn made_before(&self, vnode: &Arc<Vnode>) -> Result<()> {
        let made = vnode.body.lock().made().cloned();
        let Some(made) = made.filter(|_| vnode.state.lock().unborn.is_none()) else {
            return Ok(());
        };
        let user = self.writer(vnode).await?;
        let (dir_vnode, dir_uniquifier) = made.directory;
        let directory = Fid {
            volume: vnode.fid().volume,
            vnode: dir_vnode,
            uniquifier: dir_uniquifier,
        };
        let directory = self.vnode(&vnode.volume, directory)?;
        let making = Making {
            dir_vnode,
            dir_uniquifier,
            name: afs_name(&made.name)?,
            vnode: vnode.fid().vnode,
            uniquifier: vnode.fid().uniquifier,
            kind: FileType::File,
            in_status: self.new_status(made.mode),
            text: AfsPath::default(),
            length: 0,
        };
        let queue = self.queue(&user, &directory);
        let number = queue.number();
        directory.state.lock().untold += 1;
        self.early.untold.fetch_add(1, Ordering::AcqRel);
        vnode.state.lock().unborn = Some(Unborn {
            queue: queue.clone(),
            number,
            name: Bytes::copy_from_slice(&made.name),
        });
        queue.enter(number, vnode, &directory, (making, true));
        Ok(())
    }

    /// What the server would answer, but for numbers and times.
    fn template(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        kind: FileType,
    ) -> Option<AfsFetchStatus> {
        let status = directory.promised(user)?;
        let needed = Rights::INSERT.union(Rights::LOOKUP);
        if !status.caller_access.contains(needed) {
            return None;
        }
        // Of somebody else's line the server may be told later than of this one.
        let unborn = {
            let state = directory.state.lock();
            state.unborn.as_ref().map(|unborn| unborn.queue.user_id())
        };
        if unborn.is_some_and(|id| id != user.id()) {
            return None;
        }
        let key = Template::new(user, directory.key, &status, kind);
        self.early.templates.lock().get(&key).copied()
    }

    /// The vnode, as programs see it until the server knows it.
    fn unborn(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        (fid, status): (Fid, &AfsFetchStatus),
        text: &[u8],
    ) -> Result<Arc<Vnode>> {
        let vnode = self.vnode(&directory.volume, fid)?;
        let callback = Callback {
            version: 1,
            expires_in_secs: SHOWN_SECS,
            callback_type: Callback::SHARED,
        };
        let asked = Asked::about(&vnode);
        self.heard(user, &vnode, status, Some((callback, asked)));
        let mut state = vnode.state.lock();
        match status.file_type {
            FileType::Directory => state.listing = Some((status.data_version, Arc::default())),
            FileType::Symlink => {
                state.link = Some((status.data_version, Bytes::copy_from_slice(text)));
            }
            FileType::File | FileType::Invalid => state.made = true,
        }
        drop(state);
        Ok(vnode)
    }

    /// A number for a vnode of that kind.
    async fn number(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        kind: FileType,
    ) -> Option<(VnodeId, Uniquifier)> {
        let key = (directory.key.0, directory.key.1.volume);
        let take = || {
            let mut numbers = self.early.numbers.lock();
            let ours = numbers.entry(key).or_default();
            match kind {
                FileType::Directory => ours.directories.take(),
                _ => ours.files.take(),
            }
        };
        if let Some(number) = take() {
            return Some(number);
        }
        let count = {
            let numbers = self.early.numbers.lock();
            let asked = numbers.get(&key).map_or(0, |ours| ours.asked);
            (asked * 4).clamp(RESERVE_FIRST, RESERVE_MAX)
        };
        let wanted = match kind {
            FileType::Directory => (0, count / 4),
            _ => (count, 0),
        };
        self.born(directory).await.ok()?;
        let reserve = ReserveVnodes {
            dir_fid: directory.fid(),
            files: wanted.0,
            directories: wanted.1,
        };
        let what = format!("numbers in {}", directory.volume.full_name());
        let client = user.client();
        let reply = match client.call_volume(&directory.volume, &what, &reserve).await {
            Ok(reply) => reply,
            Err(error) => {
                tracing::debug!(%error, "no numbers for new vnodes");
                return None;
            }
        };
        {
            let mut numbers = self.early.numbers.lock();
            let ours = numbers.entry(key).or_default();
            ours.asked = count;
            let first = reply.first_uniquifier.0;
            if reply.files > 0 {
                ours.files = Block {
                    vnode: reply.first_file.0,
                    uniquifier: first,
                    left: reply.files.min(RESERVE_MAX),
                };
            }
            if reply.directories > 0 {
                ours.directories = Block {
                    vnode: reply.first_directory.0,
                    uniquifier: first.saturating_add(reply.files),
                    left: reply.directories.min(RESERVE_MAX),
                };
            }
        }
        take()
    }

    /// The server does not know the numbers in a volume any more.
    pub(crate) fn forget_numbers(&self, directory: &Vnode) {
        let key = (directory.key.0, directory.key.1.volume);
        self.early.numbers.lock().remove(&key);
    }

    /// The line of a volume and user.
    fn queue(&self, user: &Arc<User>, directory: &Arc<Vnode>) -> Arc<Queue> {
        let key = (directory.key.0, directory.key.1.volume, user.id());
        let mut queues = self.early.queues.lock();
        let queue = queues
            .entry(key)
            .or_insert_with(|| Arc::new(Queue::new(&directory.volume, user)));
        queue.clone()
    }
}
