//! Stores the dirty bytes and pending creates that an earlier cache manager left in the cache
//! directory, however it ended.
//!
//! They are stored as the user who wrote them, and only over the very version on which they are
//! based. In three cases they are put aside, with a text that says why. The server has another
//! version by now; the file is gone; or the bytes may be damaged. So nothing is overwritten, and
//! nothing is dropped. While the user has no token, or the server does not answer, they stay as
//! they are.
//!
//! One store may have been under way at the end. Then the server may have our bytes already, in the
//! version that follows ours. This is assumed if the server returns exactly the bytes that were
//! being stored. If only the length was being stored, this check is impossible.

use std::sync::Arc;

use cellar_cachestore::{FileKey, RecoveredChanges};
use cellar_wire::abort::AbortCode;

use crate::reads::local;
use crate::request::refused;
use crate::user::User;
use crate::vnode::Vnode;
use crate::write_back::WriteBack;
use cellar_client::cell::CellName;
use cellar_client::error::Result;
use cellar_client::mount_point::MountPoint;

/// The reason noted with a file that can no longer be created and is put aside.
const NAME_TAKEN: &str = "its name was taken in between, or its directory is gone";

/// While this lives, the server's answers about a file decide nothing about its recovered bytes.
struct Postponed<'a>(&'a Vnode);

impl<'a> Postponed<'a> {
    fn of(vnode: &'a Vnode) -> Self {
        vnode.body.lock().postpone(true);
        Self(vnode)
    }
}

impl Drop for Postponed<'_> {
    fn drop(&mut self) {
        self.0.body.lock().postpone(false);
    }
}

impl WriteBack {
    /// Stores what an earlier cache manager left in the cache directory. Called before the cache is
    /// used; `Cache::keep` retries the stores that fail.
    pub async fn recover(&self) {
        let Some(index) = self.vnodes.index() else {
            return;
        };
        let mut left = Vec::new();
        for place in index.dirty_files() {
            let vnode = match self.vnode_of(&place).await {
                Ok(vnode) => vnode,
                Err(error) => {
                    let (cell, fid) = &place;
                    tracing::warn!(%cell, %fid, %error, "not stored before the last end; the store is retried");
                    continue;
                }
            };
            if let Err(error) = self.creates.queue_recovered(&vnode).await {
                let fid = vnode.fid();
                tracing::warn!(%fid, %error, "not created before the last end; the create is retried");
                continue;
            }
            left.push(vnode);
        }
        for (vnode, error) in self.store_all(left).await {
            let fid = vnode.fid();
            let is_empty = !vnode.body.lock().is_changed();
            if error.code() == Some(AbortCode::EEXIST)
                && is_empty
                && self.creates.cancel_create(&vnode)
            {
                vnode.body.lock().put_aside(NAME_TAKEN);
                continue;
            }
            tracing::warn!(%fid, %error, "not stored before the last end; the store is retried");
        }
    }

    async fn vnode_of(&self, (cell, fid): &FileKey) -> Result<Arc<Vnode>> {
        let unknown = || refused(format!("cell {cell}"), AbortCode::ENOENT);
        let name = CellName::new(cell).map_err(|_| unknown())?;
        let known = self.env.cells.find(&name).await;
        let known = known.map_err(|_| unknown())?;
        let mount = MountPoint {
            read_write: true,
            cell: None,
            volume: fid.volume.0.to_string(),
        };
        let user = self.env.anonymous()?;
        let volume = user.client().mounted(None, &known.name, &mount).await?;
        self.vnodes.vnode(&volume, *fid)
    }

    /// Asks the server whether it has the recovered bytes or can take them. Afterwards, or after
    /// they were put aside, the file is like any other.
    pub(crate) async fn check_recovered(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        left_over: &RecoveredChanges,
    ) -> Result<()> {
        // The answer to the create has a version, too, perhaps one that contains our bytes.
        let postponed = left_over.in_doubt.map(|_| Postponed::of(vnode));
        if let Err(error) = self.creates.flush_create(vnode).await {
            let taken = [AbortCode::EEXIST, AbortCode::VNOVNODE, AbortCode::VNOVOL];
            let taken = error.code().is_some_and(|code| taken.contains(&code));
            if taken && self.creates.cancel_create(vnode) {
                vnode.body.lock().put_aside(NAME_TAKEN);
            }
            return Err(error);
        }
        let confirmed = match left_over.in_doubt {
            Some(piece) => self.compare_with_server(user, vnode, piece).await,
            None => Ok(()),
        };
        drop(postponed);
        let asked = match confirmed {
            // The server is asked even if the status is promised by now: while postponed, that
            // status decided nothing.
            Ok(()) if left_over.in_doubt.is_some() => {
                self.statuses.ask(user, vnode).await.map(|_| ())
            }
            Ok(()) => self.statuses.status(user, vnode).await.map(|_| ()),
            Err(error) => Err(error),
        };
        match asked {
            // This answer has put the bytes aside already.
            Err(error) if error.code() == Some(AbortCode::VNOVNODE) => Ok(()),
            other => other,
        }
    }

    /// Checks whether the server has the bytes that were being stored.
    async fn compare_with_server(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        (start, end, cut): (u64, u64, Option<u64>),
    ) -> Result<()> {
        let (pieces, reply) = self
            .statuses
            .fetch_without_status(user, vnode, start, end)
            .await?;
        let status = reply.status;
        let mut body = vnode.body.lock();
        let next = body.version().wrapping_add(1) == status.data_version && start < end;
        let like_ours =
            body.truncated_to() == cut && end <= status.length && status.length <= body.length();
        if next && like_ours && body.recovered().is_some() {
            let ours = body.read(start, end).map_err(|cause| local(vnode, cause))?;
            if pieces.concat() == ours {
                body.confirm_stored_piece(status.data_version);
            }
        }
        Ok(())
    }
}
