//! The values of AFSOSD's calls about archives: older bytes, recalls, jobs, censuses, statistics.

use cellar_xdr::{AfsString, List, xdr_struct};

use crate::AfsName;
use crate::ids::{AfsTime, Fid, Uniquifier, ViceId, VnodeId, VolumeId};
use crate::object::{ARCHIVE_COPIES_MAX, ArchiveCopy};

/// Files of one `ListOlder`, at most.
pub const OLDER_FILES_MAX: usize = 64;

xdr_struct! {
    /// Bytes that a file had before, with the archives that have a good copy.
    #[derive(Default)]
    pub struct OlderVersion {
        /// With `version`, the name of the bytes: the RW volume in whose name they were copied.
        pub volume: u32,
        /// The version of the objects.
        pub version: u64,
        /// The data version of the file when it was copied.
        pub data_version: u64,
        /// Length in bytes.
        pub length: u64,
        /// When the first copy was made, in seconds since 1970.
        pub made: u64,
        /// Until when the copies are kept, in seconds since 1970. 0: the server removes none.
        pub until: u64,
        /// The archives.
        pub archives: List<u32, ARCHIVE_COPIES_MAX>,
    }

    /// A file with older bytes, or a removed file.
    #[derive(Default)]
    pub struct OlderFile {
        /// The file.
        pub fid: Fid,
        /// When it was removed, in seconds since 1970; 0: it is there.
        pub removed: u64,
        /// The name that was removed; empty for a file that is there.
        pub name: AfsName,
        /// The directory that had the name; for a file that is there, its directory.
        pub parent: Fid,
        /// The mode, as in a status.
        pub mode: u32,
        /// The owner.
        pub owner: ViceId,
        /// Length of the last bytes.
        pub length: u64,
        /// Data version of the last bytes.
        pub data_version: u64,
        /// The date of the last bytes.
        pub modified: AfsTime,
        /// The older bytes, the oldest first. A removed file may have its last bytes among them.
        pub versions: List<OlderVersion, ARCHIVE_COPIES_MAX>,
    }
}

/// Files of one `ListWiped`, at most.
pub const WIPED_FILES_MAX: usize = 256;

xdr_struct! {
    /// A wiped file of an RW volume.
    #[derive(Default)]
    pub struct WipedFile {
        /// Its vnode number.
        pub vnode: VnodeId,
        /// Its uniquifier.
        pub uniquifier: Uniquifier,
        /// With `version`, the name of its bytes: the RW volume in whose name they were stored.
        pub owner: VolumeId,
        /// The version of the objects that it had.
        pub version: u64,
        /// The good copies of these bytes.
        pub copies: List<ArchiveCopy, ARCHIVE_COPIES_MAX>,
    }
}

/// Recalls of one `ListRecalls`, at most.
pub const RECALLS_AT_ONCE_MAX: usize = 256;
/// The path of a file in its volume.
pub type RecallPath = AfsString<4096>;

/// Jobs of one `ListJobs`, at most.
pub const JOBS_AT_ONCE_MAX: usize = 256;
/// The most bytes of a name or an error of a job.
pub const JOB_TEXT_MAX: usize = 1024;
/// Days of one `ListDays`, at most.
pub const DAYS_MAX: usize = 400;
/// A name or an error of a job.
pub type JobText = AfsString<JOB_TEXT_MAX>;

/// `ChangeJob`: cancel the job.
pub const JOB_CANCEL: u32 = 0;
/// `ChangeJob`: run a failed or cancelled job again, from its first step.
pub const JOB_RETRY: u32 = 1;
/// `ChangeJob`: put the job before all others of its user.
pub const JOB_FIRST: u32 = 2;
/// `ChangeJob`: put the job behind all others of its user.
pub const JOB_LAST: u32 = 3;

