//! BOZO: the basic overseer, which keeps a machine's server processes. Service 1, port 7007.
//!
//! Source: the bosint interface file of OpenAFS 1.8; semantics in its bosserver.

use cellar_xdr::{AfsString, WordBytes, xdr_struct};

use crate::package::package;

/// A text argument or result.
pub type BozoString = AfsString<256>;

/// `goal`: the process should not run.
pub const GOAL_SHUTDOWN: i32 = 0;
/// `goal`: the process should run. As a status: running normally.
pub const GOAL_NORMAL: i32 = 1;
/// As a status: about to stop.
pub const GOAL_SHUTTING_DOWN: i32 = 2;
/// As a status: about to start.
pub const GOAL_STARTING_UP: i32 = 3;

/// `flags` of [`BozoStatus`]: there is a core file.
pub const FLAG_HAS_CORE: i32 = 1;
/// Stopped after too many errors.
pub const FLAG_ERROR_STOP: i32 = 2;
/// A directory has the wrong mode.
pub const FLAG_BAD_DIR_ACCESS: i32 = 4;

/// Prune `.OLD` files.
pub const PRUNE_OLD: i32 = 1;
/// Prune `.BAK` files.
pub const PRUNE_BAK: i32 = 2;
/// Prune core files.
pub const PRUNE_CORE: i32 = 4;

/// Restart time of everything.
pub const RESTART_GENERAL: i32 = 1;
/// Restart time of new binaries.
pub const RESTART_BINARIES: i32 = 2;

xdr_struct! {
    /// A time in the week (5 words).
    #[derive(Copy, Default)]
    pub struct NetKTime {
        /// The fields that count: 1 hour, 2 minute, 4 second, 8 day, 0x10 never, 0x20 now.
        pub mask: i32,
        /// 0 to 23.
        pub hour: i16,
        /// 0 to 59.
        pub minute: i16,
        /// 0 to 59.
        pub second: i16,
        /// 0 is Sunday.
        pub day: i16,
    }

    /// A description of a key, without the key (4 words).
    #[derive(Copy, Default)]
    pub struct BozoKeyInfo {
        /// When the key file changed.
        pub modified_seconds: i32,
        /// The microseconds of that time.
        pub modified_microseconds: i32,
        /// A checksum of the key.
        pub key_checksum: u32,
        /// Spare.
        pub spare2: i32,
    }

    /// A process or a group of them (17 words).
    #[derive(Copy, Default)]
    pub struct BozoStatus {
        /// The current goal.
        pub goal: i32,
        /// The goal in the configuration.
        pub file_goal: i32,
        /// When it was last started.
        pub start_time: i32,
        /// The number of starts.
        pub starts: i32,
        /// When it last ended.
        pub last_any_exit: i32,
        /// When it last ended without a request.
        pub last_error_exit: i32,
        /// The exit code of that end.
        pub error_code: i32,
        /// The signal of that end.
        pub error_signal: i32,
        /// `FLAG_*`.
        pub flags: i32,
        /// Spare.
        pub spare: [i32; 8],
    }
}

/// A DES key; zeros unless the connection is encrypted.
pub type BozoKey = WordBytes<8>;

package! {
    /// The basic overseer.
    pub BOZO { service: 1, port: 7007, statistics: 1 }

    80 CreateBnode {
        bnode_type: BozoString, instance: BozoString, p1: BozoString, p2: BozoString,
        p3: BozoString, p4: BozoString, p5: BozoString, p6: BozoString
    } -> CreateBnodeReply {};
    81 DeleteBnode { instance: BozoString } -> DeleteBnodeReply {};
    82 SetStatus { instance: BozoString, status: i32 } -> SetStatusReply {};
    83 GetStatus { instance: BozoString }
        -> GetStatusReply { status: i32, description: BozoString };
    84 EnumerateInstance { index: i32 } -> EnumerateInstanceReply { instance: BozoString };
    85 GetInstanceInfo { instance: BozoString }
        -> GetInstanceInfoReply { bnode_type: BozoString, status: BozoStatus };
    /// `number` 999 returns the notifier.
    86 GetInstanceParm { instance: BozoString, number: i32 }
        -> GetInstanceParmReply { parameter: BozoString };
    87 AddSUser { name: BozoString } -> AddSUserReply {};
    88 DeleteSUser { name: BozoString } -> DeleteSUserReply {};
    89 ListSUsers { index: i32 } -> ListSUsersReply { name: BozoString };
    90 ListKeys { index: i32 }
        -> ListKeysReply { kvno: i32, key: BozoKey, key_info: BozoKeyInfo };
    91 AddKey { kvno: i32, key: BozoKey } -> AddKeyReply {};
    92 DeleteKey { kvno: i32 } -> DeleteKeyReply {};
    93 SetCellName { name: BozoString } -> SetCellNameReply {};
    94 GetCellName {} -> GetCellNameReply { name: BozoString };
    95 GetCellHost { index: u32 } -> GetCellHostReply { name: BozoString };
    96 AddCellHost { name: BozoString } -> AddCellHostReply {};
    97 DeleteCellHost { name: BozoString } -> DeleteCellHostReply {};
    98 SetTStatus { instance: BozoString, status: i32 } -> SetTStatusReply {};
    99 ShutdownAll {} -> ShutdownAllReply {};
    100 RestartAll {} -> RestartAllReply {};
    101 StartupAll {} -> StartupAllReply {};
    102 SetNoAuthFlag { flag: i32 } -> SetNoAuthFlagReply {};
    103 ReBozo {} -> ReBozoReply {};
    104 Restart { instance: BozoString } -> RestartReply {};
    105 Install { path: BozoString, size: i32, flags: i32, date: i32 } -> InstallReply {}
        streams request;
    106 UnInstall { path: BozoString } -> UnInstallReply {};
    /// The time of a file that does not exist is 0.
    107 GetDates { path: BozoString }
        -> GetDatesReply { new_time: i32, bak_time: i32, old_time: i32 };
    108 Exec { command: BozoString } -> ExecReply {};
    109 Prune { flags: i32 } -> PruneReply {};
    110 SetRestartTime { restart_type: i32, time: NetKTime } -> SetRestartTimeReply {};
    111 GetRestartTime { restart_type: i32 } -> GetRestartTimeReply { time: NetKTime };
    /// Streams text that a NUL ends.
    112 GetLog { name: BozoString } -> GetLogReply {} streams reply;
    113 WaitAll {} -> WaitAllReply {};
    114 GetInstanceStrings { instance: BozoString }
        -> GetInstanceStringsReply {
            error: BozoString, spare1: BozoString, spare2: BozoString, spare3: BozoString
        };
    115 GetRestrictedMode {} -> GetRestrictedModeReply { mode: i32 };
    116 SetRestrictedMode { mode: i32 } -> SetRestrictedModeReply {};
    /// Cellar's own. Streams the databases of the machine as text for `cellar db import`.
    1128614912 ExportDatabases {} -> ExportDatabasesReply {} streams reply;
}
