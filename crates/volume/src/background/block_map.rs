//! Comparing the map of blocks with the pieces that name them, while the partition is in use.
//!
//! Both are read in one state of the base table. A flush carries a whole table of changes into the
//! base, the bitmaps with its last transaction. So in a state without a partly applied table, the
//! map and the pieces are of the same moment, between two batches of the journal. Later changes are
//! in neither; the next scrub compares them.
//!
//! While a state is read, its pages are not reused, and the file grows by what is flushed
//! meanwhile. So the comparison reads without pauses, and ends early if room is short.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{ControlFlow, Range};

use bytes::Bytes;

use crate::engine::Engine;
use crate::engine::base::View;
use crate::engine::key::{Key, Kind};
use crate::engine::space::{
    Bitmap, COUNTS_REGIONS, REGION_BLOCKS, WORDS, bitmap, checked, count_free, region_of,
};
use crate::engine::verify::skip_unreadable;
use crate::error::Result;
use crate::record::{Piece, PieceBlocks};

/// Regions whose named blocks are gathered in one walk over all pieces: 4 TiB, with 128 MiB of
/// bitmaps.
const REGIONS_TOGETHER: u32 = 65_536;
/// The most blocks that are looked up by name, and the most messages.
const REPORTED_MAX: usize = 1000;
/// Entries that are read before `go_on` is asked again.
const ENTRIES_TOGETHER: u64 = 10_000;

/// Differences between the map and the pieces.
#[derive(Debug, Default)]
pub(crate) struct MapFaults {
    /// Number of blocks in use that no piece names.
    pub(crate) unnamed: u64,
    /// The first of these blocks.
    pub(crate) first: Option<u64>,
    /// Pieces that name a block which is free in the map or which belongs to another place as well.
    /// Each comes with a message about its first such block.
    pub(crate) pieces: Vec<(Key, String)>,
    /// Faults of the map itself, one message each.
    pub(crate) others: Vec<String>,
    /// Bytes that were read.
    pub(crate) bytes: u64,
    /// The comparison ended before everything was compared.
    pub(crate) is_partial: bool,
    entries: u64,
    /// Some piece cannot be read, so the blocks that it names are not known.
    has_unreadable: bool,
}

impl MapFaults {
    fn other(&mut self, text: String) {
        if self.others.len() < REPORTED_MAX {
            self.others.push(text);
        }
    }

    /// A message about the blocks that nothing names, if there are any.
    pub(crate) fn of_unnamed(&self) -> Option<String> {
        let first = self.first?;
        let count = self.unnamed;
        Some(format!(
            "{count} blocks are in use and nothing names them (the first is {first}): their room is \
             lost"
        ))
    }
}

