//! BeginStore, ExtendStore, EndStore, AbortStore: a store that a client makes directly.
//!
//! 1. BeginStore takes the store lock of the file, as the server's own stores do, and returns the
//!    objects and versions that may be written. Bytes on this server, or in objects that belong to
//!    another volume, are first moved to new objects of this volume. The contents stay the same, so
//!    no promise is broken.
//! 2. EndStore reports which objects were not touched and which failed. If every part of the file
//!    has an object with all its data, one change of the vnode makes the store effective. Failed
//!    objects are stale from then on, and repaired. Otherwise the file is unchanged (EIO).

use std::time::Duration;

use cellar_objects::arithmetic::stripe_of;
use cellar_rpc::{IncomingCall, blocking};
use cellar_volume::{
    Changed, Error, FileType, LayoutChange, SetStatus, StoreSpec, VnodeStatus, Volume,
};
use cellar_wire::AbortCode;
use cellar_wire::acl::Rights;
use cellar_wire::afsosd::{
    AbortStore, AbortStoreReply, BeginStore, BeginStoreReply, EndStore, EndStoreReply, ExtendStore,
    ExtendStoreReply, Failed,
};
use cellar_wire::ids::Fid;
use cellar_wire::object::{Layout, Placed, Scheme, Shape};
use cellar_wire::serve::Handle;
use tokio::time::timeout;

use super::ObjectService;
use super::leases::{self, Lease};
use super::{Grant, NOT_IN_OBJECTS, access, store_rights};
use crate::abort_map::Refusal;
use crate::access::Access;
use crate::limits::{OBJECT_MOVE_MAX, REMOVE_FAILED_PATIENCE, STORE_SLACK_BLOCKS};
use crate::objects::layouts::{self, NewFile};
use crate::objects::liveness;
use crate::objects::loaded_lists::retry_when_loaded;
use crate::objects::policies::{ObjectSpec, StorageDecision};
use crate::objects::store::{self, Storing};
use crate::rxafs::common::{Touched, collect, finish, run, status_and_access};
use crate::server::Server;
use crate::session::Session;
use crate::status::vol_sync;
use crate::volumes::{Attached, VolumeAccess};

/// How long BeginStore waits for another store of the file.
const STORE_LOCK_WAIT: Duration = Duration::from_secs(2);
// Long enough to outlast the cleanup of an aborted store.
const _: () = assert!(REMOVE_FAILED_PATIENCE.as_millis() <= STORE_LOCK_WAIT.as_millis());

/// A permitted store, with the present status of the file.
struct PermittedStore {
    attached: Attached,
    status: VnodeStatus,
    access: Access,
}

