//! Reading dumps as their bytes arrive.
//!
//! When more bytes arrive, the attributes of the current item are parsed from the first again. The
//! item is complete when the tag after its attributes is there. Repeating the parse is cheap
//! because an item has few attributes; more than [`ITEM_MAX`] bytes of them are refused. Contents
//! are passed on as they arrive.

use bytes::{Buf, Bytes, BytesMut};
use cellar_xdr::{Decode, Decoder, WordString};

use super::{
    BEGIN_MAGIC, DATES_MAX, DumpHeader, END_MAGIC, InObjects, Item, OBJECTS_FORM, TAG_CRITICAL,
    TAG_DUMP, TAG_END, TAG_ITEM_MAX, TAG_VNODE, TAG_VOLUME, VnodeAttributes, VnodeRecord,
    VolumeHeader,
};
use crate::ids::{AfsTime, Uniquifier, ViceId, VnodeId, VolumeId};

/// The most bytes of an item's attributes, unknown ones included.
const ITEM_MAX: usize = 64 * 1024;

/// Why bytes are not a dump. A restore fails with VOLSERREAD_DUMPERROR in all these cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DumpError {
    /// It does not begin or end like a dump.
    #[error("the dump has no magic number where it should begin or end")]
    Magic,
    /// An item is where it may not be.
    #[error("the dump has an item with tag {0} where none may be")]
    Order(u8),
    /// A critical attribute is not known here.
    #[error("the dump has an attribute {0:#04x} that must be understood")]
    Critical(u8),
    /// A tag is outside the scheme.
    #[error("the dump has a tag {0:#04x}")]
    Tag(u8),
    /// The attributes of an item are too long.
    #[error("the attributes of an item in the dump are too long")]
    TooLong,
    /// A head has no volume, no dates or too many dates.
    #[error("the head of the dump names no volume or no dates")]
    Head,
    /// A vnode has number 0, or attributes after its contents.
    #[error("the record of vnode {0} in the dump is not valid")]
    Vnode(VnodeId),
    /// The objects of a file are in a form of another program, or the file has contents as well.
    #[error("the objects of vnode {0} in the dump are not in a form known here")]
    Objects(VnodeId),
    /// There are bytes after the end.
    #[error("the dump goes on after its end")]
    Surplus,
    /// The bytes end before the dump does.
    #[error("the dump ends too early")]
    Truncated,
}

/// Ends a parse: more bytes are needed, or there is an error.
enum Stop {
    More,
    Error(DumpError),
}

impl From<DumpError> for Stop {
    fn from(error: DumpError) -> Self {
        Self::Error(error)
    }
}

/// The next part of the dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Dump,
    Volume,
    Items,
    Data {
        vnode: VnodeId,
        left: u64,
    },
    /// After contents: a second set of contents is dropped, other attributes are not allowed.
    AfterData {
        vnode: VnodeId,
    },
    Dropped {
        vnode: VnodeId,
        left: u64,
    },
    End,
}

/// Adds bytes to the buffer. They are not copied if the buffer is empty and `bytes` has no other
/// owner.
pub(crate) fn append(buffer: &mut BytesMut, bytes: Bytes) {
    if buffer.is_empty() {
        *buffer = bytes
            .try_into_mut()
            .unwrap_or_else(|bytes| bytes[..].into());
    } else {
        buffer.extend_from_slice(&bytes);
    }
}

