//! Every bound of the file server, with its reason. Nothing in this crate grows without a bound.
//!
//! Source of the customary values: the FS/CM specification, and observation of OpenAFS 1.8's file
//! server.

use std::time::Duration;

use cellar_wire::rxafs::LOCK_RANGES_MAX;

/// Shards of the callback and lock tables. A call holds one shard's lock for well under a
/// microsecond, so sixteen keep even many threads apart.
pub const TABLE_SHARDS: usize = 16;

/// Callback promises held in all, unless configured otherwise (about 64 bytes each).
pub const CALLBACKS_DEFAULT: usize = 1_000_000;

/// Hosts known at a time, unless configured otherwise. When the table is full, the hosts silent for
/// longest are dropped.
pub const HOSTS_DEFAULT: usize = 100_000;

/// Locked files at a time, and locked ranges at a time.
pub const LOCKS: usize = 1_000_000;

/// Locked ranges of one file, of all clients. Each new range is compared with them.
pub const RANGES_PER_FILE: usize = 8 * LOCK_RANGES_MAX;

/// Clients with locked ranges in one file. The ranges of a new client are compared with those of
/// every other, under the lock of a shard. More machines than this do not divide one file by byte
/// ranges.
pub const HOLDERS_PER_FILE: usize = 256;

/// Ranges of one machine, by its address (IPv6: its network of 64 bits). Clients choose owner
/// numbers freely, and one machine must not use up all [`LOCKS`]. Each shard counts by itself and
/// allows a sixteenth of this.
pub const RANGES_PER_HOST: usize = LOCKS / 8;

/// Delayed breaks kept for one host that did not answer. A host that misses more must forget
/// everything instead (`InitCallBackState3`), so the list never grows with the number of stores.
pub const DELAYED_BREAKS_PER_HOST: usize = 1024;

/// Fids in one `CallBack` call (`AFSCBMAX`).
pub const FIDS_PER_BREAK: usize = 50;

/// Hosts notified of breaks at a time.
pub const BREAKS_IN_PARALLEL: usize = 1024;

/// Shortest time for which a change waits for a host to acknowledge a break. A host is late if it
/// has not answered by then and by [`BREAK_WAIT_FACTOR`] times its usual response time. The change
/// is then answered. The break is still being delivered, and the host is not served before it
/// received it. The time is long enough to retransmit a packet that was lost once on a local
/// network.
pub const BREAK_WAIT_LEAST: Duration = Duration::from_millis(250);

/// Longest time for which a change waits for a host to acknowledge a break, however far away the
/// host is.
pub const BREAK_WAIT_MOST: Duration = Duration::from_secs(1);

/// A host is late after this many times its usual response time.
pub const BREAK_WAIT_FACTOR: u32 = 4;

/// How long one `CallBack` call may take. A host that has not answered by then is silent. Only the
/// delivering task waits so long.
pub const BREAK_PATIENCE: Duration = Duration::from_secs(3);

/// Pauses before a silent host is retried. After the last retry, the break is delivered at the
/// host's next call.
pub const BREAK_RETRIES: [Duration; 3] = [
    Duration::from_secs(5),
    Duration::from_secs(20),
    Duration::from_secs(60),
];

/// How long one question to a host at first contact may take (`TellMeAboutYourself`,
/// `InitCallBackState3`). A client answers these without asking another machine.
pub const CONTACT_PATIENCE: Duration = Duration::from_secs(8);

/// How long a probe of a silent host may take.
pub const PROBE_PATIENCE: Duration = Duration::from_secs(4);

/// How long a known host that calls from a new address may take to answer at its old address, if it
/// still has that. Its call waits for the answer. Longer than a packet that is lost once takes. If
/// the host was missed nevertheless, it is reached at the new address, which it also has.
pub const MOVE_PATIENCE: Duration = Duration::from_secs(1);

/// Calls of one host that may wait while the host is being asked who it is. Further calls get
/// `VBUSY`, which clients retry.
pub const CALLS_WAITING_PER_HOST: u32 = 64;

/// Alternate addresses kept for one host (`AFS_MAX_INTERFACE_ADDR`).
pub const ADDRESSES_PER_HOST: usize = 32;

/// Time for which the server keeps a promise longer than the client was told. The client counts
/// from the moment when it sent its call, and clocks run at different speeds.
pub const PROMISE_MARGIN_SECS: u32 = 180;

/// How long a host may be silent before it is probed, if it holds promises.
pub const HOST_PROBE_AFTER: Duration = Duration::from_secs(15 * 60);

/// How long a host may be silent before its record is dropped.
pub const HOST_EXPIRES_AFTER: Duration = Duration::from_secs(2 * 60 * 60);

/// How often the server looks for silent hosts.
pub const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// How often expired promises and locks are removed.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(120);

/// How long the groups (CPS) of a caller are used before they are loaded again.
pub const CPS_REFRESH: Duration = Duration::from_secs(2 * 60 * 60);

/// How long a known caller keeps its identity while the protection database cannot be reached,
/// before the next attempt.
pub const CPS_RETRY: Duration = Duration::from_secs(60);

/// How long a user that was found in `UserList` counts as a superuser before the list is checked
/// again.
pub const SUPERUSER_REFRESH: Duration = Duration::from_secs(10);

/// Duration of the lease of a directory, from the grant or the last extension, unless configured
/// otherwise. If a host dies with a lease, others wait at most this long. A live host sends its
/// pending creates more often.
pub const LEASE: Duration = Duration::from_secs(15);

