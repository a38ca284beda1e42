//! The id of a store, in the file `store-id`. It records that the disk is in use, and by which
//! store.
//!
//! Opening makes missing files, because a store begins on an empty disk and a crash may come while
//! it is made. Without the id, a store that lost a file would be opened as a new store, and take
//! new data in place of the old. So:
//!
//! 1. The file is written when the base table and the first record are durable. A file that is
//!    missing before that never existed: no change had been acknowledged.
//! 2. From then on the base table must be there, or the store is refused ([`Error::Damaged`]). The
//!    base records which journal files must be there (`base::Mark`), and which block files.
//! 3. A program that opens the store keeps the id in another place and compares. An empty directory
//!    has no id, and another disk at the same place has another one.
//!
//! Stores of releases without ids get an id when they are opened.

use std::fmt;
use std::io;
use std::path::Path;
use std::str::FromStr;

use crate::disk::Disk;
use crate::error::{Error, Result};

/// The file that holds the id.
const NAME: &str = "store-id";
/// The name under which the file is made.
const NEW_NAME: &str = "store-id.new";
/// The file that must be there together with the id.
const BASE: &str = "base";
/// The most bytes that are read of the file.
const BYTES_MAX: u64 = 512;

/// Identifies one store: made at random with the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreId([u8; 16]);

impl StoreId {
    /// Reads the id of the store on a disk. `None` if no release with ids has used the disk.
    ///
    /// # Errors
    /// [`Error::Format`] for a file that does not parse; [`Error::Partition`] if the disk cannot be
    /// read.
    pub fn of(disk: &dyn Disk) -> Result<Option<Self>> {
        let names = disk.list().map_err(failed)?;
        if !has(&names, NAME) {
            return Ok(None);
        }
        let read = || -> io::Result<Vec<u8>> {
            let file = disk.open(NAME)?;
            let mut bytes = vec![0; file.length()?.min(BYTES_MAX) as usize];
            file.read_at(&mut bytes, 0)?;
            Ok(bytes)
        };
        Self::from_bytes(&read().map_err(failed)?).map(Some)
    }

    /// Like [`StoreId::of`], for a directory, in which nothing is made. `None` also if there is no
    /// such directory.
    ///
    /// # Errors
    /// As [`StoreId::of`].
    pub fn in_folder(folder: &Path) -> Result<Option<Self>> {
        match std::fs::read(folder.join(NAME)) {
            Ok(bytes) => Self::from_bytes(&bytes).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Makes an id for a store whose files are durable.
    pub(super) fn make(disk: &dyn Disk) -> io::Result<Self> {
        let id = Self(*uuid::Uuid::new_v4().as_bytes());
        let file = disk.open(NEW_NAME)?;
        file.set_length(0)?;
        file.write_at(id.text().as_bytes(), 0)?;
        file.sync()?;
        disk.rename(NEW_NAME, NAME)?;
        disk.sync_names()?;
        Ok(id)
    }

    fn text(self) -> String {
        let text = format!("cellar store {self}\n");
        let sum = crc32c::crc32c(text.as_bytes());
        format!("{text}sum {sum:08x}\n")
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        let id = text.lines().next();
        let id = id.and_then(|line| line.strip_prefix("cellar store ")?.parse::<Self>().ok());
        id.filter(|id| id.text() == text).ok_or_else(|| {
            Error::Format(format!(
                "{NAME} is damaged: restore that file, or remove it and say that the store is new"
            ))
        })
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for StoreId {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let is_one = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = is_one
            .then(|| u128::from_str_radix(text, 16).ok())
            .flatten();
        id.map(|id| Self(id.to_be_bytes()))
            .ok_or("not 32 hexadecimal digits")
    }
}

/// Returns the id of the disk, if it has one. Refuses a disk that has an id but lacks the base
/// table.
pub(super) fn check(disk: &dyn Disk) -> Result<Option<StoreId>> {
    let Some(id) = StoreId::of(disk)? else {
        return Ok(None);
    };
    let names = disk.list().map_err(failed)?;
    if !has(&names, BASE) {
        return Err(lost_base("missing"));
    }
    let length = disk.open(BASE).and_then(|file| file.length());
    if length.map_err(failed)? == 0 {
        return Err(lost_base("empty"));
    }
    Ok(Some(id))
}

fn lost_base(state: &str) -> Error {
    Error::Damaged(format!(
        "its file '{BASE}' is {state}: restore that file, or the partition's volumes elsewhere"
    ))
}

fn has(names: &[String], name: &str) -> bool {
    names.iter().any(|there| there == name)
}

fn failed(error: io::Error) -> Error {
    Error::Partition(format!("reading the store's files: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SimDisk;

    #[test]
    fn an_id_is_read_as_it_was_written() {
        let disk = SimDisk::new(1 << 20);
        assert_eq!(StoreId::of(&disk).unwrap(), None);
        let id = StoreId::make(&disk).unwrap();
        assert_eq!(StoreId::of(&disk).unwrap(), Some(id));
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!("12".parse::<StoreId>().is_err());
        let home = tempfile::tempdir().unwrap();
        assert_eq!(StoreId::in_folder(home.path()).unwrap(), None);
        std::fs::write(home.path().join(NAME), id.text()).unwrap();
        assert_eq!(StoreId::in_folder(home.path()).unwrap(), Some(id));
    }

    #[test]
    fn every_changed_bit_of_an_id_is_noticed() {
        let text = StoreId([0xa5; 16]).text().into_bytes();
        for bit in 0..text.len() * 8 {
            let mut bytes = text.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(StoreId::from_bytes(&bytes).is_err(), "bit {bit}");
        }
        for length in 0..text.len() {
            assert!(StoreId::from_bytes(&text[..length]).is_err());
        }
    }
}
