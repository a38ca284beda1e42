//! The census: all files in objects and in archives, counted, with the candidates for copies, for
//! wiping and for verification.
//!
//! It reads the records of files, and no directories unless a policy tests names. Records that need
//! no decision cost no evaluation of policies.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use cellar_objects::arithmetic::length_at;
use cellar_policy::Archiving;
use cellar_rpc::blocking;
use cellar_volume::{ArchivableFile, Partition, Volume};
use cellar_wire::ids::{Fid, VolumeId};
use cellar_wire::object::ArchiveCopy;
use cellar_wire::osddb::{OSD_ARCHIVAL, OSD_DRAINING, OSD_OBSOLETE, OSD_WIPEABLE, OsdListed};
use serde::{Deserialize, Serialize};

use super::super::Objects;
use super::super::failure::Failure;
use super::super::policies::ScanNames;

/// Records that are read at a time.
const RECORDS_AT_A_TIME: usize = 16 << 10;
/// Candidates that are remembered for each archive and for each device. Further ones are found by
/// the next census.
pub(crate) const CANDIDATES_MAX: usize = 4096;

/// Files and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Files.
    pub files: u64,
    /// Bytes, as clients see the length.
    pub bytes: u64,
}

impl Tally {
    fn add(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
    }
}

/// A file that is to be copied or wiped, or whose copy is to be verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The file, in its RW volume.
    pub fid: Fid,
    /// Length in bytes.
    pub length: u64,
    /// Seconds since its last change; for wiping, since its last change or use; for verification,
    /// since the last comparison.
    pub age: u64,
    /// Bytes that wiping frees on the device; 0 for a copy.
    pub frees: u64,
    /// Good copies that the policy asks for.
    pub copies: u32,
}

/// The files on a device, as far as this server has them.
#[derive(Clone, Debug, Default)]
pub struct DeviceCensus {
    /// Objects of files of this server.
    pub online: Tally,
    /// Those of files that can be wiped now.
    pub wipeable: Tally,
    /// Those of files that could be wiped if they were not pinned.
    pub pinned: Tally,
    /// Candidates for wiping, the best first.
    pub candidates: Vec<Candidate>,
}

/// The copies in an archive, as far as this server's files have them.
#[derive(Clone, Debug, Default)]
pub struct ArchiveCensus {
    /// Copies that are not known to be bad, also of older bytes.
    pub copies: Tally,
    /// Copies that are known to be bad.
    pub bad: Tally,
    /// Copies that were not compared for longer than the interval of verification.
    pub unverified: Tally,
    /// The earliest time at which one of the copies was last compared, in seconds since 1970; 0:
    /// there are no copies.
    pub oldest: u64,
    /// Files whose copies are to be verified, the longest not compared first.
    pub candidates: Vec<Candidate>,
}

impl ArchiveCensus {
    /// Counts a copy that was last compared at `compared`.
    fn good(&mut self, copy: &ArchiveCopy, compared: u64) {
        self.copies.add(copy.length);
        if self.oldest == 0 || compared < self.oldest {
            self.oldest = compared;
        }
    }
}

/// The result of a census.
#[derive(Clone, Debug, Default)]
pub struct Census {
    /// When it began, in seconds since 1970; 0: there was none yet.
    pub taken: u64,
    /// How long it took, in milliseconds.
    pub millis: u64,
    /// Files of RW volumes in objects that are online.
    pub online: Tally,
    /// Files that are in archives only.
    pub wiped: Tally,
    /// Online files that have a good copy of their present bytes in some archive.
    pub copied: Tally,
    /// Files for which policies ask for more copies than there are.
    pub lacking: Tally,
    /// Those of them whose delay has passed.
    pub due: Tally,
    /// Copies that are known to be bad.
    pub bad: u64,
    /// Candidates for copies by archive, the oldest first.
    pub copies: HashMap<u32, Vec<Candidate>>,
    /// The online devices.
    pub devices: HashMap<u32, DeviceCensus>,
    /// The archives.
    pub archives: HashMap<u32, ArchiveCensus>,
}

/// The candidates of one archive or device: those with the highest rank are kept.
#[derive(Default)]
struct Best(BinaryHeap<Reverse<(u128, Ranked)>>);

/// A candidate in a heap. Candidates of the same rank have no order.
struct Ranked(Candidate);

