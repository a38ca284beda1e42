//! Objects: the parts of a file whose bytes are not on its file server, and the rights to access
//! them.
//!
//! 1. The bytes of a file are spread over *objects* on object storage devices (OSDs), as its
//!    [`Layout`] describes. The layout belongs to the vnode version. The file server alone decides
//!    which objects exist and which of them are needed. An OSD keeps bytes and checksums, and the
//!    owner in the object's name.
//! 2. An object has *versions*. A store writes a new version of each object that it touches. One
//!    change of the vnode then names these versions and completes the store. So readers see either
//!    all old or all new bytes, across all objects, and never an unfinished store. A clone copies
//!    the layout with its versions without asking any OSD; the next store leaves those versions
//!    alone.
//! 3. A version shares the unwritten parts with the version that it was made from. The file servers
//!    know which versions are needed, and report them from time to time (`Prune`).
//! 4. A [`Capability`] lets its holder do one kind of access to one version of one object for a few
//!    minutes. So an OSD needs no list of users, only the key that it shares with the servers of
//!    its cell.
//!
//! Objects are an extension of Cellar; no present client speaks the historical `RXOSD` protocol.

use cellar_xdr::{
    Decode, DecodeError, Decoder, Encode, Encoder, List, Opaque, xdr_enum, xdr_struct,
};

use crate::ids::{Uniquifier, VnodeId, VolumeId};

/// The most stripes of a file.
pub const STRIPES_MAX: u32 = 32;
/// The most copies of each stripe.
pub const COPIES_MAX: u32 = 4;
/// The most parity objects of an erasure code.
pub const PARITY_MAX: u32 = 8;
/// The most objects of a file: 32 stripes in 4 copies.
pub const OBJECTS_MAX: usize = 128;
/// The smallest unit of striping, in bytes. Units are powers of two.
pub const UNIT_MIN: u32 = 4 << 10;
/// The largest unit of striping, in bytes.
pub const UNIT_MAX: u32 = 16 << 20;
/// The most bytes of a row of an erasure code (a unit of each data object). A writer holds one row
/// in memory.
pub const ERASURE_ROW_MAX: u64 = 64 << 20;
/// The most bytes of a sealed capability.
pub const CAPABILITY_MAX: usize = 512;

xdr_struct! {
    /// The name of an object: the file that it was made for, and its number among the objects of
    /// that file. A name is unique in the cell for ever: a file never gives out the same `serial`
    /// twice.
    #[derive(Copy, Default, PartialOrd, Ord, Hash)]
    pub struct ObjectId {
        /// The RW volume of the file: the owner.
        pub volume: VolumeId,
        /// The file.
        pub vnode: VnodeId,
        /// The number of the vnode's use.
        pub uniquifier: Uniquifier,
        /// The number of the object, counted from 1 over the life of the file.
        pub serial: u32,
    }

    /// The place of an object in a layout.
    #[derive(Copy, Default)]
    pub struct Placed {
        /// The number of its OSD.
        pub osd: u32,
        /// The object's serial number.
        pub serial: u32,
        /// The version that belongs to this version of the file. 0: the object was never written.
        /// It then does not exist, and all its bytes are zeros.
        pub version: u64,
        /// The object lacks writes because its OSD was away. It is not read before it is repaired.
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
    /// How bytes are spread over objects.
    pub enum Scheme {
        /// `stripes` stripes, each in `copies` copies; one of each is a plain file.
        Striped = 1,
        /// `stripes` units of data and `copies` of parity; any `stripes` of them suffice to compute
        /// the bytes.
        Erasure = 2,
    }
}

/// The beginning of the name of a copy that is not complete: `.NAME.cellar-part`.
pub const PART_PREFIX: &[u8] = b".";
/// The end of that name.
pub const PART_SUFFIX: &[u8] = b".cellar-part";

/// The name that a file will have when its copy is complete. Policies are evaluated for this name.
pub fn final_name(name: &[u8]) -> &[u8] {
    let inner = name.strip_prefix(PART_PREFIX);
    let inner = inner.and_then(|name| name.strip_suffix(PART_SUFFIX));
    inner.filter(|name| !name.is_empty()).unwrap_or(name)
}

/// The form of a layout, without places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// How bytes are spread.
    pub scheme: Scheme,
    /// Stripes; in an erasure code, the data objects. 1 to [`STRIPES_MAX`].
    pub stripes: u32,
    /// Copies of each stripe, 1 to [`COPIES_MAX`]; in an erasure code, the parity objects, 1 to
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

    /// The number of objects that it needs.
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

/// The location of the bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// How they are spread.
    pub shape: Shape,
    /// The highest version that any object of this file ever had. The next store uses a higher one.
    pub version: u64,
    /// The highest serial number given out. The next object gets a higher one.
    pub serial: u32,
    /// The RW volume in whose name the objects were made. Normally it is the file's own. If the
    /// layout came from the dump of another volume, it is that volume, and these objects may not be
    /// written.
    pub volume: VolumeId,
    /// The objects. Striped: stripes 0 to n-1 of the first copy, then those of the second, and so
    /// on. Erasure: the data objects, then the parity objects.
    pub objects: List<Placed, OBJECTS_MAX>,
}

impl Layout {
    /// The name of the bytes.
    pub fn contents(&self) -> Contents {
        Contents {
            volume: self.volume,
            version: self.version,
        }
    }

