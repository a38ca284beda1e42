//! Dump (109), DumpV2 (65538), GetSize (65537).
//!
//! A dump shows one moment: changes by clients during the transfer are not in it. The order is that
//! of OpenAFS: heads, directories, then files and links, each by ascending number, then the end.
//! Vnodes that did not change since the date have a record without attributes. So a restore knows
//! which vnodes are gone.
//!
//! Files in objects have their bytes in the dump, unless the caller wants their layouts instead
//! ([`DUMP_OSD_METADATA`]). Such a dump is small, and usable only in the cell of these objects.
//! Wiped files always have their bytes in the dump, read from an archive at its pace.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use cellar_fileobjects::{Elsewhere, InArchives, InObjects, Lender};
use cellar_rpc::IncomingCall;
use cellar_volume::{Body, Content, Frozen, Listed, Part, Since, Vnodes};
use cellar_wire::AbortCode;
use cellar_wire::afsvol::{
    DUMP_OMIT_DIRS, DUMP_OSD_METADATA, Dump, DumpReply, DumpV2, DumpV2Reply, GetSize, GetSizeReply,
    VolumeSize,
};
use cellar_wire::dump::write;
use cellar_wire::ids::{AfsTime, Fid};
use cellar_wire::serve::{Handle, HandleStream};

use super::VolumeService;
use super::contents::{dump_header, record, volume_header, with_objects};
use super::stream::{Next, Source, Stream};
use super::transaction::InUse;
use super::{CallResult, on_disk, superuser};
use crate::abort_map::{dump_code, store_code};
use crate::audit;
use crate::limits::VOLUME_STREAM_PIECE_BYTES;
use crate::services::VolumeServices;

/// Contents up to this length are gathered with the records around them. Longer ones are sent
/// separately.
const GATHERED_BYTES: usize = 32 * 1024;

static ZEROS: [u8; VOLUME_STREAM_PIECE_BYTES] = [0; VOLUME_STREAM_PIECE_BYTES];

impl HandleStream<Dump, IncomingCall> for VolumeService {
    async fn handle_stream(
        &self,
        call: &mut IncomingCall,
        arguments: Dump,
    ) -> Result<DumpReply, AbortCode> {
        let services = &self.services;
        let Dump { trans, from_date } = arguments;
        superuser(&services.sessions, call)?;
        send(services, call, trans, from_date, 0).await?;
        Ok(DumpReply {})
    }
}

impl HandleStream<DumpV2, IncomingCall> for VolumeService {
    async fn handle_stream(
        &self,
        call: &mut IncomingCall,
        arguments: DumpV2,
    ) -> Result<DumpV2Reply, AbortCode> {
        let services = &self.services;
        let DumpV2 {
            trans,
            from_date,
            flags,
        } = arguments;
        superuser(&services.sessions, call)?;
        send(services, call, trans, from_date, flags).await?;
        Ok(DumpV2Reply {})
    }
}

async fn send(
    services: &Arc<VolumeServices>,
    call: &mut IncomingCall,
    trans: i32,
    from_date: i32,
    flags: i32,
) -> CallResult {
    audit::add_detail("from", from_date as u32);
    let every_directory = flags & DUMP_OMIT_DIRS == 0;
    let lender = (flags & DUMP_OSD_METADATA != 0).then(|| Lender::new(&services.objects));
    let used = InUse::enter(services, trans, "Dump")?;
    let stream = Stream::new(services, used.progress());
    let source = {
        let used = used.clone();
        let from = AfsTime(from_date as u32);
        on_disk(move || DumpSource::new(&freeze(&used)?, from, every_directory, lender)).await?
    };
    stream.send(source, call).await
}

/// The volume of a transaction in its present state.
pub(super) fn freeze(used: &InUse) -> Result<Frozen, AbortCode> {
    let volume = used.volume()?.volume;
    volume.freeze().map_err(|error| dump_code(&error))
}

/// The vnodes to list for a dump of the changes since a date.
pub(super) fn since(from: AfsTime) -> Since {
    if from.0 == 0 {
        Since::Everything
    } else {
        Since::Date(from)
    }
}

