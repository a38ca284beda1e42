//! Contact with a host before it is served: its identity, and the promises that it must forget.
//!
//! All steps run under the host's `talk` lock, in this order, as far as they apply:
//!
//! 1. *Introduction* (not `KNOWN`, or `VERIFY`): `TellMeAboutYourself`, or the older calls that
//!    older clients serve.
//!    - A UUID that no record has: a new host, to be reset.
//!    - A UUID of another record: the same host from another address. The server probes the present
//!      address of that record. If the host answers there, the new address becomes an alternate.
//!      Otherwise the host has moved, and questions that wait for an answer at the old address are
//!      repeated at the new one. The record of the new address is dropped.
//!    - A record under `VERIFY` that reports the UUID it had keeps its promises. Otherwise it is
//!      reset.
//! 2. *Reset* (`RESET`): the server drops the host's promises, then sends `InitCallBackState3`.
//!    This order is safe: a promise given in between belongs to a call that the client started
//!    before it received the reset. The client distrusts the answer of such a call.
//! 3. *Catching up*: the entries of the outbox are delivered, in calls of up to 50 fids.
//!
//! A bounded number of calls of the same host wait, and share the outcome. Calls of other hosts are
//! not affected. A host that does not answer is marked down and the call fails, so the client
//! learns that it cannot be called back.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cellar_rpc::{CallError, Connection, ConnectionOptions, Port, Security};
use cellar_wire::ids::{AfsUuid, Fid};
use cellar_wire::package::Procedure;
use cellar_wire::rxafscb;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tracing::{debug, info};

use super::questions::{self, HostIdentity};
use super::{DOWN, ERRORTRANS, GONE, Host, HostTable, KNOWN, NO_SERVICE, Queued, RESET, VERIFY};
use crate::callback::CallbackTable;
use crate::leases::Leases;
use crate::limits::{
    BREAK_RETRIES, BREAKS_IN_PARALLEL, CONTACT_PATIENCE, FIDS_PER_BREAK, MOVE_PATIENCE,
    PROBE_PATIENCE,
};

/// Why a host cannot be served now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotReady {
    /// Too many calls wait for it already, or the contact takes too long.
    Busy,
    /// It does not answer calls to its callback service.
    Silent,
    /// The record was dropped in the meantime: look the host up again.
    Gone,
}

/// Counters of contacts with hosts.
#[derive(Debug, Default)]
pub struct ContactCounters {
    /// Hosts that were asked who they are.
    pub introductions: AtomicU64,
    /// Of these, known hosts at a new address.
    pub moves: AtomicU64,
    /// Hosts that were told to forget everything.
    pub resets: AtomicU64,
    /// `CallBack` calls that were answered.
    pub breaks_told: AtomicU64,
    /// Contacts that got no answer.
    pub silences: AtomicU64,
    /// Hosts dropped after long silence or because the table was full.
    pub expired: AtomicU64,
    /// Hosts that gave up all their promises, or lost them in a reset.
    pub given_up_whole: AtomicU64,
    /// How often the full promise table had to make room.
    pub room_made: AtomicU64,
}

/// The state needed to contact hosts.
pub struct Contacts {
    pub(super) hosts: Arc<HostTable>,
    pub(super) callbacks: Arc<CallbackTable>,
    /// Directories that hosts use exclusively.
    pub(crate) leases: Arc<Leases>,
    server: AfsUuid,
    port: OnceLock<Port>,
    pub(super) permits: Semaphore,
    /// Counters.
    pub counters: ContactCounters,
}

impl Contacts {
    /// `server` is this file server's UUID, as registered in the volume location database.
    #[must_use]
    pub fn new(hosts: Arc<HostTable>, callbacks: Arc<CallbackTable>, server: AfsUuid) -> Self {
        Self {
            hosts,
            callbacks,
            leases: Arc::default(),
            server,
            port: OnceLock::new(),
            permits: Semaphore::new(BREAKS_IN_PARALLEL),
            counters: ContactCounters::default(),
        }
    }

    /// Sets the port from which hosts are called. It must be the file server's own port, because
    /// clients tell servers apart by it. Only the first call has an effect.
    pub fn use_port(&self, port: &Port) {
        self.port.get_or_init(|| port.clone());
    }

