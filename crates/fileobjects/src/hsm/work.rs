//! Runs the operations of jobs. The steps of a job run on any thread; operations on files need the
//! thread of a shard.

use std::sync::{Arc, Weak};

use cellar_objects::Condition;
use cellar_objects::repair::Pace;
use cellar_rpc::blocking;
use cellar_volume::{Error, Volume};
use cellar_wire::AbortCode;
use cellar_wire::ids::{Fid, VolumeId};
use tokio::sync::{mpsc, oneshot};

use super::super::Objects;
use super::super::failure::Failure;

/// Operations that wait for the shard; further steps wait until there is room.
const REQUESTS_MAX: usize = 64;

/// An operation on one file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    /// Copies its present bytes to an archive.
    Copy { osd: u32, length: u64 },
    /// Reads its copies in an archive back, and compares them.
    Verify { osd: u32, length: u64 },
    /// Takes it off its online devices, if that many archives confirm good copies.
    Wipe { copies: u32 },
    /// Brings it back to online devices.
    Recall,
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Worked {
    /// It changed the file, which has so many bytes.
    Done(u64),
    /// Nothing is left to do: the file was removed, moved away, or changed meanwhile. The next
    /// census finds it if it needs something.
    Nothing,
    /// A copy of this file is bad, and its record says so now.
    Bad(String),
    /// It failed for this file.
    Failed(String),
    /// The archive takes nothing at present.
    Down(String),
}

struct Request {
    fid: Fid,
    operation: Operation,
    reply: oneshot::Sender<Worked>,
}

/// The rates of operations.
pub(super) struct Paces {
    /// Of the bytes that are copied to archives.
    pub(super) copies: Pace,
    /// Of the bytes that are read back from archives.
    pub(super) verification: Pace,
}

/// Accepts operations. Clones share the thread that runs them.
#[derive(Clone)]
pub(super) struct Worker(mpsc::Sender<Request>);

impl Worker {
    /// Starts to accept operations on the present shard.
    pub(super) fn start(objects: &Arc<Objects>, paces: Paces) -> Self {
        let (sender, mut requests) = mpsc::channel::<Request>(REQUESTS_MAX);
        let (objects, paces) = (Arc::downgrade(objects), Arc::new(paces));
        tokio::task::spawn_local(async move {
            while let Some(request) = requests.recv().await {
                let (objects, paces) = (objects.clone(), paces.clone());
                tokio::task::spawn_local(async move {
                    let worked = run(&objects, &paces, request.fid, request.operation).await;
                    // The job may have been cancelled meanwhile.
                    let _gone = request.reply.send(worked);
                });
            }
        });
        Self(sender)
    }

    /// Runs an operation. If the caller stops waiting, it goes on.
    pub(super) async fn run(&self, fid: Fid, operation: Operation) -> Worked {
        let (reply, ended) = oneshot::channel();
        let request = Request {
            fid,
            operation,
            reply,
        };
        let stopping = || Worked::Down("the server stops".to_owned());
        if self.0.send(request).await.is_err() {
            return stopping();
        }
        ended.await.unwrap_or_else(|_| stopping())
    }
}

async fn run(objects: &Weak<Objects>, paces: &Paces, fid: Fid, operation: Operation) -> Worked {
    let Some(objects) = objects.upgrade().filter(|objects| !objects.is_stopping()) else {
        return Worked::Down("the server stops".to_owned());
    };
    let volume = match volume_of(&objects, fid.volume).await {
        Ok(Some(volume)) => volume,
        Ok(None) => return Worked::Nothing,
        Err(error) => return Worked::Failed(error.to_string()),
    };
    match operation {
        Operation::Copy { osd, length } => {
            paces.copies.take(length).await;
            match objects.archive(&volume, fid, osd).await {
                Ok(copy) => Worked::Done(copy.length),
                Err(failure) => archive_failed(&objects, osd, failure),
            }
        }
        Operation::Verify { osd, length } => {
            paces.verification.take(length).await;
            match objects.verify(&volume, fid, osd).await {
                Ok(verified) if verified.bad > 0 => {
                    Worked::Bad("the archive has other bytes than recorded".to_owned())
                }
                Ok(verified) if verified.good == 0 => Worked::Nothing,
                Ok(verified) => Worked::Done(verified.bytes),
                Err(failure) => archive_failed(&objects, osd, failure),
            }
        }
        Operation::Recall => match objects.recall_for_job(&volume, fid).await {
            Ok(0) | Err(Failure::Volume(Error::NoVnode(_))) => Worked::Nothing,
            Ok(length) => Worked::Done(length),
            Err(failure) => Worked::Failed(failure.to_string()),
        },
        Operation::Wipe { copies } => match objects.wipe(&volume, fid, copies as usize).await {
            Ok(0) | Err(Failure::Busy | Failure::Pinned | Failure::NotKnownYet) => Worked::Nothing,
            Ok(length) => Worked::Done(length),
            Err(Failure::Volume(Error::NoVnode(_))) => Worked::Nothing,
            Err(failure) => Worked::Failed(failure.to_string()),
        },
    }
}

async fn volume_of(
    objects: &Arc<Objects>,
    id: VolumeId,
) -> cellar_volume::Result<Option<Arc<Volume>>> {
    let objects = objects.clone();
    let found = blocking(move || objects.volumes.find(id)).await?;
    Ok(found.map(|(_, attached)| attached.volume))
}

/// The meaning of a failed copy or verification.
fn archive_failed(objects: &Objects, osd: u32, failure: Failure) -> Worked {
    let listed = objects.storage().and_then(|s| s.devices.get(osd));
    let Some(listed) = listed else {
        return Worked::Failed(format!("archive {osd} is not in the list of devices"));
    };
    let name = listed.entry.name.to_string();
    let condition = objects.storage().map(|s| s.devices.condition(osd));
    match failure {
        // Another store, or a wipe, was faster.
        Failure::Busy
        | Failure::Volume(Error::NoVnode(_) | Error::Archived(_) | Error::Busy(_)) => {
            Worked::Nothing
        }
        Failure::Devices(code @ (AbortCode::ENOSPC | AbortCode::VDISKFULL | AbortCode::VBUSY)) => {
            Worked::Down(format!("archive {name} refuses: {code}"))
        }
        Failure::Devices(code) if condition != Some(Condition::Well) => {
            Worked::Down(format!("archive {name} does not answer: {code}"))
        }
        failure => Worked::Failed(format!("archive {name}: {failure}")),
    }
}
