//! The catalogue of the copies in an archive.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `copies` | object (16 bytes), version (8) | length, created, removed (8 each), sums (48) |
//! | `archive` | `session` | the newest session of the archive that is known (8) |
//!
//! The sums are BLAKE3 (32 bytes) and MD5 (16). All numbers are big-endian, so copies are in the
//! order of their objects. `removed` is the time of a soft removal, or 0. A copy is entered after
//! the archive has it durably, and leaves the catalogue after the archive has removed it.

use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use cellar_archive::Receipt;
use cellar_celldb::{CellDb, Embedded, Error, Table, Transaction, View};
use cellar_wire::ids::{Uniquifier, VnodeId, VolumeId};
use cellar_wire::object::ObjectId;

const COPIES: Table = Table::new("copies");
const ARCHIVE: Table = Table::new("archive");
const SESSION: &[u8] = b"session";
/// Bytes of a value in `copies`.
const VALUE_BYTES: usize = 72;
/// Copies that one transaction changes, at most.
const BATCH: usize = 256;

/// A copy in an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copy {
    pub(crate) version: u64,
    pub(crate) receipt: Receipt,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// When it was softly removed; 0: it is present.
    pub(crate) removed: u64,
}

/// The catalogue of one archive.
pub(crate) struct Catalogue {
    database: Embedded,
    /// Present copies.
    count: AtomicU64,
}

impl std::fmt::Debug for Catalogue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Catalogue({} copies)", self.count())
    }
}

fn key(object: ObjectId, version: u64) -> Bytes {
    let mut key = prefix(object);
    key.extend_from_slice(&version.to_be_bytes());
    key.into()
}

fn prefix(object: ObjectId) -> Vec<u8> {
    let words = [
        object.volume.0,
        object.vnode.0,
        object.uniquifier.0,
        object.serial,
    ];
    words.into_iter().flat_map(u32::to_be_bytes).collect()
}

fn parse_key(key: &[u8]) -> Option<(ObjectId, u64)> {
    let (words, version) = key.split_first_chunk::<16>()?;
    let word = |place: usize| {
        let bytes = words.get(4 * place..4 * place + 4)?;
        Some(u32::from_be_bytes(bytes.try_into().ok()?))
    };
    let object = ObjectId {
        volume: VolumeId(word(0)?),
        vnode: VnodeId(word(1)?),
        uniquifier: Uniquifier(word(2)?),
        serial: word(3)?,
    };
    Some((object, u64::from_be_bytes(version.try_into().ok()?)))
}

fn value(copy: &Copy) -> Bytes {
    let mut value = Vec::with_capacity(VALUE_BYTES);
    for number in [copy.receipt.length, copy.created, copy.removed] {
        value.extend_from_slice(&number.to_be_bytes());
    }
    value.extend_from_slice(&copy.receipt.blake3);
    value.extend_from_slice(&copy.receipt.md5);
    value.into()
}

fn parse(version: u64, value: &[u8]) -> Option<Copy> {
    let (length, rest) = value.split_first_chunk::<8>()?;
    let (created, rest) = rest.split_first_chunk::<8>()?;
    let (removed, rest) = rest.split_first_chunk::<8>()?;
    let (blake3, rest) = rest.split_first_chunk::<32>()?;
    let md5: &[u8; 16] = rest.try_into().ok()?;
    Some(Copy {
        version,
        receipt: Receipt {
            length: u64::from_be_bytes(*length),
            blake3: *blake3,
            md5: *md5,
        },
        created: u64::from_be_bytes(*created),
        removed: u64::from_be_bytes(*removed),
    })
}

fn rows_of(view: &dyn View, object: ObjectId) -> Result<Vec<Copy>, Error> {
    let rows = view.scan_prefix(COPIES, &prefix(object), BATCH)?;
    let copies = rows.iter().filter_map(|(key, row)| {
        let (_, version) = parse_key(key)?;
        parse(version, row)
    });
    Ok(copies.collect())
}

impl Catalogue {
    /// Takes the database, and counts its copies.
    pub(crate) fn new(database: Embedded) -> Result<Self, Error> {
        let catalogue = Self {
            database,
            count: AtomicU64::new(0),
        };
        let mut count = 0;
        catalogue.read(|view| {
            view.visit(
                COPIES,
                (Bound::Unbounded, Bound::Unbounded),
                &mut |_, row| {
                    count += u64::from(parse(0, row).is_some_and(|copy| copy.removed == 0));
                    true
                },
            )
        })?;
        catalogue.count.store(count, Ordering::Relaxed);
        Ok(catalogue)
    }

