//! SHA-256 and its HMAC for the library's signatures (AWS Signature Version 4).
//!
//! The library would take them from `ring` or `aws-lc-rs`. The crates `sha2` and `hmac` are in the
//! program already.

use hmac::{Hmac, KeyInit, Mac};
use object_store::client::{
    CryptoProvider, DigestAlgorithm, DigestContext, HmacContext, Signer, SigningAlgorithm,
};
use object_store::{Error, Result};
use sha2::{Digest, Sha256};

/// The library's cryptography, as far as S3 needs it.
#[derive(Debug)]
pub(crate) struct Sha256Only;

fn unsupported() -> Error {
    Error::NotSupported {
        source: "only SHA-256 is there".into(),
    }
}

struct Hashing(Sha256, [u8; 32]);

impl DigestContext for Hashing {
    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn finish(&mut self) -> Result<&[u8]> {
        self.1 = self.0.finalize_reset().into();
        Ok(&self.1)
    }
}

struct Authenticating(Hmac<Sha256>, [u8; 32]);

impl HmacContext for Authenticating {
    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn finish(&mut self) -> Result<&[u8]> {
        self.1 = self.0.clone().finalize().into_bytes().into();
        Ok(&self.1)
    }
}

impl CryptoProvider for Sha256Only {
    fn digest(&self, algorithm: DigestAlgorithm) -> Result<Box<dyn DigestContext>> {
        match algorithm {
            DigestAlgorithm::Sha256 => Ok(Box::new(Hashing(Sha256::new(), [0; 32]))),
            _ => Err(unsupported()),
        }
    }

    fn hmac(&self, algorithm: DigestAlgorithm, secret: &[u8]) -> Result<Box<dyn HmacContext>> {
        match algorithm {
            DigestAlgorithm::Sha256 => {
                let context = Hmac::new_from_slice(secret).map_err(|_| unsupported())?;
                Ok(Box::new(Authenticating(context, [0; 32])))
            }
            _ => Err(unsupported()),
        }
    }

    fn sign(&self, _: SigningAlgorithm, _: &[u8]) -> Result<Box<dyn Signer>> {
        Err(unsupported())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231, test case 2, and the SHA-256 of "abc" in FIPS 180-4.
    #[test]
    fn digests_are_the_published_ones() {
        let mut hmac = Sha256Only.hmac(DigestAlgorithm::Sha256, b"Jefe").unwrap();
        hmac.update(b"what do ya want ");
        hmac.update(b"for nothing?");
        assert_eq!(hmac.finish().unwrap()[..4], [0x5b, 0xdc, 0xc1, 0x46]);
        assert_eq!(hmac.finish().unwrap()[28..], [0x64, 0xec, 0x38, 0x43]);
        let mut digest = Sha256Only.digest(DigestAlgorithm::Sha256).unwrap();
        digest.update(b"abc");
        assert_eq!(digest.finish().unwrap()[..4], [0xba, 0x78, 0x16, 0xbf]);
    }
}
