//! XDR (RFC 4506) encoding and decoding, and the macros that declare XDR structures.
//!
//! The argument, in four steps:
//!
//! 1. Everything on the wire is a sequence of big-endian 32-bit words. [`Encode`] appends words to
//!    a buffer and cannot fail, because a value that the wire cannot carry cannot be built: lengths
//!    are bounded by their types ([`List`], [`Opaque`], [`AfsString`], [`WordString`]).
//! 2. [`Decode`] reads from a slice and refuses: what is cut short is [`DecodeError::Truncated`]
//!    (a caller that still receives may try again with more bytes), what is over its declared
//!    bound is [`DecodeError::TooLong`], what no peer may send is [`DecodeError::Invalid`].
//! 3. A count is checked against its bound *and* against the bytes that are there
//!    ([`Decode::MIN_SIZE`] for each element) before anything is allocated, so memory used is at
//!    most a small multiple of bytes received.
//! 4. Pad bytes are written as zeros and not checked when read, as other AFS implementations do.
//!
//! Source: RFC 4506; for `char` arrays that take a word per character, the AFS interface files.

// Bytes of strangers are parsed here: nothing may panic on them.
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

/// Re-exported so that the macros of this crate and of its users name the same `bytes`.
pub use bytes;
