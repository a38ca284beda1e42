//! Changes of names that a server may have made before its process ended.
//!
//! A restarted server treats a repeated call as a new one. If the old process created a name, the
//! repeated call fails because the name exists. If the old process removed a name, the repeated
//! call fails because there is none. Programs do not see these errors:
//!
//! 1. A change is in doubt if the process that received it has ended or is about to end
//!    ([`CallError::Gone`]). A change is also in doubt if the call was repeated without a noticed
//!    end, and was then refused because of the name. The refusal must come from a server without
//!    any state of this machine ([`Marks::show_restart_since`]).
//! 2. A change that an ended process did not make is never made later. So the directory shows
//!    whether the change was made. If not, the call is repeated.
//! 3. A new file, link or directory counts as ours if it is empty and matches our call. That means
//!    the kind, the mode and the modification time that we gave it (the same second). For a false
//!    match, another client would have to create the same name with the same attributes within that
//!    second, just when the server restarts.
//!
//! A silent server that still runs may execute a received call later. Then the call is not
//! repeated, and the program receives `ETIMEDOUT` (`names/make.rs`).
//!
//! [`CallError::Gone`]: cellar_rpc::CallError::Gone
//! [`Marks::show_restart_since`]: cellar_client::reach::Marks::show_restart_since

use std::sync::Arc;

use cellar_wire::AfsName;
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::Fid;
use cellar_wire::package::Procedure;
use cellar_wire::rxafs::{
    AfsFetchStatus, AfsStoreStatus, Callback, CreateFile, CreateFileReply, FetchStatus, FileType,
    Link, LinkReply, MakeDir, MakeDirReply, RemoveDir, RemoveDirReply, RemoveFile, RemoveFileReply,
    Rename, RenameReply, Symlink, SymlinkReply, VolSync,
};

use crate::changes::Changes;
use crate::statuses::cached_names::Listing;
use crate::user::User;
use crate::vnode::Vnode;
use cellar_client::error::Result;

/// A change of names that the directory shows if it was made.
pub(crate) trait Verify: Procedure {
    /// Returns the answer that the server would have sent, if it made the change.
    fn verify(
        &self,
        change: NameChange<'_>,
    ) -> impl Future<Output = Result<Option<Self::Reply>>> + Send;
}

/// The place of the change.
#[derive(Clone, Copy)]
pub(crate) struct NameChange<'a> {
    pub(crate) changes: &'a Changes,
    pub(crate) user: &'a Arc<User>,
    /// The directory of the change.
    pub(crate) directory: &'a Arc<Vnode>,
    /// The other vnode that it changes: a directory, or the file that gets another name.
    pub(crate) other: Option<&'a Arc<Vnode>>,
    /// The fid of the name before the change, if it was known.
    pub(crate) before: Option<Fid>,
}

impl NameChange<'_> {
    /// Returns the server's current names of a directory, and its status.
    async fn names(&self, directory: &Arc<Vnode>) -> Result<(Arc<Listing>, AfsFetchStatus)> {
        self.changes.promises.end_promises(&[directory]);
        let listing = self.changes.statuses.listing(self.user, directory).await?;
        let status = self.changes.statuses.status(self.user, directory).await?;
        Ok((listing, status))
    }

    /// Returns the current target of a name, with its status and the directory's.
    async fn current_entry(&self, name: &AfsName) -> Result<Option<NamedEntry>> {
        let (listing, directory) = self.names(self.directory).await?;
        let Some(fid) = listing.get(name.as_bytes()).copied() else {
            return Ok(None);
        };
        let what = format!("status of {fid}");
        let volume = self.directory.volume();
        let client = self.user.client();
        let reply = client
            .call_volume(volume, &what, &FetchStatus { fid })
            .await?;
        Ok(Some(NamedEntry {
            fid,
            status: reply.status,
            callback: reply.callback,
            directory,
        }))
    }

    /// Rule 3: returns the target of the name if it has this kind and the attributes in `wanted`.
    async fn own_entry(
        &self,
        name: &AfsName,
        kind: FileType,
        wanted: &AfsStoreStatus,
        length: Option<u64>,
    ) -> Result<Option<NamedEntry>> {
        let found = self.current_entry(name).await?;
        Ok(found.filter(|found| {
            let NamedEntry { fid, status, .. } = found;
            let links = if kind == FileType::Directory { 2 } else { 1 };
            let mode = |mode: u32| mode & 0o777;
            let is_as_wanted = status.file_type == kind
                && status.link_count == links
                && length.is_none_or(|length| length == status.length)
                && wanted.client_mod_time == Some(status.client_mod_time)
                && (kind == FileType::Symlink
                    || wanted.unix_mode.map(mode) == Some(mode(status.unix_mode)));
            is_as_wanted && self.before != Some(*fid)
        }))
    }

    /// Returns the directory's status if the name no longer leads to the fid from before.
    async fn removed(&self, name: &AfsName) -> Result<Option<AfsFetchStatus>> {
        let (listing, status) = self.names(self.directory).await?;
        let now = listing.get(name.as_bytes()).copied();
        let is_gone = now.is_none() || (self.before.is_some() && now != self.before);
        Ok(is_gone.then_some(status))
    }
}