    /// That port, once it is set.
    pub(crate) fn port(&self) -> Option<&Port> {
        self.port.get()
    }

    /// Makes sure that `host`, which calls from `address`, may be answered. Returns the host to
    /// which the call belongs. It differs from `host` if a known host appeared at a new address.
    ///
    /// # Errors
    /// [`NotReady`]: the host may not be answered now.
    pub async fn make_ready(
        &self,
        host: Arc<Host>,
        address: SocketAddr,
    ) -> Result<Arc<Host>, NotReady> {
        let other = match self.make_one_ready(&host, address).await? {
            None => return Ok(host),
            Some(other) => other,
        };
        match self.make_one_ready(&other, address).await? {
            None => Ok(other),
            // The UUID belongs to a third record by now: the client retries.
            Some(_) => Err(NotReady::Busy),
        }
    }

    async fn make_one_ready(
        &self,
        host: &Arc<Host>,
        address: SocketAddr,
    ) -> Result<Option<Arc<Host>>, NotReady> {
        if host.is_ready() {
            return Ok(None);
        }
        let place = host.wait_place().ok_or(NotReady::Busy)?;
        let arrived = Instant::now();
        let talk = timeout(CONTACT_PATIENCE, host.talk()).await;
        let _talk = talk.map_err(|_| NotReady::Busy)?;
        drop(place);
        if host.has(GONE) {
            return Err(NotReady::Gone);
        }
        if host.is_ready() {
            return Ok(None);
        }
        if host.failed_after(arrived) {
            return Err(NotReady::Silent);
        }
        if !host.has(KNOWN) || host.has(VERIFY) {
            let other = self.introduce(host, address).await?;
            if other.is_some() {
                return Ok(other);
            }
        }
        self.catch_up(host).await?;
        Ok(None)
    }

    /// Asks the host who it is. Returns the other record with the same UUID, if there is one.
    async fn introduce(
        &self,
        host: &Arc<Host>,
        address: SocketAddr,
    ) -> Result<Option<Arc<Host>>, NotReady> {
        self.counters.introductions.fetch_add(1, Ordering::Relaxed);
        // The client may be a new process, which does not know the pending creates of the earlier
        // one.
        self.leases.end_all(host.slot());
        let Some(connection) = self.connection(host) else {
            return Err(NotReady::Silent);
        };
        let begun = Instant::now();
        let asked = timeout(CONTACT_PATIENCE, questions::who_are_you(&connection)).await;
        let who = match asked.unwrap_or(Err(CallError::Timeout)) {
            Ok(who) => {
                host.answered_in(begun.elapsed());
                who
            }
            Err(cause) => return Err(self.mark_silent(host, "TellMeAboutYourself", &cause)),
        };
        debug!(host = %address, ?who, "host introduced");
        match who {
            HostIdentity::NoService => {
                self.give_up_all(host);
                host.outbox_clear();
                host.clear(VERIFY | RESET | DOWN | ERRORTRANS);
                host.set(KNOWN | NO_SERVICE);
            }
            HostIdentity::NoUuid => {
                host.clear(VERIFY | ERRORTRANS | NO_SERVICE);
                host.set(KNOWN | RESET);
            }
            HostIdentity::Client {
                uuid,
                translates_errors,
            } => {
                let before = host.uuid();
                if let Some(other) = self.hosts.claim_uuid(host, uuid) {
                    self.same_host_elsewhere(host, &other, uuid, address).await;
                    return Ok(Some(other));
                }
                if !(host.has(VERIFY) && before == Some(uuid)) {
                    host.set(RESET);
                }
                host.clear(VERIFY | ERRORTRANS | NO_SERVICE);
                host.set(KNOWN | if translates_errors { ERRORTRANS } else { 0 });
            }
        }
        Ok(None)
    }

    /// Merges two records: the host `known` was found at `address`, under the record `duplicate`.
    async fn same_host_elsewhere(
        &self,
        duplicate: &Arc<Host>,
        known: &Arc<Host>,
        uuid: AfsUuid,
        address: SocketAddr,
    ) {
        self.counters.moves.fetch_add(1, Ordering::Relaxed);
        let still_there = match self.connection(known) {
            Some(connection) => questions::probe_uuid(&connection, uuid, MOVE_PATIENCE).await,
            None => false,
        };
        info!(host = %known.address(), %address, still_there, "host has another address");
        if still_there {
            known.add_alternate(address);
        } else {
            known.set_primary(address);
            // Questions that wait for an answer at the old address need not wait any longer.
            known.readdressed.notify_waiters();
        }
        self.give_up_all(duplicate);
        self.hosts.merge(duplicate, known, address);
    }

