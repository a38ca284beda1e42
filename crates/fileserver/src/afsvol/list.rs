//! ListVolumes (116), XListVolumes (124), ListOneVolume (121), XListOneVolume (125).
//!
//! For a volume in a transaction, only the id and the busy status are returned. Volumes marked to
//! be destroyed are omitted from lists. When requested by id, they are reported as damaged.

use std::sync::Arc;

use cellar_rpc::IncomingCall;
use cellar_volume::{Partition, Traffic, VolumeInfo};
use cellar_wire::afsvol::{
    self, DESTROY_ME, ListOneVolume, ListOneVolumeReply, ListVolumes, ListVolumesReply,
    STATUS_BUSY, STATUS_OK, VolumeInfoX, VolumeName, XListOneVolume, XListOneVolumeReply,
    XListVolumes, XListVolumesReply,
};
use cellar_wire::ids::{PartitionId, VolumeId};
use cellar_wire::serve::Handle;
use cellar_wire::{AbortCode, List};

use super::VolumeService;
use super::status::kind_number;
use super::{code, in_memory, on_disk};
use crate::services::VolumeServices;
use crate::volumes::Volumes;

/// Volumes requested from the store at a time.
const PAGE: usize = 4096;

impl Handle<ListVolumes, IncomingCall> for VolumeService {
    async fn handle(
        &self,
        _: &IncomingCall,
        arguments: ListVolumes,
    ) -> Result<ListVolumesReply, AbortCode> {
        let services = &self.services;
        let ListVolumes { partition, flags } = arguments;
        let entries = every(services, partition, flags).await?;
        Ok(ListVolumesReply {
            entries: List::from_iter_cut(entries),
        })
    }
}

impl Handle<XListVolumes, IncomingCall> for VolumeService {
    async fn handle(
        &self,
        _: &IncomingCall,
        arguments: XListVolumes,
    ) -> Result<XListVolumesReply, AbortCode> {
        let services = &self.services;
        let XListVolumes { partition, flags } = arguments;
        let entries = every(services, partition, flags).await?;
        Ok(XListVolumesReply {
            entries: List::from_iter_cut(entries),
        })
    }
}

impl Handle<ListOneVolume, IncomingCall> for VolumeService {
    async fn handle(
        &self,
        _: &IncomingCall,
        arguments: ListOneVolume,
    ) -> Result<ListOneVolumeReply, AbortCode> {
        let services = &self.services;
        let ListOneVolume { partition, volume } = arguments;
        let entry = entry_of(services, partition, volume).await?;
        Ok(ListOneVolumeReply {
            entries: List::from_iter_cut([entry]),
        })
    }
}

impl Handle<XListOneVolume, IncomingCall> for VolumeService {
    async fn handle(
        &self,
        _: &IncomingCall,
        arguments: XListOneVolume,
    ) -> Result<XListOneVolumeReply, AbortCode> {
        let services = &self.services;
        let XListOneVolume { partition, volume } = arguments;
        let entry = entry_of(services, partition, volume).await?;
        Ok(XListOneVolumeReply {
            entries: List::from_iter_cut([entry]),
        })
    }
}

/// One form of a volume in a list.
trait Entry: Send + 'static {
    /// The full entry.
    fn of(info: &VolumeInfo) -> Self;

    /// An entry with only a name, an id and a status.
    fn only(name: VolumeName, volume: VolumeId, status: i32) -> Self;
}

/// The partition of a number.
pub(super) fn partition_of(
    volumes: &Volumes,
    number: i32,
) -> Result<(PartitionId, Arc<Partition>), AbortCode> {
    let unknown = AbortCode::VOLSERILLEGAL_PARTITION;
    let place = PartitionId::new(number).ok_or(unknown)?;
    let partition = volumes.partition(place).ok_or(unknown)?;
    Ok((place, partition))
}

/// All volumes of a partition. With `flags` 0, only the ids.
async fn every<E: Entry>(
    services: &Arc<VolumeServices>,
    partition: i32,
    flags: i32,
) -> Result<Vec<E>, AbortCode> {
    let (place, partition) = partition_of(&services.volumes, partition)?;
    let services = services.clone();
    on_disk(move || {
        let describe = |info: &VolumeInfo| {
            if flags == 0 {
                Some(E::only(VolumeName::default(), info.id, 0))
            } else if services.transactions.is_busy(place, info.id) {
                Some(E::only(VolumeName::default(), info.id, STATUS_BUSY))
            } else if info.destroy_me {
                None
            } else {
                Some(E::of(info))
            }
        };
        let (mut entries, mut after) = (Vec::new(), None);
        loop {
            let page = partition.volumes(after, PAGE).map_err(code)?;
            entries.extend(page.iter().filter_map(describe));
            match page.last() {
                Some(last) if page.len() == PAGE => after = Some(last.id),
                _ => return Ok(entries),
            }
        }
    })
    .await
}

