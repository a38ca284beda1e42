//! One operation on a volume: the connection to use now, and the next server after a
//! failure.
//!
//! It carries out the steps of [`crate::rotate`]: connections, VLDB look-ups and waits.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use cellar_rpc::{CallError, Connection};
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::Fid;
use cellar_wire::package::{Package, Procedure};
use cellar_wire::rxafs;
use tokio::time::Instant;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::mount_point::VolumeKind;
use crate::patience::Waits;
use crate::rotate::{Candidate, Rotation, Step};
use crate::volume::Volume;

/// Grace period after a stalled server answers again. Calls that it had already received may still
/// be executed until then; later ones are practically excluded.
pub const STALL_GRACE: Duration = Duration::from_secs(2);

/// An operation in progress. Call through [`VolumeOperation::connection`]; report failures with
/// [`VolumeOperation::failed`].
pub struct VolumeOperation<'a> {
    client: &'a Client,
    volume: &'a Volume,
    package: &'static Package,
    rotation: Rotation,
    addresses: Vec<SocketAddr>,
    connection: Connection,
    current: SocketAddr,
    /// The time of the current attempt.
    asked: Instant,
    /// [`Connection::repeats`] at the start of the attempt.
    repeats: u64,
    /// Whether the operation was repeated with a new token after the old one had expired. That
    /// happens once.
    renewed: bool,
    /// [`crate::reach::Reach::changes`] at the start of the attempt.
    changes: u64,
    /// Whether the operation was repeated because this machine's address had changed. That happens
    /// once.
    again: bool,
    /// Whether the call may be repeated if the server may have executed it and the answer is lost.
    repeat: Repeat,
    /// The waits while no server can be reached.
    waits: Waits,
}

impl<'a> VolumeOperation<'a> {
    /// Starts an operation that uses the calls of RXAFS.
    pub async fn start(client: &'a Client, volume: &'a Volume) -> Result<Self> {
        Self::start_with(&rxafs::PACKAGE, client, volume).await
    }

    /// Starts an operation that uses the calls of another package of file servers.
    pub(crate) async fn start_with(
        package: &'static Package,
        client: &'a Client,
        volume: &'a Volume,
    ) -> Result<Self> {
        let (candidates, addresses) = candidates(client, volume).await?;
        let mut rotation = new_rotation(client, candidates);
        let Step::Ask(first) = rotation.start() else {
            return Err(no_site(volume));
        };
        let current = addresses[first];
        let changes = client.servers().reach().changes();
        let connection = connect(client, volume, current, package);
        let repeats = connection.repeats();
        Ok(Self {
            client,
            volume,
            package,
            rotation,
            addresses,
            connection,
            current,
            asked: Instant::now(),
            repeats,
            renewed: false,
            changes,
            again: false,
            repeat: Repeat::Always,
            waits: Waits::new(),
        })
    }

    fn connect(&mut self) -> Connection {
        self.asked = Instant::now();
        self.changes = self.client.servers().reach().changes();
        let connection = connect(self.client, self.volume, self.current, self.package);
        self.repeats = connection.repeats();
        connection
    }

    /// The connection to call through.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The address of the current server.
    pub fn address(&self) -> SocketAddr {
        self.current
    }

    /// Waits until no call that was given up can take effect after the next call. A server
    /// processes calls of several connections in any order, and a stalled server may still hold
    /// calls that it received before. So the server first has to answer a call; then this function
    /// waits [`STALL_GRACE`]. One such wait covers all calls given up before it.
    ///
    /// `fid` is the vnode of these calls: if one of them hangs at the server, the call made here
    /// hangs behind it. `given_up` is the time at which the last of them was given up.
    pub(crate) async fn wait_out_stalled_calls(
        &self,
        fid: Fid,
        given_up: Instant,
    ) -> std::result::Result<(), CallError> {
        match self.connection.call(&rxafs::FetchStatus { fid }).await {
            // A refusal is an answer.
            Ok(_) | Err(CallError::Aborted(_)) => {}
            Err(error) => return Err(error),
        }
        let reach = self.client.servers().reach();
        if !reach.grace_ended_since(self.current, given_up) {
            let answered = Instant::now();
            tokio::time::sleep(STALL_GRACE).await;
            reach.note_grace_ended(self.current, answered);
        }
        Ok(())
    }

