//! Garbage collection: objects, and versions of objects, that no volume of the cell names.
//!
//! The records of a file server contain the versions that it names. The devices, and the objects on
//! them, do not belong to one file server. So for each RW volume, the server that has it compares
//! two lists. One has the objects on the devices in the name of that volume. The other has the
//! references to them on all file servers of the cell. Nothing is removed unless it is certainly
//! garbage:
//!
//! 1. *The devices are listed first.* Objects made after that are not judged.
//! 2. *All file servers are asked*, not only those of the volume's family: a copy under another id
//!    names the same objects. The collection stops if a server does not answer. It also stops if a
//!    server lacks a volume that the location database lists there (a partition is missing).
//! 3. *They are asked twice.* A reference that moves from one server to another (a move, a release)
//!    may be missed by one round. It left the first server before the question, and reached the
//!    second one after it. The next round finds it.
//! 4. *The entry in the location database* must not be locked, nor change from before the first
//!    round until after the second. So the family is not moved, released or restored in the
//!    meantime.
//! 5. The references of a server include the versions that stores and repairs are making
//!    ([`super::pending_versions`]), and those that are being read ([`super::open_reads`]). *Under
//!    the store lock of the file*, this server's references are read once more. Only then are the
//!    devices told. So no store makes a version in between that is older than the garbage, by a
//!    clock that was set back.
//! 6. *Grace*: objects that were written recently are never removed.
//!
//! A version that no volume names cannot be named again. So a certain decision remains valid: a
//! crash at any point leaves garbage, which the next round finds. Missing devices are skipped.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cellar_objects::Condition;
use cellar_rpc::{CallError, blocking};
use cellar_wire::afsosd::{Collected, Garbage, HaveVolumes, ListReferences};
use cellar_wire::ids::{Fid, Uniquifier, VnodeId, VolumeId};
use cellar_wire::object::ObjectId;
use cellar_wire::osd::{ListObjects, NAMED_MAX, Needed, ObjectInfo};
use cellar_wire::osddb::OSD_OBSOLETE;
use cellar_wire::{AbortCode, List};
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::Objects;
use super::cell::{CellServer, Family, Upkeep};
use super::failure::Failure;
use super::garbage::{Age, References, Verdict, verdict_on};
use super::limits::{COLLECT_FILES, COLLECT_LOCK_PATIENCE, COLLECT_OBJECTS, COLLECT_PAUSE};
use super::prune::{prune, remove};
use super::{Counters, LOCAL_DISK, Storage};

/// References requested in one call.
const REFERENCES: u32 = 2048;
/// The largest vnode number.
const LAST: VnodeId = VnodeId(u32::MAX);
/// The collection is the task of another server.
const NOT_HERE: Failure = Failure::Code(AbortCode::EXDEV);

/// Objects of some vnodes of a volume, on all devices that answer.
#[derive(Default)]
struct Listed {
    found: Vec<(u32, ObjectInfo)>,
    /// The last vnode for which the list is complete.
    end: Option<VnodeId>,
    away: Vec<u32>,
}

/// A file and its objects on devices.
type FileObjects = ((VnodeId, Uniquifier), Vec<(u32, ObjectInfo)>);

/// The reason why the result is not certain.
enum Incomplete {
    Silent(Vec<IpAddr>),
    Failed(Failure),
}

