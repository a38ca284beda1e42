//! `KeyFileExt`: the keys of a server in the form of OpenAFS 1.8.
//!
//! The file is a count and records. A record has the length of the key's description (16; more is
//! skipped), type, version, subtype, length of the key, and key. Type 2 keys seal Kerberos 5
//! tickets; their subtype is the encryption type. Records of other types are kept unchanged.

use std::path::Path;

use zeroize::Zeroizing;

use crate::bytes::{take, take_u32};
use crate::{Error, Result};

/// The type of keys for Kerberos 5 tickets.
pub(super) const RXKAD_KRB5: u32 = 2;
/// The size of the description of a key, in bytes.
const DESCRIPTION: u32 = 16;
/// The most records that are read.
const RECORDS_MAX: u32 = 1024;
/// The longest key that is read.
const KEY_BYTES_MAX: u32 = 1024;

/// One record.
#[derive(Clone)]
pub(super) struct Record {
    pub(super) kind: u32,
    pub(super) kvno: u32,
    pub(super) subtype: u32,
    pub(super) key: Zeroizing<Vec<u8>>,
}

/// The file.
#[derive(Clone, Default)]
pub(super) struct KeyFileExt {
    pub(super) records: Vec<Record>,
}

impl KeyFileExt {
    pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        Self::read(bytes).ok_or_else(|| Error::malformed(path, "is not a KeyFileExt"))
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        if rest.is_empty() {
            return Some(Self::default());
        }
        let count = take_u32(&mut rest)?;
        if count > RECORDS_MAX {
            return None;
        }
        let mut records = Vec::new();
        for _ in 0..count {
            let description = take_u32(&mut rest)?;
            let kind = take_u32(&mut rest)?;
            let kvno = take_u32(&mut rest)?;
            let subtype = take_u32(&mut rest)?;
            let length = take_u32(&mut rest)?;
            let unknown = description.checked_sub(DESCRIPTION)?;
            take(&mut rest, usize::try_from(unknown).ok()?)?;
            if length > KEY_BYTES_MAX {
                return None;
            }
            let key = take(&mut rest, usize::try_from(length).ok()?)?;
            records.push(Record {
                kind,
                kvno,
                subtype,
                key: Zeroizing::new(key.to_vec()),
            });
        }
        rest.is_empty().then_some(Self { records })
    }

    pub(super) fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let keys: usize = self.records.iter().map(|record| record.key.len()).sum();
        // Reserves the whole size at once: a growing buffer would leave copies of keys in memory.
        let mut bytes = Zeroizing::new(Vec::with_capacity(4 + 20 * self.records.len() + keys));
        let word = |bytes: &mut Vec<u8>, word: u32| bytes.extend_from_slice(&word.to_be_bytes());
        word(&mut bytes, u32::try_from(self.records.len()).unwrap_or(0));
        for record in &self.records {
            word(&mut bytes, DESCRIPTION);
            word(&mut bytes, record.kind);
            word(&mut bytes, record.kvno);
            word(&mut bytes, record.subtype);
            word(&mut bytes, u32::try_from(record.key.len()).unwrap_or(0));
            bytes.extend_from_slice(&record.key);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;

    use super::*;

    const ONE_KEY: [u8; 56] = hex!(
        "00000001 00000010 00000002 00000007 00000012 00000020
         000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
    );

    #[test]
    fn files_of_openafs_are_read_and_written_alike() {
        let file = KeyFileExt::read(&ONE_KEY).unwrap();
        let [record] = &file.records[..] else {
            panic!("one key")
        };
        assert_eq!((record.kind, record.kvno, record.subtype), (2, 7, 18));
        assert_eq!(record.key[..], ONE_KEY[24..]);
        assert_eq!(file.to_bytes()[..], ONE_KEY);
        assert_eq!(KeyFileExt::default().to_bytes()[..], [0; 4]);
    }

    #[test]
    fn other_files_are_refused() {
        for length in 1..ONE_KEY.len() {
            assert!(KeyFileExt::read(&ONE_KEY[..length]).is_none());
        }
        let longer = [&ONE_KEY[..], &[0]].concat();
        assert!(KeyFileExt::read(&longer).is_none());
        assert!(KeyFileExt::read(&[0xff; 64]).is_none());
    }
}
