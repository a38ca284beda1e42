//! Creating a volume.
//!
//! 1. Three ids are reserved: read-write, read-only, backup.
//! 2. The volume server creates the volume, marked for destruction. A crash before step 3 ends
//!    therefore leaves nothing.
//! 3. The quota is set and the mark is removed.
//! 4. The VLDB gets the entry. If that fails, the volume is deleted.
//! 5. The transaction ends and the volume goes on line.
//! 6. The policy is set, if one was given. If that fails, the volume remains, without a policy.

use std::net::IpAddr;

use cellar_wire::afsvol;
use cellar_wire::ids::{PartitionId, VolumeId};
use cellar_wire::vl;

use super::{Location, NEW_NAME, Volumes, check_volume_name};
use crate::error::{Error, Result};

/// Options of [`Volumes::create`].
#[derive(Clone, Copy, Debug)]
pub struct CreateOptions {
    /// Quota in KiB; 0 for none.
    pub quota_kib: i32,
    /// The volume's id; default: a new one.
    pub id: Option<VolumeId>,
    /// The id for its future read-only volume; default: a new one.
    pub read_only: Option<VolumeId>,
    /// The files that become objects: 0 none, 1 by size, else the number of a policy.
    pub policy: u32,
}

impl Volumes<'_> {
    /// Creates a read-write volume. Returns its id.
    ///
    /// # Errors
    /// The name is taken or not valid, there is no such partition, or the caller has no permission.
    pub async fn create(
        &self,
        server: IpAddr,
        partition: PartitionId,
        name: &str,
        options: CreateOptions,
    ) -> Result<VolumeId> {
        let IpAddr::V4(address) = server else {
            return Err(Error::Usage(format!(
                "{server}: file servers have IPv4 addresses"
            )));
        };
        let at = Location::new(server, partition)?;
        self.check_partition(at).await?;
        self.check_new_name(name).await?;
        let [read_write, read_only, backup] = self.family_ids(name, options).await?;
        if options.id.is_some()
            && let Some((there, info)) = self.find_on(address, read_write).await?.first()
        {
            return Err(Error::Usage(format!(
                "Volume ID {read_write} already exists on {there}, as {}: Volume already exists",
                info.name
            )));
        }
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

    /// Refuses a name that is not valid for a new volume, or is taken.
    ///
    /// # Errors
    /// The name is not valid, or the VLDB has it.
    pub async fn check_new_name(&self, name: &str) -> Result<()> {
        check_volume_name(NEW_NAME, name)?;
        match self.entry(name).await {
            Ok(_) => Err(Error::Usage(format!("Volume {name} already exists"))),
            Err(Error::NoSuchEntry(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The ids of a new family: read-write, read-only, backup. An id that was not given follows the
    /// highest given one, or is newly reserved.
    async fn family_ids(&self, name: &str, options: CreateOptions) -> Result<[VolumeId; 3]> {
        let given = options.id.filter(|id| id.0 != 0);
        let read_only = options.read_only;
        let ids = match (given, read_only) {
            (None, None) => {
                let what = format!("Could not get an Id for volume {name}");
                let first = self.new_volume_ids_for(3, &what).await?.0;
                return Ok([first, first + 1, first + 2].map(VolumeId));
            }
            (None, Some(read_only)) => {
                let what = format!("Could not get an Id for volume {name}");
                let first = self.new_volume_ids_for(2, &what).await?.0;
                [first, read_only.0, first + 1]
            }
            (Some(id), read_only) => {
                let last = id.0.max(read_only.map_or(0, |id| id.0));
                let next = |last: u32| {
                    last.checked_add(1).ok_or_else(|| {
                        Error::Usage(format!("{last} is no volume ID that others could follow"))
                    })
                };
                let read_only = match read_only {
                    Some(read_only) => read_only.0,
                    None => next(last)?,
                };
                [id.0, read_only, next(last.max(read_only))?]
            }
        };
        let ids = ids.map(VolumeId);
        if ids[0] == ids[1] {
            let reason = "a read-only volume needs an id of its own";
            return Err(Error::Usage(format!("Volume ID {}: {reason}", ids[0])));
        }
        for id in ids.into_iter().filter(|id| id.0 != 0) {
            match self.raw_entry(id).await {
                Err(Error::NoSuchEntry(_)) => {}
                Err(error) => return Err(error),
                Ok(entry) => {
                    return Err(Error::Usage(format!(
                        "Volume ID {id} already exists, in the entry of {}: Volume already exists",
                        entry.name
                    )));
                }
            }
        }
        Ok(ids)
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