impl Objects {
    /// Collects the garbage among the objects of an RW volume, for some vnodes after `after`. With
    /// `dry`, only lists it.
    pub async fn collect_garbage(
        self: &Arc<Self>,
        volume: VolumeId,
        after: VnodeId,
        grace: Duration,
        dry: bool,
    ) -> Result<Collected, Failure> {
        let storage = self.needed()?;
        let upkeep = self.upkeep.get();
        let cell = &upkeep.ok_or(Failure::Code(AbortCode::ENOSYS))?.servers;
        let failed = |cause: CallError| Failure::Call(cause.code());
        let servers = cell.servers().await.map_err(failed)?;
        let family = cell.family(volume).await.map_err(failed)?;
        if !self.collects(&servers, family.as_ref()) {
            return Err(NOT_HERE);
        }
        let mut collected = Collected::default();
        if family.as_ref().is_some_and(|family| family.locked) {
            collected.changing = true;
            return Ok(collected);
        }
        let listed = list(storage, volume, after).await;
        collected.away = List::from_iter_cut(listed.away.iter().copied());
        collected.looked = listed.found.len() as u64;
        collected.next = listed.end.map_or(0, |end| end.0);
        if listed.found.is_empty() {
            return Ok(collected);
        }
        let range = (after, listed.end.unwrap_or(LAST));
        let mut named = References::default();
        for _ in 0..2 {
            let round = self.ask_all(&servers, family.as_ref(), volume, range, &mut named);
            match round.await {
                Ok(()) => {}
                Err(Incomplete::Failed(refusal)) => return Err(refusal),
                Err(Incomplete::Silent(silent)) => {
                    let silent = silent.into_iter().map(cellar_objects::words_of);
                    collected.silent = List::from_iter_cut(silent);
                    return Ok(collected);
                }
            }
        }
        if cell.family(volume).await.map_err(failed)? != family
            || cell.servers().await.map_err(failed)? != servers
        {
            collected.changing = true;
            return Ok(collected);
        }
        let age = Age {
            now: self.wall(),
            grace,
        };
        let mut files: BTreeMap<(VnodeId, Uniquifier), Vec<(u32, ObjectInfo)>> = BTreeMap::new();
        for (osd, info) in listed.found {
            match verdict_on(osd, &info, &[&named], age) {
                Verdict::Stays(young) => collected.young += u64::from(young),
                verdict if dry => note(&mut collected, &verdict),
                _ => {
                    let file = (info.object.vnode, info.object.uniquifier);
                    files.entry(file).or_default().push((osd, info));
                }
            }
        }
        let needs_head = family.is_some_and(|family| family.sites.iter().any(|s| s.read_write));
        let files: Vec<FileObjects> = files.into_iter().collect();
        for batch in files.chunks(COLLECT_FILES) {
            self.remove_garbage(
                storage,
                volume,
                needs_head,
                batch,
                &named,
                age,
                &mut collected,
            )
            .await?;
        }
        Ok(collected)
    }

    /// Whether this server collects the garbage of a family.
    fn collects(&self, servers: &[CellServer], family: Option<&Family>) -> bool {
        let Some(me) = servers.iter().find(|server| server.uuid == Some(self.uuid)) else {
            return false;
        };
        let sites = family.map(|family| &family.sites[..]).unwrap_or_default();
        let head = sites.iter().find(|site| site.read_write);
        match head.or(sites.first()) {
            Some(site) => me.addresses.contains(&site.server),
            None => {
                servers.iter().flat_map(|server| &server.addresses).min()
                    == me.addresses.iter().min()
            }
        }
    }

    /// Adds the references of all file servers.
    async fn ask_all(
        self: &Arc<Self>,
        servers: &[CellServer],
        family: Option<&Family>,
        volume: VolumeId,
        range: (VnodeId, VnodeId),
        named: &mut References,
    ) -> Result<(), Incomplete> {
        let sites = family.map(|family| &family.sites[..]).unwrap_or_default();
        let known = |address: &IpAddr| servers.iter().any(|s| s.addresses.contains(address));
        let mut silent: Vec<IpAddr> = sites
            .iter()
            .map(|site| site.server)
            .filter(|address| !known(address))
            .collect();
        for server in servers {
            let at = |site: &&super::cell::FamilySite| server.addresses.contains(&site.server);
            let volumes: Vec<VolumeId> = sites
                .iter()
                .filter(at)
                .flat_map(|site| site.volumes.iter().copied())
                .collect();
            let answered = match server.uuid == Some(self.uuid) {
                true => self.ask_self(volume, &volumes, range, named).await?,
                false => self.ask_other(server, volume, &volumes, range, named).await,
            };
            if !answered {
                silent.extend(server.addresses.first());
            }
        }
        match silent.is_empty() {
            true => Ok(()),
            false => Err(Incomplete::Silent(silent)),
        }
    }

