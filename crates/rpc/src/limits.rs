//! Every bound of this crate, with its reason.

use std::time::Duration;

/// Shards at most: more threads than this never helped a file server.
pub const SHARDS_MAX: usize = 64;

/// Wanted size of each socket's buffers, bytes. At 10 Gbit/s this is 13 ms of traffic: a shard that
/// is busy for so long loses nothing.
pub const SOCKET_BUFFER_BYTES: usize = 16 << 20;

/// Datagrams received from one socket before calls are run: about a millisecond of work, so that
/// a flood delays the calls that have arrived by no more than that. The last batch is taken whole.
pub const DATAGRAMS_PER_TURN: usize = 512;

/// Bytes of datagrams under way from one shard to another.
pub const PASSED_ON_BYTES_MAX: usize = 8 << 20;

/// Calls run before the socket is looked at again.
pub const CALLS_PER_TURN_MAX: usize = 128;

/// Time after which a turn runs no further call, so that acknowledgements and other ports wait no
/// longer than this and one handler.
pub const TURN_TIME_MAX: Duration = Duration::from_millis(1);

/// A turn that took longer than this is followed by a look at the sockets.
pub const LONG_TURN: Duration = Duration::from_micros(200);

/// Time after which a turn sends no further long run: a megabyte or two have left by then.
pub const SEND_TIME_MAX: Duration = Duration::from_millis(1);

/// Calls of one port and shard that wait to be run. A call that waits costs the packets it came in.
pub const WAITING_CALLS_MAX: usize = 8192;

/// Calls of one port and shard that are running on this machine (not waiting for their peers).
pub const RUNNING_CALLS_MAX: usize = 512;

/// Bytes that the protocol holds written and unacknowledged, for each call, unless the port says
/// otherwise. Where the path is long the protocol lets a
/// call hold two congestion windows, see `cellar_rx::Limits::send_buffer_long_path`.
pub const SEND_BUFFER_BYTES: usize = 1 << 20;

/// The same over all calls of one port and shard. When it is used up, each call still gets 64 KiB,
/// and one write beyond: `n` readers that take nothing fill this and so much each. After a minute
/// they lose their calls. See `cellar_rx::Limits::send_buffers`.
pub const SEND_BUFFERS_BYTES: usize = 64 << 20;

/// Server connections of all ports and shards of a runtime.
pub const CONNECTIONS_MAX: usize = 200_000;

/// Of these, those that have not been used for a minute.
pub const IDLE_CONNECTIONS_MAX: usize = 50_000;

/// Addresses that the protocol remembers, of all ports and shards of a runtime.
pub const PEERS_MAX: usize = 100_000;

/// Calls in progress of verified addresses, of all ports and shards of a runtime.
pub const CALLS_MAX: usize = 40_000;

/// Server connections of addresses that have not proved that they receive, of all ports and shards
/// of a runtime (design D13). Half of them is there for any port and shard. 35,000 forged datagrams
/// a second at one port leave each connection a quarter of a second: a client proves its address in
/// one round trip. They take some 50 MB.
pub const UNVERIFIED_CONNECTIONS_MAX: usize = 16_384;

/// The same of one IP address, on one port and shard.
pub const UNVERIFIED_PER_ADDRESS_MAX: usize = 1_024;

/// Calls of such addresses that wait to be run or are running, of all ports and shards of a runtime.
/// Beyond, an address is pinged first, and its call begins when it has answered.
pub const UNVERIFIED_CALLS_MAX: usize = 256;

/// Bytes held for them: requests that are not read, replies that are not acknowledged.
pub const UNVERIFIED_BYTES_MAX: usize = 64 << 20;

/// Calls in progress of one host, on one port and shard; more get BUSY and are repeated.
pub const CALLS_PER_HOST_MAX: usize = 1024;

/// Bytes handed to the protocol at a time.
pub const WRITE_CHUNK_BYTES: usize = 256 << 10;

/// Bytes that an outgoing call holds received and unread before its window closes.
pub const OUTGOING_RECEIVED_BYTES_MAX: usize = 1 << 20;

/// Bytes that an outgoing call holds written and not taken by the protocol before its writer waits.
pub const OUTGOING_UNSENT_BYTES_MAX: usize = 1 << 20;

/// Bytes of the results of one outgoing call, streams not counted.
pub const RESULT_BYTES_MAX: usize = 64 << 20;

/// Calls in progress on one connection, unless its options say otherwise.
pub const CALLS_PER_CONNECTION: usize = 64;

/// Calls that wait for a channel of one connection.
pub const CALLS_WAITING_PER_CONNECTION: usize = 65_536;

/// Threads of the pool for blocking work, for each shard.
pub const BLOCKING_THREADS: usize = 64;

/// Answers to `rxdebug` of one port each second. A list of 10,000 connections takes two seconds.
pub const DEBUG_ANSWERS_PER_SECOND: u32 = 5000;

/// How long shutting down waits for blocking work.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);

/// Bytes of one chunk on the local administrator's socket.
pub const LOCAL_CHUNK_BYTES_MAX: usize = 1 << 20;

/// Streams at a time on the local administrator's socket.
pub const LOCAL_STREAMS_MAX: usize = 256;

const _: () = assert!(CALLS_PER_TURN_MAX <= WAITING_CALLS_MAX);
const _: () = assert!(WRITE_CHUNK_BYTES * 2 <= SEND_BUFFER_BYTES);
const _: () = assert!(SEND_BUFFER_BYTES <= SEND_BUFFERS_BYTES);
const _: () = assert!(RUNNING_CALLS_MAX <= WAITING_CALLS_MAX);
