//! The local administrator's socket: calls to the same services over a Unix socket.
//!
//! 1. The kernel reports the user id of a client. Root and the owner of the socket's directory may
//!    connect. Such a caller is [`crate::Caller::Superuser`].
//! 2. A stream carries one call at a time, and any number in sequence. A call names the package of
//!    its service, because one socket serves the services of several ports.
//! 3. Both sides send frames: a byte for the kind, three for the length (big-endian), the payload.
//!
//! | kind | from | payload |
//! |---|---|---|
//! | 1 call | client | the package's name |
//! | 2 data | both | part of the request (opcode first) or of the reply |
//! | 3 end | both | none: request or reply is complete |
//! | 4 abort | both | the abort code, 4 bytes; the call is over |
//!
//! A client that gives up a call closes the stream.

// This module parses bytes from clients, so no input may cause a panic.
#![cfg_attr(
    not(test),
    deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

mod client;
mod frame;
mod server;

pub(crate) use client::LocalConnection;
pub use client::connect;
pub use server::Listener;
pub(crate) use server::LocalCall;
