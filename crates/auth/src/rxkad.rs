//! rxkad, the security class with index 2. A ticket proves the caller's identity, and packets are
//! bound to the connection.
//!
//! 1. A client seals its packets from the first one on, with the session key inside its ticket. The
//!    server holds the call back and sends a challenge with a number of its choice (`Server`). The
//!    client answers with the ticket. It also sends that number, the connection and its call
//!    numbers, sealed under the session key (`Client`). Only a holder of the key can do that, and
//!    the answer is useless for another connection or challenge.
//! 2. `Session` is the processing of each packet on both sides from then on.
//! 3. The limits: at level clear the data itself is not protected. At any level an attacker on the
//!    path can cut and swap parts of the stream cipher's chaining. 56 bits of key can be searched.
//!    So level crypt does not stop a determined attacker; do not send secrets over hostile networks
//!    with it.

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

/// Reads a payload as both sides of the handshake do.
pub(crate) fn read_handshake(payload: &[u8], cipher: &crate::fcrypt::Schedule, key: &[u8; 8]) {
    let _ = response::Challenge::decode(payload);
    if let Ok(response) = response::Response::decode(payload) {
        let _ = response.open(cipher, key);
    }
}

/// The security index.
pub(crate) const INDEX: u8 = 2;
