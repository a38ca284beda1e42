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
    /// Replication of database files. A Cellar database is its own sync site and takes changes from
    /// no other server, so it refuses nearly all. A sync site would have to ask itself for the
    /// version (`UDEADLOCK`).
    pub DISK { service: 51, port: 0, statistics: 12 }

    20000 Begin { tid: UbikTid } -> BeginReply {} refuses USYNC;
    20001 Commit { tid: UbikTid } -> CommitReply {} refuses USYNC;
    20002 Lock { tid: UbikTid, file: i32, position: i32, length: i32, lock_type: i32 }
        -> LockReply {} refuses USYNC;
    20003 Write { tid: UbikTid, file: i32, position: i32, data: BulkData } -> WriteReply {}
        refuses USYNC;
    20004 GetVersion {} -> GetVersionReply { version: UbikVersion } refuses UDEADLOCK;
    /// Streams a length word and the bytes.
    20005 GetFile { file: i32 } -> GetFileReply { version: UbikVersion } streams reply refuses USYNC;
    20006 SendFile { file: i32, length: i32, version: UbikVersion } -> SendFileReply {}
        streams request refuses USYNC;
    20007 Abort { tid: UbikTid } -> AbortReply {} refuses USYNC;
    20008 ReleaseLocks { tid: UbikTid } -> ReleaseLocksReply {} refuses USYNC;
    20009 Truncate { tid: UbikTid, file: i32, length: i32 } -> TruncateReply {} refuses USYNC;
    20010 Probe {} -> ProbeReply {};
    20011 WriteV { tid: UbikTid, vector: IovecWrite, buffer: IovecBuffer } -> WriteVReply {}
        refuses USYNC;
    20012 UpdateInterfaceAddr { address: UbikInterfaceAddr }
        -> UpdateInterfaceAddrReply { address: UbikInterfaceAddr } refuses USYNC;
    20013 SetVersion { tid: UbikTid, old_version: UbikVersion, new_version: UbikVersion }
        -> SetVersionReply {} refuses USYNC;
}
