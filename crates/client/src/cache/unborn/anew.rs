//! What was to be made under a number that the server has forgotten, or could not be made with others: it is made by asking.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use cellar_wire::AfsName;
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::Fid;
use cellar_wire::package::Procedure;
use cellar_wire::rxafs::{
    AfsFetchStatus, AfsStoreStatus, Callback, CreateFile, FileType, Made, MakeDir, Symlink,
};

use super::{Queue, Sent, cause_of};
use crate::cache::Cache;
use crate::cache::user::User;
use crate::error::Result;

/// What a procedure answers.
type Reply<P> = <P as Procedure>::Reply;
/// What was made, the directory's status, and who said so.
type Answer = (Fid, Made, AfsFetchStatus, SocketAddr);

impl Cache {
    /// Rule 6.
    pub(super) async fn make_anew(&self, queue: &Queue, one: &Sent) {
        let (status, name) = (one.making.in_status, one.making.name.clone());
        let made = self.create_anew(&queue.user, one, (name, status)).await;
        let (fid, made, dir_status, by) = match made {
            Ok(made) => made,
            // Also a name that is taken may be so by itself: it is asked again.
            Err(error) => return self.failed(queue, one, (&error, &cause_of(&error))),
        };
        let Sent {
            vnode, directory, ..
        } = one;
        let _once = vnode.renumbered.set(fid);
        let key = (vnode.key.0, fid);
        self.vnodes.lock().insert(key, vnode.clone());
        if vnode.is_directory() {
            let mut state = vnode.state.lock();
            if let Some((version, _)) = &mut state.listing {
                *version = made.status.data_version;
            }
        }
        self.is_born(queue, one, (0, &made), by);
        let name = Bytes::copy_from_slice(one.making.name.as_bytes());
        self.directory_changed(&queue.user, directory, &dir_status, |listing| {
            listing.insert(name, fid);
        });
        tracing::info!(was = %vnode.key.1, %fid, "made under another number");
        let item = queue.line.lock().items.remove(&one.number);
        for sender in item.map(|item| item.waiting).unwrap_or_default() {
            let _gone = sender.send(Ok((made.status, false)));
        }
    }

    /// Makes it by asking.
    async fn create_anew(
        &self,
        user: &Arc<User>,
        one: &Sent,
        (name, in_status): (AfsName, AfsStoreStatus),
    ) -> Result<Answer> {
        let dir_fid = one.directory.fid();
        match one.making.kind {
            FileType::Directory => {
                let make = MakeDir {
                    dir_fid,
                    name,
                    in_status,
                };
                let taken = |r: Reply<MakeDir>| (r.fid, r.status, r.dir_status, r.callback);
                self.ask_for(user, one, &make, taken).await
            }
            FileType::Symlink => {
                let make = Symlink {
                    dir_fid,
                    name,
                    link_contents: one.making.text.clone(),
                    in_status,
                };
                let taken = |r: Reply<Symlink>| (r.fid, r.status, r.dir_status, Callback::NONE);
                self.ask_for(user, one, &make, taken).await
            }
            FileType::File | FileType::Invalid => {
                let make = CreateFile {
                    dir_fid,
                    name,
                    in_status,
                };
                let taken = |r: Reply<CreateFile>| (r.fid, r.status, r.dir_status, r.callback);
                self.ask_for(user, one, &make, taken).await
            }
        }
    }

    async fn ask_for<P: Procedure>(
        &self,
        user: &Arc<User>,
        one: &Sent,
        make: &P,
        taken: impl FnOnce(P::Reply) -> (Fid, AfsFetchStatus, AfsFetchStatus, Callback),
    ) -> Result<Answer> {
        let what = format!("making {}", one.vnode.fid());
        let call = user
            .client()
            .call_volume_at(&one.directory.volume, &what, make);
        let (reply, by) = call.await?;
        let (fid, status, dir_status, callback) = taken(reply);
        let made = Made {
            code: AbortCode(0),
            status,
            callback,
            lease_secs: 0,
        };
        Ok((fid, made, dir_status, by))
    }
}
