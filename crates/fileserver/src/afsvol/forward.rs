//! Forward (103) and ForwardMultiple (128): this server sends a volume to other volume servers,
//! into transactions that the caller has there.
//!
//! 1. Each destination gets its own stream of the same moment of the volume. So a slow or dead
//!    destination delays no other.
//! 2. A destination is first asked for the state of its volume. An OpenAFS server does not know
//!    this question, and gets a dump from the caller's date. A Cellar server gets a delta, by the
//!    first rule that applies:
//!    - with date 0: everything, because such a caller does not trust the present contents;
//!    - from the state that it has, if this volume knows that state;
//!    - from the caller's date, if that fits its state;
//!    - everything.
//!
//!    A restore brings old dates, so dates do not count if the state is known.
//! 3. This server calls as a holder of the cell's key, encrypted if its caller uses encryption.
//! 4. A destination that uses the object storage of this server's cell gets the layouts of files in
//!    objects, and the copies of files in archives. No device is asked, so devices may be missing.
//!    All other destinations get the bytes, from the devices or from an archive.
//! 5. A transfer to this server itself, as in a move between its partitions, stays in the process.
//!    It is a delta like any other.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use cellar_auth::{Level, Principal};
use cellar_fileobjects::Lender;
use cellar_rpc::{
    CallError, CallOptions, Caller, Connection, IncomingCall, OutgoingCall, Security,
};
use cellar_volume::Frozen;
use cellar_wire::afsvol::{
    self, CAN_RETIRED, DELTA_VERSION, DestServer, Forward, ForwardMultiple, ForwardMultipleReply,
    ForwardReply, GetCapabilities, GetObjectCell, GetState, Replica, Restore, RestoreCookie,
    RestoreDelta, RestoreDeltaReply, RestoreReply, VolumeState, WRONG_BASE,
};
use cellar_wire::ids::AfsTime;
use cellar_wire::serve::Handle;
use cellar_wire::{AbortCode, Decode, List};
use tokio::task::JoinSet;
use tracing::{debug, info};

use super::VolumeService;
use super::contents::from_wire;
use super::delta_in::{DeltaSink, state_of};
use super::delta_out::{Base, DeltaSource, FIRST_RETIRED, plan};
use super::dump::{DumpSource, freeze};
use super::restore::finish;
use super::stream::Stream;
use super::transaction::InUse;
use super::{on_disk, superuser};
use crate::abort_map::dump_code;
use crate::audit;
use crate::limits::VOLUME_QUESTION_PATIENCE;
use crate::services::VolumeServices;

impl Handle<Forward, IncomingCall> for VolumeService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: Forward,
    ) -> Result<ForwardReply, AbortCode> {
        let services = &self.services;
        let Forward {
            from_trans,
            from_date,
            destination,
            dest_trans,
            cookie,
        } = arguments;
        superuser(&services.sessions, call)?;
        audit::add_detail("to", address(&destination));
        let used = InUse::enter(services, from_trans, "Forward")?;
        let outgoing = Outgoing::new(services, call, &used, from_date, cookie).await?;
        let replica = Replica {
            trans: dest_trans,
            server: destination,
        };
        outgoing.send(replica).await?;
        Ok(ForwardReply {})
    }
}

impl Handle<ForwardMultiple, IncomingCall> for VolumeService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: ForwardMultiple,
    ) -> Result<ForwardMultipleReply, AbortCode> {
        let services = &self.services;
        let ForwardMultiple {
            from_trans,
            from_date,
            destinations,
            cookie,
            ..
        } = arguments;
        superuser(&services.sessions, call)?;
        let used = InUse::enter(services, from_trans, "ForwardMulti")?;
        let outgoing = Outgoing::new(services, call, &used, from_date, cookie).await?;
        let mut sending = JoinSet::new();
        for (index, &replica) in destinations.iter().enumerate() {
            let outgoing = outgoing.clone();
            sending.spawn(async move { (index, outgoing.send(replica).await) });
        }
        // A task that panics counts as failed.
        let mut results = vec![AbortCode::VOLSERFAILEDOP.0; destinations.len()];
        while let Some(sent) = sending.join_next().await {
            if let Ok((index, outcome)) = sent {
                results[index] = outcome.err().map_or(0, |code| code.0);
            }
        }
        for (replica, result) in destinations.iter().zip(&results) {
            audit::add_detail("to", format_args!("{} {result}", address(&replica.server)));
        }
        Ok(ForwardMultipleReply {
            results: List::from_iter_cut(results),
        })
    }
}

