//! Makes the first volumes of a cell: `root.afs`, `root.cell` mounted in it, `scratch` mounted in
//! that.
//!
//! Every step first checks whether it was done, so the whole can be repeated after a crash. A
//! volume is found by its name on the partition, and its ids are consecutive. An existing mount
//! point is left.
//!
//! A file server that joins a cell makes `root.afs` and `root.cell` only if `--first-volumes` asks
//! for it. It leaves out those that the location database has.

use cellar_volume::{Context, Error as StoreError, NewVnode, Partition, Volume, VolumeSpec};
use cellar_wire::acl::{AccessList, AclEntry, Rights};
use cellar_wire::ids::{AfsTime, AfsUuid, PartitionId, ViceId, VolumeId};
use cellar_wire::{AbortCode, List, vl};
use std::net::IpAddr;
use std::sync::Arc;

use super::databases::Databases;
use crate::cell_directory::Identity;
use crate::failure::{Failure, Outcome};

/// Volumes read in one step of the search by name.
const PAGE: usize = 1000;

/// The quota of the root volumes, in blocks of 1 KiB.
const FIRST_QUOTA: u32 = 5000;

/// The right of `system:anyuser` in the scratch volume.
const SCRATCH_RIGHTS: Rights = Rights(63);

/// Makes the missing ones of the first volumes of a joined cell, on a partition.
pub(super) fn missing_volumes(
    databases: &Databases,
    (at, partition): (PartitionId, &Partition),
    identity: &Identity,
    addresses: &[IpAddr],
) -> Outcome {
    register(databases, identity, addresses)?;
    let look = Rights::READ | Rights::LOOKUP;
    let volume = |name| {
        if find(partition, name).map_err(Failure::new)?.is_none() && is_listed(databases, name)? {
            tracing::info!(name, "the cell has this volume already");
            return Ok(None);
        }
        let (volume, id) = volume(databases, partition, name, FIRST_QUOTA, look)?;
        list_volume(databases, at, identity, name, id)?;
        Ok::<_, Failure>(Some(volume))
    };
    let root_afs = volume("root.afs")?;
    volume("root.cell")?;
    match root_afs {
        Some(root_afs) => mount_cell(&root_afs, identity),
        None => Ok(()),
    }
}

/// Makes the missing ones of the first volumes of a new cell, on a partition.
pub(super) fn first_volumes(
    databases: &Databases,
    (at, partition): (PartitionId, &Partition),
    identity: &Identity,
    addresses: &[IpAddr],
) -> Outcome {
    register(databases, identity, addresses)?;
    let look = Rights::READ | Rights::LOOKUP;
    let volume = |name, quota, rights| {
        let (volume, id) = volume(databases, partition, name, quota, rights)?;
        list_volume(databases, at, identity, name, id)?;
        Ok::<_, Failure>(volume)
    };
    let root_afs = volume("root.afs", FIRST_QUOTA, look)?;
    let root_cell = volume("root.cell", FIRST_QUOTA, look)?;
    // The scratch volume may fill the partition.
    volume("scratch", 0, SCRATCH_RIGHTS)?;
    mount_cell(&root_afs, identity)?;
    mount(&root_cell, "scratch", "#scratch.")
}

/// Mounts `root.cell` in `root.afs`, under the names of its read-only and read-write form.
fn mount_cell(root_afs: &Volume, identity: &Identity) -> Outcome {
    let cell = identity.cell.name.as_str();
    mount(root_afs, cell, "#root.cell.")?;
    mount(root_afs, &format!(".{cell}"), "%root.cell.")
}

/// Registers the file server's UUID and addresses.
pub(super) fn register(
    databases: &Databases,
    identity: &Identity,
    addresses: &[IpAddr],
) -> Outcome {
    let addresses = addresses.iter().filter_map(|address| match address {
        IpAddr::V4(ip) => Some(u32::from(*ip)),
        IpAddr::V6(_) => None,
    });
    let arguments = vl::RegisterAddrs {
        uuid: uuid(identity),
        spare1: 0,
        addrs: List::from_iter_cut(addresses),
    };
    let registered = databases.ask_locations(arguments);
    registered.map(|_| ()).map_err(|code| {
        Failure::new(format!(
            "cannot register the file server's address with the location database: {code}. Do the \
             database servers run, and can this machine reach them?"
        ))
    })
}

/// Whether the location database has a volume of that name.
fn is_listed(databases: &Databases, name: &str) -> Outcome<bool> {
    let arguments = vl::GetEntryByNameN {
        volumename: vl::VolumeNameArgument::try_from(name)?,
    };
    match databases.ask_locations(arguments) {
        Ok(_) => Ok(true),
        Err(AbortCode::VL_NOENT) => Ok(false),
        Err(code) => Err(Failure::new(format!(
            "cannot look for volume {name}: {code}"
        ))),
    }
}

