//! What a client has to show to one cell.

use std::fmt;

use cellar_wire::AfsTime;
use zeroize::Zeroizing;

/// A ticket for a cell's servers with its session key. `Debug` shows neither.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The cell whose servers take it.
    pub cell: String,
    /// Whom it names, as the client knows it (`user@REALM`); the ticket itself is opaque to us.
    pub principal: String,
    /// What the server is told about the ticket's form: 213 (a Kerberos 5 encrypted part), 256 (a whole
    /// Kerberos 5 ticket), or below 256 the version of a DES service key.
    pub kvno: u32,
    /// The session key for rxkad, 56 bits and parity.
    pub session_key: Zeroizing<[u8; 8]>,
    /// The ticket in that form, at most 12000 bytes.
    pub ticket: Vec<u8>,
    /// When it starts to be good.
    pub begins: AfsTime,
    /// When it ends; `u32::MAX`: never.
    pub expires: AfsTime,
}

/// The `kvno` of a Kerberos 5 ticket's encrypted part: what current clients send.
pub const KVNO_ENCRYPTED_PART: u32 = 213;
/// The `kvno` of a whole Kerberos 5 ticket.
pub const KVNO_KERBEROS_TICKET: u32 = 256;

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("cell", &self.cell)
            .field("principal", &self.principal)
            .field("kvno", &self.kvno)
            .field("begins", &self.begins)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}
