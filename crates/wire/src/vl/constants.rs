//! Numbers in VL calls and entries.

/// Sites in an old entry.
pub const OLD_SITES_MAX: usize = 8;
/// Sites in an `N` or `U` entry.
pub const SITES_MAX: usize = 13;

/// The read-write volume of a group, as type and as index into `volume_ids`.
pub const RWVOL: i32 = 0;
/// The read-only volume.
pub const ROVOL: i32 = 1;
/// The backup volume.
pub const BACKVOL: i32 = 2;
/// Any of the three.
pub const ANYVOL: i32 = -1;

/// Flags of an entry: the read-write volume exists.
pub const VLF_RWEXISTS: u32 = 0x1000;
/// The read-only volume exists (it was released at least once).
pub const VLF_ROEXISTS: u32 = 0x2000;
/// The backup volume exists.
pub const VLF_BACKEXISTS: u32 = 0x4000;
/// A DFS fileset.
pub const VLF_DFSFILESET: u32 = 0x8000;

/// The entry is locked for a move.
pub const VLOP_MOVE: u32 = 0x10;
/// Locked for a release.
pub const VLOP_RELEASE: u32 = 0x20;
/// Locked for making the backup volume.
pub const VLOP_BACKUP: u32 = 0x40;
/// Locked for a deletion, or for adding a site.
pub const VLOP_DELETE: u32 = 0x80;
/// Locked for a dump, or for a restore.
pub const VLOP_DUMP: u32 = 0x100;
/// All operation flags.
pub const VLOP_ALLOPERS: u32 = 0x1f0;

/// Flags of a site: it has the version that is being released.
pub const VLSF_NEWREPSITE: u32 = 0x01;
/// The site holds the read-only volume.
pub const VLSF_ROVOL: u32 = 0x02;
/// The site holds the read-write volume.
pub const VLSF_RWVOL: u32 = 0x04;
/// The site holds the backup volume.
pub const VLSF_BACKVOL: u32 = 0x08;
/// The server is named by UUID (`U` entries only).
pub const VLSF_UUID: u32 = 0x10;
/// Listed, but nothing was released there yet; clients must not use it.
pub const VLSF_DONTUSE: u32 = 0x20;
/// A read-write replica.
pub const VLSF_RWREPLICA: u32 = 0x40;

/// `releasetype` bits: remove the lock's time.
pub const LOCKREL_TIMESTAMP: i32 = 1;
/// Remove the operation flag.
pub const LOCKREL_OPCODE: i32 = 2;
/// Remove the locker's id.
pub const LOCKREL_AFSID: i32 = 4;

/// `VldbListByAttributes::mask`: only sites on `server`.
pub const VLLIST_SERVER: u32 = 1;
/// Only sites on `partition`.
pub const VLLIST_PARTITION: u32 = 2;
/// Only the entry of `volumeid`.
pub const VLLIST_VOLUMEID: u32 = 8;
/// Only entries with a flag of `flag`.
pub const VLLIST_FLAG: u32 = 16;

/// `VldbUpdateEntry::mask`: the name.
pub const VLUPDATE_VOLUMENAME: u32 = 0x0001;
/// The flags.
pub const VLUPDATE_FLAGS: u32 = 0x0004;
/// The read-only volume's id.
pub const VLUPDATE_READONLYID: u32 = 0x0008;
/// The backup volume's id.
pub const VLUPDATE_BACKUPID: u32 = 0x0010;
/// The sites, as the mask of each one selects.
pub const VLUPDATE_REPSITES: u32 = 0x0020;
/// The clone's id.
pub const VLUPDATE_CLONEID: u32 = 0x0080;
/// Hash the name again.
pub const VLUPDATE_VOLNAMEHASH: u32 = 0x0100;
/// Hash the read-write id again.
pub const VLUPDATE_RWID: u32 = 0x0200;

/// `SiteUpdate::mask`: remove the site.
pub const VLUPDATE_REPS_DELETE: u32 = 0x0100;
/// Add the site.
pub const VLUPDATE_REPS_ADD: u32 = 0x0200;
/// Change its server.
pub const VLUPDATE_REPS_MODSERV: u32 = 0x0400;
/// Change its partition.
pub const VLUPDATE_REPS_MODPART: u32 = 0x0800;
/// Change its flags.
pub const VLUPDATE_REPS_MODFLAG: u32 = 0x1000;

/// `ListAddrByAttributes::mask`: the server with `ipaddr`.
pub const VLADDR_IPADDR: u32 = 1;
/// The server of that `index`, from 1.
pub const VLADDR_INDEX: u32 = 2;
/// The server of that `uuid`.
pub const VLADDR_UUID: u32 = 4;
