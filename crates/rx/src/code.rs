//! Abort codes that Rx itself defines. Source: rx-wire facts 3.3; OpenAFS `rx/rx.h`.

/// The peer is silent or has dropped the call.
pub const CALL_DEAD: i32 = -1;
/// No such service or security index, or a call used against its rules.
pub const INVALID_OPERATION: i32 = -2;
/// The call exceeded its idle or total time.
pub const CALL_TIMEOUT: i32 = -3;
/// Malformed packet.
pub const PROTOCOL_ERROR: i32 = -5;
/// The application aborted the call.
pub const USER_ABORT: i32 = -6;
/// Local only: packets were too large for the path. A repeated call uses smaller ones.
pub const MESSAGE_SIZE: i32 = -8;
/// Local only: the server process is gone. Either nothing listens on its port, or it was restarted:
/// it answers other calls and does not know this one.
pub const GONE: i32 = -0x4000_0000;
/// The server is starting.
pub const RESTARTING: i32 = -100;
/// The server is overloaded (`VBUSY`).
pub const BUSY: i32 = 110;
/// The security class of a packet differs from that of its connection (`RXKADINCONSISTENCY`).
pub const SECURITY_INCONSISTENT: i32 = 19_270_400;
