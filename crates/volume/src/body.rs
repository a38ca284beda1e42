//! Reading the bytes of vnodes, with every block compared with its checksum.
//!
//! If a block does not match its checksum, or the device cannot read it, that is an I/O error of
//! this file alone. It is logged with the fid and counted; the bytes are never returned as data.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use cellar_wire::dir::PAGE_SIZE;
use cellar_wire::ids::Fid;

use crate::dir::DirImage;
use crate::engine::blocks::{self, CacheMode, Owner, ReadFailure};
use crate::engine::key::Key;
use crate::engine::memory::Memory;
use crate::engine::space::Pin;
use crate::error::{Error, Result};
use crate::operations::txn::OldPiece;
use crate::pieces::PieceName;
use crate::record::{BLOCK, Body, PIECE_BLOCKS, PIECE_BYTES, Piece, PieceBlocks, VnodeRecord};
use crate::state::vnode_slots::Loaded;
use crate::types::{FileType, VnodeStatus};
use crate::volume::Volume;

/// A body that is read piece by piece, all of one version.
///
/// It holds no lock between pieces: a slow client does not delay others, and a store meanwhile is
/// not visible to it. Until it is dropped, the blocks that it may still read are not reused. Only
/// ranges of more than 64 MiB are not held together. If a store changes such a file meanwhile,
/// [`Reader::next`] returns [`Error::Changed`] instead of mixing two versions.
pub struct Reader {
    volume: Arc<Volume>,
    status: VnodeStatus,
    position: u64,
    end: u64,
    start: u64,
    source: Source,
}

/// Pieces with their numbers.
type HeldPieces = Vec<(u64, Arc<Piece>)>;

/// The source of a reader's bytes.
enum Source {
    /// In memory, from the start of the range on.
    Bytes(Bytes),
    /// In these pieces.
    Pieces(
        HeldPieces,
        #[expect(dead_code, reason = "held for its drop")] Pin,
    ),
    /// Read from the file at each call.
    Live,
}

/// How often a reader begins again because the file changed just then.
const VERSION_TRIES: usize = 100;
/// The most pieces that a reader holds at once.
const READER_PIECES_MAX: u64 = 256;

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Reader({}, {} of {}..{})",
            self.status.fid, self.position, self.start, self.end
        )
    }
}

impl Reader {
    /// The status of the version that is read.
    pub fn status(&self) -> &VnodeStatus {
        &self.status
    }

    /// Number of bytes in all.
    pub fn length(&self) -> u64 {
        self.end - self.start
    }

    /// Returns the next bytes, up to `max` of them; `None` after the last.
    ///
    /// After `Error::WouldBlock` the same call can be made again.
    pub fn next(&mut self, max: usize) -> Result<Option<Bytes>> {
        let left = self.end - self.position;
        if left == 0 || max == 0 {
            return Ok(None);
        }
        let fid = self.status.fid;
        let length = left.min(max as u64) as usize;
        let bytes = match &self.source {
            Source::Bytes(bytes) => {
                let from = (self.position - self.start) as usize;
                bytes.slice(from..from + length)
            }
            Source::Pieces(pieces, _) => {
                self.volume
                    .read_loaded(fid, pieces, self.position, length)?
            }
            Source::Live => {
                let (bytes, version) = self.volume.read_version(fid, self.position, length)?;
                if version != self.status.data_version || bytes.len() != length {
                    return Err(Error::Changed(fid));
                }
                bytes
            }
        };
        self.position += length as u64;
        Ok(Some(bytes))
    }
}

impl Volume {
    /// Reads up to `length` bytes at `position`, fewer at the end, all of one version. Reads the
    /// bytes of a file, the pages of a directory, or the target of a link.
    pub fn read(&self, fid: Fid, position: u64, length: usize) -> Result<Bytes> {
        Ok(self.read_version(fid, position, length)?.0)
    }

    /// Begins to read up to `length` bytes at `position`.
    pub fn read_file(self: &Arc<Self>, fid: Fid, position: u64, length: u64) -> Result<Reader> {
        self.check_fid(fid)?;
        let space = &self.core.engine.space;
        for _ in 0..VERSION_TRIES {
            let status = self.status(fid)?;
            let start = position.min(status.length);
            let end = start.saturating_add(length).min(status.length);
            let pieces = end.div_ceil(PIECE_BYTES) - start / PIECE_BYTES;
            let source = if start == end {
                Source::Bytes(Bytes::new())
            } else if pieces > READER_PIECES_MAX {
                self.check_not_in_objects(fid)?;
                Source::Live
            } else {
                let pin = space.pin();
                match self.reader_pieces(fid, &status, start, end)? {
                    Some(pieces) => Source::Pieces(pieces, pin),
                    None => {
                        let length = (end - start) as usize;
                        let (bytes, version) = self.read_version(fid, start, length)?;
                        if version != status.data_version || bytes.len() != length {
                            continue;
                        }
                        Source::Bytes(bytes)
                    }
                }
            };
            let volume = Arc::clone(self);
            return Ok(Reader {
                volume,
                status,
                position: start,
                end,
                start,
                source,
            });
        }
        Err(Error::Changed(fid))
    }

