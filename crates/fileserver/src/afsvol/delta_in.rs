//! Receiving deltas: GetState, RestoreDelta, GetCapabilities and GetObjectCell, calls of this
//! project.

use std::sync::Arc;

use bytes::Bytes;
use cellar_fileobjects::Borrower;
use cellar_rpc::IncomingCall;
use cellar_volume::{Partition, RestoreMode, RestoredInfo};
use cellar_wire::AbortCode;
use cellar_wire::afsvol::{
    BASE_DATE, BASE_NOTHING, BASE_STATE, CAN_DELTA, CAN_RETIRED, DELTA_VERSION, DeltaHead,
    GetCapabilities, GetCapabilitiesReply, GetObjectCell, GetObjectCellReply, GetState,
    GetStateReply, RestoreCookie, RestoreDelta, RestoreDeltaReply, VolumeState, WRONG_BASE,
};
use cellar_wire::delta::{Item, Origin, Reader};
use cellar_wire::ids::VolumeId;
use cellar_wire::object::{ArchiveCopies, Layout, Wiped};
use cellar_wire::serve::{Handle, HandleStream};

use super::VolumeService;
use super::contents::{from_wire, image_of_delta, restored_from_delta, retired_of_delta, to_wire};
use super::restore::{Refused, RestoreTarget, finish};
use super::stream::{Sink, Stream};
use super::transaction::InUse;
use super::{CallResult, in_memory, on_disk, superuser};
use crate::audit;
use crate::services::VolumeServices;

impl Handle<GetCapabilities, IncomingCall> for VolumeService {
    async fn handle(
        &self,
        _: &IncomingCall,
        _: GetCapabilities,
    ) -> Result<GetCapabilitiesReply, AbortCode> {
        Ok(GetCapabilitiesReply {
            version: DELTA_VERSION,
            capabilities: CAN_DELTA | CAN_RETIRED,
        })
    }
}

impl Handle<GetObjectCell, IncomingCall> for VolumeService {
    async fn handle(
        &self,
        _: &IncomingCall,
        _: GetObjectCell,
    ) -> Result<GetObjectCellReply, AbortCode> {
        let services = &self.services;

        let cell = services.objects.cell();
        Ok(GetObjectCellReply { cell })
    }
}

impl Handle<GetState, IncomingCall> for VolumeService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: GetState,
    ) -> Result<GetStateReply, AbortCode> {
        let services = &self.services;
        let GetState { trans } = arguments;
        superuser(&services.sessions, call)?;
        let used = InUse::enter(services, trans, "GetState")?;
        let state = state_of(&used).await?;
        Ok(GetStateReply {
            version: DELTA_VERSION,
            state,
        })
    }
}

/// The state of a transaction's volume, if it has a name.
pub(super) async fn state_of(used: &InUse) -> Result<VolumeState, AbortCode> {
    let used = used.clone();
    let found = in_memory(move || {
        let found = used.find()?;
        found.map(|found| found.volume.received()).transpose()
    });
    let state = found.await?.ok_or(AbortCode::VNOVOL)?;
    Ok(state.map(to_wire).unwrap_or_default())
}

impl HandleStream<RestoreDelta, IncomingCall> for VolumeService {
    async fn handle_stream(
        &self,
        call: &mut IncomingCall,
        arguments: RestoreDelta,
    ) -> Result<RestoreDeltaReply, AbortCode> {
        let services = &self.services;
        let RestoreDelta {
            trans,
            cookie,
            head,
        } = arguments;
        superuser(&services.sessions, call)?;
        audit::add_detail("name", String::from_utf8_lossy(cookie.name.as_bytes()));
        if head.version != DELTA_VERSION {
            return Err(AbortCode::RXGEN_OPCODE);
        }
        let used = InUse::enter(services, trans, "RestoreDelta")?;
        let stream = Stream::new(services, used.progress());
        let sink = DeltaSink::begin(services, &used, cookie, head).await?;
        let sink = stream.receive(call, sink).await?;
        finish(services, used, move || sink.finish()).await?;
        Ok(RestoreDeltaReply {})
    }
}

/// Receives a delta.
pub(super) struct DeltaSink {
    target: RestoreTarget,
    head: DeltaHead,
    reader: Reader,
    body: Option<ContentPosition>,
    borrower: Borrower,
    /// Whether the delta comes from this server.
    is_local: bool,
    origin: Option<Origin>,
    /// Whether the source itself may not write the objects.
    is_borrowed: bool,
    /// The layout of the next vnode.
    layout: Option<Arc<Layout>>,
    /// The copies of the next vnode in archives.
    copies: Option<Arc<ArchiveCopies>>,
    /// Set if only these copies have the bytes of the next vnode.
    wiped: Option<Wiped>,
    policy: u32,
}

/// The position in the contents of the last vnode.
#[derive(Clone, Copy)]
struct ContentPosition {
    at: u64,
    /// Contents before this position that are not sent stay unchanged.
    kept: u64,
    length: u64,
}

impl DeltaSink {
    /// [`DeltaSink::new`], for the volume of a transaction.
    pub(super) async fn begin(
        services: &Arc<VolumeServices>,
        used: &InUse,
        cookie: RestoreCookie,
        head: DeltaHead,
    ) -> Result<Self, AbortCode> {
        let (services, used) = (services.clone(), used.clone());
        on_disk(move || {
            let partition = used.volume()?.partition;
            Self::new(&services, &partition, used.id(), cookie, head)
        })
        .await
    }

    /// Marks the delta as one from this server. It may then contain layouts even if this server has
    /// no object storage.
    pub(super) fn locally(mut self) -> Self {
        self.is_local = true;
        self
    }

