//! The repair queue: objects to rebuild. They lack a store, are damaged, or are on a device that
//! has been missing for long or is being emptied.
//!
//! 1. The needed repairs follow from existing state: *stale* marks in layouts, the list of devices,
//!    and the damage that devices and readers found. So nothing is kept over a restart. All files
//!    are examined when the server starts, when a device is missing for too long or is marked for
//!    draining, and periodically ([`watch`]). Stores and reads that had to skip an object enter it
//!    at once.
//! 2. A device that is *down* is not *dead*. Its objects are rebuilt elsewhere only after a delay
//!    ([`super::cell::Upkeep::repair_delay`]). When it returns, its objects have no references any
//!    more, and are collected as garbage.
//! 3. An object is copied, or computed, while others store and read, because the named versions do
//!    not change. Only then the store lock of the file is taken. One change then names the
//!    new place in all versions of the file that the RW volume and its clones see ([`rebuild`]). A
//!    store in between makes the copy useless. After some such attempts the object is copied within
//!    the lock.
//! 4. Each server repairs the objects that its own volumes name. A read-only volume on another
//!    server is that server's task.
//! 5. The bytes per second are bounded over all repairs of a server.

mod queue;
mod rebuild;
mod watch;

pub(super) use queue::Repairs;

use std::sync::Arc;

use cellar_objects::Problem;
use cellar_objects::repair::Pace;
use cellar_rpc::blocking;
use cellar_wire::AbortCode;
use cellar_wire::ids::Fid;
use cellar_wire::object::{Layout, Placed};

use self::queue::{DamagedObject, Outcome};
use self::rebuild::RepairPlacement;
use super::Objects;
use super::failure::Failure;

impl Objects {
    /// Queues repairs after a store: of objects that the store skipped, and of those on a device
    /// that is being emptied since the store began.
    pub(crate) fn repair_after_store(self: &Arc<Self>, fid: Fid, layout: &Layout, length: u64) {
        for (place, placed) in layout.objects.iter().enumerate() {
            let object = layout.object(fid.vnode, fid.uniquifier, placed);
            if self.repairs.is_broken(placed, object) {
                self.repair(fid, layout, place, length);
            }
        }
    }

    /// Queues a repair after a read that found damage. A silent device is no damage, because it may
    /// still answer.
    pub(crate) fn repair_after_read(
        self: &Arc<Self>,
        fid: Fid,
        layout: &Layout,
        length: u64,
        problem: &Problem,
    ) {
        if !problem.is_damage() {
            return;
        }
        let placed = &problem.placed;
        let object = layout.object(fid.vnode, fid.uniquifier, placed);
        if self.repairs.note_damaged(placed.osd, object) {
            let name = self.device_name(placed.osd);
            tracing::warn!(%fid, osd = placed.osd, name, %object, cause = %problem.cause,
                "an object of a file is damaged");
        }
        self.repair(fid, layout, problem.place, length);
    }

    /// Moves the object `placed` of a file to the device `osd` (0: any). Returns the device that it
    /// is on now.
    ///
    /// # Errors
    /// `Busy`: the file is stored into or repaired. EIO: the object cannot be made there.
    pub async fn move_object(
        self: &Arc<Self>,
        fid: Fid,
        placed: &Placed,
        osd: u32,
    ) -> Result<u32, Failure> {
        let broken = DamagedObject::of(fid, placed);
        let objects = self.clone();
        let broken = blocking(move || objects.by_head(broken)).await;
        let begun = self.repairs.begin(&broken).ok_or(Failure::Busy)?;
        let wish = RepairPlacement::On(osd);
        let made = self.rebuild_object(broken, wish, 0, &Pace::new(0)).await;
        let (outcome, osd) = made?;
        begun.end(outcome);
        match outcome {
            Outcome::Made(..) => Ok(osd),
            Outcome::Nothing | Outcome::Busy | Outcome::Away => Err(Failure::Busy),
            Outcome::Failed => Err(Failure::Devices(AbortCode::EIO)),
        }
    }

    fn repair(&self, fid: Fid, layout: &Layout, place: usize, length: u64) {
        let Some(placed) = layout.objects.get(place) else {
            return;
        };
        let broken = DamagedObject::of(fid, placed);
        let bytes = cellar_objects::arithmetic::length_at(&layout.shape, place, length);
        self.repairs.add(broken, bytes);
    }
}