    /// Delivers the pending reset and all breaks to the host. Its `talk` lock is held.
    async fn catch_up(&self, host: &Arc<Host>) -> Result<(), NotReady> {
        loop {
            if host.has(RESET) {
                self.reset(host).await?;
            }
            let Some((fids, entries)) = host.outbox_front(FIDS_PER_BREAK) else {
                return Ok(());
            };
            let begun = Instant::now();
            match self.send_breaks(host, &fids).await {
                Ok(()) => {
                    host.answered_in(begun.elapsed());
                    self.counters.breaks_told.fetch_add(1, Ordering::Relaxed);
                    host.remove_delivered(entries);
                }
                // The host answers and refuses the break, so it must forget everything.
                Err(CallError::Aborted(code)) => {
                    debug!(host = %host.address(), %code, "CallBack refused");
                    host.set(RESET | DOWN);
                    host.outbox_clear();
                }
                Err(cause) => return Err(self.mark_silent(host, "CallBack", &cause)),
            }
        }
    }

    /// Makes the host forget all promises of this server.
    async fn reset(&self, host: &Arc<Host>) -> Result<(), NotReady> {
        self.give_up_all(host);
        host.outbox_clear();
        let with_uuid = host.uuid().is_some();
        let reset = self.call_host(host, |connection| async move {
            let reset = questions::forget_everything(&connection, self.server, with_uuid);
            let reset = timeout(CONTACT_PATIENCE, reset).await;
            reset.unwrap_or(Err(CallError::Timeout))
        });
        match reset.await {
            Ok(()) => {
                self.counters.resets.fetch_add(1, Ordering::Relaxed);
                host.clear(RESET);
                Ok(())
            }
            Err(CallError::Aborted(code)) => {
                debug!(host = %host.address(), %code, "host keeps no callback state");
                host.set(NO_SERVICE);
                host.clear(RESET);
                Ok(())
            }
            Err(cause) => Err(self.mark_silent(host, "InitCallBackState", &cause)),
        }
    }

    /// Removes all promises and leases of a host. Returns the number of promises.
    pub(crate) fn give_up_all(&self, host: &Host) -> usize {
        self.leases.end_all(host.slot());
        self.counters.given_up_whole.fetch_add(1, Ordering::Relaxed);
        self.callbacks.give_up_all(host.slot())
    }

    /// Asks the host a question at its present address. If the host is found at another address in
    /// the meantime, asks again there, because the old address will not answer. The host may
    /// execute the question twice.
    async fn call_host<T, F: Future<Output = Result<T, CallError>>>(
        &self,
        host: &Host,
        question: impl Fn(Connection) -> F,
    ) -> Result<T, CallError> {
        loop {
            // Registered before the address is read, so that no change of it is missed.
            let readdressed = host.readdressed.notified();
            tokio::pin!(readdressed);
            readdressed.as_mut().enable();
            let connection = self.connection(host).ok_or(CallError::Closed)?;
            tokio::select! {
                answer = question(connection) => return answer,
                () = readdressed => {}
            }
        }
    }

    /// Delivers breaks for fids. If the primary address is silent, tries the alternates.
    async fn send_breaks(&self, host: &Arc<Host>, fids: &[Fid]) -> Result<(), CallError> {
        self.call_host(host, |connection| {
            self.send_breaks_at(host, connection, fids)
        })
        .await
    }

    async fn send_breaks_at(
        &self,
        host: &Arc<Host>,
        connection: Connection,
        fids: &[Fid],
    ) -> Result<(), CallError> {
        let failure = match questions::break_callbacks(&connection, fids).await {
            Err(cause) if cause.is_unreachable() => cause,
            other => return other,
        };
        let (uuid, alternates) = {
            let record = host.record.lock();
            (record.uuid, record.alternates.clone())
        };
        let Some(uuid) = uuid else {
            return Err(failure);
        };
        for alternate in alternates {
            let Some(connection) = self.connect(alternate) else {
                break;
            };
            if questions::probe_uuid(&connection, uuid, PROBE_PATIENCE).await {
                host.set_primary(alternate);
                return questions::break_callbacks(&connection, fids).await;
            }
        }
        Err(failure)
    }