/// Makes a dump.
pub(super) struct DumpSource {
    frozen: Frozen,
    out: BytesMut,
    /// Pieces that are complete and not yet taken.
    ready: VecDeque<Bytes>,
    /// `None` after the end.
    vnodes: Option<Vnodes>,
    every_directory: bool,
    /// Replaces bytes by layouts.
    lender: Option<Lender>,
    /// The contents that are being sent, and the number of bytes left.
    body: Option<(Contents, u64)>,
}

/// The source of contents.
enum Contents {
    Here(Box<Body>),
    /// The caller feeds the bytes.
    Elsewhere,
}

impl DumpSource {
    /// A dump of all changes since a date; 0 makes a full dump. With `every_directory`, unchanged
    /// directories are included too. With `lender`, layouts replace the bytes of files in objects.
    pub(super) fn new(
        frozen: &Frozen,
        from: AfsTime,
        every_directory: bool,
        mut lender: Option<Lender>,
    ) -> Result<Self, AbortCode> {
        if let Some(lender) = &mut lender {
            lender.begin(frozen.info());
        }
        let vnodes = frozen.vnodes(since(from));
        let mut out = BytesMut::with_capacity(VOLUME_STREAM_PIECE_BYTES);
        let info = frozen.info();
        write::dump_header(&mut out, &dump_header(info, from));
        let mut header = volume_header(info, frozen.next_uniquifier().0);
        if lender.is_some() {
            header.policy = info.policy;
        }
        write::volume_header(&mut out, &header);
        Ok(Self {
            frozen: frozen.clone(),
            out,
            ready: VecDeque::new(),
            vnodes: Some(vnodes.map_err(|error| dump_code(&error))?),
            every_directory,
            lender,
            body: None,
        })
    }

    /// Adds the next record, the next part of local contents, or the end. Returns `None` to
    /// continue, or the next result that is no piece.
    fn step(&mut self) -> Result<Option<Next>, AbortCode> {
        if let Some((contents, _)) = &self.body {
            if matches!(contents, Contents::Elsewhere) {
                return Ok(Some(Next::More));
            }
            self.contents()?;
            return Ok(None);
        }
        if self.vnodes.is_none() {
            return Ok(Some(Next::End));
        }
        let Some((vnode, length)) = self.record()? else {
            return Ok(None);
        };
        if length == 0 {
            return Ok(None);
        }
        if let Some(file) = elsewhere(&self.frozen, &vnode) {
            self.body = Some((Contents::Elsewhere, length));
            return Ok(Some(Next::Elsewhere(file)));
        }
        let body = self.frozen.body(&vnode, None);
        let body = body.map_err(|error| dump_code(&error))?;
        self.body = Some((Contents::Here(Box::new(body)), length));
        Ok(None)
    }

    /// Adds the next record, and returns the vnode and the length of its contents, which follow; or
    /// adds the end.
    fn record(&mut self) -> Result<Option<(Listed, u64)>, AbortCode> {
        let Some(vnodes) = &mut self.vnodes else {
            return Ok(None);
        };
        let Some(next) = vnodes.next().map_err(|error| dump_code(&error))? else {
            self.vnodes = None;
            write::end(&mut self.out);
            return Ok(None);
        };
        let image = if self.every_directory && next.vnode.is_directory() {
            Some(next.whole())
        } else {
            next.image.clone()
        };
        let mut record = record(next.vnode, next.uniquifier, image.as_ref());
        let mut length = image.as_ref().map_or(0, |image| image.length);
        if let (Some(lender), Some(image)) = (&mut self.lender, &image)
            && let Some(attributes) = &mut record.attributes
        {
            attributes.policy = image.policy;
            if let Some(layout) = &image.layout {
                let lent = lender.lend(self.frozen.info());
                lent.map_err(|error| store_code(&error))?;
                with_objects(attributes, lender.cell()?, layout);
                length = 0;
            }
        }
        write::vnode(&mut self.out, &record);
        Ok(Some((next, length)))
    }