async fn entry_of<E: Entry>(
    services: &Arc<VolumeServices>,
    partition: i32,
    volume: VolumeId,
) -> Result<E, AbortCode> {
    let (place, partition) = partition_of(&services.volumes, partition)?;
    let found = in_memory(move || {
        let found = partition.volume(volume)?;
        Ok(found.map(|volume| volume.info()))
    });
    let info = found.await?.ok_or(AbortCode::ENODEV)?;
    if services.transactions.is_busy(place, volume) {
        return Ok(E::only(VolumeName::default(), volume, STATUS_BUSY));
    }
    if info.destroy_me {
        // The name of the file in which OpenAFS keeps a volume's header.
        let name = format!("V{:010}.vol", volume.0);
        let name = VolumeName::new(name.as_bytes()).unwrap_or_default();
        return Ok(E::only(name, volume, 0));
    }
    Ok(E::of(&info))
}

fn name(info: &VolumeInfo) -> VolumeName {
    VolumeName::new(info.name.as_bytes()).unwrap_or_default()
}

/// Whether clients can use the volume; `vos` shows this as "On-line".
fn in_use(info: &VolumeInfo) -> u8 {
    u8::from(info.online && info.in_service && info.blessed)
}

/// The number of files, directories and links as OpenAFS counts them: without the root directory.
pub(super) fn file_count(info: &VolumeInfo) -> u64 {
    info.files.saturating_sub(1)
}

/// Numbers on the wire have 31 bits. Larger ones become the largest value.
fn number(count: u64) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// Implements a form of a volume in a list: the fields common to all forms, and its own ones.
macro_rules! entry {
    ($form:ty, |$info:ident| $($own:ident: $value:expr),+ $(,)?) => {
        impl Entry for $form {
            fn of($info: &VolumeInfo) -> Self {
                Self {
                    name: name($info),
                    volume: $info.id,
                    volume_type: kind_number($info.kind),
                    backup: $info.backup,
                    parent: $info.parent,
                    clone: $info.clone,
                    status: STATUS_OK,
                    copy_date: $info.copied,
                    in_use: in_use($info),
                    creation_date: $info.created,
                    access_date: $info.accessed,
                    update_date: $info.updated,
                    backup_date: $info.backed_up,
                    day_use: number($info.day_use.into()),
                    file_count: number(file_count($info)),
                    max_quota: number($info.max_quota.into()),
                    size: number($info.blocks_used),
                    $($own: $value,)+
                }
            }

            fn only(name: VolumeName, volume: VolumeId, status: i32) -> Self {
                Self {
                    name,
                    volume,
                    status,
                    ..Self::default()
                }
            }
        }
    };
}

entry!(afsvol::VolumeInfo, |info|
    needs_salvaged: 0,
    destroy_me: if info.destroy_me { DESTROY_ME } else { 0 },
    flags: 0,
    min_quota: number(info.min_quota.into()),
    week_use: number(info.week_use.iter().map(|&day| u64::from(day)).sum()),
    update_counter: info.update_counter as i32,
    spare3: 0,
);

entry!(VolumeInfoX, |info|
    stat_reads: counts(info, |traffic| traffic.reads),
    stat_writes: counts(info, |traffic| traffic.writes),
    stat_file_same_author: counts(info, |traffic| traffic.file_same_author),
    stat_file_diff_author: counts(info, |traffic| traffic.file_other_author),
    stat_dir_same_author: counts(info, |traffic| traffic.directory_same_author),
    stat_dir_diff_author: counts(info, |traffic| traffic.directory_other_author),
);

/// Counters of a volume's traffic; zeros if there was none.
fn counts<const N: usize>(info: &VolumeInfo, of: impl FnOnce(&Traffic) -> [u32; N]) -> [i32; N] {
    let counts = info.traffic.as_deref().map_or([0; N], of);
    counts.map(|count| number(count.into()))
}
