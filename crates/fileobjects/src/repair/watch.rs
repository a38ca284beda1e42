//! Finds the needed repairs: devices that are missing or to be emptied, damage that devices found,
//! and files with objects that lack a store.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellar_objects::Condition;
use cellar_objects::repair::Pace;
use cellar_rpc::blocking;
use cellar_volume::{Holder, Partition, Volume};
use cellar_wire::ids::{Fid, VolumeId};
use cellar_wire::object::ObjectId;
use cellar_wire::osd::ScrubStatus;
use cellar_wire::osddb::{OSD_DRAINING, OSD_OBSOLETE};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use super::super::Objects;
use super::super::cell::Upkeep;
use super::super::limits::{LOOK_AGAIN, REPAIR_LOOKS, REPAIRS_AT_ONCE, WATCH_INTERVAL};
use super::super::{LOCAL_DISK, Storage};
use super::queue::{DamagedObject, Outcome};
use super::rebuild::RepairPlacement;

/// Logs devices that fail and return, one line for each change. A device that has not answered
/// since the start of the server is no change.
#[derive(Default)]
struct DeviceChanges {
    up: HashSet<u32>,
    lost: HashSet<u32>,
}

impl DeviceChanges {
    fn note(&mut self, osd: u32, name: &str, is_dead: bool) {
        if is_dead && self.up.remove(&osd) {
            self.lost.insert(osd);
            warn!(osd, name, "a device is down");
        }
        if !is_dead && self.up.insert(osd) && self.lost.remove(&osd) {
            info!(osd, name, "a device is up again");
        }
    }
}

impl Objects {
    /// Starts the repair tasks.
    pub(crate) fn start_repairs(self: &Arc<Self>, runtime: &cellar_rpc::Runtime, upkeep: &Upkeep) {
        let pace = Arc::new(Pace::new(upkeep.repair_rate));
        for _ in 0..REPAIRS_AT_ONCE {
            let (objects, pace) = (self.clone(), pace.clone());
            runtime.spawn(
                0,
                || async move { objects.repair_in_background(&pace).await },
            );
        }
        let (objects, kept) = (self.clone(), upkeep.clone());
        runtime.spawn(0, || async move { objects.watch_devices(&kept).await });
        let (objects, kept) = (self.clone(), upkeep.clone());
        runtime.spawn(0, || async move { objects.watch_damage(&kept).await });
        let (objects, kept) = (self.clone(), upkeep.clone());
        runtime.spawn(
            0,
            || async move { objects.examine_in_background(&kept).await },
        );
    }

    async fn repair_in_background(self: Arc<Self>, pace: &Pace) {
        let repairs = &self.repairs;
        while !self.is_stopping() {
            let more = repairs.more.notified();
            let (broken, tries) = match repairs.next() {
                Ok(next) => next,
                Err(wait) => {
                    let _woken = timeout(wait, more).await;
                    continue;
                }
            };
            let canonical = {
                let objects = self.clone();
                blocking(move || objects.by_head(broken)).await
            };
            if canonical != broken {
                // Uses the fid that all volumes of the group have in common.
                repairs.done(&broken, Outcome::Nothing);
                repairs.add(canonical, 0);
                continue;
            }
            let mended = self
                .rebuild_object(broken, RepairPlacement::IfBroken, tries, pace)
                .await;
            let outcome = mended
                .map(|(outcome, _)| outcome)
                .unwrap_or_else(|refusal| {
                    debug!(?broken, ?refusal, "an object cannot be repaired now");
                    Outcome::Failed
                });
            repairs.done(&broken, outcome);
        }
    }

    /// Names a file by its RW volume if that is in the same group, or else by the first of its
    /// clones.
    pub(crate) fn by_head(&self, broken: DamagedObject) -> DamagedObject {
        let found = self.volumes.find(broken.volume).ok().flatten();
        let head = found.and_then(|(_, found)| first_of(&found.partition, &found.volume));
        DamagedObject {
            volume: head.unwrap_or(broken.volume),
            ..broken
        }
    }

    /// Tracks which devices are missing, and which are to be emptied.
    async fn watch_devices(self: Arc<Self>, upkeep: &Upkeep) {
        let mut away: HashMap<u32, Instant> = HashMap::new();
        let mut changes = DeviceChanges::default();
        while !self.is_stopping() {
            if let Some(storage) = self.storage() {
                let (mut down, mut gone) = (HashSet::new(), HashSet::new());
                let mut leaving = HashSet::new();
                let now = Instant::now();
                for listed in storage.devices.list() {
                    let id = listed.entry.id;
                    if id == LOCAL_DISK {
                        continue;
                    }
                    if listed.entry.flags & (OSD_DRAINING | OSD_OBSOLETE) != 0 {
                        leaving.insert(id);
                    }
                    changes.note(id, &listed.entry.name.to_string(), listed.dead);
                    if !listed.dead {
                        away.remove(&id);
                        continue;
                    }
                    down.insert(id);
                    let since = away.entry(id).or_insert(now);
                    // The database may have missed the device for longer than this server has run.
                    let silent = match listed.state.silence {
                        u32::MAX => 0,
                        seconds => u64::from(seconds),
                    };
                    let silence = std::time::Duration::from_secs(silent).max(now - *since);
                    if silence >= upkeep.repair_delay {
                        gone.insert(id);
                    }
                }
                if self.repairs.set_devices(down, gone, leaving) {
                    info!("the states of devices have changed: examining all files");
                    self.repairs.look.notify_one();
                }
            }
            sleep(WATCH_INTERVAL).await;
        }
    }

