//! The course of one operation on a volume: which connection now, and where to go when it fails.
//!
//! Puts [`crate::rotate`] to work: turns its steps into connections, VLDB look-ups and waits.

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

/// What a server that stood still had got is done so long after it answers again, as good as surely.
pub(crate) const SETTLE_TIME: Duration = Duration::from_secs(2);

/// An operation under way. Ask [`Course::connection`]; report failures with [`Course::failed`].
pub struct Course<'a> {
    client: &'a Client,
    volume: &'a Volume,
    package: &'static Package,
    rotation: Rotation,
    addresses: Vec<SocketAddr>,
    connection: Connection,
    current: SocketAddr,
    /// When it was asked.
    asked: Instant,
    /// [`Connection::repeats`] when it was asked.
    repeats: u64,
    /// The token had run out, and there was a new one: that helps once.
    renewed: bool,
    /// [`crate::reach::Reach::changes`] when it was asked.
    changes: u64,
    /// It was asked again because this machine's address had changed: that helps once.
    again: bool,
    /// Whether it may be asked again, if it was heard and the answer is lost.
    repeat: Repeat,
    /// Those while no server can be reached.
    waits: Waits,
}

impl<'a> Course<'a> {
    /// An operation by the calls of RXAFS.
    pub(crate) async fn start(client: &'a Client, volume: &'a Volume) -> Result<Self> {
        Self::by(&rxafs::PACKAGE, client, volume).await
    }

    /// An operation by the calls of another package of file servers.
    pub(crate) async fn by(
        package: &'static Package,
        client: &'a Client,
        volume: &'a Volume,
    ) -> Result<Self> {
        let (candidates, addresses) = candidates(client, volume).await?;
        let mut rotation = Rotation::new(candidates);
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

    /// Whom to ask.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Which address is asked.
    pub(crate) fn address(&self) -> SocketAddr {
        self.current
    }

    /// Waits until nothing that was given up comes behind what is called next. Calls of several connections come to a server's
    /// turn in any order, and what it had got when it stood still may be among them: so it has to answer first, and has
    /// a while then: once for all that were given up before that.
    ///
    /// `fid` is what they are about: where one of them hangs at the server, this hangs behind it. `given_up`: when the last
    /// of them was.
    pub(crate) async fn settle(
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
        if !reach.has_settled_since(self.current, given_up) {
            let answered = Instant::now();
            tokio::time::sleep(SETTLE_TIME).await;
            reach.has_settled(self.current, answered);
        }
        Ok(())
    }

    /// The call succeeded.
    pub fn succeeded(&mut self) {
        let now = Instant::now();
        let took = now.duration_since(std::mem::replace(&mut self.asked, now));
        self.client.servers().answered(self.current, took);
    }

    /// The call failed: moves on to the next server, after a wait if need be.
    ///
    /// # Errors
    /// The failure, with `what` was attempted, when no server is left or none can help.
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
        // A server that stops says so of all calls, also of those that it has done.
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
            // The answer went to an address that is ours no more.
            self.again = true;
            self.connection = self.connect();
            return Ok(());
        }
        // One that hangs over this answers others, and may do it yet: nobody else is to be asked to, unless it only reads.
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
            // It may have been done before that. The caller finds out.
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
                        self.rotation = Rotation::new(candidates);
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
    /// Calls a procedure of the file servers of a volume, one after the other until one serves it.
    ///
    /// # Errors
    /// What the rotation ends with, saying `what` was attempted.
    pub async fn call_volume<P: Procedure>(
        &self,
        volume: &Volume,
        what: &(dyn fmt::Display + Sync),
        arguments: &P,
    ) -> Result<P::Reply> {
        let answered = self.call_volume_at(volume, what, arguments).await?;
        Ok(answered.0)
    }

    /// The same, with the address that served it.
    pub(crate) async fn call_volume_at<P: Procedure>(
        &self,
        volume: &Volume,
        what: &(dyn fmt::Display + Sync),
        arguments: &P,
    ) -> Result<(P::Reply, SocketAddr)> {
        let mut course = Course::by(P::package(), self, volume).await?;
        course.repeat = repeat::<P>();
        loop {
            match course.connection().call(arguments).await {
                Ok(reply) => {
                    course.succeeded();
                    return Ok((reply, course.address()));
                }
                Err(error) => course.failed(error, what).await?,
            }
        }
    }
}

/// When a call that was not answered may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeat {
    /// It means the same when the server has heard it already.
    Always,
    /// The server counts it in its memory, which ends with its process: whole-file locks, which
    /// say nothing of whose they are.
    AfterItsEnd,
    /// Names are made, moved and removed.
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

/// The addresses to ask, those that were silent lately last.
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
