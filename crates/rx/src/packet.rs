//! Encoding and decoding of packets: the wire format of Rx.
//!
//! Decoders take `&[u8]`, never panic, never allocate more than the size of the input, and return
//! `None` or an error for missing or invalid parts. Source: rx-wire facts 1, 2 and 4.

mod ack;
mod debug;
mod header;
mod jumbo;

pub use ack::{Ack, AckReason, Cellar, MAX_ACKS, MAX_EXTENSION_WORDS, Trailer};
pub use debug::{
    BasicStatistics, ConnectionRecord, DebugQuery, DebugQuestion, PeerRecord, bad_debug_type,
    decode_debug_query, end_of_connections, end_of_peers, version_answer, version_header,
};
pub use header::{Flags, HEADER_SIZE, Header, PacketType};
pub use jumbo::{JUMBO_PAYLOAD, JUMBO_STRIDE, JumboSplit, SubPacket};