/// The target of a name.
struct NamedEntry {
    fid: Fid,
    status: AfsFetchStatus,
    callback: Callback,
    directory: AfsFetchStatus,
}

impl Verify for CreateFile {
    async fn verify(&self, change: NameChange<'_>) -> Result<Option<CreateFileReply>> {
        let wanted = &self.in_status;
        let found = change
            .own_entry(&self.name, FileType::File, wanted, Some(0))
            .await?;
        Ok(found.map(|found| CreateFileReply {
            fid: found.fid,
            status: found.status,
            dir_status: found.directory,
            callback: found.callback,
            sync: VolSync::default(),
        }))
    }
}

impl Verify for MakeDir {
    async fn verify(&self, change: NameChange<'_>) -> Result<Option<MakeDirReply>> {
        let wanted = &self.in_status;
        let found = change
            .own_entry(&self.name, FileType::Directory, wanted, None)
            .await?;
        Ok(found.map(|found| MakeDirReply {
            fid: found.fid,
            status: found.status,
            dir_status: found.directory,
            callback: found.callback,
            sync: VolSync::default(),
        }))
    }
}

impl Verify for Symlink {
    async fn verify(&self, change: NameChange<'_>) -> Result<Option<SymlinkReply>> {
        let (wanted, length) = (&self.in_status, self.link_contents.as_bytes().len() as u64);
        let found = change.own_entry(&self.name, FileType::Symlink, wanted, Some(length));
        Ok(found.await?.map(|found| SymlinkReply {
            fid: found.fid,
            status: found.status,
            dir_status: found.directory,
            sync: VolSync::default(),
        }))
    }
}

impl Verify for Link {
    async fn verify(&self, change: NameChange<'_>) -> Result<Option<LinkReply>> {
        let found = change.current_entry(&self.name).await?;
        let found = found.filter(|found| found.fid == self.existing_fid);
        Ok(found.map(|found| LinkReply {
            status: found.status,
            dir_status: found.directory,
            sync: VolSync::default(),
        }))
    }
}

impl Verify for RemoveFile {
    async fn verify(&self, change: NameChange<'_>) -> Result<Option<RemoveFileReply>> {
        let removed = change.removed(&self.name).await?;
        Ok(removed.map(|dir_status| RemoveFileReply {
            dir_status,
            sync: VolSync::default(),
        }))
    }
}

impl Verify for RemoveDir {
    async fn verify(&self, change: NameChange<'_>) -> Result<Option<RemoveDirReply>> {
        let removed = change.removed(&self.name).await?;
        Ok(removed.map(|dir_status| RemoveDirReply {
            dir_status,
            sync: VolSync::default(),
        }))
    }
}

impl Verify for Rename {
    async fn verify(&self, change: NameChange<'_>) -> Result<Option<RenameReply>> {
        let Some(moved) = change.before else {
            return Ok(None);
        };
        let (old, old_status) = change.names(change.directory).await?;
        let other = change
            .other
            .filter(|other| !Arc::ptr_eq(other, change.directory));
        let (new, new_status) = match other {
            Some(other) => change.names(other).await?,
            None => (old.clone(), old_status),
        };
        let is_there = new.get(self.new_name.as_bytes()) == Some(&moved);
        let was_moved = is_there && old.get(self.old_name.as_bytes()) != Some(&moved);
        Ok(was_moved.then(|| RenameReply {
            old_dir_status: old_status,
            new_dir_status: new_status,
            sync: VolSync::default(),
        }))
    }
}

/// Returns whether a refusal is because of a name: it exists, or does not exist.
pub(crate) fn is_about_name(code: Option<AbortCode>) -> bool {
    let codes = [AbortCode::EEXIST, AbortCode::ENOENT, AbortCode::VNOVNODE];
    code.is_some_and(|code| codes.contains(&code))
}
