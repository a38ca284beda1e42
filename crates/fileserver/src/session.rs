//! Who makes a call: the host, the identity, and since when both are known.
//!
//! Kept with the caller's connection, so that a call on a connection that is known costs one look.
//! The first call of a connection finds or makes the host and asks the protection database; calls
//! of a host that is not settled wait for it ([`crate::host`]).

use std::net::SocketAddr;
use std::sync::Arc;

use cellar_rpc::{Caller, IncomingCall};
use cellar_wire::acl::Cps;
use cellar_wire::ids::{AfsTime, ViceId};
use tracing::warn;

use crate::abort_map::Refusal;
use crate::access::Identity;
use crate::host::{Host, HostSlot, Unsettled, canonical};
use crate::limits::CPS_REFRESH;
use crate::protection::ProtectionError;
use crate::server::Server;

/// What is kept with a connection.
pub(crate) struct ClientRecord {
    pub(crate) host: Option<Arc<Host>>,
    pub(crate) identity: Identity,
    /// When the identity's groups were asked for.
    loaded: u32,
    /// The generation of [`Server::cps_generation`] at that time.
    generation: u64,
}

/// One call's caller.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) client: Arc<ClientRecord>,
    pub(crate) now: AfsTime,
}

impl Session {
    pub(crate) fn identity(&self) -> &Identity {
        &self.client.identity
    }

    /// The caller's id.
    pub(crate) fn id(&self) -> ViceId {
        self.client.identity.id
    }

    /// Whose promises stay when the caller changes something.
    pub(crate) fn host_slot(&self) -> Option<HostSlot> {
        self.client.host.as_ref().map(|host| host.slot())
    }

    /// Who can be promised something.
    pub(crate) fn promise_to(&self) -> Option<HostSlot> {
        self.client
            .host
            .as_ref()
            .filter(|host| host.takes_callbacks())
            .map(|host| host.slot())
    }

    pub(crate) fn context(&self) -> cellar_volume::Context {
        cellar_volume::Context {
            author: self.id(),
            now: self.now,
        }
    }
}

impl Server {
    /// The caller of a call that shows that somebody works there.
    pub(crate) async fn session(self: &Arc<Self>, call: &IncomingCall) -> Result<Session, Refusal> {
        let now = self.now_secs();
        if let Some(client) = call.connection_data::<ClientRecord>()
            && let Some(host) = &client.host
            && host.is_settled()
            && self.is_fresh(&client, now)
        {
            host.heard(now, true);
            return Ok(Session {
                client,
                now: AfsTime(now),
            });
        }
        let client = self.introduce(call, now).await?;
        Ok(Session {
            client,
            now: AfsTime(now),
        })
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

    /// A call that is answered to anybody, known or not: notes it, and if the host has something
    /// to be told, sees to it in the background.
    pub(crate) fn passing_by(self: &Arc<Self>, call: &IncomingCall) {
        let Some(client) = call.connection_data::<ClientRecord>() else {
            return;
        };
        let Some(host) = &client.host else { return };
        host.heard(self.now_secs(), false);
        if !host.is_settled() {
            let (server, host) = (self.clone(), host.clone());
            let address = call.peer().address;
            tokio::spawn(async move {
                // What goes wrong is noted in the host's record.
                let _noted = server.contacts.settle(host, address).await;
            });
        }
    }

    async fn introduce(
        self: &Arc<Self>,
        call: &IncomingCall,
        now: u32,
    ) -> Result<Arc<ClientRecord>, Refusal> {
        let Some(port) = call.port() else {
            // The local administrator's socket: no host, and nothing to keep.
            let identity = self.identity_of(call.caller(), None).await?;
            return Ok(Arc::new(self.record(None, identity, now)));
        };
        self.contacts.use_port(port);
        let address = canonical(call.peer().address);
        let known = call.connection_data::<ClientRecord>();
        let new_connection = known.is_none();
        let mut host = known.and_then(|client| client.host.clone());
        let mut settled = None;
        // A record may be dropped while we wait for it; the next one is new.
        for _ in 0..3 {
            let candidate = match host.take() {
                Some(host) => host,
                None => self.find_host(address, now)?,
            };
            candidate.heard(now, true);
            if new_connection {
                candidate.seen_epoch(call.peer().epoch);
            }
            match self.contacts.settle(candidate, address).await {
                Ok(host) => {
                    settled = Some(host);
                    break;
                }
                Err(Unsettled::Gone) => {}
                Err(cause) => return Err(cause.into()),
            }
        }
        let host = settled.ok_or(Refusal::Busy)?;
        let host_cps = self.host_cps(&host, address).await;
        let identity = self.identity_of(call.caller(), host_cps).await?;
        let client = Arc::new(self.record(Some(host), identity, now));
        call.set_connection_data(client.clone());
        Ok(client)
    }

    fn find_host(self: &Arc<Self>, address: SocketAddr, now: u32) -> Result<Arc<Host>, Refusal> {
        self.hosts.find_or_create(address, now).ok_or_else(|| {
            warn!(host = %address, "host table is full");
            self.make_room_for_hosts();
            Refusal::Busy
        })
    }

    fn record(&self, host: Option<Arc<Host>>, identity: Identity, now: u32) -> ClientRecord {
        ClientRecord {
            host,
            identity,
            loaded: now,
            generation: self.cps_generation(),
        }
    }

    fn is_fresh(&self, client: &ClientRecord, now: u32) -> bool {
        u64::from(now.saturating_sub(client.loaded)) < CPS_REFRESH.as_secs()
            && client.generation == self.cps_generation()
    }

    /// The groups of a host; none while the database cannot be reached.
    async fn host_cps(&self, host: &Host, address: SocketAddr) -> Option<Cps> {
        let generation = self.cps_generation();
        if let Some(cps) = host.known_cps(generation) {
            return Some(cps);
        }
        match self.protection.host_cps(address.ip()).await {
            Ok(cps) => {
                host.set_cps(cps.clone(), generation);
                Some(cps)
            }
            Err(cause) => {
                warn!(host = %address, %cause, "groups of host unknown");
                None
            }
        }
    }

    async fn identity_of(
        &self,
        caller: &Caller,
        host_cps: Option<Cps>,
    ) -> Result<Identity, Refusal> {
        match caller {
            Caller::Superuser => Ok(Identity::superuser()),
            Caller::Principal(principal) => {
                let id = self.protection.id_of_principal(principal.as_ref()).await;
                let id = id.map_err(|cause| unreachable_protection(&cause))?;
                if id == ViceId::ANONYMOUS {
                    return Ok(Identity::anonymous(host_cps));
                }
                let cps = self.protection.cps(id).await;
                let cps = cps.map_err(|cause| unreachable_protection(&cause))?;
                Ok(Identity::new(
                    id,
                    cps,
                    host_cps,
                    self.config.implicit_rights,
                ))
            }
            _ => Ok(Identity::anonymous(host_cps)),
        }
    }
}

fn unreachable_protection(cause: &ProtectionError) -> Refusal {
    warn!(%cause, "groups of caller unknown");
    Refusal::NoProtection
}
