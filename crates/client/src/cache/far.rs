//! What a far server asks for: more at a time.
//!
//! 1. A call of a MiB takes some three round trips, and a store of many MiB seven or eight, however much the path carries: one to
//!    be answered, the others until it goes as fast as the path does (`cellar_rx`: calls start with their share). So the farther a
//!    server is, the more is fetched ahead of a reader, and the more a store brings.
//! 2. That is so of Cellar's servers. A call to one of OpenAFS's moves 32 packets a round trip, however large it is; and it has so
//!    few threads that more calls at a time would only keep others waiting.

use std::time::Duration;

use cellar_cachestore::STORE_BYTES;
use cellar_wire::rxafs;

use super::Cache;
use super::read::CHUNK;
use super::user::User;
use super::vnode::Vnode;

/// Chunks fetched ahead of a reader at most, from a server that is near, or not Cellar's.
const AHEAD_NEAR: u64 = 16;
/// From one that is far: 48 MiB in three round trips of 100 ms are 1.3 Gbit/s.
pub(crate) const AHEAD_FAR: u64 = 48;
/// Bytes that a store brings to one that is far, at most.
const STORE_FAR: u64 = 4 * STORE_BYTES;
/// One that is farther than this is as far as can be.
const FAR: Duration = Duration::from_millis(80);
const ALL: u64 = FAR.as_millis() as u64;

impl Cache {
    /// Chunks fetched ahead of a reader at most, of a cache of this size.
    pub(crate) fn ahead_max(&self) -> u64 {
        AHEAD_FAR.min(self.size() / CHUNK / 4)
    }

    /// Chunks of a file fetched ahead at most.
    pub(crate) fn ahead_of(&self, user: &User, vnode: &Vnode) -> u64 {
        let more = (AHEAD_FAR - AHEAD_NEAR) * farness(user, vnode) / ALL;
        (AHEAD_NEAR + more).min(self.ahead_max())
    }

    /// Bytes of a file that one call stores at most.
    pub(crate) fn store_bytes(&self, user: &User, vnode: &Vnode) -> u64 {
        let more = (STORE_FAR - STORE_BYTES) * farness(user, vnode) / ALL;
        (STORE_BYTES + more).min(self.size() / 8)
    }
}

/// How far a file's server is, of [`ALL`].
fn farness(user: &User, vnode: &Vnode) -> u64 {
    let servers = user.client().servers();
    let path = vnode.promised_by().and_then(|server| {
        let connection = servers.connection(&vnode.volume.cell, server, &rxafs::PACKAGE);
        connection.network_path()
    });
    path.filter(|path| path.wide)
        .map_or(0, |path| path.round_trip.min(FAR).as_millis() as u64)
}
