//! AFSOSD: the calls of clients that support objects, of administrators of object storage, and of
//! other file servers.
//!
//! The needed rights are those of the corresponding RXAFS calls: BeginFetch of FetchData,
//! BeginStore of StoreData, SetPolicy of StoreACL. The permissions of a client are sealed into
//! capabilities. Devices honour them for a few minutes, or for one minute to store. A store is
//! remembered here until it ends or is no longer renewed ([`leases`]).

mod fetch;
pub(crate) mod leases;
mod pieces;
mod policy;
mod references;
mod store;
mod upkeep;

use std::sync::Arc;

use cellar_rpc::IncomingCall;
use cellar_volume::{VnodeStatus, Volume};
use cellar_wire::acl::Rights;
use cellar_wire::ids::{Fid, ViceId};
use cellar_wire::object::{CapabilityBody, Layout, MAY_READ, Placed, Scheme};
use cellar_wire::osddb::OsdListed;
use cellar_wire::serve::CallHandler;
use cellar_wire::{AbortCode, AfsTime, List, Package, afsosd};

use crate::abort_map::Refusal;
use crate::access::Identity;
use crate::limits::{CLIENT_CAPABILITY_LIFE, STORE_CAPABILITY_LIFE};
use crate::objects::Storage;
use crate::rxafs::common::status_and_access;
use crate::server::Server;
use crate::service::{CallResult, Handlers};
use crate::session::Session;
use crate::volumes::VolumeAccess;

/// AFSOSD.
pub(crate) struct ObjectService {
    pub(crate) server: Arc<Server>,
}

impl Handlers for ObjectService {
    const PACKAGE: &'static Package = &afsosd::PACKAGE;

    fn server(&self) -> &Arc<Server> {
        &self.server
    }

    async fn dispatch(&self, opcode: u32, call: &mut IncomingCall) -> CallResult {
        afsosd::serve(self, opcode, call).await
    }
}

impl CallHandler for ObjectService {
    type Refusal = Refusal;

    fn failed(code: AbortCode) -> Refusal {
        Refusal::Call(code)
    }

    fn declared(code: AbortCode) -> Refusal {
        Refusal::Code(code)
    }
}

/// The bytes of the file are on this server.
const NOT_IN_OBJECTS: Refusal = Refusal::Code(AbortCode::ENODATA);

/// The permissions of a client on objects.
#[derive(Clone, Copy)]
struct Grant {
    /// The `MAY_*` rights.
    rights: u32,
    /// The version that may be written; 0 for none.
    version: u64,
    /// The largest permitted length of the file.
    length: u64,
}

/// Layout, devices and capabilities for a client.
fn access(
    server: &Server,
    storage: &Storage,
    call: &IncomingCall,
    session: &Session,
    fid: Fid,
    layout: &Layout,
    grant: Grant,
) -> afsosd::Access {
    let life = match grant.version {
        0 => CLIENT_CAPABILITY_LIFE,
        _ => STORE_CAPABILITY_LIFE,
    };
    let expires = server.wall().as_secs() + life.as_secs();
    // The socket of the local administrator has no address: every address is permitted.
    let clients = call.port().map(|_| client_address(call));
    let seal = |place: usize, placed: &Placed| {
        let object = layout.object(fid.vnode, fid.uniquifier, placed);
        let end = match grant.version {
            0 => u64::MAX,
            _ => cellar_objects::arithmetic::length_at(&layout.shape, place, grant.length),
        };
        let body = CapabilityBody {
            cell: storage.config.cell.clone(),
            osd: placed.osd,
            object,
            rights: grant.rights,
            base: placed.version,
            version: grant.version,
            begin: 0,
            end,
            expires,
            clients: List::from_iter_cut(clients),
            user: session.id().0,
        };
        (storage.config.seal)(&body)
    };
    let capabilities = layout.objects.iter().enumerate().map(|(place, placed)| {
        let is_of_no_use = placed.stale || (grant.version == 0 && placed.version == 0);
        if is_of_no_use {
            cellar_wire::object::Capability::default()
        } else {
            seal(place, placed)
        }
    });
    afsosd::Access {
        layout: layout.clone(),
        capabilities: List::from_iter_cut(capabilities),
        devices: devices(storage, layout),
        expires: AfsTime(u32::try_from(expires).unwrap_or(u32::MAX)),
    }
}

/// The entries of the devices of a layout.
fn devices(
    storage: &Storage,
    layout: &Layout,
) -> List<OsdListed, { cellar_wire::object::OBJECTS_MAX }> {
    let mut osds: Vec<u32> = layout.objects.iter().map(|placed| placed.osd).collect();
    osds.sort_unstable();
    osds.dedup();
    List::from_iter_cut(osds.into_iter().filter_map(|osd| storage.devices.get(osd)))
}

fn client_address(call: &IncomingCall) -> [u32; 4] {
    cellar_objects::words_of(call.peer().address.ip().to_canonical())
}

/// The rights to store: to write, and with an erasure code also to read the other objects of a row.
fn store_rights(layout: &Layout) -> u32 {
    match layout.shape.scheme {
        Scheme::Striped => cellar_wire::object::MAY_WRITE,
        Scheme::Erasure => cellar_wire::object::MAY_WRITE | MAY_READ,
    }
}

/// A vnode to read or change, if `may` permits it for the caller's rights and the volume's owner.
fn check_vnode_access(
    server: &Server,
    session: &Session,
    (fid, want): (Fid, VolumeAccess),
    may: impl FnOnce(&Identity, &VnodeStatus, Rights, ViceId) -> bool,
) -> Result<(Arc<Volume>, VnodeStatus), Refusal> {
    let attached = server.volume_of(fid, want)?;
    let (status, _, access) = status_and_access(server, session, &attached, fid)?;
    let volume = attached.volume;
    if may(session.identity(), &status, access.caller, volume.owner()) {
        Ok((volume, status))
    } else {
        Err(Refusal::NoRight)
    }
}

/// Refuses all callers except superusers.
fn superuser(server: &Server, call: &IncomingCall) -> CallResult {
    if server.identify(call.caller()).is_superuser() {
        Ok(())
    } else {
        Err(Refusal::NotAdministrator)
    }
}
