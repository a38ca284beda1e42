//! Numbers that are given out before any vnode has them. A client uses them for vnodes that it
//! makes itself and tells the server of later.
//!
//! 1. A block of numbers is taken from the volume's counters, in one batch with the list of
//!    outstanding blocks. The caller gets the block when that batch is durable, in the relaxed mode
//!    too. So no other client ever gets the numbers, and the list survives a restart.
//! 2. Only the client for which a block was reserved can make vnodes under its numbers, each once.
//!    In memory, each block records the numbers that were used since it was made, or since the
//!    volume was opened. In the second case the table also shows whether a vnode has the number.
//! 3. There are at most [`BLOCKS_MAX`] blocks. A new block replaces the oldest block of the client
//!    that has most blocks. So no client loses its only block as long as there are fewer clients
//!    than blocks. A replacement of the volume's contents drops all blocks.
//! 4. Half of all numbers cannot be reserved, so the volume remains usable if a client reserves
//!    without end.

use bytes::Bytes;
use cellar_wire::ids::{Fid, Uniquifier, VnodeId};

use crate::engine::batch::Batch;
use crate::engine::key::Key;
use crate::engine::space::with_checksum;
use crate::error::{Error, Result};
use crate::record::{CountersRecord, Fields, PutFields};
use crate::state::ticket::is_nonblocking;
use crate::types::Changed;
use crate::volume::Volume;

/// The most outstanding blocks of a volume.
const BLOCKS_MAX: usize = 64;
/// Numbers from this one on are not reserved.
const RESERVED_BELOW: u32 = 1 << 31;
/// The first byte of the record.
const FORM: u8 = 1;
/// Bytes of a block in the record.
const BLOCK_BYTES: u64 = 28;

/// Numbers for vnodes that are to be made: of each kind as many as were requested, or fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The first number for files and symbolic links. Every second number after it belongs to the
    /// block.
    pub first_file: VnodeId,
    /// The number of file numbers.
    pub files: u32,
    /// The first number for directories; every second one after it belongs to the block.
    pub first_directory: VnodeId,
    /// The number of directory numbers.
    pub directories: u32,
    /// The uniquifier of the first file. The others follow it: files first, then directories.
    pub first_uniquifier: Uniquifier,
}

impl Reservation {
    /// The index of a number among those of the block, files first.
    fn place(&self, vnode: VnodeId, uniquifier: Uniquifier) -> Option<u32> {
        let (first, count, before) = match vnode.is_directory() {
            true => (self.first_directory, self.directories, self.files),
            false => (self.first_file, self.files, 0),
        };
        let place = vnode.0.checked_sub(first.0)? / 2;
        let own = before.checked_add(place)?;
        let is_it = place < count && uniquifier.0.checked_sub(self.first_uniquifier.0)? == own;
        is_it.then_some(own)
    }
}

/// An outstanding block.
#[derive(Clone, Debug)]
struct Block {
    holder: u64,
    numbers: Reservation,
    /// One bit for each number that was used.
    used: Vec<u64>,
    /// The block was made since the volume was opened: a number without a bit was never used.
    complete: bool,
}

impl Block {
    fn new(holder: u64, numbers: Reservation, complete: bool) -> Self {
        Self {
            holder,
            numbers,
            used: Vec::new(),
            complete,
        }
    }

    /// Marks a number as used or unused. Returns the former mark.
    fn mark(&mut self, place: u32, used: bool) -> bool {
        let (word, bit) = ((place / 64) as usize, 1 << (place % 64));
        if self.used.len() <= word {
            self.used.resize(word + 1, 0);
        }
        let before = self.used[word] & bit != 0;
        match used {
            true => self.used[word] |= bit,
            false => self.used[word] &= !bit,
        }
        before
    }
}

/// The outstanding blocks of a volume, the oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reserved(Vec<Block>);