    async fn ask_self(
        self: &Arc<Self>,
        volume: VolumeId,
        volumes: &[VolumeId],
        range: (VnodeId, VnodeId),
        named: &mut References,
    ) -> Result<bool, Incomplete> {
        let (objects, volumes) = (self.clone(), volumes.to_vec());
        let asked = blocking(move || {
            if objects.have(&volumes)?.len() != volumes.len() {
                return Ok(None);
            }
            objects.references_in(volume, range).map(Some)
        });
        let found = asked.await.map_err(Incomplete::Failed)?;
        let answered = found.is_some();
        for found in found.unwrap_or_default() {
            named.add((found.osd, found.object, found.version));
        }
        Ok(answered)
    }

    /// Adds the references of another file server. Returns `false` if its answers are not complete.
    async fn ask_other(
        &self,
        server: &CellServer,
        volume: VolumeId,
        volumes: &[VolumeId],
        range: (VnodeId, VnodeId),
        named: &mut References,
    ) -> bool {
        let Some(address) = server.addresses.first() else {
            return false;
        };
        let Some(upkeep) = self.upkeep.get() else {
            return false;
        };
        let connection = upkeep.servers.connection(*address);
        let ids = volumes.iter().map(|volume| volume.0);
        let have = HaveVolumes {
            volumes: List::from_iter_cut(ids),
        };
        match connection.call(&have).await {
            Ok(reply) if reply.here.len() == have.volumes.len() => {}
            // A file server that is not Cellar knows no objects and has no references.
            Err(cause) if is_unknown_there(cause.code()) => return true,
            Ok(_) => {
                warn!(server = %address, %volume, "a file server lacks a volume that the VLDB lists there");
                return false;
            }
            Err(cause) => {
                debug!(server = %address, %cause, "a file server does not list its volumes");
                return false;
            }
        }
        let mut after = range.0;
        loop {
            let page = ListReferences {
                volume: volume.0,
                after: Fid::new(0, after.0, 0),
                limit: REFERENCES,
            };
            let page = match connection.call(&page).await {
                Ok(page) => page,
                Err(cause) => {
                    debug!(server = %address, %cause, "a file server does not list its references");
                    return false;
                }
            };
            for found in page.references.iter() {
                named.add((found.osd, found.object, found.version));
            }
            let last = page
                .references
                .last()
                .map_or(after, |last| last.object.vnode);
            if !page.more || last >= range.1 {
                return true;
            }
            if last <= after {
                // It reports more references but makes no progress.
                return false;
            }
            after = last;
        }
    }

    /// This server's references for the vnodes in a range: after the first, up to and including the
    /// last.
    fn references_in(
        &self,
        volume: VolumeId,
        (after, end): (VnodeId, VnodeId),
    ) -> Result<Vec<cellar_volume::Referenced>, Failure> {
        let (mut all, mut from) = (Vec::new(), after);
        loop {
            let (found, more) = self.references(volume, from, REFERENCES as usize)?;
            all.extend(found.into_iter().filter(|found| found.object.vnode <= end));
            match more {
                Some(last) if last < end && last > from => from = last,
                _ => return Ok(all),
            }
        }
    }

    /// The given volumes that are on this server, in any state.
    pub fn have(&self, volumes: &[VolumeId]) -> Result<Vec<VolumeId>, Failure> {
        let mut here = Vec::new();
        for volume in volumes {
            if self.volumes.find(*volume)?.is_some() {
                here.push(*volume);
            }
        }
        Ok(here)
    }

