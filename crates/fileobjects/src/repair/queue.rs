//! The objects that wait for repair, and the state of devices that makes the repairs necessary.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cellar_wire::afsosd::Repairing;
use cellar_wire::ids::{Fid, Uniquifier, VnodeId, VolumeId};
use cellar_wire::object::{Layout, ObjectId, Placed};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::super::limits::{DAMAGED_MAX, REPAIR_AGAIN, REPAIR_AGAIN_MOST, REPAIRS_MAX};

/// Time over which the rate is measured.
const RATE_TIME: Duration = Duration::from_secs(10);

/// An object of a file on this server, for all volumes that share the vnode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DamagedObject {
    /// A volume through which the file is found: the RW volume if it is here.
    pub(crate) volume: VolumeId,
    pub(crate) vnode: VnodeId,
    pub(crate) uniquifier: Uniquifier,
    /// The device and serial number of the object.
    pub(crate) osd: u32,
    pub(crate) serial: u32,
}

impl DamagedObject {
    /// The object of a file at a place of its layout.
    pub(crate) fn of(fid: Fid, placed: &Placed) -> Self {
        Self {
            volume: fid.volume,
            vnode: fid.vnode,
            uniquifier: fid.uniquifier,
            osd: placed.osd,
            serial: placed.serial,
        }
    }

    fn file(&self) -> (VolumeId, VnodeId) {
        (self.volume, self.vnode)
    }
}

/// A waiting repair.
#[derive(Clone, Copy, Debug)]
struct QueuedRepair {
    not_before: Instant,
    tries: u32,
    bytes: u64,
}

/// The outcome of a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was rebuilt, with so many bytes; `true` if it was damaged.
    Made(u64, bool),
    /// Nothing is to be done, or no longer.
    Nothing,
    /// A store into the file is in progress, or the file has changed in the meantime.
    Busy,
    /// Its device does not answer, and may come back.
    Away,
    /// It cannot be rebuilt now.
    Failed,
}

#[derive(Debug, Default)]
struct State {
    waiting: BTreeMap<DamagedObject, QueuedRepair>,
    /// The files in work, each once: two objects of a file are not rebuilt at the same time.
    running: HashSet<(VolumeId, VnodeId)>,
    /// More repairs were found than the queue holds.
    overflowed: bool,
    /// Devices that do not answer; those of them that have been missing for too long; and those to
    /// be emptied.
    down: HashSet<u32>,
    gone: HashSet<u32>,
    leaving: HashSet<u32>,
    /// Objects that devices or readers found damaged.
    damaged: HashSet<(u32, ObjectId)>,
    recent: VecDeque<(Instant, u64)>,
}

/// A requested repair. Ends when this is dropped.
#[derive(Debug)]
pub(crate) struct RunningRepair<'a> {
    repairs: &'a Repairs,
    file: (VolumeId, VnodeId),
}

impl RunningRepair<'_> {
    /// Counts the outcome.
    pub(crate) fn end(self, outcome: Outcome) {
        if let Outcome::Made(bytes, healed) = outcome {
            self.repairs
                .count(&mut self.repairs.state.lock(), bytes, healed);
        }
    }
}

impl Drop for RunningRepair<'_> {
    fn drop(&mut self) {
        self.repairs.state.lock().running.remove(&self.file);
        self.repairs.more.notify_waiters();
    }
}

/// The queue.
#[derive(Debug, Default)]
pub(crate) struct Repairs {
    state: Mutex<State>,
    pub(super) more: Notify,
    /// Requests an examination of all files.
    pub(super) look: Notify,
    pub(super) looking: std::sync::atomic::AtomicBool,
    repaired: AtomicU64,
    healed: AtomicU64,
    bytes: AtomicU64,
}

impl Repairs {
    /// Whether an object in a layout must be rebuilt.
    pub(super) fn is_broken(&self, placed: &Placed, object: ObjectId) -> bool {
        let state = self.state.lock();
        placed.stale
            || state.gone.contains(&placed.osd)
            || state.leaving.contains(&placed.osd)
            || state.damaged.contains(&(placed.osd, object))
    }

    /// Whether any object of a layout may have to be rebuilt.
    pub(super) fn may_be_broken(&self, layout: &Layout) -> bool {
        let state = self.state.lock();
        layout.objects.iter().any(|placed| {
            placed.stale
                || state.gone.contains(&placed.osd)
                || state.leaving.contains(&placed.osd)
                || state.damaged.iter().any(|(osd, _)| *osd == placed.osd)
        })
    }

    pub(super) fn is_damaged(&self, osd: u32, object: ObjectId) -> bool {
        self.state.lock().damaged.contains(&(osd, object))
    }

    /// Whether any device has been missing for long or is to be emptied.
    pub(super) fn has_leaving(&self) -> bool {
        let state = self.state.lock();
        !state.gone.is_empty() || !state.leaving.is_empty()
    }

