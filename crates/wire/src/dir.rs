//! Directories: the page format that clients fetch and interpret themselves.
//!
//! A directory is a file of 2048-byte pages, each of 64 slots of 32 bytes. Slot 0 of a page is its
//! header, with a bitmap of used slots. Page 0 also holds, in slots 1 to 12, the counts of free
//! slots of the first 128 pages, and 128 hash chains. A name takes one to nine consecutive slots of
//! one page.
//!
//! The same bytes are stored, fetched and dumped. Clients that change a directory edit their copy
//! by the same rules, so the rules are exact:
//!
//! 1. *Insert* takes the first page that has enough free slots by its count. Pages from 128 on have
//!    no count and are always examined. In that page it takes the lowest run of free slots that is
//!    long enough; a page without such a run is skipped. After the last page a page is added, up to
//!    1023.
//! 2. The entry goes to the head of its hash chain.
//! 3. *Remove* unlinks the entry, zeroes its slots and frees them. Pages are never removed, and
//!    entries never move.
//! 4. `.` is in slot 13 and `..` in slot 14. A change of parent removes `..` and inserts it again,
//!    which puts it into slot 14 again.
//!
//! This code does not trust the bytes. Chains are bounded. Every slot number, name and page is
//! checked when it is used. Damage results in a [`Corruption`], never in a panic.
//! [`Directory::check`] examines a whole directory.
//!
//! The owner of the pages decides where they are stored: [`ReadPages`] and [`WritePages`].
//!
//! Source: behaviour of OpenAFS 1.8 (its dir package), seen in testdata/directories.

use std::ops::ControlFlow;

use crate::abort::AbortCode;
use crate::ids::{Uniquifier, VnodeId};

mod check;
mod page;
mod pages;

pub use check::Summary;
use page::{
    FIRST_SLOT_PAGE_0, HEAD_SLOTS, MAP_PAGES, NO_PAGE, PAGE_SLOTS, head, header, init_page,
    map_free, page_count_field, set_head, set_map_free, set_page_count,
};
pub use pages::{ReadPages, WritePages};

/// Bytes of a page.
pub const PAGE_SIZE: usize = 2048;
/// Pages of the largest directory: 2,095,104 bytes.
pub const PAGES_MAX: usize = 1023;
/// Bytes of the longest name.
pub const NAME_MAX: usize = 255;

/// One page.
pub type Page = [u8; PAGE_SIZE];

/// Why an operation on a directory failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirError<E> {
    /// The name is not in the directory.
    #[error("the name is not in the directory")]
    NotFound,
    /// The name is in the directory.
    #[error("the name is in the directory already")]
    Exists,
    /// No page has room, and there are 1023 pages.
    #[error("the directory is full")]
    Full,
    /// The name is empty, holds a NUL, or is `.` or `..` in an operation that cannot change these.
    #[error("the name cannot be in a directory")]
    BadName,
    /// The name is over 255 bytes.
    #[error("the name is too long")]
    NameTooLong,
    /// The bytes are not those of a directory.
    #[error("the directory is damaged: {0}")]
    Corrupt(#[from] Corruption),
    /// The owner of the pages returned an error.
    #[error("a page of the directory is not available")]
    Pages(E),
}

impl<E> DirError<E> {
    /// The abort code for the client. `None` for an error of the owner of the pages, which must
    /// supply the code.
    pub const fn abort_code(&self) -> Option<AbortCode> {
        Some(match self {
            Self::NotFound => AbortCode::ENOENT,
            Self::Exists => AbortCode::EEXIST,
            Self::Full => AbortCode::EFBIG,
            Self::BadName => AbortCode::EINVAL,
            Self::NameTooLong => AbortCode::ENAMETOOLONG,
            Self::Corrupt(_) => AbortCode::EIO,
            Self::Pages(_) => return None,
        })
    }
}

