//! GetPolicy, SetPolicy, SetVolumePolicy: the policies that decide about the places of files.

use cellar_fileobjects::Objects;
use cellar_rpc::IncomingCall;
use cellar_volume::{Changed, Error, FileType};
use cellar_wire::afsosd::{
    GetPolicy, GetPolicyReply, SetPolicy, SetPolicyReply, SetVolumePolicy, SetVolumePolicyReply,
};
use cellar_wire::ids::Fid;
use cellar_wire::serve::Handle;

use super::ObjectService;
use super::check_vnode_access;
use crate::abort_map::Refusal;
use crate::access::Identity;
use crate::audit;
use crate::callbacks::Touched;
use crate::rxafs::common::{change, run};
use crate::volumes::VolumeAccess;

impl Handle<GetPolicy, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: GetPolicy,
    ) -> Result<GetPolicyReply, Refusal> {
        let services = &self.services;
        let GetPolicy { fid } = arguments;
        let session = services.sessions.session(call).await?;
        let (directory, volume) = {
            let (services, session) = (services.clone(), session.clone());
            run(&services.callbacks.clone(), move || {
                let may = Identity::may_fetch_status;
                let (volume, status) =
                    check_vnode_access(&services, &session, (fid, VolumeAccess::Read), may)?;
                let dir = match status.kind {
                    FileType::Directory => fid,
                    _ => Fid {
                        volume: fid.volume,
                        vnode: status.parent,
                        uniquifier: status.parent_uniquifier,
                    },
                };
                Ok(volume.policies(dir)?)
            })
            .await?
        };
        Ok(GetPolicyReply { directory, volume })
    }
}

impl Handle<SetPolicy, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: SetPolicy,
    ) -> Result<SetPolicyReply, Refusal> {
        let services = &self.services;
        let SetPolicy { fid, policy } = arguments;
        let session = services.sessions.session(call).await?;
        check_policy(&services.objects, policy)?;
        let work = {
            let (services, session) = (services.clone(), session.clone());
            move || {
                let may = |identity: &Identity, _: &_, rights, owner| {
                    identity.may_store_acl(rights, owner)
                };
                let (volume, status) =
                    check_vnode_access(&services, &session, (fid, VolumeAccess::Change), may)?;
                if status.kind != FileType::Directory {
                    return Err(Refusal::Store(Error::NotDirectory));
                }
                let Changed { outcome, durable } =
                    volume.set_policy(fid, policy, session.context())?;
                Ok((Changed { outcome, durable }, Touched::changed([fid])))
            }
        };
        change(&services.callbacks, &session, work).await?;
        Ok(SetPolicyReply {})
    }
}

impl Handle<SetVolumePolicy, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: SetVolumePolicy,
    ) -> Result<SetVolumePolicyReply, Refusal> {
        let services = &self.services;
        let SetVolumePolicy { fid, policy } = arguments;
        let session = services.sessions.session(call).await?;
        audit::mark_act();
        audit::add_detail("volume", fid.volume);
        audit::add_detail("policy", policy);
        if !session.identity().administrator {
            return Err(Refusal::NotAdministrator);
        }
        check_policy(&services.objects, policy)?;
        let durable = {
            let (services, session) = (services.clone(), session.clone());
            run(&services.callbacks.clone(), move || {
                let attached = services.volumes.of(fid, VolumeAccess::Change)?;
                let set = attached
                    .volume
                    .update_info(session.now, |info| info.policy = policy)?;
                Ok(set.durable)
            })
            .await?
        };
        durable.await?;
        Ok(SetVolumePolicyReply {})
    }
}

/// Checks that the cell has such a policy.
fn check_policy(objects: &Objects, policy: u32) -> Result<(), Refusal> {
    if objects.has_policy(policy) {
        Ok(())
    } else {
        Err(Refusal::Invalid)
    }
}
