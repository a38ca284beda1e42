//! Talking to a host before it is served: who it is, and what it has to forget.
//!
//! Holding the host's `talk` lock, in this order, whatever of it applies:
//!
//! 1. *Introduction* (not `KNOWN`, or `VERIFY`): `TellMeAboutYourself`, or what older clients have
//!    instead. A UUID nobody has: a new host, to be reset. A UUID of another record: the same host
//!    from another address. Its present address is probed; if it answers, the new one is an
//!    alternate, else the host has moved, and what it was being asked there it is asked here. The
//!    record of the new address is dropped. A record that was to be verified and reports the UUID
//!    it had keeps its promises; otherwise it is reset.
//! 2. *Reset* (`RESET`): its promises are dropped, then it is told `InitCallBackState3`. In this
//!    order: a promise given in between belongs to a call that the client started before it was
//!    told to forget, and the client distrusts the answer.
//! 3. *Catching up*: the outbox is told, in calls of up to 50 fids.
//!
//! Calls of the same host wait, a bounded number of them, and share the outcome; calls of other
//! hosts do not notice. A host that is silent is marked down and the call fails, so that the client
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

use super::questions::{self, Who};
use super::{DOWN, ERRORTRANS, GONE, Host, HostTable, KNOWN, NO_SERVICE, Queued, RESET, VERIFY};
use crate::callback::CallbackTable;
use crate::leases::Leases;
use crate::limits::{
    BREAK_RETRIES, BREAKS_IN_PARALLEL, CONTACT_PATIENCE, FIDS_PER_BREAK, MOVE_PATIENCE,
    PROBE_PATIENCE,
};

/// Why a host cannot be served now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsettled {
    /// Too many calls wait for it already, or the one that talks to it takes too long.
    Busy,
    /// It does not answer calls to its callback service.
    Silent,
    /// The record was dropped meanwhile: look the host up again.
    Gone,
}

/// How often hosts were talked to.
#[derive(Debug, Default)]
pub struct ContactCounters {
    /// Hosts asked who they are.
    pub introductions: AtomicU64,
    /// Of these, known ones at a new address.
    pub moves: AtomicU64,
    /// Hosts told to forget everything.
    pub resets: AtomicU64,
    /// `CallBack` calls that were answered.
    pub breaks_told: AtomicU64,
    /// Talks that got no answer.
    pub silences: AtomicU64,
    /// Hosts dropped after long silence or for want of room.
    pub expired: AtomicU64,
    /// Hosts that gave up all their promises, or lost them because they were told to forget.
    pub given_up_whole: AtomicU64,
    /// Times that the full table of promises had to make room.
    pub room_made: AtomicU64,
}

/// Everything needed to talk to hosts.
pub struct Contacts {
    pub(super) hosts: Arc<HostTable>,
    pub(super) callbacks: Arc<CallbackTable>,
    /// Directories that hosts have to themselves.
    pub(crate) leases: Arc<Leases>,
    server: AfsUuid,
    port: OnceLock<Port>,
    pub(super) permits: Semaphore,
    /// How often.
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

    /// Says which port hosts are called from: the file server's own, because clients tell servers
    /// apart by it. The first call counts.
    pub fn use_port(&self, port: &Port) {
        self.port.get_or_init(|| port.clone());
    }

    /// That port, once it is known.
    pub(crate) fn port(&self) -> Option<&Port> {
        self.port.get()
    }

    /// Makes sure that `host`, which calls from `address`, may be answered. Returns the host the
    /// call belongs to, which is another one when a known host appeared at a new address.
    ///
    /// # Errors
    /// [`Unsettled`]: it may not be answered now.
    pub async fn settle(
        &self,
        host: Arc<Host>,
        address: SocketAddr,
    ) -> Result<Arc<Host>, Unsettled> {
        let other = match self.settle_one(&host, address).await? {
            None => return Ok(host),
            Some(other) => other,
        };
        match self.settle_one(&other, address).await? {
            None => Ok(other),
            // A UUID that belongs to a third record within an instant: the client asks again.
            Some(_) => Err(Unsettled::Busy),
        }
    }

