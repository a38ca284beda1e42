//! Every bound of the file server, with its reason. Nothing in this crate grows without one.
//!
//! Source of the customary values: the FS/CM specification, and OpenAFS 1.8's file server as
//! observed.

use std::time::Duration;

use cellar_wire::afsosd::STORE_LEASE;
use cellar_wire::rxafs::LOCK_RANGES_MAX;

/// Shards of the callback and lock tables. A call holds one shard's lock for well under a
/// microsecond, so sixteen keep even many threads apart.
pub const TABLE_SHARDS: usize = 16;

/// Callback promises held in all, unless configured otherwise (about 64 bytes each).
pub const CALLBACKS_DEFAULT: usize = 1_000_000;

/// Hosts known at a time, unless configured otherwise. Beyond it the longest silent host goes.
pub const HOSTS_DEFAULT: usize = 100_000;

/// Files that are locked at a time, and ranges of files.
pub const LOCKS: usize = 1_000_000;

/// Locked ranges of one file, of all clients: each new one is compared with them.
pub const RANGES_PER_FILE: usize = 8 * LOCK_RANGES_MAX;

/// Clients that have ranges of one file: what each new one wants is compared with what every one has, under the
/// lock of a shard. More machines than this do not share out one file by its bytes.
pub const HOLDERS_PER_FILE: usize = 256;

/// Ranges of one machine, by its address (IPv6: its network of 64 bits): owners are the callers' choice, and one of
/// them shall not have all [`LOCKS`]. Counted in each shard by itself, a sixteenth of this.
pub const RANGES_PER_HOST: usize = LOCKS / 8;

/// Breaks remembered for one host that did not answer. A host that misses more is told to forget
/// everything instead (`InitCallBackState3`), so the list never grows with the number of stores.
pub const DELAYED_BREAKS_PER_HOST: usize = 1024;

/// Fids in one `CallBack` call (`AFSCBMAX`).
pub const FIDS_PER_BREAK: usize = 50;

/// Hosts told of one break at a time.
pub const BREAKS_IN_PARALLEL: usize = 1024;

/// How long a change waits at least for a host that is told of it. A host that has not answered by
/// then, or by [`BREAK_WAIT_FACTOR`] times what its answers took before, is late: the change is
/// answered, the host is still being told, and is not served before it was. Long enough for a
/// packet that is lost once on a local network to be sent again.
pub const BREAK_WAIT_LEAST: Duration = Duration::from_millis(250);

/// How long a change waits at most for a host that is told of it, however far away that is.
pub const BREAK_WAIT_MOST: Duration = Duration::from_secs(1);

/// Answers of a host may take so many times longer than they usually do before it is late.
pub const BREAK_WAIT_FACTOR: u32 = 4;

/// How long one `CallBack` call may take. A host that has not answered by then is silent; nobody
/// waits so long but the task that tells it.
pub const BREAK_PATIENCE: Duration = Duration::from_secs(3);

/// When a silent host is tried again by itself. After the last it is told at its next call.
pub const BREAK_RETRIES: [Duration; 3] = [
    Duration::from_secs(5),
    Duration::from_secs(20),
    Duration::from_secs(60),
];

/// How long one question to a host at first contact may take (`TellMeAboutYourself`,
/// `InitCallBackState3`): a client answers these without asking anybody.
pub const CONTACT_PATIENCE: Duration = Duration::from_secs(8);

/// How long a probe of a silent host may take.
pub const PROBE_PATIENCE: Duration = Duration::from_secs(4);

/// How long a host that calls from another address may take to answer at the one before, if it still has that: its call
/// waits for it. Longer than a packet that is lost once takes; a host that was missed even so is told at the new
/// address, which it has as well.
pub const MOVE_PATIENCE: Duration = Duration::from_secs(1);

/// Calls of one host that may wait while the host is being asked who it is; the next ones get
/// `VBUSY`, which clients retry.
pub const CALLS_WAITING_PER_HOST: u32 = 64;

/// Alternate addresses kept for one host (`AFS_MAX_INTERFACE_ADDR`).
pub const ADDRESSES_PER_HOST: usize = 32;

/// A promise outlives by this much, on the server's side, what the client was told, because the
/// client counts from the moment it sent its call and clocks run at different speeds.
pub const PROMISE_MARGIN_SECS: u32 = 180;

/// How long a host may be silent before it is probed, if it holds promises.
pub const HOST_PROBE_AFTER: Duration = Duration::from_secs(15 * 60);

/// How long a host may be silent before its record is dropped.
pub const HOST_EXPIRES_AFTER: Duration = Duration::from_secs(2 * 60 * 60);

/// How often silent hosts are looked for.
pub const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// How often expired promises and locks are swept.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(120);

/// How long a caller's protection subdomain is used before it is asked for again.
pub const CPS_REFRESH: Duration = Duration::from_secs(2 * 60 * 60);