fn check(server: &Server, session: &Session, fid: Fid) -> Result<PermittedStore, Refusal> {
    let attached = server.volume_of(fid, VolumeAccess::Change)?;
    let (status, _, access) = status_and_access(server, session, &attached, fid)?;
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
        let server = &self.server;
        let BeginStore {
            fid,
            position,
            length,
            file_length,
            shape,
        } = arguments;
        let end = end_of(position, length)?.max(end_of(file_length, 0)?);
        let session = server.session(call).await?;
        let storage = server.objects.storage().ok_or(NOT_IN_OBJECTS)?;
        let shape = shape.first().copied();
        {
            let (server, session) = (server.clone(), session.clone());
            run(&server.clone(), move || {
                let allowed = check(&server, &session, fid)?;
                let identity = session.identity();
                let chooses = allowed.access.caller.contains(Rights::ADMINISTER);
                if shape.is_some() && !chooses && !identity.administrator {
                    return Err(Refusal::NoRight);
                }
                Ok(())
            })
            .await?;
        }
        let store_lock = timeout(STORE_LOCK_WAIT, server.objects.store_locks.wait(fid)).await;
        let Ok(Some(store_lock)) = store_lock else {
            return Err(Refusal::Code(AbortCode::EBUSY));
        };
        let look = async || {
            let (server, session) = (server.clone(), session.clone());
            blocking(move || {
                let allowed = check(&server, &session, fid)?;
                let volume = &allowed.attached.volume;
                let (status, old) = volume.status_and_layout(fid)?;
                let length = end.max(status.length);
                check_quota(volume, &status, length)?;
                let place = storage_decision(
                    &server,
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
        let (allowed, old, serial, place) =
            retry_when_loaded(&server.objects.loaded_lists, look).await?;
        let StorageDecision::Objects(wanted) = place else {
            return Err(NOT_IN_OBJECTS);
        };
        let volume = allowed.attached.volume.clone();
        let before = allowed.status;
        let is_own = match &old {
            Some(old) => server.writes_in_place(&volume, fid, old).await,
            None => false,
        };
        let length = end.max(before.length);
        let info = volume.info();
        let (old, next, store_lock) = if is_own || before.length == 0 {
            let next = match old.as_ref().filter(|_| is_own) {
                Some(old) => layouts::next(server, fid, old, length, info.borrowed)?,
                None => {
                    let file = NewFile {
                        volume: info.id,
                        wanted: &wanted,
                        size: length,
                        serial,
                        borrowed: info.borrowed,
                    };
                    let fresh = liveness::new_layout(server, &file).await?;
                    fresh.ok_or(NOT_IN_OBJECTS)?
                }
            };
            (old, next, store_lock)
        } else {
            let moving =
                Storing::moving(server, &volume, before, old, store_lock, &wanted, serial).await?;
            let (moved, store_lock) = moving.ok_or(NOT_IN_OBJECTS)?.move_out().await?;
            let next = layouts::next(server, fid, &moved, length, info.borrowed)?;
            (Some(moved), next, store_lock)
        };
        store::check_takes_changes(&volume).await?;
        let version_guard = server.objects.pending_versions.store(fid, &next);
        let grant = Grant {
            rights: store_rights(&next),
            version: next.version,
            length,
        };
        let access = access(server, storage, call, &session, fid, &next, grant);
        let status = server.show(&session, &before, allowed.access);
        let store = server.objects.leases.add(Lease {
            fid,
            volume,
            user: session.id(),
            before,
            old,
            next,
            length,
            expires: leases::end(server.wall().as_secs()),
            store_lock,
            version_guard,
        })?;
        Ok(BeginStoreReply {
            store,
            status,
            access,
        })
    }
}

/// The wanted place of the file. A caller with the administer right can choose the layout.
fn storage_decision(
    server: &Server,
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
    store::place(
        server,
        volume,
        status,
        session.identity(),
        length,
        status.length,
    )
}

impl Handle<ExtendStore, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: ExtendStore,
    ) -> Result<ExtendStoreReply, Refusal> {
        let server = &self.server;
        let ExtendStore {
            fid,
            store,
            position,
            length,
        } = arguments;
        let end = end_of(position, length)?;
        let session = server.session(call).await?;
        let storage = server.objects.storage().ok_or(NOT_IN_OBJECTS)?;
        {
            let (server, session) = (server.clone(), session.clone());
            run(&server.clone(), move || {
                let allowed = check(&server, &session, fid)?;
                check_quota(&allowed.attached.volume, &allowed.status, end)
            })
            .await?;
        }
        let now = server.wall().as_secs();
        let leases = &server.objects.leases;
        let (next, length) = leases.with(store, fid, session.id(), now, |lease| {
            lease.expires = leases::end(now);
            lease.length = lease.length.max(end);
            (lease.next.clone(), lease.length)
        })?;
        let grant = Grant {
            rights: store_rights(&next),
            version: next.version,
            length,
        };
        let access = access(server, storage, call, &session, fid, &next, grant);
        Ok(ExtendStoreReply { access })
    }
}

impl Handle<EndStore, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: EndStore,
    ) -> Result<EndStoreReply, Refusal> {
        let server = &self.server;
        let EndStore {
            fid,
            store,
            length,
            modified,
            failed,
        } = arguments;
        let session = server.session(call).await?;
        let now = server.wall().as_secs();
        // Checked before the store leaves the table. A caller that may no longer end it can still
        // abort it.
        let allowed = {
            let (server, session) = (server.clone(), session.clone());
            run(&server.clone(), move || check(&server, &session, fid)).await?
        };
        let lease = server.objects.leases.take(store, fid, session.id(), now)?;
        let layout = match after(&lease.next, &failed) {
            Ok(layout) if length <= lease.length => layout,
            ended => {
                server.remove_failed_store(
                    &lease.volume,
                    fid,
                    lease.next,
                    (lease.store_lock, lease.version_guard),
                );
                return Err(ended.err().unwrap_or(Refusal::Invalid));
            }
        };
        let spec = StoreSpec {
            attributes: SetStatus {
                client_time: Some(modified),
                ..SetStatus::default()
            },
            clear_set_id: !session.identity().administrator,
            quota_slack: STORE_SLACK_BLOCKS.into(),
            ..StoreSpec::at(0)
        };
        let (stored, whole) = (layout.clone(), length.max(lease.before.length));
        let ended = {
            let (server, session) = (server.clone(), session.clone());
            blocking(move || {
                let change = LayoutChange {
                    layout,
                    length: length.max(lease.before.length),
                    attributes: spec.attributes,
                    clear_set_id: spec.clear_set_id,
                    quota_slack: spec.quota_slack,
                };
                let expected = lease.before.data_version;
                let changed = lease
                    .volume
                    .set_layout(fid, expected, &change, session.context());
                let changed: Changed<VnodeStatus> = match changed {
                    Err(error) => return Err(Box::new((error, lease))),
                    Ok(changed) => changed,
                };
                let touched = Touched::changed([fid]);
                let pending = collect(&server, &touched, session.host_slot(), session.now.0);
                Ok((changed, pending, lease))
            })
            .await
        };
        let (changed, pending, lease) = match ended {
            Ok(ended) => ended,
            Err(refused) => {
                let (error, lease) = *refused;
                if store::is_refused_here(&error) {
                    server.remove_failed_store(
                        &lease.volume,
                        fid,
                        lease.next,
                        (lease.store_lock, lease.version_guard),
                    );
                }
                return Err(match error {
                    Error::Stale(_) => Refusal::Code(AbortCode::ESTALE),
                    other => other.into(),
                });
            }
        };
        let volume = &lease.volume;
        volume.count_change(session.origin(), &lease.before, session.context());
        let status = finish(server, changed, pending).await?;
        if let Some(old) = &lease.old {
            server.objects.prunes.queue(volume, fid, old.clone());
        }
        server.repair_after_store(fid, &stored, whole);
        Ok(EndStoreReply {
            status: server.show(&session, &status, allowed.access),
            sync: vol_sync(volume),
        })
    }
}