    /// Checks that the bytes of a file are not in objects.
    fn check_not_in_objects(&self, fid: Fid) -> Result<()> {
        let slot = self.slot(fid.vnode);
        match self.read_guard(&slot, fid)?.record.body {
            Body::Objects => Err(Error::InObjects(fid)),
            Body::Archived(_) => Err(Error::Archived(fid)),
            _ => Ok(()),
        }
    }

    /// The pieces of a range of a file, if the file has blocks and is still of that version.
    fn reader_pieces(
        &self,
        fid: Fid,
        status: &VnodeStatus,
        start: u64,
        end: u64,
    ) -> Result<Option<HeldPieces>> {
        if status.kind != FileType::File {
            return Ok(None);
        }
        let slot = self.slot(fid.vnode);
        let loaded = self.read_guard(&slot, fid)?;
        match loaded.record.body {
            Body::Objects => return Err(Error::InObjects(fid)),
            Body::Archived(_) => return Err(Error::Archived(fid)),
            Body::None | Body::Inline { .. } | Body::Pieces => {}
        }
        if loaded.record.body != Body::Pieces || loaded.record.data_version != status.data_version {
            return Ok(None);
        }
        self.load_pieces(fid, &loaded.record, start, end).map(Some)
    }

    fn read_version(&self, fid: Fid, position: u64, length: usize) -> Result<(Bytes, u64)> {
        self.check_fid(fid)?;
        if fid.vnode.is_directory() {
            return self.with_dir(fid, |loaded, image| {
                let range = clip(position, length, loaded.record.length);
                Ok((
                    read_pages(image, range.0, range.1),
                    loaded.record.data_version,
                ))
            });
        }
        let slot = self.slot(fid.vnode);
        let loaded = self.read_guard(&slot, fid)?;
        let version = loaded.record.data_version;
        let (position, length) = clip(position, length, loaded.record.length);
        if length == 0 {
            return Ok((Bytes::new(), version));
        }
        if loaded.record.kind == FileType::Symlink {
            let from = (position as usize).min(loaded.record.target.len());
            let to = (from + length).min(loaded.record.target.len());
            return Ok((loaded.record.target.slice(from..to), version));
        }
        match loaded.record.body {
            Body::Objects => Err(Error::InObjects(fid)),
            Body::Archived(_) => Err(Error::Archived(fid)),
            Body::None => Ok((BytesMut::zeroed(length).freeze(), version)),
            Body::Inline { .. } => {
                if let Some(body) = &loaded.body {
                    return Ok((padded_slice(body, position, length), version));
                }
                drop(loaded);
                let mut locked = self.lock(&slot, fid)?;
                let loaded = locked.get_mut(fid)?;
                let Body::Inline { .. } = loaded.record.body else {
                    drop(locked);
                    return self.read_version(fid, position, length);
                };
                let body = self.inline_body(fid, loaded)?;
                let (position, length) = clip(position, length, loaded.record.length);
                Ok((
                    padded_slice(&body, position, length),
                    loaded.record.data_version,
                ))
            }
            Body::Pieces => {
                let _pin = self.core.engine.space.pin();
                let end = position + length as u64;
                let pieces = self.load_pieces(fid, &loaded.record, position, end)?;
                Ok((self.read_loaded(fid, &pieces, position, length)?, version))
            }
        }
    }

    /// The bytes of an inline body. The slot keeps them from now on.
    pub(crate) fn inline_body(&self, fid: Fid, loaded: &mut Loaded) -> Result<Bytes> {
        if let Some(body) = &loaded.body {
            return Ok(body.clone());
        }
        let Body::Inline { epoch } = loaded.record.body else {
            return Ok(Bytes::new());
        };
        let key = Key::piece(
            self.group.id.0,
            fid.vnode.0,
            loaded.record.body_number,
            0,
            epoch,
        );
        let value = self.core.engine.get(&key);
        let value = value.map_err(|error| self.unreadable(fid, error))?;
        let piece = match &value {
            Some(value) => Piece::decode(value),
            None => Err(Error::Format("its bytes are missing".into())),
        };
        match piece {
            Ok(Piece::Inline(bytes)) => {
                loaded.body = Some(bytes.clone());
                loaded.recharge();
                Ok(bytes)
            }
            Ok(_) => Err(self.damaged(fid, "its bytes are missing")),
            Err(error) => Err(self.damaged(fid, &error.to_string())),
        }
    }

    /// The present version of a piece in this volume's view.
    pub(crate) fn piece(&self, fid: Fid, body: u32, number: u64) -> Result<Option<OldPiece>> {
        let (group, vnode) = (self.group.id.0, fid.vnode.0);
        let prefix = Key::piece_prefix(group, vnode, body, number);
        let found = self.newest(&prefix, |view| Key::piece(group, vnode, body, number, view));
        let Some((key, value)) = found.map_err(|error| self.unreadable(fid, error))? else {
            return Ok(None);
        };
        match Piece::decode(&value) {
            Ok(piece) => Ok(Some(OldPiece {
                epoch: key.epoch(),
                piece,
            })),
            Err(error) => Err(self.damaged(fid, &error.to_string())),
        }
    }

