//! A volume as it was at one moment, for dumps: it can be read to the end while the volume is
//! changed.
//!
//! Freezing costs the same for every volume. For a head the present epoch ends and the next begins:
//! one record. A clone is frozen already. The epoch is held in memory, so no version that was seen
//! then is removed, even if the volume is removed or replaced meanwhile. A crash simply forgets the
//! hold. When the frozen volume is dropped, the versions that only it saw are removed in the
//! background. The job for that is in the table from the beginning, and waits.
//!
//! Lists of vnodes are read in pages of the table, and bodies a piece at a time. So memory is
//! limited, and no state of the base is held while a slow receiver works.
//!
//! The contents of a frozen volume have a permanent name ([`StateId`]): the epoch that ended, and
//! the lineage of its group. The name is given out only when a power cut can no longer undo it.

use std::sync::Arc;

use bytes::Bytes;
use cellar_wire::ids::{AfsTime, Fid, Uniquifier, VnodeId};

use crate::background::reap::stage_epochs;
use crate::engine::batch::Batch;
use crate::engine::key::Key;
use crate::error::{Error, Result};
use crate::record::{CountersRecord, EPOCH_MAX, Received, VnodeRecord};
use crate::state::core::{Core, GroupId};
use crate::state::hold::Hold;
use crate::types::{StateId, VnodeImage, VolumeInfo};
use crate::versions::{Version, Versions};
use crate::volume::Volume;

mod body;

pub use body::{Body, Content, Part};

/// A volume as it was when it was frozen. Clones of this value share the moment; dropping the last
/// one ends it.
#[derive(Clone, Debug)]
pub struct Frozen {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    /// Reads at the frozen epoch; it cannot be looked up by its id.
    pub(crate) volume: Arc<Volume>,
    info: VolumeInfo,
    counters: CountersRecord,
    lineage: [u8; 16],
    received: Option<Received>,
    /// Whether the head of the group was frozen, not a clone.
    is_head: bool,
    /// Whether the state is durable, so that its name may be given out.
    is_durable: bool,
    _hold: Hold,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:?} frozen at epoch {}",
            self.volume,
            self.volume.view()
        )
    }
}

/// The vnodes to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// All vnodes, with their contents.
    Everything,
    /// All vnodes; with contents only those that the server changed at that date or later. As in a
    /// dump from a date.
    Date(AfsTime),
    /// Only vnodes that changed after this epoch of the group, with their contents.
    Epoch(u64),
    /// All vnodes; with contents only those that changed after this epoch of the group.
    AllOfEpoch(u64),
}

/// A vnode of a frozen volume.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Number.
    pub vnode: VnodeId,
    /// Distinguishes several uses of the number.
    pub uniquifier: Uniquifier,
    /// The vnode without its body; `None` if it exists and has not changed.
    pub image: Option<VnodeImage>,
    pub(crate) record: Box<VnodeRecord>,
    pub(crate) epoch: u64,
}

impl Listed {
    /// The vnode without its body, whether it has changed or not: dumps in the old form have every
    /// directory completely.
    pub fn whole(&self) -> VnodeImage {
        self.record.image(self.vnode)
    }

    /// Returns whether the vnode did not exist at the end of that epoch, under this uniquifier.
    pub fn is_new_since(&self, epoch: u64) -> bool {
        self.record.birth > epoch
    }
}

impl Volume {
    /// Freezes the volume as it is now. Changes go on; the frozen volume does not see them.
    ///
    /// This also works on a partition that has stopped, so that its contents can be saved, but then
    /// the state has no name. `NoVolume` if the volume was deleted.
    pub fn freeze(self: &Arc<Self>) -> Result<Frozen> {
        let core = &self.core;
        let engine = &core.engine;
        let room = match engine.admit(0) {
            Err(Error::Stopped(_)) => None,
            other => Some(other?),
        };
        let group = &self.group;
        let mut state = group.state.write();
        self.check_not_deleted()?;
        let info = self.info();
        let counters = match engine.get(&Key::counters(group.id.0))? {
            Some(value) => CountersRecord::decode(&value)?,
            None => return Err(Error::Format(format!("{self:?} has no counters"))),
        };
        let mut record = state.record.clone();
        let mut batch = Batch::new();
        let mut view = self.view();
        let mut reaping = 0;
        if view == EPOCH_MAX {
            view = record.epoch;
            if room.is_some() && !core.has_changes(group.id, view)? {
                // The present state is that of the epoch before.
                view -= 1;
            } else if room.is_some() {
                record.epoch += 1;
            }
            let is_seen = record.clones.iter().any(|clone| clone.epoch == view);
            if room.is_some() && !is_seen {
                reaping = stage_epochs(engine, &mut batch, group, view + 1, u64::MAX)?;
            }
        }
        let durable = if room.is_some() {
            batch.put(Key::group(group.id.0), record.encode());
            Some(engine.commit_durably(batch)?)
        } else {
            None
        };
        state.record = record;
        state.reaping += reaping;
        let hold = Hold::of(core, group, view);
        let lineage = state.record.lineage;
        let mut volume_record = self.record().read().clone();
        let mut received = volume_record.received;
        drop(state);
        if let Some(head) = core.head_of(group)? {
            received = head.record().read().received.or(received);
        }
        volume_record.epoch = view;
        let is_durable = match durable {
            Some(ticket) => ticket.wait().is_ok(),
            None => false,
        };
        let group = Arc::clone(group);
        let volume = Volume::new(core, group, volume_record, counters, view);
        Ok(Frozen {
            inner: Arc::new(Inner {
                volume: Arc::new(volume),
                info,
                counters,
                lineage,
                received,
                is_head: self.is_head(),
                is_durable,
                _hold: hold,
            }),
        })
    }
}

