//! Removal of versions of objects that are no longer needed.
//!
//! Every store leaves the earlier versions on the devices, and a removed file leaves its objects.
//! This server knows which of them are still needed: the versions that the volume and its clones
//! name, and those that are being read. So after a store or removal is durable, the devices are
//! told in the background. One call to a device covers many files. Nothing depends on these calls.
//! Garbage collection finds the versions that remain because a device is missing or the queue is
//! full.
//!
//! This server does not know the references of volumes on other servers, nor those of copies under
//! other ids. A volume whose layouts went to another server remembers the last version at that time
//! (`VolumeInfo::shared`, set by [`super::lending`] before they leave). Versions that are not newer
//! are left to garbage collection, which asks all servers. So a release keeps the versions that its
//! RO sites read, and each release leaves at most one version of a file behind.
//!
//! The needed versions are taken from the same volume object that had the layout. A newer volume
//! with the same id, as after a move away and back, does not yet know files that still have to
//! arrive. It would report that nothing is needed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Weak};

use cellar_rpc::{CallError, blocking};
use cellar_volume::{Error, Volume};
use cellar_wire::List;
use cellar_wire::ids::Fid;
use cellar_wire::object::{Layout, ObjectId};
use cellar_wire::osd::{Examine, NAMED_MAX, Needed, Prune, Remove};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tracing::debug;

use super::Objects;
use super::figures::Counters;
use super::limits::{PRUNE_PAUSE, PRUNES_MAX, REMOVE_FAILED_PATIENCE};
use super::pending_versions::VersionGuard;
use super::storage::Storage;
use super::store_locks::StoreLock;

/// Files whose old versions are to be removed.
#[derive(Debug, Default)]
pub(crate) struct Prunes {
    waiting: Mutex<BTreeMap<Fid, Former>>,
    more: Notify,
}

/// Layouts that a file had earlier.
#[derive(Debug)]
struct Former {
    /// The file's volume at that time.
    volume: Weak<Volume>,
    layouts: Vec<Arc<Layout>>,
}

impl Former {
    fn of(volume: &Arc<Volume>) -> Self {
        Self {
            volume: Arc::downgrade(volume),
            layouts: Vec::new(),
        }
    }

    fn is_of(&self, volume: &Arc<Volume>) -> bool {
        std::ptr::eq(self.volume.as_ptr(), Arc::as_ptr(volume))
    }
}

/// Layouts of one file that are remembered. Objects of further layouts are found by garbage
/// collection.
const LAYOUTS_MAX: usize = 8;

impl Prunes {
    /// Queues the old layout of a file in a writable volume, after the file got another one.
    pub(crate) fn queue(&self, volume: &Arc<Volume>, fid: Fid, old: Arc<Layout>) {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= PRUNES_MAX && !waiting.contains_key(&fid) {
            return;
        }
        let former = waiting.entry(fid).or_insert_with(|| Former::of(volume));
        if !former.is_of(volume) {
            *former = Former::of(volume);
        }
        let layouts = &mut former.layouts;
        let same = |known: &Arc<Layout>| objects(known) == objects(&old);
        match layouts.iter().position(same) {
            // The newer layout has more information.
            Some(place) => layouts[place] = old,
            None if layouts.len() < LAYOUTS_MAX => layouts.push(old),
            None => {}
        }
        drop(waiting);
        self.more.notify_one();
    }

    fn take(&self) -> BTreeMap<Fid, Former> {
        std::mem::take(&mut *self.waiting.lock())
    }
}

/// The objects by which layouts are compared.
fn objects(layout: &Layout) -> Vec<(u32, u32)> {
    let placed = layout.objects.iter();
    placed.map(|placed| (placed.osd, placed.serial)).collect()
}

/// The needed versions of an object, and whether other servers may need older ones.
struct NeededVersions {
    osd: u32,
    needed: Needed,
    /// Versions up to this one may be known to other servers.
    shared: u64,
    /// The file no longer has this object. If no version of it is needed, the whole object is
    /// removed.
    is_gone: bool,
}

impl Objects {
    /// Tells devices which versions are no longer needed, until the server stops.
    pub(crate) async fn prune_in_background(self: Arc<Self>) {
        while !self.is_stopping() {
            let more = self.prunes.more.notified();
            let files = self.prunes.take();
            if files.is_empty() {
                let _woken = tokio::time::timeout(PRUNE_PAUSE * 50, more).await;
                continue;
            }
            self.prune(files).await;
            // Several stores of one file often follow each other; the pause lets one call cover
            // them.
            tokio::time::sleep(PRUNE_PAUSE).await;
        }
    }

