//! VOTE and DISK, for a database that needs no votes.
//!
//! OpenAFS's databases elect a sync site and send it their writes; `udebug` and monitoring ask each
//! server for the state of that. A Cellar database answers as a single site that is always the sync
//! site. Several servers over one etcd cluster name the host of the cluster's leader as sync site,
//! if it is known, and accept writes all the same. The state is healthy as long as the server
//! answers. Its version has the start of the server as epoch, and counts changes. It votes for no
//! server, and no server may write by DISK.

use std::sync::Arc;

use cellar_rpc::{IncomingCall, LocalBoxFuture, Service};
use cellar_wire::package::Package;
use cellar_wire::serve::{CallHandler, Handle};
use cellar_wire::vote::{
    Beacon, BeaconReply, Debug, DebugOld, DebugOldReply, DebugReply, GetSyncSite, GetSyncSiteReply,
    INTERFACES_MAX, RECOVERY_FOUND_DB, RECOVERY_HAVE_DB, RECOVERY_LABEL_DB, RECOVERY_SENT_DB,
    RECOVERY_SYNC_SITE, UbikDebug, UbikDebugOld, UbikTid, UbikVersion, XDebug, XDebugReply,
};
use cellar_wire::{AbortCode, AfsTime, disk, vote};

use crate::answer::{Answer, Server};
use crate::service::DbService;
use crate::{Clock, Error, Identity, Pr, Vl};

/// `sync_site_until` of a site that needs no votes: forever.
const FOREVER: u32 = 0x7fff_ffff;

/// A database whose state VOTE shows.
pub trait Database: Send + Sync + 'static {
    /// The revision of its last change.
    fn version(&self) -> u64;
}

impl Database for Vl {
    fn version(&self) -> u64 {
        Self::version(self)
    }
}

impl Database for Pr {
    fn version(&self) -> u64 {
        crate::Directory::version(self)
    }
}

/// The address of another machine that `udebug` shall show as sync site, if there is one.
pub type SyncSite = Arc<dyn Fn() -> Option<u32> + Send + Sync>;

/// The state behind the VOTE service of one database.
struct Vote {
    database: Arc<dyn Database>,
    clock: Clock,
    started: AfsTime,
    addresses: Vec<u32>,
    sync_site: SyncSite,
}

impl Vote {
    fn state(&self) -> UbikDebugOld {
        let now = (self.clock)().0;
        let counter = self.database.version() as i32;
        let epoch = self.started.0;
        let version = UbikVersion {
            epoch: epoch as i32,
            counter,
        };
        let here = self.addresses.first().copied().unwrap_or_default();
        let elsewhere = (self.sync_site)().filter(|site| !self.addresses.contains(site));
        let site = elsewhere.unwrap_or(here);
        UbikDebugOld {
            now,
            last_yes_time: now,
            last_yes_host: site,
            last_yes_state: 1,
            last_yes_claim: now,
            lowest_host: here,
            lowest_time: now,
            sync_host: site,
            sync_time: now,
            sync_version: version,
            sync_tid: UbikTid {
                epoch: epoch as i32,
                counter,
            },
            am_sync_site: elsewhere.is_none().into(),
            sync_site_until: FOREVER,
            server_count: 1,
            local_version: version,
            tid_counter: counter as u32,
            recovery_state: RECOVERY_SYNC_SITE
                | RECOVERY_FOUND_DB
                | RECOVERY_HAVE_DB
                | RECOVERY_LABEL_DB
                | RECOVERY_SENT_DB,
            epoch_time: epoch,
            ..UbikDebugOld::default()
        }
    }

    fn full_state(&self) -> UbikDebug {
        let mut interfaces = [0; INTERFACES_MAX];
        for (slot, address) in interfaces.iter_mut().zip(&self.addresses) {
            *slot = *address;
        }
        UbikDebug {
            state: self.state(),
            interfaces,
        }
    }
}

impl Server for Vote {
    const DAMAGED: AbortCode = AbortCode::UINTERNAL;

    fn package() -> &'static Package {
        &vote::PACKAGE
    }

    fn serve<'a>(
        service: &'a DbService<Self>,
        call: &'a mut IncomingCall,
    ) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(async move { vote::serve(service, call.opcode().await?, call).await })
    }

    fn now(&self) -> AfsTime {
        (self.clock)()
    }
}

