//! The caller of a call: its host, its identity, and the time when both were determined.
//!
//! The record is kept with the caller's connection, so a call on a known connection costs one
//! lookup. The first call of a connection finds or creates the host and asks the protection
//! database. If the host is not ready, its calls wait until it is ([`crate::host`]). A connection
//! has one security class, and therefore one user. A host has one such record for each of its
//! connections.
//!
//! *Refresh.* The server asks again for identity and groups after two hours, after FlushCPS, and
//! when the protection database reports a change. A database in the same process reports a change
//! at once. Rights that an access list grants are never cached. The `UserList` membership of a
//! superuser is checked again after [`SUPERUSER_REFRESH`]. When a ticket expires, the rights end:
//! later calls get `VICETOKENDEAD`, and the client opens a new connection. While the database
//! cannot be reached, known callers keep their identity unless FlushCPS came in between; new users
//! wait.
//!
//! *Superusers.* A holder of the cell's key, and the local administrator, act as
//! `system:administrators` itself and have every right. A user in `UserList` acts under its own id
//! and is a member of `system:administrators`, whatever the database says.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use cellar_auth::{Authority, Identity as Authenticated, Principal};
use cellar_rpc::{Caller, IncomingCall};
use cellar_wire::AbortCode;
use cellar_wire::acl::{Cps, Rights};
use cellar_wire::ids::{AfsTime, ViceId};
use tracing::warn;

use crate::abort_map::Refusal;
use crate::access::Identity;
use crate::callbacks::Callbacks;
use crate::config::{Config, WallClock};
use crate::host::{Host, HostSlot, NotReady, canonical};
use crate::limits::{CPS_REFRESH, CPS_RETRY, SUPERUSER_REFRESH};
use crate::load;
use crate::network::Networks;
use crate::protection::{Protection, ProtectionError};

/// The data kept with a connection.
pub(crate) struct ClientRecord {
    pub(crate) host: Option<Arc<Host>>,
    pub(crate) identity: Identity,
    /// The host is in a network of this server.
    near: bool,
    /// When the caller's ticket ends; `u32::MAX` without one.
    expires: u32,
    /// Server's seconds when the identity was loaded.
    loaded: u32,
    /// Server's seconds from which the identity must be loaded again.
    stale: u32,
    /// The [`Sessions::cps_generation`] at that time.
    generation: u64,
    /// The caller was in `UserList`.
    listed: bool,
    _counted: Counted,
}

impl ClientRecord {
    /// The same identity for a little longer, because the database cannot be reached.
    fn extended_identity(&self) -> CallerIdentity {
        let refresh = if self.listed {
            SUPERUSER_REFRESH
        } else {
            CPS_RETRY
        };
        CallerIdentity {
            identity: self.identity.clone(),
            expires: self.expires,
            refresh: refresh.as_secs(),
            listed: self.listed,
        }
    }
}

/// The identity of a caller, and how long it is valid.
struct CallerIdentity {
    identity: Identity,
    /// When the ticket expires.
    expires: u32,
    /// Seconds after which the identity is loaded again.
    refresh: u64,
    /// A superuser by `UserList`.
    listed: bool,
}

impl CallerIdentity {
    /// An identity that does not depend on a ticket.
    fn without_ticket(identity: Identity) -> Self {
        Self {
            identity,
            expires: u32::MAX,
            refresh: CPS_REFRESH.as_secs(),
            listed: false,
        }
    }
}

/// Counts the existing records, which OpenAFS calls clients.
#[derive(Default)]
pub(crate) struct Clients(Arc<AtomicUsize>);

struct Counted(Arc<AtomicUsize>);

impl Clients {
    fn count_one(&self) -> Counted {
        self.0.fetch_add(1, Ordering::Relaxed);
        Counted(self.0.clone())
    }

    /// The number of records.
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One call's caller.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) client: Arc<ClientRecord>,
    pub(crate) now: AfsTime,
}

impl Session {
    fn of(client: Arc<ClientRecord>, now: u32) -> Result<Self, Refusal> {
        if now > client.expires {
            return Err(Refusal::Code(AbortCode::VICETOKENDEAD));
        }
        Ok(Self {
            client,
            now: AfsTime(now),
        })
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.client.identity
    }

