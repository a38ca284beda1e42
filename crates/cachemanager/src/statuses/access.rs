//! The rights of users to files and directories.

use std::sync::Arc;

use cellar_wire::abort::AbortCode;
use cellar_wire::acl::Rights;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::FileType;

use crate::request::refused;
use crate::statuses::Statuses;
use crate::user::User;
use crate::vnode::Vnode;
use cellar_client::error::Result;

impl Statuses {
    /// Returns a user's rights to a vnode. The access list of its directory governs a file, so the
    /// promise about the directory covers them. The right `a` to a file means that the user owns
    /// it.
    ///
    /// # Errors
    /// As [`Statuses::status`].
    pub async fn rights(&self, user: &Arc<User>, vnode: &Arc<Vnode>) -> Result<Rights> {
        let status = self.status(user, vnode).await?;
        if vnode.is_directory() {
            return Ok(status.caller_access);
        }
        let directory = Fid {
            volume: vnode.fid().volume,
            vnode: status.parent_vnode,
            uniquifier: status.parent_uniquifier,
        };
        let directory = self.vnodes.vnode(vnode.volume(), directory)?;
        let of_directory = self.status(user, &directory).await?.caller_access;
        Ok(rights_to_file(status.caller_access, of_directory))
    }

    /// Checks whether a user has these rights to a directory or file.
    ///
    /// # Errors
    /// `EACCES`; as [`Statuses::status`].
    pub async fn may(&self, user: &Arc<User>, vnode: &Arc<Vnode>, wanted: Rights) -> Result<()> {
        let rights = self.rights(user, vnode).await?;
        let status = vnode.with_own_changes(self.status(user, vnode).await?);
        let owner = rights.contains(Rights::ADMINISTER);
        let is_file = status.file_type == FileType::File;
        let of_mode = |bits: u32| !is_file || owner || status.unix_mode & bits != 0;
        let has = |right: Rights| {
            rights.contains(right) || (is_file && owner && rights.contains(Rights::INSERT))
        };
        let refused_read = wanted.contains(Rights::READ) && !(has(Rights::READ) && of_mode(0o500));
        let refused_write = wanted.contains(Rights::WRITE)
            && !(has(Rights::WRITE) && (!is_file || status.unix_mode & 0o200 != 0));
        let rest = wanted.difference(Rights::READ.union(Rights::WRITE));
        if refused_read || refused_write || !rights.contains(rest) {
            return Err(refused(
                format!("access to {}", vnode.fid()),
                AbortCode::EACCES,
            ));
        }
        Ok(())
    }
}

/// The rights of a user to a file, from the rights that the server gave for the file and for its
/// directory.
pub(crate) fn rights_to_file(of_file: Rights, of_directory: Rights) -> Rights {
    let rest = of_directory.difference(Rights::ADMINISTER);
    match of_file.contains(Rights::ADMINISTER) {
        true => rest.union(Rights::ADMINISTER),
        false => rest,
    }
}
