//! The attributes of files, and of the names in the dynamic root that are no files of a cell.

use std::time::{Duration, UNIX_EPOCH};

use cellar_wire::rxafs::{AfsFetchStatus, FileType as Kind};
use fuser::{FileAttr, FileType, INodeNo};

/// The attributes of a vnode with this status.
pub(crate) fn attr(number: u64, status: &AfsFetchStatus) -> FileAttr {
    let time = |seconds: u32| UNIX_EPOCH + Duration::from_secs(seconds.into());
    let modified = time(status.client_mod_time.0);
    FileAttr {
        ino: INodeNo(number),
        size: status.length,
        blocks: status.length.div_ceil(512),
        atime: modified,
        mtime: modified,
        ctime: time(status.server_mod_time.0),
        crtime: modified,
        kind: match status.file_type {
            Kind::Directory => FileType::Directory,
            Kind::Symlink => FileType::Symlink,
            Kind::File | Kind::Invalid => FileType::RegularFile,
        },
        perm: (status.unix_mode & 0o7777) as u16,
        nlink: status.link_count,
        uid: status.owner.0.unsigned_abs(),
        gid: status.group.0.unsigned_abs(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// The attributes of an absent name: number 0.
pub(crate) fn nothing() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        ..root_attr(0)
    }
}

pub(super) fn root_attr(cells: usize) -> FileAttr {
    FileAttr {
        ino: INodeNo(crate::inodes::ROOT),
        size: 2048,
        blocks: 4,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::Directory,
        perm: 0o755,
        nlink: 2 + cells as u32,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// The attributes of a listed cell's name, of which nothing is known yet. One link tells programs
/// nothing about the number of directories in it.
pub(super) fn cell_attr(number: u64) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        nlink: 1,
        ..root_attr(0)
    }
}

/// The attributes of the directory of volumes.
pub(super) fn volumes_attr(number: u64) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        ..root_attr(0)
    }
}

/// The attributes of a cell's alias.
pub(super) fn link_attr(number: u64, length: usize) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        size: length as u64,
        blocks: 1,
        kind: FileType::Symlink,
        perm: 0o777,
        nlink: 1,
        ..root_attr(0)
    }
}
