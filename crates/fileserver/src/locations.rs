//! The location of volumes. Two users need it: GetVolumeInfo, the one call that asks a file server
//! for it, and stores into files of a volume that came from another server
//! (`fileobjects/src/ownership.rs`).
//!
//! OpenAFS's file server asks the volume location server on its own machine, and stops asking for
//! three minutes after a failure. This server does the same for GetVolumeInfo; its creator sets the
//! database. A store asks again sooner, because without an answer it copies the whole file.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cellar_fileobjects::RwSites;
use cellar_rpc::Connection;
use cellar_wire::AbortCode;
use cellar_wire::ids::{AfsTime, PartitionId, VolumeId};
use cellar_wire::vl::{GetEntryByNameO, VLSF_RWVOL, VldbEntry, VolumeNameArgument};

use tokio::time::timeout;

use crate::config::WallClock;
use crate::limits::{CLAIM_HOLD_OFF, CLAIM_PATIENCE, LOCATIONS_HOLD_OFF};
use crate::network::Networks;
use crate::protection::BoxFuture;

/// The volume location database, as a file server uses it.
pub trait Locations: Send + Sync + 'static {
    /// The entry of a volume, by name or by id in digits.
    ///
    /// # Errors
    /// The database's code. A negative code means that the database did not answer.
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

/// The database in use, and the time of its last failure.
#[derive(Default)]
pub(crate) struct KnownLocations {
    database: OnceLock<Arc<dyn Locations>>,
    /// Server's seconds; 0 if it has answered since.
    failed: AtomicU32,
}

/// OpenAFS's answer while it does not ask.
const NOT_ASKED: AbortCode = AbortCode(1);

impl KnownLocations {
    /// Sets the database. Only the first call has an effect.
    pub(crate) fn set(&self, database: Arc<dyn Locations>) {
        self.database.get_or_init(|| database);
    }

    /// An entry for GetVolumeInfo. Fails at once while the database is not asked after a failure.
    pub(crate) async fn entry(
        &self,
        name: &VolumeNameArgument,
        now: u32,
    ) -> Result<VldbEntry, AbortCode> {
        let answer = self
            .database_if_up(now, LOCATIONS_HOLD_OFF)?
            .entry(name)
            .await;
        self.note(now, &answer);
        answer
    }

    /// An entry for a store, which needs it urgently. A database that did not answer is asked again
    /// soon, and the wait for it is short.
    pub(crate) async fn entry_for_store(
        &self,
        name: &VolumeNameArgument,
        now: u32,
    ) -> Result<VldbEntry, AbortCode> {
        let asked = self.database_if_up(now, CLAIM_HOLD_OFF)?.entry(name);
        let answer = timeout(CLAIM_PATIENCE, asked).await;
        let answer = answer.unwrap_or(Err(AbortCode::RX_CALL_TIMEOUT));
        self.note(now, &answer);
        answer
    }

    /// The database, unless it failed less than `hold_off` ago.
    fn database_if_up(
        &self,
        now: u32,
        hold_off: Duration,
    ) -> Result<&Arc<dyn Locations>, AbortCode> {
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

/// The RW sites that the location database lists on this server.
pub(crate) struct ListedSites {
    pub(crate) locations: Arc<KnownLocations>,
    pub(crate) networks: Arc<Networks>,
    pub(crate) clock: WallClock,
}

impl RwSites for ListedSites {
    fn is_here(
        &self,
        volume: VolumeId,
        partition: PartitionId,
    ) -> BoxFuture<'_, Result<bool, AbortCode>> {
        Box::pin(async move {
            let Ok(name) = VolumeNameArgument::new(volume.0.to_string()) else {
                return Ok(false);
            };
            let now = AfsTime::after_1970((self.clock)()).0;
            let entry = self.locations.entry_for_store(&name, now).await?;
            Ok(entry.volume_ids[0] == volume
                && entry.sites.iter().any(|site| {
                    site.flags & VLSF_RWVOL != 0
                        && site.partition == partition.number()
                        && self.networks.is_own(site.server)
                }))
        })
    }
}
