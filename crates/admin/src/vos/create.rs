//! Creating a volume.
//!
//! 1. Three ids are reserved: read-write, read-only, backup.
//! 2. The volume server makes the volume; it stays marked for destruction until its transaction says
//!    otherwise, so a crash here leaves nothing.
//! 3. Its quota is set and the mark taken away.
//! 4. The VLDB gets its entry. If that fails the volume is deleted again.
//! 5. The transaction ends and the volume is on line.
//! 6. Its policy is set, if it is to have one. A volume that cannot have it is there without.

use std::net::IpAddr;

use cellar_wire::afsvol;
use cellar_wire::ids::{PartitionId, VolumeId};
use cellar_wire::vl;

use super::{Location, Volumes, check_volume_name};
use crate::error::{Error, Result};

/// How to create.
#[derive(Clone, Copy, Debug)]
pub struct CreateOptions {
    /// Quota in KiB; 0 for none.
    pub quota_kib: i32,
    /// The volume's id; default: a new one.
    pub id: Option<VolumeId>,
    /// The id of its read-only volume, once there is one; default: a new one.
    pub read_only: Option<VolumeId>,
    /// Which files become objects: 0 none, 1 by size, else a policy's number.
    pub policy: u32,
}

impl Volumes<'_> {
    /// Creates a read-write volume. Answers its id.
    ///
    /// # Errors
    /// The name is taken or not valid, there is no such partition, or the caller may not.
    pub async fn create(
        &self,
        server: IpAddr,
        partition: PartitionId,
        name: &str,
        options: CreateOptions,
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
        let first = self.new_volume_ids(3).await?.0;
        let read_write = options.id.unwrap_or(VolumeId(first));
        let read_only = options.read_only.unwrap_or(VolumeId(first + 1));
        let backup = VolumeId(first + 2);
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
            .finish_creation(server, trans, options.quota_kib, entry, &what)
            .await
        {
            Ok(()) => {
                self.end(server, trans, &what).await?;
                if options.policy != 0 {
                    let at = Location::new(server, partition)?;
                    let set = self.set_policy(at, read_write, options.policy).await;
                    set.map_err(|cause| Error::Partial {
                        what,
                        cause: Box::new(cause),
                        left: format!("Volume {read_write} was created without the policy"),
                    })?;
                }
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
        let info = afsvol::VolumeInfo {
            max_quota: quota_kib,
            ..super::servers::unchanged()
        };
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
}
