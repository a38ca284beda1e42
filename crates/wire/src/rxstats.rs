//! RXSTATS: counters and times of calls, by procedure. Service 409, on every port.
//!
//! The counters are declared by their number of words only. Version 1 has 28 words for each
//! procedure.
//!
//! Source: the rxstat interface file of OpenAFS 1.8.

use cellar_xdr::{Decode, DecodeError, Decoder, Encode, Encoder, xdr_struct};

use crate::package::package;

/// The version of the records.
pub const VERSION: u32 = 1;
/// Words of a record.
pub const RECORD_WORDS: usize = 28;
/// The most records in one reply.
pub const RECORDS_MAX: usize = 100_000;

/// Selects every counter to be cleared.
pub const CLEAR_ALL: u32 = 0xffff_ffff;

xdr_struct! {
    /// A duration or a sum of durations (2 words).
    #[derive(Copy, Default, PartialOrd, Ord)]
    pub struct StatTime {
        /// Seconds.
        pub seconds: u32,
        /// Microseconds.
        pub microseconds: u32,
    }

    /// Times of one kind: sum, sum of squares, shortest, longest (8 words).
    #[derive(Copy)]
    pub struct StatTimes {
        /// Sum.
        pub sum: StatTime,
        /// Sum of squares.
        pub squares: StatTime,
        /// Shortest.
        pub min: StatTime,
        /// Longest.
        pub max: StatTime,
    }

    /// Counters of one procedure, for all peers or for one (28 words).
    #[derive(Copy, Default)]
    pub struct RpcStat {
        /// The peer's address; all ones in the sum over all peers.
        pub peer: u32,
        /// Its port; all ones in the sum over all peers.
        pub port: u32,
        /// 1 when the peer is the server.
        pub peer_is_server: u32,
        /// The package's interface number.
        pub interface: u32,
        /// The number of procedures of the package.
        pub function_count: u32,
        /// The index of the procedure.
        pub function: u32,
        /// The number of calls.
        pub invocations: u64,
        /// Bytes sent.
        pub bytes_sent: u64,
        /// Bytes received.
        pub bytes_received: u64,
        /// The time from arrival to start.
        pub queue: StatTimes,
        /// The time from start to end.
        pub execution: StatTimes,
    }
}

impl Default for StatTimes {
    /// No call yet. The shortest time then has the value that OpenAFS's servers send.
    fn default() -> Self {
        let never = StatTime {
            seconds: 9_999_999,
            microseconds: 9_999_999,
        };
        let zero = StatTime::default();
        Self {
            sum: zero,
            squares: zero,
            min: never,
            max: zero,
        }
    }
}

/// Records. On the wire they are an array of words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RpcStats(Vec<RpcStat>);

impl RpcStats {
    /// The first 100,000 of `records`.
    pub fn new(mut records: Vec<RpcStat>) -> Self {
        records.truncate(RECORDS_MAX);
        Self(records)
    }

    /// The records.
    pub fn records(&self) -> &[RpcStat] {
        &self.0
    }
}

impl Encode for RpcStats {
    fn encode(&self, out: &mut Encoder<'_>) {
        out.reserve(4 + self.0.len() * RpcStat::MIN_SIZE);
        out.u32((self.0.len() * RECORD_WORDS) as u32);
        for record in &self.0 {
            record.encode(out);
        }
    }
}

impl Decode for RpcStats {
    const MIN_SIZE: usize = 4;

    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let words = d.count(RECORDS_MAX * RECORD_WORDS, 4)?;
        if words % RECORD_WORDS != 0 {
            return Err(DecodeError::Invalid("statistics end inside a record"));
        }
        (0..words / RECORD_WORDS)
            .map(|_| RpcStat::decode(d))
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

package! {
    /// Statistics of calls.
    pub RXSTATS { service: 409, port: 0, statistics: 9 }

    /// `stat_count` counts records, not words.
    0 RetrieveProcessRPCStats { client_version: u32 }
        -> RetrieveProcessRPCStatsReply {
            server_version: u32, clock_sec: u32, clock_usec: u32, stat_count: u32, stats: RpcStats
        };
    /// The order of results differs from that of `RetrieveProcessRPCStats`.
    1 RetrievePeerRPCStats { client_version: u32 }
        -> RetrievePeerRPCStatsReply {
            server_version: u32, stat_count: u32, clock_sec: u32, clock_usec: u32, stats: RpcStats
        };
    2 QueryProcessRPCStats {} -> QueryProcessRPCStatsReply { on: u32 };
    3 QueryPeerRPCStats {} -> QueryPeerRPCStatsReply { on: u32 };
    4 EnableProcessRPCStats {} -> EnableProcessRPCStatsReply {};
    5 EnablePeerRPCStats {} -> EnablePeerRPCStatsReply {};
    6 DisableProcessRPCStats {} -> DisableProcessRPCStatsReply {};
    7 DisablePeerRPCStats {} -> DisablePeerRPCStatsReply {};
    8 QueryRPCStatsVersion {} -> QueryRPCStatsVersionReply { version: u32 };
    9 ClearProcessRPCStats { clear_flag: u32 } -> ClearProcessRPCStatsReply {};
    10 ClearPeerRPCStats { clear_flag: u32 } -> ClearPeerRPCStatsReply {};
}
