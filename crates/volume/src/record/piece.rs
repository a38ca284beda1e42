//! The record of a piece of a body: either bytes, or the blocks that hold them.
//!
//! A piece of a file is 64 blocks of 4 KiB. Its record has for each block its location and its
//! checksum; a block without a location is a hole. A write makes a new record, which names new
//! blocks for the written part and the old blocks for the rest. So versions share the blocks that
//! they have in common. The versions that name a block are always consecutive.
//!
//! The checksum also covers group, vnode and block number. So a block that was written to or read
//! from a wrong place is noticed, too.
//!
//! The record also has the epoch in which each block was written. So the blocks that changed since
//! an earlier state are known exactly, even if that state's versions are gone.

use bytes::Bytes;

use super::{Fields, PutFields};
use crate::engine::batch::Run;
use crate::engine::space::{BLOCK_BYTES, with_checksum};
use crate::error::Result;

/// Bytes of a block.
pub(crate) const BLOCK: usize = BLOCK_BYTES as usize;
/// Blocks of a piece.
pub(crate) const PIECE_BLOCKS: usize = 64;
/// Bytes of a piece: 256 KiB.
pub(crate) const PIECE_BYTES: u64 = PIECE_BLOCKS as u64 * BLOCK_BYTES;

const FORM_GONE: u8 = 0;
const FORM_INLINE: u8 = 1;
const FORM_BLOCKS: u8 = 2;

/// The location of a block, the checksum of its bytes, and the epoch in which they were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRef {
    pub(crate) block: u64,
    pub(crate) checksum: u32,
    /// The epoch in which it was written.
    pub(crate) epoch: u64,
}

/// The blocks of a piece.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PieceBlocks(pub(crate) Box<[Option<BlockRef>; PIECE_BLOCKS]>);

/// The contents of a piece record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// From this epoch on the piece does not exist.
    Gone,
    /// These bytes, followed by zeros.
    Inline(Bytes),
    /// These blocks.
    Blocks(PieceBlocks),
}

/// The checksum of a block's bytes, which also covers its place.
pub(crate) fn block_checksum(group: u32, vnode: u32, index: u64, bytes: &[u8]) -> u32 {
    let mut place = [0; 16];
    place[..4].copy_from_slice(&group.to_be_bytes());
    place[4..8].copy_from_slice(&vnode.to_be_bytes());
    place[8..].copy_from_slice(&index.to_be_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&place), bytes)
}

impl std::fmt::Debug for PieceBlocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.runs()).finish()
    }
}

impl PieceBlocks {
    pub(crate) fn empty() -> Self {
        Self(Box::new([None; PIECE_BLOCKS]))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// The blocks in runs, each with the place in the piece at which it begins.
    pub(crate) fn runs(&self) -> Vec<(usize, Run)> {
        let mut runs: Vec<(usize, Run)> = Vec::new();
        for (place, slot) in self.0.iter().enumerate() {
            let Some(slot) = slot else { continue };
            match runs.last_mut() {
                Some((first, run))
                    if run.end() == slot.block && *first + run.count as usize == place =>
                {
                    run.count += 1;
                }
                _ => runs.push((
                    place,
                    Run {
                        start: slot.block,
                        count: 1,
                    },
                )),
            }
        }
        runs
    }

    /// The block at a place, if there is one.
    fn slot(&self, place: usize) -> Option<BlockRef> {
        self.0.get(place).copied().flatten()
    }

    /// Like [`Self::runs`], but also split where the epochs of the blocks differ. Each run comes
    /// with its epoch.
    fn spans(&self) -> Vec<(usize, Run, u64)> {
        let mut spans: Vec<(usize, Run, u64)> = Vec::new();
        for (place, run) in self.runs() {
            for offset in 0..run.count {
                let at = place + offset as usize;
                let epoch = self.slot(at).map_or(0, |slot| slot.epoch);
                match spans.last_mut() {
                    Some((_, span, same)) if offset > 0 && *same == epoch => span.count += 1,
                    _ => {
                        let start = run.start + u64::from(offset);
                        spans.push((at, Run { start, count: 1 }, epoch));
                    }
                }
            }
        }
        spans
    }

    /// The blocks that are named here and in none of the others.
    pub(crate) fn minus(&self, others: &[&Self]) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (place, slot) in self.0.iter().enumerate() {
            let Some(slot) = slot else { continue };
            // A block keeps its place in the file, so it can only be at the same place.
            let shared = others.iter().any(|other| {
                other
                    .slot(place)
                    .is_some_and(|same| same.block == slot.block)
            });
            if shared {
                continue;
            }
            match runs.last_mut() {
                Some(run) if run.end() == slot.block => run.count += 1,
                _ => runs.push(Run {
                    start: slot.block,
                    count: 1,
                }),
            }
        }
        runs
    }
}

