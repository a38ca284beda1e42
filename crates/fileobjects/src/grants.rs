//! Layouts, devices and capabilities for clients that read and write objects directly.

use cellar_wire::List;
use cellar_wire::afsosd;
use cellar_wire::ids::{AfsTime, Fid, ViceId};
use cellar_wire::object::{
    Capability, CapabilityBody, Layout, MAY_READ, MAY_WRITE, OBJECTS_MAX, Placed, Scheme,
};
use cellar_wire::osddb::OsdListed;

use super::Objects;
use super::failure::Failure;
use super::limits::{CLIENT_CAPABILITY_LIFE, STORE_CAPABILITY_LIFE};

/// The permissions of a client on the objects of a file.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    /// The `MAY_*` rights.
    rights: u32,
    /// The version that may be written; 0 for none.
    version: u64,
    /// The largest permitted length of the file.
    length: u64,
}

impl Grant {
    /// To read.
    pub fn read() -> Self {
        Self {
            rights: MAY_READ,
            version: 0,
            length: 0,
        }
    }

    /// To store the new version of a layout, of a file of at most `length` bytes. With an erasure
    /// code, also to read the other objects of a row.
    pub fn store(next: &Layout, length: u64) -> Self {
        Self {
            rights: match next.shape.scheme {
                Scheme::Striped => MAY_WRITE,
                Scheme::Erasure => MAY_WRITE | MAY_READ,
            },
            version: next.version,
            length,
        }
    }
}

/// A client machine and its user.
#[derive(Clone, Copy, Debug)]
pub struct Grantee {
    /// The address of the machine in the words of the wire; `None`: every address is permitted.
    pub address: Option<[u32; 4]>,
    /// The user.
    pub user: ViceId,
}

impl Objects {
    /// Layout, devices and capabilities for a client.
    ///
    /// # Errors
    /// EIO: this server has no objects.
    pub fn grant(
        &self,
        fid: Fid,
        layout: &Layout,
        grant: Grant,
        grantee: Grantee,
    ) -> Result<afsosd::Access, Failure> {
        let storage = self.needed()?;
        let life = match grant.version {
            0 => CLIENT_CAPABILITY_LIFE,
            _ => STORE_CAPABILITY_LIFE,
        };
        let expires = self.wall().as_secs() + life.as_secs();
        let seal = |place: usize, placed: &Placed| {
            let end = match grant.version {
                0 => u64::MAX,
                _ => cellar_objects::arithmetic::length_at(&layout.shape, place, grant.length),
            };
            let body = CapabilityBody {
                cell: storage.config.cell.clone(),
                osd: placed.osd,
                object: layout.object(fid.vnode, fid.uniquifier, placed),
                rights: grant.rights,
                base: placed.version,
                version: grant.version,
                begin: 0,
                end,
                expires,
                clients: List::from_iter_cut(grantee.address),
                user: grantee.user.0,
            };
            (storage.config.seal)(&body)
        };
        let capabilities = layout.objects.iter().enumerate().map(|(place, placed)| {
            let is_of_no_use = placed.stale || (grant.version == 0 && placed.version == 0);
            if is_of_no_use {
                Capability::default()
            } else {
                seal(place, placed)
            }
        });
        Ok(afsosd::Access {
            layout: layout.clone(),
            capabilities: List::from_iter_cut(capabilities),
            devices: self.devices_of(layout),
            expires: AfsTime(u32::try_from(expires).unwrap_or(u32::MAX)),
        })
    }

    /// The entries of the devices of a layout; empty if this server has no objects.
    pub fn devices_of(&self, layout: &Layout) -> List<OsdListed, OBJECTS_MAX> {
        let Some(storage) = self.storage() else {
            return List::default();
        };
        let mut osds: Vec<u32> = layout.objects.iter().map(|placed| placed.osd).collect();
        osds.sort_unstable();
        osds.dedup();
        List::from_iter_cut(osds.into_iter().filter_map(|osd| storage.devices.get(osd)))
    }
}
