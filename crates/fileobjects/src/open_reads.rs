//! The versions of objects that are being read, so that they are not removed in the meantime.
//!
//! A reader keeps the layout with which it began. A reader of this server keeps it until it ends. A
//! client that reads directly keeps it until its capabilities have expired.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cellar_volume::Referenced;
use cellar_wire::ids::{Fid, ViceId, VolumeId};
use cellar_wire::object::Layout;
use parking_lot::Mutex;

use super::limits::{LENT_LAYOUTS_MAX, READ_FILES_MAX};

/// Files with readers, which only this server knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenReads(Arc<Mutex<HashMap<Fid, Vec<HeldLayout>>>>);

#[derive(Debug)]
struct HeldLayout {
    layout: Arc<Layout>,
    /// Readers of this server.
    readers: usize,
    /// Seconds since 1970 until which clients may read.
    until: u64,
}

/// A reader; it ends when this is dropped.
#[derive(Debug)]
pub struct ReadGuard {
    open_reads: OpenReads,
    fid: Fid,
    layout: Arc<Layout>,
}

/// The fid of a file in its RW volume. All volumes of a family have the same objects.
fn family(fid: Fid, layout: &Layout) -> Fid {
    Fid {
        volume: layout.volume,
        ..fid
    }
}

fn hold(
    files: &mut HashMap<Fid, Vec<HeldLayout>>,
    fid: Fid,
    layout: &Arc<Layout>,
    change: impl FnOnce(&mut HeldLayout),
) {
    let all = files.entry(fid).or_default();
    match all.iter_mut().find(|held| held.layout == *layout) {
        Some(held) => change(held),
        None => {
            let mut held = HeldLayout {
                layout: layout.clone(),
                readers: 0,
                until: 0,
            };
            change(&mut held);
            all.push(held);
        }
    }
}

impl OpenReads {
    /// Keeps a layout until the returned value is dropped.
    pub(crate) fn begin(&self, fid: Fid, layout: &Arc<Layout>) -> ReadGuard {
        let fid = family(fid, layout);
        hold(&mut self.0.lock(), fid, layout, |held| held.readers += 1);
        ReadGuard {
            open_reads: self.clone(),
            fid,
            layout: layout.clone(),
        }
    }

    /// Keeps a layout until a time. Returns `false` if layouts of too many files are kept already.
    /// Of one file the layouts that were lent last are kept, because a device has a bounded number
    /// of versions of an object. So a client that reads a file must ask again after many later
    /// stores.
    pub(crate) fn lend(&self, fid: Fid, layout: &Arc<Layout>, until: u64) -> bool {
        let fid = family(fid, layout);
        let mut files = self.0.lock();
        if files.len() >= READ_FILES_MAX && !files.contains_key(&fid) {
            return false;
        }
        hold(&mut files, fid, layout, |held| {
            held.until = held.until.max(until);
        });
        if let Some(all) = files.get_mut(&fid)
            && all.len() > LENT_LAYOUTS_MAX
        {
            let lent = all.iter().enumerate();
            let lent = lent.filter(|(_, held)| held.readers == 0 && held.layout != *layout);
            if let Some((oldest, _)) = lent.min_by_key(|(_, held)| held.layout.version) {
                all.swap_remove(oldest);
            }
        }
        true
    }

    /// The serial numbers and versions of objects that are being read, for a file. `volume` in the
    /// fid is the RW volume's id.
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

    /// The versions of objects that are being read, in the name of a volume (0: of all volumes).
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

    /// Forgets expired entries.
    pub(crate) fn sweep(&self, now: u64) {
        self.0.lock().retain(|_, all| {
            all.retain(|held| held.readers > 0 || held.until > now);
            !all.is_empty()
        });
    }
}

impl Drop for ReadGuard {
    fn drop(&mut self) {
        let mut files = self.open_reads.0.lock();
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

#[cfg(test)]
mod tests {
    use cellar_wire::List;
    use cellar_wire::object::{Placed, Shape};

    use super::*;

    fn layout(version: u64) -> Arc<Layout> {
        let placed = Placed {
            osd: 2,
            serial: 1,
            version,
            stale: false,
        };
        Arc::new(Layout {
            shape: Shape::default(),
            version,
            serial: 1,
            volume: VolumeId(1),
            objects: List::from_iter_cut([placed]),
        })
    }

    /// A log file that is appended to and read all the time. A device has at most 256 versions of
    /// an object.
    #[test]
    fn direct_readers_pin_no_more_versions_than_a_device_has() {
        let open_reads = OpenReads::default();
        let fid = Fid::new(1, 2, 3);
        let read_guard = open_reads.begin(fid, &layout(1));
        for version in 2..1000 {
            assert!(open_reads.lend(fid, &layout(version), 100 + version));
        }
        let mut held: Vec<u64> = open_reads.of(fid, 99).into_iter().map(|(_, v)| v).collect();
        held.sort_unstable();
        assert_eq!(held.len(), LENT_LAYOUTS_MAX);
        assert_eq!((held[0], held.last()), (1, Some(&999)), "{held:?}");
        drop(read_guard);
        assert_eq!(open_reads.of(fid, 99).len(), LENT_LAYOUTS_MAX - 1);
        assert!(open_reads.of(fid, 10_000).is_empty());
    }
}
