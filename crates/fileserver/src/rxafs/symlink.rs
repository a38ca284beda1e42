//! Symlink (139): a symbolic link or a mount point. A mount point is a link without execute bits in
//! its mode; creating one also needs the right to administer the directory.

use cellar_rpc::IncomingCall;
use cellar_volume::{Changed, NewVnode};
use cellar_wire::acl::Rights;
use cellar_wire::rxafs::{Symlink, SymlinkReply};
use cellar_wire::serve::Handle;

use super::FileService;
use super::common::change;
use super::create::{Maker, count_new, may_insert};
use super::names::{check_free, new_name, text};
use crate::abort_map::Refusal;
use crate::access::Access;
use crate::callbacks::Touched;
use crate::session::Session;
use crate::status::vol_sync;

const EXECUTE_BITS: u16 = 0o111;

impl Handle<Symlink, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: Symlink,
    ) -> Result<SymlinkReply, Refusal> {
        let services = &self.services;
        let Symlink {
            dir_fid,
            name,
            link_contents,
            in_status,
        } = arguments;
        let session = services.sessions.session(call).await?;
        let work = {
            let (services, session) = (services.clone(), session.clone());
            move || {
                let name = new_name(&name)?;
                let target = text(link_contents.as_bytes())?;
                if target.is_empty() {
                    return Err(Refusal::Invalid);
                }
                let Maker {
                    attached,
                    dir,
                    access,
                    new,
                } = may_insert(&services, &session, dir_fid, &in_status)?;
                check_free(name)?;
                may_link(&session, access, &new)?;
                let volume = &attached.volume;
                let Changed { outcome, durable } =
                    volume.symlink(dir_fid, name, target, &new, session.context())?;
                count_new(&session, volume, &dir);
                let outcome = (outcome, access, vol_sync(volume));
                Ok((Changed { outcome, durable }, Touched::changed([dir_fid])))
            }
        };
        let (created, access, sync) = change(&services.callbacks, &session, work).await?;
        Ok(SymlinkReply {
            fid: created.status.fid,
            status: services.callbacks.show(&session, &created.status, access),
            dir_status: services.callbacks.show(&session, &created.dir, access),
            sync,
        })
    }
}

/// Checks that a caller who may create links may create this one: a mount point needs more rights.
pub(super) fn may_link(session: &Session, access: Access, new: &NewVnode) -> Result<(), Refusal> {
    let mount_point = new.mode.is_some_and(|mode| mode & EXECUTE_BITS == 0);
    let administers =
        access.caller.contains(Rights::ADMINISTER) || session.identity().administrator;
    if mount_point && !administers {
        return Err(Refusal::NoRight);
    }
    Ok(())
}
