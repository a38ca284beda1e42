//! The bytes of a frozen vnode, all of them or those that changed since an epoch, with holes
//! marked.
//!
//! The changes are known without the earlier versions: a block and a page record the epoch in which
//! they were written. If bytes were cut off, nothing is left that could record this. So the vnode
//! records the lowest place of any cut, and the epoch of the last cut. For a receiver with an older
//! state, everything from that place on is new, including holes.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use cellar_wire::dir::PAGE_SIZE;
use cellar_wire::ids::Fid;

use super::{Frozen, Listed};
use crate::engine::key::Key;
use crate::error::{Error, Result};
use crate::record::{
    BLOCK, Body as Place, PIECE_BLOCKS, PIECE_BYTES, Piece, PieceBlocks, VnodeRecord,
};
use crate::types::FileType;
use crate::versions::Versions;
use crate::volume::Volume;

/// A part of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its offset.
    pub at: u64,
    /// The contents.
    pub content: Content,
}

/// The contents of a part of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// These bytes.
    Bytes(Bytes),
    /// This many zeros, which are not stored.
    Hole(u64),
}

impl Part {
    /// Number of bytes.
    pub fn length(&self) -> u64 {
        match &self.content {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Hole(length) => *length,
        }
    }
}

/// A body that is being read. It holds nothing of the table between calls.
pub struct Body {
    frozen: Frozen,
    fid: Fid,
    record: VnodeRecord,
    since: Option<u64>,
    kept: u64,
    position: u64,
    form: Form,
    /// The error that a read met; nothing behind it is read.
    failed: Option<Error>,
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let length = self.record.length;
        write!(f, "Body({}, {} of {length})", self.fid, self.position)
    }
}

enum Form {
    /// These bytes, followed by zeros; and whether they are wanted.
    AtHand(Bytes, bool),
    /// Pieces of blocks; `None` for a piece of which nothing is wanted.
    Pieces(Ahead<Option<PieceBlocks>>),
    /// A directory's pages, with the epochs in which they were written.
    Pages(Ahead<(u64, Bytes)>),
}

/// Pieces that are read in order, with the next one.
struct Ahead<T> {
    seen: Versions,
    next: Option<(u64, T)>,
    done: bool,
}

/// How to read the next part of a body.
enum Span {
    Hole,
    AtHand(Bytes),
    Blocks(PieceBlocks),
}

impl Frozen {
    /// Begins to read a body: bytes of a file, pages of a directory, or target of a link. With an
    /// epoch, only the changes since its end; for a vnode that did not exist then, the whole body.
    ///
    /// `InObjects` for a file whose bytes are elsewhere: its image names the objects. `Archived`
    /// for a file that must be recalled first.
    pub fn body(&self, listed: &Listed, since: Option<u64>) -> Result<Body> {
        let volume = &self.inner.volume;
        let record = (*listed.record).clone();
        let fid = Fid {
            volume: volume.id(),
            vnode: listed.vnode,
            uniquifier: listed.uniquifier,
        };
        let since = since.filter(|&since| !listed.is_new_since(since));
        let cut = record
            .cut
            .filter(|cut| since.is_some_and(|s| cut.epoch > s));
        let kept = match (since, cut) {
            (None, _) => 0,
            (Some(_), Some(cut)) => cut.at,
            (Some(_), None) => u64::MAX,
        };
        let changed = |epoch: u64| since.is_none_or(|since| epoch > since);
        let pieces = || {
            let (engine, group) = (&volume.core.engine, volume.group.id);
            Versions::of_body(
                engine,
                group,
                fid.vnode,
                record.body_number,
                vec![self.view()],
            )
        };
        let form = match (record.kind, record.body) {
            (FileType::Symlink, _) => Form::AtHand(record.target.clone(), changed(listed.epoch)),
            (FileType::Directory, _) => Form::Pages(Ahead::of(pieces())),
            (_, Place::Objects) => return Err(Error::InObjects(fid)),
            (_, Place::Archived(_)) => return Err(Error::Archived(fid)),
            (_, Place::None) => Form::AtHand(Bytes::new(), false),
            (_, Place::Inline { epoch }) => {
                let bytes = inline_bytes(volume, fid, &record, epoch)?;
                Form::AtHand(bytes, changed(epoch) || kept < record.length)
            }
            (_, Place::Pieces) => Form::Pieces(Ahead::of(pieces())),
        };
        Ok(Body {
            frozen: self.clone(),
            fid,
            record,
            since,
            kept,
            position: 0,
            form,
            failed: None,
        })
    }
}

