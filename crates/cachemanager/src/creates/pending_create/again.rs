//! Creates a file with an ordinary call, because the server has forgotten its reserved number, or
//! cannot create it in a call with others.

use std::net::SocketAddr;

use bytes::Bytes;
use cellar_wire::abort::AbortCode;
use cellar_wire::rxafs::{CreateFile, CreateFileReply, CreateResult};

use super::cause_of;
use crate::creates::Creates;
use crate::creates::create_queue::{Queue, Sent};
use cellar_client::error::Result;

impl Creates {
    /// Rule 6 of [`super`].
    pub(super) async fn make_again(&self, queue: &Queue, one: &Sent) {
        let (reply, by) = match self.create_again(queue, one).await {
            Ok(made) => made,
            // The name may be taken by this very file, from an earlier call, so this refusal is not
            // final.
            Err(error) => return self.failed(queue, one, (&error, &cause_of(&error))),
        };
        let Sent {
            vnode, directory, ..
        } = one;
        let fid = reply.fid;
        vnode.renumber(fid);
        let key = (vnode.key().0, fid);
        self.vnodes.insert(key, vnode);
        let result = CreateResult {
            code: AbortCode(0),
            status: reply.status,
            callback: reply.callback,
            lease_secs: 0,
        };
        self.note_created(queue, one, &result, by);
        let name = Bytes::copy_from_slice(one.create_arguments.name.as_bytes());
        self.promises
            .directory_changed(&queue.user, directory, &reply.dir_status, |listing| {
                listing.insert(name, fid);
            });
        tracing::info!(was = %vnode.key().1, %fid, "created under another number");
        let item = queue.state.lock().items.remove(&one.number);
        for sender in item.map(|item| item.waiting).unwrap_or_default() {
            let _gone = sender.send(Ok((reply.status, false)));
        }
    }

    async fn create_again(
        &self,
        queue: &Queue,
        one: &Sent,
    ) -> Result<(CreateFileReply, SocketAddr)> {
        let make = CreateFile {
            dir_fid: one.directory.fid(),
            name: one.create_arguments.name.clone(),
            in_status: one.create_arguments.in_status,
        };
        let what = format!("creating {}", one.vnode.fid());
        let client = queue.user.client();
        client
            .call_volume_at(one.directory.volume(), &what, &make)
            .await
    }
}
