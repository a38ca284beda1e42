//! Changes in directories: one RPC for each operation of Unix.
//!
//! After a failure of the only read-write server, a call is not simply repeated. [`crate::rotate`]
//! continues only if the server said that it did nothing, or did not answer at all. In the latter
//! case the change may have been made; then a repeated `CreateFile` answers "exists".

use bytes::Bytes;
use cellar_wire::AfsName;
use cellar_wire::ids::Fid;
use cellar_wire::package::Procedure;
use cellar_wire::rxafs::{self, AfsFetchStatus, AfsPath, AfsStoreStatus};

use crate::client::Client;
use crate::error::{Error, PathProblem, Result};
use crate::mount_point::{MOUNT_POINT_MODE, MountPoint};
use crate::path::Node;

/// The most fids of one bulk call. Source: `AFSCBMAX`.
const BULK_MAX: usize = rxafs::BULK_MAX;

/// A name in a directory, to create or remove.
pub struct NameInDirectory<'a> {
    client: &'a Client,
    directory: &'a Node,
    name: AfsName,
    what: &'a str,
}

impl NameInDirectory<'_> {
    /// Makes an empty file.
    ///
    /// # Errors
    /// The server refuses the call, or does not answer.
    pub async fn create_file(self, status: AfsStoreStatus) -> Result<Node> {
        let reply = self.change(|dir_fid, name| rxafs::CreateFile {
            dir_fid,
            name,
            in_status: status,
        });
        let reply = reply.await?;
        Ok(self.directory.neighbour(reply.fid, reply.status))
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// The server refuses the call, or does not answer.
    pub async fn make_dir(self, status: AfsStoreStatus) -> Result<Node> {
        let reply = self.change(|dir_fid, name| rxafs::MakeDir {
            dir_fid,
            name,
            in_status: status,
        });
        let reply = reply.await?;
        Ok(self.directory.neighbour(reply.fid, reply.status))
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// The server refuses the call, or does not answer; the target is too long.
    pub async fn symlink(self, target: Bytes, status: AfsStoreStatus) -> Result<Node> {
        let link_contents = AfsPath::new(target).map_err(|_| bad_name(self.what))?;
        let in_status = AfsStoreStatus {
            unix_mode: Some(status.unix_mode.unwrap_or(0o755)),
            ..status
        };
        let reply = self.change(|dir_fid, name| rxafs::Symlink {
            dir_fid,
            name,
            link_contents,
            in_status,
        });
        let reply = reply.await?;
        Ok(self.directory.neighbour(reply.fid, reply.status))
    }

    /// Makes a mount point.
    ///
    /// # Errors
    /// The server refuses the call, or does not answer.
    pub async fn make_mount_point(self, mount: &MountPoint) -> Result<Node> {
        let status = AfsStoreStatus {
            unix_mode: Some(MOUNT_POINT_MODE),
            ..AfsStoreStatus::default()
        };
        self.symlink(mount.text().into(), status).await
    }

    /// Adds this name to a file of the same directory.
    ///
    /// # Errors
    /// The server refuses the call, or does not answer.
    pub async fn link(self, existing_fid: Fid) -> Result<AfsFetchStatus> {
        let reply = self.change(|dir_fid, name| rxafs::Link {
            dir_fid,
            name,
            existing_fid,
        });
        Ok(reply.await?.status)
    }

    /// Removes the name of a file, link or mount point.
    ///
    /// # Errors
    /// The server refuses the call, or does not answer.
    pub async fn remove_file(self) -> Result<()> {
        let reply = self.change(|dir_fid, name| rxafs::RemoveFile { dir_fid, name });
        reply.await.map(drop)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// The server refuses the call, or does not answer.
    pub async fn remove_dir(self) -> Result<()> {
        let reply = self.change(|dir_fid, name| rxafs::RemoveDir { dir_fid, name });
        reply.await.map(drop)
    }

    async fn change<P: Procedure>(
        &self,
        arguments: impl FnOnce(Fid, AfsName) -> P,
    ) -> Result<P::Reply> {
        let arguments = arguments(self.directory.fid, self.name.clone());
        self.client
            .change(self.directory, &arguments, self.what)
            .await
    }
}

impl Client {
    /// The place of a name in a directory. Its errors name `what`.
    ///
    /// # Errors
    /// [`PathProblem::BadName`].
    pub fn place<'a>(
        &'a self,
        directory: &'a Node,
        name: &[u8],
        what: &'a str,
    ) -> Result<NameInDirectory<'a>> {
        Ok(NameInDirectory {
            client: self,
            directory,
            name: afs_name(name, what)?,
            what,
        })
    }

    /// Renames a file or directory, and replaces an existing one at the new name.
    ///
    /// # Errors
    /// The server refuses the call, or does not answer. The error names `what`.
    pub async fn rename(&self, from: (&Node, &[u8]), to: (&Node, &[u8]), what: &str) -> Result<()> {
        if from.0.volume != to.0.volume {
            let cause = cellar_rpc::CallError::Aborted(cellar_wire::AbortCode::EXDEV);
            return Err(Error::Fileserver {
                what: what.to_owned(),
                cause,
            });
        }
        let arguments = rxafs::Rename {
            old_dir_fid: from.0.fid,
            old_name: afs_name(from.1, what)?,
            new_dir_fid: to.0.fid,
            new_name: afs_name(to.1, what)?,
        };
        self.change(from.0, &arguments, what).await?;
        self.directories().forget(to.0.fid);
        Ok(())
    }

    /// Changes the attributes of a vnode.
    ///
    /// # Errors
    /// The server refuses the call, or does not answer. The error names `what`.
    pub async fn set_status(
        &self,
        node: &Node,
        status: AfsStoreStatus,
        what: &str,
    ) -> Result<AfsFetchStatus> {
        let arguments = rxafs::StoreStatus {
            fid: node.fid,
            in_status: status,
        };
        Ok(self
            .call_volume(&node.volume, &what, &arguments)
            .await?
            .status)
    }

    /// The statuses of many vnodes of one volume, in the order of `fids`. A vnode whose status
    /// could not be read has its code in `error_code` and the type `Invalid`.
    ///
    /// # Errors
    /// No server of the volume answers.
    pub async fn statuses(&self, directory: &Node, fids: &[Fid]) -> Result<Vec<AfsFetchStatus>> {
        let mut all = Vec::with_capacity(fids.len());
        for some in fids.chunks(BULK_MAX) {
            let arguments = rxafs::InlineBulkStatus {
                fids: rxafs::Fids::from_iter_cut(some.iter().copied()),
            };
            let what = format!("status of files in {}", directory.fid);
            let reply = self
                .call_volume(&directory.volume, &what, &arguments)
                .await?;
            if reply.statuses.len() != some.len() {
                let detail = format!("{} for {} files", reply.statuses.len(), some.len());
                return Err(Error::BadAnswer { what, detail });
            }
            all.extend(reply.statuses.into_vec());
        }
        Ok(all)
    }

    /// Calls a procedure that changes `directory`, and drops our copy of it: the server sends no
    /// break to the client that made the change.
    async fn change<P: Procedure>(
        &self,
        directory: &Node,
        arguments: &P,
        what: &str,
    ) -> Result<P::Reply> {
        let reply = self
            .call_volume(&directory.volume, &what, arguments)
            .await?;
        self.directories().forget(directory.fid);
        Ok(reply)
    }
}

fn afs_name(name: &[u8], what: &str) -> Result<AfsName> {
    if name.is_empty() || name.len() > crate::path::NAME_BYTES_MAX || name.contains(&b'/') {
        return Err(bad_name(what));
    }
    AfsName::new(name.to_vec()).map_err(|_| bad_name(what))
}

fn bad_name(what: &str) -> Error {
    Error::Path {
        path: what.to_owned(),
        problem: PathProblem::BadName,
    }
}
