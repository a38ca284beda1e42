//! Numbers that name things in a cell. Each has its own type, so that the compiler tells them
//! apart.
//!
//! `Display` writes them as administrators do: `536870918.12.345` for a fid, `/vicepb` for a
//! partition.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cellar_xdr::{Decode, DecodeError, Decoder, Encode, Encoder};

/// A newtype over a word; every value of the word is valid.
macro_rules! word_id {
    ($( $(#[$doc:meta])* $name:ident($word:ident) )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $word);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<$word> for $name {
            fn from(number: $word) -> Self {
                Self(number)
            }
        }

        impl From<$name> for $word {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl Encode for $name {
            #[inline]
            fn encode(&self, out: &mut Encoder<'_>) {
                out.$word(self.0);
            }
        }

        impl Decode for $name {
            const MIN_SIZE: usize = 4;

            #[inline]
            fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                d.$word().map(Self)
            }
        }
    )*};
}

word_id! {
    /// A volume: RW, RO and backup of one group have different ids. 0 names no volume.
    VolumeId(u32)
    /// A file's slot in a volume: odd for directories, even for files and symbolic links. The root
    /// directory is 1. 0 names no file; in a callback break it means the whole volume.
    VnodeId(u32)
    /// Distinguishes two uses of one vnode number.
    Uniquifier(u32)
    /// A protection identity: users above 0, groups below.
    ViceId(i32)
}

impl VnodeId {
    /// The root directory of every volume.
    pub const ROOT: Self = Self(1);

    /// Whether this is the number of a directory.
    pub const fn is_directory(self) -> bool {
        self.0 & 1 == 1
    }
}

impl Uniquifier {
    /// The uniquifier of every root directory.
    pub const ROOT: Self = Self(1);
}

impl ViceId {
    /// `system:anyuser`: every caller is a member.
    pub const ANYUSER: Self = Self(-101);
    /// `system:authuser`: every authenticated caller is a member.
    pub const AUTHUSER: Self = Self(-102);
    /// `system:ptsviewers`: members may examine every entry.
    pub const PTSVIEWERS: Self = Self(-203);
    /// `system:administrators`: members have every right.
    pub const ADMINISTRATORS: Self = Self(-204);
    /// `system:backup`.
    pub const BACKUP: Self = Self(-205);
    /// The caller without a token. Unknown names map to it too.
    pub const ANONYMOUS: Self = Self(32766);

    /// Whether this is a group's id.
    pub const fn is_group(self) -> bool {
        self.0 < 0
    }
}

/// The name of a file for programs: volume, vnode, uniquifier. Three words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fid {
    /// The volume.
    pub volume: VolumeId,
    /// The slot in the volume; 0 in a callback break means all vnodes.
    pub vnode: VnodeId,
    /// The number of the slot's use.
    pub uniquifier: Uniquifier,
}

impl Fid {
    /// A fid from plain numbers.
    pub const fn new(volume: u32, vnode: u32, uniquifier: u32) -> Self {
        Self {
            volume: VolumeId(volume),
            vnode: VnodeId(vnode),
            uniquifier: Uniquifier(uniquifier),
        }
    }

    /// The root directory of a volume.
    pub const fn root(volume: VolumeId) -> Self {
        Self {
            volume,
            vnode: VnodeId::ROOT,
            uniquifier: Uniquifier::ROOT,
        }
    }

    /// A whole volume, as callbacks name it: vnode and uniquifier 0.
    pub const fn whole_volume(volume: VolumeId) -> Self {
        Self {
            volume,
            vnode: VnodeId(0),
            uniquifier: Uniquifier(0),
        }
    }
}

impl fmt::Display for Fid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.volume, self.vnode, self.uniquifier)
    }
}

impl Encode for Fid {
    #[inline]
    fn encode(&self, out: &mut Encoder<'_>) {
        out.words([self.volume.0, self.vnode.0, self.uniquifier.0]);
    }
}

impl Decode for Fid {
    const MIN_SIZE: usize = 12;

    #[inline]
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let [volume, vnode, uniquifier] = d.words()?;
        Ok(Self::new(volume, vnode, uniquifier))
    }
}

/// A partition of a file server: 0 is `/vicepa`, 25 `/vicepz`, 26 `/vicepaa`, up to 254 `/vicepiu`.
///
/// Calls carry a plain `i32`, because a server has its own abort code for a number out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId(u8);

