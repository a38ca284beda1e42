//! Listings of the VLDB in bounded memory.
//!
//! The VLDB lists entries in its own order, a page at a time. A listing by name sorts them. Parts
//! of [`RUN_ENTRIES`] are sorted in memory, written to nameless temporary files, and merged. A
//! cell with fewer entries needs no file.

use std::collections::{BinaryHeap, VecDeque};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};

use cellar_wire::vl;
use cellar_xdr::{Decode, Encode};

use super::location::EntryFilter;
use super::{Entry, Volumes, entry_from_wire};
use crate::error::{Error, Result};

/// Entries that are sorted in memory at a time; about 20 MB.
const RUN_ENTRIES: usize = 1 << 15;
/// Bytes of an entry in a file, at most; larger ones are not written by this program.
const ENTRY_BYTES_MAX: u32 = 1 << 16;

/// The order of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// By name. The first entry appears when the VLDB has listed all.
    Name,
    /// That of the VLDB. Entries appear as they arrive.
    Database,
}

/// Entries of the VLDB, one after the other.
pub struct EntryList<'a> {
    volumes: &'a Volumes<'a>,
    source: Source,
}

enum Source {
    Pages(Pages),
    Sorted(Merge),
}

/// The pages of a listing.
pub(super) struct Pages {
    attributes: vl::VldbListByAttributes,
    /// Where the next page begins; `None` after the last page.
    next: Option<i32>,
    page: VecDeque<vl::NvldbEntry>,
}

impl Pages {
    /// The pages of the entries that match the filter.
    ///
    /// # Errors
    /// The server of the filter has no IPv4 address.
    pub(super) fn of(filter: EntryFilter) -> Result<Self> {
        Ok(Self {
            attributes: filter.attributes()?,
            next: Some(0),
            page: VecDeque::new(),
        })
    }

    /// The next page; `None` at the end.
    ///
    /// # Errors
    /// The VLDB does not answer, or knows no such server.
    pub(super) async fn next_page(
        &mut self,
        volumes: &Volumes<'_>,
    ) -> Result<Option<Vec<vl::NvldbEntry>>> {
        let Some(startindex) = self.next else {
            return Ok(None);
        };
        let arguments = vl::ListAttributesN2 {
            attributes: self.attributes,
            volumename: vl::VolumeNameArgument::default(),
            startindex,
        };
        let reply = volumes.vl(&arguments, "unable to list the VLDB").await?;
        // -1 ends the list. An index that does not grow would never end it.
        self.next = Some(reply.nextindex).filter(|next| *next > startindex);
        Ok(Some(reply.blkentries.into_vec()))
    }

    /// The next entry; `None` at the end.
    async fn next(&mut self, volumes: &Volumes<'_>) -> Result<Option<vl::NvldbEntry>> {
        while self.page.is_empty() {
            match self.next_page(volumes).await? {
                Some(page) => self.page = page.into(),
                None => return Ok(None),
            }
        }
        Ok(self.page.pop_front())
    }
}

impl<'a> Volumes<'a> {
    /// The entries that match the filter, one after the other, in bounded memory.
    ///
    /// # Errors
    /// The VLDB does not answer, or knows no such server. There is no room for temporary files.
    pub async fn list_entries(
        &'a self,
        filter: EntryFilter,
        order: Order,
    ) -> Result<EntryList<'a>> {
        let mut pages = Pages::of(filter)?;
        let source = match order {
            Order::Database => Source::Pages(pages),
            Order::Name => {
                let mut sorter = Sorter::new(RUN_ENTRIES);
                while let Some(entry) = pages.next(self).await? {
                    sorter.add(entry).map_err(Error::Local)?;
                }
                Source::Sorted(sorter.merge().map_err(Error::Local)?)
            }
        };
        Ok(EntryList {
            volumes: self,
            source,
        })
    }
}

impl EntryList<'_> {
    /// The next entry; `None` at the end.
    ///
    /// # Errors
    /// As [`Volumes::list_entries`].
    pub async fn next(&mut self) -> Result<Option<Entry>> {
        let next = match &mut self.source {
            Source::Pages(pages) => pages.next(self.volumes).await?,
            Source::Sorted(merge) => merge.next().map_err(Error::Local)?,
        };
        Ok(next.as_ref().map(entry_from_wire))
    }
}

/// Sorts entries by name.
struct Sorter {
    run_entries: usize,
    present: Vec<vl::NvldbEntry>,
    runs: Vec<File>,
}