    /// The number of present copies.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn read<T>(&self, read: impl FnOnce(&dyn View) -> Result<T, Error>) -> Result<T, Error> {
        let database: &dyn CellDb = &self.database;
        database.read(|view, _| read(view))
    }

    fn write<T>(
        &self,
        write: impl FnMut(&mut Transaction<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let database: &dyn CellDb = &self.database;
        Ok(database.write(write)?.0)
    }

    /// Whether it has no copy.
    pub(crate) fn is_empty(&self) -> Result<bool, Error> {
        self.read(|view| Ok(view.scan_prefix(COPIES, &[], 1)?.is_empty()))
    }

    /// The newest session of the archive that is known.
    pub(crate) fn session(&self) -> Result<u64, Error> {
        let row = self.read(|view| view.get(ARCHIVE, SESSION))?;
        let number = row.and_then(|row| row.as_ref().try_into().ok());
        Ok(number.map_or(0, u64::from_be_bytes))
    }

    /// Keeps the session if it is newer.
    pub(crate) fn keep_session(&self, session: u64) -> Result<(), Error> {
        if session <= self.session()? {
            return Ok(());
        }
        let row = Bytes::copy_from_slice(&session.to_be_bytes());
        self.write(|change| {
            change.put(ARCHIVE, SESSION, row.clone());
            Ok(())
        })
    }

    /// Enters a copy.
    pub(crate) fn enter(&self, object: ObjectId, copy: &Copy) -> Result<(), Error> {
        let is_new = self.present(object, copy.version)?.is_none();
        self.write(|change| {
            change.put(COPIES, key(object, copy.version), value(copy));
            Ok(())
        })?;
        self.count.fetch_add(u64::from(is_new), Ordering::Relaxed);
        Ok(())
    }

    /// The copies of an object, removed ones included.
    pub(crate) fn of(&self, object: ObjectId) -> Result<Vec<Copy>, Error> {
        self.read(|view| rows_of(view, object))
    }

    /// The present copy of one version.
    pub(crate) fn present(&self, object: ObjectId, version: u64) -> Result<Option<Copy>, Error> {
        let row = self.read(|view| view.get(COPIES, &key(object, version)))?;
        let copy = row.and_then(|row| parse(version, &row));
        Ok(copy.filter(|copy| copy.removed == 0))
    }

    /// Marks copies of objects as removed at `at`, or, with 0, as present. Returns the number of
    /// objects that changed.
    pub(crate) fn mark(&self, objects: &[ObjectId], at: u64) -> Result<u32, Error> {
        let (changed, copies) = self.write(|change| {
            let (mut changed, mut marked) = (0, 0);
            for object in objects {
                let copies = rows_of(change.view(), *object)?;
                let copies = copies
                    .iter()
                    .filter(|copy| (copy.removed == 0) == (at != 0));
                let mut any = false;
                for copy in copies {
                    let copy = Copy {
                        removed: at,
                        ..*copy
                    };
                    change.put(COPIES, key(*object, copy.version), value(&copy));
                    any = true;
                    marked += 1;
                }
                changed += u32::from(any);
            }
            Ok((changed, marked))
        })?;
        match at {
            0 => self.count.fetch_add(copies, Ordering::Relaxed),
            _ => self.count.fetch_sub(copies, Ordering::Relaxed),
        };
        Ok(changed)
    }

    /// Forgets a removed copy.
    pub(crate) fn forget(&self, object: ObjectId, version: u64) -> Result<(), Error> {
        self.write(|change| {
            change.delete(COPIES, key(object, version));
            Ok(())
        })
    }

    /// Copies behind `after`, in order, and where to go on.
    pub(crate) fn page(
        &self,
        after: Option<(ObjectId, u64)>,
        limit: usize,
    ) -> Result<Vec<(ObjectId, Copy)>, Error> {
        let after = after.map(|(object, version)| key(object, version));
        let from = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let rows = self.read(|view| view.scan(COPIES, (from, Bound::Unbounded), limit))?;
        let copies = rows.iter().filter_map(|(key, row)| {
            let (object, version) = parse_key(key)?;
            Some((object, parse(version, row)?))
        });
        Ok(copies.collect())
    }
}
