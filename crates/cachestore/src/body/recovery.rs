//! Recovery of a body that an earlier process left: its clean bytes, and its unstored changes.

use std::sync::Arc;

use cellar_wire::rxafs::{AfsFetchStatus, AfsStoreStatus};

use super::{Body, Space};
use crate::cache_index::Index;
use crate::index_entry::FileKey;
use crate::recovery_notes::{BodyNotes, RecoveredChanges};

impl Body {
    /// A body in the cache directory, with the bytes that an earlier process left of it.
    pub fn on_disk(index: &Arc<Index>, place: FileKey, space: Arc<Space>) -> Self {
        let left = index.take(&place);
        let (notes, clean) = BodyNotes::new(index, place, left.as_ref());
        let backing = notes.backing(left.as_ref().is_some_and(|left| left.own_file));
        let mut body = Self::new(backing, space);
        body.notes = Some(notes);
        let Some(left) = left else {
            return body;
        };
        body.version = left.version;
        let has_contents = left.dirty.as_ref().is_some_and(|dirty| dirty.contents);
        let end = clean.iter().last().map_or(0, |(_, end)| end);
        if left.earlier && !has_contents && body.backing.cut_slot(end).is_err() {
            // Bytes of an unanswered write may lie behind it.
            body.set = left.dirty.as_ref().map_or(body.set, |dirty| dirty.set);
            body.forget_clean();
        } else {
            body.account(|body| body.valid = clean);
        }
        if let Some(dirty) = left.dirty {
            body.writer = dirty.writer;
            body.modified = Some(dirty.modified);
            body.touched = dirty.modified;
            body.set = dirty.set;
            if !dirty.contents {
                body.recovered = Some(RecoveredChanges {
                    torn: dirty.torn,
                    in_doubt: None,
                    postponed: false,
                });
                return body;
            }
            body.version = dirty.version;
            body.length = dirty.length;
            body.cut = dirty.cut;
            body.changed = true;
            // A shortening that was noted may not have been done.
            let torn = body.backing.cut(dirty.length).is_err() || dirty.torn;
            body.recovered = Some(RecoveredChanges {
                torn,
                in_doubt: dirty.storing,
                postponed: false,
            });
            body.account(|body| {
                body.valid.insert_all(&dirty.ranges);
                body.dirty = dirty.ranges;
            });
        }
        body
    }

    /// The unstored changes of an earlier process, as long as the server was not asked about them.
    pub fn recovered(&self) -> Option<&RecoveredChanges> {
        self.recovered.as_ref()
    }

    /// While postponed, a status from the server does not decide about the unstored changes.
    pub fn postpone(&mut self, postponed: bool) {
        if let Some(left) = &mut self.recovered {
            left.postponed = postponed;
        }
    }

    /// Notes that the server has the piece that was being stored when the earlier process ended.
    /// That store made `version`.
    pub fn confirm_stored_piece(&mut self, version: u64) {
        let Some(left) = &mut self.recovered else {
            return;
        };
        let Some(piece) = left.in_doubt.take() else {
            return;
        };
        self.account(|body| body.dirty.remove(piece.0, piece.1));
        self.cut = self.cut.filter(|_| piece.2.is_none());
        let before = std::mem::replace(&mut self.version, version);
        // If another client stored the same bytes here, the rest of the file is that client's.
        self.account(|body| body.valid = body.dirty.clone());
        if let Some(notes) = &mut self.notes {
            notes.stored_after_all(piece, before, version);
            notes.void(0, u64::MAX);
        }
    }

    /// Decides about the unstored changes: they can be stored, or are put aside.
    pub(super) fn decide(&mut self, status: &AfsFetchStatus) {
        let Some(left) = self.recovered.take() else {
            return;
        };
        if !self.changed {
            // Attributes alone are of every version; but perhaps they were stored, and others
            // since.
            if left.torn {
                self.set = AfsStoreStatus::default();
                if let Some(notes) = &mut self.notes {
                    notes.clean();
                }
            }
            return;
        }
        let why = if left.torn {
            "the machine crashed before it was safe: it may be damaged".to_owned()
        } else if self.version != status.data_version {
            format!(
                "the server has version {} by now: it was changed elsewhere",
                status.data_version
            )
        } else {
            self.server_length = status.length;
            let own = self.unstored_ranges();
            self.account(|body| body.valid.insert_all(&own));
            if let Some(notes) = self.notes.as_mut().filter(|_| left.in_doubt.is_some()) {
                // The store in progress did not reach the server.
                notes.not_stored();
            }
            return;
        };
        self.put_aside(&why);
    }

    /// Puts dirty bytes aside that cannot be stored, or an empty file that cannot be made. `why` is
    /// written beside them.
    pub fn put_aside(&mut self, why: &str) {
        if !self.changed && self.local_create().is_none() {
            return self.abandon();
        }
        self.recovered = None;
        self.backing.close();
        let Some(notes) = &mut self.notes else {
            // In memory there is nothing beside the cache.
            return self.abandon();
        };
        // Its slot is emptied before the file is aside: what a crash of the machine would take must
        // be on the disk.
        let own = self.backing.make_fit(u64::MAX, self.length, true);
        let own = own.and_then(|_| self.backing.leave_slot());
        self.backing = notes.put_aside(why, own);
        self.abandon();
        self.length = self.server_length;
    }
}
