//! GetPieces: the places of a file's bytes, for `fs osd`.

use cellar_rpc::IncomingCall;
use cellar_wire::List;
use cellar_wire::afsosd::{GetPieces, GetPiecesReply};
use cellar_wire::serve::Handle;

use super::ObjectService;
use super::check_vnode_access;
use crate::abort_map::Refusal;
use crate::access::Identity;
use crate::rxafs::common::run;
use crate::volumes::VolumeAccess;

impl Handle<GetPieces, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: GetPieces,
    ) -> Result<GetPiecesReply, Refusal> {
        let services = &self.services;
        let GetPieces { fid } = arguments;
        let session = services.sessions.session(call).await?;
        let (status, layout) = {
            let (services, session) = (services.clone(), session.clone());
            run(&services.callbacks.clone(), move || {
                let may = |identity: &Identity, status: &_, rights, owner| {
                    identity.administrator || identity.may_fetch_data(status, rights, owner)
                };
                let (volume, _) =
                    check_vnode_access(&services, &session, (fid, VolumeAccess::Read), may)?;
                Ok(volume.status_and_layout(fid)?)
            })
            .await?
        };
        let devices = match &layout {
            Some(layout) => services.objects.devices_of(layout),
            None => List::default(),
        };
        Ok(GetPiecesReply {
            length: status.length,
            layout: List::from_iter_cut(layout.map(|layout| (*layout).clone())),
            devices,
        })
    }
}