/// Compares the map with the pieces of this kind, which are all pieces that name blocks. `go_on`
/// may end the comparison.
pub(crate) fn compare(
    engine: &Engine,
    kind: Kind,
    go_on: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<MapFaults> {
    let mut faults = MapFaults::default();
    let Some(view) = engine.whole_base() else {
        faults.is_partial = true;
        return Ok(faults);
    };
    let mut go_on = || match view.is_replaced() || engine.ledger.is_full() {
        true => ControlFlow::Break(()),
        false => go_on(),
    };
    let mut first = 0;
    loop {
        let mut names = Names::new(first..first + REGIONS_TOGETHER);
        let walked = walk(&view, kind, &mut go_on, &mut faults, &mut |key, piece| {
            names.add(key, piece);
        });
        if walked.is_break() {
            faults.is_partial = true;
            break;
        }
        let wrong = names.compare(&view, &mut faults);
        if !wrong.is_empty() {
            let mut reported = Vec::new();
            let walked = walk(&view, kind, &mut go_on, &mut faults, &mut |key, piece| {
                let mut causes = piece.0.iter().flatten().map(|slot| wrong.get(&slot.block));
                if let Some(Some(cause)) = causes.find(Option::is_some)
                    && reported.len() < REPORTED_MAX
                {
                    reported.push((*key, cause.clone()));
                }
            });
            faults.is_partial |= walked.is_break();
            faults.pieces.append(&mut reported);
        }
        if !names.has_more || faults.is_partial || faults.pieces.len() >= REPORTED_MAX {
            break;
        }
        first += REGIONS_TOGETHER;
    }
    // A piece that cannot be read may name the blocks that nothing else names.
    if faults.has_unreadable || faults.is_partial {
        (faults.unnamed, faults.first) = (0, None);
    }
    Ok(faults)
}

/// Calls `each` for all pieces of a kind.
fn walk(
    view: &View,
    kind: Kind,
    go_on: &mut dyn FnMut() -> ControlFlow<()>,
    faults: &mut MapFaults,
    each: &mut dyn FnMut(&Key, &PieceBlocks),
) -> ControlFlow<()> {
    entries_of(view, kind, go_on, faults, &mut |key, value, faults| {
        match Piece::decode(value) {
            Ok(Piece::Blocks(blocks)) => each(key, &blocks),
            Ok(_) => {}
            // Reported where files are verified.
            Err(_) => faults.has_unreadable = true,
        }
    })
}

/// Calls `each` for all entries of a kind that can be read.
fn entries_of(
    view: &View,
    kind: Kind,
    go_on: &mut dyn FnMut() -> ControlFlow<()>,
    faults: &mut MapFaults,
    each: &mut dyn FnMut(&Key, &Bytes, &mut MapFaults),
) -> ControlFlow<()> {
    let prefix = Key::of_kind(kind);
    let mut next = Some(prefix);
    while let Some(from) = next {
        let mut place = from;
        let mut entries = view.entries(&from).ok();
        next = loop {
            let found = entries.as_mut().map(crate::engine::base::Entries::next);
            let Some(Ok(found)) = found else {
                go_on()?;
                faults.has_unreadable = true;
                break skip_unreadable(view, &place);
            };
            let Some((key, value)) = found.filter(|(key, _)| key.starts_with(&prefix)) else {
                break None;
            };
            faults.entries += 1;
            faults.bytes += value.len() as u64;
            each(&key, &value, faults);
            if faults.entries.is_multiple_of(ENTRIES_TOGETHER) {
                go_on()?;
            }
            place = key.successor();
        };
    }
    ControlFlow::Continue(())
}

/// The blocks of some regions that pieces name.
struct Names {
    regions: Range<u32>,
    named: HashMap<u32, Box<Bitmap>>,
    /// Blocks that two places name.
    doubled: BTreeSet<u64>,
    /// The present place (the versions of one piece), and its blocks.
    place: Key,
    here: HashMap<u64, usize>,
    /// Some named blocks lie behind these regions.
    has_more: bool,
}

impl Names {
    fn new(regions: Range<u32>) -> Self {
        Self {
            regions,
            named: HashMap::new(),
            doubled: BTreeSet::new(),
            place: Key::first(),
            here: HashMap::new(),
            has_more: false,
        }
    }

    fn add(&mut self, key: &Key, piece: &PieceBlocks) {
        let place = key.of_all_versions();
        if place != self.place {
            self.place = place;
            self.here.clear();
        }
        for (at, slot) in piece.0.iter().enumerate() {
            let Some(slot) = slot else { continue };
            let (region, bit) = region_of(slot.block);
            if !self.regions.contains(&region) {
                self.has_more |= region >= self.regions.end;
                continue;
            }
            let words = self.named.entry(region);
            let words = words.or_insert_with(|| Box::new([0; WORDS]));
            let is_known = words[bit / 64] >> (bit % 64) & 1 == 1;
            words[bit / 64] |= 1 << (bit % 64);
            let before = self.here.insert(slot.block, at);
            let is_other = before.is_some_and(|before| before != at);
            if (is_other || is_known && before.is_none()) && self.doubled.len() < REPORTED_MAX {
                self.doubled.insert(slot.block);
            }
        }
    }

    /// Compares the named blocks with the map. Returns the blocks that pieces name wrongly, with
    /// the reason.
    fn compare(&mut self, view: &View, faults: &mut MapFaults) -> HashMap<u64, String> {
        let doubled = |block: &u64| (*block, format!("block {block} has another place as well"));
        let mut wrong: HashMap<u64, String> = self.doubled.iter().map(doubled).collect();
        let mut regions: BTreeSet<u32> = self.named.keys().copied().collect();
        let counts = self.counts(view, faults);
        let in_use = |(_, free): &(&u32, &u16)| u64::from(**free) != REGION_BLOCKS;
        regions.extend(counts.iter().filter(in_use).map(|(region, _)| *region));
        for region in regions {
            let image = match view
                .get(&Key::region(region))
                .and_then(|v| bitmap(v.as_ref()))
            {
                Ok(image) => image,
                Err(error) => {
                    faults.other(format!("region {region} of the map of blocks: {error}"));
                    continue;
                }
            };
            let (free, said) = (count_free(&image), counts.get(&region).copied());
            if said.unwrap_or(REGION_BLOCKS as u16) != free {
                faults.other(format!(
                    "{free} blocks of region {region} are free in the map, and {} are counted",
                    said.unwrap_or(REGION_BLOCKS as u16)
                ));
            }
            let nothing = [0; WORDS];
            let named = self.named.get(&region).map_or(&nothing, |words| words);
            for (word, (image, named)) in image.iter().zip(named).enumerate() {
                let base = u64::from(region) * REGION_BLOCKS + word as u64 * 64;
                let of = |bits: u64| (0..64).filter(move |bit| bits >> bit & 1 == 1);
                let lost = image & !named;
                if lost != 0 {
                    faults.unnamed += u64::from(lost.count_ones());
                    let first = base + u64::from(lost.trailing_zeros());
                    faults.first.get_or_insert(first);
                }
                for bit in of(named & !image) {
                    let block = base + bit;
                    if wrong.len() < 2 * REPORTED_MAX {
                        wrong.insert(block, format!("block {block} is free in the map"));
                    }
                }
            }
        }
        wrong
    }

    /// The number of blocks that the map counts as free in each of these regions.
    fn counts(&mut self, view: &View, faults: &mut MapFaults) -> BTreeMap<u32, u16> {
        let mut counts = BTreeMap::new();
        for index in 0.. {
            let value = view.get(&Key::region_counts(index));
            let value = match value.and_then(|value| value.map(|v| checked(&v)).transpose()) {
                Ok(Some(value)) => value,
                Ok(None) => break,
                Err(error) => {
                    faults.other(format!("the counts of the map of blocks: {error}"));
                    break;
                }
            };
            let first = index * COUNTS_REGIONS as u32;
            let pairs = value
                .as_chunks::<2>()
                .0
                .iter()
                .map(|pair| u16::from_be_bytes(*pair));
            for (region, free) in (first..).zip(pairs) {
                self.has_more |= region >= self.regions.end;
                if self.regions.contains(&region) {
                    counts.insert(region, free);
                }
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cellar_wire::ids::{AfsTime, ViceId, VolumeId};

    use super::*;
    use crate::disk::SimDisk;
    use crate::engine::batch::{Batch, Run};
    use crate::{Context, Damage, NewVnode, Options, Partition, StoreSpec, Volume, VolumeSpec};

    const AT: Context = Context {
        author: ViceId(1),
        now: AfsTime(5),
    };

    fn store(volume: &Volume, name: &[u8]) -> cellar_wire::ids::Fid {
        let new = NewVnode {
            owner: ViceId(1),
            group: None,
            mode: None,
            client_time: None,
        };
        let made = volume.create_file(volume.root(), name, &new, AT);
        let fid = made.unwrap().wait().unwrap().status.fid;
        let bytes = vec![7; 100_000];
        let stored = volume.store(fid, &StoreSpec::at(0), &[bytes.into()], AT);
        stored.unwrap().wait().unwrap();
        fid
    }

    fn partition() -> (Arc<Partition>, Arc<Volume>) {
        let options = Options {
            journal_bytes: 1 << 20,
            reserve_bytes: 1 << 20,
            ..Options::default()
        };
        let partition = Partition::open(Arc::new(SimDisk::new(64 << 20)), options).unwrap();
        let spec = VolumeSpec::new(VolumeId(10), "vol", ViceId(1), AfsTime(1));
        let volume = partition.create_volume(&spec).unwrap().outcome;
        (partition, volume)
    }

    fn found(partition: &Partition) -> Vec<Damage> {
        partition.core.engine.flush().unwrap();
        let report = partition.scrub(0, &mut |_| ControlFlow::Continue(()));
        report.unwrap().damaged
    }

    fn change(partition: &Partition, change: impl FnOnce(&mut Batch)) {
        let engine = &partition.core.engine;
        let mut batch = Batch::new();
        // A change of blocks alone does not cause a flush.
        let counters = engine.get(&Key::counters(1)).unwrap().unwrap();
        batch.put(Key::counters(1), counters);
        change(&mut batch);
        engine.commit(batch).unwrap().wait().unwrap();
    }

    fn first_piece(partition: &Partition, fid: cellar_wire::ids::Fid) -> (Key, Vec<Run>) {
        let engine = &partition.core.engine;
        let prefix = Key::bodies_prefix(1, fid.vnode.0);
        let (key, value) = engine.first_version(&prefix, &prefix).unwrap().unwrap();
        let blocks = Piece::decode(&value).unwrap().into_blocks();
        (key, blocks.runs().into_iter().map(|(_, run)| run).collect())
    }

    #[test]
    fn blocks_in_use_that_nothing_names_are_counted() {
        let (partition, volume) = partition();
        store(&volume, b"one");
        assert_eq!(found(&partition), []);
        let engine = &partition.core.engine;
        let lost = engine.space.allocate(3, &|key| engine.get(key)).unwrap();
        let first = lost.runs()[0].start;
        change(&partition, |batch| batch.taken = lost.hand_over());
        let damaged = found(&partition);
        assert_eq!((damaged.len(), damaged[0].fid.volume), (1, VolumeId(0)));
        let cause = &damaged[0].cause;
        assert!(cause.contains("3 blocks are in use"), "{cause}");
        assert!(cause.contains(&format!("first is {first})")), "{cause}");
    }

    #[test]
    fn files_whose_blocks_are_free_in_the_map_are_named() {
        let (partition, volume) = partition();
        let one = store(&volume, b"one");
        store(&volume, b"two");
        let (_, runs) = first_piece(&partition, one);
        change(&partition, |batch| batch.released = runs);
        let damaged = found(&partition);
        let reported: Vec<_> = damaged
            .iter()
            .map(|damage| (damage.fid, &damage.path))
            .collect();
        assert_eq!(reported, [(one, &Some("one".to_owned()))]);
        assert!(damaged[0].cause.contains("is free in the map"));
    }

    #[test]
    fn files_that_share_a_block_are_both_named() {
        let (partition, volume) = partition();
        let (one, two) = (store(&volume, b"one"), store(&volume, b"two"));
        let (from, to) = (
            first_piece(&partition, one).0,
            first_piece(&partition, two).0,
        );
        let engine = &partition.core.engine;
        let value = engine.get(&from).unwrap().unwrap();
        change(&partition, |batch| batch.put(to, value));
        let damaged = found(&partition);
        let of = |fid| damaged.iter().filter(move |damage| damage.fid == fid);
        assert!(
            of(one).any(|damage| damage.cause.contains("another place")),
            "{damaged:?}"
        );
        assert!(of(two).next().is_some(), "{damaged:?}");
    }
}
