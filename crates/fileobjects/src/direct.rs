//! Stores that clients make directly to the devices.
//!
//! 1. To begin one takes the store lock of the file, as the server's own stores do. It returns the
//!    objects and versions that may be written. Bytes on this server, or in objects that belong to
//!    another volume, are first moved to new objects of this volume. The contents stay the same, so
//!    no promise is broken.
//! 2. At the end, the client reports which objects were not touched and which failed. If every part
//!    of the file has an object with all its data, one change of the vnode makes the store
//!    effective. Failed objects are stale from then on, and repaired. Otherwise the file is
//!    unchanged (EIO).

use std::sync::Arc;
use std::time::Duration;

use cellar_objects::arithmetic::stripe_of;
use cellar_volume::{VnodeStatus, Volume};
use cellar_wire::AbortCode;
use cellar_wire::afsosd::Failed;
use cellar_wire::ids::{Fid, ViceId};
use cellar_wire::object::{Layout, Placed, Scheme};
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

use super::direct_stores::{self, DirectStore};
use super::failure::Failure;
use super::layouts::{self, NewFile};
use super::limits::{REMOVE_FAILED_PATIENCE, STORE_LEASES_INTERVAL};
use super::policies::ObjectSpec;
use super::store::{Stored, Storing, check_takes_changes};
use super::store_locks::StoreLock;
use super::{Objects, liveness};

/// How long the begin of a direct store waits for another store of the file.
const STORE_LOCK_WAIT: Duration = Duration::from_secs(2);
// Long enough to outlast the cleanup of an aborted store.
const _: () = assert!(REMOVE_FAILED_PATIENCE.as_millis() <= STORE_LOCK_WAIT.as_millis());

/// A permitted direct store of a file that is in objects or goes there.
pub struct DirectRequest {
    /// The volume of the file.
    pub volume: Arc<Volume>,
    /// The file before the store.
    pub before: VnodeStatus,
    /// Its layout before the store.
    pub old: Option<Arc<Layout>>,
    /// The highest serial number that any object of the file had.
    pub serial: u32,
    /// The properties of new objects.
    pub wanted: ObjectSpec,
    /// The largest length that the file may get, unless it is longer already.
    pub end: u64,
    /// The user that makes it.
    pub user: ViceId,
}

/// A direct store that has begun.
pub struct BegunStore {
    /// Its number.
    pub number: u64,
    /// The objects with their present versions, and the version to write.
    pub next: Layout,
    /// The largest length that the file may get.
    pub length: u64,
}

impl Objects {
    /// Waits a short time for the permission to store into a file directly. `None`: another store
    /// is in progress.
    pub async fn lock_for_direct(&self, fid: Fid) -> Option<StoreLock> {
        let waiting = timeout(STORE_LOCK_WAIT, self.store_locks.wait(fid)).await;
        waiting.ok().flatten()
    }

    /// Begins a direct store. `None`: the file stays on this server, because no devices take files
    /// of that size.
    ///
    /// # Errors
    /// `Busy`: the file changed meanwhile, or too many direct stores are in progress. The errors of
    /// the devices and of the volume.
    pub async fn begin_direct(
        self: &Arc<Self>,
        request: DirectRequest,
        store_lock: StoreLock,
    ) -> Result<Option<BegunStore>, Failure> {
        let DirectRequest {
            volume,
            before,
            old,
            serial,
            wanted,
            end,
            user,
        } = request;
        let fid = before.fid;
        let is_own = match &old {
            Some(old) => self.writes_in_place(&volume, fid, old).await,
            None => false,
        };
        let length = end.max(before.length);
        let info = volume.info();
        let (old, next, store_lock) = if is_own || before.length == 0 {
            let next = match old.as_ref().filter(|_| is_own) {
                Some(old) => layouts::next(self, fid, old, length, info.borrowed)?,
                None => {
                    let file = NewFile {
                        volume: info.id,
                        wanted: &wanted,
                        size: length,
                        serial,
                        borrowed: info.borrowed,
                    };
                    let Some(fresh) = liveness::new_layout(self, &file).await? else {
                        return Ok(None);
                    };
                    fresh
                }
            };
            (old, next, store_lock)
        } else {
            let moving = Storing::moving(self, &volume, before, old, store_lock, &wanted, serial);
            let Some(moving) = moving.await? else {
                return Ok(None);
            };
            let (moved, store_lock) = moving.move_out().await?;
            let next = layouts::next(self, fid, &moved, length, info.borrowed)?;
            (Some(moved), next, store_lock)
        };
        check_takes_changes(&volume).await?;
        let version_guard = self.pending_versions.store(fid, &next);
        let number = self.direct_stores.add(DirectStore {
            fid,
            volume,
            user,
            before,
            old,
            next: next.clone(),
            length,
            expires: direct_stores::end(self.wall().as_secs()),
            store_lock,
            version_guard,
        })?;
        Ok(Some(BegunStore {
            number,
            next,
            length,
        }))
    }

