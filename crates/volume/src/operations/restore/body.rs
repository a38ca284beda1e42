//! The bytes of a file that is restored. Those of a small file go into one record, others into
//! blocks as they come. Blocks of zeros become holes.
//!
//! A patched file keeps its body and every block of it that is not written. A partly written block
//! is composed with the file's old bytes.

use bytes::Bytes;
use cellar_wire::ids::Fid;

use super::stage::Stage;
use crate::engine::key::Key;
use crate::error::{Error, Result};
use crate::record::{BLOCK, Body, PIECE_BLOCKS, PIECE_BYTES, Piece, PieceBlocks};

/// Bytes gathered before blocks are written.
const GATHER_BYTES: usize = 1 << 20;

/// The former contents of the file.
pub(super) enum Base {
    /// Nothing, or only zeros, or irrelevant.
    Nothing,
    /// These bytes, followed by zeros.
    Bytes(Bytes),
    /// A body in pieces, with this number and length.
    Pieces { body: u32, length: u64 },
}

/// A file whose bytes are coming.
pub(super) struct FileBody {
    fid: Fid,
    body: u32,
    length: u64,
    position: u64,
    base: Base,
    form: Form,
}

enum Form {
    Small(Vec<u8>),
    Blocks(Blocks),
}

/// Bytes that are being written into blocks.
struct Blocks {
    /// Bytes that begin at the start of a block, at offset `pending_at`.
    pending: Vec<u8>,
    pending_at: u64,
    piece: Option<Work>,
    /// Some piece was written.
    any: bool,
}

/// A piece that is being changed.
struct Work {
    number: u64,
    /// An older version of the piece would be visible without this one.
    hides: bool,
    before: PieceBlocks,
    blocks: PieceBlocks,
}

impl FileBody {
    /// Begins a file of `length` bytes whose body gets this number. A small file is kept in one
    /// record.
    pub(super) fn new(fid: Fid, body: u32, length: u64, base: Base, inline_max: u64) -> Self {
        let form = match &base {
            Base::Nothing | Base::Bytes(_) if length <= inline_max => {
                Form::Small(Vec::with_capacity(length as usize))
            }
            _ => Form::Blocks(Blocks {
                pending: Vec::new(),
                pending_at: 0,
                piece: None,
                any: false,
            }),
        };
        Self {
            fid,
            body,
            length,
            position: 0,
            base,
            form,
        }
    }

    /// The position behind `length` more bytes.
    fn end_of(&self, length: u64) -> Result<u64> {
        let end = self.position.checked_add(length);
        end.filter(|&end| end <= self.length)
            .ok_or(Error::Invalid("more bytes than the file has"))
    }

    /// The next bytes.
    pub(super) fn push(&mut self, stage: &mut Stage, bytes: &[u8]) -> Result<()> {
        let end = self.end_of(bytes.len() as u64)?;
        if let Form::Small(small) = &mut self.form {
            small.extend_from_slice(bytes);
            self.position = end;
            return Ok(());
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            self.begin_block(stage)?;
            let Form::Blocks(blocks) = &mut self.form else {
                break;
            };
            let count = rest.len().min(GATHER_BYTES - blocks.pending.len());
            blocks.pending.extend_from_slice(&rest[..count]);
            self.position += count as u64;
            rest = &rest[count..];
            if blocks.pending.len() >= GATHER_BYTES {
                self.write_pending(stage)?;
            }
        }
        Ok(())
    }

    /// Ensures that the pending bytes end at the position. After a gap they restart at the start of
    /// the block, with the file's old bytes up to the position.
    fn begin_block(&mut self, stage: &Stage) -> Result<()> {
        let inside = (self.position % BLOCK as u64) as usize;
        let start = self.position - inside as u64;
        let Form::Blocks(blocks) = &self.form else {
            return Ok(());
        };
        if !blocks.pending.is_empty() {
            return Ok(());
        }
        let before = match inside {
            0 => Vec::new(),
            _ => self.base_block(stage, start)?,
        };
        if let Form::Blocks(blocks) = &mut self.form {
            blocks.pending.extend_from_slice(&before[..inside]);
            blocks.pending_at = start;
        }
        Ok(())
    }

