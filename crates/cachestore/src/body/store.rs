//! Stores of a file: the choice of the next call, and the effect of its success or failure.

use cellar_wire::rxafs::{AfsFetchStatus, AfsStoreStatus};

use super::{Body, Piece};

impl Body {
    /// Chooses the next store call, of at most `most` bytes, and marks it as under way; `None` if
    /// nothing is left. The caller must report the result of each call by [`Body::stored`] or
    /// [`Body::not_stored`].
    pub fn next_piece(&mut self, most: u64) -> Option<Piece> {
        let mut piece = self.choose_piece(most);
        match &mut piece {
            Some(piece) => {
                self.in_flight = true;
                self.cutting = piece.cut.is_some();
                self.account(|body| {
                    body.dirty.remove(piece.start, piece.end);
                    body.storing.insert(piece.start, piece.end);
                });
                self.cut = self.cut.filter(|_| piece.cut.is_none());
                if self.dirty.is_empty() && self.cut.is_none() && piece.file_length >= self.length {
                    piece.set = self.set;
                }
                if let Some(notes) = &mut self.notes {
                    notes.storing(piece.start, piece.end, piece.cut);
                }
            }
            None => {
                let was_changed = std::mem::take(&mut self.changed);
                let left = (self.set != AfsStoreStatus::default()).then_some(self.set);
                let (over, length) = ((self.version, self.writer), self.length);
                let modified = self.modified.unwrap_or_default();
                if let Some(notes) = self.notes.as_mut().filter(|_| was_changed) {
                    match left {
                        Some(set) => notes.clean_but(over, length, modified, &set),
                        None => notes.clean(),
                    }
                }
            }
        }
        piece
    }

    /// Whether bytes or a length are left to store.
    pub(super) fn lacks_a_piece(&self) -> bool {
        self.cut.is_some() || self.dirty.first().is_some() || self.length > self.server_length
    }

    fn choose_piece(&self, most: u64) -> Option<Piece> {
        let piece = |start: u64, end: u64, file_length: u64, cut: Option<u64>| Piece {
            start,
            end,
            file_length,
            modified: self.modified,
            set: AfsStoreStatus::default(),
            cut,
        };
        let first = self.dirty.first();
        if let Some(cut) = self.cut {
            return Some(match first {
                // The file is rewritten from the cut on: one call does both.
                Some((start, end)) if start <= cut && end == self.length && end - start <= most => {
                    piece(start, end, end, Some(cut))
                }
                _ => piece(cut, cut, cut, Some(cut)),
            });
        }
        if let Some((start, end)) = first {
            return Some(piece(
                start,
                end.min(start + most),
                self.length.max(end),
                None,
            ));
        }
        // Extended, and nothing written there; or nothing but a time.
        (self.length > self.server_length)
            .then(|| piece(self.length, self.length, self.length, None))
    }

    /// Notes that the server has stored a piece. Returns whether bytes that were here have become
    /// stale, because another client has stored too.
    pub fn stored(
        &mut self,
        piece: &Piece,
        status: &AfsFetchStatus,
        sums: &[(u64, u64, u32)],
    ) -> bool {
        self.in_flight = false;
        self.cutting = false;
        let ours_alone = status.data_version == self.version.wrapping_add(1);
        self.account(|body| body.storing.remove(piece.start, piece.end));
        if let Some(notes) = &mut self.notes {
            // Bytes that were overwritten or cut meanwhile differ from the stored ones.
            let whole = sums.iter().filter(|(start, end, _)| {
                ours_alone
                    && *end <= self.length
                    && self.dirty.gaps(*start, *end) == [(*start, *end)]
            });
            let whole: Vec<_> = whole.copied().collect();
            notes.stored(self.version, status.data_version, &whole);
        }
        self.version = status.data_version;
        self.seen_version = status.data_version;
        self.server_length = status.length;
        if !ours_alone {
            self.contents += 1;
            let own = self.unstored_ranges();
            self.account(|body| body.valid = own);
            self.lengthen(status);
        }
        let later = self
            .meanwhile
            .take()
            .filter(|later| later.data_version > status.data_version);
        let Some(later) = later else {
            return !ours_alone;
        };
        // If nothing of ours is left to be stored, the length is what others made of it since.
        self.changed = self.changed && self.lacks_a_piece();
        self.apply_status(&later) || !ours_alone
    }

    /// Notes that the store of a piece failed: its bytes are dirty again. Returns whether bytes
    /// that were here have become stale.
    pub fn not_stored(&mut self, piece: &Piece) -> bool {
        self.in_flight = false;
        self.cutting = false;
        self.account(|body| {
            body.storing.remove(piece.start, piece.end);
            // Unless it was given up meanwhile.
            if body.changed {
                body.dirty.insert(piece.start, piece.end.min(body.length));
            }
        });
        if let Some(cut) = piece.cut {
            self.cut = Some(self.cut.map_or(cut, |later| later.min(cut)));
        }
        // Unless it was given up meanwhile.
        if let Some(notes) = self.notes.as_mut().filter(|_| self.changed) {
            notes.not_stored();
        }
        let later = self.meanwhile.take();
        later.is_some_and(|status| self.apply_status(&status))
    }
}