impl PartitionId {
    /// The highest number.
    pub const MAX: Self = Self(254);

    /// The partition with that number, if there is one.
    pub const fn new(number: i32) -> Option<Self> {
        if number >= 0 && number <= Self::MAX.0 as i32 {
            Some(Self(number as u8))
        } else {
            None
        }
    }

    /// The number, 0 to 254.
    pub const fn number(self) -> i32 {
        self.0 as i32
    }

    /// Reads `/vicepa`, `vicepa`, `a` or `0`, as the administrators' commands do.
    pub fn parse(text: &str) -> Option<Self> {
        if let Ok(number) = text.parse() {
            return Self::new(number);
        }
        let letters = text.strip_prefix('/').unwrap_or(text);
        let letters = letters.strip_prefix("vicep").unwrap_or(letters);
        let digit = |byte: u8| byte.is_ascii_lowercase().then(|| i32::from(byte - b'a'));
        match *letters.as_bytes() {
            [only] => Self::new(digit(only)?),
            [first, second] => Self::new((digit(first)? + 1) * 26 + digit(second)?),
            _ => None,
        }
    }
}

impl TryFrom<i32> for PartitionId {
    type Error = NoSuchPartition;

    fn try_from(number: i32) -> Result<Self, NoSuchPartition> {
        Self::new(number).ok_or(NoSuchPartition(number))
    }
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |n: u8| char::from(b'a' + n);
        match self.0 {
            n @ 0..26 => write!(f, "/vicep{}", letter(n)),
            n => write!(f, "/vicep{}{}", letter(n / 26 - 1), letter(n % 26)),
        }
    }
}

/// A number that names no partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not the number of a partition (0 to 254)")]
pub struct NoSuchPartition(pub i32);

/// A point in time as on the wire: seconds since 1970, unsigned. 0 often means "never".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct AfsTime(pub u32);

/// Other times become the nearest that AFS has: 0 before 1970, 4294967295 after 7 February 2106,
/// 06:28:15 UTC. A remainder of a second is dropped.
impl AfsTime {
    /// A Unix time in seconds, which is negative before 1970.
    #[must_use]
    pub fn of_seconds(seconds: i64) -> Self {
        Self(seconds.clamp(0, u32::MAX.into()) as u32)
    }

    /// The time that long after the start of 1970.
    #[must_use]
    pub fn after_1970(since: Duration) -> Self {
        Self(u32::try_from(since.as_secs()).unwrap_or(u32::MAX))
    }
}

impl From<SystemTime> for AfsTime {
    fn from(time: SystemTime) -> Self {
        Self::after_1970(time.duration_since(UNIX_EPOCH).unwrap_or_default())
    }
}

impl Encode for AfsTime {
    #[inline]
    fn encode(&self, out: &mut Encoder<'_>) {
        out.u32(self.0);
    }
}

impl Decode for AfsTime {
    const MIN_SIZE: usize = 4;

    #[inline]
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.u32().map(Self)
    }
}

/// A UUID in the form that AFS sends: 11 words, most of which carry one byte.
///
/// Words: time low (32 bits), time mid and time high (16 bits each), two clock bytes, six node
/// bytes. OpenAFS extends the sign of the bytes, so the encoder does the same. The decoder uses the
/// low bits.
///
/// Seen in: testdata/messages, RXAFSCB 213.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AfsUuid(
    /// The sixteen bytes in the order of RFC 4122.
    pub [u8; 16],
);

impl AfsUuid {
    /// No UUID at all.
    pub const NIL: Self = Self([0; 16]);

    /// Whether all of it is zero.
    pub fn is_nil(&self) -> bool {
        *self == Self::NIL
    }

