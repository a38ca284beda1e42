//! All bounds of this crate, with their reasons.

use std::time::Duration;

/// Most devices of one process: as many as fit in a heartbeat.
pub const DEVICES_MAX: usize = 64;

/// Bytes of an object read at a time. Bytes in the system's cache are read on the shard's thread,
/// which this blocks for about 60 microseconds.
pub const READ_PIECE_BYTES: usize = 256 << 10;

/// Pieces of a stream that are read ahead if the disk must be waited for.
pub const PIECES_AHEAD: usize = 3;

/// Bytes of a write collected before the store gets them: the size of its writes to blocks.
pub const WRITE_PIECE_BYTES: u64 = 512 << 10;

/// Reads and writes up to this length are done in one step, and do not count as streams.
pub const SMALL_BYTES: u64 = 64 << 10;

/// Writes up to this length are collected, then done in one step. This saves two thread switches
/// and one change of the journal.
pub const AT_ONCE_BYTES: u64 = 256 << 10;

/// Most concurrent streams of a process, each with at most a megabyte in memory; further ones are
/// refused with VBUSY. A client may have as many as are free, so a single client gets half of them.
pub const STREAMS_MAX: usize = 512;

/// Bytes of one call in a copy from another device.
pub const COPY_RANGE_BYTES: u64 = 8 << 20;

/// Interval of heartbeats: a device that is silent for a few of them counts as dead.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);

/// Time limit for a database to answer a heartbeat; then the next one is due.
pub const HEARTBEAT_PATIENCE: Duration = Duration::from_secs(4);

/// Longest time that a peer accepts nothing of what it reads, or sends nothing of what is copied
/// from it.
pub const STREAM_PATIENCE: Duration = Duration::from_secs(60);

/// Longest silence of a peer that writes. It may have to wait for its own source. The data of all
/// other objects comes between two units of one object, for instance 64 MiB over a line of 1
/// Mbit/s.
pub const WRITE_PATIENCE: Duration = Duration::from_secs(600);

/// Longest wait for the first bytes of a copy in an archive that is a directory. A tape system may
/// have a day's queue of mounts.
pub const TAPE_PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// Interval of checks for expired soft deletes.
pub const PURGE_INTERVAL: Duration = Duration::from_secs(600);

/// Interval of checks for full devices with soft deletes. A write that finds no room also starts a
/// check.
pub const ROOM_INTERVAL: Duration = Duration::from_secs(10);

/// A device is full if less than this and less than a twentieth of it is free; file servers then
/// place nothing new there.
pub const ROOM_BYTES: u64 = 4 << 30;

/// Shortest time between the starts of two scrubs.
pub const SCRUB_INTERVAL_LEAST: Duration = Duration::from_secs(1);

/// Most objects in a list; an answer also stays below the size that callers accept.
pub const LIST_MAX: usize = 256;
