//! XDR (RFC 4506) encoding and decoding, and the macros that declare XDR structures.
//!
//! The design, in four steps:
//!
//! 1. Everything on the wire is a sequence of big-endian 32-bit words. [`Encode`] appends words to
//!    a buffer. It cannot fail, because a value that the wire cannot carry cannot be built: types
//!    bound the lengths ([`List`], [`Opaque`], [`AfsString`], [`WordString`]).
//! 2. [`Decode`] reads from a slice and refuses invalid bytes. If the bytes are cut short, the
//!    error is [`DecodeError::Truncated`]; a caller that is still receiving may try again with more
//!    bytes. A length over its declared bound is [`DecodeError::TooLong`]. A value that no peer may
//!    send is [`DecodeError::Invalid`].
//! 3. Before anything is allocated, a count is checked against its bound *and* against the bytes
//!    that are present ([`Decode::MIN_SIZE`] for each element). So memory is at most a small
//!    multiple of the received bytes.
//! 4. Pad bytes are written as zeros and not checked when read, as in other AFS implementations.
//!
//! Source: RFC 4506; for `char` arrays that take a word per character, the AFS interface files.

// This crate parses bytes from strangers: nothing may panic on them.
#![cfg_attr(
    not(test),
    deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

mod bounded;
mod decode;
mod encode;
mod macros;

pub use bounded::{AfsString, List, Opaque, TooLong, WordBytes, WordString};
pub use decode::{Decode, DecodeError, Decoder};
pub use encode::{Encode, Encoder};

/// Re-exported so that the macros of this crate and of its users refer to the same `bytes`.
pub use bytes;
