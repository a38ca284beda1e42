//! Where volumes are, for the one call that asks a file server: GetVolumeInfo.
//!
//! OpenAFS's file server asks the volume location server on its own machine, and after a failure
//! asks no more for three minutes. So does this one; whoever makes it says how to ask.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use cellar_rpc::Connection;
use cellar_wire::AbortCode;
use cellar_wire::vl::{GetEntryByNameO, VldbEntry, VolumeNameArgument};

use crate::limits::LOCATIONS_HOLD_OFF;
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

/// The database in use, and until when it is left alone.
#[derive(Default)]
pub(crate) struct KnownLocations {
    database: OnceLock<Arc<dyn Locations>>,
    /// Server's seconds.
    left_alone_until: AtomicU32,
}

/// What OpenAFS answers while it does not ask.
const NOT_ASKED: AbortCode = AbortCode(1);

impl KnownLocations {
    /// The first call counts.
    pub(crate) fn set(&self, database: Arc<dyn Locations>) {
        self.database.get_or_init(|| database);
    }

    pub(crate) async fn entry(
        &self,
        name: &VolumeNameArgument,
        now: u32,
    ) -> Result<VldbEntry, AbortCode> {
        let Some(database) = self.database.get() else {
            return Err(AbortCode::VNOVOL);
        };
        if now < self.left_alone_until.load(Ordering::Relaxed) {
            return Err(NOT_ASKED);
        }
        let answer = database.entry(name).await;
        if answer.as_ref().is_err_and(|code| code.0 < 0) {
            let until = now.saturating_add(LOCATIONS_HOLD_OFF.as_secs() as u32);
            self.left_alone_until.store(until, Ordering::Relaxed);
        }
        answer
    }
}
