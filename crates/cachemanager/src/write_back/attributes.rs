//! Attributes that programs set: which of them are not sent, are sent with the bytes, or are sent
//! at once.
//!
//! 1. An attribute that already has the new value, by the promised status, is not sent, if the user
//!    may set it.
//! 2. Mode and times may wait for a file that a program of this machine has just created or
//!    written. Such a file is stored at close or in write-back, and the call that stores its last
//!    bytes carries them. Programs of this machine see them at once, and a cache directory keeps
//!    them like the bytes. The rights that the server gave show that it will accept them. If it
//!    refuses them anyway, the bytes are stored without them, and `close` or `fsync` returns the
//!    error.
//! 3. Only administrators may change owners and groups, and only the server knows the
//!    administrators. So such a change is sent at once. After a refusal, further changes of the
//!    same user in the volume fail for [`OWNERS_TIME`](crate::owner_refusals) without a
//!    call. The answer would be the same for every file.
//! 4. All other attributes are sent at once. They replace waiting values of the same attributes.

use std::sync::Arc;

use cellar_wire::abort::AbortCode;
use cellar_wire::acl::Rights;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{AfsFetchStatus, AfsStoreStatus, FileType, StoreData64};
use tokio::time::Instant;

use crate::request::refused;
use crate::statuses::rights_to_file;
use crate::user::User;
use crate::vnode::Vnode;
use crate::write_back::WriteBack;
use cellar_client::errno::errno;
use cellar_client::error::{Error, Result};

/// Mode bits that only administrators may set.
const SET_ID: u32 = 0o6000;
/// Mode bits that may be sent with the bytes.
const ORDINARY: u32 = 0o777;

/// Whether an error is a refusal that a retry does not change.
pub(crate) fn is_refusal(error: &Error) -> bool {
    let refusals = [AbortCode::EACCES, AbortCode::EPERM, AbortCode::EINVAL];
    error.code().is_some_and(|code| refusals.contains(&code))
}

/// Returns a refused store without its attributes, if it had any. The server may accept it.
pub(crate) fn without_attributes(stored: &StoreData64, error: &Error) -> Option<StoreData64> {
    let in_status = AfsStoreStatus {
        unix_mode: None,
        owner: None,
        group: None,
        ..stored.in_status
    };
    let is_less = in_status != stored.in_status && is_refusal(error);
    is_less.then(|| StoreData64 {
        in_status,
        ..stored.clone()
    })
}

impl WriteBack {
    /// Sets attributes for a program.
    ///
    /// # Errors
    /// The server's refusal.
    pub(crate) async fn set(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        mut set: AfsStoreStatus,
    ) -> Result<()> {
        let known = self.known_rights(user, vnode);
        if let Some((status, rights)) = &known {
            take_what_is_so(&mut set, &vnode.with_own_changes(*status), *rights);
        }
        if set == AfsStoreStatus::default() {
            return Ok(());
        }
        let of_owners = set.owner.is_some() || set.group.is_some();
        if of_owners && user.owners().were_refused(vnode.volume(), Instant::now()) {
            let what = format!("changing the owner of {}", vnode.fid());
            return Err(refused(what, AbortCode::EPERM));
        }
        let may_wait = known.is_some_and(|(status, rights)| {
            let is_ordinary = set.unix_mode.is_none_or(|mode| mode & !ORDINARY == 0);
            !of_owners && is_ordinary && may_set(&status, rights)
        });
        if may_wait && self.is_being_written(user, vnode) {
            let now = self.env.now();
            let set_later = |body: &mut cellar_cachestore::Body| {
                body.set_attributes(&set, now);
                Ok(())
            };
            self.changed(user, vnode, set_later).await?;
            // A store that is under way continues until nothing is left.
            let waits = vnode.is_open() || is_stored_now(vnode);
            if !waits && !self.store_later(vnode) {
                self.store(vnode, false).await?;
            }
            return Ok(());
        }
        // A store that is under way carries older attributes, which the server would apply last.
        // And if two answers have the same version, it is unknown which is newer. So this waits for
        // one call that stores, of 8 MiB at most.
        let _alone = vnode.store_turn.lock().await;
        match self.changes.set_status(user, vnode, set).await {
            Ok(_) => {
                vnode.body.lock().attributes_superseded(&set);
                self.finish_store(vnode);
                Ok(())
            }
            Err(error) => {
                if of_owners && error.code() == Some(AbortCode::EPERM) {
                    user.owners().refused(vnode.volume(), Instant::now());
                }
                Err(error)
            }
        }
    }