impl Reserved {
    fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(self.0.len() * BLOCK_BYTES as usize + 9);
        out.put_u8(FORM);
        for block in &self.0 {
            let numbers = &block.numbers;
            out.put_u64(block.holder);
            for word in [
                numbers.first_file.0,
                numbers.files,
                numbers.first_directory.0,
                numbers.directories,
                numbers.first_uniquifier.0,
            ] {
                PutFields::put_u32(&mut out, word);
            }
        }
        with_checksum(out)
    }

    pub(crate) fn decode(value: &Bytes) -> Result<Self> {
        let mut fields = Fields::of(value, "reserved")?;
        if fields.u8()? != FORM {
            return Err(fields.malformed());
        }
        let mut blocks = Vec::new();
        while !fields.is_empty() {
            let holder = fields.u64()?;
            let numbers = Reservation {
                first_file: VnodeId(fields.u32()?),
                files: fields.u32()?,
                first_directory: VnodeId(fields.u32()?),
                directories: fields.u32()?,
                first_uniquifier: Uniquifier(fields.u32()?),
            };
            blocks.push(Block::new(holder, numbers, false));
        }
        Ok(Self(blocks))
    }

    /// Adds a block. If there are too many, removes the oldest block of the holder that has most.
    fn add(&mut self, block: Block) {
        if self.0.len() >= BLOCKS_MAX {
            let of = |holder| self.0.iter().filter(|other| other.holder == holder).count();
            // Among holders with equally many blocks, the first has the oldest block.
            let mut goes = (0, 0);
            for (index, block) in self.0.iter().enumerate() {
                let count = of(block.holder);
                if count > goes.1 {
                    goes = (index, count);
                }
            }
            self.0.remove(goes.0);
        }
        self.0.push(block);
    }

    /// Claims a number for the holder for which it was reserved. Returns whether it is known that
    /// no vnode has it; `None` if it cannot be claimed.
    fn claim(&mut self, holder: u64, vnode: VnodeId, uniquifier: Uniquifier) -> Option<bool> {
        let mut blocks = self.0.iter_mut();
        let (block, place) = blocks.find_map(|block| {
            let place = block.numbers.place(vnode, uniquifier)?;
            (block.holder == holder).then_some((block, place))
        })?;
        (!block.mark(place, true)).then_some(block.complete)
    }

    /// Returns whether a number belongs to a block of the holder, used or not.
    fn holds(&self, holder: u64, vnode: VnodeId, uniquifier: Uniquifier) -> bool {
        let mut own = self.0.iter().filter(|block| block.holder == holder);
        own.any(|block| block.numbers.place(vnode, uniquifier).is_some())
    }

    /// Gives back a number for which no vnode was made.
    fn give_back(&mut self, vnode: VnodeId, uniquifier: Uniquifier) {
        for block in &mut self.0 {
            if let Some(place) = block.numbers.place(vnode, uniquifier) {
                block.mark(place, false);
            }
        }
    }

    /// Checks that the counters are behind all numbers.
    pub(crate) fn check(&self, counters: &CountersRecord, mut fault: impl FnMut(String)) {
        if self.0.len() > BLOCKS_MAX {
            fault(format!("has {} blocks of reserved numbers", self.0.len()));
        }
        for Block { numbers, .. } in &self.0 {
            let count = numbers.files.saturating_add(numbers.directories);
            let fits = numbers.first_file.0.saturating_add(2 * numbers.files) <= counters.next_file
                && numbers
                    .first_directory
                    .0
                    .saturating_add(2 * numbers.directories)
                    <= counters.next_directory
                && numbers.first_uniquifier.0.saturating_add(count) <= counters.next_uniquifier;
            if !fits {
                fault(format!(
                    "reserved numbers that the counters may give out again: {numbers:?}"
                ));
            }
        }
    }
}

