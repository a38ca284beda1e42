//! BeginStore, ExtendStore, EndStore, AbortStore: a store that a client makes directly
//! (`fileobjects/src/direct.rs`).

use std::sync::Arc;

use cellar_fileobjects::Objects;
use cellar_fileobjects::{DirectRequest, Grant, OBJECT_MOVE_MAX, ObjectSpec, StorageDecision};
use cellar_rpc::{IncomingCall, blocking};
use cellar_volume::{Error, FileType, SetStatus, StoreSpec, VnodeStatus, Volume};
use cellar_wire::AbortCode;
use cellar_wire::acl::Rights;
use cellar_wire::afsosd::{
    AbortStore, AbortStoreReply, BeginStore, BeginStoreReply, EndStore, EndStoreReply, ExtendStore,
    ExtendStoreReply,
};
use cellar_wire::ids::Fid;
use cellar_wire::object::{Layout, Shape};
use cellar_wire::serve::Handle;

use super::ObjectService;
use super::{NOT_IN_OBJECTS, grantee};
use crate::abort_map::Refusal;
use crate::access::Access;
use crate::limits::STORE_SLACK_BLOCKS;
use crate::rxafs::common::{commit_objects, run, status_and_access, when_loaded};
use crate::services::FileServices;
use crate::session::Session;
use crate::status::vol_sync;
use crate::volumes::{Attached, VolumeAccess};

/// A permitted store, with the present status of the file.
struct PermittedStore {
    attached: Attached,
    status: VnodeStatus,
    access: Access,
}

fn check(services: &FileServices, session: &Session, fid: Fid) -> Result<PermittedStore, Refusal> {
    let attached = services.volumes.of(fid, VolumeAccess::Change)?;
    let (status, _, access) = status_and_access(services, session, &attached, fid)?;
    if status.kind != FileType::File {
        return Err(Refusal::Store(Error::IsDirectory));
    }
    if !session.identity().may_store_data(&status, access.caller) {
        return Err(Refusal::NoRight);
    }
    Ok(PermittedStore {
        attached,
        status,
        access,
    })
}

/// Checks that the volume's quota allows a file of that length.
fn check_quota(volume: &Volume, status: &VnodeStatus, length: u64) -> Result<(), Refusal> {
    let info = volume.info();
    let grown = cellar_volume::blocks_of(length).saturating_sub(status.blocks());
    let most = u64::from(info.max_quota) + u64::from(STORE_SLACK_BLOCKS);
    if info.max_quota > 0 && grown > 0 && info.blocks_used.saturating_add(grown) > most {
        return Err(Refusal::Store(Error::OverQuota));
    }
    Ok(())
}

/// The end of a range, if a file can have that length.
fn end_of(position: u64, length: u64) -> Result<u64, Refusal> {
    let end = position.checked_add(length);
    end.filter(|end| *end <= i64::MAX as u64)
        .ok_or(Refusal::TooBig)
}

impl Handle<BeginStore, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: BeginStore,
    ) -> Result<BeginStoreReply, Refusal> {
        let services = &self.services;
        let BeginStore {
            fid,
            position,
            length,
            file_length,
            shape,
        } = arguments;
        let end = end_of(position, length)?.max(end_of(file_length, 0)?);
        let session = services.sessions.session(call).await?;
        check_used(&services.objects)?;
        let shape = shape.first().copied();
        {
            let (services, session) = (services.clone(), session.clone());
            run(&services.callbacks.clone(), move || {
                let allowed = check(&services, &session, fid)?;
                let identity = session.identity();
                let chooses = allowed.access.caller.contains(Rights::ADMINISTER);
                if shape.is_some() && !chooses && !identity.administrator {
                    return Err(Refusal::NoRight);
                }
                Ok(())
            })
            .await?;
        }
        let store_lock = services.objects.lock_for_direct(fid).await;
        let store_lock = store_lock.ok_or(Refusal::Code(AbortCode::EBUSY))?;
        let look = async || {
            let (services, session) = (services.clone(), session.clone());
            blocking(move || {
                let allowed = check(&services, &session, fid)?;
                let volume = &allowed.attached.volume;
                let (status, old) = volume.status_and_layout(fid)?;
                let length = end.max(status.length);
                check_quota(volume, &status, length)?;
                let place = storage_decision(
                    &services.objects,
                    &session,
                    volume,
                    &status,
                    old.as_deref(),
                    length,
                    shape,
                )?;
                let serial = volume.last_serial(fid)?;
                let allowed = PermittedStore { status, ..allowed };
                Ok::<_, Refusal>((allowed, old, serial, place))
            })
            .await
        };
        let (allowed, old, serial, place) = when_loaded(&services.objects, look).await?;
        let StorageDecision::Objects(wanted) = place else {
            return Err(NOT_IN_OBJECTS);
        };
        let status = services
            .callbacks
            .show(&session, &allowed.status, allowed.access);
        let request = DirectRequest {
            volume: allowed.attached.volume,
            before: allowed.status,
            old,
            serial,
            wanted,
            end,
            user: session.id(),
        };
        let begun = services.objects.begin_direct(request, store_lock).await?;
        let begun = begun.ok_or(NOT_IN_OBJECTS)?;
        let store = begun.number;
        let grant = Grant::store(&begun.next, begun.length);
        let grantee = grantee(call, &session);
        let access = services.objects.grant(fid, &begun.next, grant, grantee)?;
        Ok(BeginStoreReply {
            store,
            status,
            access,
        })
    }
}

