//! Bytes of a file that were fetched from a server.

use std::io;
use std::ops::Range;

use bytes::Bytes;
use cellar_wire::rxafs::AfsFetchStatus;

use super::Body;
use crate::recovery_notes::Filled;

impl Body {
    /// Adds fetched bytes of a range, with the status of the same reply. Bytes that are here
    /// already stay. If our own programs made the file longer, the bytes beyond the server's end
    /// are zeros.
    ///
    /// Returns whether the bytes are of the version that is here. Otherwise they are not used.
    ///
    /// # Errors
    /// The disk cannot be written.
    pub fn fill(
        &mut self,
        status: &AfsFetchStatus,
        range: Range<u64>,
        pieces: &[Bytes],
    ) -> io::Result<bool> {
        if self.version != status.data_version {
            return Ok(false);
        }
        self.make_fit(self.length.max(status.length))?;
        let mut at = range.start;
        let mut filled = Filled::default();
        let coming = at + pieces.iter().map(Bytes::len).sum::<usize>() as u64;
        if self.valid.gaps(at, coming.min(self.length)) == [(at, coming)] {
            // Nothing of it is here: as every file is read the first time.
            self.backing.write_all(at, pieces)?;
            self.account(|body| body.valid.insert(at, coming));
            for piece in pieces.iter().filter(|_| self.notes.is_some()) {
                filled.add(at, piece);
                at += piece.len() as u64;
            }
            at = coming;
        } else {
            for piece in pieces {
                at = self.fill_one(at, piece, &mut filled)?;
            }
        }
        if at >= status.length && at < range.end {
            // Of no version of the server's: it is not kept.
            let zeros = vec![0; (range.end - at) as usize];
            self.fill_one(at, &zeros, &mut Filled::default())?;
        }
        if let Some(notes) = &mut self.notes {
            notes.valid(status.data_version, filled.parts());
        }
        Ok(true)
    }

    fn fill_one(&mut self, at: u64, piece: &[u8], filled: &mut Filled) -> io::Result<u64> {
        let end = at + piece.len() as u64;
        for (from, to) in self.valid.gaps(at, end.min(self.length.max(at))) {
            let part = &piece[(from - at) as usize..(to - at) as usize];
            self.backing.write(from, part)?;
            self.account(|body| body.valid.insert(from, to));
            if self.notes.is_some() {
                filled.add(from, part);
            }
        }
        Ok(end)
    }
}
