//! Changes of a file by programs of this machine: bytes, the length, attributes.

use std::io;

use cellar_wire::ids::AfsTime;
use cellar_wire::rxafs::{AfsFetchStatus, AfsStoreStatus};

use super::Body;
use crate::index_entry::merge;

impl Body {
    /// Writes bytes of a program of this machine.
    ///
    /// # Errors
    /// The disk cannot be written. A part of the bytes may be written.
    pub fn write(&mut self, position: u64, bytes: &[u8], now: AfsTime) -> io::Result<()> {
        let end = position + bytes.len() as u64;
        self.check(position, end);
        self.make_fit(end)?;
        if let Err(cause) = self.backing.write(position, bytes) {
            self.half_written(position, end, now);
            return Err(cause);
        }
        if let Some(notes) = &mut self.notes {
            let length = self.length.max(end);
            notes.written(self.version, self.writer, (position, end), length, now);
        }
        self.account(|body| {
            // A hole: zeros, here and, once stored, there.
            body.valid.insert(body.length, position);
            body.valid.insert(position, end);
            body.dirty.insert(position, end);
        });
        self.length = self.length.max(end);
        self.changed_contents(now);
        Ok(())
    }

    /// Called after a failed write, of which a part may be in the file.
    ///
    /// Clean bytes of the range must be fetched again, and beyond the end are zeros. Dirty bytes
    /// are a mix of old and new bytes, which the failed program expects; they are stored as they
    /// are. Bytes that are being stored become dirty too: they may differ from the bytes that the
    /// server receives now.
    fn half_written(&mut self, position: u64, end: u64, now: AfsTime) {
        let end = end.min(self.length);
        let being_stored = self.storing.iter();
        let being_stored = being_stored.map(|(from, to)| (from.max(position), to.min(end)));
        let mixed: Vec<_> = being_stored.filter(|(from, to)| from < to).collect();
        for (from, to) in mixed {
            if let Some(notes) = &mut self.notes {
                notes.written(self.version, self.writer, (from, to), self.length, now);
            }
            self.account(|body| body.dirty.insert(from, to));
            self.changed_contents(now);
        }
        self.account(|body| {
            body.valid.remove(position, end);
            body.valid.insert_all(&body.dirty);
            body.valid.insert_all(&body.storing);
        });
        let _also = self.backing.cut(self.length);
    }

    /// Sets the length, for a program of this machine.
    ///
    /// # Errors
    /// The file cannot be cut.
    pub fn set_length(&mut self, length: u64, now: AfsTime) -> io::Result<()> {
        // A store in progress may extend the file beyond the new length; the cut removes that
        // again.
        let cuts = length < self.length && (length < self.server_length || self.in_flight);
        // An earlier cut is never longer than the file: the server would extend the file to it.
        let cut = match self.cut {
            None if !cuts => None,
            cut => Some(cut.map_or(length, |cut| cut.min(length))),
        };
        self.check(length, length.saturating_add(1));
        if let Some(notes) = &mut self.notes {
            notes.length(self.version, self.writer, length, cut, now);
        }
        if length < self.length {
            self.backing.cut(length)?;
            self.account(|body| {
                body.valid.cut(length);
                body.dirty.cut(length);
            });
            self.cut = cut;
        } else {
            let old = self.length;
            self.account(|body| body.valid.insert(old, length));
        }
        self.length = length;
        self.changed_contents(now);
        Ok(())
    }

    fn changed_contents(&mut self, now: AfsTime) {
        self.changed = true;
        self.modified = Some(now);
        self.touched = now;
        // One that a program set was that of before.
        self.set.client_mod_time = None;
    }

    /// Sets the modification time that is stored with the bytes.
    pub fn set_modified(&mut self, time: AfsTime) {
        if self.changed {
            self.modified = Some(time);
            self.note_attributes();
        }
    }

    /// Sets attributes that are stored with the bytes.
    pub fn set_attributes(&mut self, set: &AfsStoreStatus, now: AfsTime) {
        self.touched = now;
        merge(&mut self.set, set);
        self.modified = set.client_mod_time.or(self.modified);
        self.note_attributes();
    }

    fn note_attributes(&mut self) {
        let modified = self.modified.unwrap_or_default();
        if let Some(notes) = &mut self.notes {
            let over = (self.version, self.writer);
            notes.attributes(over, self.length, modified, &self.set);
        }
    }

    /// Notes that these attributes were sent. `shown` is the status in the reply, which shows which
    /// of them the server applied; without it, all count as applied. Attributes that were set
    /// meanwhile stay.
    pub fn attributes_stored(&mut self, sent: &AfsStoreStatus, shown: Option<&AfsFetchStatus>) {
        if *sent == AfsStoreStatus::default() {
            return;
        }
        fn clear_if_applied<T: PartialEq>(set: &mut Option<T>, sent: Option<T>, shown: Option<T>) {
            if *set == sent && (shown.is_none() || shown == sent) {
                *set = None;
            }
        }
        let set = &mut self.set;
        let mode = shown.map(|status| status.unix_mode & 0o7777);
        clear_if_applied(&mut set.unix_mode, sent.unix_mode, mode);
        clear_if_applied(&mut set.owner, sent.owner, shown.map(|status| status.owner));
        clear_if_applied(&mut set.group, sent.group, shown.map(|status| status.group));
        let time = shown.map(|status| status.client_mod_time);
        clear_if_applied(&mut set.client_mod_time, sent.client_mod_time, time);
        if !self.is_changed() {
            if let Some(notes) = &mut self.notes {
                notes.clean();
            }
        } else if !self.changed || self.lacks_a_piece() {
            // Else it is noted next that nothing is left.
            self.note_attributes();
        }
    }

    /// Drops attributes that another call has set at the server since.
    pub fn attributes_superseded(&mut self, by: &AfsStoreStatus) {
        let set = &mut self.set;
        let before = *set;
        set.unix_mode = set.unix_mode.filter(|_| by.unix_mode.is_none());
        set.client_mod_time = set.client_mod_time.filter(|_| by.client_mod_time.is_none());
        if *set != before {
            if self.is_changed() {
                self.note_attributes();
            } else if let Some(notes) = &mut self.notes {
                notes.clean();
            }
        }
    }
}
