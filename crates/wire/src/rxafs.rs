//! RXAFS: the file server. Service 1, port 7000.
//!
//! The types here do not include the bytes that streaming calls send between arguments and results.
//! The reply of `FetchData` is a length word, that many bytes, and the results; `FetchData64` has
//! two length words, the high one first. `StoreData` sends `length` bytes after the arguments.
//!
//! Volume numbers of GetVolumeStatus and lock types stay integers, because the server has its own
//! abort code for a wrong one.
//!
//! Source: the afsint interface file of OpenAFS 1.8; use by Linux in fs/afs/fsclient.c.

use cellar_xdr::{AfsString, List, Opaque};

use crate::AfsName;
use crate::host::Capabilities;
use crate::ids::{Fid, Uniquifier, ViceId, VnodeId, VolumeId};
use crate::package::package;

mod command;
mod make_many;
mod ranges;
mod statistics;
mod status;
mod volume;

pub use command::{FsCmdInputs, FsCmdOutputs};
pub use make_many::{
    ChangedDirectories, ChangedDirectory, CreateRequest, CreateRequests, CreateResult,
    CreateResults, MAKE_MANY_BYTES_MAX, MAKE_MANY_MAX, RESERVE_MAX,
};
pub use ranges::{HeldRanges, LOCK_RANGES_MAX, LockRange, LockRanges};
pub use statistics::{
    STATISTICS64_LEN, Statistics64, ViceDisk, ViceDisks, ViceStatistics, XSTAT_VERSION, XStats,
};
pub use status::{
    AfsFetchStatus, AfsStoreStatus, Callback, FileType, LOCK_EXTEND, LOCK_READ, LOCK_RELEASE,
    LOCK_WRITE, VolSync,
};
pub use volume::{AfsVolumeInfo, FetchVolumeStatus, StoreVolumeStatus, VolumeInfo};

/// The most fids of one bulk call.
pub const BULK_MAX: usize = 50;

/// The fids of a bulk call.
pub type Fids = List<Fid, BULK_MAX>;
/// The promises of a bulk call.
pub type Callbacks = List<Callback, BULK_MAX>;
/// The statuses of a bulk call.
pub type BulkStats = List<AfsFetchStatus, BULK_MAX>;
/// An access list as text, NUL included, or a token.
pub type AfsOpaque = Opaque<1024>;
/// The target of a symbolic link, or text about a volume.
pub type AfsPath = AfsString<1024>;

