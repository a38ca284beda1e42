//! VOTE: the election of the database server that takes changes, and the calls of `udebug`. Service
//! 50, on the port of each database.
//!
//! Cellar's databases do not vote. Its servers answer the debugging calls like a healthy single
//! site.
//!
//! Source: the ubik_int interface file of OpenAFS 1.8.

use cellar_xdr::xdr_struct;

use crate::package::package;

/// Addresses in [`UbikDebug`].
pub const INTERFACES_MAX: usize = 256;

/// `recovery_state`: this is the sync site.
pub const RECOVERY_SYNC_SITE: u32 = 0x01;
/// `recovery_state`: the newest database is known.
pub const RECOVERY_FOUND_DB: u32 = 0x02;
/// `recovery_state`: the newest database is on this server.
pub const RECOVERY_HAVE_DB: u32 = 0x04;
/// `recovery_state`: the newest database has a new label.
pub const RECOVERY_LABEL_DB: u32 = 0x08;
/// `recovery_state`: the newest database was sent to the others.
pub const RECOVERY_SENT_DB: u32 = 0x10;

xdr_struct! {
    /// A version of a database.
    #[derive(Copy, Default, PartialOrd, Ord, Hash)]
    pub struct UbikVersion {
        /// When the sync site was elected.
        pub epoch: i32,
        /// Changes since then.
        pub counter: i32,
    }

    /// A transaction.
    #[derive(Copy, Default, PartialOrd, Ord, Hash)]
    pub struct UbikTid {
        /// When the sync site was elected.
        pub epoch: i32,
        /// Its number since then.
        pub counter: i32,
    }

    /// The state of a database server, in the form for old `udebug` (28 words).
    #[derive(Copy, Default)]
    pub struct UbikDebugOld {
        /// Now, seconds since 1970.
        pub now: u32,
        /// When this server last voted yes.
        pub last_yes_time: u32,
        /// The server that it voted for.
        pub last_yes_host: u32,
        /// Whether that server was the sync site.
        pub last_yes_state: u32,
        /// When that server claimed to be the sync site.
        pub last_yes_claim: u32,
        /// The lowest address of a server that was heard from.
        pub lowest_host: u32,
        /// When it was last heard from.
        pub lowest_time: u32,
        /// The sync site.
        pub sync_host: u32,
        /// When the sync site was last heard from.
        pub sync_time: u32,
        /// The version of the sync site.
        pub sync_version: UbikVersion,
        /// The transaction of the sync site.
        pub sync_tid: UbikTid,
        /// Whether this server is the sync site.
        pub am_sync_site: u32,
        /// The time until which it is the sync site.
        pub sync_site_until: u32,
        /// The number of servers.
        pub server_count: u32,
        /// The number of locked pages.
        pub locked_pages: u32,
        /// The number of pages locked for writing.
        pub write_locked_pages: u32,
        /// The version on this server.
        pub local_version: UbikVersion,
        /// Whether a change is in progress.
        pub active_write: u32,
        /// The last transaction.
        pub tid_counter: u32,
        /// Whether there are read locks.
        pub any_read_locks: u32,
        /// Whether there are write locks.
        pub any_write_locks: u32,
        /// `RECOVERY_*`.
        pub recovery_state: u32,
        /// Whether there is a transaction.
        pub current_transaction: u32,
        /// Whether that transaction writes.
        pub write_transaction: u32,
        /// When the server started.
        pub epoch_time: u32,
    }

    /// The state of a database server (284 words).
    #[derive(Copy)]
    pub struct UbikDebug {
        /// All but the addresses.
        pub state: UbikDebugOld,
        /// This server's addresses, zeros after the last.
        pub interfaces: [u32; INTERFACES_MAX],
    }

    /// The knowledge of a server about another one, in the form for old `udebug` (11 words).
    #[derive(Copy, Default)]
    pub struct UbikSdebugOld {
        /// The other server's address.
        pub address: u32,
        /// When it last answered.
        pub last_vote_time: u32,
        /// When it was last asked.
        pub last_beacon_sent: u32,
        /// Whether it voted yes.
        pub last_vote: u32,
        /// Its version.
        pub remote_version: UbikVersion,
        /// Whether its database is current.
        pub current_database: u32,
        /// Whether it was asked since it was last down.
        pub beacon_since_down: u32,
        /// Whether it is up.
        pub up: u32,
    }

    /// The knowledge of a server about another one.
    #[derive(Copy)]
    pub struct UbikSdebug {
        /// All but the addresses.
        pub state: UbikSdebugOld,
        /// The other server's further addresses.
        pub alternate_addresses: [u32; INTERFACES_MAX - 1],
    }
}

package! {
    /// Election of a sync site.
    pub VOTE { service: 50, port: 0, statistics: 11 }

    /// A vote is returned as an abort: 0 is no, any other code is the time of the vote.
    10000 Beacon { state: i32, vote_start: i32, version: UbikVersion, tid: UbikTid }
        -> BeaconReply {};
    10001 DebugOld {} -> DebugOldReply { state: UbikDebugOld };
    10002 SDebugOld { which: i32 } -> SDebugOldReply { state: UbikSdebugOld } refuses ENOENT;
    /// The site is declared as an argument, so no reply carries it.
    10003 GetSyncSite { site: u32 } -> GetSyncSiteReply {};
    10004 Debug {} -> DebugReply { state: UbikDebug };
    /// For an index after the last server the abort code is 2.
    10005 SDebug { which: i32 } -> SDebugReply { state: UbikSdebug } refuses ENOENT;
    10006 XDebug {} -> XDebugReply { state: UbikDebug, is_clone: i32 };
    10007 XSDebug { which: i32 } -> XSDebugReply { state: UbikSdebug, is_clone: i32 }
        refuses ENOENT;
}