    /// The form in which VL entries carry the address of a server without a UUID: the first word is
    /// the address, the rest is zero.
    pub const fn from_address(address: u32) -> Self {
        let [a, b, c, d] = address.to_be_bytes();
        Self([a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    }

    /// The first word, which is the address in such an entry.
    pub const fn time_low(&self) -> u32 {
        u32::from_be_bytes([self.0[0], self.0[1], self.0[2], self.0[3]])
    }
}

impl fmt::Display for AfsUuid {
    /// As `vos listaddrs -printuuid` writes it: time low, mid, high, clock bytes, node, in hex.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 9 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl Encode for AfsUuid {
    fn encode(&self, out: &mut Encoder<'_>) {
        let b = self.0.map(|byte| i32::from(byte as i8) as u32);
        let [b4, b5, b6, b7] = [self.0[4], self.0[5], self.0[6], self.0[7]];
        out.words([
            self.time_low(),
            u32::from(u16::from_be_bytes([b4, b5])),
            u32::from(u16::from_be_bytes([b6, b7])),
            b[8],
            b[9],
            b[10],
            b[11],
            b[12],
            b[13],
            b[14],
            b[15],
        ]);
    }
}

impl Decode for AfsUuid {
    const MIN_SIZE: usize = 44;

    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let [low, mid, high, bytes @ ..] = d.words::<11>()?;
        let mut uuid = [0; 16];
        uuid[..4].copy_from_slice(&low.to_be_bytes());
        uuid[4..6].copy_from_slice(&(mid as u16).to_be_bytes());
        uuid[6..8].copy_from_slice(&(high as u16).to_be_bytes());
        for (slot, word) in uuid[8..].iter_mut().zip(bytes) {
            *slot = word as u8;
        }
        Ok(Self(uuid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_afs_does_not_have_become_the_nearest() {
        for (seconds, right) in [
            (i64::MIN, 0),
            (-1, 0),
            (0, 0),
            (1, 1),
            (0x7fff_ffff, 0x7fff_ffff),
            (0x8000_0000, 0x8000_0000),
            (0xffff_ffff, u32::MAX),
            (0x1_0000_0000, u32::MAX),
            (0x1_0000_0001, u32::MAX),
            (i64::MAX, u32::MAX),
        ] {
            assert_eq!(AfsTime::of_seconds(seconds), AfsTime(right), "{seconds}");
            let distance = Duration::from_secs(seconds.unsigned_abs());
            let time = match seconds < 0 {
                true => UNIX_EPOCH.checked_sub(distance),
                false => UNIX_EPOCH.checked_add(distance),
            };
            let time = time.expect("a time of the system");
            assert_eq!(AfsTime::from(time), AfsTime(right), "{seconds}");
        }
        let almost = UNIX_EPOCH - Duration::from_nanos(1);
        assert_eq!(AfsTime::from(almost), AfsTime(0));
    }

    #[test]
    fn partitions_are_named_as_administrators_name_them() {
        for (number, name) in [
            (0, "/vicepa"),
            (25, "/vicepz"),
            (26, "/vicepaa"),
            (254, "/vicepiu"),
        ] {
            let partition = PartitionId::new(number).unwrap();
            assert_eq!(partition.to_string(), name);
            assert_eq!(PartitionId::parse(name), Some(partition));
            assert_eq!(PartitionId::parse(&number.to_string()), Some(partition));
        }
        for number in 0..=254 {
            let partition = PartitionId::new(number).unwrap();
            assert_eq!(PartitionId::parse(&partition.to_string()), Some(partition));
        }
        for wrong in [
            "", "/vicep", "/vicepA", "/vicepiv", "abc", "255", "-1", "/vicep1",
        ] {
            assert_eq!(PartitionId::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn uuid_takes_eleven_words_with_the_sign_extended() {
        let uuid = AfsUuid([
            0x00, 0x11, 0x22, 0x33, 0xf4, 0x55, 0xe6, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd,
            0xee, 0xff,
        ]);
        let bytes = uuid.to_xdr();
        assert_eq!(bytes.len(), 44);
        assert_eq!(&bytes[..8], [0x00, 0x11, 0x22, 0x33, 0, 0, 0xf4, 0x55]);
        assert_eq!(&bytes[12..16], [0xff, 0xff, 0xff, 0x88]);
        assert_eq!(AfsUuid::from_xdr(&bytes), Ok(uuid));
        let mut narrow = bytes.to_vec();
        for word in 3..11 {
            narrow[word * 4..word * 4 + 3].fill(0);
        }
        assert_eq!(AfsUuid::from_xdr(&narrow), Ok(uuid));
        assert_eq!(uuid.to_string(), "00112233-f455-e677-88-99-aabbccddeeff");
    }

    #[test]
    fn fid_reads_as_three_numbers() {
        assert_eq!(Fid::new(536870918, 12, 345).to_string(), "536870918.12.345");
    }
}