    /// The caller's id.
    pub(crate) fn id(&self) -> ViceId {
        self.client.identity.id
    }

    /// Enters the caller into the call's note.
    fn note_load(&self) {
        let host = self.client.host.as_ref();
        load::note_caller(self.id(), host.map(|host| host.address().ip()));
    }

    /// The host that keeps its promises when the caller makes a change.
    pub(crate) fn host_slot(&self) -> Option<HostSlot> {
        self.client.host.as_ref().map(|host| host.slot())
    }

    /// The machine to which per-machine limits apply. In IPv6 a machine is a network of 64 bits,
    /// because one machine may own such a network. `None` for the local administrator.
    pub(crate) fn machine(&self) -> Option<IpAddr> {
        match self.client.host.as_ref()?.address().ip() {
            IpAddr::V6(address) => {
                let network = address.to_bits() >> 64 << 64;
                Some(IpAddr::V6(Ipv6Addr::from_bits(network)))
            }
            v4 => Some(v4),
        }
    }

    /// The host to which promises can be given, if it takes callbacks.
    pub(crate) fn promise_to(&self) -> Option<HostSlot> {
        self.client
            .host
            .as_ref()
            .filter(|host| host.takes_callbacks())
            .map(|host| host.slot())
    }

    /// The holder of reserved vnode numbers. It is the UUID of the host, which a restart of this
    /// server does not change, or else its address. All local administrators are one holder.
    pub(crate) fn holder(&self) -> u64 {
        let Some(host) = &self.client.host else {
            return 0;
        };
        let own = match host.uuid() {
            Some(uuid) => u128::from_be_bytes(uuid.0),
            None => match host.address().ip() {
                IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
                IpAddr::V6(address) => address.to_bits(),
            },
        };
        let high = (own >> 64) as u64;
        high.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32) ^ own as u64
    }

    /// The caller's category in the volume's counters of accesses.
    pub(crate) fn origin(&self) -> cellar_volume::Origin {
        cellar_volume::Origin {
            near: self.client.near,
            authenticated: !self.identity().is_anonymous(),
        }
    }

    pub(crate) fn context(&self) -> cellar_volume::Context {
        cellar_volume::Context {
            author: self.id(),
            now: self.now,
        }
    }
}

/// Finds the sessions of calls.
pub(crate) struct Sessions {
    /// Identifies callers with tickets.
    authority: Option<Authority>,
    implicit_rights: Rights,
    pub(crate) protection: Arc<dyn Protection>,
    pub(crate) clients: Clients,
    networks: Arc<Networks>,
    callbacks: Arc<Callbacks>,
    clock: WallClock,
    /// Incremented by FlushCPS: the groups cached with connections and hosts are then loaded again.
    cps_generation: AtomicU64,
}

impl Sessions {
    pub(crate) fn new(
        config: &Config,
        protection: Arc<dyn Protection>,
        networks: Arc<Networks>,
        callbacks: Arc<Callbacks>,
    ) -> Self {
        Self {
            authority: config.authority.clone(),
            implicit_rights: config.implicit_rights,
            protection,
            clients: Clients::default(),
            networks,
            callbacks,
            clock: config.clock.clone(),
            cps_generation: AtomicU64::new(0),
        }
    }

    /// The current time in seconds since 1970.
    /// The current time of the wall clock.
    pub(crate) fn wall(&self) -> Duration {
        (self.clock)()
    }

    fn now_secs(&self) -> u32 {
        AfsTime::after_1970(self.wall()).0
    }

    /// The number under which the groups of callers are valid. It changes with FlushCPS and with
    /// the protection database.
    fn cps_generation(&self) -> u64 {
        // Neither ever falls, so no two states have the same sum.
        let flushes = self.cps_generation.load(Ordering::Acquire);
        flushes.wrapping_add(self.protection.version())
    }

    /// Invalidates the cached groups of every caller and host.
    pub(crate) fn flush_cps(&self) {
        self.cps_generation.fetch_add(1, Ordering::AcqRel);
    }

