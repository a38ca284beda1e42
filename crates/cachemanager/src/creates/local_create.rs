//! Local create: creates files in leased directories (`creates/leases.rs`) without a call to the
//! server.
//!
//! 1. A new file needs a vnode number. The server reserves some for us,
//!    [`cellar_wire::rxafs::ReserveVnodes`].
//! 2. A new file needs a status. The server's answer is predictable from an earlier one: the same
//!    user created a file in a directory with the same rights, owner and group. So the first such
//!    file is created by a call to the server.
//! 3. The name is free if our copy of the directory's names does not have it. The copy is promised,
//!    and no other client changes the directory.
//! 4. The file enters the queue of its volume and user (`creates/pending_create.rs`) before the
//!    program is answered. This happens under the lock under which the lease is checked. So the end
//!    of the lease finds all files that were created.
//!
//! The server may refuse later: a quota, changed rights, or a name that another client has after
//! all. The close of the file returns this error, as it does for bytes. Directories and links are
//! created by a call: no close could return the error.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cellar_cachestore::LocalCreate;
use cellar_wire::AfsName;
use cellar_wire::abort::AbortCode;
use cellar_wire::acl::Rights;
use cellar_wire::ids::{Fid, Uniquifier, ViceId, VnodeId, VolumeId};
use cellar_wire::rxafs::{
    AfsFetchStatus, AfsPath, Callback, CreateRequest, FileType, RESERVE_MAX, ReserveVnodes,
};
use tokio::time::Instant;

use crate::Leases;
use crate::creates::Creates;
use crate::creates::create_queue::{Pending, Queue};
use crate::promises::status_request::StatusRequest;
use crate::request::afs_name;
use crate::request::refused;
use crate::user::User;
use crate::vnode::Key;
use crate::vnode::Vnode;
use cellar_client::error::Result;
use cellar_client::mount_point::VolumeKind;

/// How many numbers are reserved first. Each further reservation asks for four times as many.
const RESERVE_FIRST: u32 = 64;
/// The number of names in a directory from which on files are created by a call. The server returns
/// the error if there is no room.
const NAMES_MAX: usize = 30_000;
/// The most statuses kept for rule 2.
const TEMPLATES_MAX: usize = 256;
/// The time for which the status of a pending create is shown without a check.
const SHOWN_SECS: u32 = 600;
/// Mode bits that the server may refuse to set.
const SET_ID: u32 = 0o7000;

/// Vnode numbers of a volume that are reserved for us.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    vnode: u32,
    uniquifier: u32,
    left: u32,
    /// The size of the last reservation.
    asked: u32,
}

impl Numbers {
    fn take(&mut self) -> Option<(VnodeId, Uniquifier)> {
        self.left = self.left.checked_sub(1)?;
        let taken = (VnodeId(self.vnode), Uniquifier(self.uniquifier));
        self.vnode += 2;
        self.uniquifier += 1;
        Some(taken)
    }
}

/// The facts that determine the status of a new file: its creator and the kind of its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Template {
    cell: u32,
    volume: VolumeId,
    user: u32,
    rights: Rights,
    anonymous: Rights,
    owner: ViceId,
    group: ViceId,
}

impl Template {
    fn new(user: &User, (cell, fid): Key, directory: &AfsFetchStatus) -> Self {
        Self {
            cell,
            volume: fid.volume,
            user: user.id(),
            rights: directory.caller_access,
            anonymous: directory.anonymous_access,
            owner: directory.owner,
            group: directory.group,
        }
    }
}

impl Creates {
    /// Remembers the server's status of a file that a user created in a directory.
    pub(crate) fn learn(
        &self,
        user: &User,
        directory: &Arc<Vnode>,
        dir_status: &AfsFetchStatus,
        status: &AfsFetchStatus,
    ) {
        self.note_created_by_call(directory);
        let key = Template::new(user, directory.key(), dir_status);
        let mut templates = self.templates.lock();
        if templates.len() >= TEMPLATES_MAX {
            templates.clear();
        }
        templates.insert(key, *status);
    }

