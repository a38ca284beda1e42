//! Status records of volumes and transactions.

use cellar_xdr::{WordString, xdr_struct};

use crate::ids::{AfsTime, VolumeId};

/// A volume's name in a record: at most 31 bytes.
pub type VolumeName = WordString<32>;

xdr_struct! {
    /// A volume as its transaction sees it (`volser_status`, 16 words).
    #[derive(Copy, Default)]
    pub struct VolserStatus {
        /// The volume.
        pub volume: VolumeId,
        /// The next vnode uniquifier.
        pub next_unique: i32,
        /// 0 RW, 1 RO, 2 backup.
        pub volume_type: i32,
        /// The read-write volume of its group.
        pub parent: VolumeId,
        /// The read-only volume of its group.
        pub clone: VolumeId,
        /// The backup volume of its group.
        pub backup: VolumeId,
        /// The volume that it was restored from.
        pub restored_from: VolumeId,
        /// KiB, 0 for none.
        pub max_quota: i32,
        /// Unused.
        pub min_quota: i32,
        /// Owner.
        pub owner: i32,
        /// When the volume was made; for a clone, when it was cloned.
        pub creation_date: AfsTime,
        /// When it was last used.
        pub access_date: AfsTime,
        /// When it last changed.
        pub update_date: AfsTime,
        /// Unused.
        pub expiration_date: AfsTime,
        /// When the backup volume was made.
        pub backup_date: AfsTime,
        /// When this copy was made.
        pub copy_date: AfsTime,
    }

    /// A volume in a list, and what SetInfo changes (`volintInfo`, 55 words).
    #[derive(Default)]
    pub struct VolumeInfo {
        /// Its name.
        pub name: VolumeName,
        /// Its id.
        pub volume: VolumeId,
        /// 0 RW, 1 RO, 2 backup.
        pub volume_type: i32,
        /// The backup volume of its group.
        pub backup: VolumeId,
        /// The read-write volume of its group.
        pub parent: VolumeId,
        /// The read-only volume of its group.
        pub clone: VolumeId,
        /// `STATUS_*`.
        pub status: i32,
        /// When this copy was made.
        pub copy_date: AfsTime,
        /// Whether it is in use.
        pub in_use: u8,
        /// Whether it needs salvage.
        pub needs_salvaged: u8,
        /// [`DESTROY_ME`](super::DESTROY_ME) while it is unfinished.
        pub destroy_me: u8,
        /// When the volume was made; for a clone, when it was cloned.
        pub creation_date: AfsTime,
        /// When it was last used.
        pub access_date: AfsTime,
        /// When it last changed.
        pub update_date: AfsTime,
        /// When the backup volume was made.
        pub backup_date: AfsTime,
        /// Uses today.
        pub day_use: i32,
        /// Files and directories.
        pub file_count: i32,
        /// KiB, 0 for none.
        pub max_quota: i32,
        /// KiB.
        pub size: i32,
        /// Unused.
        pub flags: i32,
        /// Unused quota.
        pub min_quota: i32,
        /// Uses this week.
        pub week_use: i32,
        /// Counts changes.
        pub update_counter: i32,
        /// Spare.
        pub spare3: i32,
    }

    /// A volume in a list with statistics (`volintXInfo`, 80 words).
    ///
    /// Reads and writes are counted by the client's network: same network, same network
    /// authenticated, other network, other network authenticated. Author statistics are counted by
    /// the time since the last change: up to a minute, ten minutes, an hour, a day, a week, longer.
    #[derive(Default)]
    pub struct VolumeInfoX {
        /// Its name.
        pub name: VolumeName,
        /// Its id.
        pub volume: VolumeId,
        /// 0 RW, 1 RO, 2 backup.
        pub volume_type: i32,
        /// The backup volume of its group.
        pub backup: VolumeId,
        /// The read-write volume of its group.
        pub parent: VolumeId,
        /// The read-only volume of its group.
        pub clone: VolumeId,
        /// `STATUS_*`.
        pub status: i32,
        /// When this copy was made.
        pub copy_date: AfsTime,
        /// Whether it is in use.
        pub in_use: u8,
        /// When the volume was made; for a clone, when it was cloned.
        pub creation_date: AfsTime,
        /// When it was last used.
        pub access_date: AfsTime,
        /// When it last changed.
        pub update_date: AfsTime,
        /// When the backup volume was made.
        pub backup_date: AfsTime,
        /// Uses today.
        pub day_use: i32,
        /// Files and directories.
        pub file_count: i32,
        /// KiB, 0 for none.
        pub max_quota: i32,
        /// KiB.
        pub size: i32,
        /// Reads.
        pub stat_reads: [i32; 4],
        /// Writes.
        pub stat_writes: [i32; 4],
        /// Changes of files by the same author.
        pub stat_file_same_author: [i32; 6],
        /// Changes of files by another author.
        pub stat_file_diff_author: [i32; 6],
        /// Changes of directories by the same author.
        pub stat_dir_same_author: [i32; 6],
        /// Changes of directories by another author.
        pub stat_dir_diff_author: [i32; 6],
    }

    /// A transaction (`transDebugInfo`, 44 words).
    #[derive(Default)]
    pub struct TransDebugInfo {
        /// Its number.
        pub trans: i32,
        /// When it was last used.
        pub time: AfsTime,
        /// When it began.
        pub creation_time: AfsTime,
        /// The code that EndTrans returns.
        pub return_code: i32,
        /// Its volume.
        pub volume: VolumeId,
        /// Its partition.
        pub partition: i32,
        /// `IT_*`.
        pub attach_flags: i16,
        /// `VT_*`.
        pub volume_flags: u8,
        /// `TT_*`.
        pub trans_flags: u8,
        /// The procedure that used it last.
        pub last_procedure: WordString<30>,
        /// Whether a call is in progress; the following fields count only then.
        pub call_valid: i32,
        /// The next packet to read.
        pub read_next: i32,
        /// The next packet to send.
        pub transmit_next: i32,
        /// When the call last sent.
        pub last_send_time: i32,
        /// When the call last received.
        pub last_receive_time: i32,
    }
}
