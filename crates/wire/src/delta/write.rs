//! Writing deltas.

use bytes::{BufMut, Bytes, BytesMut};
use cellar_xdr::{Encode, Encoder};

use super::{
    DeltaRetired, DeltaVnode, FRAME_HEAD, FRAME_MAX, MAGIC, Origin, TAG_BORROWED, TAG_COPIES,
    TAG_DATA, TAG_END, TAG_KEEP, TAG_LAYOUT, TAG_ORIGIN, TAG_POLICY, TAG_REMOVE, TAG_RETIRED,
    TAG_VNODE, TAG_WIPED, TAG_ZEROS, Totals,
};
use crate::ids::{Uniquifier, VnodeId};
use crate::object::{ArchiveCopies, Layout, Wiped};

/// A frame is closed when it has this many bytes.
const FRAME_GOAL: usize = 256 << 10;
/// Contents up to this length are copied into the frame; longer contents are passed on without a
/// copy.
const COPIED: usize = 16 << 10;
/// The most contents in one item.
const DATA_MAX: usize = 1 << 20;

const _: () = assert!(FRAME_GOAL + DATA_MAX + COPIED < FRAME_MAX);

/// Writes a delta, item by item. The caller takes the bytes with [`Writer::take`] from time to
/// time.
#[derive(Debug)]
pub struct Writer {
    /// Frames that are closed.
    ready: Vec<Bytes>,
    /// Pieces of the open frame before `tail`.
    pieces: Vec<Bytes>,
    tail: BytesMut,
    /// Bytes of the open frame.
    len: usize,
    chain: u32,
    totals: Totals,
}

impl Default for Writer {
    fn default() -> Self {
        Self::new()
    }
}

impl Writer {
    /// A writer at the beginning of a delta.
    #[must_use]
    pub fn new() -> Self {
        Self {
            ready: vec![Bytes::from_static(&MAGIC)],
            pieces: Vec::new(),
            tail: BytesMut::new(),
            len: 0,
            chain: crc32c::crc32c(&MAGIC),
            totals: Totals::default(),
        }
    }

    /// Writes a vnode that is new or has changed.
    pub fn vnode(&mut self, vnode: &DeltaVnode) {
        self.item(TAG_VNODE, vnode);
    }

    /// Writes contents of the last vnode from `offset` on.
    pub fn data(&mut self, mut offset: u64, mut bytes: Bytes) {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(DATA_MAX));
            let len = piece.len();
            self.tail.put_u32(TAG_DATA);
            self.tail.put_u64(offset);
            self.tail.put_u32(len as u32);
            if len <= COPIED {
                self.tail.extend_from_slice(&piece);
            } else {
                self.pieces.push(self.tail.split().freeze());
                self.pieces.push(piece);
            }
            self.len += 16 + len;
            self.totals.items += 1;
            self.totals.bytes += len as u64;
            offset += len as u64;
            self.close_if_full();
        }
    }

    /// Writes `len` zeros of the last vnode from `offset` on.
    pub fn zeros(&mut self, offset: u64, len: u64) {
        if len > 0 {
            self.item(TAG_ZEROS, &[offset, len]);
        }
    }

    /// Writes a vnode that did not change.
    pub fn keep(&mut self, vnode: VnodeId, uniquifier: Uniquifier) {
        self.item(TAG_KEEP, &[vnode.0, uniquifier.0]);
    }

    /// Writes the removal of a vnode of the base.
    pub fn remove(&mut self, vnode: VnodeId) {
        self.item(TAG_REMOVE, &vnode);
    }

    /// Writes the properties of a volume whose layouts are sent.
    pub fn origin(&mut self, origin: Origin) {
        self.item(TAG_ORIGIN, &origin);
    }

    /// Writes that the receiver, like the sender, may not write the objects of the layouts.
    pub fn borrowed(&mut self) {
        self.item(TAG_BORROWED, &[0_u32; 0]);
    }

    /// Writes that the next vnode is a file in these objects.
    pub fn layout(&mut self, layout: &Layout) {
        self.item(TAG_LAYOUT, layout);
    }

    /// Writes that the next vnode is a file with these copies in archives.
    pub fn copies(&mut self, copies: &ArchiveCopies) {
        self.item(TAG_COPIES, copies);
    }

    /// Writes that only archives have the contents of the next vnode, whose copies were written.
    pub fn wiped(&mut self, wiped: &Wiped) {
        self.item(TAG_WIPED, wiped);
    }

    /// Writes that the next vnode is a directory with this policy.
    pub fn policy(&mut self, policy: u32) {
        self.item(TAG_POLICY, &policy);
    }

    /// Writes a removed file whose copies in archives are kept.
    pub fn retired(&mut self, file: &DeltaRetired) {
        self.item(TAG_RETIRED, file);
    }

    /// Writes the end. Items written after it make the delta invalid.
    pub fn end(&mut self) {
        let totals = self.totals;
        self.item(TAG_END, &totals);
        self.close();
    }

    /// Returns the closed frames, in pieces.
    pub fn take(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.ready)
    }

    fn item<T: Encode>(&mut self, tag: u32, item: &T) {
        let before = self.tail.len();
        self.tail.put_u32(tag);
        item.encode(&mut Encoder::new(&mut self.tail));
        self.len += self.tail.len() - before;
        self.totals.items += 1;
        self.close_if_full();
    }

    fn close_if_full(&mut self) {
        if self.len >= FRAME_GOAL {
            self.close();
        }
    }

    fn close(&mut self) {
        if self.len == 0 {
            return;
        }
        if !self.tail.is_empty() {
            self.pieces.push(self.tail.split().freeze());
        }
        for piece in &self.pieces {
            self.chain = crc32c::crc32c_append(self.chain, piece);
        }
        let mut head = BytesMut::with_capacity(FRAME_HEAD);
        head.put_u32(self.len as u32);
        head.put_u32(self.chain);
        self.ready.push(head.freeze());
        self.ready.append(&mut self.pieces);
        self.len = 0;
    }
}