    /// Renews a direct store, for a file of up to `end` bytes.
    ///
    /// # Errors
    /// ESTALE: there is no such store of that user and file.
    pub fn extend_direct(
        &self,
        number: u64,
        fid: Fid,
        user: ViceId,
        end: u64,
    ) -> Result<BegunStore, Failure> {
        let now = self.wall().as_secs();
        self.direct_stores.with(number, fid, user, now, |store| {
            store.expires = direct_stores::end(now);
            store.length = store.length.max(end);
            BegunStore {
                number,
                next: store.next.clone(),
                length: store.length,
            }
        })
    }

    /// Ends a direct store by its client's report; [`Stored::commit`] makes it effective.
    ///
    /// # Errors
    /// ESTALE: there is no such store of that user and file. EIO: the devices do not have all
    /// bytes. `Invalid`: the file is longer than permitted. After the last two, the written data is
    /// removed.
    pub fn end_direct(
        self: &Arc<Self>,
        number: u64,
        fid: Fid,
        user: ViceId,
        length: u64,
        failed: &[Failed],
    ) -> Result<Stored, Failure> {
        let now = self.wall().as_secs();
        let store = self.direct_stores.take(number, fid, user, now)?;
        match after(&store.next, failed) {
            Ok(layout) if length <= store.length => Ok(Stored {
                objects: self.clone(),
                volume: store.volume,
                fid,
                length: length.max(store.before.length),
                before: store.before,
                old: store.old,
                next: store.next,
                layout,
                held: Mutex::new(Some((store.store_lock, store.version_guard))),
            }),
            ended => {
                self.remove_direct(store);
                Err(ended.err().unwrap_or(Failure::Invalid))
            }
        }
    }

    /// Gives up a direct store.
    ///
    /// # Errors
    /// ESTALE: there is no such store of that user and file.
    pub fn abort_direct(
        self: &Arc<Self>,
        number: u64,
        fid: Fid,
        user: ViceId,
    ) -> Result<(), Failure> {
        let now = self.wall().as_secs();
        let store = self.direct_stores.take(number, fid, user, now)?;
        self.remove_direct(store);
        Ok(())
    }

    /// Gives up direct stores that are not renewed, until the server stops.
    pub(super) async fn expire_direct_stores(self: Arc<Self>) {
        while !self.is_stopping() {
            sleep(STORE_LEASES_INTERVAL).await;
            for store in self.direct_stores.sweep(self.wall().as_secs()) {
                self.remove_direct(store);
            }
        }
    }

    fn remove_direct(self: &Arc<Self>, store: DirectStore) {
        self.remove_failed_store(
            &store.volume,
            store.fid,
            store.next,
            (store.store_lock, store.version_guard),
        );
    }
}

