//! Link (140): another name for a file, in the same directory.

use cellar_rpc::IncomingCall;
use cellar_volume::{Changed, Error};
use cellar_wire::acl::Rights;
use cellar_wire::rxafs::{Link, LinkReply};
use cellar_wire::serve::Handle;

use super::FileService;
use super::common::{change, dir_status_and_access};
use super::names::{check_free, new_name};
use crate::abort_map::Refusal;
use crate::callbacks::Touched;
use crate::status::vol_sync;
use crate::volumes::VolumeAccess;
use crate::volumes::check_fid;

impl Handle<Link, IncomingCall> for FileService {
    async fn handle(&self, call: &IncomingCall, arguments: Link) -> Result<LinkReply, Refusal> {
        let services = &self.services;
        let Link {
            dir_fid,
            name,
            existing_fid,
        } = arguments;
        let session = services.sessions.session(call).await?;
        let work = {
            let (services, session) = (services.clone(), session.clone());
            move || {
                let name = new_name(&name)?;
                check_fid(existing_fid)?;
                let attached = services.volumes.of(dir_fid, VolumeAccess::Change)?;
                if dir_fid.volume != existing_fid.volume {
                    return Err(Refusal::Store(Error::CrossDevice));
                }
                if existing_fid.vnode.is_directory() {
                    return Err(Refusal::Store(Error::IsDirectory));
                }
                let (before, access) =
                    dir_status_and_access(&services, &session, &attached, dir_fid)?;
                if !access.caller.contains(Rights::INSERT) {
                    return Err(Refusal::NoRight);
                }
                check_free(name)?;
                let volume = &attached.volume;
                let Changed { outcome, durable } =
                    volume.link(dir_fid, name, existing_fid, session.context())?;
                volume.count_change(session.origin(), &before, session.context());
                let outcome = (outcome, access, vol_sync(volume));
                Ok((
                    Changed { outcome, durable },
                    Touched::changed([dir_fid, existing_fid]),
                ))
            }
        };
        let (linked, access, sync) = change(&services.callbacks, &session, work).await?;
        Ok(LinkReply {
            status: services.callbacks.show(&session, &linked.status, access),
            dir_status: services.callbacks.show(&session, &linked.dir, access),
            sync,
        })
    }
}
