//! Selections of VL calls, and statistics.

use cellar_xdr::xdr_struct;

use crate::ids::{AfsTime, AfsUuid, VolumeId};

xdr_struct! {
    /// Selects the entries to list (6 words).
    #[derive(Copy, Default)]
    pub struct VldbListByAttributes {
        /// `VLLIST_*`: the fields that count; 0 lists everything.
        pub mask: u32,
        /// The address of a server.
        pub server: u32,
        /// The number of a partition.
        pub partition: i32,
        /// Spare.
        pub spares3: i32,
        /// The id of a volume of any type.
        pub volumeid: VolumeId,
        /// `VLF_*`, `VLOP_*`: at least one of these must be set.
        pub flag: u32,
    }

    /// Selects the server whose addresses are listed (15 words).
    #[derive(Copy, Default)]
    pub struct ListAddrByAttributes {
        /// One of `VLADDR_*`.
        pub mask: u32,
        /// An address of the server.
        pub ipaddr: u32,
        /// Its place in the table of servers, from 1.
        pub index: i32,
        /// Spare.
        pub spare1: i32,
        /// Its UUID.
        pub uuid: AfsUuid,
    }

    /// A promise that was never used: all zeros (4 words).
    #[derive(Copy, Default)]
    pub struct VlCallBack {
        /// Unused.
        pub version: u32,
        /// Unused.
        pub expiration: u32,
        /// Unused.
        pub callback_type: u32,
        /// Unused.
        pub handle: u32,
    }

    /// The head of the database (`vital_vlheader`, 10 words).
    #[derive(Copy, Default)]
    pub struct VitalVlHeader {
        /// Format of the database: 3 or 4 in OpenAFS.
        pub vldbversion: i32,
        /// Bytes of the header.
        pub headersize: i32,
        /// First free entry.
        pub free_ptr: i32,
        /// End of the file.
        pub eof_ptr: i32,
        /// Entries ever allocated.
        pub allocs: i32,
        /// Entries ever freed.
        pub frees: i32,
        /// The next volume id.
        pub max_volume_id: VolumeId,
        /// Entries with a read-write, read-only, backup volume.
        pub total_entries: [i32; 3],
    }

    /// Counters of the server (`vldstats`, 106 words).
    #[derive(Copy)]
    pub struct VldStats {
        /// When the server started.
        pub start_time: AfsTime,
        /// Calls, by procedure (opcode - 501).
        pub requests: [i32; 50],
        /// Calls that failed, by procedure.
        pub aborts: [i32; 50],
        /// Spare.
        pub reserved: [i32; 5],
    }
}
