//! Far servers get larger transfers.
//!
//! 1. A call of one MiB takes about three round trips, and a store of many MiB seven or eight,
//!    whatever the bandwidth of the path. One of them is the answer; in the others the call reaches
//!    the speed of the path (`cellar_rx`: calls start with their share). So the farther a server
//!    is, the more is fetched ahead of a reader, and the more one store call carries.
//! 2. This holds for Cellar's servers. A call to an OpenAFS server moves 32 packets in a round
//!    trip, however large the call is. And such a server has so few threads that more calls at a
//!    time would only delay others.

use std::time::Duration;

use cellar_cachestore::STORE_BYTES;
use cellar_wire::rxafs;

use crate::reads::CHUNK;
use crate::reads::Reads;
use crate::user::User;
use crate::vnode::Vnode;

/// The most chunks fetched ahead of a reader from a near server, or one that is not Cellar's.
const AHEAD_NEAR: u64 = 16;
/// The same for a far server: 48 MiB in three round trips of 100 ms are 1.3 Gbit/s.
pub(crate) const AHEAD_FAR: u64 = 48;
/// The most bytes that one call stores at a far server.
const STORE_FAR: u64 = 4 * STORE_BYTES;
/// A server with this round trip or a longer one gets the largest transfers.
const FAR: Duration = Duration::from_millis(80);
const ALL: u64 = FAR.as_millis() as u64;

impl Reads {
    /// The most chunks fetched ahead of a reader, given the size of the cache.
    pub(crate) fn ahead_max(&self) -> u64 {
        AHEAD_FAR.min(self.env.size() / CHUNK / 4)
    }

    /// The most chunks of this file fetched ahead.
    pub(crate) fn ahead_of(&self, user: &User, vnode: &Vnode) -> u64 {
        let more = (AHEAD_FAR - AHEAD_NEAR) * farness(user, vnode) / ALL;
        (AHEAD_NEAR + more).min(self.ahead_max())
    }

    /// The most bytes of this file that one call stores.
    pub(crate) fn store_bytes(&self, user: &User, vnode: &Vnode) -> u64 {
        let more = (STORE_FAR - STORE_BYTES) * farness(user, vnode) / ALL;
        (STORE_BYTES + more).min(self.env.size() / 8)
    }
}

/// The distance of a file's server, from 0 to [`ALL`].
fn farness(user: &User, vnode: &Vnode) -> u64 {
    let servers = user.client().servers();
    let path = vnode.promised_by().and_then(|server| {
        let connection = servers.connection(&vnode.volume().cell, server, &rxafs::PACKAGE);
        connection.network_path()
    });
    path.filter(|path| path.wide)
        .map_or(0, |path| path.round_trip.min(FAR).as_millis() as u64)
}