    async fn settle_one(
        &self,
        host: &Arc<Host>,
        address: SocketAddr,
    ) -> Result<Option<Arc<Host>>, Unsettled> {
        if host.is_settled() {
            return Ok(None);
        }
        let place = host.wait_place().ok_or(Unsettled::Busy)?;
        let arrived = Instant::now();
        let talk = timeout(CONTACT_PATIENCE, host.talk()).await;
        let _talk = talk.map_err(|_| Unsettled::Busy)?;
        drop(place);
        if host.has(GONE) {
            return Err(Unsettled::Gone);
        }
        if host.is_settled() {
            return Ok(None);
        }
        if host.failed_after(arrived) {
            return Err(Unsettled::Silent);
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

    /// Asks the host who it is. Returns the record it should have had, if there is one.
    async fn introduce(
        &self,
        host: &Arc<Host>,
        address: SocketAddr,
    ) -> Result<Option<Arc<Host>>, Unsettled> {
        self.counters.introductions.fetch_add(1, Ordering::Relaxed);
        // Another client process knows nothing of what one before it has made.
        self.leases.end_all(host.slot());
        let Some(connection) = self.connection(host) else {
            return Err(Unsettled::Silent);
        };
        let begun = Instant::now();
        let asked = timeout(CONTACT_PATIENCE, questions::who_are_you(&connection)).await;
        let who = match asked.unwrap_or(Err(CallError::Timeout)) {
            Ok(who) => {
                host.answered_in(begun.elapsed());
                who
            }
            Err(cause) => return Err(self.silent(host, "TellMeAboutYourself", &cause)),
        };
        debug!(host = %address, ?who, "host introduced");
        match who {
            Who::NoService => {
                self.give_up_all(host);
                host.outbox_clear();
                host.clear(VERIFY | RESET | DOWN | ERRORTRANS);
                host.set(KNOWN | NO_SERVICE);
            }
            Who::NoUuid => {
                host.clear(VERIFY | ERRORTRANS | NO_SERVICE);
                host.set(KNOWN | RESET);
            }
            Who::Client {
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

    /// The host `known` was found at `address`, under the record `duplicate`.
    async fn same_host_elsewhere(
        &self,
        duplicate: &Arc<Host>,
        known: &Arc<Host>,
        uuid: AfsUuid,
        address: SocketAddr,
    ) {
        self.counters.moves.fetch_add(1, Ordering::Relaxed);
        let still_there = match self.connection(known) {
            Some(connection) => questions::is(&connection, uuid, MOVE_PATIENCE).await,
            None => false,
        };
        info!(host = %known.address(), %address, still_there, "host has another address");
        if still_there {
            known.add_alternate(address);
        } else {
            known.set_primary(address);
            // Whoever waits for an answer from where it was need not.
            known.readdressed.notify_waiters();
        }
        self.give_up_all(duplicate);
        self.hosts.merge(duplicate, known, address);
    }

    /// Tells the host everything it has still to be told. Its `talk` lock is held.
    async fn catch_up(&self, host: &Arc<Host>) -> Result<(), Unsettled> {
        loop {
            if host.has(RESET) {
                self.reset(host).await?;
            }
            let Some((fids, entries)) = host.outbox_front(FIDS_PER_BREAK) else {
                return Ok(());
            };
            let begun = Instant::now();
            match self.tell(host, &fids).await {
                Ok(()) => {
                    host.answered_in(begun.elapsed());
                    self.counters.breaks_told.fetch_add(1, Ordering::Relaxed);
                    host.outbox_told(entries);
                }
                // It answers, and refuses: it has to forget everything.
                Err(CallError::Aborted(code)) => {
                    debug!(host = %host.address(), %code, "CallBack refused");
                    host.set(RESET | DOWN);
                    host.outbox_clear();
                }
                Err(cause) => return Err(self.silent(host, "CallBack", &cause)),
            }
        }
    }

    /// Makes the host forget everything.
    async fn reset(&self, host: &Arc<Host>) -> Result<(), Unsettled> {
        self.give_up_all(host);
        host.outbox_clear();
        let with_uuid = host.uuid().is_some();
        let told = self.ask(host, |connection| async move {
            let told = questions::forget_everything(&connection, self.server, with_uuid);
            let told = timeout(CONTACT_PATIENCE, told).await;
            told.unwrap_or(Err(CallError::Timeout))
        });
        match told.await {
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
            Err(cause) => Err(self.silent(host, "InitCallBackState", &cause)),
        }
    }

    /// Takes away all promises of a host, and its leases; returns how many promises.
    pub(crate) fn give_up_all(&self, host: &Host) -> usize {
        self.leases.end_all(host.slot());
        self.counters.given_up_whole.fetch_add(1, Ordering::Relaxed);
        self.callbacks.give_up_all(host.slot())
    }

    /// Asks a host something where it is, and again there if it is found elsewhere meanwhile: an address where it is not
    /// any more answers nothing for as long as anybody waits. What is asked may be done twice.
    async fn ask<T, F: Future<Output = Result<T, CallError>>>(
        &self,
        host: &Host,
        question: impl Fn(Connection) -> F,
    ) -> Result<T, CallError> {
        loop {
            // Before the address is looked at.
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

    /// Tells the host about fids, at another of its addresses if this one is silent.
    async fn tell(&self, host: &Arc<Host>, fids: &[Fid]) -> Result<(), CallError> {
        self.ask(host, |connection| self.tell_at(host, connection, fids))
            .await
    }

    async fn tell_at(
        &self,
        host: &Arc<Host>,
        connection: Connection,
        fids: &[Fid],
    ) -> Result<(), CallError> {
        let failure = match questions::tell(&connection, fids).await {
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
            if questions::is(&connection, uuid, PROBE_PATIENCE).await {
                host.set_primary(alternate);
                return questions::tell(&connection, fids).await;
            }
        }
        Err(failure)
    }

    /// Puts a fid into a host's outbox and sees to it that it is told. Returns the number to wait
    /// for; `None` when the host is down.
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

    /// Empties a host's outbox. One that is silent is tried again a few times, so that a short
    /// absence ends with the host told though it never calls. Ends with an empty outbox, or with
    /// the host down.
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

    /// Whether it is empty now.
    async fn try_to_deliver(&self, host: &Arc<Host>) -> bool {
        let told = async {
            let _talk = host.talk().await;
            // What goes wrong is noted in the host's record.
            self.catch_up(host).await.is_ok()
        };
        tokio::pin!(told);
        // The semaphore is never closed.
        let permit = self.permits.acquire().await;
        match timeout(host.break_wait(), &mut told).await {
            Ok(told) => told,
            // Nobody waits for this one any more: those behind it must not, either.
            Err(_) => {
                drop(permit);
                told.await
            }
        }
    }

    /// Tries once to reach a host that nobody calls from: to tell it what it missed.
    pub(crate) async fn probe(&self, host: &Arc<Host>) -> bool {
        let Ok(_talk) = timeout(PROBE_PATIENCE, host.talk()).await else {
            return false;
        };
        let Some(connection) = self.connection(host) else {
            return false;
        };
        let alive = match host.uuid() {
            Some(uuid) => questions::is(&connection, uuid, PROBE_PATIENCE).await,
            None => questions::is_there(&connection, PROBE_PATIENCE).await,
        };
        if !alive {
            self.counters.silences.fetch_add(1, Ordering::Relaxed);
            host.mark_down();
            return false;
        }
        self.catch_up(host).await.is_ok()
    }

    /// Tells a host that is to be dropped to forget everything; whether it hears does not matter,
    /// because it is unknown, and reset, when it comes again.
    pub(crate) async fn dismiss(&self, host: &Arc<Host>) {
        let Ok(_talk) = timeout(PROBE_PATIENCE, host.talk()).await else {
            return;
        };
        host.set(RESET | DOWN);
        if !host.has(NO_SERVICE) {
            let _unheard = timeout(PROBE_PATIENCE, self.reset(host)).await;
        }
    }

    fn silent(&self, host: &Host, asked: &str, cause: &CallError) -> Unsettled {
        self.counters.silences.fetch_add(1, Ordering::Relaxed);
        info!(host = %host.address(), asked, %cause, "host does not answer");
        host.mark_down();
        Unsettled::Silent
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