    /// Begins to bring a volume to the state of a delta with this head.
    pub(super) fn new(
        services: &Arc<VolumeServices>,
        partition: &Partition,
        volume: VolumeId,
        cookie: RestoreCookie,
        head: DeltaHead,
    ) -> Result<Self, AbortCode> {
        let mode = match head.base_kind {
            BASE_NOTHING => RestoreMode::Full,
            BASE_DATE => RestoreMode::Incremental,
            BASE_STATE => RestoreMode::Delta {
                base: from_wire(head.base).ok_or(WRONG_BASE)?,
            },
            _ => return Err(AbortCode::VOLSERREAD_DUMPERROR),
        };
        Ok(Self {
            target: RestoreTarget::begin(partition, volume, mode, cookie)?,
            head,
            reader: Reader::new(),
            body: None,
            borrower: Borrower::new(&services.objects),
            is_local: false,
            origin: None,
            is_borrowed: false,
            layout: None,
            copies: None,
            wiped: None,
            policy: 0,
        })
    }

    fn item(&mut self, item: Item) -> Result<(), Refused> {
        match item {
            Item::Vnode(vnode) => {
                self.end_body()?;
                let mut image = image_of_delta(&vnode)?;
                image.layout = self.layout.take();
                image.copies = self.copies.take();
                image.wiped = self.wiped.take();
                image.policy = std::mem::take(&mut self.policy);
                if vnode.kept == 0 {
                    self.target.restoring().put(&image)?;
                } else {
                    self.target.restoring().patch(&image)?;
                }
                if image.layout.is_some() || image.wiped.is_some() {
                    return Ok(());
                }
                self.body = Some(ContentPosition {
                    at: 0,
                    kept: vnode.kept.min(vnode.length),
                    length: vnode.length,
                });
            }
            Item::Data(offset, bytes) => {
                let len = bytes.len() as u64;
                self.go_to(offset)?;
                self.target.restoring().push(bytes)?;
                self.advance(len);
            }
            Item::Zeros(offset, len) => {
                self.go_to(offset)?;
                self.target.restoring().zeros(len)?;
                self.advance(len);
            }
            Item::Keep(vnode, uniquifier) => {
                self.end_body()?;
                self.target.restoring().keep(vnode, uniquifier)?;
            }
            Item::Remove(vnode) => {
                self.end_body()?;
                self.target.restoring().remove(vnode)?;
            }
            Item::Origin(origin) => self.origin = Some(origin),
            Item::Borrowed => self.is_borrowed = true,
            Item::Layout(layout) => {
                self.end_body()?;
                self.check_storage()?;
                self.borrower.take(&layout);
                self.layout = Some(Arc::from(layout));
            }
            Item::Copies(copies) => {
                self.end_body()?;
                self.check_storage()?;
                self.borrower.take_copies(&copies);
                self.copies = Some(Arc::from(copies));
            }
            Item::Wiped(wiped) => {
                self.end_body()?;
                self.check_storage()?;
                self.borrower.take_wiped(&wiped);
                self.wiped = Some(wiped);
            }
            Item::Policy(policy) => {
                self.end_body()?;
                self.policy = policy;
            }
            Item::Retired(file) => {
                self.end_body()?;
                self.check_storage()?;
                self.borrower.take_copies(&file.copies);
                let volume = self.target.restoring().volume().id();
                let file = retired_of_delta(volume, *file)?;
                self.target.restoring().retire(&file)?;
            }
            Item::End(_) => self.end_body()?,
        }
        Ok(())
    }

    /// Checks that this server can read the file of the next vnode.
    fn check_storage(&self) -> Result<(), AbortCode> {
        match self.is_local {
            true => Ok(()),
            false => self.borrower.check_storage(),
        }
    }

    /// Skips contents that are not sent: they stay, or become zeros.
    fn go_to(&mut self, offset: u64) -> Result<(), Refused> {
        let Some(ContentPosition { at, kept, .. }) = self.body else {
            return Ok(());
        };
        let stays = kept.min(offset).saturating_sub(at);
        if stays > 0 {
            self.target.restoring().skip(stays)?;
        }
        let zeros = offset.saturating_sub(at + stays);
        if zeros > 0 {
            self.target.restoring().zeros(zeros)?;
        }
        self.advance(stays + zeros);
        Ok(())
    }

    fn advance(&mut self, len: u64) {
        if let Some(place) = &mut self.body {
            place.at += len;
        }
    }

    fn end_body(&mut self) -> Result<(), Refused> {
        if let Some(ContentPosition { length, .. }) = self.body {
            self.go_to(length)?;
        }
        self.body = None;
        Ok(())
    }

    /// Finishes the restore at the end of the delta.
    pub(super) fn finish(self) -> CallResult {
        let (head, borrower, origin) = (self.head, self.borrower, self.origin);
        let is_borrowed = self.is_borrowed;
        self.target.commit(self.reader.finish(), |before, cookie| {
            let mut info = restored_from_delta(before, &head, cookie)?;
            if let Some(origin) = origin {
                info.policy = origin.policy;
            }
            // Unless contents from another source remain.
            let takes_over =
                head.base_kind == BASE_NOTHING || info.borrowed == 0 || info.takes_over;
            let takes_over = takes_over && origin.is_some() && !is_borrowed;
            let last = origin.map_or(0, |origin| origin.version);
            borrower.note(&mut info, takes_over, last);
            Ok(RestoredInfo {
                info,
                next_uniquifier: head.uniquifier,
                received: from_wire(head.state),
            })
        })
    }
}

impl Sink for DeltaSink {
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
