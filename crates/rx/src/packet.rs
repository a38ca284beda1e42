//! Packets as bytes: everything that both ends of Rx must agree on.
//!
//! Decoders take `&[u8]`, never panic, never allocate more than the input's size, and say `None`
//! or an error for what is not there. Source: rx-wire facts 1, 2 and 4.

mod ack;
mod debug;
mod header;
mod jumbo;

pub use ack::{Ack, AckReason, Cellar, MAX_ACKS, MAX_EXTENSION_WORDS, Trailer};
pub use debug::{
    BasicStatistics, ConnectionRecord, DebugQuery, DebugQuestion, PeerRecord, bad_debug_type,
    decode_debug_query, end_of_connections, end_of_peers, version_answer,
};
pub use header::{Flags, HEADER_SIZE, Header, PacketType};
pub use jumbo::{JUMBO_PAYLOAD, JUMBO_STRIDE, JumboSplit, SubPacket};
