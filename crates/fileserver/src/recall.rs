//! Calls that need the bytes of a wiped file.
//!
//! | call | behaviour |
//! | --- | --- |
//! | FetchData, and StoreData that keeps bytes | waits up to [`RECALL_PATIENCE`], then VBUSY |
//! | any other that meets a wiped file | begins the recall; VBUSY at once |
//!
//! A waiting call holds no thread, and its connection is kept alive. Clients repeat a call after
//! VBUSY, and the recall goes on meanwhile. Rights are checked before a recall begins.

use cellar_volume::Error;
use cellar_wire::ids::Fid;
use tokio::time::timeout;

use crate::abort_map::Refusal;
use crate::limits::{RECALL_ATTEMPTS, RECALL_PATIENCE};
use crate::services::FileServices;
use crate::session::Session;
use crate::volumes::VolumeAccess;

/// Runs a call again after the recall of the file, if it refuses because the file is wiped.
///
/// # Errors
/// Those of the call. `Busy`: the recall takes longer, or the file was wiped again and again.
pub(crate) async fn with_recall<T>(
    services: &FileServices,
    session: &Session,
    fid: Fid,
    mut call: impl AsyncFnMut() -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    for _ in 0..RECALL_ATTEMPTS {
        match call().await {
            Err(Refusal::Store(Error::Archived(_))) => wait(services, session, fid).await?,
            outcome => return outcome,
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
    let attached = services.volumes.of(fid, VolumeAccess::Read)?;
    let user = Some(session.id());
    let recall = services.objects.recall(&attached.volume, fid, user);
    match timeout(RECALL_PATIENCE, recall).await {
        Ok(recalled) => Ok(recalled?),
        Err(_) => Err(Refusal::Busy),
    }
}

/// Begins a recall if a call was refused because a file is wiped.
pub(crate) fn begin_if_wiped<T>(services: &FileServices, outcome: &Result<T, Refusal>) {
    if let Err(Refusal::Store(Error::Archived(fid))) = outcome
        && let Ok(attached) = services.volumes.of(*fid, VolumeAccess::Read)
    {
        services.objects.recall_later(&attached.volume, *fid);
    }
}
