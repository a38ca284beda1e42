//! Restore (102): a dump becomes the contents of a transaction's volume.
//!
//! Full and incremental are one algorithm, whatever the flag says: vnodes with attributes come
//! anew, vnodes without stay, all others go. Nobody sees anything of it before the end of the dump
//! was read and checked; what is truncated, damaged or does not fit what the volume holds leaves it
//! as it was.

use std::sync::Arc;

use bytes::Bytes;
use cellar_rpc::IncomingCall;
use cellar_volume::{
    Error, Partition, Restore as Restoring, RestoreMode, RestoredInfo, VolumeInfo,
};
use cellar_wire::AbortCode;
use cellar_wire::afsvol::{Restore, RestoreCookie, RestoreReply};
use cellar_wire::dump::{Item, Reader, VnodeRecord, VolumeHeader};
use cellar_wire::ids::VolumeId;
use tracing::info;

use super::contents::{image, restore_code, restored_from_dump};
use super::stream::{Sink, Stream};
use super::transaction::InUse;
use super::{Answered, on_disk, superuser};
use crate::audit;
use crate::server::Server;

pub(super) async fn restore(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let Restore { trans, cookie, .. } = call.arguments().await?;
    superuser(server, call)?;
    audit::about("name", String::from_utf8_lossy(cookie.name.as_bytes()));
    let used = InUse::enter(server, trans, "Restore")?;
    let stream = Stream::new(server, used.progress());
    let sink = {
        let (server, used) = (server.clone(), used.clone());
        on_disk(move || DumpSink::new(&server, &used, cookie)).await?
    };
    let sink = stream.receive(call, sink).await?;
    finish(server, used, move || sink.finish()).await?;
    call.reply(&RestoreReply {});
    Ok(())
}

/// Makes a restore's contents those of the volume, and tells everybody who was promised anything.
pub(super) async fn finish(
    server: &Arc<Server>,
    used: InUse,
    commit: impl FnOnce() -> Answered + Send + 'static,
) -> Answered {
    let volume = used.id();
    let pending = {
        let server = server.clone();
        on_disk(move || {
            // Until it is done the transaction lasts, whoever hangs up.
            let used = used;
            commit()?;
            info!(%volume, partition = %used.partition(), "volume restored");
            server.volumes.forget(volume);
            Ok(server.breaker.collect_volume(volume, server.now_secs()))
        })
        .await?
    };
    server.breaker.told(pending).await;
    Ok(())
}

/// Begins a restore into a volume. Answers what it is before, too.
pub(super) fn begin(
    partition: &Partition,
    id: VolumeId,
    mode: RestoreMode,
) -> cellar_volume::Result<(Restoring, VolumeInfo)> {
    let volume = partition.volume(id)?.ok_or(Error::NoVolume(id))?;
    Ok((partition.begin_restore(id, mode)?, volume.info()))
}

/// Makes what has come the contents of the volume, and waits until that is durable.
pub(super) fn commit(restoring: Restoring, restored: RestoredInfo) -> cellar_volume::Result<()> {
    restoring.commit(restored)?.wait().map(drop)
}

/// Takes a dump.
struct DumpSink {
    restoring: Restoring,
    /// What the volume is before.
    target: VolumeInfo,
    cookie: RestoreCookie,
    reader: Reader,
    header: Option<Box<VolumeHeader>>,
}

impl DumpSink {
    fn new(server: &Server, used: &InUse, cookie: RestoreCookie) -> Result<Self, AbortCode> {
        let partition = server.volumes.partition(used.partition());
        let partition = partition.ok_or(AbortCode::VNOVOL)?;
        let begun = begin(&partition, used.id(), RestoreMode::Incremental);
        let (restoring, target) = begun.map_err(|error| restore_code(&error))?;
        Ok(Self {
            restoring,
            target,
            cookie,
            reader: Reader::new(),
            header: None,
        })
    }

    fn vnode(&mut self, record: &VnodeRecord) -> Result<(), AbortCode> {
        let VnodeRecord {
            vnode,
            uniquifier,
            attributes,
        } = record;
        let done = match attributes {
            None => self.restoring.keep(*vnode, *uniquifier),
            Some(attributes) => self.restoring.put(&image(*vnode, *uniquifier, attributes)?),
        };
        done.map_err(|error| refused(&error))
    }

    /// The dump has ended.
    fn finish(self) -> Answered {
        if let Err(error) = self.reader.finish() {
            info!(volume = %self.target.id, %error, "not restored");
            self.give_up();
            return Err(AbortCode::VOLSERREAD_DUMPERROR);
        }
        // A dump that has ended has a head.
        let header = self.header.unwrap_or_default();
        let restored = RestoredInfo {
            info: restored_from_dump(self.target, &header, &self.cookie)?,
            next_uniquifier: header.uniquifier,
            received: None,
        };
        commit(self.restoring, restored).map_err(|error| refused(&error))
    }
}

impl Sink for DumpSink {
    fn take(&mut self, bytes: Bytes) -> Result<(), AbortCode> {
        self.reader.feed_owned(bytes);
        loop {
            let item = self.reader.next_item().map_err(|error| {
                info!(volume = %self.target.id, %error, "not restored");
                AbortCode::VOLSERREAD_DUMPERROR
            })?;
            match item {
                None => return Ok(()),
                Some(Item::Dump(_) | Item::End) => {}
                // Of merged dumps the last one's counts.
                Some(Item::Volume(header)) => self.header = Some(header),
                Some(Item::Vnode(record)) => self.vnode(&record)?,
                Some(Item::Data(bytes)) => {
                    let pushed = self.restoring.push(bytes);
                    pushed.map_err(|error| refused(&error))?;
                }
            }
        }
    }

    fn give_up(self) {
        let volume = self.target.id;
        if let Err(error) = self.restoring.abort() {
            info!(%volume, %error, "what a restore left is removed later");
        }
    }
}

fn refused(error: &Error) -> AbortCode {
    info!(%error, "not restored");
    restore_code(error)
}
