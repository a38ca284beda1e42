//! Reading deltas as their bytes arrive.

use bytes::{Buf, Bytes, BytesMut};
use cellar_xdr::{Decode, Decoder};

use super::{
    DeltaError, DeltaRetired, DeltaVnode, FRAME_HEAD, FRAME_MAX, Item, MAGIC, TAG_BORROWED,
    TAG_COPIES, TAG_DATA, TAG_END, TAG_KEEP, TAG_LAYOUT, TAG_ORIGIN, TAG_POLICY, TAG_REMOVE,
    TAG_RETIRED, TAG_VNODE, TAG_WIPED, TAG_ZEROS, Totals,
};
use crate::dump::append;
use crate::ids::{Uniquifier, VnodeId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Magic,
    Frames,
    End,
}

/// Reads a delta that is fed in pieces of any size.
#[derive(Debug)]
pub struct Reader {
    buffer: BytesMut,
    /// The unread items of a frame whose checksum was right.
    frame: Bytes,
    state: State,
    chain: u32,
    totals: Totals,
    /// The lowest offset at which contents of the last vnode may continue, and their end.
    place: Option<(u64, u64)>,
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

impl Reader {
    /// A reader at the beginning of a delta.
    #[must_use]
    pub fn new() -> Self {
        Self {
            buffer: BytesMut::new(),
            frame: Bytes::new(),
            state: State::Magic,
            chain: crc32c::crc32c(&MAGIC),
            totals: Totals::default(),
            place: None,
        }
    }

    /// Adds bytes. The caller should take the items out before it feeds more, else they accumulate.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Adds bytes. They are not copied if the buffer is empty and `bytes` has no other owner.
    pub fn feed_owned(&mut self, bytes: Bytes) {
        append(&mut self.buffer, bytes);
    }

    /// The next item; `None` when more bytes are needed, or after the end.
    ///
    /// # Errors
    /// [`DeltaError`]. The reader cannot be used after an error.
    pub fn next_item(&mut self) -> Result<Option<Item>, DeltaError> {
        while self.frame.is_empty() {
            if !self.next_frame()? {
                return Ok(None);
            }
        }
        let item = self.item()?;
        if !matches!(item, Item::End(_)) {
            self.totals.items += 1;
        }
        Ok(Some(item))
    }

    /// Declares that no more bytes come.
    ///
    /// # Errors
    /// [`DeltaError::Truncated`] if the end of the delta was not read.
    pub fn finish(&self) -> Result<(), DeltaError> {
        match self.state {
            State::End if self.buffer.is_empty() => Ok(()),
            State::End => Err(DeltaError::Surplus),
            _ => Err(DeltaError::Truncated),
        }
    }

    /// Takes the next frame from the buffer. Returns false if the frame is not complete yet.
    fn next_frame(&mut self) -> Result<bool, DeltaError> {
        if self.state == State::End && !self.buffer.is_empty() {
            return Err(DeltaError::Surplus);
        }
        if self.state == State::Magic {
            if self.buffer.len() < MAGIC.len() {
                return Ok(false);
            }
            if !self.buffer.starts_with(&MAGIC) {
                return Err(DeltaError::Magic);
            }
            self.buffer.advance(MAGIC.len());
            self.state = State::Frames;
        }
        let Some(([a, b, c, d, rest @ ..], _)) = self.buffer.split_first_chunk::<FRAME_HEAD>()
        else {
            return Ok(false);
        };
        let len = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        let checksum = u32::from_be_bytes(*rest);
        if len == 0 || len > FRAME_MAX {
            return Err(DeltaError::Length);
        }
        if self.buffer.len() < FRAME_HEAD + len {
            return Ok(false);
        }
        self.buffer.advance(FRAME_HEAD);
        let frame = self.buffer.split_to(len).freeze();
        self.chain = crc32c::crc32c_append(self.chain, &frame);
        if self.chain != checksum {
            return Err(DeltaError::Checksum);
        }
        self.frame = frame;
        Ok(true)
    }

    fn item(&mut self) -> Result<Item, DeltaError> {
        let tag = self.value::<u32>()?;
        Ok(match tag {
            TAG_VNODE => {
                let vnode = self.value::<DeltaVnode>()?;
                self.place = Some((0, vnode.length));
                Item::Vnode(Box::new(vnode))
            }
            TAG_DATA => self.data()?,
            TAG_ZEROS => {
                let [offset, len] = self.value::<[u64; 2]>()?;
                if len == 0 {
                    return Err(DeltaError::Form);
                }
                self.pass(offset, len)?;
                Item::Zeros(offset, len)
            }
            TAG_KEEP => {
                self.place = None;
                let [vnode, uniquifier] = self.value::<[u32; 2]>()?;
                Item::Keep(VnodeId(vnode), Uniquifier(uniquifier))
            }
            TAG_REMOVE => {
                self.place = None;
                Item::Remove(self.value()?)
            }
            TAG_ORIGIN => Item::Origin(self.value()?),
            TAG_BORROWED => Item::Borrowed,
            TAG_LAYOUT => {
                self.place = None;
                Item::Layout(Box::new(self.value()?))
            }
            TAG_COPIES => {
                self.place = None;
                Item::Copies(Box::new(self.value()?))
            }
            TAG_WIPED => {
                self.place = None;
                Item::Wiped(self.value()?)
            }
            TAG_POLICY => {
                self.place = None;
                Item::Policy(self.value()?)
            }
            TAG_RETIRED => {
                self.place = None;
                Item::Retired(Box::new(self.value::<DeltaRetired>()?))
            }
            TAG_END => {
                let totals = self.value::<Totals>()?;
                if totals != self.totals {
                    return Err(DeltaError::Totals);
                }
                if !self.frame.is_empty() {
                    return Err(DeltaError::Surplus);
                }
                self.state = State::End;
                Item::End(totals)
            }
            _ => return Err(DeltaError::Form),
        })
    }

    fn data(&mut self) -> Result<Item, DeltaError> {
        let offset = self.value::<u64>()?;
        let len = self.value::<u32>()? as usize;
        if len == 0 || len > self.frame.len() {
            return Err(DeltaError::Form);
        }
        self.pass(offset, len as u64)?;
        self.totals.bytes += len as u64;
        Ok(Item::Data(offset, self.frame.split_to(len)))
    }

    /// Checks that contents at `offset` with this length may follow, and advances the place.
    fn pass(&mut self, offset: u64, len: u64) -> Result<(), DeltaError> {
        let (from, to) = self.place.ok_or(DeltaError::Place)?;
        let end = offset.checked_add(len).ok_or(DeltaError::Place)?;
        if offset < from || end > to {
            return Err(DeltaError::Place);
        }
        self.place = Some((end, to));
        Ok(())
    }

    fn value<T: Decode>(&mut self) -> Result<T, DeltaError> {
        let mut decoder = Decoder::new(&self.frame);
        let value = T::decode(&mut decoder).map_err(|_| DeltaError::Form)?;
        let used = decoder.consumed();
        self.frame.advance(used);
        Ok(value)
    }
}