/// Takes these numbers from the counters, as far as they may be reserved.
fn take(counters: &mut CountersRecord, files: u32, directories: u32) -> Reservation {
    let most = |next: u32, wanted: u32, step: u32| {
        let left = RESERVED_BELOW.saturating_sub(next) / step;
        wanted.min(left)
    };
    let files = most(counters.next_file, files, 2);
    let directories = most(counters.next_directory, directories, 2);
    let files = most(counters.next_uniquifier, files, 1);
    let directories = most(
        counters.next_uniquifier.saturating_add(files),
        directories,
        1,
    );
    let taken = Reservation {
        first_file: VnodeId(counters.next_file),
        files,
        first_directory: VnodeId(counters.next_directory),
        directories,
        first_uniquifier: Uniquifier(counters.next_uniquifier),
    };
    counters.next_file += 2 * files;
    counters.next_directory += 2 * directories;
    counters.next_uniquifier += files + directories;
    taken
}

impl Volume {
    /// Reserves numbers for `files` files and links and for `directories` directories, which
    /// `holder` will make with [`Volume::make`]. Fewer or none are reserved when half of all
    /// numbers are used up. Once the ticket is ready, no other caller ever gets these numbers, in
    /// the relaxed mode too.
    ///
    /// Holders are numbers that the caller chooses. A holder's oldest numbers are forgotten when
    /// the volume has many blocks.
    ///
    /// # Errors
    /// Those with which a change is refused: `ReadOnly`, `Busy`, `NoVolume`, `DiskFull`.
    pub fn reserve(
        &self,
        holder: u64,
        files: u32,
        directories: u32,
    ) -> Result<Changed<Reservation>> {
        let engine = &self.core.engine;
        let _room = engine.admit(BLOCKS_MAX as u64 * BLOCK_BYTES + 256)?;
        let state = if is_nonblocking() {
            self.group.state.try_read().ok_or(Error::WouldBlock)?
        } else {
            self.group.state.read()
        };
        self.check_changeable(&state)?;
        let mut counters = self.lock_counters()?;
        let (mut record, mut reserved) = (counters.record, counters.reserved.clone());
        let outcome = take(&mut record, files, directories);
        if outcome.files + outcome.directories > 0 {
            reserved.add(Block::new(holder, outcome, true));
        }
        let group = self.group.id.0;
        let mut batch = Batch::new();
        batch.put(Key::counters(group), record.encode());
        batch.put(Key::reserved(group), reserved.encode());
        let durable = engine.commit_durably(batch)?;
        (counters.record, counters.reserved) = (record, reserved);
        Ok(Changed { outcome, durable })
    }
}

impl Volume {
    /// Returns whether a number was reserved for `holder` and is not forgotten, used or not.
    pub fn is_reserved(&self, holder: u64, vnode: VnodeId, uniquifier: Uniquifier) -> bool {
        let counters = self.lock_counters();
        counters.is_ok_and(|counters| counters.reserved.holds(holder, vnode, uniquifier))
    }
}

/// Numbers claimed for vnodes that are being made. When this is dropped they are given back, unless
/// they are kept.
pub(crate) struct Claims<'v> {
    volume: &'v Volume,
    taken: Vec<(VnodeId, Uniquifier)>,
    /// For each number, whether it is known that no vnode has it.
    pub(crate) known_free: Vec<bool>,
}

impl<'v> Claims<'v> {
    /// Claims all these numbers, or none: `NotReserved`.
    pub(crate) fn of(
        volume: &'v Volume,
        holder: u64,
        numbers: impl Iterator<Item = (VnodeId, Uniquifier)>,
    ) -> Result<Self> {
        let mut claims = Self {
            volume,
            taken: Vec::new(),
            known_free: Vec::new(),
        };
        for (vnode, uniquifier) in numbers {
            // Not held beyond the loop body: the drop of the claims takes this lock again.
            let claimed = {
                let mut counters = volume.lock_counters()?;
                counters.reserved.claim(holder, vnode, uniquifier)
            };
            let known_free = claimed.ok_or(Error::NotReserved(Fid {
                volume: volume.id(),
                vnode,
                uniquifier,
            }))?;
            claims.taken.push((vnode, uniquifier));
            claims.known_free.push(known_free);
        }
        Ok(claims)
    }

