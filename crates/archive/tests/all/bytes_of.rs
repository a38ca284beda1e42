//! Sources and sinks of tests, and names of copies.

use std::io;

use bytes::Bytes;
use cellar_archive::{ArchiveId, CellId, Expected, Hasher, ObjectKey, Receipt, Sink, Source};
use cellar_wire::ids::{Uniquifier, VnodeId, VolumeId};
use cellar_wire::object::ObjectId;
use futures_util::future::BoxFuture;

pub(crate) const CELL: CellId = CellId(uuid::Uuid::from_u128(0x00ce_1100));
pub(crate) const OTHER_CELL: CellId = CellId(uuid::Uuid::from_u128(0x00ce_1101));

pub(crate) fn key(vnode: u32, version: u64) -> ObjectKey {
    ObjectKey {
        cell: CELL,
        object: ObjectId {
            volume: VolumeId(536_870_912),
            vnode: VnodeId(vnode),
            uniquifier: Uniquifier(1),
            serial: 1,
        },
        version,
    }
}

pub(crate) fn expected(archive: ArchiveId, session: u64, copies: u64) -> Expected {
    Expected {
        cell: CELL,
        archive,
        session,
        copies,
    }
}

/// Random bytes of a seed. BLAKE3 makes them, because it is fast in builds for tests too.
pub(crate) fn random(length: usize, seed: u64) -> Bytes {
    let mut bytes = vec![0; length];
    let mut stream = blake3::Hasher::new();
    stream.update(&seed.to_be_bytes());
    stream.finalize_xof().fill(&mut bytes);
    bytes.into()
}

pub(crate) fn receipt(bytes: &[u8]) -> Receipt {
    let mut hasher = Hasher::default();
    hasher.update(bytes);
    hasher.finish()
}

/// Bytes in memory.
pub(crate) struct Held(pub(crate) Bytes);

impl Source for Held {
    fn read(&mut self, most: usize) -> BoxFuture<'_, io::Result<Bytes>> {
        let most = most.min(self.0.len());
        Box::pin(std::future::ready(Ok(self.0.split_to(most))))
    }
}

/// Zeros without end, or an error after some of them.
pub(crate) struct Zeros {
    pub(crate) left: u64,
    pub(crate) then_fails: bool,
}

impl Source for Zeros {
    fn read(&mut self, most: usize) -> BoxFuture<'_, io::Result<Bytes>> {
        let bytes = self.left.min(most as u64);
        self.left -= bytes;
        let result = match bytes == 0 && self.then_fails {
            true => Err(io::Error::other("the disk of the source failed")),
            false => Ok(Bytes::from(vec![0; bytes as usize])),
        };
        Box::pin(std::future::ready(result))
    }
}

/// A sink in memory.
#[derive(Default)]
pub(crate) struct Kept {
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_finished: bool,
}

impl Sink for Kept {
    fn write(&mut self, bytes: Bytes) -> BoxFuture<'_, io::Result<()>> {
        self.bytes.extend_from_slice(&bytes);
        Box::pin(std::future::ready(Ok(())))
    }

    fn finish(&mut self) -> BoxFuture<'_, io::Result<()>> {
        self.is_finished = true;
        Box::pin(std::future::ready(Ok(())))
    }
}

/// A sink that counts, and fails after some bytes.
pub(crate) struct Counted {
    pub(crate) bytes: u64,
    pub(crate) most: u64,
}

impl Sink for Counted {
    fn write(&mut self, bytes: Bytes) -> BoxFuture<'_, io::Result<()>> {
        self.bytes += bytes.len() as u64;
        let result = match self.bytes > self.most {
            true => Err(io::Error::from(io::ErrorKind::StorageFull)),
            false => Ok(()),
        };
        Box::pin(std::future::ready(result))
    }

    fn finish(&mut self) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