    async fn prune(self: &Arc<Self>, files: BTreeMap<Fid, Former>) {
        let Some(storage) = self.storage() else {
            return;
        };
        let objects = self.clone();
        let all = blocking(move || {
            let mut all = Vec::new();
            for (fid, former) in files {
                match objects.wanted_of(fid, &former) {
                    Ok(wanted) => all.extend(wanted),
                    Err(cause) => debug!(%fid, %cause, "old versions are not removed now"),
                }
            }
            all
        })
        .await;
        let mut needs: HashMap<u32, Vec<Needed>> = HashMap::new();
        let mut gone: HashMap<u32, Vec<(ObjectId, u64)>> = HashMap::new();
        // Devices that did not answer in this round, so that objects of other files do not wait for
        // them again.
        let mut silent = HashSet::new();
        for mut wanted in all {
            let osd = wanted.osd;
            if wanted.shared >= 1 {
                if silent.contains(&osd) {
                    continue;
                }
                match keep_shared(storage, &mut wanted).await {
                    Ok(true) => {}
                    Ok(false) => continue,
                    Err(cause) => {
                        if is_silent(storage, osd, &cause) {
                            silent.insert(osd);
                        }
                        continue;
                    }
                }
            }
            if wanted.is_gone && wanted.needed.keep.is_empty() {
                let objects = gone.entry(wanted.osd).or_default();
                objects.push((wanted.needed.object, 0));
            } else {
                needs.entry(wanted.osd).or_default().push(wanted.needed);
            }
        }
        needs.retain(|osd, _| !silent.contains(osd));
        gone.retain(|osd, _| !silent.contains(osd));
        self.prune_at(needs).await;
        for (osd, objects) in gone {
            remove(storage, osd, &objects, 0).await;
        }
        Counters::count(&self.counters.pruned);
    }

    /// Removes versions on all these devices in parallel, so that a silent device delays no other.
    async fn prune_at(self: &Arc<Self>, needs: HashMap<u32, Vec<Needed>>) {
        let mut calls = JoinSet::new();
        for (osd, needed) in needs {
            let objects = self.clone();
            calls.spawn_local(async move {
                if let Some(storage) = objects.storage() {
                    prune(storage, osd, &needed).await;
                }
            });
        }
        while calls.join_next().await.is_some() {}
    }

    /// Removes the data of a failed store, which no record names, even on devices that keep removed
    /// objects. Most likely one of the devices is full. The store keeps its lock until then,
    /// because the next store may use the same objects.
    pub(crate) fn remove_failed_store(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        fid: Fid,
        next: Layout,
        (store_lock, version_guard): (StoreLock, VersionGuard),
    ) {
        let objects = self.clone();
        let former = Former::of(volume);
        drop(version_guard);
        tokio::task::spawn_local(async move {
            // The rest is left to garbage collection.
            let removed = objects.remove_failed_now(former, fid, next);
            let _late = tokio::time::timeout(REMOVE_FAILED_PATIENCE, removed).await;
            drop(store_lock);
        });
    }

    async fn remove_failed_now(self: &Arc<Self>, mut former: Former, fid: Fid, next: Layout) {
        let objects = self.clone();
        let found = blocking(move || {
            let found = objects.writable_volume(fid, &former)?;
            Ok::<_, Error>(found.map(|_| former))
        });
        let Ok(Some(found)) = found.await else {
            // The volume went to another server, which may write the same objects, with versions by
            // its own clock.
            return;
        };
        former = found;
        let mut made: HashMap<u32, Vec<Needed>> = HashMap::new();
        for placed in next.objects.iter().filter(|placed| placed.version == 0) {
            // The object was made by this store, and disappears with its last version. It is not
            // removed as an object. A device may execute a call after the caller gave up. By then
            // the next store may have made the same object in a newer version.
            let needed = Needed {
                object: next.object(fid.vnode, fid.uniquifier, placed),
                keep: List::default(),
                below: next.version.saturating_add(1),
            };
            made.entry(placed.osd).or_default().push(needed);
        }
        let mut files = BTreeMap::new();
        if next.objects.iter().any(|placed| placed.version != 0) {
            former.layouts.push(Arc::new(next));
            files.insert(fid, former);
        }
        let written = async {
            if !files.is_empty() {
                self.prune(files).await;
            }
        };
        tokio::join!(self.prune_at(made), written);
    }

    /// The volume of a file that had those layouts, if it is still on this server and writable.
    fn writable_volume(
        &self,
        fid: Fid,
        former: &Former,
    ) -> cellar_volume::Result<Option<Arc<Volume>>> {
        let found = self.volumes.find(fid.volume)?;
        let volume = found.map(|(_, attached)| attached.volume);
        Ok(volume.filter(|volume| {
            former.is_of(volume) && volume.is_writable() && !volume.is_restoring()
        }))
    }