    /// Removes the garbage of some files, under their store locks.
    #[expect(clippy::too_many_arguments, reason = "all that is known of the volume")]
    async fn remove_garbage(
        self: &Arc<Self>,
        storage: &Storage,
        volume: VolumeId,
        needs_head: bool,
        files: &[FileObjects],
        named: &References,
        age: Age,
        collected: &mut Collected,
    ) -> Result<(), Failure> {
        let mut store_locks = Vec::new();
        let mut ours = Vec::new();
        for ((vnode, uniquifier), objects) in files {
            let fid = Fid {
                volume,
                vnode: *vnode,
                uniquifier: *uniquifier,
            };
            match timeout(COLLECT_LOCK_PATIENCE, self.store_locks.wait(fid)).await {
                Ok(Some(store_lock)) => {
                    store_locks.push(store_lock);
                    ours.extend(objects);
                }
                _ => collected.busy += 1,
            }
        }
        let (Some(((first, _), _)), Some(((last, _), _))) = (files.first(), files.last()) else {
            return Ok(());
        };
        let range = (VnodeId(first.0.saturating_sub(1)), *last);
        let objects = self.clone();
        let now = blocking(move || {
            let found = objects.volumes.find(volume)?;
            let is_here = found
                .is_some_and(|(_, found)| found.volume.is_head() && !found.volume.is_restoring());
            if needs_head && !is_here {
                return Ok::<_, Failure>(None);
            }
            objects.references_in(volume, range).map(Some)
        });
        let Some(now) = now.await? else {
            collected.changing = true;
            return Ok(());
        };
        let mut here = References::default();
        for found in now {
            here.add((found.osd, found.object, found.version));
        }
        let (mut prunes, mut removes) = (BTreeMap::new(), BTreeMap::new());
        for (osd, info) in ours {
            let verdict = verdict_on(*osd, info, &[named, &here], age);
            match &verdict {
                Verdict::Stays(_) => continue,
                Verdict::Prune(needed, _) => {
                    let of_device: &mut Vec<Needed> = prunes.entry(*osd).or_default();
                    of_device.push(needed.clone());
                }
                Verdict::Remove(garbage) => {
                    let of_device: &mut Vec<(ObjectId, u64)> = removes.entry(*osd).or_default();
                    of_device.push((garbage.object, garbage.bytes));
                }
            }
            note(collected, &verdict);
        }
        for (osd, needed) in prunes {
            collected.freed += prune(storage, osd, &needed).await;
        }
        for (osd, objects) in removes {
            collected.freed += remove(storage, osd, &objects, 0).await;
        }
        let figures = &self.counters;
        Counters::count(&figures.collections);
        // Other stores may continue.
        drop(store_locks);
        Ok(())
    }

    /// Collects periodically the garbage for which this server is responsible.
    pub(crate) async fn collect_in_background(self: Arc<Self>, upkeep: Upkeep) {
        if upkeep.collect_interval.is_zero() {
            return;
        }
        while !self.is_stopping() {
            tokio::time::sleep(upkeep.collect_interval).await;
            for volume in self.volumes_on_devices().await {
                self.collect_family(volume, upkeep.grace).await;
            }
        }
    }

    async fn collect_family(self: &Arc<Self>, volume: VolumeId, grace: Duration) {
        let (mut after, mut freed, mut pieces) = (VnodeId(0), 0, 0);
        while !self.is_stopping() {
            match self.collect_garbage(volume, after, grace, false).await {
                Ok(collected) => {
                    freed += collected.freed;
                    pieces += collected.garbage.len();
                    let stopped = collected.changing || !collected.silent.is_empty();
                    if stopped {
                        info!(%volume, "not all servers list their references: no garbage is collected");
                    }
                    if stopped || collected.next <= after.0 {
                        break;
                    }
                    after = VnodeId(collected.next);
                }
                Err(Failure::Code(AbortCode::EXDEV)) => return,
                Err(refusal) => {
                    debug!(%volume, ?refusal, "no garbage is collected");
                    return;
                }
            }
            tokio::time::sleep(COLLECT_PAUSE).await;
        }
        if pieces > 0 {
            info!(%volume, pieces, freed, "garbage was collected from object storage devices");
        }
    }

