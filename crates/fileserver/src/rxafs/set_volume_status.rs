//! SetVolumeStatus (150): quota and messages, for `fs setquota` and `fs setvol`. For
//! administrators.

use bytes::Bytes;
use cellar_rpc::IncomingCall;
use cellar_volume::Changed;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{AfsPath, SetVolumeStatus, SetVolumeStatusReply};
use cellar_wire::serve::Handle;

use super::FileService;
use super::common::change;
use crate::abort_map::Refusal;
use crate::audit;
use crate::callbacks::Touched;
use crate::volumes::VolumeAccess;

/// The longest message that a volume keeps, in bytes.
const MESSAGE_MAX: usize = 127;

impl Handle<SetVolumeStatus, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: SetVolumeStatus,
    ) -> Result<SetVolumeStatusReply, Refusal> {
        let services = &self.services;
        let SetVolumeStatus {
            volume,
            status,
            offline_message,
            message_of_the_day,
            ..
        } = arguments;
        let session = services.sessions.session(call).await?;
        audit::mark_act();
        audit::add_detail("volume", volume);
        for (what, quota) in [
            ("min_quota", status.min_quota),
            ("max_quota", status.max_quota),
        ] {
            if let Some(quota) = quota {
                audit::add_detail(what, quota);
            }
        }
        let work = {
            let (services, session) = (services.clone(), session.clone());
            move || {
                let attached = services
                    .volumes
                    .of(Fid::root(volume), VolumeAccess::Change)?;
                if !session.identity().administrator {
                    return Err(Refusal::NoRight);
                }
                let quota = |blocks: Option<i32>| match blocks.map(u32::try_from) {
                    None => Ok(None),
                    Some(Ok(blocks)) => Ok(Some(blocks)),
                    Some(Err(_)) => Err(Refusal::Invalid),
                };
                let (least, most) = (quota(status.min_quota)?, quota(status.max_quota)?);
                let Changed {
                    outcome: _,
                    durable,
                } = attached.volume.update_info(session.now, |info| {
                    info.min_quota = least.unwrap_or(info.min_quota);
                    info.max_quota = most.unwrap_or(info.max_quota);
                    replace(&mut info.offline_message, &offline_message);
                    replace(&mut info.message_of_the_day, &message_of_the_day);
                })?;
                Ok((
                    Changed {
                        outcome: (),
                        durable,
                    },
                    Touched::default(),
                ))
            }
        };
        change(&services.callbacks, &session, work).await?;
        Ok(SetVolumeStatusReply {})
    }
}

/// Replaces a message. An empty new message leaves the old one.
fn replace(message: &mut Bytes, new: &AfsPath) {
    let text = new
        .as_bytes()
        .split(|&byte| byte == 0)
        .next()
        .unwrap_or_default();
    if !text.is_empty() {
        *message = Bytes::copy_from_slice(&text[..text.len().min(MESSAGE_MAX)]);
    }
}
