//! Writing XDR: appending words to a growable buffer.

use bytes::{BufMut, Bytes, BytesMut};

/// A value that has an XDR form.
///
/// Encoding cannot fail: types that implement this can only hold values that the wire can carry.
pub trait Encode {
    /// Appends the XDR form of `self`.
    fn encode(&self, out: &mut Encoder<'_>);

    /// Appends the XDR form of `self` to `buffer`.
    fn encode_to(&self, buffer: &mut BytesMut) {
        self.encode(&mut Encoder::new(buffer));
    }

    /// The XDR form of `self` in its own buffer.
    fn to_xdr(&self) -> Bytes {
        let mut buffer = BytesMut::with_capacity(256);
        self.encode_to(&mut buffer);
        buffer.freeze()
    }
}

/// Appends XDR words to a [`BytesMut`].
///
/// Everything written is a multiple of four bytes long.
#[derive(Debug)]
pub struct Encoder<'a> {
    out: &'a mut BytesMut,
}

impl<'a> Encoder<'a> {
    /// An encoder that appends to the present contents of `out`.
    pub fn new(out: &'a mut BytesMut) -> Self {
        Self { out }
    }

    /// Reserves `additional` bytes at once. This is a hint: writing grows the buffer in any case.
    pub fn reserve(&mut self, additional: usize) {
        self.out.reserve(additional);
    }

    /// Writes one unsigned word.
    #[inline]
    pub fn u32(&mut self, value: u32) {
        self.out.put_u32(value);
    }

    /// Writes one signed word.
    #[inline]
    pub fn i32(&mut self, value: i32) {
        self.out.put_i32(value);
    }

    /// Writes two words, the high one first.
    #[inline]
    pub fn u64(&mut self, value: u64) {
        self.out.put_u64(value);
    }

    /// Writes two words, the high one first.
    #[inline]
    pub fn i64(&mut self, value: i64) {
        self.out.put_i64(value);
    }

    /// Writes `N` words with one capacity check, for fixed structures on hot paths.
    #[inline]
    pub fn words<const N: usize>(&mut self, words: [u32; N]) {
        let big_endian = words.map(u32::to_be_bytes);
        self.out.extend_from_slice(big_endian.as_flattened());
    }

    /// Writes `opaque x[n]`: the bytes, padded with zeros to a whole word.
    pub fn fixed_opaque(&mut self, bytes: &[u8]) {
        let padding = padding(bytes.len());
        self.out.reserve(bytes.len() + padding);
        self.out.extend_from_slice(bytes);
        self.out.put_bytes(0, padding);
    }

    /// Writes `opaque x<>` or `string s<>`: length word, bytes, zeros up to a whole word.
    ///
    /// The caller's type bounds the length, so it is below 2^32.
    pub(crate) fn opaque(&mut self, bytes: &[u8]) {
        self.out.reserve(4 + bytes.len() + 3);
        self.u32(bytes.len() as u32);
        self.fixed_opaque(bytes);
    }
}

/// Zero bytes that follow `len` bytes of opaque data.
#[inline]
pub(crate) const fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}

macro_rules! encode_scalar {
    ($($type:ty => $method:ident),*) => {$(
        impl Encode for $type {
            #[inline]
            fn encode(&self, out: &mut Encoder<'_>) {
                out.$method(*self);
            }
        }
    )*};
}

encode_scalar!(u32 => u32, i32 => i32, u64 => u64, i64 => i64);

impl Encode for bool {
    #[inline]
    fn encode(&self, out: &mut Encoder<'_>) {
        out.u32(u32::from(*self));
    }
}

impl Encode for u8 {
    /// A `char` or `unsigned char` of a structure: a whole word.
    #[inline]
    fn encode(&self, out: &mut Encoder<'_>) {
        out.u32(u32::from(*self));
    }
}

impl Encode for u16 {
    /// An `unsigned short`: a whole word.
    #[inline]
    fn encode(&self, out: &mut Encoder<'_>) {
        out.u32(u32::from(*self));
    }
}

impl Encode for i16 {
    /// A `short`: a whole word, sign extended.
    #[inline]
    fn encode(&self, out: &mut Encoder<'_>) {
        out.i32(i32::from(*self));
    }
}

impl<T: Encode, const N: usize> Encode for [T; N] {
    fn encode(&self, out: &mut Encoder<'_>) {
        for element in self {
            element.encode(out);
        }
    }
}
