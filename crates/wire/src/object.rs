//! Objects: what a file that does not lie on its file server consists of, and who may touch it.
//!
//! 1. A file's bytes are spread over *objects* on object storage devices (OSDs) as its [`Layout`]
//!    says. The layout belongs to the vnode version: the file server owns the truth about which
//!    objects exist and who needs them; an OSD keeps bytes, checksums and the owner in the name.
//! 2. An object has *versions*. A store writes a new version of each object it touches and is made
//!    by one change of the vnode that names these versions: readers see all-old or all-new, across
//!    all objects, and what was begun and not finished is never seen. A clone copies the layout with
//!    its versions and asks no OSD anything; the next store leaves those versions alone.
//! 3. A version shares with the one it was made from what was not written. Which versions are
//!    needed is known to the file servers; they say so now and then (`Prune`).
//! 4. A [`Capability`] lets its holder do one kind of thing with one version of one object for a
//!    few minutes. The OSD needs no users for that, only the key that it shares with the servers
//!    of its cell.
//!
//! Ours; the historical `RXOSD` protocol is spoken by no client of today.

use cellar_xdr::{
    Decode, DecodeError, Decoder, Encode, Encoder, List, Opaque, xdr_enum, xdr_struct,
};

use crate::ids::{Uniquifier, VnodeId, VolumeId};

/// Stripes of a file, at most.
pub const STRIPES_MAX: u32 = 32;
/// Copies of each stripe, at most.
pub const COPIES_MAX: u32 = 4;
/// Parity objects of an erasure code, at most.
pub const PARITY_MAX: u32 = 8;
/// Objects of a file, at most: 32 stripes in 4 copies.
pub const OBJECTS_MAX: usize = 128;
/// Smallest unit of striping, in bytes. Units are powers of two.
pub const UNIT_MIN: u32 = 4 << 10;
/// Largest unit of striping, in bytes.
pub const UNIT_MAX: u32 = 16 << 20;
/// Bytes of a row of an erasure code (a unit of each data object), at most: whoever writes holds a row.
pub const ERASURE_ROW_MAX: u64 = 64 << 20;
/// Bytes of a sealed capability, at most.
pub const CAPABILITY_MAX: usize = 512;

xdr_struct! {
    /// The name of an object: the file it was made for, and which of its objects. No two objects of a
    /// cell ever have the same: `serial` is not given twice for one file.
    #[derive(Copy, Default, PartialOrd, Ord, Hash)]
    pub struct ObjectId {
        /// The RW volume of the file: the owner.
        pub volume: VolumeId,
        /// The file.
        pub vnode: VnodeId,
        /// Which use of that number.
        pub uniquifier: Uniquifier,
        /// Which object of the file, counted from 1 over its life.
        pub serial: u32,
    }

    /// Where an object of a layout is.
    #[derive(Copy, Default)]
    pub struct Placed {
        /// The number of its OSD.
        pub osd: u32,
        /// Which object.
        pub serial: u32,
        /// The version that belongs to this version of the file. 0: nothing was ever written to it, it
        /// is not there, and all of it is zeros.
        pub version: u64,
        /// It lacks writes (its OSD was away): nobody reads it before it is repaired.
        pub stale: bool,
    }
}

impl std::fmt::Display for ObjectId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (volume, vnode) = (self.volume.0, self.vnode.0);
        write!(f, "{volume}.{vnode}.{}.{}", self.uniquifier.0, self.serial)
    }
}

xdr_enum! {
    /// How bytes are spread.
    pub enum Scheme {
        /// `stripes` stripes, each in `copies` copies; one of each is a plain file.
        Striped = 1,
        /// `stripes` units of data and `copies` of parity: any `stripes` of them give the bytes back.
        Erasure = 2,
    }
}

/// What a layout looks like, before anything is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// How bytes are spread.
    pub scheme: Scheme,
    /// Stripes; of an erasure code the data objects. 1 to [`STRIPES_MAX`].
    pub stripes: u32,
    /// Copies of each stripe, 1 to [`COPIES_MAX`]; of an erasure code the parity objects, 1 to
    /// [`PARITY_MAX`].
    pub copies: u32,
    /// Bytes of a stripe unit: a power of two, [`UNIT_MIN`] to [`UNIT_MAX`].
    pub unit: u32,
}

impl Default for Shape {
    /// A plain object.
    fn default() -> Self {
        Self {
            scheme: Scheme::Striped,
            stripes: 1,
            copies: 1,
            unit: 1 << 20,
        }
    }
}

impl Shape {
    /// Checks the limits of its fields.
    pub fn check(&self) -> Result<(), DecodeError> {
        let copies_max = match self.scheme {
            Scheme::Striped => COPIES_MAX,
            Scheme::Erasure => PARITY_MAX,
        };
        if !(1..=STRIPES_MAX).contains(&self.stripes) {
            return Err(DecodeError::Invalid("a layout has 1 to 32 stripes"));
        }
        if !(1..=copies_max).contains(&self.copies) {
            return Err(DecodeError::Invalid(
                "a layout has 1 to 4 copies, or 1 to 8 parity objects",
            ));
        }
        if !self.unit.is_power_of_two() || !(UNIT_MIN..=UNIT_MAX).contains(&self.unit) {
            return Err(DecodeError::Invalid(
                "a stripe unit is a power of two from 4 KiB to 16 MiB",
            ));
        }
        let row = u64::from(self.stripes) * u64::from(self.unit);
        if self.scheme == Scheme::Erasure && row > ERASURE_ROW_MAX {
            return Err(DecodeError::Invalid(
                "a row of an erasure code has at most 64 MiB of data",
            ));
        }
        Ok(())
    }

