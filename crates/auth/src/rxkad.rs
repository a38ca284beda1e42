//! rxkad, the security class of index 2: who calls is proved by a ticket, packets are bound to the connection.
//!
//! 1. A client seals its packets from the first one on, with the session key that its ticket carries inside.
//!    The server holds the call and sends a challenge with a number of its choice (`Server`); the client
//!    answers with the ticket, and with that number, the connection and its call numbers sealed under the session
//!    key (`Client`). Whoever can do that has the key; nothing in it is good for another connection or
//!    another challenge.
//! 2. `Session` is what both ends do with each packet from then on.
//! 3. What it does not do: at level clear the data itself is not protected, at any level a bit of the stream
//!    cipher's chaining can be cut and swapped by somebody on the path. 56 bits of key can be searched.
//!    Level crypt is for keeping honest people honest; do not send secrets over hostile networks with it.

mod client;
mod failures;
mod response;
mod server;
mod session;
mod times;

pub(crate) use client::Client;
pub(crate) use failures::Failures;
pub use failures::Figures;
pub(crate) use server::Server;

/// Reads a payload as either side of the handshake does.
pub(crate) fn read_handshake(payload: &[u8], cipher: &crate::fcrypt::Schedule, key: &[u8; 8]) {
    let _ = response::Challenge::decode(payload);
    if let Ok(response) = response::Response::decode(payload) {
        let _ = response.open(cipher, key);
    }
}

/// The security index.
pub(crate) const INDEX: u8 = 2;
