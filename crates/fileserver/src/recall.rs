//! Calls that need the bytes of a wiped file.
//!
//! The policies of the file choose the mode of a call by which a program opens it (`recall=`).
//!
//! | call | `wait` | `retry` | `refuse` |
//! | --- | --- | --- | --- |
//! | FetchData, and StoreData that keeps bytes | recall; waits up to [`RECALL_PATIENCE`], then VBUSY | recall; VBUSY at once | no recall; [`Refusal::NotRecalled`] |
//! | any other that meets a wiped file | recall; VBUSY at once | the same | the same |
//! | Recall of AFSOSD, in which a user asks for it | recall; waits, then VBUSY | as `wait` | as `wait` |
//!
//! A waiting call holds no thread, and its connection is kept alive. Clients repeat a call after
//! VBUSY, and the recall goes on meanwhile. Rights are checked before a recall begins.

use std::sync::Arc;

use cellar_fileobjects::RecallMode;
use cellar_rpc::IncomingCall;
use cellar_volume::{Error, Volume};
use cellar_wire::ids::Fid;
use tokio::time::timeout;

use crate::abort_map::Refusal;
use crate::limits::{RECALL_ATTEMPTS, RECALL_PATIENCE};
use crate::service::CallResult;
use crate::services::FileServices;
use crate::session::Session;
use crate::volumes::VolumeAccess;

/// Runs a call again after the recall of the file, if it refuses because the file is wiped.
///
/// # Errors
/// Those of the call. `Busy`: the recall takes longer, or the file was wiped again and again.
/// `NotRecalled`: the policy of the file forbids it.
pub(crate) async fn with_recall<T>(
    services: &FileServices,
    session: &Session,
    fid: Fid,
    mut call: impl AsyncFnMut() -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    for _ in 0..RECALL_ATTEMPTS {
        match call().await {
            Err(Refusal::Store(Error::Archived(_))) => {}
            outcome => return outcome,
        }
        let volume = volume_of(services, fid)?;
        match services.objects.recall_mode(&volume, fid).await? {
            RecallMode::Wait => wait(services, session, fid).await?,
            RecallMode::Retry => begin(services, session, fid).await?,
            RecallMode::Refuse => return Err(Refusal::NotRecalled),
        }
    }
    Err(Refusal::Busy)
}

/// Recalls a file on behalf of a caller, and waits for some time.
pub(crate) async fn wait(
    services: &FileServices,
    session: &Session,
    fid: Fid,
) -> Result<(), Refusal> {
    let volume = volume_of(services, fid)?;
    let user = Some(session.id());
    let recall = services.objects.recall(&volume, fid, user);
    match timeout(RECALL_PATIENCE, recall).await {
        Ok(recalled) => Ok(recalled?),
        Err(_) => Err(Refusal::Busy),
    }
}

/// Begins the recall of a file on behalf of a caller.
///
/// # Errors
/// `Busy`: the recall is in progress. The failure of a recall that ended a short time ago.
async fn begin(services: &FileServices, session: &Session, fid: Fid) -> Result<(), Refusal> {
    let volume = volume_of(services, fid)?;
    let user = Some(session.id());
    match services.objects.begin_recall(&volume, fid, user).await? {
        true => Err(Refusal::Busy),
        false => Ok(()),
    }
}

/// The outcome of a call. If it was refused because a file is wiped, the file's recall begins, as
/// far as the policies permit that.
pub(crate) async fn begin_if_wiped(
    services: &FileServices,
    call: &IncomingCall,
    outcome: CallResult,
) -> CallResult {
    let Err(Refusal::Store(Error::Archived(fid))) = outcome else {
        return outcome;
    };
    let volume = volume_of(services, fid)?;
    match services.objects.recall_mode(&volume, fid).await? {
        RecallMode::Wait | RecallMode::Retry => {
            let session = services.sessions.session(call).await?;
            begin(services, &session, fid).await?;
            // It is online again: the client repeats the call.
            Err(Refusal::Busy)
        }
        RecallMode::Refuse => Err(Refusal::NotRecalled),
    }
}

fn volume_of(services: &FileServices, fid: Fid) -> Result<Arc<Volume>, Refusal> {
    let attached = services.volumes.of(fid, VolumeAccess::Read)?;
    Ok(attached.volume.clone())
}
