//! Repair of one object of a file.
//!
//! This server may have several versions of the file, and these may name several versions of the
//! object. Each is rebuilt as a separate object with one version. Its device has no other object of
//! that layout; a healthy device of the old object may be used again. The serial number is drawn
//! from the upper half of the numbers, which stores do not use. So a concurrent store cannot choose
//! the same one.

use std::sync::Arc;

use cellar_objects::repair::{Pace, RebuildTarget, rebuild};
use cellar_objects::{Condition, placement};
use cellar_rpc::blocking;
use cellar_volume::{Holder, Referenced, Replaced, Volume};
use cellar_wire::ids::{Fid, ViceId};
use cellar_wire::object::{Layout, Placed};
use cellar_wire::osd::REMOVE_HARD;
use tracing::{debug, info, warn};

use super::super::Objects;
use super::super::failure::Failure;
use super::super::policies::ObjectSpec;
use super::super::prune::remove;
use super::super::{Storage, layouts};
use super::queue::{DamagedObject, Outcome};

/// Attempts after which the store lock of the file is taken before the copy and not after it.
const PATIENT_TRIES: u32 = 2;

/// The wanted place of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RepairPlacement {
    /// The best place, if the object must be rebuilt.
    IfBroken,
    /// On another device; 0: any.
    On(u32),
}

/// A version of an object, and the version of the file that it is made from.
struct Work {
    placed: Placed,
    place: usize,
    layout: Arc<Layout>,
    length: u64,
}

/// The volume of a file, and the needed work.
type RepairWork = (Arc<Volume>, Vec<Work>);

impl Objects {
    /// Rebuilds an object as far as needed, in all versions of the file. Returns the device that
    /// the last of them is on now.
    pub(crate) async fn rebuild_object(
        self: &Arc<Self>,
        broken: DamagedObject,
        wish: RepairPlacement,
        tries: u32,
        pace: &Pace,
    ) -> Result<(Outcome, u32), Failure> {
        let storage = self.needed()?;
        let found = {
            let objects = self.clone();
            blocking(move || objects.versions_with(broken)).await?
        };
        let Some((volume, works)) = found else {
            return Ok((Outcome::Nothing, broken.osd));
        };
        let fid = Fid {
            volume: broken.volume,
            vnode: broken.vnode,
            uniquifier: broken.uniquifier,
        };
        if volume.is_restoring() {
            return Ok((Outcome::Busy, broken.osd));
        }
        let early = match tries >= PATIENT_TRIES {
            true => match self.store_locks.wait(fid).await {
                Some(store_lock) => Some(store_lock),
                None => return Ok((Outcome::Busy, broken.osd)),
            },
            false => None,
        };
        let (mut bytes, mut healed, mut done, mut now) = (0, false, 0, broken.osd);
        let mut worst = Outcome::Nothing;
        for work in &works {
            let object = work.layout.object(fid.vnode, fid.uniquifier, &work.placed);
            let repairs = &self.repairs;
            if wish == RepairPlacement::IfBroken && !repairs.is_broken(&work.placed, object) {
                continue;
            }
            let damaged = repairs.is_damaged(work.placed.osd, object);
            let condition = storage.devices.condition(work.placed.osd);
            let waits = condition != Condition::Well && repairs.stays(work.placed.osd);
            if wish == RepairPlacement::IfBroken && waits {
                // The object lacks a store because its device is down. It is rebuilt on that device
                // when the device is back.
                worst = Outcome::Away;
                continue;
            }
            let Some(target) = target(self, storage, work, damaged, wish) else {
                debug!(%fid, osd = work.placed.osd, "no device can take an object");
                worst = Outcome::Failed;
                continue;
            };
            let made = Placed {
                osd: target.osd,
                serial: target.serial,
                ..work.placed
            };
            let version_guard = self.pending_versions.begin(vec![Referenced {
                object: work.layout.object(fid.vnode, fid.uniquifier, &made),
                version: made.version,
                osd: made.osd,
                owner: ViceId::default(),
            }]);
            let set = storage.set(fid, (*work.layout).clone());
            let rebuilt = rebuild(
                &storage.devices,
                &set,
                work.place,
                target,
                work.length,
                pace,
            );
            let made = match rebuilt.await {
                Ok(made) => made,
                Err(cause) => {
                    let name = self.device_name(work.placed.osd);
                    warn!(%fid, osd = work.placed.osd, name, %cause, "an object cannot be rebuilt");
                    self.give_up(storage, &work.layout, fid, &made).await;
                    worst = Outcome::Failed;
                    continue;
                }
            };
            let outcome = self.put_in_place(&volume, fid, work, made, early.is_some());
            match outcome.await? {
                true => {
                    drop(version_guard);
                    let length = cellar_objects::arithmetic::length_at(
                        &work.layout.shape,
                        work.place,
                        work.length,
                    );
                    (bytes, done, now) = (bytes + length, done + 1, made.osd);
                    healed |= damaged;
                    if damaged {
                        // It stays in the list of damaged objects, because other versions of the
                        // file may name it.
                        let name = self.device_name(work.placed.osd);
                        warn!(%fid, %object, osd = work.placed.osd, name, to = made.osd,
                            "a damaged object was healed");
                    } else {
                        info!(%fid, %object, osd = work.placed.osd, to = made.osd,
                            "an object was rebuilt");
                    }
                    self.prunes.queue(&volume, fid, work.layout.clone());
                }
                false => {
                    self.give_up(storage, &work.layout, fid, &made).await;
                    worst = Outcome::Busy;
                }
            }
        }
        let outcome = match (worst, done) {
            (Outcome::Nothing, 1..) => Outcome::Made(bytes, healed),
            (worst, _) => worst,
        };
        Ok((outcome, now))
    }