    /// Keeps the next bytes as they are.
    pub(super) fn skip(&mut self, stage: &mut Stage, length: u64) -> Result<()> {
        let end = self.end_of(length)?;
        match &self.base {
            Base::Nothing => self.zeros(stage, length),
            Base::Bytes(bytes) => {
                let from = self.position.min(bytes.len() as u64) as usize;
                let to = end.min(bytes.len() as u64) as usize;
                let known = bytes.slice(from..to);
                self.push(stage, &known)?;
                self.zeros(stage, end - self.position)
            }
            Base::Pieces { .. } => {
                let inside = (self.position % BLOCK as u64) as usize;
                let pending =
                    matches!(&self.form, Form::Blocks(blocks) if !blocks.pending.is_empty());
                if pending && inside > 0 {
                    let count = (BLOCK - inside).min(length as usize);
                    let start = self.position - inside as u64;
                    let known = self.base_block(stage, start)?;
                    self.push(stage, &known[inside..inside + count])?;
                }
                if self.position < end {
                    self.write_pending(stage)?;
                    self.position = end;
                }
                Ok(())
            }
        }
    }

    /// The next bytes are zeros.
    pub(super) fn zeros(&mut self, stage: &mut Stage, length: u64) -> Result<()> {
        let end = self.end_of(length)?;
        if let Form::Small(small) = &mut self.form {
            small.resize(end as usize, 0);
            self.position = end;
            return Ok(());
        }
        const ZEROS: [u8; BLOCK] = [0; BLOCK];
        let lead = self.position.next_multiple_of(BLOCK as u64) - self.position;
        let lead = lead.min(length) as usize;
        self.push(stage, &ZEROS[..lead])?;
        let (first, last) = (self.position / BLOCK as u64, end / BLOCK as u64);
        if first < last {
            self.write_pending(stage)?;
            self.clear_blocks(stage, first, last)?;
            self.position = last * BLOCK as u64;
        }
        let rest = (end - self.position) as usize;
        self.push(stage, &ZEROS[..rest])
    }

    /// Turns the blocks from `first` to before `end` into holes.
    fn clear_blocks(&mut self, stage: &mut Stage, first: u64, end: u64) -> Result<()> {
        let Base::Pieces { length, .. } = self.base else {
            return Ok(());
        };
        let per_piece = PIECE_BLOCKS as u64;
        let end = end.min(length.div_ceil(BLOCK as u64));
        let mut at = first;
        while at < end {
            // A hole may be of any size, so only existing pieces are visited.
            let Some(number) = self.next_piece(stage, at / per_piece)? else {
                break;
            };
            at = at.max(number * per_piece);
            let to = end.min((number + 1) * per_piece);
            if at < to {
                let work = self.work(stage, number)?;
                for index in at..to {
                    work.blocks.0[(index % per_piece) as usize] = None;
                }
            }
            at = (number + 1) * per_piece;
        }
        Ok(())
    }

    /// The first piece from `number` on that exists or is being changed.
    fn next_piece(&self, stage: &Stage, number: u64) -> Result<Option<u64>> {
        if let Form::Blocks(blocks) = &self.form
            && blocks
                .piece
                .as_ref()
                .is_some_and(|work| work.number == number)
        {
            return Ok(Some(number));
        }
        let volume = stage.volume();
        let (group, vnode) = (volume.group.id.0, self.fid.vnode.0);
        let from = Key::piece_prefix(group, vnode, self.body, number);
        let prefix = Key::body_prefix(group, vnode, self.body);
        let found = volume.core.engine.scan(&from, &prefix)?.next()?;
        Ok(found.map(|(key, _)| key.piece_number()))
    }

    /// A block of the file's former contents.
    fn base_block(&self, stage: &Stage, start: u64) -> Result<Vec<u8>> {
        let volume = stage.volume();
        match &self.base {
            Base::Nothing => Ok(vec![0; BLOCK]),
            Base::Bytes(bytes) => {
                let from = (start as usize).min(bytes.len());
                let to = (from + BLOCK).min(bytes.len());
                let mut block = bytes[from..to].to_vec();
                block.resize(BLOCK, 0);
                Ok(block)
            }
            Base::Pieces { body, length } if start < *length => {
                let piece = volume.piece(self.fid, *body, start / PIECE_BYTES)?;
                match piece.map(|old| old.piece) {
                    Some(Piece::Blocks(blocks)) => {
                        volume.read_block(self.fid, &blocks, start / BLOCK as u64)
                    }
                    _ => Ok(vec![0; BLOCK]),
                }
            }
            Base::Pieces { .. } => Ok(vec![0; BLOCK]),
        }
    }