    /// Objects that it needs.
    pub fn objects(&self) -> usize {
        let (stripes, copies) = (self.stripes as usize, self.copies as usize);
        match self.scheme {
            Scheme::Striped => stripes * copies,
            Scheme::Erasure => stripes + copies,
        }
    }
}

impl Encode for Shape {
    fn encode(&self, out: &mut Encoder<'_>) {
        self.scheme.encode(out);
        self.stripes.encode(out);
        self.copies.encode(out);
        self.unit.encode(out);
    }
}

impl Decode for Shape {
    const MIN_SIZE: usize = 16;

    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let shape = Self {
            scheme: Decode::decode(d)?,
            stripes: Decode::decode(d)?,
            copies: Decode::decode(d)?,
            unit: Decode::decode(d)?,
        };
        shape.check()?;
        Ok(shape)
    }
}

/// Where the bytes of a file are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// How they are spread.
    pub shape: Shape,
    /// The highest version of any object that this file ever had: the next store uses a higher one.
    pub version: u64,
    /// The highest serial number given: the next object gets a higher one.
    pub serial: u32,
    /// The RW volume in whose name the objects were made: that of the file, unless the layout came from
    /// another volume's dump, in which case nothing may be written to these objects.
    pub volume: VolumeId,
    /// The objects. Striped: stripe 0 to n-1 of the first copy, then of the second, and so on. Erasure:
    /// the data objects, then the parity objects.
    pub objects: List<Placed, OBJECTS_MAX>,
}

impl Layout {
    /// The name of an object of this layout, of the file `vnode`.
    pub fn object(&self, vnode: VnodeId, uniquifier: Uniquifier, placed: &Placed) -> ObjectId {
        ObjectId {
            volume: self.volume,
            vnode,
            uniquifier,
            serial: placed.serial,
        }
    }
}

impl Encode for Layout {
    fn encode(&self, out: &mut Encoder<'_>) {
        self.shape.encode(out);
        self.version.encode(out);
        self.serial.encode(out);
        self.volume.encode(out);
        self.objects.encode(out);
    }
}

impl Decode for Layout {
    const MIN_SIZE: usize = Shape::MIN_SIZE + 20;

    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let layout = Self {
            shape: Decode::decode(d)?,
            version: Decode::decode(d)?,
            serial: Decode::decode(d)?,
            volume: Decode::decode(d)?,
            objects: Decode::decode(d)?,
        };
        if layout.objects.len() != layout.shape.objects() {
            return Err(DecodeError::Invalid(
                "a layout has an object for each place",
            ));
        }
        Ok(layout)
    }
}

/// Rights of a capability: read the version.
pub const MAY_READ: u32 = 1;
/// Write, truncate and create the version that is being made.
pub const MAY_WRITE: u32 = 2;
/// What servers of the cell do: everything, with every object. The object, versions and range of such
/// a capability do not count.
pub const MAY_ALL: u32 = 1 << 31;

/// What is inside a capability. Sealed (AEAD, see the `capability` module of `auth`), nobody but the
/// servers of the cell can read or make one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapabilityBody {
    /// The cell.
    pub cell: cellar_xdr::AfsString<256>,
    /// The OSD that is to honour it.
    pub osd: u32,
    /// The object.
    pub object: ObjectId,
    /// `MAY_*`.
    pub rights: u32,
    /// The version that may be read; of a write the one that the new version is made from, 0: the
    /// object is to be made.
    pub base: u64,
    /// The version that may be written.
    pub version: u64,
    /// First byte of the object that may be touched.
    pub begin: u64,
    /// The first byte behind.
    pub end: u64,
    /// Until when, in seconds since 1970.
    pub expires: u64,
    /// Addresses that the client may come from, IPv4 ones mapped; empty: any (servers).
    pub clients: List<[u32; 4], 16>,
    /// Who asked for it: an AFS id, for statistics and fairness.
    pub user: i32,
}

impl Encode for CapabilityBody {
    fn encode(&self, out: &mut Encoder<'_>) {
        self.cell.encode(out);
        self.osd.encode(out);
        self.object.encode(out);
        self.rights.encode(out);
        self.base.encode(out);
        self.version.encode(out);
        self.begin.encode(out);
        self.end.encode(out);
        self.expires.encode(out);
        self.clients.encode(out);
        self.user.encode(out);
    }
}

impl Decode for CapabilityBody {
    const MIN_SIZE: usize = 4 + 4 + 16 + 4 + 40 + 4 + 4;

    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            cell: Decode::decode(d)?,
            osd: Decode::decode(d)?,
            object: Decode::decode(d)?,
            rights: Decode::decode(d)?,
            base: Decode::decode(d)?,
            version: Decode::decode(d)?,
            begin: Decode::decode(d)?,
            end: Decode::decode(d)?,
            expires: Decode::decode(d)?,
            clients: Decode::decode(d)?,
            user: Decode::decode(d)?,
        })
    }
}

/// A sealed capability.
pub type Capability = Opaque<CAPABILITY_MAX>;

/// What a superuser of the cell, who proved it by a ticket, gives in the place of a capability: the
/// number of the device in four bytes.
pub fn device_only(osd: u32) -> Capability {
    // Four bytes are within any limit.
    Capability::new(osd.to_be_bytes().to_vec()).unwrap_or_default()
}

/// The number in such a capability; `None`: it is another.
pub fn named_device(capability: &Capability) -> Option<u32> {
    let bytes: &[u8] = capability;
    bytes.try_into().ok().map(u32::from_be_bytes)
}
