//! Builds `AFSFetchStatus` from the volume's status, the locks and the caller's rights.

use cellar_volume::{FileType, VnodeStatus, Volume};
use cellar_wire::AbortCode;
use cellar_wire::rxafs::{self, AfsFetchStatus, VolSync};

use crate::access::{Access, Identity};

/// The status as one caller sees it.
pub(crate) fn fetch_status(
    status: &VnodeStatus,
    identity: &Identity,
    access: Access,
    lock_count: i32,
) -> AfsFetchStatus {
    // A directory names itself as its parent. Clients learn the real parent from "..".
    let (parent, parent_uniquifier) = match status.kind {
        FileType::Directory => (status.fid.vnode, status.fid.uniquifier),
        _ => (status.parent, status.parent_uniquifier),
    };
    AfsFetchStatus {
        file_type: match status.kind {
            FileType::File => rxafs::FileType::File,
            FileType::Directory => rxafs::FileType::Directory,
            FileType::Symlink => rxafs::FileType::Symlink,
        },
        link_count: status.link_count,
        length: status.length,
        data_version: status.data_version,
        author: status.author,
        owner: status.owner,
        caller_access: identity.shown(status, access.caller),
        anonymous_access: access.anonymous,
        unix_mode: u32::from(status.mode),
        parent_vnode: parent,
        parent_uniquifier,
        client_mod_time: status.client_time,
        server_mod_time: status.server_time,
        group: status.group,
        lock_count,
        error_code: AbortCode(0),
    }
}

/// The data that distinguishes images of a volume.
pub(crate) fn vol_sync(volume: &Volume) -> VolSync {
    VolSync {
        creation_date: volume.created(),
    }
}