    /// The volumes in whose names there are objects on devices.
    async fn volumes_on_devices(&self) -> Vec<VolumeId> {
        let mut volumes = std::collections::BTreeSet::new();
        let Some(storage) = self.storage() else {
            return Vec::new();
        };
        for osd in in_use(storage) {
            let mut after = ObjectId::default();
            while let Ok((found, _)) = page(storage, osd, VolumeId(0), after, 1).await {
                let Some(first) = found.first().filter(|first| first.object > after) else {
                    break;
                };
                volumes.insert(first.object.volume);
                after = after_vnode(first.object.volume, LAST);
            }
        }
        volumes.into_iter().collect()
    }
}

/// Whether a server does not implement the call.
fn is_unknown_there(code: AbortCode) -> bool {
    matches!(
        code.to_plain(),
        AbortCode::RXGEN_OPCODE | AbortCode::RX_INVALID_OPERATION
    )
}

/// Adds a verdict to the reply.
fn note(collected: &mut Collected, verdict: &Verdict) {
    let garbage: &[Garbage] = match verdict {
        Verdict::Stays(_) => &[],
        Verdict::Prune(_, garbage) => garbage,
        Verdict::Remove(garbage) => std::slice::from_ref(garbage),
    };
    for one in garbage {
        // The reply has a bound; further garbage is omitted.
        let _fits = collected.garbage.push(*one);
    }
}

/// The devices that may have objects, by number.
fn in_use(storage: &Storage) -> Vec<u32> {
    let mut devices: Vec<u32> = storage
        .devices
        .list()
        .into_iter()
        .filter(|listed| listed.entry.id != LOCAL_DISK && listed.entry.flags & OSD_OBSOLETE == 0)
        .map(|listed| listed.entry.id)
        .collect();
    devices.sort_unstable();
    devices
}

/// The position after all objects of a vnode.
fn after_vnode(volume: VolumeId, vnode: VnodeId) -> ObjectId {
    ObjectId {
        volume,
        vnode,
        uniquifier: Uniquifier(u32::MAX),
        serial: u32::MAX,
    }
}

async fn page(
    storage: &Storage,
    osd: u32,
    volume: VolumeId,
    after: ObjectId,
    limit: usize,
) -> Result<(Vec<ObjectInfo>, bool), CallError> {
    if storage.devices.condition(osd) == Condition::Dead {
        return Err(CallError::Dead);
    }
    let connection = storage.devices.connection(osd).ok_or(CallError::Dead)?;
    let call = ListObjects {
        capability: storage.capability(osd),
        volume: volume.0,
        after,
        limit: limit as u32,
        flags: 0,
    };
    match connection.call(&call).await {
        Ok(reply) => Ok((reply.objects.into_vec(), reply.more)),
        Err(cause) => {
            storage.devices.failed(osd, &cause);
            Err(cause)
        }
    }
}

/// The objects on devices in the name of a volume, for some vnodes.
async fn list(storage: &Storage, volume: VolumeId, after: VnodeId) -> Listed {
    let mut listed = Listed::default();
    for osd in in_use(storage) {
        let mut from = after_vnode(volume, after);
        let mut here = Vec::new();
        loop {
            let (found, more) = match page(storage, osd, volume, from, NAMED_MAX).await {
                Ok(page) => page,
                Err(cause) => {
                    debug!(osd, %cause, "a device is skipped by garbage collection");
                    listed.away.push(osd);
                    here.clear();
                    break;
                }
            };
            let last = found.last().map(|info| info.object);
            here.extend(found);
            let Some(last) = last.filter(|last| more && *last > from) else {
                break;
            };
            if here.len() >= COLLECT_OBJECTS {
                // The last vnode may have more objects. It is left for the next call, unless it is
                // the only one.
                let has_others = here.first().is_some_and(|f| f.object.vnode < last.vnode);
                let whole = VnodeId(last.vnode.0 - u32::from(has_others));
                listed.end = Some(listed.end.unwrap_or(LAST).min(whole));
                break;
            }
            from = last;
        }
        listed
            .found
            .extend(here.into_iter().map(|info| (osd, info)));
    }
    let end = listed.end.unwrap_or(LAST);
    listed.found.retain(|(_, info)| info.object.vnode <= end);
    listed
}
