//! A keytab in the form of MIT Kerberos: `rxkad.keytab` of a server, or the output of `ktadd`.
//!
//! The file is two bytes of version and entries. An entry is a signed length, the principal's
//! components, a time, a version of 8 bits and the key. If there is room, the version follows in 32
//! bits. A negative length is a hole of that size.

use std::path::Path;

use zeroize::Zeroizing;

use crate::bytes::{take, take_array, take_u16, take_u32};
use crate::{Error, Result};

/// Format 2, with big-endian numbers. (Format 1 used the machine's byte order, and went out of use
/// decades ago.)
const VERSION: [u8; 2] = [5, 2];
/// A principal of the ordinary kind.
const NAME_PRINCIPAL: u32 = 1;

/// One key.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) realm: Vec<u8>,
    pub(super) components: Vec<Vec<u8>>,
    pub(super) time: u32,
    pub(super) kvno: u32,
    pub(super) enctype: u16,
    pub(super) key: Zeroizing<Vec<u8>>,
}

impl Entry {
    /// `afs/cell@REALM`.
    pub(super) fn principal(&self) -> String {
        let components: Vec<_> = self
            .components
            .iter()
            .map(|component| String::from_utf8_lossy(component))
            .collect();
        format!(
            "{}@{}",
            components.join("/"),
            String::from_utf8_lossy(&self.realm)
        )
    }

    fn read(mut entry: &[u8]) -> Option<Self> {
        let rest = &mut entry;
        let count = take_u16(rest)?;
        let counted = |rest: &mut &[u8]| {
            let length = take_u16(rest)?;
            take(rest, usize::from(length)).map(<[u8]>::to_vec)
        };
        let realm = counted(rest)?;
        let mut components = Vec::new();
        for _ in 0..count {
            components.push(counted(rest)?);
        }
        let _name_type = take_u32(rest)?;
        let time = take_u32(rest)?;
        let [short] = take_array(rest)?;
        let enctype = take_u16(rest)?;
        let length = take_u16(rest)?;
        let key = Zeroizing::new(take(rest, usize::from(length))?.to_vec());
        let kvno = take_u32(rest).filter(|&kvno| kvno != 0);
        Some(Self {
            realm,
            components,
            time,
            kvno: kvno.unwrap_or(u32::from(short)),
            enctype,
            key,
        })
    }

    fn write(&self, out: &mut Vec<u8>) -> Option<()> {
        let counted = |out: &mut Vec<u8>, bytes: &[u8]| {
            out.extend_from_slice(&u16::try_from(bytes.len()).ok()?.to_be_bytes());
            out.extend_from_slice(bytes);
            Some(())
        };
        let begin = out.len();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&u16::try_from(self.components.len()).ok()?.to_be_bytes());
        counted(out, &self.realm)?;
        for component in &self.components {
            counted(out, component)?;
        }
        out.extend_from_slice(&NAME_PRINCIPAL.to_be_bytes());
        out.extend_from_slice(&self.time.to_be_bytes());
        out.push(self.kvno.to_be_bytes()[3]);
        out.extend_from_slice(&self.enctype.to_be_bytes());
        counted(out, &self.key)?;
        out.extend_from_slice(&self.kvno.to_be_bytes());
        let length = i32::try_from(out.len() - begin - 4).ok()?;
        out.get_mut(begin..begin + 4)?
            .copy_from_slice(&length.to_be_bytes());
        Some(())
    }
}

/// The file.
#[derive(Clone, Default)]
pub(super) struct Keytab {
    pub(super) entries: Vec<Entry>,
}

impl Keytab {
    pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        Self::read(bytes).ok_or_else(|| Error::malformed(path, "is not a keytab"))
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self::default());
        }
        let mut rest = bytes.strip_prefix(&VERSION)?;
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let length = i32::from_be_bytes(take_array(&mut rest)?);
            let content = take(&mut rest, usize::try_from(length.unsigned_abs()).ok()?)?;
            match length {
                // MIT's library stops here; nothing follows in files that it wrote.
                0 => break,
                1.. => entries.push(Entry::read(content)?),
                _ => {}
            }
        }
        Some(Self { entries })
    }

    /// `None` if something is longer than the format allows.
    pub(super) fn to_bytes(&self) -> Option<Zeroizing<Vec<u8>>> {
        let room = self.entries.iter().map(|entry| {
            let names = entry.realm.len() + entry.components.iter().map(Vec::len).sum::<usize>();
            64 + names + 2 * entry.components.len() + entry.key.len()
        });
        // Reserves the whole size at once: a growing buffer would leave copies of keys in memory.
        let mut bytes = Zeroizing::new(Vec::with_capacity(2 + room.sum::<usize>()));
        bytes.extend_from_slice(&VERSION);
        for entry in &self.entries {
            entry.write(&mut bytes)?;
        }
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;

    use super::*;

    /// Made by hand from MIT's description of the format.
    const BY_HAND: [u8; 63] = hex!(
        "0502 00000039 0002 0004 44454d4f 0003 616673 0009 64656d6f2e63656c6c
         00000001 65000000 2c 0011 0010 000102030405060708090a0b0c0d0e0f 0000012c"
    );

    #[test]
    fn files_of_mit_kerberos_are_read_and_written_alike() {
        let by_mit = include_bytes!("../../../../testdata/tickets/mit-krb5.keytab");
        let keytab = Keytab::read(by_mit).unwrap();
        let [entry] = &keytab.entries[..] else {
            panic!("one key")
        };
        assert_eq!(
            entry.principal(),
            "afs/aes256-cts-hmac-sha384-192@TEST.CELL"
        );
        assert_eq!((entry.kvno, entry.enctype), (1, 20));
        assert_eq!(keytab.to_bytes().unwrap()[..], by_mit[..]);
    }

    #[test]
    fn versions_of_more_than_8_bits_are_read_and_written() {
        let keytab = Keytab::read(&BY_HAND).unwrap();
        let [entry] = &keytab.entries[..] else {
            panic!("one key")
        };
        assert_eq!(entry.principal(), "afs/demo.cell@DEMO");
        assert_eq!((entry.kvno, entry.enctype), (300, 17));
        assert_eq!(entry.key[..], BY_HAND[43..59]);
        assert_eq!(keytab.to_bytes().unwrap()[..], BY_HAND);
    }

    #[test]
    fn holes_are_skipped_and_short_versions_read() {
        let mut bytes = vec![5, 2];
        bytes.extend_from_slice(&(-6i32).to_be_bytes());
        bytes.extend_from_slice(&[0xee; 6]);
        let mut entry = BY_HAND[2..59].to_vec();
        entry[3] -= 4;
        bytes.extend_from_slice(&entry);
        let keytab = Keytab::read(&bytes).unwrap();
        assert_eq!(keytab.entries.len(), 1);
        assert_eq!(keytab.entries[0].kvno, 0x2c);
    }

    #[test]
    fn other_files_are_refused() {
        for length in 1..BY_HAND.len() {
            let read = Keytab::read(&BY_HAND[..length]);
            assert!(read.is_none() || length == 2, "{length}");
        }
        assert!(Keytab::read(&hex!("0501 00000000")).is_none());
        assert!(Keytab::read(&[0xff; 64]).is_none());
    }
}