impl Core {
    /// Returns whether anything was changed in an epoch, which is the present one and not the
    /// first.
    fn has_changes(&self, group: GroupId, epoch: u64) -> Result<bool> {
        if epoch == 1 {
            return Ok(true);
        }
        let prefix = Key::change_prefix(group.0, epoch);
        // Every removal changes a directory too, but a completely restored volume may have no such
        // change.
        let removed = Key::removed_prefix(group.0, epoch);
        let changed = self.engine.scan(&prefix, &prefix)?.next()?.is_some();
        Ok(changed || self.engine.scan(&removed, &removed)?.next()?.is_some())
    }
}

impl Frozen {
    /// Everything that was known about the volume.
    pub fn info(&self) -> &VolumeInfo {
        &self.inner.info
    }

    /// The next uniquifier that the volume would have given out.
    pub fn next_uniquifier(&self) -> Uniquifier {
        Uniquifier(self.inner.counters.next_uniquifier)
    }

    /// The name of this state. `None` if it is not certain: on a partition that has stopped, the
    /// next start may find another state.
    pub fn state(&self) -> Option<StateId> {
        self.inner.is_durable.then(|| StateId {
            lineage: self.inner.lineage,
            epoch: self.view(),
        })
    }

    /// The list to make for a receiver that has exactly this state. `None` if the changes since
    /// then are not known, or not any more.
    pub fn since(&self, state: &StateId) -> Option<Since> {
        let epoch = self.epoch_of(state)?;
        (epoch >= self.history_from()).then_some(Since::Epoch(epoch))
    }

    /// The list to make for a receiver that has exactly this state, if the removals since then are
    /// not known, as after a restore. All vnodes are listed, so that the removed ones are found.
    /// `None` if nothing is known of the state. Dates are of no use: restored vnodes have their old
    /// dates.
    pub fn all_since(&self, state: &StateId) -> Option<Since> {
        self.epoch_of(state).map(Since::AllOfEpoch)
    }

    /// The epoch of the group at whose end the state was.
    fn epoch_of(&self, state: &StateId) -> Option<u64> {
        let epoch = match self.inner.received {
            _ if state.lineage == self.inner.lineage => state.epoch,
            Some(received) if received.state == *state => received.epoch,
            _ => return None,
        };
        (epoch <= self.view()).then_some(epoch)
    }

    fn history_from(&self) -> u64 {
        self.inner.volume.group.state.read().record.history_from
    }

    /// Whether the head of its group was frozen, not a clone.
    pub(crate) fn is_of_head(&self) -> bool {
        self.inner.is_head
    }

    /// The epoch that this sees.
    pub(crate) fn view(&self) -> u64 {
        self.inner.volume.view()
    }

    /// The vnodes, in the order of a dump: directories by ascending numbers, then files and links.
    ///
    /// Reads one record for each vnode that is listed, and hardly more for [`Since::Epoch`]: the
    /// cost is proportional to the changes. Bodies are not read; sizes of dumps can be computed
    /// from this alone.
    pub fn vnodes(&self, since: Since) -> Result<Vnodes> {
        let volume = Arc::clone(&self.inner.volume);
        let group = volume.group.id;
        let changed = match since {
            Since::Epoch(epoch) => volume.core.changed_in(group, epoch + 1..=self.view())?,
            _ => None,
        };
        let source = match changed {
            Some(vnodes) => Source::Some(vnodes.into_iter()),
            None => Source::All(self.versions()),
        };
        Ok(Vnodes {
            frozen: self.clone(),
            since,
            source,
            directories: true,
        })
    }

    /// The vnodes that the volume had at the end of an epoch and does not have any more, in the
    /// order of a dump.
    ///
    /// `Invalid` if not all removals since then are known: see [`Frozen::since`].
    pub fn removed(&self, epoch: u64) -> Result<Vec<VnodeId>> {
        let volume = &self.inner.volume;
        let view = self.view();
        let mut removed = Vec::new();
        let group = volume.group.id;
        for vnode in volume.core.removed_between(group, epoch, view)? {
            if self.record(vnode)?.is_none() {
                removed.push(VnodeId(vnode));
            }
        }
        // Checked after the reading: the limit is raised before anything is forgotten.
        if epoch < self.history_from() {
            return Err(Error::Invalid("the removals since then are forgotten"));
        }
        Ok(removed)
    }