macro_rules! answers {
    ($($procedure:ident => |$vote:ident| $outcome:expr;)*) => {$(
        impl Answer<Vote> for $procedure {
            const BLOCKS: bool = false;

            fn answer(self, $vote: &Vote, _: Identity) -> Result<Self::Reply, Error> {
                $outcome
            }
        }
    )*};
}

answers! {
    // A reply without a time is a vote against.
    Beacon => |_vote| Ok(BeaconReply {});
    GetSyncSite => |_vote| Ok(GetSyncSiteReply {});
    DebugOld => |vote| Ok(DebugOldReply { state: vote.state() });
    Debug => |vote| Ok(DebugReply { state: vote.full_state() });
    XDebug => |vote| Ok(XDebugReply { state: vote.full_state(), is_clone: 0 });
}

/// The service through which `udebug` sees the state of a database.
#[derive(Clone)]
pub struct VoteService(DbService<Vote>);

impl VoteService {
    /// A service for a database at `addresses` (192.0.2.1 is 0xc0000201). `clock` also gives the
    /// start time of the server.
    pub fn new(database: Arc<dyn Database>, clock: Clock, addresses: Vec<u32>) -> Self {
        Self::with_sync_site(database, clock, addresses, Arc::new(|| None))
    }

    /// The same with another machine as sync site, while `sync_site` names one.
    pub fn with_sync_site(
        database: Arc<dyn Database>,
        clock: Clock,
        addresses: Vec<u32>,
        sync_site: SyncSite,
    ) -> Self {
        let started = clock();
        Self(DbService::new(Arc::new(Vote {
            database,
            clock,
            started,
            addresses,
            sync_site,
        })))
    }
}

impl Service for VoteService {
    fn package(&self) -> &'static Package {
        self.0.package()
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        self.0.call(call)
    }
}

/// The service that refuses a database from another server.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskService;

impl Service for DiskService {
    fn package(&self) -> &'static Package {
        &disk::PACKAGE
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(async move { disk::serve(self, call.opcode().await?, call).await })
    }
}

impl CallHandler for DiskService {
    type Refusal = AbortCode;

    fn failed(code: AbortCode) -> AbortCode {
        code
    }
}

impl Handle<disk::Probe, IncomingCall> for DiskService {
    async fn handle(
        &self,
        _: &IncomingCall,
        _: disk::Probe,
    ) -> Result<disk::ProbeReply, AbortCode> {
        Ok(disk::ProbeReply {})
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    struct Counter(AtomicU64);

    impl Database for Counter {
        fn version(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn a_single_site_is_always_healthy_and_its_version_moves() {
        let database = Arc::new(Counter(AtomicU64::new(3)));
        let clock: Clock = Arc::new(|| AfsTime(1000));
        let service = VoteService::new(database.clone(), clock, vec![0x7f000001, 0x0a000001]);
        let reply = service
            .0
            .server
            .ask(Identity::ANONYMOUS, XDebug {})
            .unwrap();
        assert_eq!(reply.state.interfaces[..3], [0x7f000001, 0x0a000001, 0]);
        let state = reply.state.state;
        assert_eq!(
            (state.am_sync_site, state.server_count, state.recovery_state),
            (1, 1, 0x1f)
        );
        assert_eq!(
            state.local_version,
            UbikVersion {
                epoch: 1000,
                counter: 3
            }
        );
        assert_eq!(state.sync_version, state.local_version);
        database.0.store(4, Ordering::Relaxed);
        let state = service
            .0
            .server
            .ask(Identity::ANONYMOUS, DebugOld {})
            .unwrap()
            .state;
        assert_eq!(state.local_version.counter, 4);
    }

    #[test]
    fn the_leader_of_a_cluster_is_the_sync_site_and_all_sites_are_healthy() {
        let database = Arc::new(Counter(AtomicU64::new(3)));
        let clock: Clock = Arc::new(|| AfsTime(1000));
        for (leader, is_here) in [(0x0a00_0001, true), (0x0a00_0002, false)] {
            let service = VoteService::with_sync_site(
                database.clone(),
                clock.clone(),
                vec![0x0a00_0001],
                Arc::new(move || Some(leader)),
            );
            let state = service.0.server.state();
            assert_eq!((state.sync_host, state.recovery_state), (leader, 0x1f));
            assert_eq!(state.am_sync_site == 1, is_here);
        }
    }
}