    /// The session of a call that counts as user activity on the host.
    pub(crate) async fn session(&self, call: &IncomingCall) -> Result<Session, Refusal> {
        let now = self.now_secs();
        if let Some(client) = call.connection_data::<ClientRecord>()
            && let Some(host) = &client.host
            && host.is_ready()
            && self.is_fresh(&client, now)
        {
            host.note_call(now, true);
            return Session::of(client, now).inspect(Session::note_load);
        }
        let client = self.introduce(call, now).await?;
        Session::of(client, now).inspect(Session::note_load)
    }

    /// Whether errors travel to the caller as universal errno codes.
    pub(crate) fn understands_uae(&self, call: &IncomingCall) -> bool {
        let client = call.connection_data::<ClientRecord>();
        client.is_some_and(|client| {
            client
                .host
                .as_ref()
                .is_some_and(|host| host.understands_uae())
        })
    }

    /// For a call that is answered to any host, known or not. Notes the call. If the host is not
    /// ready, makes it ready in the background.
    pub(crate) fn note_call(&self, call: &IncomingCall) {
        let Some(client) = call.connection_data::<ClientRecord>() else {
            return;
        };
        let Some(host) = &client.host else { return };
        host.note_call(self.now_secs(), false);
        if !host.is_ready() {
            let (callbacks, host) = (self.callbacks.clone(), host.clone());
            let address = call.peer().address;
            tokio::spawn(async move {
                // A failure is noted in the host's record.
                let _noted = callbacks.contacts.make_ready(host, address).await;
            });
        }
    }

    async fn introduce(&self, call: &IncomingCall, now: u32) -> Result<Arc<ClientRecord>, Refusal> {
        let Some(port) = call.port() else {
            // The socket of the local administrator: no host, and nothing to keep.
            let generation = self.cps_generation();
            let known = self.caller_identity(call.caller(), None).await?;
            return Ok(Arc::new(self.record(None, known, now, generation)));
        };
        self.callbacks.contacts.use_port(port);
        let address = canonical(call.peer().address);
        let before = call.connection_data::<ClientRecord>();
        let new_connection = before.is_none();
        let mut host = before.as_ref().and_then(|client| client.host.clone());
        let mut ready = None;
        // A record may be dropped while we wait for it; the next one is new.
        for _ in 0..3 {
            let mut candidate = match host.take() {
                Some(host) => host,
                None => self.find_host(address, now)?,
            };
            if new_connection && candidate.may_be_another(call.peer().epoch, address) {
                self.callbacks.hosts.detach(&candidate, address);
                candidate = self.find_host(address, now)?;
            }
            candidate.note_call(now, true);
            if new_connection {
                candidate.seen_epoch(call.peer().epoch);
            }
            match self.callbacks.contacts.make_ready(candidate, address).await {
                Ok(host) => {
                    ready = Some(host);
                    break;
                }
                Err(NotReady::Gone) => {}
                Err(cause) => return Err(cause.into()),
            }
        }
        let host = ready.ok_or(Refusal::Busy)?;
        // Taken before the questions, so that a change in the meantime makes the record stale.
        let generation = self.cps_generation();
        let host_cps = self.host_cps(&host, address, generation).await;
        let known = match (self.caller_identity(call.caller(), host_cps).await, before) {
            // `UserList` is readable without the database, so a user removed from it loses the
            // rights at once.
            (Err(Refusal::NoProtection), Some(before))
                if before.generation == generation
                    && (!before.listed || self.identify(call.caller()).is_superuser()) =>
            {
                before.extended_identity()
            }
            (known, _) => known?,
        };
        let client = Arc::new(self.record(Some(host), known, now, generation));
        call.set_connection_data(client.clone());
        Ok(client)
    }

    fn find_host(&self, address: SocketAddr, now: u32) -> Result<Arc<Host>, Refusal> {
        self.callbacks
            .hosts
            .find_or_create(address, now)
            .ok_or_else(|| {
                warn!(host = %address, "host table is full");
                self.callbacks.make_room_for_hosts();
                Refusal::Busy
            })
    }

