//! A store that the caller may make: the check, and the place of the bytes after it.

use std::sync::Arc;

use cellar_fileobjects::Objects;
use cellar_fileobjects::StorageDecision;
use cellar_volume::{Error, FileType, SetStatus, StoreSpec, VnodeStatus};
use cellar_wire::ids::Fid;
use cellar_wire::object::Layout;

use super::StoreRequest;
use crate::abort_map::Refusal;
use crate::access::Access;
use crate::limits::STORE_SLACK_BLOCKS;
use crate::rxafs::common::{run, status_and_access};
use crate::rxafs::store_status::allowed_attributes;
use crate::services::FileServices;
use crate::session::Session;
use crate::volumes::{Attached, VolumeAccess};

/// A store that is allowed.
pub(super) struct PermittedStore {
    pub(super) attached: Attached,
    /// The file before the store.
    before: VnodeStatus,
    /// The objects of the file before the store. If the file is on this server after the store, its
    /// objects are removed.
    objects: Option<Arc<Layout>>,
    pub(super) spec: StoreSpec,
    pub(super) access: Access,
}

impl PermittedStore {
    /// The place of the file after the store.
    pub(super) fn place(
        &self,
        objects: &Objects,
        session: &Session,
        asked: &StoreRequest,
    ) -> Result<StorageDecision, Refusal> {
        let kept = self.before.length.min(asked.file_length);
        let length = kept.max(asked.position + asked.length);
        let (volume, ids) = (&self.attached.volume, session.identity().cps.ids());
        Ok(objects.place(volume, &self.before, ids, length, kept)?)
    }

    /// The file.
    pub(super) fn fid(&self) -> Fid {
        self.before.fid
    }

    pub(super) fn count(&self, session: &Session) {
        let volume = &self.attached.volume;
        volume.count_change(session.origin(), &self.before, session.context());
    }
}

/// Whether the caller may store, and with which attributes.
pub(super) fn check(
    services: &FileServices,
    session: &Session,
    asked: &StoreRequest,
) -> Result<PermittedStore, Refusal> {
    let attached = services.volumes.of(asked.fid, VolumeAccess::Change)?;
    let (status, _, access) = status_and_access(services, session, &attached, asked.fid)?;
    if status.kind != FileType::File {
        return Err(Refusal::Store(Error::IsDirectory));
    }
    let identity = session.identity();
    if !identity.may_store_data(&status, access.caller) {
        return Err(Refusal::NoRight);
    }
    let mut attributes: SetStatus =
        allowed_attributes(identity, &status, access.caller, &asked.in_status)?;
    // If the client sends no time, the store happens now.
    attributes.client_time.get_or_insert(session.now);
    let spec = StoreSpec {
        position: asked.position,
        file_length: asked.file_length,
        attributes,
        clear_set_id: !identity.administrator,
        quota_slack: STORE_SLACK_BLOCKS.into(),
    };
    let objects = attached.volume.layout(asked.fid)?;
    Ok(PermittedStore {
        attached,
        before: status,
        objects,
        spec,
        access,
    })
}

/// Whether the bytes that a store keeps are online. The rights come first, so that a stranger
/// cannot begin a recall.
///
/// # Errors
/// `Store(Archived)`: the file must be recalled. The refusals of [`check`].
pub(super) async fn check_online(
    services: &Arc<FileServices>,
    session: &Session,
    asked: &StoreRequest,
) -> Result<(), Refusal> {
    if !services.objects.is_used() {
        return Ok(());
    }
    let (fid, position) = (asked.fid, asked.position);
    let (here, session, asked) = (services.clone(), session.clone(), *asked);
    run(&services.callbacks.clone(), move || {
        let attached = here.volumes.of(fid, VolumeAccess::Change)?;
        if !attached.volume.is_wiped(fid)? {
            return Ok(());
        }
        let permitted = check(&here, &session, &asked)?;
        let kept = permitted.before.length.min(asked.file_length);
        match kept > 0 && (position > 0 || asked.length < kept) {
            true => Err(Refusal::Store(Error::Archived(fid))),
            false => Ok(()),
        }
    })
    .await
}

/// Schedules the removal of a file's objects, after a store has put its bytes on this server.
pub(super) fn schedule_object_removal(objects: &Objects, allowed: &PermittedStore) {
    if let Some(former) = &allowed.objects {
        let (volume, fid) = (&allowed.attached.volume, allowed.fid());
        objects.forget(volume, fid, former.clone());
    }
}