    /// The versions that are still needed, for the objects of layouts that a file had.
    fn wanted_of(&self, fid: Fid, former: &Former) -> cellar_volume::Result<Vec<NeededVersions>> {
        let Some(volume) = self.writable_volume(fid, former)? else {
            return Ok(Vec::new());
        };
        let present = present(&volume, fid)?;
        let seen = volume.visible_layouts(fid.vnode)?;
        if volume.is_restoring() {
            // A restore has begun: files that it will bring back are not there.
            return Ok(Vec::new());
        }
        // Read after the layouts: a task that hands out layouts keeps them until it has stored
        // `shared`.
        let info = volume.info();
        // Read after the layouts: a reader checks the layout again after it has registered.
        let read = self.open_reads.of(
            Fid {
                volume: info.id,
                ..fid
            },
            self.wall().as_secs(),
        );
        let mut done = HashSet::new();
        let mut all = Vec::new();
        // For borrowed objects, this server does not know the newer versions.
        let all_known = former.layouts.iter().chain(present.iter());
        let is_ours =
            |layout: &&Arc<Layout>| layout.volume == info.id && layout.version > info.borrowed;
        for layout in all_known.filter(is_ours) {
            for placed in layout.objects.iter() {
                if placed.version == 0 || !done.insert((placed.osd, placed.serial)) {
                    continue;
                }
                let versions = seen
                    .iter()
                    .filter(|seen| seen.volume == layout.volume)
                    .flat_map(|seen| seen.objects.iter())
                    .filter(|other| (other.osd, other.serial) == (placed.osd, placed.serial))
                    .map(|other| other.version);
                let read = read.iter().filter(|(serial, _)| *serial == placed.serial);
                let mut keep: Vec<u64> =
                    versions.chain(read.map(|(_, version)| *version)).collect();
                keep.sort_unstable();
                keep.dedup();
                let Ok(keep) = List::try_from(keep) else {
                    // The list of needed versions does not fit into the call.
                    continue;
                };
                // A store in progress writes a newer version than the file has.
                let below = match &present {
                    Some(present) => present.version.max(layout.version),
                    None => layout.version,
                };
                all.push(NeededVersions {
                    osd: placed.osd,
                    needed: Needed {
                        object: ObjectId {
                            volume: layout.volume,
                            vnode: fid.vnode,
                            uniquifier: fid.uniquifier,
                            serial: placed.serial,
                        },
                        keep,
                        below: below.saturating_add(1),
                    },
                    shared: info.shared,
                    is_gone: !present.as_ref().is_some_and(|present| {
                        let mut objects = present.objects.iter();
                        present.volume == layout.volume
                            && objects.any(|p| (p.osd, p.serial) == (placed.osd, placed.serial))
                    }),
                });
            }
        }
        Ok(all)
    }
}

/// The present layout of a file, if it exists and is in objects.
fn present(volume: &Volume, fid: Fid) -> cellar_volume::Result<Option<Arc<Layout>>> {
    match volume.layout(fid) {
        Ok(layout) => Ok(layout),
        Err(Error::NoVnode(_)) => Ok(None),
        Err(other) => Err(other),
    }
}

/// Adds the versions that other servers may need to those that stay. Returns `false` if they do not
/// fit into the call.
async fn keep_shared(storage: &Storage, wanted: &mut NeededVersions) -> Result<bool, CallError> {
    let connection = reachable(storage, wanted.osd).ok_or(CallError::Dead)?;
    let call = Examine {
        capability: storage.capability(wanted.osd),
        object: wanted.needed.object,
    };
    let reply = connection.call(&call).await?;
    for known in reply.info.versions.iter() {
        let version = known.version;
        if version <= wanted.shared
            && !wanted.needed.keep.contains(&version)
            && wanted.needed.keep.push(version).is_err()
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes versions. Returns the number of freed bytes.
pub(crate) async fn prune(storage: &Storage, osd: u32, needed: &[Needed]) -> u64 {
    let mut freed = 0;
    for part in needed.chunks(NAMED_MAX) {
        let Some(connection) = reachable(storage, osd) else {
            break;
        };
        let call = Prune {
            capability: storage.capability(osd),
            needed: List::from_iter_cut(part.iter().cloned()),
        };
        match connection.call(&call).await {
            Ok(reply) => freed += reply.freed,
            Err(cause) if is_silent(storage, osd, &cause) => break,
            Err(_) => {}
        }
    }
    freed
}

/// Removes objects. A device may be configured to keep them for a while, unless `flags`
/// (`REMOVE_*`) override that. Returns the number of their bytes.
pub(crate) async fn remove(
    storage: &Storage,
    osd: u32,
    objects: &[(ObjectId, u64)],
    flags: u32,
) -> u64 {
    let mut freed = 0;
    for part in objects.chunks(NAMED_MAX) {
        let Some(connection) = reachable(storage, osd) else {
            break;
        };
        let call = Remove {
            capability: storage.capability(osd),
            objects: List::from_iter_cut(part.iter().map(|(object, _)| *object)),
            flags,
        };
        match connection.call(&call).await {
            Ok(_) => freed += part.iter().map(|(_, bytes)| bytes).sum::<u64>(),
            Err(cause) if is_silent(storage, osd, &cause) => break,
            Err(_) => {}
        }
    }
    freed
}

/// A connection to a device that is not known to be dead.
fn reachable(storage: &Storage, osd: u32) -> Option<cellar_rpc::Connection> {
    let away = storage.devices.condition(osd) == cellar_objects::Condition::Dead;
    storage.devices.connection(osd).filter(|_| !away)
}

/// Whether a device failed to answer at all. Its unneeded versions stay until garbage collection
/// finds them.
fn is_silent(storage: &Storage, osd: u32, cause: &CallError) -> bool {
    debug!(osd, %cause, "unneeded versions stay until garbage collection");
    let is_silent = cause.is_unreachable();
    if is_silent {
        storage.devices.failed(osd, cause);
    }
    is_silent
}