    /// Notes that the call succeeded.
    pub fn succeeded(&mut self) {
        let now = Instant::now();
        let took = now.duration_since(std::mem::replace(&mut self.asked, now));
        self.client.servers().answered(self.current, took);
    }

    /// Notes that the call failed, and moves on to the next server, after a wait if necessary.
    ///
    /// # Errors
    /// The failure, with `what` was attempted, if no server is left or no other server can help.
    pub async fn failed(
        &mut self,
        error: CallError,
        what: &(dyn fmt::Display + Sync),
    ) -> Result<()> {
        let servers = self.client.servers();
        if self.connection.repeats() != self.repeats {
            servers.reach().was_repeated();
        }
        if !self.renewed && servers.renewed(&self.volume.cell, &error).await {
            self.renewed = true;
            self.connection = self.connect();
            return Ok(());
        }
        // A server that stops aborts all calls with this code, including those that it has
        // executed.
        let ends = matches!(error, CallError::Aborted(AbortCode::VRESTARTING));
        let error = match ends && servers.reach().patience().is_some() {
            true => CallError::Gone,
            false => error,
        };
        let changed = servers.reach().changes() != self.changes;
        if changed && self.repeat != Repeat::Always && error.is_unreachable() {
            return Err(Error::Fileserver {
                what: what.to_string(),
                cause: error,
            });
        }
        if changed && !self.again && error.is_unreachable() {
            // The answer went to an address that this machine no longer has.
            self.again = true;
            self.connection = self.connect();
            return Ok(());
        }
        // A server that hangs in this call may answer other calls, and may still execute this one.
        // So no other server is called, except for a read-only volume.
        let hangs = matches!(error, CallError::Timeout);
        if hangs && self.volume.kind == VolumeKind::ReadWrite {
            return Err(Error::Fileserver {
                what: what.to_string(),
                cause: error,
            });
        }
        if error.is_unreachable() && !hangs && !changed {
            self.client.servers().mark_down(self.current);
        }
        tracing::debug!(server = %self.current, volume = %self.volume.full_name(), %error, "call failed");
        let patient = servers.reach().patience().is_some();
        if self.repeat == Repeat::Never && patient && matches!(error, CallError::Gone) {
            // The server may have executed the call before it ended. The caller checks that.
            return Err(Error::Fileserver {
                what: what.to_string(),
                cause: error,
            });
        }
        let mut step = self.rotation.failed(error);
        loop {
            step = match step {
                Step::Ask(index) => {
                    self.current = self.addresses[index];
                    self.connection = self.connect();
                    return Ok(());
                }
                Step::Relocate => {
                    self.client.forget_location(self.volume).await;
                    let (candidates, addresses) = candidates(self.client, self.volume).await?;
                    self.addresses = addresses;
                    self.rotation.relocated(candidates)
                }
                Step::Wait(time) => {
                    tracing::info!(
                        volume = %self.volume.full_name(),
                        seconds = time.as_secs(),
                        "the server is busy; waiting"
                    );
                    servers.reach().note_busy_answer();
                    tokio::time::sleep(time).await;
                    self.rotation.waited()
                }
                Step::GiveUp => {
                    let rotation = std::mem::replace(&mut self.rotation, Rotation::new(Vec::new()));
                    let cause = rotation.verdict();
                    let reach = self.client.servers().reach();
                    let waits = match self.repeat {
                        Repeat::Always => cause.is_unreachable(),
                        Repeat::AfterItsEnd => matches!(cause, CallError::Gone),
                        Repeat::Never => false,
                    };
                    if waits && let Some(wait) = self.waits.next(reach, &self.addresses) {
                        tokio::time::sleep(wait).await;
                        let (candidates, addresses) = candidates(self.client, self.volume).await?;
                        self.addresses = addresses;
                        self.rotation = new_rotation(self.client, candidates);
                        step = self.rotation.start();
                        continue;
                    }
                    return Err(Error::Fileserver {
                        what: what.to_string(),
                        cause,
                    });
                }
            };
        }
    }
}

