//! Directories: fetched as the pages that the server stores, and searched in the client.
//!
//! A copy is valid while the directory has the data version of the copy. Copies are kept for the
//! most recently used directories, and dropped when a promise for them is broken.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use cellar_wire::dir::{Directory, PAGE_SIZE, PAGES_MAX, Page};
use cellar_wire::ids::{Fid, VnodeId};
use parking_lot::Mutex;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::path::Node;

/// The most directories kept. If each had the largest size, they would take 128 MiB; usually they
/// take a few hundred KiB.
const DIRECTORIES_MAX: usize = 64;

/// The number of retries for a directory that changes while it is fetched.
const TRIES: u32 = 4;

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name: any bytes but `/` and NUL.
    pub name: Bytes,
    /// The vnode of the name.
    pub fid: Fid,
}

/// Copies of directories, by fid, with the data version they were fetched at.
#[derive(Debug, Default)]
pub(crate) struct Directories(Mutex<HashMap<Fid, Copy>>);

/// The data version a directory was fetched at, and its pages.
type Copy = (u64, Arc<Vec<Page>>);

impl Directories {
    /// Drops the copy of a directory, or all copies of a volume.
    pub(crate) fn forget(&self, fid: Fid) {
        let mut copies = self.0.lock();
        if fid.vnode == VnodeId(0) {
            copies.retain(|copy, _| copy.volume != fid.volume);
        } else {
            copies.remove(&fid);
        }
    }

    /// Drops all copies.
    pub(crate) fn forget_all(&self) {
        self.0.lock().clear();
    }

    fn get(&self, fid: Fid, data_version: u64) -> Option<Arc<Vec<Page>>> {
        let copies = self.0.lock();
        copies
            .get(&fid)
            .filter(|(version, _)| *version == data_version)
            .map(|(_, p)| p.clone())
    }

    fn put(&self, fid: Fid, data_version: u64, pages: Arc<Vec<Page>>) {
        let mut copies = self.0.lock();
        if copies.len() >= DIRECTORIES_MAX && !copies.contains_key(&fid) {
            copies.clear();
        }
        copies.insert(fid, (data_version, pages));
    }
}

impl Client {
    /// The fid of a name in a directory.
    ///
    /// # Errors
    /// The directory cannot be fetched, or is damaged.
    pub async fn lookup_name(&self, directory: &Node, name: &[u8]) -> Result<Option<Fid>> {
        let pages = self.pages(directory).await?;
        let found = Directory::new(&*pages)
            .lookup(name)
            .map_err(|error| damaged(directory, &error))?;
        Ok(found.map(|target| Fid {
            volume: directory.fid.volume,
            vnode: target.vnode,
            uniquifier: target.uniquifier,
        }))
    }

    /// The names in a directory, without `.` and `..`, in the directory's own order.
    ///
    /// # Errors
    /// As [`Client::lookup_name`].
    pub async fn read_directory(&self, directory: &Node) -> Result<Vec<Entry>> {
        let pages = self.pages(directory).await?;
        let entries = Directory::new(&*pages)
            .entries()
            .map_err(|error| damaged(directory, &error))?;
        let named = entries
            .into_iter()
            .filter(|(name, _)| name != b"." && name != b"..");
        Ok(named
            .map(|(name, target)| Entry {
                name: name.into(),
                fid: Fid {
                    volume: directory.fid.volume,
                    vnode: target.vnode,
                    uniquifier: target.uniquifier,
                },
            })
            .collect())
    }

    /// The entries of a directory with names and statuses, in the directory's own order. A vnode
    /// whose status cannot be read has the type `Invalid` and the code.
    ///
    /// # Errors
    /// As [`Client::lookup_name`]; no server of the volume answers.
    pub async fn children(&self, directory: &Node) -> Result<Vec<(Bytes, Node)>> {
        let entries = self.read_directory(directory).await?;
        let fids: Vec<_> = entries.iter().map(|entry| entry.fid).collect();
        let statuses = self.statuses(directory, &fids).await?;
        let child =
            |(entry, status): (Entry, _)| (entry.name, directory.neighbour(entry.fid, status));
        Ok(entries.into_iter().zip(statuses).map(child).collect())
    }

    async fn pages(&self, directory: &Node) -> Result<Arc<Vec<Page>>> {
        let mut version = directory.status.data_version;
        for _ in 0..TRIES {
            if let Some(copy) = self.directories().get(directory.fid, version) {
                return Ok(copy);
            }
            let bytes = self
                .fetch_all(directory, (PAGE_SIZE * PAGES_MAX) as u64)
                .await?;
            // The status after the fetch. If the versions before and after are equal, the bytes are
            // those of that version.
            let after = self.status(&directory.volume, directory.fid).await?;
            let (pages, rest) = bytes.as_chunks::<PAGE_SIZE>();
            if after.data_version == version && rest.is_empty() {
                let pages = Arc::new(pages.to_vec());
                self.directories()
                    .put(directory.fid, version, pages.clone());
                return Ok(pages);
            }
            version = after.data_version;
        }
        Err(Error::BadAnswer {
            what: format!("directory {}", directory.fid),
            detail: "it changes faster than it can be read, or is not whole pages".to_owned(),
        })
    }
}

fn damaged(directory: &Node, error: &impl std::fmt::Display) -> Error {
    Error::BadAnswer {
        what: format!("directory {}", directory.fid),
        detail: error.to_string(),
    }
}
