//! DISK: the calls by which the sync site of a replicated database changes the other copies.
//! Service 51, on the port of each database.
//!
//! Cellar's databases are not replicated in this way. The calls are declared so that a refusal can
//! name them.
//!
//! Source: the ubik_int interface file of OpenAFS 1.8.

use cellar_xdr::{List, Opaque, xdr_struct};

use crate::package::package;
use crate::vote::{UbikTid, UbikVersion};

xdr_struct! {
    /// A range of bytes of a change (3 words).
    #[derive(Copy, Default)]
    pub struct UbikIovec {
        /// The database file.
        pub file: i32,
        /// The position in the file.
        pub position: i32,
        /// The number of bytes.
        pub length: i32,
    }

    /// Addresses of a server (256 words).
    #[derive(Copy)]
    pub struct UbikInterfaceAddr {
        /// The addresses, with zeros after the last.
        pub addresses: [u32; 256],
    }
}

/// Bytes of one Write.
pub type BulkData = Opaque<20_000>;
/// Ranges of one WriteV.
pub type IovecWrite = List<UbikIovec, 64>;
/// Bytes of one WriteV.
pub type IovecBuffer = Opaque<65_536>;

package! {
    /// Replication of database files.
    pub DISK { service: 51, port: 0, statistics: 12 }

    20000 Begin { tid: UbikTid } -> BeginReply {};
    20001 Commit { tid: UbikTid } -> CommitReply {};
    20002 Lock { tid: UbikTid, file: i32, position: i32, length: i32, lock_type: i32 }
        -> LockReply {};
    20003 Write { tid: UbikTid, file: i32, position: i32, data: BulkData } -> WriteReply {};
    20004 GetVersion {} -> GetVersionReply { version: UbikVersion };
    /// Streams a length word and the bytes.
    20005 GetFile { file: i32 } -> GetFileReply { version: UbikVersion } streams reply;
    20006 SendFile { file: i32, length: i32, version: UbikVersion } -> SendFileReply {}
        streams request;
    20007 Abort { tid: UbikTid } -> AbortReply {};
    20008 ReleaseLocks { tid: UbikTid } -> ReleaseLocksReply {};
    20009 Truncate { tid: UbikTid, file: i32, length: i32 } -> TruncateReply {};
    20010 Probe {} -> ProbeReply {};
    20011 WriteV { tid: UbikTid, vector: IovecWrite, buffer: IovecBuffer } -> WriteVReply {};
    20012 UpdateInterfaceAddr { address: UbikInterfaceAddr }
        -> UpdateInterfaceAddrReply { address: UbikInterfaceAddr };
    20013 SetVersion { tid: UbikTid, old_version: UbikVersion, new_version: UbikVersion }
        -> SetVersionReply {};
}
