//! The bounds on the objects of files, with their units and reasons.

use std::time::Duration;

use cellar_wire::afsosd::STORE_LEASE;

/// Volumes from other servers for which the server remembers that the location database lists them
/// here.
pub(crate) const CLAIMS_MAX: usize = 16 << 10;

/// Files up to this size stay on the file server, unless the database sets another limit for
/// `local_disk`.
pub(crate) const LOCAL_SIZE_DEFAULT: u64 = 1 << 20;

/// A store moves no file larger than this from the file server to objects, because the bytes are
/// copied while the client waits.
pub const OBJECT_MOVE_MAX: u64 = 64 << 20;

/// Bytes of a store into objects that are kept while they are written. If a device that was healthy
/// before fails, or another store changes the file, the store begins again with them.
pub const OBJECT_REPLAY_MAX: usize = 8 << 20;

/// How long a store waits for another store of the same file in objects. After that the client must
/// retry.
pub(crate) const STORE_LOCK_PATIENCE: Duration = Duration::from_secs(20);

/// How long a device may be silent before another copy is read.
pub(crate) const OBJECT_PATIENCE: Duration = Duration::from_secs(1);

/// How often the list of devices and the policies are loaded.
pub(crate) const DEVICES_INTERVAL: Duration = Duration::from_secs(3);

/// How long a store waits for the list of devices, the policies and the devices' states, if they
/// are not known since the start. Applies to files that a policy may send to devices. After that
/// the client must retry (VBUSY). A database that has just started knows all states after 8 s.
pub(crate) const STATES_PATIENCE: Duration = Duration::from_secs(10);

/// Time after the start from which such stores fail (EIO), if the list or the policies could never
/// be loaded.
pub(crate) const STATES_DEADLINE: Duration = Duration::from_secs(90);

/// How often the list is requested while a store waits for it.
pub(crate) const STATES_INTERVAL: Duration = Duration::from_millis(500);

/// How long one such request may take.
pub(crate) const STATES_ASK_PATIENCE: Duration = Duration::from_secs(2);

/// Lifetime of a capability that this server makes for its own use. It makes a new one after half
/// this time.
pub(crate) const SERVER_CAPABILITY_LIFE: Duration = Duration::from_secs(600);

/// Lifetime of a capability to read that is given to a client.
pub(crate) const CLIENT_CAPABILITY_LIFE: Duration = Duration::from_secs(300);

/// Lifetime of a capability to store, which equals that of the store itself without renewal. It is
/// short, because devices honour it even after the store has ended.
pub(crate) const STORE_CAPABILITY_LIFE: Duration = Duration::from_secs(STORE_LEASE as u64);

/// Files in objects that clients read directly at a time. Further clients read through this server.
pub(crate) const READ_FILES_MAX: usize = 256 << 10;

/// Layouts of successive versions of one file that clients may be reading. A device has
/// [`cellar_wire::osd::VERSIONS_MAX`] versions of an object, and clones need some of them.
pub(crate) const LENT_LAYOUTS_MAX: usize = 64;

/// Direct stores in progress at a time.
pub(crate) const STORE_LEASES_MAX: usize = 16 << 10;

/// How often the server looks for direct stores that are no longer renewed.
pub(crate) const STORE_LEASES_INTERVAL: Duration = Duration::from_secs(5);

/// Files that wait for the removal of their old versions.
pub(crate) const PRUNES_MAX: usize = 64 << 10;

/// Pause between two rounds that remove old versions.
pub(crate) const PRUNE_PAUSE: Duration = Duration::from_millis(100);

/// How long the removal of the data of a failed store may take. No other store of the file begins
/// in that time.
pub(crate) const REMOVE_FAILED_PATIENCE: Duration = Duration::from_secs(2);

/// How long a device counts as alive after an answer. Checked before a new file without copies is
/// placed on it.
pub(crate) const ALIVE_TIME: Duration = Duration::from_secs(1);
/// How long the device may take to answer that check, see [`ALIVE_TIME`].
pub(crate) const ALIVE_PATIENCE: Duration = Duration::from_secs(1);

/// Approximate number of objects of a device that are judged together when garbage is collected.
pub(crate) const COLLECT_OBJECTS: usize = 16 << 10;

/// Files whose store locks are taken together when garbage is removed.
pub(crate) const COLLECT_FILES: usize = 32;

/// How long garbage removal waits for a lock. A busy file is left for the next time.
pub(crate) const COLLECT_LOCK_PATIENCE: Duration = Duration::from_millis(200);

/// Pause between two parts of a round that collects garbage in the background.
pub(crate) const COLLECT_PAUSE: Duration = Duration::from_millis(200);

/// Objects that wait for repair. Further ones are found when these are done.
pub(crate) const REPAIRS_MAX: usize = 64 << 10;

/// Objects that are repaired at a time.
pub(crate) const REPAIRS_AT_ONCE: usize = 4;

/// Shortest time after which a failed repair of an object is retried.
pub(crate) const REPAIR_AGAIN: Duration = Duration::from_secs(2);
/// Longest time after which a failed repair is retried, see [`REPAIR_AGAIN`].
pub(crate) const REPAIR_AGAIN_MOST: Duration = Duration::from_secs(600);

/// Files that are examined at a time in the search for needed repairs.
pub(crate) const REPAIR_LOOKS: usize = 16 << 10;

/// Shortest time between two examinations of all files while a device is missing or being emptied.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// How often the server looks for devices that are missing or being emptied.
pub(crate) const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// Damaged objects that are remembered.
pub(crate) const DAMAGED_MAX: usize = 64 << 10;

/// Bytes of a file that are read at a time while they are copied to objects.
pub(crate) const COPY_PIECE_BYTES: usize = 256 * 1024;

/// How long a failed recall is reported to callers that do not wait for recalls. After that the
/// next such caller begins another recall. Longer than the pause of clients after VBUSY.
pub(crate) const RECALL_FAILURE_TIME: Duration = Duration::from_secs(60);

/// Failed recalls that are remembered for that time. Further ones are not reported to callers that
/// do not wait, and begin again.
pub(crate) const RECALL_FAILURES_MAX: usize = 4096;

/// Files whose recalls are queued or in progress; callers for further files are told to come back.
pub(crate) const RECALLS_MAX: usize = 16 << 10;

/// Reads of older bytes at a time; further ones are told to come back. Each holds up to 9 MiB.
pub(crate) const OLDER_READS_MAX: usize = 16;
