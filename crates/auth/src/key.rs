//! Secret bytes with their encryption type. Their memory is zeroised, and nothing prints them.

use std::fmt;

use rand::RngCore;
use zeroize::Zeroizing;

use crate::{Error, Result};

/// A Kerberos encryption type that service keys may have here.
///
/// Single DES (1 to 3) and triple DES (5, 7, 16) are left out: DES keys can be found by search
/// (OPENAFS-SA-2013-003), and current KDCs make neither. *Session* keys of those types are
/// accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i32)]
pub enum Enctype {
    /// `aes128-cts-hmac-sha1-96`, RFC 3962.
    Aes128Sha1 = 17,
    /// `aes256-cts-hmac-sha1-96`, RFC 3962; preferred by OpenAFS's own localauth.
    Aes256Sha1 = 18,
    /// `aes128-cts-hmac-sha256-128`, RFC 8009.
    Aes128Sha256 = 19,
    /// `aes256-cts-hmac-sha384-192`, RFC 8009.
    Aes256Sha384 = 20,
    /// `arcfour-hmac`, RFC 4757; only for old Active Directories.
    Arcfour = 23,
}

impl Enctype {
    /// All types, best first: the order in which localauth chooses.
    pub const ALL: [Self; 5] = [
        Self::Aes256Sha1,
        Self::Aes128Sha1,
        Self::Aes256Sha384,
        Self::Aes128Sha256,
        Self::Arcfour,
    ];

    /// The type with that number.
    #[must_use]
    pub fn from_number(number: i32) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|enctype| enctype.number() == number)
    }

    /// Its number in Kerberos.
    #[must_use]
    pub fn number(self) -> i32 {
        self as i32
    }

    /// Its name in Kerberos.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes128Sha1 => "aes128-cts-hmac-sha1-96",
            Self::Aes256Sha1 => "aes256-cts-hmac-sha1-96",
            Self::Aes128Sha256 => "aes128-cts-hmac-sha256-128",
            Self::Aes256Sha384 => "aes256-cts-hmac-sha384-192",
            Self::Arcfour => "arcfour-hmac",
        }
    }

    /// Bytes of a key.
    #[must_use]
    pub fn key_length(self) -> usize {
        match self {
            Self::Aes128Sha1 | Self::Aes128Sha256 | Self::Arcfour => 16,
            Self::Aes256Sha1 | Self::Aes256Sha384 => 32,
        }
    }
}

impl fmt::Display for Enctype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A key. `Debug` shows only its type.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretKey {
    enctype: Enctype,
    bytes: Zeroizing<Vec<u8>>,
}

impl SecretKey {
    /// A key of that type.
    ///
    /// # Errors
    /// [`Error::KeyLength`].
    pub fn new(enctype: Enctype, bytes: &[u8]) -> Result<Self> {
        if bytes.len() != enctype.key_length() {
            return Err(Error::KeyLength {
                enctype: enctype.number(),
                length: bytes.len(),
            });
        }
        Ok(Self {
            enctype,
            bytes: Zeroizing::new(bytes.to_vec()),
        })
    }

    /// A random key of that type, from the system's source of randomness.
    #[must_use]
    pub fn random(enctype: Enctype) -> Self {
        let mut bytes = Zeroizing::new(vec![0; enctype.key_length()]);
        rand::rng().fill_bytes(&mut bytes);
        Self { enctype, bytes }
    }

    /// Its type.
    #[must_use]
    pub fn enctype(&self) -> Enctype {
        self.enctype
    }

    /// The secret itself.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey({})", self.enctype)
    }
}
