//! Restore (102): a dump becomes the contents of a transaction's volume.
//!
//! Full and incremental restores use one algorithm, whatever the flag says. Vnodes with attributes
//! are replaced, vnodes without are kept, and all others are removed. Nothing of this is visible
//! before the end of the dump was read and checked. A dump that is truncated, damaged, or does not
//! fit the volume leaves the volume unchanged.
//!
//! A dump of metadata has layouts in place of the bytes of files in objects. They are accepted if
//! the objects are of this cell. The volume reads these objects and never writes them, because a
//! dump may be of any age. The restore does not check that the objects exist, so their devices may
//! be out of reach.

use std::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use cellar_fileobjects::Borrower;
use cellar_rpc::IncomingCall;
use cellar_volume::{
    Error, Partition, Restore as Restoring, RestoreMode, RestoredInfo, VolumeInfo,
};
use cellar_wire::AbortCode;
use cellar_wire::afsvol::{Restore, RestoreCookie, RestoreReply};
use cellar_wire::dump::{Item, Reader, VnodeRecord, VolumeHeader};
use cellar_wire::ids::VolumeId;
use cellar_wire::serve::HandleStream;
use tracing::info;

use super::VolumeService;
use super::contents::{image, restored_from_dump};
use super::stream::{Sink, Stream};
use super::transaction::InUse;
use super::{CallResult, on_disk, superuser};
use crate::abort_map::restore_code;
use crate::audit;
use crate::services::VolumeServices;

impl HandleStream<Restore, IncomingCall> for VolumeService {
    async fn handle_stream(
        &self,
        call: &mut IncomingCall,
        arguments: Restore,
    ) -> Result<RestoreReply, AbortCode> {
        let services = &self.services;
        let Restore { trans, cookie, .. } = arguments;
        superuser(&services.sessions, call)?;
        audit::add_detail("name", String::from_utf8_lossy(cookie.name.as_bytes()));
        let used = InUse::enter(services, trans, "Restore")?;
        let stream = Stream::new(services, used.progress());
        let sink = {
            let used = used.clone();
            let services = services.clone();
            on_disk(move || DumpSink::new(&services, &used, cookie)).await?
        };
        let sink = stream.receive(call, sink).await?;
        finish(services, used, move || sink.finish()).await?;
        Ok(RestoreReply {})
    }
}

/// Makes the restored contents those of the volume, and breaks all promises for it.
pub(super) async fn finish(
    services: &Arc<VolumeServices>,
    used: InUse,
    commit: impl FnOnce() -> CallResult + Send + 'static,
) -> CallResult {
    let volume = used.id();
    let pending = {
        let services = services.clone();
        on_disk(move || {
            // The transaction stays open until the work is done, even if the caller hangs up.
            let used = used;
            commit()?;
            used.restored()?;
            info!(%volume, partition = %used.partition(), "volume restored");
            services.volumes.forget(volume);
            Ok(services
                .callbacks
                .breaker
                .collect_volume(volume, services.now_secs()))
        })
        .await?
    };
    services.callbacks.breaker.wait_for_delivery(pending).await;
    Ok(())
}

/// The target volume of a restore from a dump or a delta.
pub(super) struct RestoreTarget {
    restoring: Restoring,
    /// The header of the volume before the restore.
    before: VolumeInfo,
    cookie: RestoreCookie,
}

impl RestoreTarget {
    /// Begins a restore into a volume.
    pub(super) fn begin(
        partition: &Partition,
        id: VolumeId,
        mode: RestoreMode,
        cookie: RestoreCookie,
    ) -> Result<Self, Refused> {
        let restoring = partition.begin_restore(id, mode)?;
        let before = restoring.volume().info();
        Ok(Self {
            restoring,
            before,
            cookie,
        })
    }

    pub(super) fn restoring(&mut self) -> &mut Restoring {
        &mut self.restoring
    }

    /// Maps an error in reading the stream to the code of a damaged dump.
    pub(super) fn sound<T, E: Display>(&self, read: Result<T, E>) -> Result<T, AbortCode> {
        read.map_err(|error| {
            info!(volume = %self.before.id, %error, "not restored");
            AbortCode::VOLSERREAD_DUMPERROR
        })
    }

