//! GetPieces: where the bytes of a file are, for `fs osd`.

use std::sync::Arc;

use cellar_rpc::IncomingCall;
use cellar_wire::List;
use cellar_wire::afsosd::{GetPieces, GetPiecesReply};

use super::devices;
use crate::abort_map::Refusal;
use crate::rxafs::common::{look, run};
use crate::server::Server;
use crate::service::Answered;
use crate::volumes::Want;

pub(super) async fn get_pieces(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let GetPieces { fid } = call.arguments().await.map_err(Refusal::Call)?;
    let session = server.session(call).await?;
    let (status, layout) = {
        let (server, session) = (server.clone(), session.clone());
        run(move || {
            let attached = server.volume_of(fid, Want::Read)?;
            let volume = &attached.volume;
            let (status, _, access) = look(&server, &session, &attached, fid)?;
            let identity = session.identity();
            if !identity.administrator
                && !identity.may_fetch_data(&status, access.caller, volume.owner())
            {
                return Err(Refusal::NoRight);
            }
            Ok(volume.status_and_layout(fid)?)
        })
        .await?
    };
    let devices = match (server.objects.storage(), &layout) {
        (Some(storage), Some(layout)) => devices(storage, layout),
        _ => List::default(),
    };
    call.reply(&GetPiecesReply {
        length: status.length,
        layout: List::from_iter_cut(layout.map(|layout| (*layout).clone())),
        devices,
    });
    Ok(())
}
