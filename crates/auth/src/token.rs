//! The credential of a client for one cell.

use std::fmt;

use bytes::Bytes;
use cellar_rx::{ClientSecurity, Security};
use cellar_wire::AfsTime;
use zeroize::Zeroizing;

use crate::rxkad::Client;
use crate::{Error, Level, Result, kdf, kerberos};

/// A ticket for a cell's servers with its session key. `Debug` shows neither.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The cell whose servers accept it.
    pub cell: String,
    /// The client that it names, as the client knows it (`user@REALM`). The ticket itself is opaque
    /// here.
    pub principal: String,
    /// The form of the ticket, as sent to the server. 213 is a Kerberos 5 encrypted part, 256 a
    /// whole Kerberos 5 ticket. Another value below 256 is the version of a DES service key.
    pub kvno: u32,
    /// The session key for rxkad, 56 bits and parity.
    pub session_key: Zeroizing<[u8; 8]>,
    /// The ticket in that form, at most 12000 bytes.
    pub ticket: Vec<u8>,
    /// The start of its validity.
    pub begins: AfsTime,
    /// The end of its validity; `u32::MAX`: never.
    pub expires: AfsTime,
}

/// A service ticket as Kerberos issues it.
#[derive(Clone, Copy)]
pub struct KerberosCredential<'a> {
    /// The cell whose servers accept the ticket.
    pub cell: &'a str,
    /// The client it names, `user@REALM`.
    pub client: &'a str,
    /// Type of the session key.
    pub enctype: i32,
    /// The session key.
    pub session_key: &'a [u8],
    /// The ticket, in DER.
    pub ticket: &'a [u8],
    /// The start of its validity.
    pub begins: AfsTime,
    /// The end of its validity.
    pub expires: AfsTime,
}

impl Token {
    /// Makes the token from a Kerberos ticket for `afs/CELL` or `afs`, as aklog does. The token has
    /// the ticket's encrypted part, and the 56 bits that rxkad derives from its session key.
    ///
    /// # Errors
    /// [`Error::Ticket`] if it is not a Kerberos 5 ticket. [`Error::Enctype`] if rxkad derives no
    /// key from such a session key.
    pub fn from_kerberos(credential: &KerberosCredential<'_>) -> Result<Self> {
        let session_key = kdf::session_key(credential.enctype, credential.session_key)
            .ok_or(Error::Enctype(credential.enctype))?;
        Ok(Self {
            cell: credential.cell.to_owned(),
            principal: credential.client.to_owned(),
            kvno: KVNO_ENCRYPTED_PART,
            session_key,
            ticket: kerberos::encrypted_part(credential.ticket)?,
            begins: credential.begins,
            expires: credential.expires,
        })
    }

    /// Security for calls to the cell's servers, with packets protected at `level`.
    #[must_use]
    pub fn security(&self, level: Level) -> Security {
        let token = self.clone();
        let ticket = Bytes::from(token.ticket.clone());
        Security::new(move || Box::new(Client::new(&token, ticket.clone(), level)))
    }

    /// The same for one connection of an [`cellar_rx::Endpoint`] that the caller drives itself.
    #[must_use]
    pub fn client_security(&self, level: Level) -> Box<dyn ClientSecurity> {
        let ticket = Bytes::from(self.ticket.clone());
        Box::new(Client::new(self, ticket, level))
    }
}

/// The `kvno` of a Kerberos 5 ticket's encrypted part, which current clients send.
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
