//! Numbers in AFSVol calls.

/// Destinations of a ForwardMultiple.
pub const DESTINATIONS_MAX: usize = 13;

/// Type of a volume: read-write.
pub const READWRITE: i32 = 0;
/// Read-only.
pub const READONLY: i32 = 1;
/// Backup.
pub const BACKUP: i32 = 2;

/// TransCreate: the volume is off line to clients.
pub const IT_OFFLINE: i32 = 0x01;
/// Clients receive VBUSY; a read-only volume stays on line.
pub const IT_BUSY: i32 = 0x02;
/// Clients may read.
pub const IT_READ_ONLY: i32 = 0x08;
/// The volume is being created; the file server does not know it yet.
pub const IT_CREATE: i32 = 0x10;
/// The caller gives the id of the volume.
pub const IT_CREATE_VOLUME_ID: i32 = 0x1000;

/// SetFlags: the volume is removed if its transaction does not finish.
pub const VT_DELETE_ON_SALVAGE: i32 = 1;
/// It stays off line after the transaction.
pub const VT_OUT_OF_SERVICE: i32 = 2;
/// The volume was deleted in the transaction.
pub const VT_DELETED: i32 = 4;

/// Flags of a transaction: the volume was deleted in it.
pub const TT_DELETED: i32 = 1;

/// DumpV2: leave out directories that did not change.
pub const DUMP_OMIT_DIRS: i32 = 1;
/// DumpV2: send the layouts of files in objects instead of their bytes, as AFS/OSD's volume servers
/// do. Other servers do not know the flag.
pub const DUMP_OSD_METADATA: i32 = 2;

/// `status` of a volume in a list: sound.
pub const STATUS_OK: i32 = 2;
/// Another transaction uses it.
pub const STATUS_BUSY: i32 = 110;
/// `destroy_me`: the volume is removed if its transaction ends unfinished.
pub const DESTROY_ME: u8 = 0xd3;