impl Client {
    /// Calls a procedure of the file servers of a volume, one server after the other until one
    /// serves it.
    ///
    /// # Errors
    /// The failure with which the rotation ends, with `what` was attempted.
    pub async fn call_volume<P: Procedure>(
        &self,
        volume: &Volume,
        what: &(dyn fmt::Display + Sync),
        arguments: &P,
    ) -> Result<P::Reply> {
        let answered = self.call_volume_at(volume, what, arguments).await?;
        Ok(answered.0)
    }

    /// As [`Client::call_volume`]; also returns the address of the server that answered.
    pub async fn call_volume_at<P: Procedure>(
        &self,
        volume: &Volume,
        what: &(dyn fmt::Display + Sync),
        arguments: &P,
    ) -> Result<(P::Reply, SocketAddr)> {
        let mut operation = VolumeOperation::start_with(P::package(), self, volume).await?;
        operation.repeat = repeat::<P>();
        loop {
            match operation.connection().call(arguments).await {
                Ok(reply) => {
                    operation.succeeded();
                    return Ok((reply, operation.address()));
                }
                Err(error) => operation.failed(error, what).await?,
            }
        }
    }
}

/// When an unanswered call may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeat {
    /// Always: a second execution has the same effect as the first.
    Always,
    /// Only after the server's process has ended. The server counts whole-file locks in memory, and
    /// the calls do not name the owner of a lock.
    AfterItsEnd,
    /// Never: the call creates, moves or removes a name.
    Never,
}

fn repeat<P: Procedure>() -> Repeat {
    if P::package().service_id != rxafs::PACKAGE.service_id {
        return Repeat::Always;
    }
    match P::OPCODE {
        rxafs::CreateFile::OPCODE
        | rxafs::MakeDir::OPCODE
        | rxafs::Symlink::OPCODE
        | rxafs::Link::OPCODE
        | rxafs::Rename::OPCODE
        | rxafs::RemoveFile::OPCODE
        | rxafs::RemoveDir::OPCODE => Repeat::Never,
        rxafs::SetLock::OPCODE | rxafs::ReleaseLock::OPCODE => Repeat::AfterItsEnd,
        _ => Repeat::Always,
    }
}

fn connect(
    client: &Client,
    volume: &Volume,
    server: SocketAddr,
    package: &'static Package,
) -> Connection {
    client.servers().connection(&volume.cell, server, package)
}

/// A rotation that waits for busy servers as long as it takes, if the client is a mount.
fn new_rotation(client: &Client, candidates: Vec<Candidate>) -> Rotation {
    let rotation = Rotation::new(candidates);
    match client.servers().reach().patience() {
        Some(_) => rotation.wait_for_busy(),
        None => rotation,
    }
}

fn no_site(volume: &Volume) -> Error {
    Error::NoSuchSite {
        cell: volume.cell.clone(),
        volume: volume.name.clone(),
        wanted: match volume.kind {
            VolumeKind::ReadWrite => "read-write",
            VolumeKind::ReadOnly => "read-only",
            VolumeKind::Backup => "backup",
        },
    }
}

/// The addresses to try. Those that were silent lately come last.
async fn candidates(client: &Client, volume: &Volume) -> Result<(Vec<Candidate>, Vec<SocketAddr>)> {
    let cell = client.cell(&volume.cell)?;
    let family = client.locations().family(&cell, &volume.name).await?;
    let mut list = Vec::new();
    for (server, fileserver) in family.servers(volume.kind).iter().enumerate() {
        for address in &fileserver.addresses {
            list.push((server, SocketAddr::new(*address, cell.ports.fileserver)));
        }
    }
    list.sort_by_key(|(_, address)| client.servers().is_down(*address));
    Ok(list
        .into_iter()
        .map(|(server, address)| (Candidate { server }, address))
        .unzip())
}