fn inline_bytes(volume: &Volume, fid: Fid, record: &VnodeRecord, epoch: u64) -> Result<Bytes> {
    let (group, vnode) = (volume.group.id.0, fid.vnode.0);
    let key = Key::piece(group, vnode, record.body_number, 0, epoch);
    let piece = match volume.core.engine.get(&key)? {
        Some(value) => Piece::decode(&value),
        None => Err(Error::Format("its bytes are missing".into())),
    };
    match piece {
        Ok(Piece::Inline(bytes)) => Ok(bytes),
        Ok(_) => Err(volume.damaged(fid, "its bytes are missing")),
        Err(error) => Err(volume.damaged(fid, &error.to_string())),
    }
}

impl<T> Ahead<T> {
    fn of(seen: Versions) -> Self {
        Self {
            seen,
            next: None,
            done: false,
        }
    }

    /// Reads up to the first piece whose number is not below `number`.
    fn advance(
        &mut self,
        number: u64,
        read: impl Fn(&Key, &Bytes) -> Result<Option<T>>,
    ) -> Result<Option<&(u64, T)>> {
        while !self.done && self.next.as_ref().is_none_or(|(next, _)| *next < number) {
            self.next = None;
            match self.seen.next_visible()? {
                Some(version) => {
                    let piece = read(&version.key, &version.value)?;
                    self.next = piece.map(|piece| (version.key.piece_number(), piece));
                }
                None => self.done = true,
            }
        }
        Ok(self.next.as_ref().filter(|(next, _)| *next >= number))
    }
}

impl Body {
    /// Length of the whole body in bytes.
    pub fn length(&self) -> u64 {
        self.record.length
    }

    /// The receiver keeps the bytes that the vnode had in that epoch only up to here, and cuts the
    /// others off before anything else. `u64::MAX` if it keeps all, 0 if the whole body is read.
    pub fn kept_length(&self) -> u64 {
        self.kept
    }