/// The layout after a store, by its client's report.
fn after(next: &Layout, failed: &[Failed]) -> Result<Layout, Failure> {
    let mut layout = next.clone();
    let version = layout.version;
    let objects = layout.objects.as_mut_slice();
    let mut said = vec![None; objects.len()];
    for one in failed {
        let place = said.get_mut(one.place as usize).ok_or(Failure::Invalid)?;
        *place = Some(one.code);
    }
    for (placed, said) in objects.iter_mut().zip(&said) {
        match said {
            // The object was not touched.
            Some(0) => {}
            Some(_) => {
                placed.version = version;
                placed.stale = true;
            }
            None => placed.version = version,
        }
    }
    // A write must reach all copies and the parity. An object that was omitted lacks the store.
    let touched: Vec<usize> = (0..objects.len())
        .filter(|&at| said[at] != Some(0))
        .collect();
    for (place, placed) in objects.iter_mut().enumerate() {
        let stripe = stripe_of(&layout.shape, place);
        let lacks = |other: &usize| match stripe {
            Some(_) if layout.shape.scheme == Scheme::Erasure => false,
            Some(_) => stripe_of(&layout.shape, *other) == stripe,
            None => true,
        };
        if said[place] == Some(0) && touched.iter().any(lacks) {
            placed.version = version;
            placed.stale = true;
        }
    }
    if holds_everything(&layout) {
        Ok(layout)
    } else {
        Err(Failure::Devices(AbortCode::EIO))
    }
}

/// Whether all bytes of a file are in objects that are not stale.
fn holds_everything(layout: &Layout) -> bool {
    let objects: &[Placed] = &layout.objects;
    let (stripes, copies) = (layout.shape.stripes as usize, layout.shape.copies as usize);
    match layout.shape.scheme {
        Scheme::Striped => (0..stripes).all(|stripe| {
            let mut all = (0..copies).map(|copy| &objects[copy * stripes + stripe]);
            all.any(|placed| !placed.stale)
        }),
        Scheme::Erasure => objects.iter().filter(|placed| placed.stale).count() <= copies,
    }
}

#[cfg(test)]
mod tests {
    use cellar_wire::List;
    use cellar_wire::object::Shape;

    use super::*;

    /// The objects that are stale after a store of version 9 over version 8.
    fn stale(
        scheme: Scheme,
        stripes: u32,
        copies: u32,
        failed: &[(u32, i32)],
    ) -> Result<Vec<usize>, i32> {
        let shape = Shape {
            scheme,
            stripes,
            copies,
            ..Shape::default()
        };
        let placed = |number: usize| Placed {
            osd: number as u32,
            serial: 1,
            version: 8,
            stale: false,
        };
        let next = Layout {
            shape,
            version: 9,
            serial: 1,
            volume: cellar_wire::VolumeId(1),
            objects: List::from_iter_cut((0..shape.objects()).map(placed)),
        };
        let failed: Vec<_> = failed
            .iter()
            .map(|&(place, code)| Failed { place, code })
            .collect();
        let layout = after(&next, &failed).map_err(|failure| match failure {
            Failure::Devices(code) => code.to_plain().0,
            other => panic!("{other:?}"),
        })?;
        let objects = layout.objects.iter().enumerate();
        Ok(objects
            .filter(|(_, placed)| placed.stale)
            .map(|(at, _)| at)
            .collect())
    }

    #[test]
    fn a_copy_that_was_left_out_lacks_the_store() {
        let striped = |failed: &[(u32, i32)]| stale(Scheme::Striped, 2, 2, failed);
        assert_eq!(striped(&[]), Ok(vec![]));
        assert_eq!(striped(&[(1, 28)]), Ok(vec![1]));
        assert_eq!(
            striped(&[(1, 0), (3, 0)]),
            Ok(vec![]),
            "a stripe of which nothing came"
        );
        assert_eq!(striped(&[(1, 0)]), Ok(vec![1]));
        assert_eq!(striped(&[(1, 28), (3, 0)]), Err(5));
        let erasure = |failed: &[(u32, i32)]| stale(Scheme::Erasure, 3, 2, failed);
        assert_eq!(erasure(&[(0, 0), (1, 0)]), Ok(vec![]));
        assert_eq!(erasure(&[(0, 0), (4, 0)]), Ok(vec![4]));
        assert_eq!(erasure(&[(2, 5), (3, 0), (4, 0)]), Err(5));
    }
}
