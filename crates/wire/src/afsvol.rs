//! AFSVol: the volume server, which makes, moves, clones and dumps volumes. Service 4, port 7005.
//!
//! Work on a volume happens in a volume transaction. TransCreate or CreateVolume return its number,
//! and EndTrans ends it. The server ends a transaction that was not used for ten minutes.
//!
//! Source: the volint interface file of OpenAFS 1.8; semantics in its volserver.

use cellar_xdr::{AfsString, List};

use crate::ids::{AfsTime, Fid, VolumeId};
use crate::package::package;

mod constants;
mod delta;
mod info;
mod load;
mod partition;
mod scrub;
mod usage;

pub use constants::*;
pub use delta::*;
pub use info::{TransDebugInfo, VolserStatus, VolumeInfo, VolumeInfoX, VolumeName};
pub use load::*;
pub use partition::{
    DestServer, DiskPartition, DiskPartition64, Replica, RestoreCookie, VolumeSize,
};
pub use scrub::*;
pub use usage::*;

/// A volume's name as an argument: servers refuse more than 31 bytes.
pub type VolumeNameArgument = AfsString<32>;
/// The name of a partition.
pub type PartitionName = AfsString<4096>;

/// Volumes, or transactions, in one reply. The interface has no bound.
pub const ENTRIES_MAX: usize = 4_000_000;

