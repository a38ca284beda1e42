//! Small operations on a volume server, or on the VLDB's list of servers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use cellar_wire::ids::{AfsTime, AfsUuid, Fid, VolumeId};
use cellar_wire::{AbortCode, List, afsosd, afsvol, vl};

use super::transaction::is_missing;
use super::{Location, Volumes};
use crate::error::{Error, Result, is_unknown_there};

/// Fields of a volume's header that an administrator sets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fields {
    /// Quota in KiB, 0 for none.
    pub quota_kib: Option<i32>,
    /// Reset the count of today's accesses.
    pub clear_use: bool,
    /// Reset the count of changes.
    pub clear_update_counter: bool,
}

impl Volumes<'_> {
    /// Whether a volume server is Cellar's, which replaces volumes without disturbing their
    /// readers. False for a server that does not answer.
    pub(super) async fn is_cellar(&self, server: Ipv4Addr) -> bool {
        let answer = self
            .server(server.into(), &afsvol::GetCapabilities {}, "capabilities")
            .await;
        answer.is_ok()
    }

    /// Sets fields of a volume's header.
    ///
    /// # Errors
    /// There is no such volume, it is busy, or the caller has no permission.
    pub async fn set_fields(&self, at: Location, volume: VolumeId, fields: Fields) -> Result<()> {
        let what = format!("Could not update volume info fields for volume number {volume}");
        let mut info = unchanged();
        if let Some(quota) = fields.quota_kib {
            info.max_quota = quota;
        }
        if fields.clear_use {
            info.day_use = 0;
        }
        if fields.clear_update_counter {
            info.update_counter = 0;
        }
        let trans = self.begin(at, volume, afsvol::IT_BUSY).await?;
        let arguments = afsvol::SetInfo {
            trans: trans.number,
            info,
        };
        let set = trans.call(&arguments, &what).await.map(|_| ());
        trans.finish(set).await
    }

    /// Chooses the files of a volume that become objects: 0 none, 1 by size, else the number of a
    /// policy.
    ///
    /// # Errors
    /// There is no such volume or policy, the file server knows no objects, or the caller has no
    /// permission.
    pub async fn set_policy(&self, at: Location, volume: VolumeId, policy: u32) -> Result<()> {
        let what = format!("Could not set the policy of volume {volume}");
        let peer = SocketAddr::new(at.server.into(), self.cell.ports.fileserver);
        let servers = self.client.servers();
        let connection = servers.connection(&self.cell.name, peer, &afsosd::PACKAGE);
        let fid = Fid::root(volume);
        let arguments = afsosd::SetVolumePolicy { fid, policy };
        crate::fs::retry_until_loaded(async || match connection.call(&arguments).await {
            Ok(_) => Ok(()),
            Err(cause) if is_unknown_there(cause.code()) => Err(Error::Usage(format!(
                "{what}: the file server has no object storage"
            ))),
            Err(cause) => Err(Error::refused(&what, cause)),
        })
        .await
    }

    /// Takes a volume off line, or makes it busy to clients for a while.
    ///
    /// # Errors
    /// There is no such volume there, or the caller has no permission.
    pub async fn off_line(
        &self,
        at: Location,
        volume: VolumeId,
        busy_for: Option<Duration>,
    ) -> Result<()> {
        let Some(time) = busy_for else {
            return self.set_service(at, volume, false).await;
        };
        let trans = self.begin(at, volume, afsvol::IT_BUSY).await?;
        tokio::time::sleep(time).await;
        trans.end().await
    }

    /// Brings a volume on line.
    ///
    /// # Errors
    /// There is no such volume there, or the caller has no permission.
    pub async fn on_line(&self, at: Location, volume: VolumeId) -> Result<()> {
        self.set_service(at, volume, true).await
    }

    /// Deletes a volume from a server, independent of the VLDB. `force` also deletes a volume that
    /// cannot be attached.
    ///
    /// # Errors
    /// It is not there, it is busy, or the caller has no permission.
    pub async fn zap(&self, at: Location, volume: VolumeId, force: bool) -> Result<()> {
        let what = match force {
            true => format!("Failed to delete volume {volume} on {at}"),
            false => format!("Failed to start transaction on {volume} on {at}"),
        };
        if force {
            let arguments = afsvol::NukeVolume {
                partition: at.partition.number(),
                volume,
            };
            self.server(at.server.into(), &arguments, &what).await?;
            return Ok(());
        }
        match self.delete_from(at, volume).await? {
            Some(_) => Ok(()),
            None => Err(Error::refused(
                what,
                cellar_rpc::CallError::Aborted(AbortCode::VNOVOL),
            )),
        }
    }

    /// The size in bytes of a dump with the changes since a date; 0 is everything.
    ///
    /// # Errors
    /// There is no such volume there, or the caller has no permission.
    pub async fn dump_size(&self, at: Location, volume: VolumeId, since: AfsTime) -> Result<u64> {
        let what = format!("Could not get the size of volume {volume}");
        let trans = self.begin(at, volume, afsvol::IT_BUSY).await?;
        let arguments = afsvol::GetSize {
            trans: trans.number,
            from_date: since.0 as i32,
        };
        let size = trans.call(&arguments, &what).await;
        Ok(trans.finish(size).await?.size.dump_size)
    }

    /// Ends a transaction, independent of its owner.
    ///
    /// # Errors
    /// There is none of that number, or the caller has no permission.
    pub async fn end_transaction(&self, server: IpAddr, number: i32) -> Result<()> {
        let what = format!("Could not end transaction {number} on {server}");
        self.end(server, number, &what).await
    }

    /// Changes a server's address in the VLDB.
    ///
    /// # Errors
    /// The old address is not in the VLDB, the new one is another server's, or the caller has no
    /// permission.
    pub async fn change_address(&self, old: Ipv4Addr, new: Ipv4Addr) -> Result<()> {
        let what = format!("Could not change server {old} to server {new}");
        let arguments = vl::ChangeAddr {
            ip1: old.into(),
            ip2: new.into(),
        };
        self.vl(&arguments, &what).await?;
        Ok(())
    }

    /// Removes a server from the VLDB.
    ///
    /// # Errors
    /// The address is not in the VLDB, entries still name it, or the caller has no permission.
    pub async fn remove_address(&self, address: Ipv4Addr) -> Result<()> {
        let what = format!("Could not remove server {address} from the VLDB");
        let arguments = vl::ChangeAddr {
            ip1: u32::MAX,
            ip2: address.into(),
        };
        let removed = self.vl(&arguments, &what).await;
        removed.map_err(|error| {
            let reason = format!(
                "Entries of the VLDB still name the server: 'vos listvldb -server {address}' lists them, \
                 'vos syncserv' or 'vos delentry' corrects those of a server that is gone"
            );
            error.advise(AbortCode::VL_IDEXIST, reason)
        })?;
        Ok(())
    }

    /// Sets the addresses of the server with a UUID.
    ///
    /// # Errors
    /// One of them is another server's, or the caller has no permission.
    pub async fn set_addresses(&self, uuid: AfsUuid, addresses: &[Ipv4Addr]) -> Result<()> {
        let arguments = vl::RegisterAddrs {
            uuid,
            spare1: 0,
            addrs: List::from_iter_cut(addresses.iter().map(|address| u32::from(*address))),
        };
        self.vl(&arguments, "Could not set the server's addresses")
            .await?;
        Ok(())
    }

    /// The addresses of one server, by UUID or by one of its addresses.
    ///
    /// # Errors
    /// The server is not in the VLDB.
    pub async fn server_addresses(
        &self,
        by: std::result::Result<AfsUuid, Ipv4Addr>,
    ) -> Result<super::ServerAddresses> {
        let (attributes, shown) = match by {
            Ok(uuid) => (
                vl::ListAddrByAttributes {
                    mask: vl::VLADDR_UUID,
                    uuid,
                    ..Default::default()
                },
                uuid.to_string(),
            ),
            Err(address) => (
                vl::ListAddrByAttributes {
                    mask: vl::VLADDR_IPADDR,
                    ipaddr: address.into(),
                    ..Default::default()
                },
                address.to_string(),
            ),
        };
        let reply = self.vl(&vl::GetAddrsU { attributes }, &shown).await?;
        Ok(super::ServerAddresses {
            uuid: Some(reply.uuid),
            addresses: reply
                .blkaddrs
                .iter()
                .map(|address| Ipv4Addr::from(*address).into())
                .collect(),
        })
    }

    /// Translates a location into the address that the entry uses for its server, because the user
    /// may have given another address of the same server.
    pub(super) async fn listed(&self, at: Location, sites: &[vl::Site]) -> Result<Location> {
        if sites.iter().any(|site| site.server == u32::from(at.server)) {
            return Ok(at);
        }
        let own = match self.server_addresses(Err(at.server)).await {
            Ok(own) => own.addresses,
            Err(Error::NoSuchEntry(_)) => return Ok(at),
            Err(error) if error.code() == Some(AbortCode::RXGEN_OPCODE) => return Ok(at),
            Err(error) => return Err(error),
        };
        let same = sites
            .iter()
            .map(|site| Ipv4Addr::from(site.server))
            .find(|server| own.contains(&IpAddr::V4(*server)));
        Ok(Location {
            server: same.unwrap_or(at.server),
            ..at
        })
    }

    /// Deletes the entry of a read-write volume, by name or number, even a locked one. The volumes
    /// stay on their servers.
    ///
    /// # Errors
    /// There is no such entry, the given id is not that of its read-write volume, or the caller has
    /// no permission.
    pub async fn delete_entry(&self, volume: &str) -> Result<()> {
        let draft = self.draft_of(volume).await?;
        let named = match volume.parse() {
            Ok(number) => VolumeId(number) == draft.read_write,
            Err(_) => volume == draft.name,
        };
        let what = format!(
            "Could not delete entry for volume {volume}. You must specify a RW volume name or ID (the entire \
             VLDB entry will be deleted)"
        );
        if !named {
            let cause = cellar_rpc::CallError::Aborted(AbortCode::VL_NOENT);
            return Err(Error::refused(what, cause));
        }
        let arguments = vl::DeleteEntry {
            volid: draft.read_write,
            voltype: vl::RWVOL,
        };
        self.vl(&arguments, &what).await?;
        Ok(())
    }

    /// Finds the volume with an id on all partitions of a server.
    ///
    /// # Errors
    /// The server does not answer.
    pub(super) async fn find_on(
        &self,
        server: Ipv4Addr,
        volume: VolumeId,
    ) -> Result<Vec<(Location, super::VolumeInfo)>> {
        let mut found = Vec::new();
        for partition in self.partitions(server.into()).await? {
            match self
                .volume_on(server.into(), partition, volume, false)
                .await
            {
                Ok(info) => found.push((Location { server, partition }, info)),
                Err(error) if is_missing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}

/// The argument of SetInfo that changes nothing: -1 in every field.
pub(super) fn unchanged() -> afsvol::VolumeInfo {
    let keep = AfsTime(u32::MAX);
    afsvol::VolumeInfo {
        copy_date: keep,
        creation_date: keep,
        access_date: keep,
        update_date: keep,
        backup_date: keep,
        day_use: -1,
        file_count: -1,
        max_quota: -1,
        size: -1,
        flags: -1,
        min_quota: -1,
        week_use: -1,
        update_counter: -1,
        spare3: -1,
        ..Default::default()
    }
}
