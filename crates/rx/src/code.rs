//! Abort codes that Rx itself gives meaning to. Source: rx-wire facts 3.3; OpenAFS `rx/rx.h`.

/// The peer is silent or has dropped the call.
pub const CALL_DEAD: i32 = -1;
/// No such service or security index, or a call used against its rules.
pub const INVALID_OPERATION: i32 = -2;
/// The call exceeded its idle or total time.
pub const CALL_TIMEOUT: i32 = -3;
/// Malformed packet.
pub const PROTOCOL_ERROR: i32 = -5;
/// The application gave up.
pub const USER_ABORT: i32 = -6;
/// Local only: packets were too large for the path; try again, they will be smaller.
pub const MESSAGE_SIZE: i32 = -8;
/// Local only: the server's process is gone. Nothing listens on its port, or it answers other
/// calls and knows nothing of this one because it was started again.
pub const GONE: i32 = -0x4000_0000;
/// The server is in start-up.
pub const RESTARTING: i32 = -100;
/// The server has too much to do (`VBUSY`).
pub const BUSY: i32 = 110;
/// Security class of a packet differs from its connection's (`RXKADINCONSISTENCY`).
pub const SECURITY_INCONSISTENT: i32 = 19_270_400;
