//! A directory's pages in memory, and changes that touch only the necessary pages.
//!
//! The algorithms are in `cellar_wire::dir`; this module holds the pages. A change is made on an
//! overlay ([`DirEdit`]). It is merged into the image only after the batch with the changed pages
//! was accepted, so a refused change leaves no trace.

use cellar_wire::dir::{DirError, Directory, PAGE_SIZE, Page, ReadPages, VnodeRef, WritePages};
use cellar_wire::ids::Fid;

use crate::error::{Error, Result};

/// All pages of a directory and the epoch in which each was last written.
#[derive(Default)]
pub(crate) struct DirImage {
    #[expect(
        clippy::vec_box,
        reason = "a changed page takes an old one's place without a copy"
    )]
    pages: Vec<Box<Page>>,
    epochs: Vec<u64>,
}

/// Pages changed on top of an image.
pub(crate) struct DirEdit<'a> {
    base: &'a DirImage,
    changed: Vec<(usize, Box<Page>)>,
    count: usize,
}

impl DirImage {
    /// Adds a page as it is stored: zeros at its end may be missing.
    pub(crate) fn push(&mut self, stored: &[u8], epoch: u64) -> Option<()> {
        let mut page = Box::new([0; PAGE_SIZE]);
        page.get_mut(..stored.len())?.copy_from_slice(stored);
        self.pages.push(page);
        self.epochs.push(epoch);
        Some(())
    }

    pub(crate) fn count(&self) -> usize {
        self.pages.len()
    }

    /// The epoch in which a page was written; `None` for a new page.
    pub(crate) fn epoch(&self, index: usize) -> Option<u64> {
        self.epochs.get(index).copied()
    }

    pub(crate) fn page_bytes(&self, index: usize) -> Option<&[u8]> {
        self.pages.get(index).map(|page| page.as_slice())
    }

    /// Bytes of memory it takes.
    pub(crate) fn memory(&self) -> usize {
        self.pages.len() * (PAGE_SIZE + 16)
    }

    /// Takes the changed pages of an edit, written in `epoch`.
    pub(crate) fn merge(&mut self, mut changed: Vec<(usize, Box<Page>)>, epoch: u64) {
        changed.sort_by_key(|(index, _)| *index);
        for (index, page) in changed {
            if index < self.pages.len() {
                self.pages[index] = page;
                self.epochs[index] = epoch;
            } else {
                self.pages.push(page);
                self.epochs.push(epoch);
            }
        }
    }

    pub(crate) fn directory(&self) -> Directory<&Self> {
        Directory::new(self)
    }

    pub(crate) fn edit(&self) -> DirEdit<'_> {
        DirEdit {
            base: self,
            changed: Vec::new(),
            count: self.pages.len(),
        }
    }
}

impl ReadPages for DirImage {
    type Error = std::convert::Infallible;
    type Ref<'a> = &'a Page;

    fn count(&self) -> usize {
        self.pages.len()
    }

    fn page(&self, index: usize) -> Result<&Page, Self::Error> {
        Ok(&self.pages[index])
    }
}

impl<'a> DirEdit<'a> {
    /// The pages that were changed.
    pub(crate) fn into_changed(self) -> Vec<(usize, Box<Page>)> {
        self.changed
    }

    pub(crate) fn changed(&self) -> &[(usize, Box<Page>)] {
        &self.changed
    }

    /// Length of the directory with the changes.
    pub(crate) fn length(&self) -> u64 {
        (self.count * PAGE_SIZE) as u64
    }

    pub(crate) fn directory(&mut self) -> Directory<&mut Self> {
        Directory::new(self)
    }
}

impl ReadPages for DirEdit<'_> {
    type Error = std::convert::Infallible;
    type Ref<'a>
        = &'a Page
    where
        Self: 'a;

    fn count(&self) -> usize {
        self.count
    }

    fn page(&self, index: usize) -> Result<&Page, Self::Error> {
        Ok(
            match self.changed.iter().find(|(changed, _)| *changed == index) {
                Some((_, page)) => page,
                None => &self.base.pages[index],
            },
        )
    }
}

impl WritePages for DirEdit<'_> {
    fn page_mut(&mut self, index: usize) -> Result<&mut Page, Self::Error> {
        let known = self
            .changed
            .iter()
            .position(|(changed, _)| *changed == index);
        let at = known.unwrap_or_else(|| {
            self.changed.push((index, self.base.pages[index].clone()));
            self.changed.len() - 1
        });
        Ok(&mut self.changed[at].1)
    }

    fn append(&mut self) -> Result<&mut Page, Self::Error> {
        self.changed.push((self.count, Box::new([0; PAGE_SIZE])));
        self.count += 1;
        let last = self.changed.len() - 1;
        Ok(&mut self.changed[last].1)
    }
}

/// The pages of a new directory, all of them changed.
pub(crate) fn new_directory(this: VnodeRef, parent: VnodeRef) -> Result<Vec<Page>> {
    Directory::create(Vec::new(), this, parent)
        .map(Directory::into_pages)
        .map_err(|error| Error::Partition(format!("making a directory: {error}")))
}

/// The bytes of a page without the zeros at its end.
pub(crate) fn trimmed(page: &Page) -> &[u8] {
    let end = page
        .iter()
        .rposition(|&byte| byte != 0)
        .map_or(0, |last| last + 1);
    &page[..end]
}

/// Translates an error of the directory algorithms for an operation on `dir`.
pub(crate) fn dir_error<E: std::fmt::Display>(dir: Fid, error: &DirError<E>) -> Error {
    match error {
        DirError::BadName => Error::Invalid("a name that cannot be in a directory"),
        DirError::NameTooLong => Error::NameTooLong,
        DirError::Exists => Error::Exists,
        DirError::NotFound => Error::NotFound,
        DirError::Full => Error::DirectoryFull,
        other => Error::Io {
            fid: dir,
            cause: other.to_string(),
        },
    }
}