xdr_struct! {
    /// A job of the job engine. Times are in milliseconds since 1970; 0: not yet, or none.
    #[derive(Default)]
    pub struct JobView {
        /// Its number on this server.
        pub id: u64,
        /// Its kind.
        pub kind: JobText,
        /// The user on whose behalf it runs.
        pub user: JobText,
        /// The archive or device that it uses; may be empty.
        pub resource: JobText,
        /// A higher priority starts first.
        pub priority: i32,
        /// The state in one word: queued, running, waiting, done, failed, cancelled.
        pub state: JobText,
        /// The step that runs or will run next.
        pub step: JobText,
        /// Failed attempts of this step.
        pub attempts: u32,
        /// The last error; may be empty.
        pub error: JobText,
        /// Finished bytes.
        pub bytes: u64,
        /// Finished files, also those that failed.
        pub items: u64,
        /// Files that failed.
        pub failed: u64,
        /// Bytes to process; 0: not known.
        pub expected_bytes: u64,
        /// Files to process; 0: not known.
        pub expected_items: u64,
        /// The submission.
        pub created: u64,
        /// The first start.
        pub started: u64,
        /// The end.
        pub ended: u64,
        /// The time until which a waiting job waits.
        pub until: u64,
        /// A user has cancelled the job, and it has not stopped yet.
        pub cancelling: bool,
    }

    /// A recall of a wiped file.
    #[derive(Default)]
    pub struct RecallView {
        /// Its job.
        pub job: JobView,
        /// The file.
        pub fid: Fid,
        /// Its length in bytes.
        pub length: u64,
        /// The place in the queue of all jobs of the server, from 1; 0: it runs, or has no place.
        pub place: u64,
        /// The name of the volume; empty: the server does not have it any more.
        pub volume: JobText,
        /// The path in the volume; empty: it is not known, or too long.
        pub path: RecallPath,
    }

    /// The result of a file of a job.
    pub struct JobItem {
        /// The file: a fid.
        pub name: JobText,
        /// The error; empty: it succeeded.
        pub error: JobText,
    }

    /// Files and their bytes.
    #[derive(Copy, Default)]
    pub struct FileTally {
        /// Files.
        pub files: u64,
        /// Bytes.
        pub bytes: u64,
    }

    /// An archive with its copies, or a device with its files.
    #[derive(Copy, Default)]
    pub struct DeviceTally {
        /// The archive or device.
        pub osd: u32,
        /// Objects of files of this server, with their bytes.
        pub online: FileTally,
        /// Those that could be wiped now.
        pub wipeable: FileTally,
        /// Those that could be wiped if they were not pinned.
        pub pinned: FileTally,
        /// Files that are to be copied to it, at most 4096.
        pub copies: u32,
        /// Copies that it has, without the bad ones.
        pub archived: FileTally,
        /// Copies that are known to be bad.
        pub bad: FileTally,
        /// Copies that were not compared for longer than the interval of verification.
        pub unverified: FileTally,
        /// The earliest time at which one of the copies was last compared, in seconds since 1970;
        /// 0: there are no copies.
        pub oldest: u64,
    }

    /// A census of the files of a server in objects and in archives.
    #[derive(Default)]
    pub struct ArchiveCensus {
        /// When it began, in seconds since 1970; 0: there was none.
        pub taken: u64,
        /// How long it took, in milliseconds.
        pub millis: u64,
        /// Files in objects that are online.
        pub online: FileTally,
        /// Files in archives only.
        pub wiped: FileTally,
        /// Online files with a good copy of their present bytes.
        pub copied: FileTally,
        /// Files for which policies ask for more copies than there are.
        pub lacking: FileTally,
        /// Those of them whose delay has passed.
        pub due: FileTally,
        /// Copies that are known to be bad.
        pub bad: u64,
        /// Archives and devices.
        pub devices: List<DeviceTally, 4096>,
    }

    /// The use of a device.
    #[derive(Copy, Default)]
    pub struct DeviceUse {
        /// The device.
        pub osd: u32,
        /// Bytes in use.
        pub used: u64,
        /// All bytes.
        pub total: u64,
    }

    /// The work of a day.
    #[derive(Default)]
    pub struct DayView {
        /// Days since 1970, in UTC.
        pub day: u32,
        /// Copies made in archives.
        pub copied: FileTally,
        /// Files wiped.
        pub wiped: FileTally,
        /// Files recalled.
        pub recalled: FileTally,
        /// Copies read back and compared.
        pub verified: FileTally,
        /// Copies and recalls that failed.
        pub failed: u64,
        /// The use of the devices at the last census of the day.
        pub devices: List<DeviceUse, 4096>,
    }

    /// A file that is to be copied or wiped.
    #[derive(Copy, Default)]
    pub struct ArchiveCandidate {
        /// The file, in its RW volume.
        pub fid: Fid,
        /// Length in bytes.
        pub length: u64,
        /// Seconds since its last change; for wiping, since its last change or use.
        pub age: u64,
        /// Bytes that wiping frees on the device; 0 for a copy.
        pub frees: u64,
    }
}
