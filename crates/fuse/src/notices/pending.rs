//! The notices that are not written yet: which vnode is next, and which waits for a notice end.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use cellar_cachemanager::{Before, Key, Length, NOTICE_TIMEOUT, Notice};
use cellar_wire::ids::VolumeId;

/// The number of threads that write notices of one volume and step at the same time.
const WRITERS_PER_STEP: usize = 2;

/// The pending notice of a vnode.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) contents: bool,
    pub(super) directory: bool,
    /// If set, only names that changed since then are invalid.
    pub(super) before: Option<Before>,
    /// The length to give to the kernel afterwards.
    pub(super) length: Option<Length>,
    /// The sequence number of the change.
    number: u64,
}

impl Change {
    fn add(&mut self, notice: Notice) {
        match notice {
            Notice::Attributes => {}
            Notice::Contents => {
                self.contents = true;
                // A length of the earlier contents is out of date.
                self.length = None;
            }
            Notice::Names(before) => {
                self.contents = true;
                self.before = Some(before);
            }
            Notice::Length(length) => self.length = Some(length),
        }
    }

    /// Merges a later change into this one.
    fn join(&mut self, later: Self) {
        if later.contents {
            // The kernel may have got names between the two.
            self.before = later.before.filter(|_| !self.contents);
            self.contents = true;
            self.length = None;
        }
        self.length = later.length.or(self.length.take());
    }
}

/// The step of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Attributes, pages and length.
    Inode,
    /// The names in a directory, or the names of the vnode itself.
    Names,
}

/// A vnode whose notice is being written.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    key: Key,
    step: Step,
    number: u64,
    since: Instant,
}

impl InFlight {
    /// Returns whether waiters have given up on it.
    fn is_stuck(&self, now: Instant) -> bool {
        now.duration_since(self.since) >= NOTICE_TIMEOUT
    }
}

/// Vnodes that wait for a step.
#[derive(Debug, Default)]
struct StepQueue {
    changes: HashMap<Key, Change>,
    /// Their sequence numbers.
    order: BTreeMap<u64, Key>,
}

impl StepQueue {
    fn put(&mut self, key: Key, change: Change) {
        match self.changes.entry(key) {
            Entry::Vacant(place) => {
                self.order.insert(change.number, key);
                place.insert(change);
            }
            Entry::Occupied(place) => place.into_mut().join(change),
        }
    }

    fn take(&mut self, key: Key) -> Option<Change> {
        let change = self.changes.remove(&key)?;
        self.order.remove(&change.number);
        Some(change)
    }
}

/// The pending notices of one volume.
#[derive(Debug, Default)]
struct Volume {
    inodes: StepQueue,
    names: StepQueue,
    in_flight: Vec<InFlight>,
}

impl Volume {
    fn queue(&mut self, step: Step) -> &mut StepQueue {
        match step {
            Step::Inode => &mut self.inodes,
            Step::Names => &mut self.names,
        }
    }

    /// The next vnode for a step.
    fn next(&self, step: Step) -> Option<Key> {
        let in_flight = || {
            self.in_flight
                .iter()
                .filter(|in_flight| in_flight.step == step)
        };
        if in_flight().count() >= WRITERS_PER_STEP {
            return None;
        }
        let queue = match step {
            Step::Inode => &self.inodes,
            Step::Names => &self.names,
        };
        let is_in_flight = |key: &Key| in_flight().any(|in_flight| in_flight.key == *key);
        queue.order.values().find(|key| !is_in_flight(key)).copied()
    }

    /// Returns whether a notice up to that number will be written soon.
    fn owes(&self, queued: u64, now: Instant) -> bool {
        let stuck = |in_flight: &InFlight| in_flight.is_stuck(now);
        let steps = [(Step::Inode, &self.inodes), (Step::Names, &self.names)];
        let waits = steps.into_iter().any(|(step, queue)| {
            let waits = queue.order.range(..=queued).next().is_some();
            let mut in_flight = self
                .in_flight
                .iter()
                .filter(|in_flight| in_flight.step == step);
            let late = in_flight.all(stuck) && self.next(step).is_none();
            waits && !late
        });
        let mut in_flight = self.in_flight.iter();
        waits || in_flight.any(|in_flight| in_flight.number <= queued && !stuck(in_flight))
    }

    fn is_empty(&self) -> bool {
        let waits = |queue: &StepQueue| !queue.changes.is_empty();
        self.in_flight.is_empty() && !waits(&self.inodes) && !waits(&self.names)
    }
}

/// The pending notices.
#[derive(Debug, Default)]
pub(super) struct PendingNotices {
    volumes: HashMap<(u32, VolumeId), Volume>,
    /// The number of notices that were ever queued.
    pub(super) queued: u64,
    pub(super) ended: bool,
}

impl PendingNotices {
    pub(super) fn put(&mut self, key: Key, directory: bool, notice: Notice) {
        self.queued += 1;
        let number = self.queued;
        let volume = self.volumes.entry((key.0, key.1.volume)).or_default();
        let mut change = Change {
            contents: false,
            directory,
            before: None,
            length: None,
            number,
        };
        change.add(notice);
        volume.inodes.put(key, change);
    }

    /// Takes the next step.
    pub(super) fn take(&mut self) -> Option<(Key, Step, Change)> {
        let mut volumes = self.volumes.values_mut();
        let next = |volume: &Volume| {
            let steps = [Step::Inode, Step::Names].into_iter();
            let mut next = steps.filter_map(|step| Some((volume.next(step)?, step)));
            next.next()
        };
        let (volume, (key, step)) =
            volumes.find_map(|volume| next(volume).map(|next| (volume, next)))?;
        let change = volume.queue(step).take(key)?;
        let number = change.number;
        let since = Instant::now();
        volume.in_flight.push(InFlight {
            key,
            step,
            number,
            since,
        });
        Some((key, step, change))
    }

    /// Whether no notice is left.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.volumes.is_empty()
    }

    /// Returns whether a notice about a vnode up to that number is unfinished, except its names.
    pub(super) fn has_notices(&self, key: Key, queued: u64) -> bool {
        let Some(volume) = self.volumes.get(&(key.0, key.1.volume)) else {
            return false;
        };
        let waits = volume.inodes.changes.get(&key);
        let is_under_way = |in_flight: &InFlight| {
            in_flight.key == key && in_flight.number <= queued && in_flight.step == Step::Inode
        };
        !self.ended
            && (waits.is_some_and(|change| change.number <= queued)
                || volume.in_flight.iter().any(is_under_way))
    }

    /// Records that a step is finished; the next step is due.
    pub(super) fn done(&mut self, key: Key, step: Step, change: Change) {
        let number = (key.0, key.1.volume);
        if let Some(volume) = self.volumes.get_mut(&number) {
            volume
                .in_flight
                .retain(|in_flight| (in_flight.key, in_flight.step) != (key, step));
            if step == Step::Inode {
                volume.names.put(key, change);
            }
            if volume.is_empty() {
                self.volumes.remove(&number);
            }
        }
    }

    /// Returns whether all notices up to that number are written. Notices that waiters have given
    /// up on do not count, nor do those that wait for them.
    pub(super) fn is_written(&self, queued: u64, now: Instant) -> bool {
        self.ended || !self.volumes.values().any(|volume| volume.owes(queued, now))
    }
}