impl Sorter {
    fn new(run_entries: usize) -> Self {
        Self {
            run_entries,
            present: Vec::new(),
            runs: Vec::new(),
        }
    }

    fn add(&mut self, entry: vl::NvldbEntry) -> std::io::Result<()> {
        self.present.push(entry);
        if self.present.len() >= self.run_entries {
            self.sort();
            self.runs.push(written(&self.present)?);
            self.present.clear();
        }
        Ok(())
    }

    fn sort(&mut self) {
        self.present
            .sort_by(|one, other| one.name.as_bytes().cmp(other.name.as_bytes()));
    }

    fn merge(mut self) -> std::io::Result<Merge> {
        self.sort();
        let files = self.runs.into_iter().map(BufReader::new).map(Run::File);
        let mut merge = Merge {
            runs: files.collect(),
            heads: BinaryHeap::new(),
        };
        merge.runs.push(Run::Memory(self.present.into_iter()));
        for run in 0..merge.runs.len() {
            merge.fill(run)?;
        }
        Ok(merge)
    }
}

/// Entries in the order of their names.
enum Run {
    File(BufReader<File>),
    Memory(std::vec::IntoIter<vl::NvldbEntry>),
}

impl Run {
    fn next(&mut self) -> std::io::Result<Option<vl::NvldbEntry>> {
        match self {
            Self::Memory(entries) => Ok(entries.next()),
            Self::File(file) => read(file),
        }
    }
}

/// Sorted runs as one.
struct Merge {
    runs: Vec<Run>,
    /// The first entry of each run that has one.
    heads: BinaryHeap<Head>,
}

impl Merge {
    fn next(&mut self) -> std::io::Result<Option<vl::NvldbEntry>> {
        let Some(first) = self.heads.pop() else {
            return Ok(None);
        };
        self.fill(first.run)?;
        Ok(Some(first.entry))
    }

    fn fill(&mut self, run: usize) -> std::io::Result<()> {
        if let Some(entry) = self.runs[run].next()? {
            self.heads.push(Head { entry, run });
        }
        Ok(())
    }
}

/// The first entry of a run. The greatest one has the lowest name, and then the lowest run.
struct Head {
    entry: vl::NvldbEntry,
    run: usize,
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let names = (other.entry.name.as_bytes()).cmp(self.entry.name.as_bytes());
        names.then(other.run.cmp(&self.run))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Head {}

/// Writes entries to a temporary file, each with its length.
fn written(entries: &[vl::NvldbEntry]) -> std::io::Result<File> {
    let mut file = BufWriter::new(tempfile::tempfile()?);
    for entry in entries {
        let bytes = entry.to_xdr();
        file.write_all(&(bytes.len() as u32).to_be_bytes())?;
        file.write_all(&bytes)?;
    }
    let mut file = file
        .into_inner()
        .map_err(std::io::IntoInnerError::into_error)?;
    file.rewind()?;
    Ok(file)
}

/// The next entry of a temporary file; `None` at its end.
fn read(file: &mut BufReader<File>) -> std::io::Result<Option<vl::NvldbEntry>> {
    let invalid = |why: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, why.to_owned());
    let mut length = [0; 4];
    match file.read_exact(&mut length) {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_be_bytes(length);
    if length > ENTRY_BYTES_MAX {
        return Err(invalid("a temporary file was changed"));
    }
    let mut bytes = vec![0; length as usize];
    file.read_exact(&mut bytes)?;
    let entry = vl::NvldbEntry::from_xdr(&bytes);
    entry
        .map(Some)
        .map_err(|_| invalid("a temporary file was changed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_merged_by_name_from_memory_and_files() {
        for count in [0_u32, 1, 99, 100, 101, 1000] {
            let mut sorter = Sorter::new(100);
            for number in 0..count {
                // 7919 is prime, so each name appears once.
                let name = format!("volume.{}", number * 7919 % 100_003);
                let name = vl::EntryName::try_from(name.as_str()).unwrap();
                let entry = vl::NvldbEntry {
                    name,
                    ..Default::default()
                };
                sorter.add(entry).unwrap();
                assert!(sorter.present.len() < 100, "memory is bounded");
            }
            let mut merge = sorter.merge().unwrap();
            assert_eq!(merge.runs.len(), count as usize / 100 + 1);
            let mut names = Vec::new();
            while let Some(entry) = merge.next().unwrap() {
                names.push(entry.name.to_string());
            }
            assert_eq!(names.len(), count as usize);
            assert!(names.is_sorted());
            names.dedup();
            assert_eq!(names.len(), count as usize);
        }
    }
}