/// When a protection database that could not be reached is asked again about somebody who is known.
pub const CPS_RETRY: Duration = Duration::from_secs(60);

/// How long somebody who was found in `UserList` is taken for a superuser before it is looked at
/// again.
pub const SUPERUSER_REFRESH: Duration = Duration::from_secs(10);

/// How long the lease of a directory lasts, from when it is granted or made longer, unless configured otherwise. A host that
/// dies with one keeps others waiting so long at most; one that lives tells of what it made more often.
pub const LEASE: Duration = Duration::from_secs(15);

/// A lease outlives by this much, on the server's side, what the host was told: clocks run at different speeds.
pub const LEASE_MARGIN: Duration = Duration::from_secs(1);

/// How long nobody gets the lease of a directory that one host had and another wanted.
pub const LEASE_CONTESTED: Duration = Duration::from_secs(30);

/// How long a lease waits at most for calls that had begun before it; then the directory is in use.
pub const LEASE_GRANT_PATIENCE: Duration = Duration::from_secs(1);

/// Leases at a time, of all hosts and of one (about 100 bytes each). A host has one for each directory that it makes many
/// things in at a time.
pub const LEASES_MAX: usize = 128 << 10;
/// See [`LEASES_MAX`]: 1,000 directories a second, unpacked for as long as a lease lasts.
pub const LEASES_PER_HOST: usize = 16 << 10;
/// How often it is looked for leases that are over, where there are too many.
pub const LEASES_SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Directories that are remembered as wanted by two.
pub const LEASES_CONTESTED_MAX: usize = 64 << 10;

/// Things that are made on the spot by one MakeMany; more, on a thread that may wait: a shard's thread has others to answer.
pub const MAKE_AT_ONCE: usize = 8;

/// Bytes that one change of several things brings at most into the journal, about.
pub const MAKE_CHANGE_BYTES: u64 = 256 << 10;

/// Length of a file lock, from the last set or extend (`AFS_LOCKWAIT`).
pub const LOCK_SECS: u32 = 300;

/// Blocks by which a `StoreData` may exceed the quota of its volume (OpenAFS `-spare`).
pub const STORE_SLACK_BLOCKS: u32 = 1024;

/// Bytes read from a file at a time while it is sent.
pub const FETCH_PIECE_BYTES: usize = 256 * 1024;

/// Bytes of one `StoreData` collected before they go to the volume.
pub const STORE_PIECE_BYTES: usize = 1024 * 1024;

/// Tries to give a promise without holding anything back, before it is given first and the status
/// read afterwards (see `callback`).
pub const PROMISE_TRIES: u32 = 4;

/// Volume transactions open at a time.
pub const VOLUME_TRANSACTIONS: usize = 4096;

/// A volume transaction that nobody touched for this long is ended by the server, unless configured
/// otherwise.
pub const VOLUME_TRANSACTION_IDLE: Duration = Duration::from_secs(600);

/// Bytes of a dump that are read, or gathered to be restored, at a time.
pub const VOLUME_STREAM_PIECE_BYTES: usize = 512 * 1024;

/// How long a dump, or a restore, waits for a peer that lives and moves nothing.
pub const VOLUME_STREAM_PATIENCE: Duration = Duration::from_secs(30 * 60);

/// How long another volume server may take to say which state of a volume it has.
pub const VOLUME_QUESTION_PATIENCE: Duration = Duration::from_secs(60);

/// How often volume transactions that nobody touches are looked for, at least.
pub const TRANSACTION_SWEEP_INTERVAL: Duration = Duration::from_secs(30);

/// How long the volume location server is asked nothing after it did not answer.
pub const LOCATIONS_HOLD_OFF: Duration = Duration::from_secs(180);

/// The same, for a store into a file that came from elsewhere and is copied if nothing is learnt; and how long
/// it waits for the answer.
pub const CLAIM_HOLD_OFF: Duration = Duration::from_secs(15);
/// See [`CLAIM_HOLD_OFF`].
pub const CLAIM_PATIENCE: Duration = Duration::from_secs(5);

/// Volumes that came from elsewhere of which it is remembered that the location database has them here.
pub const CLAIMS_MAX: usize = 16 << 10;

/// Time between tries to register with the volume location servers.
pub const REGISTER_RETRY: Duration = Duration::from_secs(5);

/// Longest time between tries to register.
pub const REGISTER_RETRY_MAX: Duration = Duration::from_secs(300);

/// Files up to this size stay on the file server, unless the database says otherwise of `local_disk`.
pub const LOCAL_SIZE_DEFAULT: u64 = 1 << 20;

/// A file that lies on the file server and is larger than this is not moved to objects by a store: its
/// bytes are copied while the client waits.
pub const OBJECT_MOVE_MAX: u64 = 64 << 20;

/// Bytes of a store into objects that have come before it waits for the file's turn.
pub const OBJECT_BEGIN_BYTES: u64 = 256 << 10;

