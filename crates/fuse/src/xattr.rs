//! Extended attributes `afs.*`, with the names of Linux's own AFS client, so that scripts work with
//! both. They are not listed.
//!
//! Source: observed in Linux (`fs/afs/xattr.c`). `afs.acl` is the access list's text and can be
//! set; `afs.cell`, `afs.volume` and `afs.fid` (volume:vnode:uniquifier, hexadecimal) cannot.
//! `afs.yfs.*` belongs to other servers. The attributes of [`crate::control`] are our own.

use cellar_cachemanager::Vnode;
use cellar_wire::rxafs::{AfsOpaque, FetchACL};
use fuser::{Errno, INodeNo};

use crate::control;
use crate::inodes::Node;
use crate::requests::{Answer, Requests, code};

/// Flag of setxattr(2): the attribute must not exist yet.
const XATTR_CREATE: i32 = 1;

/// Returns whether a name has our prefix. Every write of a program asks for an attribute that has
/// not.
pub(crate) fn is_ours(name: &[u8]) -> bool {
    name.starts_with(b"afs.")
}

fn fid(vnode: &Vnode) -> String {
    let fid = vnode.fid();
    format!(
        "{:x}:{:x}:{:x}",
        fid.volume.0, fid.vnode.0, fid.uniquifier.0
    )
}

impl Requests {
    async fn with_attributes(&self, uid: u32, number: INodeNo) -> Answer<std::sync::Arc<Vnode>> {
        self.find_root(uid, number).await?;
        match self.node(number)? {
            Node::Vnode(vnode) => {
                // A program that reads the fid will use it at the server, so the server must know
                // the file.
                self.cache
                    .creates()
                    .flush_pending(&vnode)
                    .await
                    .map_err(code)?;
                Ok(vnode)
            }
            Node::Cells | Node::Volumes | Node::Cell(_) | Node::Link(_) => Err(Errno::EOPNOTSUPP),
        }
    }

    pub(crate) async fn xattr(&self, uid: u32, number: INodeNo, name: &[u8]) -> Answer<Vec<u8>> {
        if name == control::HEARD.as_bytes() {
            self.cache.management().wait_for_notices().await;
            return Ok(Vec::new());
        }
        if control::is_control(name) {
            return self.control(uid, number, name);
        }
        let vnode = self.with_attributes(uid, number).await?;
        match name {
            b"afs.cell" => Ok(vnode.volume().cell.as_str().into()),
            b"afs.volume" => Ok(vnode.volume().name.clone().into_bytes()),
            b"afs.fid" => Ok(fid(&vnode).into_bytes()),
            b"afs.acl" => {
                let user = self.user(uid).await?;
                let asked = FetchACL { fid: vnode.fid() };
                let what = format!("access list of {}", vnode.fid());
                let client = user.client();
                let reply = client.call_volume(vnode.volume(), &what, &asked).await;
                Ok(reply.map_err(code)?.access_list.as_bytes().to_vec())
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    pub(crate) async fn set_xattr(
        &self,
        uid: u32,
        number: INodeNo,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Answer<()> {
        if control::is_control(name) {
            return self.set_control(uid, number, name, value).await;
        }
        let vnode = self.with_attributes(uid, number).await?;
        if name != b"afs.acl" {
            return Err(Errno::EOPNOTSUPP);
        }
        if flags & XATTR_CREATE != 0 {
            return Err(Errno::EINVAL);
        }
        let mut text = value.to_vec();
        // Servers want a NUL at the end; they send one themselves, and users do not type it.
        if !text.contains(&0) {
            text.push(0);
        }
        let access_list = AfsOpaque::new(text).map_err(|_| Errno::E2BIG)?;
        let user = self.user(uid).await?;
        let fid = vnode.fid();
        let what = format!("access list of {fid}");
        let client = user.client();
        let stored = client.store_access_list(vnode.volume(), fid, access_list, &what);
        stored.await.map_err(code)?;
        // The rights of `system:anyuser` may have changed, and the server notifies only other
        // clients.
        self.cache.statuses().distrust(vnode.volume().id);
        Ok(())
    }
}