    /// The next part, of up to `max` bytes but at least 4096 if there are as many; `None` after the
    /// last. Parts come in order, and without gaps if all is read. With an epoch, gaps are
    /// unchanged bytes.
    ///
    /// `Io` names the vnode if a part of it is damaged, at this call and all later ones.
    pub fn next(&mut self, max: usize) -> Result<Option<Part>> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let next = self.read_next(max);
        if let Err(error) = &next {
            self.failed = Some(error.clone());
        }
        next
    }

    fn read_next(&mut self, max: usize) -> Result<Option<Part>> {
        let Some((range, span)) = self.next_span(max)? else {
            return Ok(None);
        };
        let length = range.end - range.start;
        let content = match span {
            Span::Hole => Content::Hole(length),
            Span::AtHand(bytes) => Content::Bytes(bytes),
            Span::Blocks(blocks) => {
                let first = range.start / BLOCK as u64;
                let base = first / PIECE_BLOCKS as u64 * PIECE_BLOCKS as u64;
                let count = length.div_ceil(BLOCK as u64) as usize;
                let mut bytes = BytesMut::zeroed(count * BLOCK);
                let volume = &self.frozen.inner.volume;
                volume.read_blocks(self.fid, &blocks, base, first, &mut bytes)?;
                bytes.truncate(length as usize);
                Content::Bytes(bytes.freeze())
            }
        };
        Ok(Some(Part {
            at: range.start,
            content,
        }))
    }

    /// Returns whether bytes that were written in `epoch` and end at `end` are new to the receiver.
    fn is_new_to_receiver(&self, epoch: u64, end: u64) -> bool {
        end > self.kept || self.since.is_none_or(|since| epoch > since)
    }

    fn next_span(&mut self, max: usize) -> Result<Option<(Range<u64>, Span)>> {
        let length = self.record.length;
        while self.position < length {
            let at = self.position;
            let (end, span) = match &self.form {
                Form::AtHand(bytes, wanted) => {
                    let (bytes, wanted) = (bytes.clone(), *wanted);
                    let inside = at.min(bytes.len() as u64) as usize;
                    let count = (bytes.len().min(length as usize) - inside).min(max.max(BLOCK));
                    if count == 0 {
                        (length, Some(Span::Hole))
                    } else {
                        let bytes = bytes.slice(inside..inside + count);
                        (at + count as u64, wanted.then_some(Span::AtHand(bytes)))
                    }
                }
                Form::Pieces(_) => self.span_of_pieces(max)?,
                Form::Pages(_) => self.span_of_pages(max)?,
            };
            let end = end.min(length);
            self.position = end;
            match span {
                // A hole in the part that the receiver keeps was a hole before, or is behind its
                // end.
                Some(Span::Hole) if end <= self.kept && self.since.is_some() => {}
                Some(Span::Hole) if self.since.is_some() => {
                    return Ok(Some((at.max(self.kept)..end, Span::Hole)));
                }
                Some(span) => return Ok(Some((at..end, span))),
                None => {}
            }
        }
        Ok(None)
    }

    /// The contents at the present place of a file in pieces, and where they end; `None` if they
    /// are not wanted.
    fn span_of_pieces(&mut self, max: usize) -> Result<(u64, Option<Span>)> {
        let at = self.position;
        let number = at / PIECE_BYTES;
        let (fid, length) = (self.fid, self.record.length);
        let volume = Arc::clone(&self.frozen.inner.volume);
        let Form::Pieces(ahead) = &mut self.form else {
            return Ok((length, None));
        };
        let (since, kept) = (self.since, self.kept);
        let is_old = |key: &Key| {
            let end = (key.piece_number() + 1) * PIECE_BYTES;
            end <= kept && since.is_some_and(|since| key.epoch() <= since)
        };
        let next = ahead.advance(number, |key, value| {
            if is_old(key) {
                return Ok(Some(None));
            }
            match Piece::decode(value) {
                Ok(Piece::Blocks(blocks)) => Ok(Some(Some(blocks))),
                Ok(_) => Ok(None),
                Err(error) => Err(volume.damaged(fid, &error.to_string())),
            }
        })?;
        let blocks = match next {
            Some((next, None)) if *next == number => {
                return Ok(((number + 1) * PIECE_BYTES, None));
            }
            Some((next, Some(blocks))) if *next == number => blocks.clone(),
            Some((next, _)) => return Ok((next * PIECE_BYTES, Some(Span::Hole))),
            None => return Ok((length, Some(Span::Hole))),
        };
        let place = ((at - number * PIECE_BYTES) / BLOCK as u64) as usize;
        let kind = |place: usize| {
            let end = number * PIECE_BYTES + (place as u64 + 1) * BLOCK as u64;
            blocks.0[place].map(|slot| self.is_new_to_receiver(slot.epoch, end))
        };
        let this = kind(place);
        let limit = if this == Some(true) {
            (max / BLOCK).max(1)
        } else {
            PIECE_BLOCKS
        };
        let count = (place..PIECE_BLOCKS)
            .take(limit)
            .take_while(|&place| kind(place) == this)
            .count();
        let end = at + (count * BLOCK) as u64;
        Ok(match this {
            None => (end, Some(Span::Hole)),
            Some(true) => (end, Some(Span::Blocks(blocks))),
            Some(false) => (end, None),
        })
    }

    /// Like [`Self::span_of_pieces`], for a directory.
    fn span_of_pages(&mut self, max: usize) -> Result<(u64, Option<Span>)> {
        let fid = self.fid;
        let volume = Arc::clone(&self.frozen.inner.volume);
        let (first, end) = (self.position / PAGE_SIZE as u64, self.record.length);
        let mut pages = BytesMut::new();
        let mut number = first;
        while number * (PAGE_SIZE as u64) < end {
            let Form::Pages(ahead) = &mut self.form else {
                break;
            };
            let next = ahead.advance(number, |key, value| match Piece::decode(value) {
                Ok(Piece::Inline(page)) => Ok(Some((key.epoch(), page))),
                Ok(_) => Ok(None),
                Err(error) => Err(volume.damaged(fid, &error.to_string())),
            })?;
            let (epoch, page) = match next {
                Some((next, page)) if *next == number => page.clone(),
                _ => return Err(volume.damaged(fid, "a page of the directory is missing")),
            };
            let wanted = self.is_new_to_receiver(epoch, (number + 1) * PAGE_SIZE as u64);
            if !wanted && pages.is_empty() {
                return Ok(((number + 1) * PAGE_SIZE as u64, None));
            }
            if !wanted || (pages.len() + PAGE_SIZE > max.max(BLOCK)) {
                break;
            }
            pages.extend_from_slice(&page[..page.len().min(PAGE_SIZE)]);
            number += 1;
            pages.resize((number - first) as usize * PAGE_SIZE, 0);
        }
        Ok((
            number * PAGE_SIZE as u64,
            Some(Span::AtHand(pages.freeze())),
        ))
    }
}