/// Reserves consecutive volume ids.
fn new_volume_ids(databases: &Databases, count: u32) -> Outcome<VolumeId> {
    let reply = databases.ask_locations(vl::GetNewVolumeId { bump: count });
    let reply = reply.map_err(|code| Failure::new(format!("cannot reserve volume ids: {code}")))?;
    Ok(reply.newvolumid)
}

fn volume(
    databases: &Databases,
    partition: &Partition,
    name: &str,
    max_quota: u32,
    anyuser: Rights,
) -> Outcome<(Arc<Volume>, VolumeId)> {
    let store = |cause: StoreError| Failure::new(format!("cannot make volume {name}: {cause}"));
    let known = find(partition, name).map_err(store)?;
    let (volume, id) = match known {
        Some(id) => {
            let volume = partition.volume(id).map_err(store)?;
            let volume = volume.ok_or_else(|| {
                Failure::new(format!(
                    "volume {name} ({id}) is listed, but cannot be opened"
                ))
            })?;
            (volume, id)
        }
        None => {
            let id = new_volume_ids(databases, 3)?;
            let spec = VolumeSpec {
                max_quota,
                ..VolumeSpec::new(id, name, ViceId(0), now())
            };
            let volume = partition.create_volume(&spec).map_err(store)?;
            (volume.wait().map_err(store)?, id)
        }
    };
    let list = [
        (ViceId::ADMINISTRATORS, Rights::ALL),
        (ViceId::ANYUSER, anyuser),
    ];
    let entries = list
        .into_iter()
        .map(|(id, rights)| AclEntry { id, rights })
        .collect();
    let acl = AccessList::new(entries, Vec::new()).map_err(Failure::new)?;
    let changed = volume
        .set_acl(volume.root(), acl, context())
        .map_err(store)?;
    changed.wait().map_err(store)?;
    Ok((volume, id))
}

/// The volume of a name on the partition.
fn find(partition: &Partition, name: &str) -> Result<Option<VolumeId>, StoreError> {
    let mut after = None;
    loop {
        let page = partition.volumes(after, PAGE)?;
        if let Some(found) = page.iter().find(|info| info.name == name) {
            return Ok(Some(found.id));
        }
        match page.last() {
            Some(last) if page.len() == PAGE => after = Some(last.id),
            _ => return Ok(None),
        }
    }
}

/// Enters a volume into the VLDB, unless it has an entry.
fn list_volume(
    databases: &Databases,
    at: PartitionId,
    identity: &Identity,
    name: &str,
    id: VolumeId,
) -> Outcome {
    let server = identity.v4_address();
    let server = server.ok_or_else(|| Failure::new("the cell has no IPv4 address"))?;
    let refused = |code| Failure::new(format!("cannot list volume {name}: {code}"));
    let arguments = vl::GetEntryByIDN {
        volid: id,
        voltype: vl::RWVOL,
    };
    match databases.ask_locations(arguments) {
        Ok(_) => return Ok(()),
        Err(AbortCode::VL_NOENT) => {}
        Err(code) => return Err(refused(code)),
    }
    let newentry = vl::NvldbEntry {
        name: vl::EntryName::try_from(name)?,
        sites: List::from_iter_cut([vl::Site {
            server,
            partition: at.number(),
            flags: vl::VLSF_RWVOL,
        }]),
        volume_ids: [id, VolumeId(id.0 + 1), VolumeId(id.0 + 2)],
        clone_id: VolumeId(0),
        flags: vl::VLF_RWEXISTS,
        match_index: 0,
    };
    let created = databases.ask_locations(vl::CreateEntryN { newentry });
    created.map(|_| ()).map_err(refused)
}

fn mount(volume: &Volume, name: &str, text: &str) -> Outcome {
    let new = NewVnode {
        owner: ViceId(0),
        group: None,
        mode: Some(cellar_client::mount_point::MOUNT_POINT_MODE as u16),
        client_time: None,
    };
    let made = volume.symlink(
        volume.root(),
        name.as_bytes(),
        text.as_bytes(),
        &new,
        context(),
    );
    let made = made.and_then(|changed| changed.wait());
    match made {
        Ok(_) | Err(StoreError::Exists) => Ok(()),
        Err(cause) => Err(Failure::new(format!(
            "cannot make the mount point {name}: {cause}"
        ))),
    }
}

fn context() -> Context {
    Context {
        author: ViceId::ADMINISTRATORS,
        now: now(),
    }
}

fn now() -> AfsTime {
    AfsTime::after_1970(super::wall_clock())
}

/// The file server's UUID in the form of the protocol.
pub(super) fn uuid(identity: &Identity) -> AfsUuid {
    AfsUuid(identity.server_uuid)
}