    /// Asks devices for the damage that they found, in their scrubs and during reads.
    async fn watch_damage(self: Arc<Self>, upkeep: &Upkeep) {
        // The last answer of each device. A device repeats its answer until the object is removed.
        // Periodically the whole answer is treated as new, because a volume with such an object may
        // have arrived.
        let mut said: HashMap<u32, HashSet<ObjectId>> = HashMap::new();
        let mut since = Instant::now();
        while !self.is_stopping() {
            sleep(upkeep.damage_interval).await;
            if since.elapsed() >= upkeep.look_interval {
                said.clear();
                since = Instant::now();
            }
            let Some(storage) = self.storage() else {
                continue;
            };
            for listed in storage.devices.list() {
                let id = listed.entry.id;
                let asked = id != LOCAL_DISK && storage.devices.condition(id) == Condition::Well;
                if asked {
                    self.ask_for_damage(storage, id, said.entry(id).or_default())
                        .await;
                }
            }
        }
    }

    async fn ask_for_damage(
        self: &Arc<Self>,
        storage: &Storage,
        osd: u32,
        said: &mut HashSet<ObjectId>,
    ) {
        let Some(connection) = storage.devices.connection(osd) else {
            return;
        };
        let capability = storage.capability(osd);
        let Ok(status) = connection.call(&ScrubStatus { capability }).await else {
            return;
        };
        let before = std::mem::replace(said, status.damaged.iter().copied().collect());
        for object in status.damaged.iter().copied() {
            if before.contains(&object) || !self.repairs.note_damaged(osd, object) {
                continue;
            }
            let broken = DamagedObject {
                volume: object.volume,
                vnode: object.vnode,
                uniquifier: object.uniquifier,
                osd,
                serial: object.serial,
            };
            let objects = self.clone();
            let is_here = blocking(move || {
                Ok::<_, cellar_volume::Error>(objects.volumes.find(object.volume)?.is_some())
            });
            match is_here.await {
                Ok(true) => {
                    let name = self.device_name(osd);
                    warn!(osd, name, %object, "a device says that an object is damaged");
                    self.repairs.add(broken, 0);
                }
                // A read-only volume whose RW volume is on another server.
                _ => self.repairs.look.notify_one(),
            }
        }
    }

    /// Examines all files at the start, on request, and periodically.
    async fn examine_in_background(self: Arc<Self>, upkeep: &Upkeep) {
        while !self.is_stopping() {
            let repairs = &self.repairs;
            repairs.looking.store(true, Ordering::Relaxed);
            let begun = Instant::now();
            let found = self.examine_files().await;
            repairs.looking.store(false, Ordering::Relaxed);
            if found > 0 {
                info!(found, took = ?begun.elapsed(), "objects need repair");
            }
            // A volume may arrive with objects on a device that is being emptied.
            let rest = match repairs.has_leaving() {
                true => (begun.elapsed() * 10)
                    .max(LOOK_AGAIN)
                    .min(upkeep.look_interval),
                false => upkeep.look_interval,
            };
            let _asked = timeout(rest, repairs.look.notified()).await;
        }
    }

    async fn examine_files(self: &Arc<Self>) -> usize {
        let (mut found, mut all) = (0, true);
        let before = self.repairs.damaged();
        let mut damaged = HashSet::new();
        for (_, partition) in self.volumes.partitions() {
            let mut from = Some(0);
            while let Some(place) = from.filter(|_| !self.is_stopping()) {
                let (objects, part) = (self.clone(), partition.clone());
                let looked = blocking(move || {
                    let repairs = &objects.repairs;
                    let wanted = |layout: &_| repairs.may_be_broken(layout);
                    let (holders, next) = part.holders(place, REPAIR_LOOKS, wanted)?;
                    let (mut entered, mut damaged) = (0, Vec::new());
                    for holder in &holders {
                        entered += objects.queue_damaged(&part, holder, &mut damaged);
                    }
                    Ok::<_, cellar_volume::Error>((entered, damaged, next))
                });
                match looked.await {
                    Ok((entered, more, next)) => {
                        found += entered;
                        damaged.extend(more);
                        from = next;
                    }
                    Err(cause) => {
                        all = false;
                        warn!(%cause, "cannot examine a partition for objects to repair");
                        break;
                    }
                }
                // Lets other tasks run between two parts.
                tokio::task::yield_now().await;
            }
        }
        if all && !self.is_stopping() {
            self.repairs.keep_damaged(&before, &damaged);
        }
        found
    }

    /// Queues the broken objects of a version of a file, and adds the damaged ones to `damaged`.
    fn queue_damaged(
        &self,
        partition: &Arc<Partition>,
        holder: &Holder,
        damaged: &mut Vec<(u32, ObjectId)>,
    ) -> usize {
        let Holder {
            fid,
            length,
            layout,
            ..
        } = holder;
        let mut volume = None;
        let mut entered = 0;
        for (place, placed) in layout.objects.iter().enumerate() {
            let object = layout.object(fid.vnode, fid.uniquifier, placed);
            if !self.repairs.is_broken(placed, object) {
                continue;
            }
            if self.repairs.is_damaged(placed.osd, object) {
                damaged.push((placed.osd, object));
            }
            let volume = *volume.get_or_insert_with(|| {
                let seen = partition.volume(fid.volume).ok().flatten();
                let first = seen.and_then(|seen| first_of(partition, &seen));
                first.unwrap_or(fid.volume)
            });
            let broken = DamagedObject::of(Fid { volume, ..*fid }, placed);
            let bytes = cellar_objects::arithmetic::length_at(&layout.shape, place, *length);
            self.repairs.add(broken, bytes);
            entered += 1;
        }
        entered
    }
}

/// The RW volume of a group, or the first of its clones.
fn first_of(partition: &Partition, volume: &Volume) -> Option<VolumeId> {
    partition.group_of(volume).into_iter().next()
}