impl Handle<AbortStore, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: AbortStore,
    ) -> Result<AbortStoreReply, Refusal> {
        let server = &self.server;
        let AbortStore { fid, store } = arguments;
        let session = server.session(call).await?;
        let now = server.wall().as_secs();
        let lease = server.objects.leases.take(store, fid, session.id(), now)?;
        server.remove_failed_store(
            &lease.volume,
            fid,
            lease.next,
            (lease.store_lock, lease.version_guard),
        );
        Ok(AbortStoreReply {})
    }
}

/// The layout after a store, by its client's report.
fn after(next: &Layout, failed: &[Failed]) -> Result<Layout, Refusal> {
    let mut layout = next.clone();
    let version = layout.version;
    let objects = layout.objects.as_mut_slice();
    let mut said = vec![None; objects.len()];
    for one in failed {
        let place = said.get_mut(one.place as usize).ok_or(Refusal::Invalid)?;
        *place = Some(one.code);
    }
    for (placed, said) in objects.iter_mut().zip(&said) {
        match said {
            // The object was not touched.
            Some(0) => {}
            Some(_) => {
                placed.version = version;
                placed.stale = true;
            }
            None => placed.version = version,
        }
    }
    // A write must reach all copies and the parity. An object that was omitted lacks the store.
    let touched: Vec<usize> = (0..objects.len())
        .filter(|&at| said[at] != Some(0))
        .collect();
    for (place, placed) in objects.iter_mut().enumerate() {
        let stripe = stripe_of(&layout.shape, place);
        let lacks = |other: &usize| match stripe {
            Some(_) if layout.shape.scheme == Scheme::Erasure => false,
            Some(_) => stripe_of(&layout.shape, *other) == stripe,
            None => true,
        };
        if said[place] == Some(0) && touched.iter().any(lacks) {
            placed.version = version;
            placed.stale = true;
        }
    }
    if holds_everything(&layout) {
        Ok(layout)
    } else {
        Err(Refusal::Objects(AbortCode::EIO))
    }
}