    /// The promised status and a user's rights, if both are known without a call.
    fn known_rights(&self, user: &User, vnode: &Arc<Vnode>) -> Option<(AfsFetchStatus, Rights)> {
        let status = vnode.promised(user)?;
        if vnode.is_directory() {
            return Some((status, status.caller_access));
        }
        let directory = Fid {
            volume: vnode.fid().volume,
            vnode: status.parent_vnode,
            uniquifier: status.parent_uniquifier,
        };
        let directory = self.vnodes.vnode(vnode.volume(), directory).ok()?;
        let of_directory = directory.promised(user)?.caller_access;
        Some((status, rights_to_file(status.caller_access, of_directory)))
    }

    /// Whether a file that this user created or wrote will soon be stored as this user. Then it is
    /// open, waits in the queue since its close, or is being stored.
    fn is_being_written(&self, user: &Arc<User>, vnode: &Arc<Vnode>) -> bool {
        let is_stored_now = is_stored_now(vnode);
        let state = vnode.state.lock();
        let by_user = |writer: &Arc<User>| writer.id() == user.id();
        let body = vnode.body.lock();
        (state.opens.is_open() || is_stored_now || vnode.store_turn.is_queued())
            && (state.opens.is_new() || body.is_changed())
            && state.stores.writer().is_none_or(by_user)
            && body.recovered().is_none()
    }

    /// Stores attributes if nothing else is dirty. Returns whether there were any.
    pub(crate) async fn store_attributes(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
    ) -> Result<bool> {
        let set = vnode.body.lock().unstored_attributes();
        if set == AfsStoreStatus::default() {
            return Ok(false);
        }
        match self.changes.set_status(user, vnode, set).await {
            Ok(_) => {
                vnode.body.lock().attributes_stored(&set, None);
                vnode.state.lock().stores.set_failed(None);
            }
            Err(error) if is_refusal(&error) => self.attributes_refused(vnode, &set, &error),
            Err(error) => {
                let errno = Some(errno(&error));
                vnode.state.lock().stores.set_failed(errno);
                return Err(error);
            }
        }
        Ok(true)
    }

    /// Handles a refusal of attributes: they get the server's values again, and the next close of
    /// the file returns the error.
    pub(crate) fn attributes_refused(
        &self,
        vnode: &Arc<Vnode>,
        set: &AfsStoreStatus,
        error: &Error,
    ) {
        tracing::info!(fid = %vnode.fid(), %error, "the server refused attributes");
        vnode.body.lock().attributes_stored(set, None);
        vnode.state.lock().stores.set_refused(error.code());
        self.promises.invalidate_attributes(vnode);
    }
}

/// Whether a store of the file is under way.
pub(crate) fn is_stored_now(vnode: &Vnode) -> bool {
    vnode.store_turn.is_taken()
}

/// Whether these rights allow to set mode and times. Source: OpenAFS's file server, its answers to
/// StoreStatus.
fn may_set(status: &AfsFetchStatus, rights: Rights) -> bool {
    match status.file_type {
        FileType::Directory => rights.intersects(Rights::INSERT.union(Rights::DELETE)),
        FileType::File => {
            let owns = rights.contains(Rights::ADMINISTER.union(Rights::INSERT));
            owns || rights.contains(Rights::WRITE)
        }
        FileType::Symlink | FileType::Invalid => false,
    }
}

/// Rule 1.
fn take_what_is_so(set: &mut AfsStoreStatus, status: &AfsFetchStatus, rights: Rights) {
    if !may_set(status, rights) {
        return;
    }
    set.unix_mode = set
        .unix_mode
        .filter(|mode| *mode != status.unix_mode & 0o7777);
    if status.unix_mode & SET_ID == 0 {
        set.owner = set.owner.filter(|owner| *owner != status.owner);
        set.group = set.group.filter(|group| *group != status.group);
    }
}