package! {
    /// The volume server.
    pub AFSVol { service: 4, port: 7005, statistics: 16 }

    100 CreateVolume {
        partition: i32, name: VolumeNameArgument, volume_type: i32, parent: VolumeId,
        volume: VolumeId
    } -> CreateVolumeReply { volume: VolumeId, trans: i32 };
    101 DeleteVolume { trans: i32 } -> DeleteVolumeReply {};
    /// The client streams a dump.
    102 Restore { trans: i32, flags: i32, cookie: RestoreCookie } -> RestoreReply {}
        streams request;
    103 Forward {
        from_trans: i32, from_date: i32, destination: DestServer, dest_trans: i32,
        cookie: RestoreCookie
    } -> ForwardReply {};
    104 EndTrans { trans: i32 } -> EndTransReply { rcode: i32 };
    105 Clone {
        trans: i32, purge_volume: VolumeId, new_type: i32, new_name: VolumeNameArgument,
        new_volume: VolumeId
    } -> CloneReply { new_volume: VolumeId };
    106 SetFlags { trans: i32, flags: i32 } -> SetFlagsReply {};
    107 GetFlags { trans: i32 } -> GetFlagsReply { flags: i32 };
    108 TransCreate { volume: VolumeId, partition: i32, flags: i32 }
        -> TransCreateReply { trans: i32 };
    /// Streams a dump; date 0 means a full dump.
    109 Dump { trans: i32, from_date: i32 } -> DumpReply {} streams reply;
    /// Refused with VOLSERNO_OP.
    110 GetNthVolume { index: i32 } -> GetNthVolumeReply { volume: VolumeId, partition: i32 }
        refuses VOLSERNO_OP;
    111 SetForwarding { trans: i32, new_site: u32 } -> SetForwardingReply {};
    112 GetName { trans: i32 } -> GetNameReply { name: AfsString<256> };
    113 GetStatus { trans: i32 } -> GetStatusReply { status: VolserStatus };
    /// Does nothing.
    114 SignalRestore {
        name: VolumeNameArgument, volume_type: i32, parent: VolumeId, clone: VolumeId
    } -> SignalRestoreReply {};
    /// Slot i holds i if that partition exists, else -1.
    115 ListPartitions {} -> ListPartitionsReply { partitions: [i32; 26] };
    /// `flags`: 0 ids only, 1 everything.
    116 ListVolumes { partition: i32, flags: i32 }
        -> ListVolumesReply { entries: List<VolumeInfo, ENTRIES_MAX> };
    117 SetIdsTypes {
        trans: i32, name: VolumeNameArgument, volume_type: i32, parent: VolumeId,
        clone: VolumeId, backup: VolumeId
    } -> SetIdsTypesReply {};
    118 Monitor {} -> MonitorReply { entries: List<TransDebugInfo, ENTRIES_MAX> };
    119 PartitionInfo { name: PartitionName } -> PartitionInfoReply { partition: DiskPartition };
    120 ReClone { trans: i32, clone: VolumeId } -> ReCloneReply {};
    121 ListOneVolume { partition: i32, volume: VolumeId }
        -> ListOneVolumeReply { entries: List<VolumeInfo, ENTRIES_MAX> };
    122 NukeVolume { partition: i32, volume: VolumeId } -> NukeVolumeReply {};
    123 SetDate { trans: i32, new_date: i32 } -> SetDateReply {};
    124 XListVolumes { partition: i32, flags: i32 }
        -> XListVolumesReply { entries: List<VolumeInfoX, ENTRIES_MAX> };
    125 XListOneVolume { partition: i32, volume: VolumeId }
        -> XListOneVolumeReply { entries: List<VolumeInfoX, ENTRIES_MAX> };
    /// Fields of -1 stay as they are.
    126 SetInfo { trans: i32, info: VolumeInfo } -> SetInfoReply {};
    127 XListPartitions {} -> XListPartitionsReply { partitions: List<i32, 1024> };
    128 ForwardMultiple {
        from_trans: i32, from_date: i32, destinations: List<Replica, DESTINATIONS_MAX>,
        spare: i32, cookie: RestoreCookie
    } -> ForwardMultipleReply { results: List<i32, DESTINATIONS_MAX> };
    65536 ConvertROtoRWvolume { partition: i32, volume: VolumeId }
        -> ConvertROtoRWvolumeReply {};
    65537 GetSize { trans: i32, from_date: i32 } -> GetSizeReply { size: VolumeSize };
    /// Streams a dump; `flags`: [`DUMP_OMIT_DIRS`], [`DUMP_OSD_METADATA`].
    65538 DumpV2 { trans: i32, from_date: i32, flags: i32 } -> DumpV2Reply {} streams reply;
    65539 PartitionInfo64 { name: PartitionName }
        -> PartitionInfo64Reply { partition: DiskPartition64 };
    /// Streams text. Only builds with splitting answer it.
    65547 SplitVolume { volume: VolumeId, new_volume: VolumeId, vnode: u32, verbose: i32 }
        -> SplitVolumeReply {} streams reply;
    /// Cellar extension: returns the state of the volume of a transaction. Other servers answer
    /// RXGEN_OPCODE; they receive plain dumps.
    1128614912 GetState { trans: i32 } -> GetStateReply { version: u32, state: VolumeState };
    /// Cellar extension: the client streams a delta, see [`crate::delta`]. If the volume is not in
    /// the state that the delta starts from, it stays as it is and the call fails with ESTALE.
    1128614913 RestoreDelta { trans: i32, cookie: RestoreCookie, head: DeltaHead }
        -> RestoreDeltaReply {} streams request;
    /// Cellar extension: returns the abilities of this volume server beyond OpenAFS's procedures
    /// (`CAN_*`). For every caller.
    1128614914 GetCapabilities {} -> GetCapabilitiesReply { version: u32, capabilities: u32 };
    /// Cellar extension: verifies all data of a volume (0: of every volume of the partition).
    /// `rate_kib` limits the speed in KiB per second (0: no limit).
    ///
    /// Streams records ([`SCRUB_PROGRESS`], [`SCRUB_DAMAGE`]) up to [`SCRUB_END`]. `partial`: the
    /// scrub ended before it had verified everything.
    1128614915 Scrub { partition: i32, volume: VolumeId, rate_kib: u32 }
        -> ScrubReply { partial: bool } streams reply;
    /// Cellar extension: replaces the damaged bytes of a file that has this length and data
    /// version. The client streams the bytes of `places`, in ascending order, from a copy of that
    /// version. The server itself takes the same bytes from other versions that it has, if they are
    /// intact.
    ///
    /// Returns the blocks and pages that are repaired, how many of these the server found itself,
    /// and how many are still damaged.
    1128614916 Refill {
        partition: i32, fid: Fid, length: u64, data_version: u64,
        places: List<ScrubPlace, PLACES_MAX>
    } -> RefillReply { restored: u64, from_here: u64, missing: u64 } streams request;
    /// Cellar extension: returns the cell whose object storage this server uses; empty: none. For
    /// every caller. If it is the caller's own cell, the caller sends layouts of files in objects
    /// instead of their bytes.
    1128614917 GetObjectCell {} -> GetObjectCellReply { cell: AfsString<256> };
    /// Cellar extension: returns statistics of the files of a volume, by size and by location; see
    /// [`Usage`].
    1128614918 Traverse { partition: i32, volume: VolumeId } -> TraverseReply { usage: Usage };
    /// Cellar extension: returns the volumes, users or client machines (`LOAD_*`) with the most
    /// calls of clients. For superusers. Other values of `kind`: EINVAL.
    1128614919 GetLoad { kind: u32 } -> GetLoadReply { entries: List<LoadEntry, LOAD_ENTRIES_MAX> };
    /// Cellar extension: returns the progress of the scrub of a partition, and the result of the
    /// last one since the start of the server. `every`: seconds between regular scrubs, 0 for none.
    /// `started`: the start of the running or the last scrub. `ended`: the end of the last, 0 for
    /// none; `partial` and `last` belong to it. For every caller.
    1128614920 ScrubStatus { partition: i32 } -> ScrubStatusReply {
        every: u32, rate_kib: u32, running: bool, started: AfsTime, progress: ScrubProgress,
        ended: AfsTime, partial: bool, last: ScrubProgress
    };
}
