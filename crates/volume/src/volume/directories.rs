//! Directories of a volume: their pages, names and entries.

use std::ops::ControlFlow;

use bytes::Bytes;
use cellar_wire::ids::Fid;

use crate::dir::{DirImage, dir_error};
use crate::engine::key::Key;
use crate::error::{Error, Result};
use crate::record::{Piece, VnodeRecord};
use crate::state::vnode_slots::Loaded;
use crate::types::{DirEntry, FileType};
use crate::volume::Volume;

impl Volume {
    /// Runs `look` on a directory's pages.
    pub(crate) fn with_dir<T>(
        &self,
        dir: Fid,
        look: impl FnOnce(&Loaded, &DirImage) -> Result<T>,
    ) -> Result<T> {
        self.check_fid(dir)?;
        let slot = self.slot(dir.vnode);
        {
            let loaded = self.read_guard(&slot, dir)?;
            if loaded.record.kind != FileType::Directory {
                return Err(Error::NotDirectory);
            }
            if let Some(image) = &loaded.dir {
                return look(&loaded, image);
            }
        }
        let mut locked = self.lock(&slot, dir)?;
        locked.load_dir(self, dir)?;
        let loaded = locked.get(dir)?;
        match &loaded.dir {
            Some(image) => look(loaded, image),
            None => Err(Error::NotDirectory),
        }
    }

    /// Looks up a name in a directory.
    pub fn lookup(&self, dir: Fid, name: &[u8]) -> Result<Fid> {
        self.with_dir(dir, |_, image| {
            let found = image
                .directory()
                .lookup(name)
                .map_err(|e| dir_error(dir, &e))?;
            let target = found.ok_or(Error::NotFound)?;
            Ok(Fid {
                volume: self.id,
                vnode: target.vnode,
                uniquifier: target.uniquifier,
            })
        })
    }

    /// All entries of a directory, with `.` and `..`, in the order of their slots.
    pub fn entries(&self, dir: Fid) -> Result<Vec<DirEntry>> {
        self.with_dir(dir, |_, image| {
            let mut entries = Vec::new();
            let done = image.directory().for_each(0, |entry| {
                entries.push(DirEntry {
                    name: Bytes::copy_from_slice(entry.name),
                    vnode: entry.vnode,
                    uniquifier: entry.uniquifier,
                });
                ControlFlow::<()>::Continue(())
            });
            done.map_err(|e| dir_error(dir, &e))?;
            Ok(entries)
        })
    }

    /// Reads the pages of a directory from the table.
    pub(super) fn read_pages(&self, fid: Fid, record: &VnodeRecord) -> Result<DirImage> {
        loop {
            let view = self.view();
            let image = self.read_pages_at(fid, record, view);
            // A restore that began just now may have written the version that was found.
            if view == self.view() {
                return image;
            }
        }
    }

    fn read_pages_at(&self, fid: Fid, record: &VnodeRecord, view: u64) -> Result<DirImage> {
        let group = self.group.id.0;
        let body = record.body_number;
        let prefix = Key::body_prefix(group, fid.vnode.0, body);
        let mut image = DirImage::default();
        let pages = record.length / cellar_wire::dir::PAGE_SIZE as u64;
        let scan = self.core.engine.scan(&prefix, &prefix);
        let mut scan = scan.map_err(|error| self.unreadable(fid, error))?;
        while (image.count() as u64) < pages {
            let next = scan.next().map_err(|error| self.unreadable(fid, error))?;
            let Some((key, value)) = next else { break };
            let number = key.piece_number();
            if key.epoch() > view || number < image.count() as u64 {
                continue;
            }
            let stored = match Piece::decode(&value) {
                Ok(Piece::Inline(bytes)) if number == image.count() as u64 => bytes,
                Ok(_) => break,
                Err(error) => return Err(self.damaged(fid, &error.to_string())),
            };
            if image.push(&stored, key.epoch()).is_none() {
                break;
            }
        }
        if image.count() as u64 != pages {
            return Err(self.damaged(fid, "a page of the directory is missing"));
        }
        Ok(image)
    }
}