/// Damage of a directory. Slots are numbered through all pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Corruption {
    /// There is no page, or there are more than 1023.
    #[error("it has {0} pages")]
    Size(usize),
    /// Page 0 gives another number of pages than there are.
    #[error("it claims {said} pages and has {has}")]
    PageCount {
        /// The number in page 0.
        said: usize,
        /// The number of pages that exist.
        has: usize,
    },
    /// A page does not begin with the magic number.
    #[error("page {0} has no magic number")]
    Magic(usize),
    /// A chain leads to a slot where no entry can begin.
    #[error("slot {0} is not an entry's first")]
    NotAnEntry(u32),
    /// A chain does not end.
    #[error("the chain of hash {0} does not end")]
    Chain(usize),
    /// An entry's name has no end in its page, is empty or is over 255 bytes long.
    #[error("the name in slot {0} is not valid")]
    Name(u32),
    /// An entry is not in the chain of its name's hash.
    #[error("the entry in slot {0} is in the wrong chain")]
    WrongChain(u32),
    /// Two entries have the same name.
    #[error("the name in slot {0} is there twice")]
    Duplicate(u32),
    /// Two entries share a slot.
    #[error("slot {0} belongs to two entries")]
    Overlap(u32),
    /// The bitmap of a page does not match the entries in it.
    #[error("the bitmap of page {0} does not fit its entries")]
    Bitmap(usize),
    /// The count of free slots of a page is wrong.
    #[error("the count of free slots of page {0} is wrong")]
    FreeCount(usize),
    /// `.` is not in slot 13 or `..` not in slot 14.
    #[error("the entries for itself and its parent are not in their places")]
    Dots,
}

/// An entry during a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The number of its first slot, through all pages. Clients use it as the cookie of this place.
    pub slot: u32,
    /// Its name.
    pub name: &'a [u8],
    /// The vnode.
    pub vnode: VnodeId,
    /// The vnode's uniquifier.
    pub uniquifier: Uniquifier,
}

/// The vnode that a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VnodeRef {
    /// The vnode.
    pub vnode: VnodeId,
    /// The vnode's uniquifier.
    pub uniquifier: Uniquifier,
}

/// Names with their vnodes.
pub type NamedVnodes = Vec<(Vec<u8>, VnodeRef)>;

/// A directory over the pages of an owner.
#[derive(Clone, Debug)]
pub struct Directory<P> {
    pages: P,
}

/// The position of an entry that was found.
struct EntryPosition {
    slot: u32,
    /// The entry before it in its chain; 0 if the chain's head leads to it.
    previous: u32,
    next: u32,
    target: VnodeRef,
}

/// The chain of a name, 0 to 127.
pub fn hash(name: &[u8]) -> usize {
    let sum = name.iter().fold(0u32, |sum, &byte| {
        sum.wrapping_mul(173).wrapping_add(u32::from(byte))
    });
    let chain = (sum & 127) as usize;
    if sum >> 31 == 1 && chain != 0 {
        128 - chain
    } else {
        chain
    }
}

/// Slots that a name of `len` bytes takes, 1 to 9.
pub const fn slots(len: usize) -> usize {
    1 + ((len + 16) >> 5)
}

/// The first slot of page `index` that an entry may take.
const fn first_slot(index: usize) -> usize {
    if index == 0 {
        FIRST_SLOT_PAGE_0
    } else {
        HEAD_SLOTS
    }
}

fn check_name<E>(name: &[u8]) -> Result<(), DirError<E>> {
    if name.is_empty() || name.contains(&0) {
        return Err(DirError::BadName);
    }
    if name.len() > NAME_MAX {
        return Err(DirError::NameTooLong);
    }
    Ok(())
}

impl<P: ReadPages> Directory<P> {
    /// A directory over `pages`. Nothing is read yet.
    pub fn new(pages: P) -> Self {
        Self { pages }
    }

    /// The pages.
    pub fn into_pages(self) -> P {
        self.pages
    }

    /// The pages.
    pub fn pages(&self) -> &P {
        &self.pages
    }

