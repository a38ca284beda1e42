//! SetLock (156), ExtendLock (157), ReleaseLock (158), and their oldest forms (143 to 145), whose
//! `VolSync` is an argument. Also HoldRanges and TestRange, calls of this project.
//!
//! On read-only volumes a read lock, an extension and a release succeed and do nothing. A range
//! needs the same right as a lock of that kind on the whole file. No right is needed for ranges
//! that the client already has.

use std::sync::Arc;

use cellar_rpc::IncomingCall;
use cellar_volume::{Error, Volume};
use cellar_wire::List;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{
    ExtendLock, ExtendLockReply, HeldRanges, HoldRanges, HoldRangesReply, LockRange, OldExtendLock,
    OldExtendLockReply, OldReleaseLock, OldReleaseLockReply, OldSetLock, OldSetLockReply,
    ReleaseLock, ReleaseLockReply, SetLock, SetLockReply, TestRange, TestRangeReply, VolSync,
};
use cellar_wire::serve::Handle;

use super::FileService;
use super::common::{run, status_and_access};
use crate::abort_map::Refusal;
use crate::callback::Pending;
use crate::callbacks::Callbacks;
use crate::lock::{LockError, LockType, Owner};
use crate::services::FileServices;
use crate::session::Session;
use crate::status::vol_sync;
use crate::volumes::VolumeAccess;

impl Handle<SetLock, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: SetLock,
    ) -> Result<SetLockReply, Refusal> {
        let services = &self.services;
        let SetLock { fid, lock_type } = arguments;
        let session = services.sessions.session(call).await?;
        let sync = set(services, &session, fid, lock_type).await?;
        Ok(SetLockReply { sync })
    }
}

impl Handle<OldSetLock, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: OldSetLock,
    ) -> Result<OldSetLockReply, Refusal> {
        let services = &self.services;
        let OldSetLock { fid, lock_type, .. } = arguments;
        let session = services.sessions.session(call).await?;
        set(services, &session, fid, lock_type).await?;
        Ok(OldSetLockReply {})
    }
}

impl Handle<ExtendLock, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: ExtendLock,
    ) -> Result<ExtendLockReply, Refusal> {
        let services = &self.services;
        let ExtendLock { fid } = arguments;
        let session = services.sessions.session(call).await?;
        let sync = extend(services, &session, fid).await?;
        Ok(ExtendLockReply { sync })
    }
}

impl Handle<OldExtendLock, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: OldExtendLock,
    ) -> Result<OldExtendLockReply, Refusal> {
        let services = &self.services;
        let OldExtendLock { fid, .. } = arguments;
        let session = services.sessions.session(call).await?;
        extend(services, &session, fid).await?;
        Ok(OldExtendLockReply {})
    }
}

impl Handle<ReleaseLock, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: ReleaseLock,
    ) -> Result<ReleaseLockReply, Refusal> {
        let services = &self.services;
        let ReleaseLock { fid } = arguments;
        let session = services.sessions.session(call).await?;
        let sync = release(services, &session, fid).await?;
        Ok(ReleaseLockReply { sync })
    }
}

impl Handle<OldReleaseLock, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: OldReleaseLock,
    ) -> Result<OldReleaseLockReply, Refusal> {
        let services = &self.services;
        let OldReleaseLock { fid, .. } = arguments;
        let session = services.sessions.session(call).await?;
        release(services, &session, fid).await?;
        Ok(OldReleaseLockReply {})
    }
}

async fn set(
    services: &Arc<FileServices>,
    session: &Session,
    fid: Fid,
    lock_type: i32,
) -> Result<VolSync, Refusal> {
    let kind = LockType::from_wire(lock_type).ok_or(Refusal::Invalid)?;
    let write = kind == LockType::Write;
    let (services, session) = (services.clone(), session.clone());
    run(&services.callbacks.clone(), move || {
        let attached = services.volumes.of(fid, VolumeAccess::Read)?;
        let (status, _, access) = status_and_access(&services, &session, &attached, fid)?;
        if !session.identity().may_lock(&status, access.caller, write) {
            return Err(Refusal::NoRight);
        }
        if !attached.volume.is_writable() {
            return if write {
                Err(Refusal::Store(Error::ReadOnly))
            } else {
                Ok(vol_sync(&attached.volume))
            };
        }
        match services.callbacks.locks.set(fid, kind, session.now.0) {
            Ok(()) => Ok(vol_sync(&attached.volume)),
            Err(error) => Err(refusal(error)),
        }
    })
    .await
}

async fn extend(
    services: &Arc<FileServices>,
    session: &Session,
    fid: Fid,
) -> Result<VolSync, Refusal> {
    let (services, session) = (services.clone(), session.clone());
    run(&services.callbacks.clone(), move || {
        let attached = services.volumes.of(fid, VolumeAccess::Read)?;
        attached.volume.status(fid)?;
        if attached.volume.is_writable() {
            services
                .callbacks
                .locks
                .extend(fid, session.now.0)
                .map_err(|_| Refusal::Invalid)?;
        }
        Ok(vol_sync(&attached.volume))
    })
    .await
}