/// Bytes of a store into a new file that are kept while they are written: if a device fails, which
/// did well a moment ago, the file is stored on others.
pub const OBJECT_REPLAY_MAX: usize = 8 << 20;

/// How long a store waits for another one of the same file in objects; then the client comes again.
pub const OBJECT_TURN_PATIENCE: Duration = Duration::from_secs(20);

/// How long a device may be silent before another copy is read.
pub const OBJECT_PATIENCE: Duration = Duration::from_secs(1);

/// How often the list of devices, and the policies, are asked for.
pub const DEVICES_INTERVAL: Duration = Duration::from_secs(3);

/// How long a store of a file that a policy may send to devices waits for the list of devices, the
/// policies and the devices' states, where they are not known since the start; then the client
/// comes again (VBUSY). A database that was just started knows all states after 8 s.
pub const STATES_PATIENCE: Duration = Duration::from_secs(10);

/// Time after the start from which such stores fail (EIO) when the list or the policies were never
/// to be had.
pub const STATES_DEADLINE: Duration = Duration::from_secs(90);

/// How often the list is asked for while a store waits for it.
pub const STATES_INTERVAL: Duration = Duration::from_millis(500);

/// How long one such question may take.
pub const STATES_ASK_PATIENCE: Duration = Duration::from_secs(2);

/// How long a capability holds that this server makes for itself; half of it before it makes another.
pub const SERVER_CAPABILITY_LIFE: Duration = Duration::from_secs(600);

/// How long a capability to read holds that a client is given.
pub const CLIENT_CAPABILITY_LIFE: Duration = Duration::from_secs(300);

/// How long one to store holds: as long as the store itself, if nobody renews it. Devices honour it until then
/// after the store has ended as well, so it is short.
pub const STORE_CAPABILITY_LIFE: Duration = Duration::from_secs(STORE_LEASE as u64);

/// Files in objects that are read at a time, by clients directly; others read through this server then.
pub const READ_FILES_MAX: usize = 256 << 10;

/// Layouts of one file that clients may be reading, as its versions follow each other; a device has
/// [`cellar_wire::osd::VERSIONS_MAX`] versions of an object, and clones need some of them.
pub const LENT_LAYOUTS_MAX: usize = 64;

/// Direct stores under way at a time.
pub const STORE_LEASES_MAX: usize = 16 << 10;

/// How often direct stores that nobody renews are looked for.
pub const STORE_LEASES_INTERVAL: Duration = Duration::from_secs(5);

/// Files whose old versions wait to be given up.
pub const PRUNES_MAX: usize = 64 << 10;

/// Between two rounds of giving up old versions.
pub const PRUNE_PAUSE: Duration = Duration::from_millis(100);

/// For giving up what a store wrote that failed: no other store of the file begins meanwhile.
pub const UNMAKE_PATIENCE: Duration = Duration::from_secs(2);

/// How long a device that answered is taken to be there, and how long it may take to answer, before a new
/// file without copies is placed on it.
pub const ALIVE_TIME: Duration = Duration::from_secs(1);
/// See [`ALIVE_TIME`].
pub const ALIVE_PATIENCE: Duration = Duration::from_secs(1);

/// Objects of a device that are judged together, about, when garbage is collected.
pub const COLLECT_OBJECTS: usize = 16 << 10;

/// Files whose turns are taken together when garbage is removed.
pub const COLLECT_FILES: usize = 32;

/// How long that waits for a turn: what is busy is left for the next time.
pub const COLLECT_TURN_PATIENCE: Duration = Duration::from_millis(200);

/// Between two parts of a round that collects garbage in the background.
pub const COLLECT_PAUSE: Duration = Duration::from_millis(200);

/// Objects that wait to be made anew; more are found when these are done.
pub const REPAIRS_MAX: usize = 64 << 10;

/// Objects that are made anew at a time.
pub const REPAIRS_AT_ONCE: usize = 4;

/// First and longest time after which an object that could not be made anew is tried again.
pub const REPAIR_AGAIN: Duration = Duration::from_secs(2);
/// See [`REPAIR_AGAIN`].
pub const REPAIR_AGAIN_MOST: Duration = Duration::from_secs(600);

/// Files looked through at a time for what is to be repaired.
pub const REPAIR_LOOKS: usize = 16 << 10;

/// Shortest time between two looks through all files while a device is away or being emptied.
pub const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// How often devices that are away or being emptied are looked for.
pub const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// Damaged objects that are remembered.
pub const DAMAGED_MAX: usize = 64 << 10;

const _: () = assert!(FIDS_PER_BREAK <= DELAYED_BREAKS_PER_HOST);
const _: () = assert!(BREAK_PATIENCE.as_secs() < CONTACT_PATIENCE.as_secs());
const _: () = assert!(BREAK_WAIT_LEAST.as_millis() < BREAK_WAIT_MOST.as_millis());
const _: () = assert!(BREAK_WAIT_MOST.as_millis() < BREAK_PATIENCE.as_millis());