    /// Numbers of the pieces that have any version.
    pub(crate) fn piece_numbers(&self, fid: Fid, body: u32) -> Result<Vec<u64>> {
        let prefix = Key::body_prefix(self.group.id.0, fid.vnode.0, body);
        let mut scan = self.core.engine.scan(&prefix, &prefix)?;
        let mut numbers = Vec::new();
        while let Some((key, _)) = scan.next()? {
            if numbers.last() != Some(&key.piece_number()) {
                numbers.push(key.piece_number());
            }
        }
        self.check_not_deleted()?;
        Ok(numbers)
    }

    /// The pieces that hold a range of a file. `record` is the file's present record.
    fn load_pieces(
        &self,
        fid: Fid,
        record: &VnodeRecord,
        start: u64,
        end: u64,
    ) -> Result<HeldPieces> {
        let cache = &self.core.pieces;
        let mut pieces = HeldPieces::new();
        for number in start / PIECE_BYTES..end.div_ceil(PIECE_BYTES) {
            let name = PieceName {
                instance: self.instance(),
                vnode: fid.vnode.0,
                data_version: record.data_version,
                number,
            };
            let piece = match cache.get(&name) {
                Some(piece) => piece,
                None => {
                    let found = self.piece(fid, record.body_number, number)?;
                    let piece = Arc::new(found.map_or(Piece::Gone, |old| old.piece));
                    cache.put(name, Arc::clone(&piece));
                    piece
                }
            };
            pieces.push((number, piece));
        }
        Ok(pieces)
    }

    /// Reads a range of a body from pieces.
    fn read_loaded(
        &self,
        fid: Fid,
        pieces: &[(u64, Arc<Piece>)],
        position: u64,
        length: usize,
    ) -> Result<Bytes> {
        let end = position + length as u64;
        let first_block = position / BLOCK as u64;
        let blocks = (end.div_ceil(BLOCK as u64) - first_block) as usize;
        let mut memory = Memory::take(blocks * BLOCK);
        let named = pieces
            .iter()
            .filter_map(|(number, piece)| Some((*number, piece.blocks()?)));
        if !blocks::are_whole(named.clone(), first_block, blocks) {
            memory.zero();
        }
        let buffer = memory.bytes_mut();
        for (number, blocks) in named {
            let base = number * PIECE_BLOCKS as u64;
            self.read_blocks(fid, blocks, base, first_block, buffer)?;
        }
        let skip = (position - first_block * BLOCK as u64) as usize;
        Ok(memory.freeze(skip..skip + length))
    }

    /// Reads the blocks of a piece that fall into a buffer. The buffer begins at block `first` of
    /// the file.
    pub(crate) fn read_blocks(
        &self,
        fid: Fid,
        pieces: &PieceBlocks,
        base: u64,
        first: u64,
        buffer: &mut [u8],
    ) -> Result<()> {
        let owner = Owner::vnode(self.group.id.0, fid.vnode.0);
        let engine = &self.core.engine;
        let read = blocks::read_blocks(
            engine,
            owner,
            pieces,
            base,
            first,
            buffer,
            CacheMode::Cached,
        );
        read.map_err(|unread| match unread {
            ReadFailure::WouldBlock => Error::WouldBlock,
            ReadFailure::Damaged(cause) => self.damaged(fid, &cause),
        })
    }

    /// Reads one block of a body; zeros if it is a hole.
    pub(crate) fn read_block(&self, fid: Fid, piece: &PieceBlocks, index: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; BLOCK];
        let base = index / PIECE_BLOCKS as u64 * PIECE_BLOCKS as u64;
        self.read_blocks(fid, piece, base, index, &mut bytes)?;
        Ok(bytes)
    }
}

/// The part of a range that lies within a body of `body` bytes.
fn clip(position: u64, length: usize, body: u64) -> (u64, usize) {
    if position >= body {
        return (body, 0);
    }
    (position, (length as u64).min(body - position) as usize)
}

/// Bytes of a body that may be stored shorter than it is; zeros follow the stored bytes.
fn padded_slice(body: &Bytes, position: u64, length: usize) -> Bytes {
    let from = (position as usize).min(body.len());
    if from + length <= body.len() {
        return body.slice(from..from + length);
    }
    let mut bytes = BytesMut::with_capacity(length);
    bytes.extend_from_slice(&body[from..]);
    bytes.resize(length, 0);
    bytes.freeze()
}

fn read_pages(image: &DirImage, position: u64, length: usize) -> Bytes {
    let mut bytes = BytesMut::with_capacity(length);
    let mut at = position as usize;
    while bytes.len() < length {
        let Some(page) = image.page_bytes(at / PAGE_SIZE) else {
            break;
        };
        let inside = at % PAGE_SIZE;
        let count = (PAGE_SIZE - inside).min(length - bytes.len());
        bytes.extend_from_slice(&page[inside..inside + count]);
        at += count;
    }
    bytes.freeze()
}