    /// Adds the next part of the contents.
    fn contents(&mut self) -> Result<(), AbortCode> {
        let Some((Contents::Here(body), left)) = &mut self.body else {
            return Ok(());
        };
        let next = body.next(VOLUME_STREAM_PIECE_BYTES);
        let Some(Part { content, .. }) = next.map_err(|error| dump_code(&error))? else {
            // The contents are shorter than their record says.
            return Err(AbortCode::VOLSERDUMPERROR);
        };
        let len = match &content {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Hole(len) => *len,
        };
        *left = left.checked_sub(len).ok_or(AbortCode::VOLSERDUMPERROR)?;
        if *left == 0 {
            self.body = None;
        }
        match content {
            Content::Bytes(bytes) => self.add(bytes),
            Content::Hole(mut len) => {
                // Every piece refers to the same zeros, so a hole needs memory only for the
                // references.
                while len > 0 {
                    let piece = usize::try_from(len).unwrap_or(ZEROS.len()).min(ZEROS.len());
                    self.add(Bytes::from_static(&ZEROS[..piece]));
                    len -= piece as u64;
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, bytes: Bytes) {
        if bytes.len() <= GATHERED_BYTES {
            self.out.extend_from_slice(&bytes);
            return;
        }
        self.flush();
        self.ready.push_back(bytes);
    }

    fn flush(&mut self) {
        if !self.out.is_empty() {
            self.ready.push_back(self.out.split().freeze());
        }
    }
}

impl Source for DumpSource {
    fn next(&mut self) -> Result<Next, AbortCode> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Ok(Next::Piece(piece));
            }
            if self.out.len() >= VOLUME_STREAM_PIECE_BYTES {
                self.flush();
                continue;
            }
            match self.step()? {
                None => {}
                Some(Next::End) if !self.out.is_empty() => self.flush(),
                Some(next) => return Ok(next),
            }
        }
    }

    fn feed(&mut self, bytes: Bytes) {
        if let Some((Contents::Elsewhere, left)) = &mut self.body {
            // More bytes than in the record never arrive, because only so many were requested.
            *left = left.saturating_sub(bytes.len() as u64);
            if *left == 0 {
                self.body = None;
            }
            self.add(bytes);
        }
    }
}

/// A vnode whose bytes are in objects, or in archives only.
pub(super) fn elsewhere(frozen: &Frozen, listed: &Listed) -> Option<Elsewhere> {
    let image = listed.image.as_ref()?;
    let length = image.length;
    let fid = Fid {
        volume: frozen.info().id,
        vnode: listed.vnode,
        uniquifier: listed.uniquifier,
    };
    if let Some(layout) = image.layout.clone() {
        return Some(Elsewhere::Objects(InObjects {
            fid,
            layout,
            length,
        }));
    }
    let wiped = image.wiped?;
    Some(Elsewhere::Archives(InArchives {
        fid,
        contents: wiped.contents(),
        copies: image.copies.clone().unwrap_or_default(),
        length,
    }))
}

impl Handle<GetSize, IncomingCall> for VolumeService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: GetSize,
    ) -> Result<GetSizeReply, AbortCode> {
        let services = &self.services;
        let GetSize { trans, from_date } = arguments;
        superuser(&services.sessions, call)?;
        let used = InUse::enter(services, trans, "GetSize")?;
        let from = AfsTime(from_date as u32);
        let dump_size = on_disk(move || size(&freeze(&used)?, from)).await?;
        Ok(GetSizeReply {
            size: VolumeSize { dump_size },
        })
    }
}

/// The number of bytes that a Dump would send, with all directories.
fn size(frozen: &Frozen, from: AfsTime) -> Result<u64, AbortCode> {
    let mut source = DumpSource::new(frozen, from, true, None)?;
    let mut size = source.out.len() as u64;
    while source.vnodes.is_some() {
        source.out.clear();
        let contents = source.record()?.map_or(0, |(_, length)| length);
        size += source.out.len() as u64 + contents;
    }
    Ok(size)
}
