//! rxperf: the service that measures Rx itself, and its client.
//!
//! Both ends interoperate with OpenAFS's program of that name. A request is not a procedure with
//! arguments but a stream of words: version 3, a command, two chunk sizes, then the command's
//! parameters. Every call but FILE ends its reply with a cookie. Source: rx-wire facts 5.2.

mod client;
mod server;

use bytes::Bytes;

pub use cellar_wire::rxperf::{Command, PACKAGE};

pub use client::{ClientOptions, Figures, RxperfError, client};
pub use server::Server;

/// Contents of all data.
static ZEROS: [u8; 1 << 18] = [0; 1 << 18];

/// `len` bytes of data, in pieces to write.
fn data(len: u64) -> impl Iterator<Item = Bytes> {
    let piece = ZEROS.len() as u64;
    (0..len.div_ceil(piece)).map(move |n| {
        let left = (len - n * piece).min(piece);
        Bytes::from_static(&ZEROS[..left as usize])
    })
}