impl Handle<HoldRanges, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: HoldRanges,
    ) -> Result<HoldRangesReply, Refusal> {
        let services = &self.services;
        let HoldRanges {
            fid,
            owner,
            serial,
            ranges,
        } = arguments;
        let session = services.sessions.session(call).await?;
        let ranges = HeldRanges::in_order(ranges).ok_or(Refusal::Invalid)?;
        let sync = hold(services, &session, fid, (owner, serial), ranges).await?;
        Ok(HoldRangesReply { sync })
    }
}

async fn hold(
    services: &Arc<FileServices>,
    session: &Session,
    fid: Fid,
    who: (Owner, u64),
    ranges: HeldRanges,
) -> Result<VolSync, Refusal> {
    let (sync, pending) = {
        let (services, session) = (services.clone(), session.clone());
        run(&services.callbacks.clone(), move || {
            let attached = services.volumes.of(fid, VolumeAccess::Read)?;
            let now = session.now.0;
            let had = services.callbacks.locks.held_by(fid, who.0, now);
            let mut more = ranges.ranges().iter().filter(|range| !had.has(**range));
            if let Some(alone) = more
                .next()
                .map(|first| first.alone || more.any(|range| range.alone))
            {
                let (status, _, access) = status_and_access(&services, &session, &attached, fid)?;
                if !session.identity().may_lock(&status, access.caller, alone) {
                    return Err(Refusal::NoRight);
                }
                if !attached.volume.is_writable() && alone {
                    return Err(Refusal::Store(Error::ReadOnly));
                }
            } else {
                attached.volume.status(fid)?;
            }
            let free = attached.volume.is_writable()
                && services
                    .callbacks
                    .locks
                    .hold(fid, who, session.machine(), &ranges, now)
                    .map_err(refusal)?;
            Ok(freed(
                &services.callbacks,
                &session,
                &attached.volume,
                fid,
                free,
            ))
        })
        .await?
    };
    services.callbacks.breaker.wait_for_delivery(pending).await;
    Ok(sync)
}

impl Handle<TestRange, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: TestRange,
    ) -> Result<TestRangeReply, Refusal> {
        let services = &self.services;
        let TestRange { fid, owner, range } = arguments;
        let session = services.sessions.session(call).await?;
        if range.first > range.last {
            return Err(Refusal::Invalid);
        }
        let (found, sync) = test(services, &session, fid, owner, range).await?;
        let found = List::from_iter_cut(found);
        Ok(TestRangeReply { found, sync })
    }
}

async fn test(
    services: &Arc<FileServices>,
    session: &Session,
    fid: Fid,
    owner: Owner,
    range: LockRange,
) -> Result<(Option<LockRange>, VolSync), Refusal> {
    let (services, session) = (services.clone(), session.clone());
    run(&services.callbacks.clone(), move || {
        let attached = services.volumes.of(fid, VolumeAccess::Read)?;
        let (status, _, access) = status_and_access(&services, &session, &attached, fid)?;
        if !session
            .identity()
            .may_fetch_status(&status, access.caller, attached.volume.owner())
        {
            return Err(Refusal::NoRight);
        }
        let found = services
            .callbacks
            .locks
            .test(fid, owner, range, session.now.0);
        Ok((found, vol_sync(&attached.volume)))
    })
    .await
}

fn refusal(error: LockError) -> Refusal {
    match error {
        LockError::Conflict => Refusal::Locked,
        LockError::TooMany => Refusal::Busy,
        LockError::TooManyRanges => Refusal::TooManyLocks,
        LockError::NotLocked | LockError::Overtaken => Refusal::Invalid,
    }
}

/// When the last lock is released, clients that wait for it are notified as by a change, so that
/// they retry.
async fn release(
    services: &Arc<FileServices>,
    session: &Session,
    fid: Fid,
) -> Result<VolSync, Refusal> {
    let (sync, pending) = {
        let (services, session) = (services.clone(), session.clone());
        run(&services.callbacks.clone(), move || {
            let attached = services.volumes.of(fid, VolumeAccess::Read)?;
            attached.volume.status(fid)?;
            let free = attached.volume.is_writable()
                && services.callbacks.locks.release(fid, session.now.0);
            Ok(freed(
                &services.callbacks,
                &session,
                &attached.volume,
                fid,
                free,
            ))
        })
        .await?
    };
    services.callbacks.breaker.wait_for_delivery(pending).await;
    Ok(sync)
}

/// The reply fields, and the breaks if the file became free.
fn freed(
    callbacks: &Callbacks,
    session: &Session,
    volume: &Volume,
    fid: Fid,
    free: bool,
) -> (VolSync, Pending) {
    let broken = if free { &[fid][..] } else { &[] };
    let pending = callbacks
        .breaker
        .collect(broken, session.host_slot(), session.now.0);
    (vol_sync(volume), pending)
}
