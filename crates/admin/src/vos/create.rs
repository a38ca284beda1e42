//! Creating a volume.
//!
//! 1. Three ids are reserved: read-write, read-only, backup.
//! 2. The volume server makes the volume; it stays marked for destruction until its transaction says
//!    otherwise, so a crash here leaves nothing.
//! 3. Its quota is set and the mark taken away.
//! 4. The VLDB gets its entry. If that fails the volume is deleted again.
//! 5. The transaction ends and the volume is on line.

use std::net::IpAddr;

use cellar_wire::afsvol;
use cellar_wire::ids::{AfsTime, PartitionId, VolumeId};
use cellar_wire::vl;

use super::{Volumes, check_volume_name};
use crate::error::{Error, Result};

impl Volumes<'_> {
    /// Creates a read-write volume with a quota in KiB (0 for none). Answers its id.
    ///
    /// # Errors
    /// The name is taken or not valid, there is no such partition, or the caller may not.
    pub async fn create(
        &self,
        server: IpAddr,
        partition: PartitionId,
        name: &str,
        quota_kib: i32,
    ) -> Result<VolumeId> {
        check_volume_name(name)?;
        let IpAddr::V4(address) = server else {
            return Err(Error::Usage(format!(
                "{server}: file servers have IPv4 addresses"
            )));
        };
        match self.entry(name).await {
            Ok(_) => return Err(Error::Usage(format!("Volume {name} already exists"))),
            Err(Error::NoSuchEntry(_)) => {}
            Err(error) => return Err(error),
        }
        let partitions = self.partitions(server).await?;
        if !partitions.contains(&partition) {
            let names: Vec<_> = partitions.iter().map(ToString::to_string).collect();
            return Err(Error::Usage(format!(
                "{server} has no partition {partition}; it has {}",
                names.join(", ")
            )));
        }
        let [read_write, read_only, backup] = [
            self.new_volume_id().await?,
            self.new_volume_id().await?,
            self.new_volume_id().await?,
        ];
        let what = format!("Failed to create the volume {name} {read_write}");
        let argument = afsvol::VolumeNameArgument::try_from(name)
            .map_err(|_| Error::Usage(format!("{name}: too long")))?;
        let arguments = afsvol::CreateVolume {
            partition: partition.number(),
            name: argument,
            volume_type: afsvol::READWRITE,
            parent: VolumeId(0),
            volume: read_write,
        };
        let trans = self.server(server, &arguments, &what).await?.trans;
        let entry = vl::NvldbEntry {
            name: vl::EntryName::try_from(name)
                .map_err(|_| Error::Usage(format!("{name}: too long")))?,
            sites: cellar_wire::List::from_iter_cut([vl::Site {
                server: u32::from(address),
                partition: partition.number(),
                flags: vl::VLSF_RWVOL,
            }]),
            volume_ids: [read_write, read_only, backup],
            clone_id: VolumeId(0),
            flags: vl::VLF_RWEXISTS,
            match_index: 0,
        };
        match self
            .finish_creation(server, trans, quota_kib, entry, &what)
            .await
        {
            Ok(()) => {
                self.end(server, trans, &what).await?;
                Ok(read_write)
            }
            Err(error) => {
                let deleted = self
                    .server(server, &afsvol::DeleteVolume { trans }, &what)
                    .await;
                let ended = self.end(server, trans, &what).await;
                match deleted.and(ended) {
                    Ok(()) => Err(error),
                    Err(_) => Err(Error::Partial {
                        what,
                        cause: Box::new(error),
                        left: format!(
                            "Volume {read_write} may be left on {server} {partition} without an \
                             entry in the VLDB; the server removes it by itself within ten minutes \
                             if it was not finished"
                        ),
                    }),
                }
            }
        }
    }

    async fn finish_creation(
        &self,
        server: IpAddr,
        trans: i32,
        quota_kib: i32,
        entry: vl::NvldbEntry,
        what: &str,
    ) -> Result<()> {
        let info = info_with_quota(quota_kib);
        self.server(server, &afsvol::SetInfo { trans, info }, what)
            .await?;
        self.server(server, &afsvol::SetFlags { trans, flags: 0 }, what)
            .await?;
        let what = format!(
            "Could not create a VLDB entry for the volume {}",
            entry.name
        );
        self.vl(&vl::CreateEntryN { newentry: entry }, &what)
            .await?;
        Ok(())
    }

    pub(super) async fn end(&self, server: IpAddr, trans: i32, what: &str) -> Result<()> {
        self.server(server, &afsvol::EndTrans { trans }, what)
            .await?;
        Ok(())
    }

    async fn new_volume_id(&self) -> Result<VolumeId> {
        let what = "Could not get an Id for the volume";
        Ok(self
            .vl(&vl::GetNewVolumeId { bump: 1 }, what)
            .await?
            .newvolumid)
    }

    /// Changes a volume's quota, in KiB.
    ///
    /// # Errors
    /// There is no such volume, it is busy, or the caller may not.
    pub async fn set_quota(
        &self,
        server: IpAddr,
        partition: PartitionId,
        volume: VolumeId,
        quota_kib: i32,
    ) -> Result<()> {
        let what = format!("Could not set the quota of volume {volume}");
        let arguments = afsvol::TransCreate {
            volume,
            partition: partition.number(),
            flags: afsvol::IT_BUSY,
        };
        let trans = self.server(server, &arguments, &what).await?.trans;
        let info = info_with_quota(quota_kib);
        let set = self
            .server(server, &afsvol::SetInfo { trans, info }, &what)
            .await;
        self.end(server, trans, &what).await?;
        set.map(|_| ())
    }
}

/// SetInfo leaves alone what is -1.
fn info_with_quota(quota_kib: i32) -> afsvol::VolumeInfo {
    let keep = AfsTime(u32::MAX);
    afsvol::VolumeInfo {
        copy_date: keep,
        creation_date: keep,
        access_date: keep,
        update_date: keep,
        backup_date: keep,
        day_use: -1,
        file_count: -1,
        max_quota: quota_kib,
        size: -1,
        flags: -1,
        min_quota: -1,
        week_use: -1,
        update_counter: -1,
        spare3: -1,
        ..Default::default()
    }
}