    /// Puts a fid into a host's outbox and makes sure that a task delivers it. Returns the entry
    /// number to wait for; `None` if the host is down.
    pub(crate) fn queue_break(self: &Arc<Self>, host: &Arc<Host>, fid: Fid) -> Option<u64> {
        match host.queue(fid) {
            Queued::At(number) => Some(number),
            Queued::Delayed => None,
            Queued::Deliver(number) => {
                let (contacts, host) = (self.clone(), host.clone());
                tokio::spawn(async move { contacts.deliver(&host).await });
                Some(number)
            }
        }
    }

    /// Empties a host's outbox. A silent host is retried a few times, so that after a short absence
    /// it gets its breaks even if it never calls. Ends with an empty outbox, or with the host down.
    async fn deliver(&self, host: &Arc<Host>) {
        for pause in BREAK_RETRIES {
            if self.try_to_deliver(host).await {
                return;
            }
            tokio::time::sleep(pause).await;
            if !host.has(DOWN) || host.has(GONE) {
                return;
            }
        }
        self.try_to_deliver(host).await;
    }

    /// Tries once to empty the outbox. Returns whether it is empty now.
    async fn try_to_deliver(&self, host: &Arc<Host>) -> bool {
        let delivered = async {
            let _talk = host.talk().await;
            // A failure is noted in the host's record.
            self.catch_up(host).await.is_ok()
        };
        tokio::pin!(delivered);
        // The semaphore is never closed.
        let permit = self.permits.acquire().await;
        match timeout(host.break_wait(), &mut delivered).await {
            Ok(delivered) => delivered,
            // No change waits for this host any longer, so it must not hold back the deliveries
            // behind it.
            Err(_) => {
                drop(permit);
                delivered.await
            }
        }
    }

    /// Tries once to reach a host that makes no calls, and to deliver its delayed breaks.
    pub(crate) async fn probe(&self, host: &Arc<Host>) -> bool {
        let Ok(_talk) = timeout(PROBE_PATIENCE, host.talk()).await else {
            return false;
        };
        let Some(connection) = self.connection(host) else {
            return false;
        };
        let alive = match host.uuid() {
            Some(uuid) => questions::probe_uuid(&connection, uuid, PROBE_PATIENCE).await,
            None => questions::probe(&connection, PROBE_PATIENCE).await,
        };
        if !alive {
            self.counters.silences.fetch_add(1, Ordering::Relaxed);
            host.mark_down();
            return false;
        }
        self.catch_up(host).await.is_ok()
    }

    /// Tells a host that is about to be dropped to forget everything. A lost message does no harm:
    /// when the host calls again, it is unknown and is reset.
    pub(crate) async fn dismiss(&self, host: &Arc<Host>) {
        let Ok(_talk) = timeout(PROBE_PATIENCE, host.talk()).await else {
            return;
        };
        host.set(RESET | DOWN);
        if !host.has(NO_SERVICE) {
            let _unheard = timeout(PROBE_PATIENCE, self.reset(host)).await;
        }
    }

    fn mark_silent(&self, host: &Host, asked: &str, cause: &CallError) -> NotReady {
        self.counters.silences.fetch_add(1, Ordering::Relaxed);
        info!(host = %host.address(), asked, %cause, "host does not answer");
        host.mark_down();
        NotReady::Silent
    }

    fn connection(&self, host: &Host) -> Option<Connection> {
        let mut record = host.record.lock();
        if record.connection.is_none() {
            record.connection = self.connect(record.primary);
        }
        record.connection.clone()
    }

    fn connect(&self, address: SocketAddr) -> Option<Connection> {
        let options = ConnectionOptions {
            call_timeout: Some(CONTACT_PATIENCE),
            ..ConnectionOptions::default()
        };
        let service = rxafscb::CallBack::package().service_id;
        let port = self.port.get()?;
        Some(port.connect_with(address, service, Security::null(), options))
    }
}