impl PartialEq for Ranked {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for Ranked {}
impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Ranked {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl Best {
    fn add(&mut self, rank: u128, candidate: Candidate) {
        let worst = self.0.peek().map(|Reverse((rank, _))| *rank);
        if self.0.len() >= CANDIDATES_MAX && worst.is_some_and(|worst| worst >= rank) {
            return;
        }
        self.0.push(Reverse((rank, Ranked(candidate))));
        if self.0.len() > CANDIDATES_MAX {
            self.0.pop();
        }
    }

    /// The candidates, the highest rank first.
    fn into_sorted(self) -> Vec<Candidate> {
        let sorted = self.0.into_sorted_vec();
        sorted.into_iter().map(|Reverse((_, r))| r.0).collect()
    }
}

/// An archive or a device, as the census needs it.
#[derive(Clone)]
struct DeviceView {
    archival: bool,
    /// New copies may go to it.
    takes: bool,
    wipeable: bool,
    min_wipe_size: u64,
    class: String,
    priority: u32,
}

impl DeviceView {
    fn of(listed: &OsdListed) -> Self {
        let flags = listed.entry.flags;
        Self {
            archival: flags & OSD_ARCHIVAL != 0,
            takes: flags & (OSD_OBSOLETE | OSD_DRAINING) == 0,
            wipeable: flags & OSD_WIPEABLE != 0,
            min_wipe_size: listed.entry.min_wipe_size,
            class: listed.entry.class.to_string(),
            priority: listed.entry.allocation_priority,
        }
    }
}

/// A census that is being taken.
struct Counting {
    now: u64,
    devices: HashMap<u32, DeviceView>,
    census: Census,
    /// Seconds after which a copy is compared again; 0: never.
    verify_interval: u64,
    copies: HashMap<u32, Best>,
    wipes: HashMap<u32, Best>,
    verifications: HashMap<u32, Best>,
    names: ScanNames,
    /// The volume of the last file.
    volume: Option<Arc<Volume>>,
}

impl Objects {
    /// Takes a census. A copy that was not compared for `verify_interval` is to be verified; zero:
    /// no copy is.
    ///
    /// # Errors
    /// The store cannot be read. `Busy`: the server stops.
    pub(super) async fn take_census(
        self: &Arc<Self>,
        verify_interval: Duration,
    ) -> Result<Census, Failure> {
        let begun = std::time::Instant::now();
        let storage = self.needed()?;
        let listed = storage.devices.list();
        let views = listed.iter().map(|d| (d.entry.id, DeviceView::of(d)));
        let wipeable = |listed: &OsdListed| listed.entry.flags & OSD_WIPEABLE != 0;
        self.last_uses.set_needed(listed.iter().any(wipeable));
        let mut counting = Counting {
            now: self.wall().as_secs(),
            devices: views.collect(),
            census: Census::default(),
            verify_interval: verify_interval.as_secs(),
            copies: HashMap::new(),
            wipes: HashMap::new(),
            verifications: HashMap::new(),
            names: ScanNames::default(),
            volume: None,
        };
        for (_, partition) in self.volumes.partitions() {
            let mut from = Some(0);
            while let Some(place) = from {
                if self.is_stopping() {
                    return Err(Failure::Busy);
                }
                let (objects, part) = (self.clone(), partition.clone());
                let looked = blocking(move || {
                    let (files, next) =
                        part.archivable_files(place, RECORDS_AT_A_TIME, |_| true)?;
                    for file in &files {
                        counting.file(&objects, &part, file)?;
                    }
                    Ok::<_, cellar_volume::Error>((counting, next))
                });
                (counting, from) = looked.await?;
            }
        }
        let mut census = counting.end();
        census.millis = begun.elapsed().as_millis() as u64;
        Ok(census)
    }
}

/// The good copies of the present bytes of a file.
fn good_copies(file: &ArchivableFile) -> impl Iterator<Item = &ArchiveCopy> {
    let good = |copy: &&ArchiveCopy| copy.has(file.contents) && !copy.bad;
    file.copies().iter().filter(good)
}

impl Counting {
    fn file(
        &mut self,
        objects: &Objects,
        partition: &Partition,
        file: &ArchivableFile,
    ) -> cellar_volume::Result<()> {
        let length = file.status.length;
        let good = good_copies(file).count();
        self.copies_of(file);
        let Some(layout) = &file.layout else {
            self.census.wiped.add(length);
            return Ok(());
        };
        self.census.online.add(length);
        if good > 0 {
            self.census.copied.add(length);
        }
        let mut may_wipe = false;
        for (place, placed) in layout.objects.iter().enumerate() {
            let bytes = length_at(&layout.shape, place, length);
            let device = self.census.devices.entry(placed.osd).or_default();
            device.online.add(bytes);
            let view = self.devices.get(&placed.osd);
            may_wipe |= view.is_some_and(|view| view.wipeable && length >= view.min_wipe_size);
        }
        let Some(volume) = self.volume_of(partition, file.status.fid.volume)? else {
            return Ok(());
        };
        let most = objects
            .policies
            .archives_max(&volume, &file.status, &mut self.names)?;
        if most == 0 || (good >= most as usize && !may_wipe) {
            return Ok(());
        }
        let wanted = objects
            .policies
            .archiving(&volume, &file.status, &mut self.names)?;
        if wanted.archives == 0 {
            return Ok(());
        }
        match good < wanted.archives as usize {
            true => self.lacking(file, &wanted),
            false if may_wipe => {
                let (owner, pins) = (file.status.fid.volume, &objects.pins);
                let pinned = pins.cover(&volume, owner, &file.status, self.now)?;
                self.wipeable(objects, file, layout, (!pinned).then_some(wanted.archives));
            }
            false => {}
        }
        Ok(())
    }

    /// Counts the copies of a file, and enters it for the archives that are to be read back.
    fn copies_of(&mut self, file: &ArchivableFile) {
        for copy in file.copies() {
            let archive = self.census.archives.entry(copy.osd).or_default();
            if copy.bad {
                self.census.bad += 1;
                archive.bad.add(copy.length);
                continue;
            }
            let compared = copy.verified.max(copy.made);
            archive.good(copy, compared);
            let age = self.now.saturating_sub(compared);
            if self.verify_interval == 0 || age < self.verify_interval {
                continue;
            }
            archive.unverified.add(copy.length);
            let candidate = Candidate {
                fid: file.status.fid,
                length: copy.length,
                age,
                frees: 0,
                copies: 0,
            };
            let best = self.verifications.entry(copy.osd).or_default();
            best.add(age.into(), candidate);
        }
    }

    fn volume_of(
        &mut self,
        partition: &Partition,
        id: VolumeId,
    ) -> cellar_volume::Result<Option<Arc<Volume>>> {
        if self.volume.as_ref().is_none_or(|volume| volume.id() != id) {
            self.volume = partition.volume(id)?;
        }
        Ok(self.volume.clone())
    }

    /// Counts a file that lacks copies, and enters it for as many archives as it lacks.
    fn lacking(&mut self, file: &ArchivableFile, wanted: &Archiving) {
        let length = file.status.length;
        self.census.lacking.add(length);
        let age = self.now.saturating_sub(file.status.server_time.0.into());
        if age < wanted.after.into() {
            return;
        }
        self.census.due.add(length);
        let good: Vec<u32> = good_copies(file).map(|copy| copy.osd).collect();
        let fits = |id: &u32, view: &DeviceView| {
            let class = wanted.class.as_ref();
            let class = class.is_none_or(|class| *class == view.class);
            view.archival && view.takes && class && !good.contains(id)
        };
        let archives = self.devices.iter().filter(|(id, view)| fits(id, view));
        let mut archives: Vec<_> = archives
            .map(|(id, view)| (Reverse(view.priority), *id))
            .collect();
        archives.sort_unstable();
        let missing = (wanted.archives as usize).saturating_sub(good.len());
        let candidate = Candidate {
            fid: file.status.fid,
            length,
            age,
            frees: 0,
            copies: wanted.archives,
        };
        for (_, archive) in archives.into_iter().take(missing) {
            let best = self.copies.entry(archive).or_default();
            best.add(age.into(), candidate);
        }
    }

    /// Enters a file with enough copies for the devices that it is on. `copies` are those that the
    /// policy asks for; `None`: the file is pinned, and only counted.
    fn wipeable(
        &mut self,
        objects: &Objects,
        file: &ArchivableFile,
        layout: &cellar_wire::object::Layout,
        copies: Option<u32>,
    ) {
        let (fid, length) = (file.status.fid, file.status.length);
        let used = objects.last_uses.of(layout.volume, fid);
        let last = used.max(file.status.server_time.0);
        let age = self.now.saturating_sub(last.into());
        let rank = u128::from(age) * u128::from(length);
        for (place, placed) in layout.objects.iter().enumerate() {
            let fits = |view: &&DeviceView| view.wipeable && length >= view.min_wipe_size;
            if self.devices.get(&placed.osd).filter(fits).is_none() {
                continue;
            }
            let frees = length_at(&layout.shape, place, length);
            let device = self.census.devices.entry(placed.osd).or_default();
            let Some(copies) = copies else {
                device.pinned.add(frees);
                continue;
            };
            device.wipeable.add(frees);
            let candidate = Candidate {
                fid,
                length,
                age,
                frees,
                copies,
            };
            let best = self.wipes.entry(placed.osd).or_default();
            best.add(rank, candidate);
        }
    }

    fn end(self) -> Census {
        let mut census = self.census;
        census.taken = self.now;
        let copies = self.copies.into_iter();
        census.copies = copies
            .map(|(osd, best)| (osd, best.into_sorted()))
            .collect();
        for (osd, best) in self.verifications {
            let archive = census.archives.entry(osd).or_default();
            archive.candidates = best.into_sorted();
        }
        for (osd, best) in self.wipes {
            let device = census.devices.entry(osd).or_default();
            device.candidates = best.into_sorted();
        }
        census
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_ranks_are_kept_and_come_first() {
        let mut best = Best::default();
        for rank in 0..(CANDIDATES_MAX as u64 + 100) {
            let candidate = Candidate {
                fid: Fid::default(),
                length: rank,
                age: rank,
                frees: 0,
                copies: 1,
            };
            best.add(rank.into(), candidate);
        }
        let sorted = best.into_sorted();
        assert_eq!(sorted.len(), CANDIDATES_MAX);
        assert_eq!(sorted[0].age, CANDIDATES_MAX as u64 + 99);
        assert_eq!(sorted[CANDIDATES_MAX - 1].age, 100);
    }
}
