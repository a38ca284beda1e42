//! Which versions of objects are being read, so that they are not given up meanwhile.
//!
//! A reader holds on to the layout that it began with: one of this server until it ends, a client that
//! reads directly until its capabilities have expired.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cellar_volume::Referenced;
use cellar_wire::ids::{Fid, ViceId, VolumeId};
use cellar_wire::object::Layout;
use parking_lot::Mutex;

/// Files with readers, whom only this server knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readings(Arc<Mutex<HashMap<Fid, Vec<Held>>>>);

#[derive(Debug)]
struct Held {
    layout: Arc<Layout>,
    /// Readers of this server.
    readers: usize,
    /// Seconds since 1970 until which clients may read.
    until: u64,
}

/// Somebody reads; ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Reading {
    readings: Readings,
    fid: Fid,
    layout: Arc<Layout>,
}

/// The head's name of a file, whichever of its volumes is read: their objects are the same.
fn family(fid: Fid, layout: &Layout) -> Fid {
    Fid {
        volume: layout.volume,
        ..fid
    }
}

impl Readings {
    /// Holds on to a layout until the answer is dropped.
    pub(crate) fn begin(&self, fid: Fid, layout: &Arc<Layout>) -> Reading {
        let fid = family(fid, layout);
        self.hold(fid, layout, |held| held.readers += 1);
        Reading {
            readings: self.clone(),
            fid,
            layout: layout.clone(),
        }
    }

    /// Holds on to a layout until a time.
    pub(crate) fn lend(&self, fid: Fid, layout: &Arc<Layout>, until: u64) {
        self.hold(family(fid, layout), layout, |held| {
            held.until = held.until.max(until);
        });
    }

    fn hold(&self, fid: Fid, layout: &Arc<Layout>, change: impl FnOnce(&mut Held)) {
        let mut files = self.0.lock();
        let all = files.entry(fid).or_default();
        match all.iter_mut().find(|held| held.layout == *layout) {
            Some(held) => change(held),
            None => {
                let mut held = Held {
                    layout: layout.clone(),
                    readers: 0,
                    until: 0,
                };
                change(&mut held);
                all.push(held);
            }
        }
    }

    /// Objects, by serial number, and versions that are read of a file; `volume` in the fid is the RW
    /// volume's id.
    pub(crate) fn of(&self, fid: Fid, now: u64) -> HashSet<(u32, u64)> {
        let mut files = self.0.lock();
        let Some(all) = files.get_mut(&fid) else {
            return HashSet::new();
        };
        all.retain(|held| held.readers > 0 || held.until > now);
        let placed = all.iter().flat_map(|held| held.layout.objects.iter());
        let versions = placed
            .map(|placed| (placed.serial, placed.version))
            .collect();
        if all.is_empty() {
            files.remove(&fid);
        }
        versions
    }

    /// The versions of objects in the name of a volume (0: of all) that are read.
    pub(crate) fn named(&self, owner: VolumeId, now: u64) -> Vec<Referenced> {
        let files = self.0.lock();
        let mut all = Vec::new();
        for (fid, held) in files.iter() {
            if owner.0 != 0 && fid.volume != owner {
                continue;
            }
            let held = held
                .iter()
                .filter(|held| held.readers > 0 || held.until > now);
            for layout in held.map(|held| &held.layout) {
                let written = layout.objects.iter().filter(|placed| placed.version > 0);
                all.extend(written.map(|placed| Referenced {
                    object: layout.object(fid.vnode, fid.uniquifier, placed),
                    version: placed.version,
                    osd: placed.osd,
                    owner: ViceId::default(),
                }));
            }
        }
        all
    }

    /// Forgets whose time is over.
    pub(crate) fn sweep(&self, now: u64) {
        self.0.lock().retain(|_, all| {
            all.retain(|held| held.readers > 0 || held.until > now);
            !all.is_empty()
        });
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut files = self.readings.0.lock();
        let Some(all) = files.get_mut(&self.fid) else {
            return;
        };
        if let Some(place) = all.iter().position(|held| held.layout == self.layout) {
            all[place].readers = all[place].readers.saturating_sub(1);
            if all[place].readers == 0 && all[place].until == 0 {
                all.swap_remove(place);
            }
        }
        if all.is_empty() {
            files.remove(&self.fid);
        }
    }
}