    /// A vnode by its number, if the volume has it, as [`Frozen::vnodes`] lists it.
    pub fn vnode(&self, vnode: VnodeId) -> Result<Option<Listed>> {
        let found = self.record(vnode.0)?;
        Ok(found.map(|(epoch, record)| listed(vnode.0, epoch, record, true)))
    }

    /// All vnodes.
    fn versions(&self) -> Versions {
        let volume = &self.inner.volume;
        let viewers = vec![self.view()];
        Versions::of_vnodes(
            &volume.core.engine,
            volume.group.id,
            VnodeId::ROOT.0,
            viewers,
        )
    }

    fn record(&self, vnode: u32) -> Result<Option<(u64, VnodeRecord)>> {
        let volume = &self.inner.volume;
        let group = volume.group.id.0;
        let prefix = Key::vnode_prefix(group, vnode);
        let from = Key::vnode(group, vnode, self.view());
        match volume.core.engine.first_version(&from, &prefix)? {
            Some((key, value)) => decode(volume, &key, &value),
            None => Ok(None),
        }
    }
}

/// Decodes a version of a vnode; `None` if the vnode does not exist in it.
fn decode(volume: &Volume, key: &Key, value: &Bytes) -> Result<Option<(u64, VnodeRecord)>> {
    match VnodeRecord::decode(value) {
        Ok(Ok(record)) => Ok(Some((key.epoch(), record))),
        Ok(Err(_)) => Ok(None),
        Err(error) => {
            let fid = Fid {
                volume: volume.id(),
                vnode: VnodeId(key.u32_at(5)),
                uniquifier: Uniquifier(0),
            };
            Err(volume.damaged(fid, &error.to_string()))
        }
    }
}

fn listed(vnode: u32, epoch: u64, record: VnodeRecord, whole: bool) -> Listed {
    let vnode = VnodeId(vnode);
    Listed {
        vnode,
        uniquifier: record.uniquifier,
        image: whole.then(|| record.image(vnode)),
        record: Box::new(record),
        epoch,
    }
}

/// Vnodes of a frozen volume, in order.
#[derive(Debug)]
pub struct Vnodes {
    frozen: Frozen,
    since: Since,
    source: Source,
    /// Whether this is the first of the two passes over all vnodes.
    directories: bool,
}

enum Source {
    /// These vnodes.
    Some(std::vec::IntoIter<u32>),
    /// All visible vnodes: one pass for the directories, one for the others.
    All(Versions),
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Some(_) => "Some",
            Self::All(_) => "All",
        })
    }
}

impl Vnodes {
    /// The next vnode; `None` after the last.
    ///
    /// `Io` names a vnode whose record is damaged; the next call goes on behind it.
    #[expect(
        clippy::should_implement_trait,
        reason = "like every reader here: an error is no item"
    )]
    pub fn next(&mut self) -> Result<Option<Listed>> {
        loop {
            let Some((vnode, found)) = self.next_record()? else {
                return Ok(None);
            };
            let Some((epoch, record)) = found else {
                continue;
            };
            let whole = match self.since {
                Since::Everything => true,
                Since::Date(date) => record.server_time >= date,
                Since::Epoch(since) if epoch <= since => continue,
                Since::Epoch(_) => true,
                Since::AllOfEpoch(since) => epoch > since,
            };
            return Ok(Some(listed(vnode, epoch, record, whole)));
        }
    }

    /// The next vnode that may be wanted, with its record if the vnode exists.
    #[expect(clippy::type_complexity, reason = "a pair within a pair, once")]
    fn next_record(&mut self) -> Result<Option<(u32, Option<(u64, VnodeRecord)>)>> {
        let volume = &self.frozen.inner.volume;
        loop {
            let seen = match &mut self.source {
                Source::Some(vnodes) => {
                    let Some(vnode) = vnodes.next() else {
                        return Ok(None);
                    };
                    return Ok(Some((vnode, self.frozen.record(vnode)?)));
                }
                Source::All(seen) => seen,
            };
            let next = seen.next_visible()?;
            // Numbers of directories are given out in order: behind the last one there are only
            // files.
            let end = self.frozen.inner.counters.next_directory;
            match next {
                Some(Version { key, value, .. }) if !self.directories || key.u32_at(5) < end => {
                    let vnode = key.u32_at(5);
                    if VnodeId(vnode).is_directory() == self.directories {
                        return Ok(Some((vnode, decode(volume, &key, &value)?)));
                    }
                }
                _ if self.directories => {
                    self.directories = false;
                    *seen = self.frozen.versions();
                }
                _ => return Ok(None),
            }
        }
    }
}
