//! SetLock (156), ExtendLock (157), ReleaseLock (158), and their oldest forms (143 to 145), whose
//! `VolSync` is an argument.
//!
//! On read-only volumes a read lock, an extension and a release succeed and do nothing.

use std::sync::Arc;

use cellar_rpc::IncomingCall;
use cellar_volume::Error;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{
    ExtendLock, ExtendLockReply, OldExtendLock, OldExtendLockReply, OldReleaseLock,
    OldReleaseLockReply, OldSetLock, OldSetLockReply, ReleaseLock, ReleaseLockReply, SetLock,
    SetLockReply, VolSync,
};

use super::common::{look, run};
use crate::abort_map::Refusal;
use crate::lock::{LockError, LockType};
use crate::server::Server;
use crate::service::Answered;
use crate::session::Session;
use crate::status::vol_sync;
use crate::volumes::Want;

pub(super) async fn set_lock(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let SetLock { fid, lock_type } = call.arguments().await.map_err(Refusal::Call)?;
    let session = server.session(call).await?;
    let sync = set(server, &session, fid, lock_type).await?;
    call.reply(&SetLockReply { sync });
    Ok(())
}

pub(super) async fn old_set_lock(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let OldSetLock { fid, lock_type, .. } = call.arguments().await.map_err(Refusal::Call)?;
    let session = server.session(call).await?;
    set(server, &session, fid, lock_type).await?;
    call.reply(&OldSetLockReply {});
    Ok(())
}

pub(super) async fn extend_lock(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let ExtendLock { fid } = call.arguments().await.map_err(Refusal::Call)?;
    let session = server.session(call).await?;
    let sync = extend(server, &session, fid).await?;
    call.reply(&ExtendLockReply { sync });
    Ok(())
}

pub(super) async fn old_extend_lock(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let OldExtendLock { fid, .. } = call.arguments().await.map_err(Refusal::Call)?;
    let session = server.session(call).await?;
    extend(server, &session, fid).await?;
    call.reply(&OldExtendLockReply {});
    Ok(())
}

pub(super) async fn release_lock(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let ReleaseLock { fid } = call.arguments().await.map_err(Refusal::Call)?;
    let session = server.session(call).await?;
    let sync = release(server, &session, fid).await?;
    call.reply(&ReleaseLockReply { sync });
    Ok(())
}

pub(super) async fn old_release_lock(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let OldReleaseLock { fid, .. } = call.arguments().await.map_err(Refusal::Call)?;
    let session = server.session(call).await?;
    release(server, &session, fid).await?;
    call.reply(&OldReleaseLockReply {});
    Ok(())
}

async fn set(
    server: &Arc<Server>,
    session: &Session,
    fid: Fid,
    lock_type: i32,
) -> Result<VolSync, Refusal> {
    let kind = LockType::from_wire(lock_type).ok_or(Refusal::Invalid)?;
    let write = kind == LockType::Write;
    let (server, session) = (server.clone(), session.clone());
    run(move || {
        let attached = server.volume_of(fid, Want::Read)?;
        let (status, _, access) = look(&server, &session, &attached, fid)?;
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
        match server.locks.set(fid, kind, session.now.0) {
            Ok(()) => Ok(vol_sync(&attached.volume)),
            Err(LockError::Conflict) => Err(Refusal::Locked),
            Err(LockError::TooMany) => Err(Refusal::Busy),
            Err(LockError::NotLocked) => Err(Refusal::Invalid),
        }
    })
    .await
}

async fn extend(server: &Arc<Server>, session: &Session, fid: Fid) -> Result<VolSync, Refusal> {
    let (server, session) = (server.clone(), session.clone());
    run(move || {
        let attached = server.volume_of(fid, Want::Read)?;
        attached.volume.status(fid)?;
        if attached.volume.is_writable() {
            server
                .locks
                .extend(fid, session.now.0)
                .map_err(|_| Refusal::Invalid)?;
        }
        Ok(vol_sync(&attached.volume))
    })
    .await
}

/// When the last lock goes, clients that wait for it are told to look again, as by a change.
async fn release(server: &Arc<Server>, session: &Session, fid: Fid) -> Result<VolSync, Refusal> {
    let (sync, pending) = {
        let (server, session) = (server.clone(), session.clone());
        run(move || {
            let attached = server.volume_of(fid, Want::Read)?;
            attached.volume.status(fid)?;
            let free = attached.volume.is_writable() && server.locks.release(fid, session.now.0);
            let broken = if free { &[fid][..] } else { &[] };
            let pending = server
                .breaker
                .collect(broken, session.host_slot(), session.now.0);
            Ok((vol_sync(&attached.volume), pending))
        })
        .await?
    };
    server.breaker.told(pending).await;
    Ok(sync)
}