    /// Creates a file locally if that is allowed. `None`: it must be created by a call.
    ///
    /// # Errors
    /// The name exists.
    pub(crate) async fn create_locally(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        name: &[u8],
        mode: u32,
    ) -> Result<Option<Arc<Vnode>>> {
        if self.env.options.leases == Leases::None
            || directory.volume().kind != VolumeKind::ReadWrite
            || mode & SET_ID != 0
        {
            return Ok(None);
        }
        let Some(template) = self.template(user, directory) else {
            return Ok(None);
        };
        let afs = afs_name(name)?;
        if !self.has_lease(user, directory).await {
            return Ok(None);
        }
        let queue = self.queue(user, directory);
        if queue.is_full() {
            self.send_queue(&queue, None).await;
        }
        let Some((vnode, uniquifier)) = self.number(user, directory).await else {
            return Ok(None);
        };
        let (parent, now) = (directory.fid(), self.env.now());
        let fid = Fid {
            volume: parent.volume,
            vnode,
            uniquifier,
        };
        let create_arguments = self.create_arguments(parent, afs, fid, mode);
        let status = AfsFetchStatus {
            link_count: 1,
            length: 0,
            unix_mode: mode & 0o777,
            parent_vnode: parent.vnode,
            parent_uniquifier: parent.uniquifier,
            client_mod_time: now,
            server_mod_time: now,
            lock_count: 0,
            ..template
        };
        let made = self.show_pending(user, directory, fid, &status)?;
        let name = Bytes::copy_from_slice(name);
        let is_new = {
            let mut state = directory.state.lock();
            let state = &mut *state;
            // Rules 3 and 4.
            let leased = state.lease.holds(Instant::now());
            let known = state.status.last().filter(|_| leased);
            let current = known.and_then(|status| state.contents.listing_mut(status.data_version));
            match current {
                Some(listing) if listing.contains_key(&name) => Err(AbortCode::EEXIST),
                Some(listing) if listing.len() < NAMES_MAX => {
                    Arc::make_mut(listing).insert(name.clone(), fid);
                    state.status.local_create_at(now);
                    state.lease.add_pending();
                    self.pending_creates.fetch_add(1, Ordering::AcqRel);
                    let number = queue.number();
                    made.state.lock().life.create_pending(Pending {
                        queue: queue.clone(),
                        number,
                        name: name.clone(),
                    });
                    made.body.lock().set_local_create(|| LocalCreate {
                        directory: (parent.vnode, parent.uniquifier),
                        mode,
                        name: name[..].into(),
                    });
                    queue.enter(number, &made, directory, (create_arguments, false));
                    Ok(true)
                }
                _ => Ok(false),
            }
        };
        match is_new {
            Ok(true) => Ok(Some(made)),
            other => {
                // No program knows the vnode. Its number is lost.
                self.vnodes.remove(made.key());
                match other {
                    Err(code) => Err(refused(String::from_utf8_lossy(&name), code)),
                    Ok(_) => Ok(None),
                }
            }
        }
    }

    /// The arguments of the create for the server.
    fn create_arguments(
        &self,
        directory: Fid,
        name: AfsName,
        fid: Fid,
        mode: u32,
    ) -> CreateRequest {
        CreateRequest {
            dir_vnode: directory.vnode,
            dir_uniquifier: directory.uniquifier,
            name,
            vnode: fid.vnode,
            uniquifier: fid.uniquifier,
            kind: FileType::File,
            in_status: self.env.new_status(mode),
            text: AfsPath::default(),
            length: 0,
        }
    }

    /// Makes a pending create without contents survive a crash, by a record in the cache directory.
    pub(crate) fn record_pending(&self, vnode: &Arc<Vnode>) {
        let creator = {
            let state = vnode.state.lock();
            state
                .life
                .pending()
                .map(|pending| pending.queue.user().uid())
        };
        if let Some(creator) = creator {
            vnode.body.lock().record_create(creator, self.env.now());
        }
    }