impl Piece {
    pub(crate) fn encode(&self) -> Bytes {
        match self {
            Self::Gone => with_checksum(vec![FORM_GONE]),
            Self::Inline(bytes) => Self::encode_inline(bytes),
            Self::Blocks(blocks) => {
                let spans = blocks.spans();
                let mut out = Vec::with_capacity(2 + spans.len() * 18 + PIECE_BLOCKS * 4 + 4);
                out.put_u8(FORM_BLOCKS);
                out.put_u8(spans.len() as u8);
                for (place, run, epoch) in &spans {
                    out.put_u8(*place as u8);
                    out.put_u8(run.count as u8);
                    out.put_u64(run.start);
                    out.put_u64(*epoch);
                }
                for slot in blocks.0.iter().flatten() {
                    out.put_u32(slot.checksum);
                }
                with_checksum(out)
            }
        }
    }

    /// Encodes a record that holds these bytes.
    pub(crate) fn encode_inline(bytes: &[u8]) -> Bytes {
        Self::encode_inline_parts(&[bytes])
    }

    /// Like [`Self::encode_inline`], for bytes in several consecutive parts.
    pub(crate) fn encode_inline_parts<T: AsRef<[u8]>>(parts: &[T]) -> Bytes {
        let length: usize = parts.iter().map(|part| part.as_ref().len()).sum();
        let mut out = Vec::with_capacity(length + 5);
        out.put_u8(FORM_INLINE);
        for part in parts {
            out.extend_from_slice(part.as_ref());
        }
        with_checksum(out)
    }

    pub(crate) fn decode(value: &Bytes) -> Result<Self> {
        let mut fields = Fields::of(value, "piece")?;
        match fields.u8()? {
            FORM_GONE => Ok(Self::Gone),
            FORM_INLINE => Ok(Self::Inline(fields.rest())),
            FORM_BLOCKS => {
                let mut blocks = PieceBlocks::empty();
                let count = fields.u8()?;
                let mut places = Vec::with_capacity(PIECE_BLOCKS);
                for _ in 0..count {
                    let (place, length) = (fields.u8()? as usize, fields.u8()? as usize);
                    let (start, epoch) = (fields.u64()?, fields.u64()?);
                    if place + length > PIECE_BLOCKS {
                        return Err(fields.malformed());
                    }
                    places.extend((0..length).map(|n| (place + n, start + n as u64, epoch)));
                }
                for (place, block, epoch) in places {
                    let checksum = fields.u32()?;
                    let slot = blocks.0.get_mut(place);
                    *slot.ok_or_else(|| fields.malformed())? = Some(BlockRef {
                        block,
                        checksum,
                        epoch,
                    });
                }
                Ok(Self::Blocks(blocks))
            }
            _ => Err(fields.malformed()),
        }
    }

    /// The blocks it names, if it has that form.
    pub(crate) fn blocks(&self) -> Option<&PieceBlocks> {
        match self {
            Self::Blocks(blocks) => Some(blocks),
            _ => None,
        }
    }

    /// The blocks it names; none for the other forms.
    pub(crate) fn into_blocks(self) -> PieceBlocks {
        match self {
            Self::Blocks(blocks) => blocks,
            _ => PieceBlocks::empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_back_and_sharing_is_seen() {
        let mut blocks = PieceBlocks::empty();
        for (place, block, epoch) in [(0, 100, 4), (1, 101, 9), (2, 102, 9), (5, 7, 4), (63, 8, 1)]
        {
            blocks.0[place] = Some(BlockRef {
                block,
                checksum: block as u32 * 3,
                epoch,
            });
        }
        assert_eq!((blocks.runs().len(), blocks.spans().len()), (3, 4));
        let piece = Piece::Blocks(blocks.clone());
        assert_eq!(Piece::decode(&piece.encode()).unwrap(), piece);
        let mut newer = blocks.clone();
        newer.0[1] = Some(BlockRef {
            block: 200,
            checksum: 0,
            epoch: 10,
        });
        assert_eq!(
            blocks.minus(&[&newer]),
            [Run {
                start: 101,
                count: 1
            }]
        );
        for piece in [Piece::Gone, Piece::Inline(Bytes::from_static(b"abc"))] {
            assert_eq!(Piece::decode(&piece.encode()).unwrap(), piece);
        }
    }
}