package! {
    /// The file server.
    pub RXAFS { service: 1, port: 7000, statistics: 7 }

    /// The 32-bit form; streams a length word and the bytes.
    130 FetchData { fid: Fid, position: i32, length: i32 }
        -> FetchDataReply { status: AfsFetchStatus, callback: Callback, sync: VolSync } streams reply;
    131 FetchACL { fid: Fid }
        -> FetchACLReply { access_list: AfsOpaque, status: AfsFetchStatus, sync: VolSync };
    132 FetchStatus { fid: Fid }
        -> FetchStatusReply { status: AfsFetchStatus, callback: Callback, sync: VolSync };
    /// The 32-bit form.
    133 StoreData {
        fid: Fid, in_status: AfsStoreStatus, position: u32, length: u32, file_length: u32
    } -> StoreDataReply { status: AfsFetchStatus, sync: VolSync } streams request;
    /// The number of StoreACL before CVE-2018-7168.
    134 OldStoreACL { fid: Fid, access_list: AfsOpaque }
        -> OldStoreACLReply { status: AfsFetchStatus, sync: VolSync };
    135 StoreStatus { fid: Fid, in_status: AfsStoreStatus }
        -> StoreStatusReply { status: AfsFetchStatus, sync: VolSync };
    136 RemoveFile { dir_fid: Fid, name: AfsName }
        -> RemoveFileReply { dir_status: AfsFetchStatus, sync: VolSync };
    137 CreateFile { dir_fid: Fid, name: AfsName, in_status: AfsStoreStatus }
        -> CreateFileReply {
            fid: Fid, status: AfsFetchStatus, dir_status: AfsFetchStatus, callback: Callback,
            sync: VolSync
        };
    138 Rename { old_dir_fid: Fid, old_name: AfsName, new_dir_fid: Fid, new_name: AfsName }
        -> RenameReply {
            old_dir_status: AfsFetchStatus, new_dir_status: AfsFetchStatus, sync: VolSync
        };
    139 Symlink { dir_fid: Fid, name: AfsName, link_contents: AfsPath, in_status: AfsStoreStatus }
        -> SymlinkReply {
            fid: Fid, status: AfsFetchStatus, dir_status: AfsFetchStatus, sync: VolSync
        };
    140 Link { dir_fid: Fid, name: AfsName, existing_fid: Fid }
        -> LinkReply { status: AfsFetchStatus, dir_status: AfsFetchStatus, sync: VolSync };
    141 MakeDir { dir_fid: Fid, name: AfsName, in_status: AfsStoreStatus }
        -> MakeDirReply {
            fid: Fid, status: AfsFetchStatus, dir_status: AfsFetchStatus, callback: Callback,
            sync: VolSync
        };
    142 RemoveDir { dir_fid: Fid, name: AfsName }
        -> RemoveDirReply { dir_status: AfsFetchStatus, sync: VolSync };
    /// `sync` is an argument here, not a result.
    143 OldSetLock { fid: Fid, lock_type: i32, sync: VolSync } -> OldSetLockReply {};
    /// `sync` is an argument here, not a result.
    144 OldExtendLock { fid: Fid, sync: VolSync } -> OldExtendLockReply {};
    /// `sync` is an argument here, not a result.
    145 OldReleaseLock { fid: Fid, sync: VolSync } -> OldReleaseLockReply {};
    146 GetStatistics {} -> GetStatisticsReply { statistics: ViceStatistics };
    /// The list of callbacks may be shorter than that of fids, or empty.
    147 GiveUpCallBacks { fids: Fids, callbacks: Callbacks } -> GiveUpCallBacksReply {};
    148 GetVolumeInfo { volume_name: AfsName } -> GetVolumeInfoReply { info: VolumeInfo };
    149 GetVolumeStatus { volume: VolumeId }
        -> GetVolumeStatusReply {
            status: FetchVolumeStatus, name: AfsName, offline_message: AfsPath,
            message_of_the_day: AfsPath
        };
    150 SetVolumeStatus {
        volume: VolumeId, status: StoreVolumeStatus, name: AfsName, offline_message: AfsPath,
        message_of_the_day: AfsPath
    } -> SetVolumeStatusReply {};
    151 GetRootVolume {} -> GetRootVolumeReply { volume_name: AfsName } refuses EOPNOTSUPP;
    152 CheckToken { vice_id: ViceId, token: AfsOpaque } -> CheckTokenReply {} refuses ECONNREFUSED;
    153 GetTime {} -> GetTimeReply { seconds: u32, microseconds: u32 };
    154 NGetVolumeInfo { volume_name: AfsName } -> NGetVolumeInfoReply { info: AfsVolumeInfo }
        refuses VNOVOL;
    155 BulkStatus { fids: Fids }
        -> BulkStatusReply { statuses: BulkStats, callbacks: Callbacks, sync: VolSync };
    156 SetLock { fid: Fid, lock_type: i32 } -> SetLockReply { sync: VolSync };
    157 ExtendLock { fid: Fid } -> ExtendLockReply { sync: VolSync };
    158 ReleaseLock { fid: Fid } -> ReleaseLockReply { sync: VolSync };
    159 XStatsVersion {} -> XStatsVersionReply { version: i32 };
    160 GetXStats { client_version: i32, collection: i32 }
        -> GetXStatsReply { server_version: i32, time: i32, data: XStats };
    161 Lookup { dir_fid: Fid, name: AfsName }
        -> LookupReply {
            fid: Fid, status: AfsFetchStatus, dir_status: AfsFetchStatus, callback: Callback,
            sync: VolSync
        } refuses EINVAL;
    162 FlushCPS { ids: List<ViceId, 10>, addresses: List<u32, 10>, spare1: i32 }
        -> FlushCPSReply { spare2: i32, spare3: i32 };
    163 DFSSymlink { dir_fid: Fid, name: AfsName, link_contents: AfsPath, in_status: AfsStoreStatus }
        -> DFSSymlinkReply {
            fid: Fid, status: AfsFetchStatus, dir_status: AfsFetchStatus, callback: Callback,
            sync: VolSync
        } refuses EINVAL;
    164 StoreACL { fid: Fid, access_list: AfsOpaque }
        -> StoreACLReply { status: AfsFetchStatus, sync: VolSync };
    220 FsCmd { fid: Fid, inputs: FsCmdInputs } -> FsCmdReply { outputs: FsCmdOutputs }
        refuses EINVAL;
    /// If a fid fails, the `error_code` of its status has the code.
    65536 InlineBulkStatus { fids: Fids }
        -> InlineBulkStatusReply { statuses: BulkStats, callbacks: Callbacks, sync: VolSync };
    /// Streams two length words, the high one first, and the bytes.
    65537 FetchData64 { fid: Fid, position: i64, length: i64 }
        -> FetchData64Reply { status: AfsFetchStatus, callback: Callback, sync: VolSync }
        streams reply;
    65538 StoreData64 {
        fid: Fid, in_status: AfsStoreStatus, position: u64, length: u64, file_length: u64
    } -> StoreData64Reply { status: AfsFetchStatus, sync: VolSync } streams request;
    65539 GiveUpAllCallBacks {} -> GiveUpAllCallBacksReply {};
    65540 GetCapabilities {} -> GetCapabilitiesReply { capabilities: Capabilities };
    65541 CallBackRxConnAddr { address: u32 } -> CallBackRxConnAddrReply {} refuses EPERM;
    65542 GetStatistics64 { version: i32 } -> GetStatistics64Reply { statistics: Statistics64 };
    /// Cellar extension: replaces the locked ranges of `owner` in the file by `ranges`, for the
    /// lifetime of a lock. An empty list removes all. The ranges are in ascending order and do not
    /// overlap.
    ///
    /// EAGAIN: another lock conflicts, and nothing has changed. EINVAL: the call is older than the
    /// owner's last `serial`.
    1128614913 HoldRanges { fid: Fid, owner: [u32; 4], serial: u64, ranges: LockRanges }
        -> HoldRangesReply { sync: VolSync };
    /// Cellar extension: returns the first lock that conflicts with another range for `owner`.
    1128614914 TestRange { fid: Fid, owner: [u32; 4], range: LockRange }
        -> TestRangeReply { found: List<LockRange, 1>, sync: VolSync };
    /// Cellar extension: reserves vnode numbers and uniquifiers for things that the caller will
    /// create later in the volume of `dir_fid`. The caller needs the right to insert in that
    /// directory.
    ///
    /// Files have `first_file` and every second number after it. Directories have as many numbers
    /// from `first_directory` on. The uniquifiers are consecutive, those of files first. The server
    /// gives them to no other client, even after a restart.
    1128614915 ReserveVnodes { dir_fid: Fid, files: u32, directories: u32 }
        -> ReserveVnodesReply {
            first_file: VnodeId, files: u32, first_directory: VnodeId, directories: u32,
            first_uniquifier: Uniquifier, sync: VolSync
        };
    /// Cellar extension: leases a directory to the caller for a number of seconds. Before another
    /// client may read or change the directory, the server breaks the caller's promise, and the
    /// caller returns the lease. EAGAIN: other clients use the directory.
    1128614916 LeaseDirectory { dir_fid: Fid }
        -> LeaseDirectoryReply {
            status: AfsFetchStatus, callback: Callback, lease_secs: u32, sync: VolSync
        };
    /// Cellar extension: returns leases. The caller has sent all that it created in these
    /// directories, and creates nothing more without a call to the server.
    1128614917 ReturnDirectories { fids: Fids } -> ReturnDirectoriesReply {};
    /// Cellar extension: creates the given things one after the other, with the bytes that follow;
    /// durable when the server replies. If one fails, the others are still created.
    ///
    /// Each counts as a CreateFile with its StoreData, a MakeDir or a Symlink. A repeated call does
    /// nothing and returns the same results. The call needs no lease, but it extends the caller's
    /// leases. The caller receives leases of the directories that the call creates.
    1128614918 MakeMany { volume: VolumeId, creates: CreateRequests }
        -> MakeManyReply { results: CreateResults, directories: ChangedDirectories, sync: VolSync } streams request;
}
