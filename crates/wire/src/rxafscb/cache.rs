//! What `cmdebug` shows of a cache manager: locks and cache entries.

use cellar_xdr::{WordString, xdr_struct};

use crate::ids::Fid;

xdr_struct! {
    /// A lock inside the cache manager (`AFSDBLockDesc`, 8 words).
    #[derive(Copy, Default)]
    pub struct DbLockDescription {
        /// Who waits: 1 readers, 2 writers.
        pub wait_states: u8,
        /// Whether a writer has it.
        pub exclusively_locked: u8,
        /// Readers that have it.
        pub readers_reading: i16,
        /// Processes that wait.
        pub waiting: i16,
        /// Spare.
        pub spare: i16,
        /// The last reader's process.
        pub pid_last_reader: i32,
        /// The writer's process.
        pub pid_writer: i32,
        /// Where in the source it was taken.
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
        /// Where it is in memory.
        pub address: i32,
        /// The cell's number.
        pub cell: i32,
        /// What it caches.
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
        /// References.
        pub reference_count: i16,
        /// Opens.
        pub opens: i16,
        /// Writers.
        pub writers: i16,
        /// 0 no mount point, 1 a mount point, 2 the root of a volume.
        pub mount_point_state: u8,
        /// State bits.
        pub states: u8,
    }

    /// A cache entry with a 64-bit length (`AFSDBCacheEntry64`, 23 words).
    #[derive(Copy, Default)]
    pub struct CacheEntry64 {
        /// Where it is in memory.
        pub address: i32,
        /// The cell's number.
        pub cell: i32,
        /// What it caches.
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
        /// References.
        pub reference_count: i16,
        /// Opens.
        pub opens: i16,
        /// Writers.
        pub writers: i16,
        /// 0 no mount point, 1 a mount point, 2 the root of a volume.
        pub mount_point_state: u8,
        /// State bits.
        pub states: u8,
    }
}