    /// The numbers are used now.
    pub(crate) fn mark_used(mut self) {
        self.taken.clear();
    }
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        if self.taken.is_empty() {
            return;
        }
        if let Ok(mut counters) = self.volume.lock_counters() {
            for &(vnode, uniquifier) in &self.taken {
                counters.reserved.give_back(vnode, uniquifier);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(holder: u64, number: u32) -> Block {
        let numbers = Reservation {
            first_file: VnodeId(number * 200),
            files: 100,
            first_directory: VnodeId(number * 20 + 1),
            directories: 10,
            first_uniquifier: Uniquifier(number * 110),
        };
        Block::new(holder, numbers, true)
    }

    #[test]
    fn a_number_is_claimed_once_by_its_holder_and_as_what_it_is_for() {
        let mut reserved = Reserved::default();
        reserved.add(block(7, 1));
        let mut claim = |holder, vnode, uniquifier| {
            reserved.claim(holder, VnodeId(vnode), Uniquifier(uniquifier))
        };
        assert_eq!(claim(8, 200, 110), None, "another's");
        assert_eq!(claim(7, 200, 111), None, "another uniquifier");
        assert_eq!(claim(7, 400, 210), None, "behind the files");
        assert_eq!(claim(7, 198, 109), None, "before them");
        assert_eq!(claim(7, 41, 220), None, "behind the directories");
        assert_eq!(claim(7, 200, 110), Some(true));
        assert_eq!(claim(7, 200, 110), None, "used");
        assert_eq!(claim(7, 398, 209), Some(true), "the last file");
        assert_eq!(claim(7, 21, 210), Some(true), "the first directory");
        reserved.give_back(VnodeId(200), Uniquifier(110));
        let again = reserved.claim(7, VnodeId(200), Uniquifier(110));
        assert_eq!(again, Some(true));
    }

    #[test]
    fn blocks_come_back_as_they_were_and_are_not_taken_for_complete() {
        let mut reserved = Reserved::default();
        reserved.add(block(7, 1));
        reserved.add(block(9, 2));
        let mut again = Reserved::decode(&reserved.encode()).unwrap();
        assert_eq!(again.0.len(), 2);
        assert_eq!(again.claim(9, VnodeId(400), Uniquifier(220)), Some(false));
    }

    #[test]
    fn the_holder_of_most_loses_the_oldest() {
        let mut reserved = Reserved::default();
        reserved.add(block(1, 0));
        for number in 1..200 {
            reserved.add(block(2, number));
        }
        assert_eq!(reserved.0.len(), BLOCKS_MAX);
        assert_eq!(reserved.0[0].holder, 1);
        assert_eq!(reserved.0[1].numbers, block(2, 137).numbers);
    }

    #[test]
    fn half_of_all_numbers_are_left() {
        let mut counters = CountersRecord {
            blocks_used: 0,
            files: 0,
            updated: cellar_wire::ids::AfsTime(0),
            update_counter: 0,
            next_directory: 3,
            next_file: RESERVED_BELOW - 4,
            next_uniquifier: 2,
            removed: 0,
        };
        let taken = take(&mut counters, 10, 10);
        assert_eq!((taken.files, taken.directories), (2, 10));
        assert_eq!(
            (counters.next_file, counters.next_directory),
            (RESERVED_BELOW, 23)
        );
        assert_eq!(counters.next_uniquifier, 14);
        counters.next_uniquifier = u32::MAX - 1;
        let taken = take(&mut counters, 10, 10);
        assert_eq!((taken.files, taken.directories), (0, 0));
    }
}
