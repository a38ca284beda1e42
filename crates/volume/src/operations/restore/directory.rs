//! The pages of a directory that is restored: gathered, checked as a whole, and written.
//!
//! Pages that the store could not read as a directory are refused: they may come from a damaged
//! volume, or from an attacker.

use cellar_wire::dir::{Directory, PAGE_SIZE, PAGES_MAX, Page, VnodeRef};

use super::stage::Stage;
use crate::dir::trimmed;
use crate::error::{Error, Result};
use crate::record::Piece;
use bytes::Bytes;

/// Pages that are coming.
pub(super) struct DirectoryBody {
    bytes: Vec<u8>,
    position: usize,
    /// The former pages of a directory that is patched.
    base: Bytes,
}

impl DirectoryBody {
    /// Returns whether a directory can have that length in bytes.
    pub(super) fn is_valid_length(length: u64) -> bool {
        let page = PAGE_SIZE as u64;
        length > 0 && length.is_multiple_of(page) && length / page <= PAGES_MAX as u64
    }

    /// Begins a directory of `length` bytes whose former bytes are `base`.
    pub(super) fn new(length: usize, base: Bytes) -> Self {
        let mut bytes = base.to_vec();
        bytes.resize(length, 0);
        Self {
            bytes,
            position: 0,
            base,
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.next(bytes.len() as u64)?.copy_from_slice(bytes);
        Ok(())
    }

    pub(super) fn skip(&mut self, length: u64) -> Result<()> {
        self.next(length).map(drop)
    }

    pub(super) fn zeros(&mut self, length: u64) -> Result<()> {
        self.next(length)?.fill(0);
        Ok(())
    }

    /// The next bytes, to be overwritten.
    fn next(&mut self, length: u64) -> Result<&mut [u8]> {
        let beyond = Error::Invalid("more bytes than the directory has");
        let length = usize::try_from(length).map_err(|_| beyond.clone())?;
        let end = self.position.checked_add(length).ok_or(beyond.clone())?;
        let next = self.bytes.get_mut(self.position..end).ok_or(beyond)?;
        self.position = end;
        Ok(next)
    }

    /// Checks the directory and stages the pages that are new. Returns the target of `..`.
    pub(super) fn stage(self, stage: &mut Stage, vnode: u32, body: u32) -> Result<VnodeRef> {
        if self.position != self.bytes.len() {
            return Err(Error::Invalid("pages of a directory are missing"));
        }
        let pages: &[Page] = self.bytes.as_chunks::<PAGE_SIZE>().0;
        let directory = Directory::new(pages.to_vec());
        let unsound = |cause: String| Error::Unsound(format!("directory {vnode}: {cause}"));
        directory
            .check()
            .map_err(|error| unsound(error.to_string()))?;
        let up = directory
            .lookup(b"..")
            .map_err(|error| unsound(error.to_string()))?
            .ok_or_else(|| unsound("it has no way up".into()))?;
        let (before, _) = self.base.as_chunks::<PAGE_SIZE>();
        for (index, page) in pages.iter().enumerate() {
            if before.get(index) != Some(page) {
                let value = Piece::encode_inline(trimmed(page));
                stage.put_piece(vnode, body, index as u64, value);
                stage.flush_if_full()?;
            }
        }
        Ok(up)
    }
}
