//! Pins: files, and directories with all files below them, that are not wiped.
//!
//! The pins are in the cell's database, so a moved volume keeps them. This server has a copy, which
//! is some seconds old at most. Its own changes are in the copy at once.
//!
//! 1. A pin names a file of an RW volume. A pin of a directory holds for all files below it in the
//!    same volume.
//! 2. While the pins are not known since the start, no file is wiped.
//! 3. Each pin has an owner and, unless an administrator set it, an end.

use std::collections::HashMap;
use std::sync::Arc;

use cellar_rpc::CallError;
use cellar_volume::{Error, Result, VnodeStatus, Volume};
use cellar_wire::ids::{Fid, Uniquifier, ViceId, VnodeId, VolumeId};
use cellar_wire::osddb::Pin;
use parking_lot::Mutex;
use tracing::debug;

use super::super::Objects;
use super::super::cell::BoxFuture;
use super::super::failure::Failure;
use super::super::loaded_lists::has_none;

/// Directories above a file that are examined. Deeper files are taken for pinned, if their volume
/// has pins.
const DEPTH_MAX: usize = 1024;

/// The revision of the cell's pins and the full list.
pub type PinAnswer = std::result::Result<(u64, Vec<Pin>), CallError>;

/// The pins of the cell.
pub trait PinTable: Send + Sync + 'static {
    /// The revision and the pins. If the revision is still `known`, the list is empty.
    fn pins(&self, known: u64) -> BoxFuture<'_, PinAnswer>;
    /// Sets a pin, or replaces that of the same owner.
    fn set(&self, pin: Pin) -> BoxFuture<'_, std::result::Result<(), CallError>>;
    /// Removes the pin of an owner.
    fn delete(&self, fid: Fid, owner: ViceId) -> BoxFuture<'_, std::result::Result<(), CallError>>;
}

/// A pinned file or directory of a volume, and the end of its last pin; 0: never.
type OfVolume = HashMap<(VnodeId, Uniquifier), u64>;

/// The copy of the cell's pins.
#[derive(Debug, Default)]
pub(crate) struct Pins(Mutex<Option<Known>>);

#[derive(Debug)]
struct Known {
    revision: u64,
    volumes: Arc<HashMap<VolumeId, OfVolume>>,
}

impl Pins {
    fn set(&self, revision: u64, pins: &[Pin]) {
        let mut volumes: HashMap<VolumeId, OfVolume> = HashMap::new();
        for pin in pins {
            let fid = pin.fid;
            let all = volumes.entry(fid.volume).or_default();
            let until = all.entry((fid.vnode, fid.uniquifier)).or_insert(pin.until);
            *until = match (*until, pin.until) {
                (0, _) | (_, 0) => 0,
                (one, other) => one.max(other),
            };
        }
        *self.0.lock() = Some(Known {
            revision,
            volumes: Arc::new(volumes),
        });
    }

    fn revision(&self) -> Option<u64> {
        self.0.lock().as_ref().map(|known| known.revision)
    }

    /// Whether the pins are known since the start.
    pub(crate) fn are_known(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Whether a pin holds for a file of the family of the RW volume `owner` at the time `now`, in
    /// seconds since 1970. A file whose directory is removed just now counts as pinned.
    ///
    /// # Errors
    /// A directory above the file cannot be read.
    pub(crate) fn cover(
        &self,
        volume: &Volume,
        owner: VolumeId,
        file: &VnodeStatus,
        now: u64,
    ) -> Result<bool> {
        let Some(volumes) = self.0.lock().as_ref().map(|known| known.volumes.clone()) else {
            return Ok(false);
        };
        let Some(pins) = volumes.get(&owner) else {
            return Ok(false);
        };
        let holds = |fid: Fid| {
            let until = pins.get(&(fid.vnode, fid.uniquifier));
            until.is_some_and(|until| *until == 0 || *until > now)
        };
        let mut at = *file;
        for _ in 0..DEPTH_MAX {
            if holds(at.fid) {
                return Ok(true);
            }
            if at.fid == volume.root() {
                return Ok(false);
            }
            let parent = volume.status(Fid {
                volume: at.fid.volume,
                vnode: at.parent,
                uniquifier: at.parent_uniquifier,
            });
            at = match parent {
                Err(Error::NoVnode(_)) => return Ok(true),
                parent => parent?,
            };
        }
        Ok(true)
    }
}

impl Objects {
    /// Loads the pins if they have changed.
    pub(super) async fn load_pins(&self, table: &dyn PinTable) {
        let known = self.pins.revision();
        match table.pins(known.unwrap_or(u64::MAX)).await {
            Ok((revision, pins)) if known != Some(revision) => self.pins.set(revision, &pins),
            Ok(_) => {}
            // The cell's database is older, and has no pins.
            Err(cause) if has_none(&cause) => self.pins.set(u64::MAX, &[]),
            Err(cause) => debug!(%cause, "cannot load the pins of the cell"),
        }
    }

    /// Sets a pin in the cell's database.
    ///
    /// # Errors
    /// `Call`: the code of the database. `Invalid`: this server has no hierarchical storage.
    pub async fn pin(&self, pin: Pin) -> std::result::Result<(), Failure> {
        let table = self.pin_table()?;
        table.set(pin).await.map_err(failed)?;
        self.load_pins(&**table).await;
        Ok(())
    }

    /// Removes the pin of an owner from the cell's database.
    ///
    /// # Errors
    /// `Call`: the code of the database; ENOENT: there is no such pin. `Invalid`: as for
    /// [`Objects::pin`].
    pub async fn unpin(&self, fid: Fid, owner: ViceId) -> std::result::Result<(), Failure> {
        let table = self.pin_table()?;
        table.delete(fid, owner).await.map_err(failed)?;
        self.load_pins(&**table).await;
        Ok(())
    }

    fn pin_table(&self) -> std::result::Result<&Arc<dyn PinTable>, Failure> {
        Ok(&self.hsm.get().ok_or(Failure::Invalid)?.pin_table)
    }
}

fn failed(cause: CallError) -> Failure {
    Failure::Call(cause.code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_pin_of_a_file_counts() {
        let pins = Pins::default();
        assert!(!pins.are_known());
        let pin = |owner, until| Pin {
            owner: ViceId(owner),
            until,
            ..Pin::default()
        };
        let end = |list: &[Pin]| {
            pins.set(1, list);
            let known = pins.0.lock();
            let volumes = &known.as_ref().unwrap().volumes;
            let file = volumes[&VolumeId(0)].values().next();
            *file.unwrap()
        };
        assert_eq!(end(&[pin(1, 50), pin(2, 90), pin(3, 70)]), 90);
        assert_eq!(end(&[pin(1, 50), pin(2, 0), pin(3, 70)]), 0);
        assert_eq!(end(&[pin(1, 0)]), 0);
    }
}