/// Time for which the server keeps a lease longer than the host was told, because clocks run at
/// different speeds.
pub const LEASE_MARGIN: Duration = Duration::from_secs(1);

/// How long a directory that a second host wanted during a lease is leased to no host.
pub const LEASE_CONTESTED: Duration = Duration::from_secs(30);

/// How long a grant waits at most for calls that began before it. After that the directory counts
/// as in use.
pub const LEASE_GRANT_PATIENCE: Duration = Duration::from_secs(1);

/// Leases at a time, of all hosts (about 100 bytes each). A host has one for each directory in
/// which it creates many entries at a time.
pub const LEASES_MAX: usize = 128 << 10;
/// Leases of one host at a time, see [`LEASES_MAX`]. Enough to unpack 1,000 directories a second
/// for the duration of a lease.
pub const LEASES_PER_HOST: usize = 16 << 10;
/// Shortest time between two sweeps for expired leases, when there are too many.
pub const LEASES_SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Contested directories that are remembered.
pub const LEASES_CONTESTED_MAX: usize = 64 << 10;

/// Entries that one MakeMany creates on the shard's thread. More are created on a thread that may
/// wait, because a shard's thread has other calls to answer.
pub const MAKE_AT_ONCE: usize = 8;

/// Approximate bytes that one change of several entries adds to the journal at most.
pub const MAKE_CHANGE_BYTES: u64 = 256 << 10;

/// Lifetime of a file lock, from the last set or extend (`AFS_LOCKWAIT`).
pub const LOCK_SECS: u32 = 300;

/// Blocks by which a `StoreData` may exceed the quota of its volume (OpenAFS `-spare`).
pub const STORE_SLACK_BLOCKS: u32 = 1024;

/// Bytes read from a file at a time while it is sent.
pub const FETCH_PIECE_BYTES: usize = 256 * 1024;

/// Bytes of one `StoreData` collected before they go to the volume.
pub const STORE_PIECE_BYTES: usize = 1024 * 1024;

/// Attempts to give a promise after the status was read. After these the promise is given first,
/// and the status is read afterwards (see `rxafs::promise`).
pub const PROMISE_TRIES: u32 = 4;

/// Volume transactions open at a time.
pub const VOLUME_TRANSACTIONS: usize = 4096;

/// A volume transaction that was not used for this long is ended by the server, unless configured
/// otherwise.
pub const VOLUME_TRANSACTION_IDLE: Duration = Duration::from_secs(600);

/// Bytes of a dump that are read, or gathered to be restored, at a time.
pub const VOLUME_STREAM_PIECE_BYTES: usize = 512 * 1024;

/// How long a dump, or a restore, waits for a peer that is alive but transfers no data.
pub const VOLUME_STREAM_PATIENCE: Duration = Duration::from_secs(30 * 60);

/// How long another volume server may take to report the state of a volume.
pub const VOLUME_QUESTION_PATIENCE: Duration = Duration::from_secs(60);

/// Longest time between two checks for volume transactions that are not used.
pub const TRANSACTION_SWEEP_INTERVAL: Duration = Duration::from_secs(30);

/// How long no question is sent to the volume location server after it did not answer.
pub const LOCATIONS_HOLD_OFF: Duration = Duration::from_secs(180);

/// The same, for a store into a file of a volume that came from another server. Without an answer
/// that file is copied.
pub const CLAIM_HOLD_OFF: Duration = Duration::from_secs(15);
/// How long such a store waits for the answer, see [`CLAIM_HOLD_OFF`].
pub const CLAIM_PATIENCE: Duration = Duration::from_secs(5);

/// Time between tries to register with the volume location servers.
pub const REGISTER_RETRY: Duration = Duration::from_secs(5);

/// Longest time between tries to register.
pub const REGISTER_RETRY_MAX: Duration = Duration::from_secs(300);

/// Bytes of a store into objects that must have arrived before the store waits for the file's lock.
pub const OBJECT_BEGIN_BYTES: u64 = 256 << 10;

/// Attempts of one store in objects or on this server, while other stores change the file. Each
/// attempt may write all bytes, and the client waits that long. After that it must retry.
pub const STORE_ATTEMPTS: u32 = 8;

const _: () = assert!(FIDS_PER_BREAK <= DELAYED_BREAKS_PER_HOST);
const _: () = assert!(BREAK_PATIENCE.as_secs() < CONTACT_PATIENCE.as_secs());
const _: () = assert!(BREAK_WAIT_LEAST.as_millis() < BREAK_WAIT_MOST.as_millis());
const _: () = assert!(BREAK_WAIT_MOST.as_millis() < BREAK_PATIENCE.as_millis());

/// How long a call waits for the recall of a wiped file. Clients count a call as dead only after
/// silence, and the server answers their pings meanwhile.
pub(crate) const RECALL_PATIENCE: Duration = Duration::from_secs(60);

/// Accounts of users, groups and volumes with recall limits (about 300 bytes each). If there are
/// more, those that were not used for longest are forgotten.
pub(crate) const RECALL_ACCOUNTS_MAX: usize = 16 << 10;

/// How long the ids of users and groups in recall limits are used before they are loaded again.
pub(crate) const RECALL_NAMES_REFRESH: Duration = Duration::from_secs(600);

/// Shortest time between two log lines about refusals of recalls of one account.
pub(crate) const RECALL_REFUSAL_LOG: Duration = Duration::from_secs(60);

/// How often a call waits for recalls of one file that is wiped again meanwhile.
pub(crate) const RECALL_ATTEMPTS: usize = 3;