    /// Writes the pending bytes, which end at the end of a block.
    fn write_pending(&mut self, stage: &mut Stage) -> Result<()> {
        let Form::Blocks(blocks) = &mut self.form else {
            return Ok(());
        };
        if blocks.pending.is_empty() {
            return Ok(());
        }
        let mut bytes = std::mem::take(&mut blocks.pending);
        let first = blocks.pending_at / BLOCK as u64;
        let slots = stage.write_blocks(self.fid.vnode.0, first, &bytes)?;
        for (index, slot) in (first..).zip(slots) {
            let work = self.work(stage, index / PIECE_BLOCKS as u64)?;
            work.blocks.0[(index % PIECE_BLOCKS as u64) as usize] = slot;
        }
        bytes.clear();
        if let Form::Blocks(blocks) = &mut self.form {
            // Reuses the memory.
            blocks.pending = bytes;
        }
        Ok(())
    }

    /// The piece with that number, to be changed.
    fn work(&mut self, stage: &mut Stage, number: u64) -> Result<&mut Work> {
        let known = match &self.form {
            Form::Blocks(Blocks {
                piece: Some(work), ..
            }) => work.number == number,
            _ => false,
        };
        let mut fresh = None;
        if !known {
            self.stage_piece(stage);
            let before = match self.base {
                Base::Pieces { body, length } if number * PIECE_BYTES < length => {
                    stage.volume().piece(self.fid, body, number)?
                }
                _ => None,
            };
            let hides = before
                .as_ref()
                .is_some_and(|before| before.piece != Piece::Gone);
            let before = before.map_or_else(PieceBlocks::empty, |old| old.piece.into_blocks());
            fresh = Some(Work {
                number,
                hides,
                blocks: before.clone(),
                before,
            });
        }
        match &mut self.form {
            Form::Blocks(blocks) => match fresh {
                Some(work) => Ok(blocks.piece.insert(work)),
                None => blocks.piece.as_mut().ok_or(Error::Invalid("no piece")),
            },
            Form::Small(_) => Err(Error::Invalid("a small file has no pieces")),
        }
    }

    /// Stages the piece that was changed.
    fn stage_piece(&mut self, stage: &mut Stage) {
        let Form::Blocks(blocks) = &mut self.form else {
            return;
        };
        let Some(work) = blocks.piece.take() else {
            return;
        };
        if work.blocks == work.before {
            return;
        }
        let vnode = self.fid.vnode.0;
        if !work.blocks.is_empty() {
            blocks.any = true;
            let value = Piece::Blocks(work.blocks).encode();
            stage.put_piece(vnode, self.body, work.number, value);
        } else if work.hides {
            stage.put_piece(vnode, self.body, work.number, Piece::Gone.encode());
        }
    }

    /// Stages the rest. All bytes must have come.
    pub(super) fn end(mut self, stage: &mut Stage) -> Result<Body> {
        if self.position != self.length {
            return Err(Error::Invalid("bytes of a file are missing"));
        }
        if let Form::Small(bytes) = &self.form {
            if bytes.iter().all(|&byte| byte == 0) {
                return Ok(Body::None);
            }
            let value = Piece::encode_inline(bytes);
            stage.put_piece(self.fid.vnode.0, self.body, 0, value);
            let epoch = stage.now();
            return Ok(Body::Inline { epoch });
        }
        self.end_last_block(stage)?;
        self.cut(stage)?;
        self.stage_piece(stage);
        let any = matches!(&self.form, Form::Blocks(blocks) if blocks.any);
        match self.base {
            Base::Pieces { .. } => Ok(Body::Pieces),
            _ if any => Ok(Body::Pieces),
            _ => Ok(Body::None),
        }
    }

    /// Fills the last block behind the end of the file with zeros.
    fn end_last_block(&mut self, stage: &mut Stage) -> Result<()> {
        let inside = (self.length % BLOCK as u64) as usize;
        let cuts = matches!(self.base, Base::Pieces { length, .. } if length > self.length);
        let Form::Blocks(blocks) = &self.form else {
            return Ok(());
        };
        if inside > 0 && (cuts || !blocks.pending.is_empty()) {
            self.begin_block(stage)?;
            if let Form::Blocks(blocks) = &mut self.form {
                let whole = blocks.pending.len().next_multiple_of(BLOCK);
                blocks.pending.resize(whole, 0);
            }
        }
        self.write_pending(stage)
    }

    /// Removes the blocks of a patched file behind its new end.
    fn cut(&mut self, stage: &mut Stage) -> Result<()> {
        let Base::Pieces { length, .. } = self.base else {
            return Ok(());
        };
        let first = self.length.div_ceil(BLOCK as u64);
        self.clear_blocks(stage, first, length.div_ceil(BLOCK as u64))
    }
}
