//! Every bound of this crate, with its reason.

use std::time::Duration;

/// Devices of one process: as many as a heartbeat carries.
pub const DEVICES_MAX: usize = 64;

/// Bytes of an object read at a time. Those that the system has in memory are read on the shard's
/// thread, which this holds for some 60 microseconds.
pub const READ_PIECE_BYTES: usize = 256 << 10;

/// Pieces of a stream that are read at a time when the disk has to be waited for.
pub const PIECES_AHEAD: usize = 3;

/// Bytes of a write gathered before they go to the store: what it writes to blocks at a time.
pub const WRITE_PIECE_BYTES: u64 = 512 << 10;

/// Reads and writes up to this long are done in one step, and do not count as streams.
pub const SMALL_BYTES: u64 = 64 << 10;

/// Writes up to this long are gathered, then done in one step: two changes of a thread and one of the journal are
/// saved.
pub const AT_ONCE_BYTES: u64 = 256 << 10;

/// Streams of a process at a time, each with a megabyte in memory at most; more are refused with
/// VBUSY. One client gets as many as are free, so one alone half of them.
pub const STREAMS_MAX: usize = 512;

/// Bytes of one call when an object is copied from another device.
pub const COPY_RANGE_BYTES: u64 = 8 << 20;

/// Time between two heartbeats: a device that is silent for a few of them counts as dead.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);

/// How long a database may take to answer one; then the next is due.
pub const HEARTBEAT_PATIENCE: Duration = Duration::from_secs(4);

/// Longest time that a peer takes nothing of what it reads, or sends nothing of what is copied from it.
pub const STREAM_PATIENCE: Duration = Duration::from_secs(60);

/// Longest silence of a peer that writes. It may have to wait for its own source: between two units of one
/// object those of all others come, 64 MiB over a line of 1 Mbit/s.
pub const WRITE_PATIENCE: Duration = Duration::from_secs(600);

/// Time between two looks at what was removed softly.
pub const PURGE_INTERVAL: Duration = Duration::from_secs(600);

/// Time between two looks at how full the devices are that keep what is removed; a write that finds no room has
/// them looked at too.
pub const ROOM_INTERVAL: Duration = Duration::from_secs(10);

/// A device is full when less than this and less than a twentieth of it is free: file servers place nothing new
/// there then.
pub const ROOM_BYTES: u64 = 4 << 30;

/// Shortest time between the starts of two scrubs.
pub const SCRUB_INTERVAL_LEAST: Duration = Duration::from_secs(1);

/// Objects of a list, at most; an answer also stays below the size that callers take.
pub const LIST_MAX: usize = 256;