    fn page(&self, index: usize) -> Result<P::Ref<'_>, DirError<P::Error>> {
        if index >= self.pages.count() {
            return Err(Corruption::Size(self.pages.count()).into());
        }
        let page = self.pages.page(index).map_err(DirError::Pages)?;
        if header::has_magic(&page) {
            Ok(page)
        } else {
            Err(Corruption::Magic(index).into())
        }
    }

    /// The number of pages, after a check that page 0 agrees.
    fn count(&self) -> Result<usize, DirError<P::Error>> {
        let has = self.pages.count();
        if has == 0 || has > PAGES_MAX {
            return Err(Corruption::Size(has).into());
        }
        let said = page_count_field(&*self.page(0)?);
        if said == has {
            Ok(has)
        } else {
            Err(Corruption::PageCount { said, has }.into())
        }
    }

    /// Calls `look` with the entry whose first slot is `slot`.
    fn with_entry<T>(
        &self,
        slot: u32,
        look: impl FnOnce(Entry<'_>, u32) -> T,
    ) -> Result<T, DirError<P::Error>> {
        let (index, place) = (slot as usize / PAGE_SLOTS, slot as usize % PAGE_SLOTS);
        let first = if index == 0 {
            FIRST_SLOT_PAGE_0
        } else {
            HEAD_SLOTS
        };
        if place < first || index >= self.pages.count() {
            return Err(Corruption::NotAnEntry(slot).into());
        }
        let page = self.page(index)?;
        let raw = page::entry(&page, place).ok_or(Corruption::NotAnEntry(slot))?;
        let name = raw.name.ok_or(Corruption::Name(slot))?;
        Ok(look(
            Entry {
                slot,
                name,
                vnode: raw.vnode,
                uniquifier: raw.uniquifier,
            },
            raw.next,
        ))
    }

    fn find(&self, name: &[u8]) -> Result<Option<EntryPosition>, DirError<P::Error>> {
        let chain = hash(name);
        let (mut previous, mut slot) = (0, head(&*self.page(0)?, chain));
        // A chain cannot hold more entries than there are slots.
        for _ in 0..self.pages.count() * PAGE_SLOTS {
            if slot == 0 {
                return Ok(None);
            }
            let (target, next) = self.with_entry(slot, |entry, next| {
                let Entry {
                    vnode, uniquifier, ..
                } = entry;
                (
                    (entry.name == name).then_some(VnodeRef { vnode, uniquifier }),
                    next,
                )
            })?;
            if let Some(target) = target {
                return Ok(Some(EntryPosition {
                    slot,
                    previous,
                    next,
                    target,
                }));
            }
            (previous, slot) = (slot, next);
        }
        Err(Corruption::Chain(chain).into())
    }

    /// The vnode that `name` leads to, if the name is in the directory.
    ///
    /// # Errors
    /// [`DirError::Corrupt`], or the owner's error.
    pub fn lookup(&self, name: &[u8]) -> Result<Option<VnodeRef>, DirError<P::Error>> {
        Ok(self.find(name)?.map(|found| found.target))
    }

    /// Calls `look` for every entry from slot `from` on, in the order of slots, until it breaks.
    /// `.` and `..` are included. 0 starts at the beginning. To continue after an entry, the caller
    /// passes the entry's slot plus 1.
    ///
    /// # Errors
    /// [`DirError::Corrupt`], or the owner's error. `look` has been called for the entries before
    /// the damage by then.
    pub fn for_each<B>(
        &self,
        from: u32,
        mut look: impl FnMut(Entry<'_>) -> ControlFlow<B>,
    ) -> Result<Option<B>, DirError<P::Error>> {
        let count = self.count()?;
        for index in from as usize / PAGE_SLOTS..count {
            let page = self.page(index)?;
            let mut place = if index == 0 {
                FIRST_SLOT_PAGE_0
            } else {
                HEAD_SLOTS
            };
            // The walk begins with the page, because `from` may now be inside an entry.
            while let Some(used) = header::next_used(&page, place) {
                let slot = (index * PAGE_SLOTS + used) as u32;
                let raw = page::entry(&page, used).ok_or(Corruption::NotAnEntry(slot))?;
                let name = raw.name.ok_or(Corruption::Name(slot))?;
                place = used + slots(name.len());
                if slot < from {
                    continue;
                }
                let entry = Entry {
                    slot,
                    name,
                    vnode: raw.vnode,
                    uniquifier: raw.uniquifier,
                };
                if let ControlFlow::Break(value) = look(entry) {
                    return Ok(Some(value));
                }
            }
        }
        Ok(None)
    }

    /// Every name with its vnode, in the order of slots, `.` and `..` included.
    ///
    /// # Errors
    /// Those of [`Directory::for_each`].
    pub fn entries(&self) -> Result<NamedVnodes, DirError<P::Error>> {
        let mut entries = Vec::new();
        self.for_each(
            0,
            |Entry {
                 name,
                 vnode,
                 uniquifier,
                 ..
             }| {
                entries.push((name.to_vec(), VnodeRef { vnode, uniquifier }));
                ControlFlow::<()>::Continue(())
            },
        )?;
        Ok(entries)
    }

    /// Whether the directory has no entries but `.` and `..`.
    ///
    /// # Errors
    /// Those of [`Directory::for_each`].
    pub fn is_empty(&self) -> Result<bool, DirError<P::Error>> {
        let other = self.for_each(0, |entry| match entry.name {
            b"." | b".." => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        })?;
        Ok(other.is_none())
    }
}

impl<P: WritePages> Directory<P> {
    /// Makes an empty directory in `pages`, which must have no page yet. `.` leads to `this` and
    /// `..` to `parent` (in the root of a volume both are 1.1).
    ///
    /// # Errors
    /// The owner's error; [`DirError::Corrupt`] if there are pages.
    pub fn create(
        mut pages: P,
        this: VnodeRef,
        parent: VnodeRef,
    ) -> Result<Self, DirError<P::Error>> {
        if pages.count() != 0 {
            return Err(Corruption::Size(pages.count()).into());
        }
        init_page(pages.append().map_err(DirError::Pages)?, 0);
        let mut directory = Self { pages };
        directory.add(b".", this)?;
        directory.add(b"..", parent)?;
        Ok(directory)
    }

    /// Inserts `name`. Returns its slot.
    ///
    /// # Errors
    /// [`DirError::Exists`], [`DirError::Full`], [`DirError::BadName`], [`DirError::NameTooLong`],
    /// [`DirError::Corrupt`], or the owner's error. Nothing has changed after an error, except
    /// after the owner's.
    pub fn insert(&mut self, name: &[u8], target: VnodeRef) -> Result<u32, DirError<P::Error>> {
        check_name(name)?;
        self.count()?;
        if self.find(name)?.is_some() {
            return Err(DirError::Exists);
        }
        self.insert_missing(name, target)
    }

    /// Inserts a name that [`Directory::lookup`] has just not found: [`Directory::insert`] without
    /// a second lookup. If the directory has the name after all, it is in the directory twice
    /// afterwards.
    ///
    /// # Errors
    /// Those of `insert`, except `Exists`.
    pub fn insert_missing(
        &mut self,
        name: &[u8],
        target: VnodeRef,
    ) -> Result<u32, DirError<P::Error>> {
        check_name(name)?;
        self.count()?;
        self.add(name, target)
    }

    /// Inserts a name that is valid and not in the directory.
    fn add(&mut self, name: &[u8], target: VnodeRef) -> Result<u32, DirError<P::Error>> {
        let needed = slots(name.len());
        let (index, place) = self.room(needed)?;
        let slot = (index * PAGE_SLOTS + place) as u32;
        let chain = hash(name);
        let next = head(&*self.page(0)?, chain);
        let page = self.pages.page_mut(index).map_err(DirError::Pages)?;
        header::set_used(page, place, needed);
        page::write_entry(page, place, name, target, next);
        let page_0 = self.pages.page_mut(0).map_err(DirError::Pages)?;
        if index < MAP_PAGES {
            set_map_free(page_0, index, map_free(page_0, index) - needed as u8);
        }
        set_head(page_0, chain, slot);
        Ok(slot)
    }

    /// The page and first slot of the first run of `needed` free slots. Adds a page if there is no
    /// run.
    fn room(&mut self, needed: usize) -> Result<(usize, usize), DirError<P::Error>> {
        let count = self.pages.count();
        for index in 0..count {
            if index < MAP_PAGES {
                let free = map_free(&*self.page(0)?, index);
                if free >= NO_PAGE {
                    return Err(Corruption::FreeCount(index).into());
                }
                if usize::from(free) < needed {
                    continue;
                }
            }
            if let Some(place) = header::free_run(&*self.page(index)?, first_slot(index), needed) {
                return Ok((index, place));
            }
        }
        if count >= PAGES_MAX {
            return Err(DirError::Full);
        }
        init_page(self.pages.append().map_err(DirError::Pages)?, count);
        let page_0 = self.pages.page_mut(0).map_err(DirError::Pages)?;
        set_page_count(page_0, count + 1);
        if count < MAP_PAGES {
            set_map_free(page_0, count, (PAGE_SLOTS - HEAD_SLOTS) as u8);
        }
        Ok((count, HEAD_SLOTS))
    }

    /// Removes `name`. Returns the vnode that it led to.
    ///
    /// # Errors
    /// [`DirError::NotFound`]; [`DirError::BadName`] for `.` and `..`; [`DirError::Corrupt`], or
    /// the owner's error.
    pub fn remove(&mut self, name: &[u8]) -> Result<VnodeRef, DirError<P::Error>> {
        if matches!(name, b"" | b"." | b"..") {
            return Err(DirError::BadName);
        }
        self.take_out(name)
    }

    fn take_out(&mut self, name: &[u8]) -> Result<VnodeRef, DirError<P::Error>> {
        self.count()?;
        let found = self.find(name)?.ok_or(DirError::NotFound)?;
        let (index, place) = (
            found.slot as usize / PAGE_SLOTS,
            found.slot as usize % PAGE_SLOTS,
        );
        let freed = slots(name.len());
        // Everything that can be wrong is checked before anything changes.
        if place + freed > PAGE_SLOTS || !header::all_used(&*self.page(index)?, place, freed) {
            return Err(Corruption::Bitmap(index).into());
        }
        if index < MAP_PAGES {
            let free = usize::from(map_free(&*self.page(0)?, index)) + freed;
            if free >= PAGE_SLOTS {
                return Err(Corruption::FreeCount(index).into());
            }
            let page_0 = self.pages.page_mut(0).map_err(DirError::Pages)?;
            set_map_free(page_0, index, free as u8);
        }
        if found.previous == 0 {
            let page_0 = self.pages.page_mut(0).map_err(DirError::Pages)?;
            set_head(page_0, hash(name), found.next);
        } else {
            let previous = found.previous as usize;
            let page = self
                .pages
                .page_mut(previous / PAGE_SLOTS)
                .map_err(DirError::Pages)?;
            page::set_next(page, previous % PAGE_SLOTS, found.next);
        }
        let page = self.pages.page_mut(index).map_err(DirError::Pages)?;
        header::set_free(page, place, freed);
        page::zero(page, place, freed);
        Ok(found.target)
    }

    /// Lets `..` lead to another directory.
    ///
    /// # Errors
    /// [`DirError::Corrupt`], also if there is no `..`; or the owner's error.
    pub fn set_parent(&mut self, parent: VnodeRef) -> Result<(), DirError<P::Error>> {
        match self.take_out(b"..") {
            Err(DirError::NotFound) => return Err(Corruption::Dots.into()),
            result => result?,
        };
        self.add(b"..", parent)?;
        Ok(())
    }
}
