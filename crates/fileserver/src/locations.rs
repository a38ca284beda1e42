//! Where volumes are: for the one call that asks a file server, GetVolumeInfo, and for stores into files that came
//! with a volume from elsewhere ([`crate::objects::ownership`]).
//!
//! OpenAFS's file server asks the volume location server on its own machine, and after a failure
//! asks no more for three minutes. So does this one for GetVolumeInfo; whoever makes it says how to ask. A store
//! asks again sooner: without an answer it copies the whole file.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cellar_rpc::Connection;
use cellar_wire::AbortCode;
use cellar_wire::vl::{GetEntryByNameO, VldbEntry, VolumeNameArgument};

use tokio::time::timeout;

use crate::limits::{CLAIM_HOLD_OFF, CLAIM_PATIENCE, LOCATIONS_HOLD_OFF};
use crate::protection::BoxFuture;

/// The volume location database, as a file server uses it.
pub trait Locations: Send + Sync + 'static {
    /// The entry of a volume, by name or by id in digits.
    ///
    /// # Errors
    /// The database's code; a negative one says that it did not answer.
    fn entry<'a>(
        &'a self,
        name: &'a VolumeNameArgument,
    ) -> BoxFuture<'a, Result<VldbEntry, AbortCode>>;
}

/// A volume location server across the network.
impl Locations for Connection {
    fn entry<'a>(
        &'a self,
        name: &'a VolumeNameArgument,
    ) -> BoxFuture<'a, Result<VldbEntry, AbortCode>> {
        let call = GetEntryByNameO {
            volumename: name.clone(),
        };
        Box::pin(async move {
            match self.call(&call).await {
                Ok(reply) => Ok(reply.entry),
                Err(cause) => Err(cause.code()),
            }
        })
    }
}

/// The database in use, and when it did not answer.
#[derive(Default)]
pub(crate) struct KnownLocations {
    database: OnceLock<Arc<dyn Locations>>,
    /// Server's seconds; 0: it has answered since.
    failed: AtomicU32,
}

/// What OpenAFS answers while it does not ask.
const NOT_ASKED: AbortCode = AbortCode(1);

impl KnownLocations {
    /// The first call counts.
    pub(crate) fn set(&self, database: Arc<dyn Locations>) {
        self.database.get_or_init(|| database);
    }

    /// An entry for somebody who is told at once if it is not to be had.
    pub(crate) async fn entry(
        &self,
        name: &VolumeNameArgument,
        now: u32,
    ) -> Result<VldbEntry, AbortCode> {
        let answer = self.asked(now, LOCATIONS_HOLD_OFF)?.entry(name).await;
        self.note(now, &answer);
        answer
    }

    /// An entry for somebody for whom much depends on it: a database that did not answer is asked again soon,
    /// and not waited for for long.
    pub(crate) async fn entry_soon(
        &self,
        name: &VolumeNameArgument,
        now: u32,
    ) -> Result<VldbEntry, AbortCode> {
        let asked = self.asked(now, CLAIM_HOLD_OFF)?.entry(name);
        let answer = timeout(CLAIM_PATIENCE, asked).await;
        let answer = answer.unwrap_or(Err(AbortCode::RX_CALL_TIMEOUT));
        self.note(now, &answer);
        answer
    }

    /// The database, if it has answered or did not so long ago.
    fn asked(&self, now: u32, hold_off: Duration) -> Result<&Arc<dyn Locations>, AbortCode> {
        let database = self.database.get().ok_or(AbortCode::VNOVOL)?;
        match self.failed.load(Ordering::Relaxed) {
            failed @ 1.. if now < failed.saturating_add(hold_off.as_secs() as u32) => {
                Err(NOT_ASKED)
            }
            _ => Ok(database),
        }
    }

    fn note(&self, now: u32, answer: &Result<VldbEntry, AbortCode>) {
        let failed = answer.as_ref().is_err_and(|code| code.0 < 0);
        self.failed
            .store(if failed { now } else { 0 }, Ordering::Relaxed);
    }
}
