//! AFSOSD: the calls of clients that support objects, of administrators of object storage, and of
//! other file servers.
//!
//! The needed rights are those of the corresponding RXAFS calls: BeginFetch of FetchData,
//! BeginStore of StoreData, SetPolicy of StoreACL. The permissions of a client are sealed into
//! capabilities. Devices honour them for a few minutes, or for one minute to store. A store is
//! remembered until it ends or is no longer renewed (`fileobjects/src/direct_stores.rs`).

mod archives;
mod fetch;
mod jobs;
mod older;
mod pieces;
mod pins;
mod policy;
mod recalls;
mod references;
mod store;
mod upkeep;

use std::sync::Arc;

use cellar_fileobjects::Grantee;
use cellar_rpc::IncomingCall;
use cellar_volume::{VnodeStatus, Volume};
use cellar_wire::acl::Rights;
use cellar_wire::ids::{Fid, ViceId};
use cellar_wire::serve::CallHandler;
use cellar_wire::{AbortCode, Package, afsosd};

use crate::abort_map::Refusal;
use crate::access::Identity;
use crate::recall;
use crate::rxafs::common::status_and_access;
use crate::service::{CallResult, Handlers};
use crate::services::FileServices;
use crate::session::Session;
use crate::session::Sessions;
use crate::volumes::VolumeAccess;

/// AFSOSD.
pub(crate) struct ObjectService {
    pub(crate) services: Arc<FileServices>,
}

impl Handlers for ObjectService {
    const PACKAGE: &'static Package = &afsosd::PACKAGE;

    fn sessions(&self) -> &Sessions {
        &self.services.sessions
    }

    async fn dispatch(&self, opcode: u32, call: &mut IncomingCall) -> CallResult {
        let outcome = afsosd::serve(self, opcode, call).await;
        recall::begin_if_wiped(&self.services, call, outcome).await
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

/// The machine and user of a call. The socket of the local administrator has no address: every
/// address is permitted.
fn grantee(call: &IncomingCall, session: &Session) -> Grantee {
    let address = call.port().map(|_| {
        let address = call.peer().address.ip();
        cellar_objects::words_of(address.to_canonical())
    });
    Grantee {
        address,
        user: session.id(),
    }
}

/// A vnode to read or change, if `may` permits it for the caller's rights and the volume's owner.
fn check_vnode_access(
    services: &FileServices,
    session: &Session,
    (fid, want): (Fid, VolumeAccess),
    may: impl FnOnce(&Identity, &VnodeStatus, Rights, ViceId) -> bool,
) -> Result<(Arc<Volume>, VnodeStatus), Refusal> {
    let attached = services.volumes.of(fid, want)?;
    let (status, _, access) = status_and_access(services, session, &attached, fid)?;
    let volume = attached.volume;
    if may(session.identity(), &status, access.caller, volume.owner()) {
        Ok((volume, status))
    } else {
        Err(Refusal::NoRight)
    }
}

/// Refuses all callers except superusers.
fn superuser(sessions: &Sessions, call: &IncomingCall) -> CallResult {
    if sessions.identify(call.caller()).is_superuser() {
        Ok(())
    } else {
        Err(Refusal::NotAdministrator)
    }
}
