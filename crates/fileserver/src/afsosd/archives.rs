//! Archive, Wipe, Recall, ListCopies, VerifyCopies: copies of a file in archives.

use std::sync::Arc;

use cellar_rpc::{IncomingCall, blocking};
use cellar_volume::Volume;
use cellar_wire::afsosd::{
    Archive, ArchiveReply, ListCopies, ListCopiesReply, Recall, RecallReply, VerifyCopies,
    VerifyCopiesReply, Wipe, WipeReply,
};
use cellar_wire::ids::Fid;
use cellar_wire::serve::Handle;
use cellar_wire::{AbortCode, List};

use super::{ObjectService, check_vnode_access, superuser};
use crate::abort_map::Refusal;
use crate::access::Identity;
use crate::recall;
use crate::rxafs::common::run;
use crate::services::FileServices;
use crate::session::Session;
use crate::volumes::VolumeAccess;

impl Handle<Archive, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: Archive,
    ) -> Result<ArchiveReply, Refusal> {
        let services = &self.services;
        let Archive { fid, osd } = arguments;
        superuser(&services.sessions, call)?;
        let volume = volume_of(services, fid).await?;
        let copy = services.objects.archive(&volume, fid, osd).await?;
        Ok(ArchiveReply { copy })
    }
}

impl Handle<Wipe, IncomingCall> for ObjectService {
    async fn handle(&self, call: &IncomingCall, arguments: Wipe) -> Result<WipeReply, Refusal> {
        let services = &self.services;
        let Wipe { fid, copies } = arguments;
        superuser(&services.sessions, call)?;
        let volume = volume_of(services, fid).await?;
        let length = services.objects.wipe(&volume, fid, copies as usize).await?;
        Ok(WipeReply { length })
    }
}

impl Handle<VerifyCopies, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: VerifyCopies,
    ) -> Result<VerifyCopiesReply, Refusal> {
        let services = &self.services;
        let VerifyCopies { fid, osd } = arguments;
        superuser(&services.sessions, call)?;
        let volume = volume_of(services, fid).await?;
        let verified = services.objects.verify(&volume, fid, osd).await?;
        Ok(VerifyCopiesReply {
            good: verified.good,
            bad: verified.bad,
            bytes: verified.bytes,
        })
    }
}

impl Handle<Recall, IncomingCall> for ObjectService {
    async fn handle(&self, call: &IncomingCall, arguments: Recall) -> Result<RecallReply, Refusal> {
        let services = &self.services;
        let Recall { fid } = arguments;
        let session = services.sessions.session(call).await?;
        readable(services, &session, fid, |_| Ok(())).await?;
        match recall::wait(services, &session, fid).await {
            // Clients that ask for a recall are told why they do not get it.
            Err(Refusal::OverRecallLimit) => return Err(Refusal::Code(AbortCode::EDQUOT)),
            recalled => recalled?,
        }
        Ok(RecallReply {})
    }
}

impl Handle<ListCopies, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: ListCopies,
    ) -> Result<ListCopiesReply, Refusal> {
        let services = &self.services;
        let ListCopies { fid } = arguments;
        let session = services.sessions.session(call).await?;
        let look = move |volume: &Volume| {
            let (length, archive) = (volume.status(fid)?.length, volume.archive_state(fid)?);
            Ok(ListCopiesReply {
                length,
                version: archive.contents.map_or(0, |contents| contents.version),
                online: archive.wiped.is_none(),
                copies: List::from_iter_cut(archive.copies),
            })
        };
        readable(services, &session, fid, look).await
    }
}

/// The volume of a file.
async fn volume_of(services: &Arc<FileServices>, fid: Fid) -> Result<Arc<Volume>, Refusal> {
    let services = services.clone();
    let found = blocking(move || services.volumes.find(fid.volume)).await?;
    Ok(found.ok_or(Refusal::NoVolume)?.1.volume)
}

/// Looks at a file that the caller may read.
pub(super) async fn readable<T: Send + 'static>(
    services: &Arc<FileServices>,
    session: &Session,
    fid: Fid,
    look: impl Fn(&Volume) -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let (services, session) = (services.clone(), session.clone());
    run(&services.callbacks.clone(), move || {
        let may = |identity: &Identity, status: &_, rights, owner| {
            identity.administrator || identity.may_fetch_data(status, rights, owner)
        };
        let (volume, _) = check_vnode_access(&services, &session, (fid, VolumeAccess::Read), may)?;
        look(&volume)
    })
    .await
}