/// Reads a dump that is fed in pieces of any size.
#[derive(Debug)]
pub struct Reader {
    buffer: BytesMut,
    state: State,
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

impl Reader {
    /// A reader at the beginning of a dump.
    pub fn new() -> Self {
        Self {
            buffer: BytesMut::new(),
            state: State::Dump,
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
    /// [`DumpError`]. The reader cannot be used after an error.
    pub fn next_item(&mut self) -> Result<Option<Item>, DumpError> {
        loop {
            match self.step() {
                Ok(Some(item)) => return Ok(Some(item)),
                Ok(None) => {}
                Err(Stop::Error(error)) => return Err(error),
                Err(Stop::More) if self.buffer.len() > ITEM_MAX => return Err(DumpError::TooLong),
                Err(Stop::More) => return Ok(None),
            }
        }
    }

    /// Declares that no more bytes come.
    ///
    /// # Errors
    /// [`DumpError::Truncated`] if the end of the dump was not read.
    pub fn finish(&self) -> Result<(), DumpError> {
        match self.state {
            State::End if self.buffer.is_empty() => Ok(()),
            State::End => Err(DumpError::Surplus),
            _ => Err(DumpError::Truncated),
        }
    }

    fn step(&mut self) -> Result<Option<Item>, Stop> {
        match self.state {
            State::Dump => self.item(|tag| tag == TAG_DUMP),
            State::Volume => self.item(|tag| tag == TAG_VOLUME),
            State::Items => self.item(|tag| matches!(tag, TAG_VOLUME | TAG_VNODE | TAG_END)),
            State::Data { vnode, left: 0 } | State::Dropped { vnode, left: 0 } => {
                self.state = State::AfterData { vnode };
                Ok(None)
            }
            State::Data { vnode, left } => {
                let piece = self.piece(left)?;
                self.state = State::Data {
                    vnode,
                    left: left - piece.len() as u64,
                };
                Ok(Some(Item::Data(piece)))
            }
            State::Dropped { vnode, left } => {
                let piece = self.piece(left)?;
                self.state = State::Dropped {
                    vnode,
                    left: left - piece.len() as u64,
                };
                Ok(None)
            }
            State::AfterData { vnode } => self.after_data(vnode),
            State::End if self.buffer.is_empty() => Err(Stop::More),
            State::End => Err(DumpError::Surplus.into()),
        }
    }

    fn piece(&mut self, left: u64) -> Result<Bytes, Stop> {
        let len = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(self.buffer.len());
        if len == 0 {
            Err(Stop::More)
        } else {
            Ok(self.buffer.split_to(len).freeze())
        }
    }

    /// Parses an item. Takes bytes from the buffer only when the item is complete.
    fn item(&mut self, may_be: fn(u8) -> bool) -> Result<Option<Item>, Stop> {
        let mut cursor = Cursor::new(&self.buffer);
        let tag = cursor.byte()?;
        if !may_be(tag) {
            let error = if self.state == State::Dump {
                DumpError::Magic
            } else {
                DumpError::Order(tag)
            };
            return Err(error.into());
        }
        let (item, state) = match tag {
            TAG_DUMP => (cursor.dump_header()?, State::Volume),
            TAG_VOLUME => (
                Item::Volume(Box::new(cursor.volume_header()?)),
                State::Items,
            ),
            TAG_VNODE => cursor.vnode()?,
            _ if cursor.word()? == END_MAGIC => (Item::End, State::End),
            _ => return Err(DumpError::Magic.into()),
        };
        let consumed = cursor.position;
        if consumed > ITEM_MAX {
            return Err(DumpError::TooLong.into());
        }
        self.buffer.advance(consumed);
        self.state = state;
        Ok(Some(item))
    }

    fn after_data(&mut self, vnode: VnodeId) -> Result<Option<Item>, Stop> {
        let mut cursor = Cursor::new(&self.buffer);
        let tag = cursor.peek()?;
        self.state = match tag {
            ..=TAG_ITEM_MAX => State::Items,
            b'f' | b'h' => {
                cursor.byte()?;
                State::Dropped {
                    vnode,
                    left: cursor.length(tag)?,
                }
            }
            tag if VNODE_TAGS.contains(&tag) => return Err(DumpError::Vnode(vnode).into()),
            tag => {
                cursor.byte()?;
                cursor.skip_unknown(tag, VNODE_TAGS)?;
                State::AfterData { vnode }
            }
        };
        let consumed = cursor.position;
        self.buffer.advance(consumed);
        Ok(None)
    }
}

const DUMP_TAGS: &[u8] = b"vnt";
const VOLUME_TAGS: &[u8] = b"ivnsbutpcqmdfaoCAUEBOMWDZVy";
const VNODE_TAGS: &[u8] = b"tlvmaogbpsAfhdO";

/// A place in the buffered bytes.
struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Stop> {
        let end = self.position.checked_add(len).ok_or(DumpError::TooLong)?;
        let taken = self.bytes.get(self.position..end).ok_or(Stop::More)?;
        self.position = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn peek(&self) -> Result<u8, Stop> {
        self.bytes.get(self.position).copied().ok_or(Stop::More)
    }

    fn byte(&mut self) -> Result<u8, Stop> {
        self.array().map(|[byte]| byte)
    }

    fn half(&mut self) -> Result<u16, Stop> {
        self.array().map(u16::from_be_bytes)
    }

    fn word(&mut self) -> Result<u32, Stop> {
        self.array().map(u32::from_be_bytes)
    }

    fn time(&mut self) -> Result<AfsTime, Stop> {
        self.word().map(AfsTime)
    }

    fn id(&mut self) -> Result<ViceId, Stop> {
        self.word().map(|word| ViceId(word as i32))
    }

    /// The length of contents, after their tag.
    fn length(&mut self, tag: u8) -> Result<u64, Stop> {
        match tag {
            b'h' => self.array().map(u64::from_be_bytes),
            _ => self.word().map(u64::from),
        }
    }

    /// Text up to its NUL. Text over the limit is cut off, as in OpenAFS's reader.
    fn string<const N: usize>(&mut self) -> Result<WordString<N>, Stop> {
        let rest = self.bytes.get(self.position..).unwrap_or_default();
        let len = rest.iter().position(|&byte| byte == 0).ok_or(Stop::More)?;
        self.position += len + 1;
        let kept = rest
            .get(..len.min(WordString::<N>::LIMIT))
            .unwrap_or_default();
        WordString::new(kept).map_err(|_| DumpError::TooLong.into())
    }

    /// The tag of the next attribute; `None` if an item begins.
    fn attribute(&mut self) -> Result<Option<u8>, Stop> {
        let tag = self.peek()?;
        if tag <= TAG_ITEM_MAX {
            return Ok(None);
        }
        self.position += 1;
        Ok(Some(tag))
    }

    /// The length of an attribute whose value starts with its length.
    fn standard_length(&mut self) -> Result<usize, Stop> {
        match self.byte()? {
            short @ 0..=0x7f => Ok(usize::from(short)),
            long => {
                let bytes = self.take(usize::from(long & 0x7f))?;
                let length = bytes.iter().try_fold(0usize, |len, &byte| {
                    let longer = len.checked_mul(256)? + usize::from(byte);
                    (longer <= ITEM_MAX).then_some(longer)
                });
                Ok(length.ok_or(DumpError::TooLong)?)
            }
        }
    }

    /// The layout of a file in objects.
    fn in_objects(&mut self, vnode: VnodeId) -> Result<Box<InObjects>, Stop> {
        let length = self.standard_length()?;
        let bytes = self.take(length)?;
        let mut decoder = Decoder::new(bytes);
        let decoded = u32::decode(&mut decoder)
            .ok()
            .filter(|form| *form == OBJECTS_FORM)
            .and_then(|_| InObjects::decode(&mut decoder).ok())
            .filter(|_| decoder.remaining() == 0);
        Ok(Box::new(decoded.ok_or(DumpError::Objects(vnode))?))
    }

    /// Skips an attribute that this section does not know, by the range of its tag.
    fn skip_unknown(&mut self, tag: u8, known: &[u8]) -> Result<(), Stop> {
        let len = match tag {
            0x15..=0x60 => self.standard_length()?,
            0x61..=0x7a => 4,
            TAG_CRITICAL => {
                let next = self.peek()?;
                if next > TAG_ITEM_MAX && !known.contains(&next) {
                    return Err(DumpError::Critical(next).into());
                }
                0
            }
            0x7b..=0x7f => 0,
            _ => return Err(DumpError::Tag(tag).into()),
        };
        self.take(len).map(drop)
    }

    fn dump_header(&mut self) -> Result<Item, Stop> {
        if self.word()? != BEGIN_MAGIC {
            return Err(DumpError::Magic.into());
        }
        let _version = self.word()?;
        let mut header = DumpHeader::default();
        while let Some(tag) = self.attribute()? {
            match tag {
                b'v' => header.volume = VolumeId(self.word()?),
                b'n' => header.name = self.string()?,
                b't' => header.dates = self.dates()?,
                tag => self.skip_unknown(tag, DUMP_TAGS)?,
            }
        }
        if header.volume.0 == 0 || header.dates.is_empty() {
            return Err(DumpError::Head.into());
        }
        Ok(Item::Dump(header))
    }

    fn dates(&mut self) -> Result<Vec<(AfsTime, AfsTime)>, Stop> {
        let words = usize::from(self.half()?);
        if words > 2 * DATES_MAX || words % 2 != 0 {
            return Err(DumpError::Head.into());
        }
        (0..words / 2)
            .map(|_| Ok((self.time()?, self.time()?)))
            .collect()
    }

    fn volume_header(&mut self) -> Result<VolumeHeader, Stop> {
        let mut header = VolumeHeader::default();
        while let Some(tag) = self.attribute()? {
            match tag {
                b'i' => header.volume = VolumeId(self.word()?),
                b'v' => header.version = self.word()?,
                b'n' => header.name = self.string()?,
                b's' => header.in_service = self.byte()? != 0,
                b'b' => header.blessed = self.byte()? != 0,
                b'u' => header.uniquifier = self.word()?,
                b't' => header.volume_type = self.byte()?,
                b'p' => header.parent = VolumeId(self.word()?),
                b'c' => header.clone = VolumeId(self.word()?),
                b'q' => header.max_quota = self.word()?,
                b'm' => header.min_quota = self.word()?,
                b'd' => header.disk_used = self.word()?,
                b'f' => header.file_count = self.word()?,
                b'a' => header.account = self.word()?,
                b'o' => header.owner = self.word()?,
                b'C' => header.creation_date = self.time()?,
                b'A' => header.access_date = self.time()?,
                b'U' => header.update_date = self.time()?,
                b'E' => header.expiration_date = self.time()?,
                b'B' => header.backup_date = self.time()?,
                b'O' => header.offline_message = self.string()?,
                b'M' => header.message_of_the_day = self.string()?,
                b'W' => header.week_use = self.week_use()?,
                b'D' => header.day_use_date = self.time()?,
                b'Z' => header.day_use = self.word()?,
                // The counter of changes. OpenAFS never writes it; it is accepted and dropped.
                b'V' => drop(self.word()?),
                b'y' => header.policy = self.word()?,
                tag => self.skip_unknown(tag, VOLUME_TAGS)?,
            }
        }
        Ok(header)
    }

    /// Seven numbers; further ones are skipped.
    fn week_use(&mut self) -> Result<[u32; 7], Stop> {
        let mut uses = [0; 7];
        for index in 0..usize::from(self.half()?) {
            let word = self.word()?;
            if let Some(slot) = uses.get_mut(index) {
                *slot = word;
            }
        }
        Ok(uses)
    }

    fn vnode(&mut self) -> Result<(Item, State), Stop> {
        let vnode = VnodeId(self.word()?);
        let uniquifier = Uniquifier(self.word()?);
        if vnode.0 == 0 {
            return Err(DumpError::Vnode(vnode).into());
        }
        let mut attributes = VnodeAttributes::default();
        let (mut has_attributes, mut state) = (false, State::Items);
        while let Some(tag) = self.attribute()? {
            has_attributes |= VNODE_TAGS.contains(&tag);
            match tag {
                b't' => attributes.file_type = self.byte()?,
                b'l' => attributes.link_count = self.half()?,
                b'v' => attributes.data_version = self.word()?,
                b'm' => attributes.mod_time = self.time()?,
                b'a' => attributes.author = self.id()?,
                b'o' => attributes.owner = self.id()?,
                b'g' => attributes.group = self.id()?,
                b'b' => attributes.mode = self.half()?,
                b'p' => attributes.parent = VnodeId(self.word()?),
                b's' => attributes.server_mod_time = self.time()?,
                b'A' => attributes.access_list = Some(Box::new(self.array()?)),
                b'd' => attributes.policy = self.word()?,
                b'O' => attributes.objects = Some(self.in_objects(vnode)?),
                b'f' | b'h' if attributes.objects.is_some() => {
                    return Err(DumpError::Objects(vnode).into());
                }
                b'f' | b'h' => {
                    let left = self.length(tag)?;
                    attributes.data_length = Some(left);
                    state = State::Data { vnode, left };
                    break;
                }
                tag => self.skip_unknown(tag, VNODE_TAGS)?,
            }
        }
        let attributes = has_attributes.then_some(attributes);
        Ok((
            Item::Vnode(VnodeRecord {
                vnode,
                uniquifier,
                attributes,
            }),
            state,
        ))
    }
}
