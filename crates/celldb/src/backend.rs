//! The storage under redb: a locked file, and a layer over it that keeps all changes in memory.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use redb::StorageBackend;

use crate::Error;

/// The bytes that the layer copies at a time.
const PAGE: u64 = 4096;
/// The most bytes beyond the end of the file that a damaged header can make redb request.
const GROWTH_MAX: u64 = 1 << 30;

/// A file that no other process has open as a database.
#[derive(Debug)]
pub(crate) struct LockedFile(File);

impl LockedFile {
    /// Opens the file, which must be there, or makes a new one.
    ///
    /// # Errors
    /// [`Error::InUse`], [`Error::Missing`], [`Error::Failed`].
    pub(crate) fn open(path: &Path, new: bool) -> Result<Self, Error> {
        let mut options = cellar_private::options();
        let file = options.read(true).write(true).create_new(new).open(path);
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::Missing(path.to_path_buf()),
            _ => Error::Failed(format!("{}: {error}", path.display()).into()),
        })?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => Err(Error::InUse(path.to_path_buf())),
            Err(TryLockError::Error(error)) => Err(Error::Failed(error.to_string().into())),
        }
    }
}

impl StorageBackend for LockedFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }
}

/// Storage with several holders.
#[derive(Clone, Debug)]
pub(crate) struct Shared(pub(crate) Arc<dyn StorageBackend>);

impl StorageBackend for Shared {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
}

/// A view of storage whose changes stay in memory. It serves to inspect a database, which redb may
/// repair meanwhile.
#[derive(Debug)]
pub(crate) struct Layer {
    below: Shared,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    length: u64,
    /// The bytes of `below` that still count: the storage was cut there once.
    visible: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE as usize]>>,
}

impl Layer {
    pub(crate) fn over(below: Shared) -> io::Result<Self> {
        let length = below.len()?;
        Ok(Self {
            below,
            state: Mutex::new(State {
                length,
                visible: length,
                pages: BTreeMap::new(),
            }),
        })
    }

    /// One page, as it is now.
    fn page(&self, state: &State, number: u64) -> io::Result<Box<[u8; PAGE as usize]>> {
        if let Some(page) = state.pages.get(&number) {
            return Ok(page.clone());
        }
        let mut page = Box::new([0; PAGE as usize]);
        let start = number * PAGE;
        let there = state.visible.saturating_sub(start).min(PAGE) as usize;
        if there > 0 {
            self.below.read(start, &mut page[..there])?;
        }
        Ok(page)
    }
}

/// The pages that a range touches: number, first byte in it, bytes.
fn pages(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let (mut at, end) = (offset, offset.saturating_add(length as u64));
    std::iter::from_fn(move || {
        let within = (at % PAGE) as usize;
        let count = (PAGE as usize - within).min((end - at) as usize);
        let number = at / PAGE;
        at += count as u64;
        (count > 0).then_some((number, within, count))
    })
}

impl StorageBackend for Layer {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state.lock().length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state.lock();
        if offset
            .checked_add(out.len() as u64)
            .is_none_or(|end| end > state.length)
        {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut done = 0;
        for (number, within, count) in pages(offset, out.len()) {
            let page = self.page(&state, number)?;
            out[done..done + count].copy_from_slice(&page[within..within + count]);
            done += count;
        }
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        if length > state.length.saturating_add(GROWTH_MAX) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        state.visible = state.visible.min(length);
        state.pages.retain(|number, _| number * PAGE < length);
        // Bytes beyond a cut are zeros when the storage grows again.
        let last = length / PAGE;
        if let Some(page) = state.pages.get_mut(&last) {
            page[(length % PAGE) as usize..].fill(0);
        }
        state.length = length;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        let end = offset.checked_add(data.len() as u64);
        if end.is_none_or(|end| end > state.length.saturating_add(GROWTH_MAX)) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut done = 0;
        for (number, within, count) in pages(offset, data.len()) {
            let mut page = self.page(&state, number)?;
            page[within..within + count].copy_from_slice(&data[done..done + count]);
            state.pages.insert(number, page);
            done += count;
        }
        state.length = state.length.max(offset + data.len() as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn a_layer_is_as_a_file_and_changes_nothing_below() {
        let seed = rand::random();
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let home = tempfile::tempdir().unwrap();
        let make = |name: &str| LockedFile::open(&home.path().join(name), true).unwrap();
        let below = make("below");
        let original: Vec<u8> = (0..30_000_u32).map(|n| n as u8).collect();
        below.write(0, &original).unwrap();
        let file = make("file");
        file.write(0, &original).unwrap();
        let layer = Layer::over(Shared(Arc::new(below))).unwrap();
        for _ in 0..2000 {
            let length = file.len().unwrap();
            assert_eq!(layer.len().unwrap(), length);
            let offset = random.random_range(0..=length);
            match random.random_range(0..10) {
                0 => {
                    let length = random.random_range(0..60_000);
                    file.set_len(length).unwrap();
                    layer.set_len(length).unwrap();
                }
                1..=4 => {
                    let mut data = vec![0; random.random_range(0..10_000)];
                    random.fill(&mut data[..]);
                    file.write(offset, &data).unwrap();
                    layer.write(offset, &data).unwrap();
                }
                _ => {
                    let count = random.random_range(0..=length - offset) as usize;
                    let (mut one, mut other) = (vec![1; count], vec![2; count]);
                    file.read(offset, &mut one).unwrap();
                    layer.read(offset, &mut other).unwrap();
                    assert!(one == other);
                }
            }
        }
        assert!(layer.read(file.len().unwrap(), &mut [0]).is_err());
        let mut kept = vec![0; original.len()];
        layer.below.read(0, &mut kept).unwrap();
        assert!(kept == original);
        assert_eq!(layer.below.len().unwrap(), original.len() as u64);
    }
}
