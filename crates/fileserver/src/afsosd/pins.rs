//! PinFile, UnpinFile: files and directories that are not wiped.

use cellar_rpc::IncomingCall;
use cellar_wire::afsosd::{PinFile, PinFileReply, UnpinFile, UnpinFileReply};
use cellar_wire::ids::{Fid, ViceId};
use cellar_wire::osddb::Pin;
use cellar_wire::serve::Handle;

use super::{ObjectService, archives, superuser};
use crate::abort_map::Refusal;
use crate::volumes::VolumeAccess;

/// Longest time of a pin that a user sets, in seconds: a year.
const USERS_LONGEST: u64 = 366 * 86_400;

impl Handle<PinFile, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: PinFile,
    ) -> Result<PinFileReply, Refusal> {
        let services = &self.services;
        let session = services.sessions.session(call).await?;
        let PinFile { fid, until, reason } = arguments;
        let (owner, made) = (session.id(), services.sessions.wall().as_secs());
        let is_superuser = superuser(&services.sessions, call).is_ok();
        if !is_superuser {
            if owner == ViceId::ANONYMOUS {
                return Err(Refusal::NoRight);
            }
            if until <= made || until > made + USERS_LONGEST {
                return Err(Refusal::Invalid);
            }
        }
        archives::readable(services, &session, fid, |_| Ok(())).await?;
        let pin = Pin {
            fid: self.in_writable(fid)?,
            owner,
            made,
            until,
            reason,
        };
        services.objects.pin(pin).await?;
        Ok(PinFileReply {})
    }
}

impl Handle<UnpinFile, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: UnpinFile,
    ) -> Result<UnpinFileReply, Refusal> {
        let services = &self.services;
        let session = services.sessions.session(call).await?;
        let UnpinFile { fid, owner } = arguments;
        let owner = match owner {
            ViceId(0) => session.id(),
            other => other,
        };
        if session.id() != owner || owner == ViceId::ANONYMOUS {
            superuser(&services.sessions, call)?;
        }
        services
            .objects
            .unpin(self.in_writable(fid)?, owner)
            .await?;
        Ok(UnpinFileReply {})
    }
}

impl ObjectService {
    /// The file in its RW volume. Pins hold for the bytes, which all volumes of a family share. The
    /// RW volume may be on another server, which learns of the pin from the cell's database.
    fn in_writable(&self, fid: Fid) -> Result<Fid, Refusal> {
        let attached = self.services.volumes.of(fid, VolumeAccess::Read)?;
        let volume = attached.volume.info().parent;
        Ok(Fid { volume, ..fid })
    }
}