fn address(server: &DestServer) -> SocketAddr {
    let port = u16::try_from(server.port).unwrap_or(0);
    (Ipv4Addr::from(server.host), port).into()
}

/// A moment of a volume that is being sent.
#[derive(Clone)]
struct Outgoing {
    services: Arc<VolumeServices>,
    /// Keeps the transaction open.
    used: InUse,
    frozen: Frozen,
    from: AfsTime,
    cookie: RestoreCookie,
    stream: Stream,
    security: Security,
    port: cellar_rpc::Port,
}

/// The destination of a transfer.
enum Destination {
    /// Another server, and the transaction there.
    There(Connection, i32),
    /// A transaction of this server.
    Here(InUse),
}

/// The answer of a destination about the state of its volume.
enum DestinationState {
    /// It is not a Cellar server.
    Nothing,
    State(VolumeState),
}

impl Outgoing {
    async fn new(
        services: &Arc<VolumeServices>,
        call: &IncomingCall,
        used: &InUse,
        from_date: i32,
        cookie: RestoreCookie,
    ) -> Result<Self, AbortCode> {
        let port = call.port().or_else(|| services.callbacks.contacts.port());
        let port = port.ok_or(AbortCode::RX_CALL_DEAD)?.clone();
        let security = security(services, call)?;
        let stream = Stream::new(services, used.progress());
        let frozen = {
            let used = used.clone();
            on_disk(move || freeze(&used)).await?
        };
        Ok(Self {
            services: services.clone(),
            used: used.clone(),
            frozen,
            from: AfsTime(from_date as u32),
            cookie,
            stream,
            security,
            port,
        })
    }

    async fn send(&self, to: Replica) -> Result<(), AbortCode> {
        let peer = address(&to.server);
        let sent = match self.destination(peer, to.trans) {
            Ok(destination) => self.send_to(&destination).await,
            Err(code) => Err(code),
        };
        let volume = self.used.id();
        match &sent {
            Ok(()) => info!(%volume, to = %peer, "volume sent"),
            Err(code) => info!(%volume, to = %peer, %code, "volume not sent"),
        }
        sent
    }

    fn destination(&self, peer: SocketAddr, trans: i32) -> Result<Destination, AbortCode> {
        if self.services.networks.is_volume_server(peer) {
            let used = InUse::enter_unaudited(&self.services, trans, "RestoreDelta")?;
            return Ok(Destination::Here(used));
        }
        let service = afsvol::PACKAGE.service_id;
        let connection = self.port.connect(peer, service, self.security.clone());
        Ok(Destination::There(connection, trans))
    }

