//! ListPartitions (115), XListPartitions (127), PartitionInfo (119), PartitionInfo64 (65539).

use std::sync::Arc;

use cellar_rpc::IncomingCall;
use cellar_volume::PartitionUsage;
use cellar_wire::afsvol::{
    DiskPartition, DiskPartition64, ListPartitions, ListPartitionsReply, PartitionInfo,
    PartitionInfo64, PartitionInfo64Reply, PartitionInfoReply, PartitionName, XListPartitions,
    XListPartitionsReply,
};
use cellar_wire::ids::PartitionId;
use cellar_wire::serve::Handle;
use cellar_wire::{AbortCode, List, WordString};

use super::VolumeService;
use super::{code, on_disk};
use crate::volumes::Volumes;

/// The number of partitions that fit into the old form.
const OLD_PARTITIONS: usize = 26;

impl Handle<ListPartitions, IncomingCall> for VolumeService {
    async fn handle(
        &self,
        _: &IncomingCall,
        _: ListPartitions,
    ) -> Result<ListPartitionsReply, AbortCode> {
        let services = &self.services;

        let mut partitions = [-1; OLD_PARTITIONS];
        for (id, _) in services.volumes.partitions() {
            let number = id.number();
            if let Some(slot) = usize::try_from(number)
                .ok()
                .and_then(|at| partitions.get_mut(at))
            {
                *slot = number;
            }
        }
        Ok(ListPartitionsReply { partitions })
    }
}

impl Handle<XListPartitions, IncomingCall> for VolumeService {
    async fn handle(
        &self,
        _: &IncomingCall,
        _: XListPartitions,
    ) -> Result<XListPartitionsReply, AbortCode> {
        let services = &self.services;

        let numbers = services
            .volumes
            .partitions()
            .into_iter()
            .map(|(id, _)| id.number());
        Ok(XListPartitionsReply {
            partitions: List::from_iter_cut(numbers),
        })
    }
}

impl Handle<PartitionInfo, IncomingCall> for VolumeService {
    async fn handle(
        &self,
        _: &IncomingCall,
        arguments: PartitionInfo,
    ) -> Result<PartitionInfoReply, AbortCode> {
        let services = &self.services;
        let PartitionInfo { name } = arguments;
        let (id, usage) = usage(&services.volumes, &name).await?;
        let blocks = |count: u64| i32::try_from(count).unwrap_or(i32::MAX);
        let text = id.to_string();
        Ok(PartitionInfoReply {
            partition: DiskPartition {
                name: WordString::new(text.as_bytes()).unwrap_or_default(),
                device: WordString::new(text.as_bytes()).unwrap_or_default(),
                lock_fd: -1,
                total_usable: 0,
                free: blocks(usage.free_blocks),
                // The size of the partition, because clients look for it in this field.
                min_free: blocks(usage.total_blocks),
            },
        })
    }
}

impl Handle<PartitionInfo64, IncomingCall> for VolumeService {
    async fn handle(
        &self,
        _: &IncomingCall,
        arguments: PartitionInfo64,
    ) -> Result<PartitionInfo64Reply, AbortCode> {
        let services = &self.services;
        let PartitionInfo64 { name } = arguments;
        let (id, usage) = usage(&services.volumes, &name).await?;
        let blocks = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let text = id.to_string();
        Ok(PartitionInfo64Reply {
            partition: DiskPartition64 {
                name: WordString::new(text.as_bytes()).unwrap_or_default(),
                device: WordString::new(text.as_bytes()).unwrap_or_default(),
                lock_fd: -1,
                total_usable: 0,
                free: blocks(usage.free_blocks),
                min_free: blocks(usage.total_blocks),
            },
        })
    }
}

async fn usage(
    volumes: &Arc<Volumes>,
    name: &PartitionName,
) -> Result<(PartitionId, PartitionUsage), AbortCode> {
    let unknown = AbortCode::VOLSERILLEGAL_PARTITION;
    let id = name.as_str().and_then(PartitionId::parse).ok_or(unknown)?;
    let partition = volumes.partition(id).ok_or(unknown)?;
    let usage = on_disk(move || partition.usage().map_err(code)).await?;
    Ok((id, usage))
}
