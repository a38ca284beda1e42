//! Rename (138): moves an entry to another name or directory, and replaces the entry that has the
//! new name.
//!
//! A directory that gets another parent has its `..` rewritten. Its promises are broken for all
//! hosts, even the caller's, because the reply has no status of it.

use cellar_rpc::IncomingCall;
use cellar_volume::{Changed, Error, FileType, Renamed};
use cellar_wire::acl::Rights;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{Rename, RenameReply};
use cellar_wire::serve::Handle;

use super::FileService;
use super::common::{change, check_named, dir_status_and_access};
use super::names::{check_possible, new_name, old_name};
use crate::abort_map::Refusal;
use crate::callbacks::Touched;
use crate::status::vol_sync;
use crate::volumes::VolumeAccess;
use crate::volumes::check_fid;

impl Handle<Rename, IncomingCall> for FileService {
    async fn handle(&self, call: &IncomingCall, arguments: Rename) -> Result<RenameReply, Refusal> {
        let services = &self.services;
        let Rename {
            old_dir_fid,
            old_name: old,
            new_dir_fid,
            new_name: new,
        } = arguments;
        let session = services.sessions.session(call).await?;
        let work = {
            let (services, session) = (services.clone(), session.clone());
            move || {
                let (old, new) = (old_name(&old)?, new_name(&new)?);
                let special = |name: &[u8]| matches!(name, b"" | b"." | b"..");
                if special(old) || special(new) {
                    return Err(Refusal::Invalid);
                }
                check_fid(new_dir_fid)?;
                let attached = services.volumes.of(old_dir_fid, VolumeAccess::Change)?;
                if old_dir_fid.volume != new_dir_fid.volume {
                    return Err(Refusal::Store(Error::CrossDevice));
                }
                let (old_before, old_access) =
                    dir_status_and_access(&services, &session, &attached, old_dir_fid)?;
                let (new_before, new_access) =
                    dir_status_and_access(&services, &session, &attached, new_dir_fid)?;
                let allowed = old_access.caller.contains(Rights::DELETE)
                    && new_access.caller.contains(Rights::INSERT);
                if !allowed {
                    return Err(Refusal::NoRight);
                }
                check_possible(old)?;
                let volume = &attached.volume;
                check_named(&services.callbacks, &session, volume, old_dir_fid, old)?;
                check_named(&services.callbacks, &session, volume, new_dir_fid, new)?;
                let may_replace = new_access.caller.contains(Rights::DELETE);
                match volume.lookup(new_dir_fid, new) {
                    Ok(_) if !may_replace => return Err(Refusal::NoRight),
                    Ok(_) | Err(Error::NotFound) => {}
                    Err(error) => return Err(error.into()),
                }
                let context = session.context();
                let renamed = if may_replace {
                    volume.rename(old_dir_fid, old, new_dir_fid, new, context)
                } else {
                    // Another call may have taken the name since the lookup.
                    volume.rename_to_free_name(old_dir_fid, old, new_dir_fid, new, context)
                };
                let Changed { outcome, durable } = match renamed {
                    Err(Error::Exists) if !may_replace => return Err(Refusal::NoRight),
                    other => other?,
                };
                services.objects.note_renamed(outcome.moved.fid);
                let (origin, by) = (session.origin(), session.context());
                volume.count_change(origin, &old_before, by);
                if new_dir_fid == old_dir_fid {
                    // OpenAFS counts two changes of one directory here. The first one happened just
                    // before.
                    volume.count_change(origin, &outcome.old_dir, by);
                } else {
                    volume.count_change(origin, &new_before, by);
                }
                let touched = touched(old_dir_fid, new_dir_fid, &outcome);
                let outcome = (outcome, old_access, new_access, volume.clone());
                Ok((Changed { outcome, durable }, touched))
            }
        };
        let (renamed, old_access, new_access, volume) =
            change(&services.callbacks, &session, work).await?;
        if let (Some(status), Some(objects)) = (&renamed.replaced, &renamed.objects) {
            services
                .objects
                .forget(&volume, status.fid, objects.clone());
        }
        Ok(RenameReply {
            old_dir_status: services
                .callbacks
                .show(&session, &renamed.old_dir, old_access),
            new_dir_status: services
                .callbacks
                .show(&session, &renamed.new_dir, new_access),
            sync: vol_sync(&volume),
        })
    }
}

fn touched(old_dir: Fid, new_dir: Fid, renamed: &Renamed) -> Touched {
    let mut touched = Touched::changed([old_dir]);
    let mut used = 1;
    let mut also = |fid| {
        touched.changed[used] = fid;
        used += 1;
    };
    if new_dir != old_dir {
        also(new_dir);
        if renamed.moved.kind != FileType::Directory {
            // Its parent changes, and with it the access list that governs it.
            also(renamed.moved.fid);
        }
    }
    let mut deleted = None;
    if let Some(replaced) = &renamed.replaced {
        if replaced.link_count == 0 {
            deleted = Some(replaced.fid);
        } else {
            also(replaced.fid);
        }
    }
    let turned = new_dir != old_dir && renamed.moved.kind == FileType::Directory;
    let unseen = turned.then_some(renamed.moved.fid);
    Touched {
        unseen,
        deleted,
        ..touched
    }
}