    /// The name of an object of this layout, for the file `vnode`.
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

/// The most copies of a file in archives that its record names, older versions included.
pub const ARCHIVE_COPIES_MAX: usize = 16;

/// Copies of a file in archives, also of older bytes, the oldest first.
pub type ArchiveCopies = List<ArchiveCopy, ARCHIVE_COPIES_MAX>;

xdr_struct! {
    /// The remains of the layout of a file that was wiped: enough to make objects for it again.
    #[derive(Copy)]
    pub struct Wiped {
        /// How the bytes were spread.
        pub shape: Shape,
        /// [`Layout::version`].
        pub version: u64,
        /// [`Layout::serial`].
        pub serial: u32,
        /// [`Layout::volume`].
        pub volume: VolumeId,
    }
}

impl Wiped {
    /// The name of the bytes, which are in archives only.
    pub fn contents(&self) -> Contents {
        Contents {
            volume: self.volume,
            version: self.version,
        }
    }
}

impl From<&Layout> for Wiped {
    fn from(layout: &Layout) -> Self {
        Self {
            shape: layout.shape,
            version: layout.version,
            serial: layout.serial,
            volume: layout.volume,
        }
    }
}

xdr_struct! {
    /// A copy of the bytes of one version of a file, as one object of an archival device.
    ///
    /// The owner `volume`, the file and `version` name the bytes: they equal those of the
    /// [`Layout`] that was copied. A store makes a higher version, so copies of other versions are
    /// not taken for the present bytes.
    #[derive(Copy, Default)]
    pub struct ArchiveCopy {
        /// The archival device.
        pub osd: u32,
        /// The RW volume in whose name the object was made.
        pub volume: VolumeId,
        /// The serial number of the object on that device.
        pub serial: u32,
        /// The version of the object, which is that of the copied layout.
        pub version: u64,
        /// The data version of the file that was copied, as clients see it.
        pub data_version: u64,
        /// Length in bytes.
        pub length: u64,
        /// BLAKE3 of the bytes, computed when they were read from the online objects.
        pub blake3: [u32; 8],
        /// MD5 of the same bytes, for comparison with archives that know no other sum.
        pub md5: [u32; 4],
        /// When the copy was complete and compared, in seconds since 1970.
        pub made: u64,
        /// When its bytes were last read back and compared, in seconds since 1970.
        pub verified: u64,
        /// The copy was found damaged or missing. It is not read, and does not count as a copy.
        pub bad: bool,
    }
}

impl ArchiveCopy {
    /// The name of its object, for the file `vnode`.
    pub fn object(&self, vnode: VnodeId, uniquifier: Uniquifier) -> ObjectId {
        ObjectId {
            volume: self.volume,
            vnode,
            uniquifier,
            serial: self.serial,
        }
    }

    /// Whether it has the bytes of that version of the file.
    pub fn has(&self, contents: Contents) -> bool {
        self.contents() == contents
    }

    /// The bytes that it has.
    pub fn contents(&self) -> Contents {
        Contents {
            volume: self.volume,
            version: self.version,
        }
    }
}

/// Names the bytes of one version of a file whose objects or archive copies are known. Repair and
/// recall do not change it; a store does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Contents {
    /// The RW volume in whose name the objects were made.
    pub volume: VolumeId,
    /// [`Layout::version`].
    pub version: u64,
}

/// Rights of a capability: read the version.
pub const MAY_READ: u32 = 1;
/// Write, truncate and create the new version.
pub const MAY_WRITE: u32 = 2;
/// Full rights, for servers of the cell: every operation on every object. The object, versions and
/// range of such a capability are ignored.
pub const MAY_ALL: u32 = 1 << 31;

/// The contents of a capability. It is sealed (AEAD, see the `capability` module of `auth`): only
/// the servers of the cell can read or make one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapabilityBody {
    /// The cell.
    pub cell: cellar_xdr::AfsString<256>,
    /// The OSD that accepts it.
    pub osd: u32,
    /// The object.
    pub object: ObjectId,
    /// `MAY_*`.
    pub rights: u32,
    /// The version that may be read. With the right to write, the version from which the new
    /// version is made; 0: the object is created.
    pub base: u64,
    /// The version that may be written.
    pub version: u64,
    /// The first byte of the object that may be accessed.
    pub begin: u64,
    /// The byte after the last one that may be accessed.
    pub end: u64,
    /// When it expires, in seconds since 1970.
    pub expires: u64,
    /// Addresses that the client may use, IPv4 ones mapped. Empty: any address (servers).
    pub clients: List<[u32; 4], 16>,
    /// The AFS id of the user who requested it, for statistics and fairness.
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

/// The capability of a superuser of the cell who authenticated with a ticket: the number of the
/// device, in four bytes.
pub fn device_only(osd: u32) -> Capability {
    // Four bytes are within any limit.
    Capability::new(osd.to_be_bytes().to_vec()).unwrap_or_default()
}

/// The device number of such a capability; `None` for other capabilities.
pub fn named_device(capability: &Capability) -> Option<u32> {
    let bytes: &[u8] = capability;
    bytes.try_into().ok().map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::final_name;

    #[test]
    fn parts_have_the_name_of_their_file() {
        for (name, wanted) in [
            (".run7.root.cellar-part", "run7.root"),
            ("..hidden.cellar-part", ".hidden"),
            ("run7.root", "run7.root"),
            ("run7.root.cellar-part", "run7.root.cellar-part"),
            (".cellar-part", ".cellar-part"),
            (".", "."),
        ] {
            assert_eq!(final_name(name.as_bytes()), wanted.as_bytes());
        }
    }
}
