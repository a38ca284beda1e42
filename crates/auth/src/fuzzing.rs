//! The parsers of foreign data, for `fuzz/` and for tests with random changes. Not part of the
//! crate's interface.

use std::path::Path;

use crate::fcrypt::Schedule;
use crate::keys::fuzzing as files;
use crate::{Enctype, SecretKey, kerberos, rxkad};

/// A ticket, whole or its encrypted part, sealed with any encryption type.
pub fn ticket(bytes: &[u8]) {
    for enctype in Enctype::ALL {
        let Ok(key) = SecretKey::new(enctype, &vec![7; enctype.key_length()]) else {
            continue;
        };
        let _ = kerberos::open_ticket(bytes, false, |_, _| Some(key.clone()));
        let _ = kerberos::open_encrypted_part(bytes, true, |_, _| Some(key.clone()));
    }
    let _ = kerberos::encrypted_part(bytes);
}

/// The contents of a ticket after it was unsealed.
pub fn ticket_content(bytes: &[u8]) {
    let _ = kerberos::read_content(bytes, false, 1);
    let _ = kerberos::read_content(bytes, true, 1);
}

/// A challenge and a response.
pub fn handshake(bytes: &[u8]) {
    let key = [7; 8];
    rxkad::read_handshake(bytes, &Schedule::new(&key), &key);
}

/// Key files. The keys that are read must be the same after they are written and read again.
///
/// # Panics
/// If they are not, which is a finding.
pub fn key_files(bytes: &[u8]) {
    files::key_files(Path::new("fuzzed"), bytes);
}
