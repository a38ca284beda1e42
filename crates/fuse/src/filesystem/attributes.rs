//! The kernel's requests for attributes of a vnode and of its volume.

use cellar_cachemanager::NewAttributes;
use fuser::{Errno, FileHandle, INodeNo, ReplyAttr, ReplyData, ReplyStatfs, ReplyXattr, Request};

use super::Filesystem;
use crate::xattr;

/// The block size of `statfs`.
const BLOCK: u32 = 1024;

impl Filesystem {
    /// Answers with the attributes.
    pub(super) fn send_attributes(&self, request: &Request, number: INodeNo, reply: ReplyAttr) {
        let (requests, uid) = (self.requests.clone(), request.uid());
        let caller = self.caller(request);
        self.run(async move {
            match requests
                .within(&caller, requests.attributes(uid, number))
                .await
            {
                Ok((attr, time)) => reply.attr(&time, &attr),
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// Sets attributes. `kills`: set-id bits are removed.
    pub(super) fn set_attributes(
        &self,
        request: &Request,
        number: INodeNo,
        (wanted, handle, kills): (NewAttributes, Option<FileHandle>, bool),
        reply: ReplyAttr,
    ) {
        let (requests, uid) = (self.requests.clone(), request.uid());
        let caller = self.caller(request);
        self.run(async move {
            let handle = handle.map(|handle| handle.0);
            let set = requests.set_attributes(uid, number, wanted, handle, kills);
            match requests.within(&caller, set).await {
                Ok((attr, time)) => reply.attr(&time, &attr),
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// Answers with the text of a symbolic link.
    pub(super) fn send_link_text(&self, request: &Request, number: INodeNo, reply: ReplyData) {
        let (requests, uid) = (self.requests.clone(), request.uid());
        let caller = self.caller(request);
        self.run(async move {
            match requests
                .within(&caller, requests.link_text(uid, number))
                .await
            {
                Ok(text) => reply.data(&text),
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// Answers with the size and free space of a volume.
    pub(super) fn send_room(&self, request: &Request, number: INodeNo, reply: ReplyStatfs) {
        let (requests, uid) = (self.requests.clone(), request.uid());
        let caller = self.caller(request);
        self.run(async move {
            match requests.within(&caller, requests.room(uid, number)).await {
                Ok((all, free)) => reply.statfs(all, free, free, 0, 0, BLOCK, 255, BLOCK),
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// Answers with an extended attribute, or with its size if `size` is 0.
    pub(super) fn send_xattr(
        &self,
        request: &Request,
        number: INodeNo,
        (name, size): (Vec<u8>, u32),
        reply: ReplyXattr,
    ) {
        if !xattr::is_ours(&name) {
            reply.error(Errno::EOPNOTSUPP);
            return;
        }
        let (requests, uid) = (self.requests.clone(), request.uid());
        let caller = self.caller(request);
        self.run(async move {
            match requests
                .within(&caller, requests.xattr(uid, number, &name))
                .await
            {
                Ok(value) if size == 0 => reply.size(value.len() as u32),
                Ok(value) if value.len() <= size as usize => reply.data(&value),
                Ok(_) => reply.error(Errno::ERANGE),
                Err(errno) => reply.error(errno),
            }
        });
    }
}