    /// Whether a device is neither missing for long nor to be emptied.
    pub(super) fn stays(&self, osd: u32) -> bool {
        let state = self.state.lock();
        !state.gone.contains(&osd) && !state.leaving.contains(&osd)
    }

    /// Sets the state of devices. Returns `true` if the set of devices that are missing for long or
    /// to be emptied has changed.
    pub(super) fn set_devices(
        &self,
        down: HashSet<u32>,
        gone: HashSet<u32>,
        leaving: HashSet<u32>,
    ) -> bool {
        let mut state = self.state.lock();
        let mut new = gone.difference(&state.gone).next().is_some()
            || leaving.difference(&state.leaving).next().is_some();
        if (&down, &gone, &leaving) != (&state.down, &state.gone, &state.leaving) {
            // Repairs that waited because of the old state are retried at once.
            let now = Instant::now();
            for waiting in state.waiting.values_mut() {
                waiting.not_before = now;
                waiting.tries = 0;
            }
            let before = state.gone.union(&state.leaving);
            let back: HashSet<u32> = before
                .filter(|osd| !gone.contains(osd) && !leaving.contains(osd))
                .copied()
                .collect();
            let State {
                waiting, running, ..
            } = &mut *state;
            waiting.retain(|broken, _| {
                !back.contains(&broken.osd) || running.contains(&broken.file())
            });
            new |= !back.is_empty();
            (state.down, state.gone, state.leaving) = (down, gone, leaving);
            drop(state);
            self.more.notify_waiters();
        }
        new
    }

    /// Notes a damaged object. Returns `false` if it was known.
    pub(super) fn note_damaged(&self, osd: u32, object: ObjectId) -> bool {
        let mut state = self.state.lock();
        state.damaged.len() < DAMAGED_MAX && state.damaged.insert((osd, object))
    }

    /// All objects known to be damaged.
    pub(super) fn damaged(&self) -> HashSet<(u32, ObjectId)> {
        self.state.lock().damaged.clone()
    }

    /// Called after an examination of all files. Forgets objects that were known as damaged before
    /// it and that no file names.
    pub(super) fn keep_damaged(
        &self,
        before: &HashSet<(u32, ObjectId)>,
        named: &HashSet<(u32, ObjectId)>,
    ) {
        let mut state = self.state.lock();
        let stays = |one: &(u32, ObjectId)| !before.contains(one) || named.contains(one);
        state.damaged.retain(stays);
    }

    /// Queues an object of about `bytes` bytes.
    pub(super) fn add(&self, broken: DamagedObject, bytes: u64) {
        let mut state = self.state.lock();
        if state.waiting.len() >= REPAIRS_MAX && !state.waiting.contains_key(&broken) {
            state.overflowed = true;
            return;
        }
        state.waiting.entry(broken).or_insert(QueuedRepair {
            not_before: Instant::now(),
            tries: 0,
            bytes,
        });
        drop(state);
        self.more.notify_waiters();
    }

    /// The next repair that is due, or the time to wait for one.
    pub(super) fn next(&self) -> Result<(DamagedObject, u32), Duration> {
        let mut state = self.state.lock();
        let now = Instant::now();
        let due = |(broken, waiting): &(&DamagedObject, &QueuedRepair)| {
            waiting.not_before <= now && !state.running.contains(&broken.file())
        };
        let found = state.waiting.iter().find(due);
        if let Some((broken, waiting)) = found.map(|(broken, waiting)| (*broken, *waiting)) {
            state.running.insert(broken.file());
            return Ok((broken, waiting.tries));
        }
        let times = state.waiting.values().map(|waiting| waiting.not_before);
        let soonest = times.filter(|time| *time > now).min();
        let wait = soonest.map_or(RATE_TIME, |time| time - now);
        Err(wait.min(RATE_TIME))
    }