    /// Makes the received contents those of the volume, and waits until that is durable. Requires
    /// that the stream `ended` completely and that its header is valid. Otherwise the volume stays
    /// unchanged.
    pub(super) fn commit<E: Display>(
        self,
        ended: Result<(), E>,
        restored: impl FnOnce(VolumeInfo, &RestoreCookie) -> Result<RestoredInfo, AbortCode>,
    ) -> CallResult {
        let restored = self
            .sound(ended)
            .and_then(|()| restored(self.before.clone(), &self.cookie));
        match restored {
            Ok(restored) => Ok(self.make(restored)?),
            Err(code) => {
                self.give_up();
                Err(code)
            }
        }
    }

    fn make(self, restored: RestoredInfo) -> Result<(), Refused> {
        self.restoring.commit(restored)?.wait()?;
        Ok(())
    }

    /// Leaves the volume unchanged.
    pub(super) fn give_up(self) {
        let volume = self.before.id;
        if let Err(error) = self.restoring.abort() {
            info!(%volume, %error, "the data of a failed restore is removed later");
        }
    }
}

/// The reason why a part of a stream is rejected.
pub(super) struct Refused(AbortCode);

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        info!(%error, "not restored");
        Self(restore_code(&error))
    }
}

impl From<AbortCode> for Refused {
    fn from(code: AbortCode) -> Self {
        Self(code)
    }
}

impl From<Refused> for AbortCode {
    fn from(Refused(code): Refused) -> Self {
        code
    }
}

/// Receives a dump.
struct DumpSink {
    target: RestoreTarget,
    reader: Reader,
    header: Option<Box<VolumeHeader>>,
    borrower: Borrower,
    /// Whether files in objects came as layouts.
    has_layouts: bool,
}

impl DumpSink {
    fn new(
        services: &Arc<VolumeServices>,
        used: &InUse,
        cookie: RestoreCookie,
    ) -> Result<Self, AbortCode> {
        let partition = used.volume()?.partition;
        Ok(Self {
            target: RestoreTarget::begin(&partition, used.id(), RestoreMode::Incremental, cookie)?,
            reader: Reader::new(),
            header: None,
            borrower: Borrower::new(&services.objects),
            has_layouts: false,
        })
    }

    fn item(&mut self, item: Item) -> Result<(), Refused> {
        let restoring = self.target.restoring();
        match item {
            Item::Dump(_) | Item::End => {}
            // In merged dumps the last header counts.
            Item::Volume(header) => self.header = Some(header),
            Item::Vnode(VnodeRecord {
                vnode,
                uniquifier,
                attributes,
            }) => match attributes {
                None => restoring.keep(vnode, uniquifier)?,
                Some(attributes) => {
                    if let Some(objects) = &attributes.objects {
                        let cell = objects.cell.as_bytes();
                        self.borrower.take_of(cell, &objects.layout)?;
                        self.has_layouts = true;
                    }
                    restoring.put(&image(vnode, uniquifier, &attributes)?)?;
                }
            },
            Item::Data(bytes) => restoring.push(bytes)?,
        }
        Ok(())
    }

    /// Finishes the restore at the end of the dump.
    fn finish(self) -> CallResult {
        // A complete dump has a header.
        let header = self.header.unwrap_or_default();
        let (borrower, has_layouts) = (self.borrower, self.has_layouts);
        self.target.commit(self.reader.finish(), |before, cookie| {
            let mut info = restored_from_dump(before, &header, cookie)?;
            if has_layouts && header.policy != 0 {
                info.policy = header.policy;
            }
            borrower.note(&mut info, false, 0);
            Ok(RestoredInfo {
                info,
                next_uniquifier: header.uniquifier,
                received: None,
            })
        })
    }
}

impl Sink for DumpSink {
    fn take(&mut self, bytes: Bytes) -> Result<(), AbortCode> {
        self.reader.feed_owned(bytes);
        while let Some(item) = self.target.sound(self.reader.next_item())? {
            self.item(item)?;
        }
        Ok(())
    }

    fn give_up(self) {
        self.target.give_up();
    }
}
