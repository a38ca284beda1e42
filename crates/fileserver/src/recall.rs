//! Calls that need the bytes of a wiped file.
//!
//! The policies of the file choose the mode of a call by which a program opens it (`recall=`).
//!
//! | call | `wait` | `retry` | `refuse` |
//! | --- | --- | --- | --- |
//! | FetchData, StoreData that keeps bytes | recall, waits | recall, VBUSY | NotRecalled |
//! | any other that meets a wiped file | recall, VBUSY | recall, VBUSY | NotRecalled |
//! | Recall of AFSOSD, by request of a user | recall, waits | recall, waits | recall, waits |
//!
//! "Waits" ends with VBUSY after [`RECALL_PATIENCE`]. [`Refusal::NotRecalled`] begins no recall.
//!
//! A waiting call holds no thread, and its connection is kept alive. Clients repeat a call after
//! VBUSY, and the recall goes on meanwhile. Rights are checked before a recall begins, and so are
//! the limits of recalls ([`crate::recall_limits`]). A recall over a limit is refused in each mode.

use std::sync::Arc;

use cellar_fileobjects::{Failure, RecallMode};
use cellar_rpc::IncomingCall;
use cellar_volume::{Error, Volume};
use cellar_wire::ids::Fid;
use tokio::time::timeout;
use tracing::warn;

use crate::abort_map::Refusal;
use crate::limits::{RECALL_ATTEMPTS, RECALL_PATIENCE};
use crate::recall_limits::OverLimit;
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
    let mut admission = Admission::new(services, session, &volume).await?;
    let (objects, user) = (&services.objects, Some(session.id()));
    let recall = objects.recall(&volume, fid, user, |bytes| admission.take(bytes));
    let recalled = timeout(RECALL_PATIENCE, recall).await;
    match recalled {
        Ok(recalled) => {
            admission.log(fid).await;
            Ok(recalled?)
        }
        Err(_) => Err(Refusal::Busy),
    }
}

/// Begins the recall of a file on behalf of a caller.
///
/// # Errors
/// `Busy`: the recall is in progress. The failure of a recall that ended a short time ago.
async fn begin(services: &FileServices, session: &Session, fid: Fid) -> Result<(), Refusal> {
    let volume = volume_of(services, fid)?;
    let mut admission = Admission::new(services, session, &volume).await?;
    let (objects, user) = (&services.objects, Some(session.id()));
    let begun = objects.begin_recall(&volume, fid, user, |bytes| admission.take(bytes));
    let begun = begun.await;
    admission.log(fid).await;
    match begun? {
        true => Err(Refusal::Busy),
        false => Ok(()),
    }
}

/// The check of a recall against the limits.
struct Admission<'a> {
    services: &'a FileServices,
    session: &'a Session,
    /// The name of the volume.
    volume: String,
    refused: Option<OverLimit>,
}

impl<'a> Admission<'a> {
    async fn new(
        services: &'a FileServices,
        session: &'a Session,
        volume: &Volume,
    ) -> Result<Self, Refusal> {
        let sessions = &services.sessions;
        let loaded = services
            .recall_limits
            .load_names(&*sessions.protection, sessions.wall());
        loaded.await.map_err(|cause| {
            warn!(%cause, "the names in limits of recalls cannot be looked up");
            Refusal::Busy
        })?;
        Ok(Self {
            services,
            session,
            volume: volume.info().name,
            refused: None,
        })
    }

    fn take(&mut self, bytes: u64) -> Result<(), Failure> {
        let now = self.services.sessions.wall();
        let limits = &self.services.recall_limits;
        let taken = limits.take(self.session.identity(), &self.volume, bytes, now);
        taken.map_err(|over| {
            self.refused = Some(over);
            Failure::OverLimit
        })
    }

    /// Logs the refusal, with the name of the user.
    async fn log(self, fid: Fid) {
        let Some(over) = self.refused.filter(|over| over.is_news) else {
            return;
        };
        let id = self.session.id();
        let names = self.services.sessions.protection.names_of(&[id]).await;
        let name = names.ok().and_then(|names| names.into_iter().next()?);
        let user = name.map_or_else(
            || id.0.to_string(),
            |name| String::from_utf8_lossy(&name).into_owned(),
        );
        let again = over.again.map_or_else(
            || "never".to_owned(),
            |time| format!("{} s", time.as_secs()),
        );
        warn!(user, id = id.0, rule = over.rule, %fid, volume = self.volume, again,
            "a recall is refused, because it is over a limit");
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