    /// The versions of an object, with the volume and the layouts from which they can be rebuilt.
    fn versions_with(&self, broken: DamagedObject) -> Result<Option<RepairWork>, Failure> {
        let Some((_, attached)) = self.volumes.find(broken.volume)? else {
            return Ok(None);
        };
        let holders = attached.volume.holders_of(broken.vnode)?;
        let mut works: Vec<Work> = Vec::new();
        for holder in holders {
            let Holder {
                fid,
                length,
                layout,
                ..
            } = holder;
            if fid.uniquifier != broken.uniquifier {
                continue;
            }
            for (place, placed) in layout.objects.iter().enumerate() {
                if (placed.osd, placed.serial) != (broken.osd, broken.serial) {
                    continue;
                }
                let same = |work: &&mut Work| {
                    work.placed == *placed && work.layout.volume == layout.volume
                };
                match works.iter_mut().find(same) {
                    Some(work) if work.length < length => {
                        (work.length, work.layout) = (length, layout.clone());
                    }
                    Some(_) => {}
                    None => works.push(Work {
                        placed: *placed,
                        place,
                        layout: layout.clone(),
                        length,
                    }),
                }
            }
        }
        Ok(Some((attached.volume, works)))
    }

    /// Names the new object under the store lock. Returns `false` if a store is in progress, or the
    /// old object has no reference any more.
    async fn put_in_place(
        &self,
        volume: &Arc<Volume>,
        fid: Fid,
        work: &Work,
        made: Placed,
        in_lock: bool,
    ) -> Result<bool, Failure> {
        let store_lock = match in_lock {
            true => None,
            false => match self.store_locks.wait(fid).await {
                Some(store_lock) => Some(store_lock),
                None => return Ok(false),
            },
        };
        let replaced = Replaced {
            owner: work.layout.volume,
            old: work.placed,
            new: made,
        };
        let volume = volume.clone();
        let changed = blocking(move || volume.replace_object(fid.vnode, fid.uniquifier, &replaced));
        let changed = match changed.await {
            Err(cellar_volume::Error::Busy(_)) => return Ok(false),
            changed => changed?,
        };
        changed.durable.await?;
        drop(store_lock);
        Ok(changed.outcome > 0)
    }

    /// Removes the new object, which is of no use.
    async fn give_up(&self, storage: &Storage, layout: &Layout, fid: Fid, made: &Placed) {
        let object = layout.object(fid.vnode, fid.uniquifier, made);
        remove(storage, made.osd, &[(object, 0)], REMOVE_HARD).await;
    }
}

/// A device for an object, and a serial number that its file does not use.
fn target(
    objects: &Objects,
    storage: &Storage,
    work: &Work,
    damaged: bool,
    wish: RepairPlacement,
) -> Option<RebuildTarget> {
    let devices = storage.devices.list();
    let taken = |serial: u32| {
        work.layout
            .objects
            .iter()
            .any(|placed| placed.serial == serial)
    };
    let mut serial = rand::random::<u32>() | 1 << 31;
    while taken(serial) {
        serial = rand::random::<u32>() | 1 << 31;
    }
    let takes = |osd: u32| {
        let listed = devices.iter().find(|listed| listed.entry.id == osd);
        listed.is_some_and(placement::takes_objects)
            && storage.devices.condition(osd) == Condition::Well
            && objects.repairs.stays(osd)
    };
    let here = work.placed.osd;
    let present: Vec<u32> = work
        .layout
        .objects
        .iter()
        .map(|placed| placed.osd)
        .collect();
    if let RepairPlacement::On(osd @ 1..) = wish {
        let free = !present.contains(&osd) || osd == here;
        return (free && takes(osd)).then_some(RebuildTarget { osd, serial });
    }
    if wish == RepairPlacement::IfBroken && (work.placed.stale || damaged) && takes(here) {
        return Some(RebuildTarget { osd: here, serial });
    }
    let wanted = ObjectSpec {
        shape: work.layout.shape,
        class: None,
        by_size: false,
    };
    let mut wish = layouts::placement_request(storage, &wanted, work.length);
    let away = devices.iter().map(|listed| listed.entry.id);
    wish.avoid
        .extend(away.filter(|osd| !objects.repairs.stays(*osd)));
    let mut rng = rand::rng();
    let chosen = placement::choose_one(&devices, &wish, work.place, &present, &mut rng);
    let chosen = chosen.or_else(|_| {
        // Ignores the size limits of devices, because the object must be somewhere.
        wish.size = 0;
        placement::choose_one(&devices, &wish, work.place, &present, &mut rng)
    });
    let osd = chosen.ok()?;
    Some(RebuildTarget { osd, serial })
}
