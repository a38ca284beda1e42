//! Storage of the pages: the owner's side of a directory.

use std::convert::Infallible;
use std::ops::Deref;

use super::{PAGE_SIZE, Page};

/// Pages that can be read.
pub trait ReadPages {
    /// Why a page is not available.
    type Error;
    /// A reference to a page.
    type Ref<'a>: Deref<Target = Page>
    where
        Self: 'a;

    /// The number of pages.
    fn count(&self) -> usize;

    /// Page `index`, which is below [`ReadPages::count`].
    ///
    /// # Errors
    /// The owner's error.
    fn page(&self, index: usize) -> Result<Self::Ref<'_>, Self::Error>;
}

/// Pages that can be changed.
///
/// A failed operation may have changed some of them only if the owner returned an error or the
/// directory was corrupt.
pub trait WritePages: ReadPages {
    /// Page `index`, to be changed. Called only for a page that will change.
    ///
    /// # Errors
    /// The owner's error.
    fn page_mut(&mut self, index: usize) -> Result<&mut Page, Self::Error>;

    /// Adds a page of zeros after the last.
    ///
    /// # Errors
    /// The owner's error.
    fn append(&mut self) -> Result<&mut Page, Self::Error>;
}

impl<T: ReadPages + ?Sized> ReadPages for &T {
    type Error = T::Error;
    type Ref<'a>
        = T::Ref<'a>
    where
        Self: 'a;

    fn count(&self) -> usize {
        (**self).count()
    }

    fn page(&self, index: usize) -> Result<Self::Ref<'_>, Self::Error> {
        (**self).page(index)
    }
}

impl<T: ReadPages + ?Sized> ReadPages for &mut T {
    type Error = T::Error;
    type Ref<'a>
        = T::Ref<'a>
    where
        Self: 'a;

    fn count(&self) -> usize {
        (**self).count()
    }

    fn page(&self, index: usize) -> Result<Self::Ref<'_>, Self::Error> {
        (**self).page(index)
    }
}

impl<T: WritePages + ?Sized> WritePages for &mut T {
    fn page_mut(&mut self, index: usize) -> Result<&mut Page, Self::Error> {
        (**self).page_mut(index)
    }

    fn append(&mut self) -> Result<&mut Page, Self::Error> {
        (**self).append()
    }
}

/// Pages in memory, for example `bytes.as_chunks::<2048>().0` of a fetched directory.
impl ReadPages for [Page] {
    type Error = Infallible;
    type Ref<'a> = &'a Page;

    fn count(&self) -> usize {
        self.len()
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "the trait's caller stays below count()"
    )]
    fn page(&self, index: usize) -> Result<&Page, Self::Error> {
        Ok(&self[index])
    }
}

impl ReadPages for Vec<Page> {
    type Error = Infallible;
    type Ref<'a> = &'a Page;

    fn count(&self) -> usize {
        self.len()
    }

    fn page(&self, index: usize) -> Result<&Page, Self::Error> {
        self.as_slice().page(index)
    }
}

impl WritePages for Vec<Page> {
    #[expect(
        clippy::indexing_slicing,
        reason = "the trait's caller stays below count()"
    )]
    fn page_mut(&mut self, index: usize) -> Result<&mut Page, Self::Error> {
        Ok(&mut self[index])
    }

    fn append(&mut self) -> Result<&mut Page, Self::Error> {
        Ok(self.push_mut([0; PAGE_SIZE]))
    }
}
