//! The local administrator's socket: the same calls to the same services over a Unix socket.
//!
//! 1. Who may connect is decided by the kernel's word for the caller's user id: root, or the owner
//!    of the directory that the socket is in. Such a caller is [`crate::Caller::Superuser`].
//! 2. A stream carries one call at a time, and any number one after the other. Services are named by
//!    their package, because one socket has those of several ports.
//! 3. Both sides send frames: a byte for the kind, three for the length (big-endian), the payload.
//!
//! | kind | from | payload |
//! |---|---|---|
//! | 1 call | client | the package's name |
//! | 2 data | both | part of the request (opcode first) or of the reply |
//! | 3 end | both | none: request or reply is complete |
//! | 4 abort | both | the abort code, 4 bytes; the call is over |
//!
//! A client that gives up closes the stream.

// Foreign bytes are parsed here: nothing may panic on them.
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
