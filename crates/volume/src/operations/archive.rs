//! Copies of a file in archives, and the states of a file that has them.
//!
//! | state | layout | copies | change |
//! | --- | --- | --- | --- |
//! | online | objects | none of these bytes | [`Volume::add_archive_copy`] makes it archived |
//! | archived | objects | of these bytes | [`Volume::wipe`] removes the objects from the record |
//! | wiped | none | of these bytes | [`Volume::restore_online`] names new objects |
//!
//! A store makes other bytes, and the file is online. Its copies stay in the record as copies of
//! older bytes until [`Volume::edit_archive_copies`] removes them.
//!
//! 1. Each change applies to every version of the file here that has these bytes: in the RW volume,
//!    in its clones, and for readers that hold an epoch. So no RO volume keeps bytes on a disk that
//!    were wiped in the RW volume.
//! 2. The name of the bytes ([`Contents`]) decides, never the data version. After a restore of an
//!    older state two versions of a file can have the same data version and other bytes.
//! 3. The bytes stay the same, so neither data version nor dates change, and caches stay valid.
//! 4. A wipe is one change with the check that enough good copies exist.
//! 5. A restore sets copies, and the wiped state, in the same change as the rest of the vnode.

use std::sync::Arc;

use cellar_wire::ids::{Uniquifier, VnodeId};
use cellar_wire::object::{
    ARCHIVE_COPIES_MAX, ArchiveCopies, ArchiveCopy, Contents, Layout, Wiped,
};

use crate::error::{Error, Result};
use crate::record::{Body, VnodeRecord};
use crate::types::{Changed, FileType};
use crate::volume::Volume;

/// A file that a wipe took off its objects.
#[derive(Clone, Debug, Default)]
pub struct WipedFile {
    /// The number of versions that named the objects.
    pub versions: usize,
    /// The layouts that they had. Their objects are not needed for these versions any more.
    pub layouts: Vec<Arc<Layout>>,
}

/// Copies of a file, and whether it is wiped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArchiveState {
    /// The name of the present bytes; `None` for a file that is neither in objects nor wiped.
    pub contents: Option<Contents>,
    /// All copies, also of older bytes, the oldest first.
    pub copies: Vec<ArchiveCopy>,
    /// The shape, version and serial number of the former layout, without objects, if the file is
    /// wiped.
    pub wiped: Option<Layout>,
}

impl ArchiveState {
    /// The good copies of the present bytes.
    pub fn current(&self) -> impl Iterator<Item = &ArchiveCopy> {
        let contents = self.contents;
        let has = move |copy: &&ArchiveCopy| contents.is_some_and(|name| is_good(copy, name));
        self.copies.iter().filter(has)
    }
}

impl Volume {
    /// The copies of a file, and whether it is wiped.
    pub fn archive_state(&self, fid: cellar_wire::ids::Fid) -> Result<ArchiveState> {
        self.with(fid, |loaded| {
            let record = &loaded.record;
            let copies = record.copies.iter().flat_map(|copies| copies.iter());
            Ok(ArchiveState {
                contents: record.contents(),
                copies: copies.copied().collect(),
                wiped: match record.body {
                    Body::Archived(wiped) => Some(without_objects(&wiped)),
                    _ => None,
                },
            })
        })
    }

    /// Whether the bytes of a file are in archives only.
    pub fn is_wiped(&self, fid: cellar_wire::ids::Fid) -> Result<bool> {
        self.with(fid, |loaded| {
            Ok(matches!(loaded.record.body, Body::Archived(_)))
        })
    }

    /// Enters a copy in all versions of the file that have its bytes. A copy of the same bytes on
    /// the same device is replaced. If a record has no room, its oldest copy of other bytes goes.
    /// Returns the number of versions; 0: the file changed or was removed.
    ///
    /// `Busy`: as for [`Volume::replace_object`].
    pub fn add_archive_copy(
        &self,
        file: VnodeId,
        uniquifier: Uniquifier,
        copy: &ArchiveCopy,
    ) -> Result<Changed<usize>> {
        self.edit_versions(file, |record| {
            let here = record.uniquifier == uniquifier && record.kind == FileType::File;
            if !here || record.contents() != Some(copy.contents()) {
                return false;
            }
            let mut copies = copies_of(record);
            copies.retain(|old| (old.osd, old.contents()) != (copy.osd, copy.contents()));
            if copies.len() >= ARCHIVE_COPIES_MAX {
                let others = |old: &ArchiveCopy| !old.has(copy.contents());
                let Some(oldest) = copies.iter().position(others) else {
                    return false;
                };
                copies.remove(oldest);
            }
            copies.push(*copy);
            set_copies(record, copies);
            true
        })
    }

