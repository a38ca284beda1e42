//! RXAFSCB: the calls that a cache manager answers. Service 1, port 7001.
//!
//! File servers use them to break promises and to learn the identity of a host. `cmdebug` and
//! `xstat_cm_test` use them to examine the cache manager. File servers send CallBack with an
//! *empty* list of callbacks; a client accepts an empty list, or one callback for each fid.
//!
//! Source: the afscbint interface file of OpenAFS 1.8; Linux fs/afs/cmservice.c.

use cellar_xdr::{AfsString, List};

use crate::host::{Capabilities, InterfaceAddr};
use crate::ids::AfsUuid;
use crate::package::package;
use crate::rxafs::{Callbacks, Fids};

mod cache;

pub use cache::{CacheEntry, CacheEntry64, DbLock, DbLockDescription};

/// A cell's name.
pub type CellName = AfsString<256>;

/// Counters of a cache manager's xstat collection.
pub type CmStats = List<i32, 2048>;

/// Words of GetCacheConfig. The interface has no bound; version 1 has 9.
pub const CACHE_CONFIG_MAX: usize = 1024;

package! {
    /// The cache manager.
    pub RXAFSCB { service: 1, port: 7001, statistics: 6 }

    /// A fid with vnode 0 means the whole volume.
    204 CallBack { fids: Fids, callbacks: Callbacks } -> CallBackReply {};
    205 InitCallBackState {} -> InitCallBackStateReply {};
    206 Probe {} -> ProbeReply {};
    207 GetLock { index: i32 } -> GetLockReply { lock: DbLock } refuses RXGEN_OPCODE;
    208 GetCE { index: i32 } -> GetCEReply { entry: CacheEntry } refuses RXGEN_OPCODE;
    209 XStatsVersion {} -> XStatsVersionReply { version: i32 } refuses RXGEN_OPCODE;
    210 GetXStats { client_version: i32, collection: i32 }
        -> GetXStatsReply { server_version: i32, time: i32, data: CmStats } refuses RXGEN_OPCODE;
    /// Obsolete: refused with RXGEN_OPCODE.
    211 InitCallBackState2 {} -> InitCallBackState2Reply { address: InterfaceAddr }
        refuses RXGEN_OPCODE;
    212 WhoAreYou {} -> WhoAreYouReply { address: InterfaceAddr };
    213 InitCallBackState3 { server_uuid: AfsUuid } -> InitCallBackState3Reply {};
    /// Succeeds if the UUID is the client's own, else aborts with 1.
    214 ProbeUuid { client_uuid: AfsUuid } -> ProbeUuidReply {};
    215 GetServerPrefs { index: i32 } -> GetServerPrefsReply { address: u32, rank: i32 }
        refuses RXGEN_OPCODE;
    216 GetCellServDB { index: i32 } -> GetCellServDBReply { name: CellName, hosts: [u32; 8] }
        refuses RXGEN_OPCODE;
    217 GetLocalCell {} -> GetLocalCellReply { name: CellName } refuses RXGEN_OPCODE;
    218 GetCacheConfig { caller_version: u32 }
        -> GetCacheConfigReply {
            server_version: u32, config_count: u32, config: List<u32, CACHE_CONFIG_MAX>
        } refuses RXGEN_OPCODE;
    65536 GetCE64 { index: i32 } -> GetCE64Reply { entry: CacheEntry64 } refuses RXGEN_OPCODE;
    65537 GetCellByNum { number: i32 } -> GetCellByNumReply { name: CellName, hosts: [u32; 8] }
        refuses RXGEN_OPCODE;
    65538 TellMeAboutYourself {}
        -> TellMeAboutYourselfReply { address: InterfaceAddr, capabilities: Capabilities };
}