/// Whether all bytes of a file are in objects that are not stale.
fn holds_everything(layout: &Layout) -> bool {
    let objects: &[Placed] = &layout.objects;
    let (stripes, copies) = (layout.shape.stripes as usize, layout.shape.copies as usize);
    match layout.shape.scheme {
        Scheme::Striped => (0..stripes).all(|stripe| {
            let mut all = (0..copies).map(|copy| &objects[copy * stripes + stripe]);
            all.any(|placed| !placed.stale)
        }),
        Scheme::Erasure => objects.iter().filter(|placed| placed.stale).count() <= copies,
    }
}

#[cfg(test)]
mod tests {
    use cellar_wire::List;

    use super::*;

    /// The objects that are stale after a store of version 9 over version 8.
    fn stale(
        scheme: Scheme,
        stripes: u32,
        copies: u32,
        failed: &[(u32, i32)],
    ) -> Result<Vec<usize>, i32> {
        let shape = Shape {
            scheme,
            stripes,
            copies,
            ..Shape::default()
        };
        let placed = |number: usize| Placed {
            osd: number as u32,
            serial: 1,
            version: 8,
            stale: false,
        };
        let next = Layout {
            shape,
            version: 9,
            serial: 1,
            volume: cellar_wire::VolumeId(1),
            objects: List::from_iter_cut((0..shape.objects()).map(placed)),
        };
        let failed: Vec<_> = failed
            .iter()
            .map(|&(place, code)| Failed { place, code })
            .collect();
        let layout = after(&next, &failed).map_err(|refusal| refusal.code(false).0)?;
        let objects = layout.objects.iter().enumerate();
        Ok(objects
            .filter(|(_, placed)| placed.stale)
            .map(|(at, _)| at)
            .collect())
    }

    #[test]
    fn a_copy_that_was_left_out_lacks_the_store() {
        let striped = |failed: &[(u32, i32)]| stale(Scheme::Striped, 2, 2, failed);
        assert_eq!(striped(&[]), Ok(vec![]));
        assert_eq!(striped(&[(1, 28)]), Ok(vec![1]));
        assert_eq!(
            striped(&[(1, 0), (3, 0)]),
            Ok(vec![]),
            "a stripe of which nothing came"
        );
        assert_eq!(striped(&[(1, 0)]), Ok(vec![1]));
        assert_eq!(striped(&[(1, 28), (3, 0)]), Err(5));
        let erasure = |failed: &[(u32, i32)]| stale(Scheme::Erasure, 3, 2, failed);
        assert_eq!(erasure(&[(0, 0), (1, 0)]), Ok(vec![]));
        assert_eq!(erasure(&[(0, 0), (4, 0)]), Ok(vec![4]));
        assert_eq!(erasure(&[(2, 5), (3, 0), (4, 0)]), Err(5));
    }
}
