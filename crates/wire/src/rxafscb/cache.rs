//! The state of a cache manager that `cmdebug` shows: locks and cache entries.

use cellar_xdr::{WordString, xdr_struct};

use crate::ids::Fid;

xdr_struct! {
    /// A lock inside the cache manager (`AFSDBLockDesc`, 8 words).
    #[derive(Copy, Default)]
    pub struct DbLockDescription {
        /// The kind of waiters: 1 readers, 2 writers.
        pub wait_states: u8,
        /// Whether a writer has it.
        pub exclusively_locked: u8,
        /// The number of readers that have it.
        pub readers_reading: i16,
        /// The number of processes that wait.
        pub waiting: i16,
        /// Spare.
        pub spare: i16,
        /// The last reader's process.
        pub pid_last_reader: i32,
        /// The writer's process.
        pub pid_writer: i32,
        /// The place in the source that took it.
        pub source_indicator: i32,
    }

    /// A named lock (`AFSDBLock`, 24 words).
    #[derive(Default)]
    pub struct DbLock {
        /// Its name.
        pub name: WordString<16>,
        /// Its state.
        pub lock: DbLockDescription,
    }

    /// A cache entry (`AFSDBCacheEntry`, 22 words).
    #[derive(Copy, Default)]
    pub struct CacheEntry {
        /// Its address in memory.
        pub address: i32,
        /// The cell's number.
        pub cell: i32,
        /// The file that it caches.
        pub net_fid: Fid,
        /// Bytes.
        pub length: i32,
        /// The data version.
        pub data_version: i32,
        /// Its lock.
        pub lock: DbLockDescription,
        /// The server that promised a callback.
        pub callback: i32,
        /// When the promise ends.
        pub callback_expires: i32,
        /// The number of references.
        pub reference_count: i16,
        /// The number of opens.
        pub opens: i16,
        /// The number of writers.
        pub writers: i16,
        /// 0 no mount point, 1 a mount point, 2 the root of a volume.
        pub mount_point_state: u8,
        /// State bits.
        pub states: u8,
    }

    /// A cache entry with a 64-bit length (`AFSDBCacheEntry64`, 23 words).
    #[derive(Copy, Default)]
    pub struct CacheEntry64 {
        /// Its address in memory.
        pub address: i32,
        /// The cell's number.
        pub cell: i32,
        /// The file that it caches.
        pub net_fid: Fid,
        /// Bytes.
        pub length: i64,
        /// The data version.
        pub data_version: i32,
        /// Its lock.
        pub lock: DbLockDescription,
        /// The server that promised a callback.
        pub callback: i32,
        /// When the promise ends.
        pub callback_expires: i32,
        /// The number of references.
        pub reference_count: i16,
        /// The number of opens.
        pub opens: i16,
        /// The number of writers.
        pub writers: i16,
        /// 0 no mount point, 1 a mount point, 2 the root of a volume.
        pub mount_point_state: u8,
        /// State bits.
        pub states: u8,
    }
}