/// The wanted place of the file. A caller with the administer right can choose the layout.
fn storage_decision(
    objects: &Objects,
    session: &Session,
    volume: &Volume,
    status: &VnodeStatus,
    old: Option<&Layout>,
    length: u64,
    shape: Option<Shape>,
) -> Result<StorageDecision, Refusal> {
    if old.is_none()
        && let Some(shape) = shape
    {
        return Ok(StorageDecision::Objects(ObjectSpec {
            shape,
            class: None,
            by_size: false,
        }));
    }
    if old.is_none() && status.length > OBJECT_MOVE_MAX {
        return Ok(StorageDecision::Here);
    }
    let ids = session.identity().cps.ids();
    Ok(objects.place(volume, status, ids, length, status.length)?)
}

/// Checks that this server has objects.
fn check_used(objects: &Objects) -> Result<(), Refusal> {
    match objects.is_used() {
        true => Ok(()),
        false => Err(NOT_IN_OBJECTS),
    }
}

impl Handle<ExtendStore, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: ExtendStore,
    ) -> Result<ExtendStoreReply, Refusal> {
        let services = &self.services;
        let ExtendStore {
            fid,
            store,
            position,
            length,
        } = arguments;
        let end = end_of(position, length)?;
        let session = services.sessions.session(call).await?;
        check_used(&services.objects)?;
        {
            let (services, session) = (services.clone(), session.clone());
            run(&services.callbacks.clone(), move || {
                let allowed = check(&services, &session, fid)?;
                check_quota(&allowed.attached.volume, &allowed.status, end)
            })
            .await?;
        }
        let objects = &services.objects;
        let extended = objects.extend_direct(store, fid, session.id(), end)?;
        let grant = Grant::store(&extended.next, extended.length);
        let access = objects.grant(fid, &extended.next, grant, grantee(call, &session))?;
        Ok(ExtendStoreReply { access })
    }
}

impl Handle<EndStore, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: EndStore,
    ) -> Result<EndStoreReply, Refusal> {
        let services = &self.services;
        let EndStore {
            fid,
            store,
            length,
            modified,
            failed,
        } = arguments;
        let session = services.sessions.session(call).await?;
        // Checked before the store leaves the table. A caller that may no longer end it can still
        // abort it.
        let allowed = {
            let (services, session) = (services.clone(), session.clone());
            run(&services.callbacks.clone(), move || {
                check(&services, &session, fid)
            })
            .await?
        };
        let objects = &services.objects;
        let ended = objects.end_direct(store, fid, session.id(), length, &failed)?;
        let spec = StoreSpec {
            attributes: SetStatus {
                client_time: Some(modified),
                ..SetStatus::default()
            },
            clear_set_id: !session.identity().administrator,
            quota_slack: STORE_SLACK_BLOCKS.into(),
            ..StoreSpec::at(0)
        };
        let stored = Arc::new(ended);
        let committed = commit_objects(&services.callbacks, &session, stored.clone(), spec).await?;
        let status = committed.ok_or(Refusal::Code(AbortCode::ESTALE))?;
        Ok(EndStoreReply {
            status: services.callbacks.show(&session, &status, allowed.access),
            sync: vol_sync(stored.volume()),
        })
    }
}

impl Handle<AbortStore, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: AbortStore,
    ) -> Result<AbortStoreReply, Refusal> {
        let services = &self.services;
        let AbortStore { fid, store } = arguments;
        let session = services.sessions.session(call).await?;
        services.objects.abort_direct(store, fid, session.id())?;
        Ok(AbortStoreReply {})
    }
}
