//! Partitions, and the destinations of volumes.

use cellar_xdr::{WordString, xdr_struct};

use super::VolumeName;
use crate::ids::VolumeId;

xdr_struct! {
    /// Space of a partition in KiB (`diskPartition`, 68 words).
    #[derive(Default)]
    pub struct DiskPartition {
        /// `/vicepa`.
        pub name: WordString<32>,
        /// The device.
        pub device: WordString<32>,
        /// The descriptor of the lock file; -1.
        pub lock_fd: i32,
        /// Servers send 0 here.
        pub total_usable: i32,
        /// Free.
        pub free: i32,
        /// Servers send the size here.
        pub min_free: i32,
    }

    /// Space of a partition in KiB, 64-bit (`diskPartition64`, 519 words).
    #[derive(Default)]
    pub struct DiskPartition64 {
        /// `/vicepa`.
        pub name: WordString<256>,
        /// The device.
        pub device: WordString<256>,
        /// The descriptor of the lock file; -1.
        pub lock_fd: i32,
        /// Servers send 0 here.
        pub total_usable: i64,
        /// Free.
        pub free: i64,
        /// Servers send the size here.
        pub min_free: i64,
    }

    /// A volume server (3 words).
    #[derive(Copy, Default)]
    pub struct DestServer {
        /// Its address.
        pub host: u32,
        /// Its port.
        pub port: i32,
        /// Always 1.
        pub ssid: i32,
    }

    /// A transaction on a volume server (4 words).
    #[derive(Copy, Default)]
    pub struct Replica {
        /// The transaction.
        pub trans: i32,
        /// The server.
        pub server: DestServer,
    }

    /// The properties of a volume to be restored (35 words).
    #[derive(Default)]
    pub struct RestoreCookie {
        /// Its name.
        pub name: VolumeName,
        /// 0 RW, 1 RO, 2 backup.
        pub volume_type: i32,
        /// The read-only volume of its group.
        pub clone: VolumeId,
        /// The read-write volume of its group.
        pub parent: VolumeId,
    }

    /// Bytes of a dump (2 words).
    #[derive(Copy, Default)]
    pub struct VolumeSize {
        /// The number of bytes; exact for a full dump.
        pub dump_size: u64,
    }
}