    fn record(
        &self,
        host: Option<Arc<Host>>,
        known: CallerIdentity,
        now: u32,
        generation: u64,
    ) -> ClientRecord {
        let near = host
            .as_ref()
            .is_none_or(|host| self.networks.has(host.address()));
        ClientRecord {
            host,
            near,
            identity: known.identity,
            expires: known.expires,
            loaded: now,
            stale: now.saturating_add(known.refresh as u32),
            generation,
            listed: known.listed,
            _counted: self.clients.count_one(),
        }
    }

    fn is_fresh(&self, client: &ClientRecord, now: u32) -> bool {
        // The range check also rejects a record from the future, so a clock that was set back
        // extends no record.
        (client.loaded..client.stale).contains(&now) && client.generation == self.cps_generation()
    }

    /// The groups of a host. `None` while the database cannot be reached.
    async fn host_cps(&self, host: &Host, address: SocketAddr, generation: u64) -> Option<Cps> {
        if let Some(cps) = host.known_cps(generation) {
            return Some(cps);
        }
        match self.protection.host_cps(address.ip()).await {
            Ok(cps) => {
                host.set_cps(cps.clone(), generation);
                Some(cps)
            }
            Err(cause) => {
                warn!(host = %address, %cause, "cannot load the groups of a host");
                None
            }
        }
    }

    /// The identity of a caller by ticket and superuser list, without its groups.
    pub(crate) fn identify(&self, caller: &Caller) -> Authenticated {
        match &self.authority {
            Some(authority) => authority.identify(caller),
            None => Authenticated::without_ticket(caller),
        }
    }

    /// The identity of a caller, with all its groups.
    async fn caller_identity(
        &self,
        caller: &Caller,
        host_cps: Option<Cps>,
    ) -> Result<CallerIdentity, Refusal> {
        match (self.identify(caller), principal(caller)) {
            (Authenticated::Superuser(_), Some(principal)) if !principal.key_holder => {
                self.user(&principal, host_cps, true).await
            }
            (Authenticated::Superuser(_), principal) => Ok(CallerIdentity {
                expires: principal.map_or(u32::MAX, |principal| principal.expires.0),
                ..CallerIdentity::without_ticket(Identity::superuser())
            }),
            (Authenticated::User(principal), _) => self.user(&principal, host_cps, false).await,
            (Authenticated::Anonymous, _) => Ok(CallerIdentity::without_ticket(
                Identity::anonymous(host_cps),
            )),
        }
    }

    /// The identity of a user with a ticket. A user without an entry in the database is anonymous,
    /// unless it is a superuser.
    async fn user(
        &self,
        principal: &Principal,
        host_cps: Option<Cps>,
        superuser: bool,
    ) -> Result<CallerIdentity, Refusal> {
        let id = self.protection.id_of_principal(principal).await;
        let id = id.map_err(|cause| unreachable_protection(&cause))?;
        let identity = if id != ViceId::ANONYMOUS {
            let cps = self.protection.cps(id).await;
            let cps = cps.map_err(|cause| unreachable_protection(&cause))?;
            let more = superuser.then_some(ViceId::ADMINISTRATORS);
            let cps = cps.ids().iter().copied().chain(more).collect();
            Identity::new(id, cps, host_cps, self.implicit_rights)
        } else if superuser {
            Identity::superuser()
        } else {
            Identity::anonymous(host_cps)
        };
        let refresh = if superuser {
            SUPERUSER_REFRESH
        } else {
            CPS_REFRESH
        };
        Ok(CallerIdentity {
            identity,
            expires: principal.expires.0,
            refresh: refresh.as_secs(),
            listed: superuser,
        })
    }
}

/// The principal that the caller's ticket names.
fn principal(caller: &Caller) -> Option<Arc<Principal>> {
    match caller {
        Caller::Principal(any) => any.clone().downcast().ok(),
        _ => None,
    }
}

fn unreachable_protection(cause: &ProtectionError) -> Refusal {
    warn!(%cause, "cannot load the groups of a caller");
    Refusal::NoProtection
}
