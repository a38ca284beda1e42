//! All bounds of this crate, with their reasons.

use std::time::Duration;

/// Most shards: more threads have never helped a file server.
pub const SHARDS_MAX: usize = 64;

/// Requested size of each socket's buffers, bytes. This is 13 ms of traffic at 10 Gbit/s, so a
/// shard that is busy for that long loses nothing.
pub const SOCKET_BUFFER_BYTES: usize = 16 << 20;

/// Datagrams received from one socket before calls run. This is about a millisecond of work, so a
/// flood delays arrived calls by no more than that. The last batch is processed as a whole.
pub const DATAGRAMS_PER_TURN: usize = 512;

/// Most bytes of datagrams in flight from one shard to another.
pub const PASSED_ON_BYTES_MAX: usize = 8 << 20;

/// Calls run before the socket is polled again.
pub const CALLS_PER_TURN_MAX: usize = 128;

/// Time after which a turn starts no further call. Acknowledgements and other ports thus wait no
/// longer than this and one handler.
pub const TURN_TIME_MAX: Duration = Duration::from_millis(1);

/// After a turn longer than this the sockets are polled.
pub const LONG_TURN: Duration = Duration::from_micros(200);

/// Time after which a turn sends no further long run; a megabyte or two have left by then.
pub const SEND_TIME_MAX: Duration = Duration::from_millis(1);

/// Most waiting calls of one port and shard. A waiting call holds the packets of its request.
pub const WAITING_CALLS_MAX: usize = 8192;

/// Most calls of one port and shard that run on this machine (not waiting for their peers).
pub const RUNNING_CALLS_MAX: usize = 512;

/// Default of the bytes that the protocol holds unacknowledged for each call. On a long path a call
/// may hold two congestion windows, see `cellar_rx::Limits::send_buffer_long_path`.
pub const SEND_BUFFER_BYTES: usize = 1 << 20;

/// The same for all calls of one port and shard. When it is used up, each call still gets 64 KiB,
/// and one write beyond. `n` readers that accept nothing use this bound plus that amount each, and
/// lose their calls after a minute. See `cellar_rx::Limits::send_buffers`.
pub const SEND_BUFFERS_BYTES: usize = 64 << 20;

/// Most server connections of all ports and shards of a runtime.
pub const CONNECTIONS_MAX: usize = 200_000;

/// Most of these that have not been used for a minute.
pub const IDLE_CONNECTIONS_MAX: usize = 50_000;

/// Most addresses in the protocol's tables, for all ports and shards of a runtime.
pub const PEERS_MAX: usize = 100_000;

/// Most calls in progress from verified addresses, for all ports and shards of a runtime.
pub const CALLS_MAX: usize = 40_000;

/// Most server connections from unverified addresses, for all ports and shards of a runtime (design
/// D13). Half of them is available to any port and shard. With 35,000 forged datagrams per second
/// at one port, each connection lives for a quarter of a second. A client proves its address in one
/// round trip. They use about 50 MB.
pub const UNVERIFIED_CONNECTIONS_MAX: usize = 16_384;

/// The same for one IP address, on one port and shard.
pub const UNVERIFIED_PER_ADDRESS_MAX: usize = 1_024;

/// Most waiting or running calls from such addresses, for all ports and shards of a runtime.
/// Beyond, an address gets a ping, and its call begins after the answer.
pub const UNVERIFIED_CALLS_MAX: usize = 256;

/// Most bytes held for them: unread requests and unacknowledged replies.
pub const UNVERIFIED_BYTES_MAX: usize = 64 << 20;

/// Most calls in progress of one host, on one port and shard; further ones get BUSY and are
/// repeated.
pub const CALLS_PER_HOST_MAX: usize = 1024;

/// Bytes given to the protocol at a time.
pub const WRITE_CHUNK_BYTES: usize = 256 << 10;

/// Received, unread bytes of an outgoing call at which its window closes.
pub const OUTGOING_RECEIVED_BYTES_MAX: usize = 1 << 20;

/// Written bytes of an outgoing call, not accepted by the protocol, at which its writer waits.
pub const OUTGOING_UNSENT_BYTES_MAX: usize = 1 << 20;

/// Most bytes of the results of one outgoing call, without streams.
pub const RESULT_BYTES_MAX: usize = 64 << 20;

/// Default of the calls in progress on one connection.
pub const CALLS_PER_CONNECTION: usize = 64;

/// Most calls that wait for a channel of one connection.
pub const CALLS_WAITING_PER_CONNECTION: usize = 65_536;

/// Threads for blocking work, for each shard.
pub const BLOCKING_THREADS: usize = 64;

/// Most answers to `rxdebug` of one port per second. A list of 10,000 connections takes two
/// seconds.
pub const DEBUG_ANSWERS_PER_SECOND: u32 = 5000;

/// Time that a shutdown waits for blocking work.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);

/// Most bytes of one chunk on the local administrator's socket.
pub const LOCAL_CHUNK_BYTES_MAX: usize = 1 << 20;

/// Most concurrent streams on the local administrator's socket.
pub const LOCAL_STREAMS_MAX: usize = 256;

const _: () = assert!(CALLS_PER_TURN_MAX <= WAITING_CALLS_MAX);
const _: () = assert!(WRITE_CHUNK_BYTES * 2 <= SEND_BUFFER_BYTES);
const _: () = assert!(SEND_BUFFER_BYTES <= SEND_BUFFERS_BYTES);
const _: () = assert!(RUNNING_CALLS_MAX <= WAITING_CALLS_MAX);
