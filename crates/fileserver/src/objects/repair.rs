//! The repair queue: objects that are made anew, because theirs lack a store, are damaged, or are on a device
//! that is away for long or is to be emptied.
//!
//! 1. What is to be done follows from what is there: *stale* marks in layouts, the list of devices, what devices
//!    and readers found damaged. So nothing of it is kept over a restart: all files are looked through
//!    when the server starts, when a device is away for too long or is marked for draining, and now and
//!    then ([`watch`]). Stores and reads that had to do without an object enter it at once.
//! 2. A device that is *down* is not *dead*: only after a while ([`super::cell::Upkeep::repair_delay`]) what it had is
//!    made elsewhere. When it returns, nobody names that any more, and it is collected as garbage.
//! 3. An object is copied, or computed, while others store and read: the versions that are named do not
//!    change. Only then the turn of the file is taken, as by a store, and one change names the new
//!    place in all versions of the file that the RW volume and its clones see ([`mend`]). A store that came
//!    between has made the copy worthless; after some tries it is made in the turn.
//! 4. Each server repairs what its own volumes name: a read-only volume elsewhere is its server's affair.
//! 5. Bytes per second are bounded over all repairs of a server.

mod mend;
mod queue;
mod watch;

pub(crate) use mend::Wish;
pub(crate) use queue::{Broken, Outcome, Repairs};

use std::sync::Arc;

use cellar_objects::Problem;
use cellar_wire::ids::Fid;
use cellar_wire::object::Layout;

use crate::server::Server;

impl Server {
    /// A file has that layout since a store: what the store had to do without is made anew, and what it put on a
    /// device that is being emptied since it began.
    pub(crate) fn repair_after_store(self: &Arc<Self>, fid: Fid, layout: &Layout, length: u64) {
        for (place, placed) in layout.objects.iter().enumerate() {
            let object = layout.object(fid.vnode, fid.uniquifier, placed);
            if self.objects.repairs.is_broken(placed, object) {
                self.repair(fid, layout, place, length);
            }
        }
    }

    /// Somebody read an object and it was not what it should be. One that did not answer may yet.
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
        if self.objects.repairs.note_damaged(placed.osd, object) {
            tracing::warn!(%fid, osd = placed.osd, %object, cause = %problem.cause,
                "an object of a file is damaged");
        }
        self.repair(fid, layout, problem.place, length);
    }

    fn repair(&self, fid: Fid, layout: &Layout, place: usize, length: u64) {
        let Some(placed) = layout.objects.get(place) else {
            return;
        };
        let broken = Broken {
            volume: fid.volume,
            vnode: fid.vnode,
            uniquifier: fid.uniquifier,
            osd: placed.osd,
            serial: placed.serial,
        };
        let bytes = cellar_objects::arithmetic::length_at(&layout.shape, place, length);
        self.objects.repairs.add(broken, bytes);
    }
}
