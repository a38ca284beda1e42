//! Length, BLAKE3 and MD5 of a copy.

use std::fmt;

use md5::{Digest, Md5};
use serde::{Deserialize, Serialize};

/// The proof of the bytes of a copy. The catalogue of copies keeps it; a get compares with it.
///
/// BLAKE3 detects forged bytes. MD5 is what tools of tape systems and of S3 show, and what the
/// original AFS/OSD kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Receipt {
    /// Bytes.
    pub length: u64,
    /// BLAKE3 of the bytes.
    pub blake3: [u8; 32],
    /// MD5 of the bytes.
    pub md5: [u8; 16],
}

impl Receipt {
    /// The first difference between what was written and what was read; `None` if there is none.
    pub fn difference(&self, read: &Self) -> Option<String> {
        let (wanted, found) = (self.length, read.length);
        if wanted != found {
            return Some(format!("{found} bytes instead of {wanted}"));
        }
        if self.blake3 != read.blake3 {
            return Some("BLAKE3 differs".to_owned());
        }
        (self.md5 != read.md5).then(|| "MD5 differs, and BLAKE3 does not".to_owned())
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blake3 = blake3::Hash::from_bytes(self.blake3);
        write!(f, "{} bytes, BLAKE3 {}, MD5 ", self.length, blake3.to_hex())?;
        self.md5.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Computes a [`Receipt`] while bytes pass.
#[derive(Clone, Default)]
pub struct Hasher {
    length: u64,
    blake3: blake3::Hasher,
    md5: Md5,
}

impl Hasher {
    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.length = self.length.saturating_add(bytes.len() as u64);
        self.blake3.update(bytes);
        self.md5.update(bytes);
    }

    /// Bytes so far.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The proof of all bytes so far.
    pub fn finish(self) -> Receipt {
        Receipt {
            length: self.length,
            blake3: *self.blake3.finalize().as_bytes(),
            md5: self.md5.finalize().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The digests of "abc" in RFC 1321 and in the test vectors of BLAKE3.
    #[test]
    fn digests_are_the_published_ones() {
        let mut hasher = Hasher::default();
        hasher.update(b"a");
        hasher.update(b"bc");
        let receipt = hasher.finish();
        assert_eq!(
            format!("{receipt:?}"),
            "3 bytes, BLAKE3 6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85, \
             MD5 900150983cd24fb0d6963f7d28e17f72"
        );
    }

    #[test]
    fn each_difference_is_named() {
        let receipt = Hasher::default().finish();
        assert_eq!(receipt.difference(&receipt), None);
        let longer = Receipt {
            length: 1,
            ..receipt
        };
        let other = Receipt {
            blake3: [0; 32],
            ..receipt
        };
        let md5 = Receipt {
            md5: [0; 16],
            ..receipt
        };
        let said = |read| receipt.difference(&read).unwrap();
        assert_eq!(said(longer), "1 bytes instead of 0");
        assert_eq!(said(other), "BLAKE3 differs");
        assert_eq!(said(md5), "MD5 differs, and BLAKE3 does not");
    }
}