    /// Takes the file off its objects, in all versions with these bytes that have at least `needed`
    /// good copies of them. With `needed` 0, one copy is needed.
    ///
    /// `Busy`: as for [`Volume::replace_object`].
    pub fn wipe(
        &self,
        file: VnodeId,
        uniquifier: Uniquifier,
        contents: Contents,
        needed: usize,
    ) -> Result<Changed<WipedFile>> {
        let mut wiped = WipedFile::default();
        let changed = self.edit_versions(file, |record| {
            if record.uniquifier != uniquifier {
                return false;
            }
            let Some(layout) = record.layout.clone() else {
                return false;
            };
            let good = copies_of(record);
            let good = good.iter().filter(|copy| is_good(copy, contents)).count();
            if layout.contents() != contents || good < needed.max(1) {
                return false;
            }
            record.body = Body::Archived(Wiped::from(&*layout));
            record.layout = None;
            if !wiped.layouts.contains(&layout) {
                wiped.layouts.push(layout);
            }
            true
        })?;
        wiped.versions = changed.outcome;
        Ok(Changed {
            outcome: wiped,
            durable: changed.durable,
        })
    }

    /// Names the objects to which a wiped file was recalled, in all versions with these bytes.
    /// Returns the number of versions; 0: the file changed, was removed or is online.
    ///
    /// `Busy`: as for [`Volume::replace_object`].
    pub fn restore_online(
        &self,
        file: VnodeId,
        uniquifier: Uniquifier,
        layout: &Layout,
    ) -> Result<Changed<usize>> {
        if layout.shape.check().is_err() || layout.objects.len() != layout.shape.objects() {
            return Err(Error::Invalid("a layout has an object for each place"));
        }
        let layout = Arc::new(layout.clone());
        self.edit_versions(file, |record| match record.body {
            Body::Archived(wiped)
                if record.uniquifier == uniquifier && wiped.contents() == layout.contents() =>
            {
                record.body = Body::Objects;
                record.layout = Some(layout.clone());
                true
            }
            _ => false,
        })
    }

    /// Changes copies in all versions of a file: `edit` changes a copy and returns whether it
    /// stays. The last good copy of the bytes of a wiped file always stays. Returns the number of
    /// changed versions.
    ///
    /// `Busy`: as for [`Volume::replace_object`].
    pub fn edit_archive_copies(
        &self,
        file: VnodeId,
        uniquifier: Uniquifier,
        mut edit: impl FnMut(&mut ArchiveCopy) -> bool,
    ) -> Result<Changed<usize>> {
        self.edit_versions(file, |record| {
            if record.uniquifier != uniquifier {
                return false;
            }
            let before = copies_of(record);
            let mut copies = before.clone();
            copies.retain_mut(&mut edit);
            if let Body::Archived(wiped) = record.body {
                let present = wiped.contents();
                let left = copies.iter().any(|copy| copy.has(present));
                let last = before.iter().rfind(|copy| copy.has(present));
                copies.extend(last.filter(|_| !left));
            }
            if copies == before {
                return false;
            }
            set_copies(record, copies);
            true
        })
    }
}

/// The former layout without its objects.
fn without_objects(wiped: &Wiped) -> Layout {
    Layout {
        shape: wiped.shape,
        version: wiped.version,
        serial: wiped.serial,
        volume: wiped.volume,
        objects: cellar_wire::List::default(),
    }
}

fn is_good(copy: &ArchiveCopy, contents: Contents) -> bool {
    copy.has(contents) && !copy.bad
}

pub(crate) fn copies_of(record: &VnodeRecord) -> Vec<ArchiveCopy> {
    let copies = record.copies.iter().flat_map(|copies| copies.iter());
    copies.copied().collect()
}

pub(crate) fn set_copies(record: &mut VnodeRecord, copies: Vec<ArchiveCopy>) {
    record.copies = match copies.is_empty() {
        true => None,
        false => Some(Arc::new(ArchiveCopies::from_iter_cut(copies))),
    };
}