    /// Puts a file into the queue that an earlier cache manager created locally. The server may
    /// know it already.
    pub(crate) async fn queue_recovered(&self, vnode: &Arc<Vnode>) -> Result<()> {
        let made = vnode.body.lock().local_create().cloned();
        let Some(made) = made.filter(|_| vnode.state.lock().life.pending().is_none()) else {
            return Ok(());
        };
        let user = self.vnodes.writer(vnode).await?;
        let (dir_vnode, dir_uniquifier) = made.directory;
        let directory = Fid {
            volume: vnode.fid().volume,
            vnode: dir_vnode,
            uniquifier: dir_uniquifier,
        };
        let create_arguments =
            self.create_arguments(directory, afs_name(&made.name)?, vnode.fid(), made.mode);
        let directory = self.vnodes.vnode(vnode.volume(), directory)?;
        let queue = self.queue(&user, &directory);
        let number = queue.number();
        directory.state.lock().lease.add_pending();
        self.pending_creates.fetch_add(1, Ordering::AcqRel);
        vnode.state.lock().life.create_pending(Pending {
            queue: queue.clone(),
            number,
            name: Bytes::copy_from_slice(&made.name),
        });
        queue.enter(number, vnode, &directory, (create_arguments, true));
        Ok(())
    }

    /// The status that the server would answer, except for numbers and times.
    fn template(&self, user: &Arc<User>, directory: &Arc<Vnode>) -> Option<AfsFetchStatus> {
        let status = directory.promised(user)?;
        let needed = Rights::INSERT.union(Rights::LOOKUP);
        if !status.caller_access.contains(needed) {
            return None;
        }
        let key = Template::new(user, directory.key(), &status);
        self.templates.lock().get(&key).copied()
    }

    /// Returns the vnode with the status that programs see until the server knows the file.
    fn show_pending(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        fid: Fid,
        status: &AfsFetchStatus,
    ) -> Result<Arc<Vnode>> {
        let vnode = self.vnodes.vnode(directory.volume(), fid)?;
        let callback = Callback {
            version: 1,
            expires_in_secs: SHOWN_SECS,
            callback_type: Callback::SHARED,
        };
        let asked = StatusRequest::about(&vnode);
        self.promises
            .apply_status(user, &vnode, status, Some((callback, asked)));
        vnode.state.lock().opens.created();
        Ok(vnode)
    }

    /// Returns a reserved number for a file.
    async fn number(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
    ) -> Option<(VnodeId, Uniquifier)> {
        let key = (directory.key().0, directory.key().1.volume);
        let files = {
            let mut numbers = self.numbers.lock();
            let ours = numbers.entry(key).or_default();
            if let Some(number) = ours.take() {
                return Some(number);
            }
            (ours.asked * 4).clamp(RESERVE_FIRST, RESERVE_MAX)
        };
        let reserve = ReserveVnodes {
            dir_fid: directory.fid(),
            files,
            directories: 0,
        };
        let what = format!("vnode numbers in {}", directory.volume().full_name());
        let client = user.client();
        let reply = match client
            .call_volume(directory.volume(), &what, &reserve)
            .await
        {
            Ok(reply) => reply,
            Err(error) => {
                tracing::debug!(%error, "no vnode numbers for new files");
                return None;
            }
        };
        let mut ours = Numbers {
            vnode: reply.first_file.0,
            uniquifier: reply.first_uniquifier.0,
            left: reply.files.min(RESERVE_MAX),
            asked: files,
        };
        let taken = ours.take();
        self.numbers.lock().insert(key, ours);
        taken
    }

    /// Forgets the reserved numbers of a volume, because the server does not know them any more.
    pub(crate) fn forget_numbers(&self, directory: &Vnode) {
        let key = (directory.key().0, directory.key().1.volume);
        self.numbers.lock().remove(&key);
    }

    /// Returns the queue of a volume and user.
    fn queue(&self, user: &Arc<User>, directory: &Arc<Vnode>) -> Arc<Queue> {
        let key = (directory.key().0, directory.key().1.volume, user.id());
        let mut queues = self.queues.lock();
        let queue = queues
            .entry(key)
            .or_insert_with(|| Arc::new(Queue::new(directory.volume(), user)));
        queue.clone()
    }
}