    async fn send_to(&self, to: &Destination) -> Result<(), AbortCode> {
        let (state, lends) = match to {
            Destination::Here(used) => (state_of(used).await?, true),
            Destination::There(connection, trans) => {
                let asked = destination_state(connection, *trans);
                match self.stream.within_patience(asked).await? {
                    DestinationState::State(state) => {
                        (state, self.is_of_the_cell(connection).await?)
                    }
                    DestinationState::Nothing => return self.send_dump(connection, *trans).await,
                }
            }
        };
        let retired = lends && self.retired_are_taken(to).await?;
        let mut bases = Vec::with_capacity(3);
        if self.from.0 != 0 {
            let known = from_wire(state).filter(|state| self.frozen.all_since(state).is_some());
            if known.is_some() {
                bases.push(Base::State(state));
                bases.push(Base::Named(state, self.from));
            } else {
                bases.push(Base::Date(self.from));
            }
        }
        bases.push(Base::Nothing);
        for base in bases {
            match self.send_delta(to, base, lends, retired).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(code) if code == WRONG_BASE && base != Base::Nothing => {}
                Err(code) => return Err(code),
            }
            debug!(?base, "the destination has another state");
        }
        Err(WRONG_BASE)
    }

    /// Ends a stream, and waits for the result of the destination.
    async fn end<R: Decode>(&self, mut call: OutgoingCall) -> Result<R, AbortCode> {
        call.finish();
        let answer = async { call.results().await.map_err(failed) };
        self.stream.within_patience(answer).await
    }

    async fn send_dump(&self, connection: &Connection, trans: i32) -> Result<(), AbortCode> {
        let restore = Restore {
            trans,
            flags: i32::from(self.from.0 != 0),
            cookie: self.cookie.clone(),
        };
        let (frozen, from) = (self.frozen.clone(), self.from);
        let source = on_disk(move || DumpSource::new(&frozen, from, false, None)).await?;
        let mut call = connection.open(&restore).await.map_err(failed)?;
        self.stream.send(source, &mut call).await?;
        self.end::<RestoreReply>(call).await.map(drop)
    }

    /// Whether a Cellar server reads the same objects as this one.
    async fn is_of_the_cell(&self, connection: &Connection) -> Result<bool, AbortCode> {
        let own = self.services.objects.cell();
        if own.as_bytes().is_empty() {
            return Ok(false);
        }
        let options = CallOptions {
            timeout: Some(VOLUME_QUESTION_PATIENCE),
        };
        let asked = async {
            match connection.call_with(&GetObjectCell {}, options).await {
                Ok(reply) => Ok(reply.cell == own),
                Err(CallError::Aborted(AbortCode::RXGEN_OPCODE)) => Ok(false),
                Err(error) => Err(error.code()),
            }
        };
        self.stream.within_patience(asked).await
    }

    /// Whether there are removed files to send, and the destination takes them. Older
    /// servers do not.
    async fn retired_are_taken(&self, to: &Destination) -> Result<bool, AbortCode> {
        let frozen = self.frozen.clone();
        let first = on_disk(move || {
            let first = frozen.retired_files(FIRST_RETIRED);
            first.map_err(|error| dump_code(&error))
        });
        let (files, more) = first.await?;
        let Destination::There(connection, _) = to else {
            return Ok(true);
        };
        if files.is_empty() && more.is_none() {
            return Ok(false);
        }
        let options = CallOptions {
            timeout: Some(VOLUME_QUESTION_PATIENCE),
        };
        let asked = async {
            let answer = connection.call_with(&GetCapabilities {}, options).await;
            answer.map_err(failed)
        };
        let reply = self.stream.within_patience(asked).await?;
        Ok(reply.capabilities & CAN_RETIRED != 0)
    }

    /// Sends a delta. Returns `false` if this volume does not know the changes since that state.
    /// With `lends`, layouts replace the bytes of files in objects. With `retired`, removed files
    /// are sent.
    async fn send_delta(
        &self,
        to: &Destination,
        base: Base,
        lends: bool,
        retired: bool,
    ) -> Result<bool, AbortCode> {
        let frozen = self.frozen.clone();
        let lender = lends.then(|| Lender::new(&self.services.objects));
        let planned = on_disk(move || {
            let Some((head, since)) = plan(&frozen, base)? else {
                return Ok(None);
            };
            let source = DeltaSource::new(&frozen, since, lender)?;
            Ok(Some((head, source.with_retired(retired))))
        });
        let Some((head, source)) = planned.await? else {
            return Ok(false);
        };
        let cookie = self.cookie.clone();
        match to {
            Destination::Here(used) => {
                let sink = DeltaSink::begin(&self.services, used, cookie, head).await?;
                let sink = sink.locally();
                let sink = self.stream.pass(source, sink, &used.progress()).await?;
                finish(&self.services, used.clone(), move || sink.finish()).await?;
            }
            Destination::There(connection, trans) => {
                let trans = *trans;
                let restore = RestoreDelta {
                    trans,
                    cookie,
                    head,
                };
                let mut call = connection.open(&restore).await.map_err(failed)?;
                self.stream.send(source, &mut call).await?;
                self.end::<RestoreDeltaReply>(call).await?;
            }
        }
        Ok(true)
    }
}

fn failed(error: CallError) -> AbortCode {
    error.code()
}

/// Asks a destination for the state of its volume.
async fn destination_state(
    connection: &Connection,
    trans: i32,
) -> Result<DestinationState, AbortCode> {
    let options = CallOptions {
        timeout: Some(VOLUME_QUESTION_PATIENCE),
    };
    match connection.call_with(&GetState { trans }, options).await {
        Ok(reply) if reply.version >= DELTA_VERSION => Ok(DestinationState::State(reply.state)),
        Ok(_) | Err(CallError::Aborted(AbortCode::RXGEN_OPCODE)) => Ok(DestinationState::Nothing),
        Err(error) => Err(error.code()),
    }
}

/// The security of calls to other servers: as a holder of the cell's key.
fn security(services: &VolumeServices, call: &IncomingCall) -> Result<Security, AbortCode> {
    let Some(authority) = &services.authority else {
        return Ok(Security::null());
    };
    let level = match call.caller() {
        Caller::Principal(any) => any.downcast_ref::<Principal>().map(|who| who.level),
        _ => None,
    };
    let level = level.unwrap_or(Level::Clear);
    authority.localauth(level).map_err(|error| {
        info!(%error, "cannot make credentials for calls to other servers");
        AbortCode::VOLSERBAD_ACCESS
    })
}