    /// Marks a file as in repair for a requested repair. Returns `None` if it is being repaired
    /// already.
    pub(crate) fn begin(&self, broken: &DamagedObject) -> Option<RunningRepair<'_>> {
        let is_first = self.state.lock().running.insert(broken.file());
        is_first.then_some(RunningRepair {
            repairs: self,
            file: broken.file(),
        })
    }

    /// Notes the outcome of a repair that was begun.
    pub(super) fn done(&self, broken: &DamagedObject, outcome: Outcome) {
        let mut state = self.state.lock();
        state.running.remove(&broken.file());
        let now = Instant::now();
        match outcome {
            Outcome::Made(bytes, healed) => {
                self.count(&mut state, bytes, healed);
                // Checked once more, because a store may have come in between.
                if let Some(waiting) = state.waiting.get_mut(broken) {
                    *waiting = QueuedRepair {
                        not_before: now,
                        tries: 0,
                        bytes: 0,
                    };
                }
            }
            Outcome::Nothing => drop(state.waiting.remove(broken)),
            Outcome::Away => {
                if let Some(waiting) = state.waiting.get_mut(broken) {
                    waiting.not_before = now + RATE_TIME;
                }
            }
            Outcome::Busy => {
                if let Some(waiting) = state.waiting.get_mut(broken) {
                    waiting.tries = (waiting.tries + 1).min(2);
                    waiting.not_before = now + REPAIR_AGAIN / 4;
                }
            }
            Outcome::Failed => {
                if let Some(waiting) = state.waiting.get_mut(broken) {
                    waiting.tries = waiting.tries.max(2) + 1;
                    let times = 1 << (waiting.tries - 3).min(16);
                    waiting.not_before = now + (REPAIR_AGAIN * times).min(REPAIR_AGAIN_MOST);
                }
            }
        }
        let look = state.overflowed && state.waiting.len() < REPAIRS_MAX / 2;
        if look {
            state.overflowed = false;
        }
        drop(state);
        if look {
            self.look.notify_one();
        }
        self.more.notify_waiters();
    }

    fn count(&self, state: &mut State, bytes: u64, healed: bool) {
        let now = Instant::now();
        state.recent.push_back((now, bytes));
        forget_old(&mut state.recent, now);
        self.repaired.fetch_add(1, Ordering::Relaxed);
        self.healed.fetch_add(u64::from(healed), Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The progress of the repairs.
    pub(crate) fn status(&self) -> Repairing {
        let mut state = self.state.lock();
        let now = Instant::now();
        forget_old(&mut state.recent, now);
        let recent: u64 = state.recent.iter().map(|(_, bytes)| bytes).sum();
        let waiting = state.waiting.values();
        Repairing {
            waiting: state.waiting.len() as u64,
            waiting_bytes: waiting.clone().map(|waiting| waiting.bytes).sum(),
            running: state.running.len() as u64,
            repaired: self.repaired.load(Ordering::Relaxed),
            healed: self.healed.load(Ordering::Relaxed),
            failed: waiting.filter(|waiting| waiting.tries > 2).count() as u64,
            bytes: self.bytes.load(Ordering::Relaxed),
            rate: recent / RATE_TIME.as_secs(),
            looking: self.looking.load(Ordering::Relaxed),
        }
    }
}

fn forget_old(recent: &mut VecDeque<(Instant, u64)>, now: Instant) {
    while recent
        .front()
        .is_some_and(|(when, _)| *when + RATE_TIME < now)
    {
        recent.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(vnode: u32, serial: u32) -> DamagedObject {
        DamagedObject {
            volume: VolumeId(1),
            vnode: VnodeId(vnode),
            uniquifier: Uniquifier(1),
            osd: 2,
            serial,
        }
    }

    #[test]
    fn objects_of_no_file_are_not_remembered_as_damaged() {
        let repairs = Repairs::default();
        let object = |serial| ObjectId {
            serial,
            ..ObjectId::default()
        };
        assert!(repairs.note_damaged(2, object(1)) && repairs.note_damaged(2, object(2)));
        let before = repairs.damaged();
        // Found during the examination of the files.
        assert!(repairs.note_damaged(2, object(3)));
        repairs.keep_damaged(&before, &HashSet::from([(2, object(2))]));
        let left = [1, 2, 3].map(|serial| repairs.is_damaged(2, object(serial)));
        assert_eq!(left, [false, true, true]);
    }

    #[test]
    fn two_objects_of_a_file_are_not_made_at_the_same_time() {
        let repairs = Repairs::default();
        for (vnode, serial) in [(2, 1), (2, 2), (4, 1)] {
            repairs.add(broken(vnode, serial), 10);
        }
        let (first, _) = repairs.next().unwrap();
        let (second, _) = repairs.next().unwrap();
        assert_eq!((first, second), (broken(2, 1), broken(4, 1)));
        assert!(repairs.next().is_err(), "the file of the third is busy");
        repairs.done(&first, Outcome::Made(10, true));
        // Once more, because a store may have come in between.
        assert_eq!(repairs.next().unwrap().0, first);
        repairs.done(&first, Outcome::Nothing);
        assert_eq!(repairs.next().unwrap().0, broken(2, 2));
        repairs.done(&broken(2, 2), Outcome::Failed);
        repairs.done(&second, Outcome::Nothing);
        let status = repairs.status();
        assert_eq!((status.waiting, status.failed, status.running), (1, 1, 0));
        assert_eq!((status.repaired, status.healed, status.bytes), (1, 1, 10));
        // Not again at once, but when a device has come back.
        assert!(repairs.next().is_err());
        assert!(repairs.set_devices(HashSet::new(), HashSet::from([7]), HashSet::new()));
        assert!(repairs.next().is_ok());
    }
}
