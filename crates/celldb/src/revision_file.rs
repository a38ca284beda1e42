//! The newest revision that a database has had, in a file beside it.
//!
//! redb keeps its last two commits, and one bit says which of them counts. Without a second
//! witness, a change of that bit undoes the last transaction unnoticed. So the revision of each
//! commit is written here after it. A database that is older than this revision is refused.
//!
//! The file is not synced: a commit must not cost two syncs. After a power cut the file may be
//! behind and then proves less. It is never ahead of the database.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::DatabaseId;

const MAGIC: &[u8; 8] = b"CDBREV1\n";
/// Magic, id, revision, checksum: less than a sector, so it is written whole.
const BYTES: usize = 8 + 16 + 8 + 4;

/// The file, open.
#[derive(Debug)]
pub(crate) struct RevisionFile {
    file: File,
    path: PathBuf,
    id: DatabaseId,
}

impl RevisionFile {
    /// The place of the file of a database.
    pub(crate) fn path_of(database: &Path) -> PathBuf {
        database.with_extension("revision")
    }

    /// Reads the revision in the file of a database, if the file exists and belongs to it.
    pub(crate) fn read(database: &Path, id: DatabaseId) -> Option<u64> {
        let path = Self::path_of(database);
        let bytes = std::fs::read(&path).ok()?;
        let Some((known, revision)) = parse(&bytes) else {
            tracing::warn!(path = %path.display(), "damaged, and made again");
            return None;
        };
        (known == id).then_some(revision)
    }

    /// The id and revision in the file of a database, if it is there and whole.
    pub(crate) fn any(database: &Path) -> Option<(DatabaseId, u64)> {
        parse(&std::fs::read(Self::path_of(database)).ok()?)
    }

    /// Opens the file to note revisions in it.
    pub(crate) fn open(database: &Path, id: DatabaseId) -> std::io::Result<Self> {
        let path = Self::path_of(database);
        let mut options = cellar_private::options();
        let file = options
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)?;
        Ok(Self { file, path, id })
    }

    /// Notes a revision that is durable.
    pub(crate) fn note(&self, revision: u64) {
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.id.to_bytes());
        bytes.extend_from_slice(&revision.to_be_bytes());
        let sum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&sum.to_be_bytes());
        if let Err(error) = self.file.write_all_at(&bytes, 0) {
            // It is a witness only: the change itself is durable.
            tracing::warn!(path = %self.path.display(), %error, "the newest revision is not noted");
        }
    }
}

fn parse(bytes: &[u8]) -> Option<(DatabaseId, u64)> {
    let (content, sum) = bytes.split_last_chunk::<4>()?;
    if content.len() + 4 != BYTES || crc32c::crc32c(content) != u32::from_be_bytes(*sum) {
        return None;
    }
    let rest = content.strip_prefix(MAGIC)?;
    let (id, revision) = rest.split_first_chunk::<16>()?;
    let revision = revision.try_into().ok()?;
    Some((DatabaseId::from_bytes(*id), u64::from_be_bytes(revision)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_entry_is_read_and_a_damaged_one_ignored() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("cell.redb");
        let id = DatabaseId::from_bytes([7; 16]);
        assert_eq!(RevisionFile::read(&database, id), None);
        let newest = RevisionFile::open(&database, id).unwrap();
        newest.note(6);
        newest.note(7);
        assert_eq!(RevisionFile::read(&database, id), Some(7));
        let other = DatabaseId::from_bytes([8; 16]);
        assert_eq!(
            RevisionFile::read(&database, other),
            None,
            "of another database"
        );
        let path = RevisionFile::path_of(&database);
        let good = std::fs::read(&path).unwrap();
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse(&bytes), None, "bit {bit}");
        }
    }
}
