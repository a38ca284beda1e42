//! Reading XDR: a cursor over received bytes that bounds every length.

use crate::encode::padding;

/// A value that can be read from its XDR form.
pub trait Decode: Sized {
    /// The size of the shortest form of this type, in bytes. Never 0 for an element of a [`List`].
    ///
    /// [`List`]: crate::List
    const MIN_SIZE: usize;

    /// Reads one value and advances.
    ///
    /// # Errors
    /// See [`DecodeError`]. After an error the position of the decoder is meaningless.
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError>;

    /// Reads one value from the beginning of `bytes`; bytes after it are ignored, as AFS servers
    /// and clients do with surplus arguments and results.
    ///
    /// # Errors
    /// See [`DecodeError`].
    fn from_xdr(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::decode(&mut Decoder::new(bytes))
    }
}

/// Why bytes are not the XDR form of the requested type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end before the value does. With more bytes the value may decode.
    #[error("the data ends before the value does")]
    Truncated,
    /// A length is over its declared bound. Nothing was allocated for it.
    #[error("length {len} is over the limit of {limit}")]
    TooLong {
        /// The declared bound, in elements or bytes.
        limit: usize,
        /// The length that was sent.
        len: usize,
    },
    /// A value that no peer may send; the text describes it.
    #[error("{0}")]
    Invalid(&'static str),
}

/// A cursor over received bytes.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Decoder<'a> {
    /// A decoder at the first of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    /// Bytes read so far, padding included.
    pub fn consumed(&self) -> usize {
        self.position
    }

    /// Bytes not yet read.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    /// The bytes not yet read.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.position..).unwrap_or_default()
    }

    /// Takes `len` bytes, without padding.
    #[inline]
    fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let end = self
            .position
            .checked_add(len)
            .ok_or(DecodeError::Truncated)?;
        let taken = self
            .bytes
            .get(self.position..end)
            .ok_or(DecodeError::Truncated)?;
        self.position = end;
        Ok(taken)
    }

    #[inline]
    fn take_array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let array = self
            .rest()
            .first_chunk::<N>()
            .ok_or(DecodeError::Truncated)?;
        self.position += N;
        Ok(*array)
    }

    /// Reads one unsigned word.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    #[inline]
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.take_array().map(u32::from_be_bytes)
    }

    /// Reads one signed word.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    #[inline]
    pub fn i32(&mut self) -> Result<i32, DecodeError> {
        self.take_array().map(i32::from_be_bytes)
    }

    /// Reads two words, the high one first.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    #[inline]
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.take_array().map(u64::from_be_bytes)
    }

    /// Reads two words, the high one first.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    #[inline]
    pub fn i64(&mut self) -> Result<i64, DecodeError> {
        self.take_array().map(i64::from_be_bytes)
    }

    /// Reads `N` words with one bounds check, for fixed structures on hot paths.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    #[inline]
    pub fn words<const N: usize>(&mut self) -> Result<[u32; N], DecodeError> {
        let taken = self.take(N * 4)?;
        let (words, _) = taken.as_chunks::<4>();
        let mut result = [0; N];
        for (slot, word) in result.iter_mut().zip(words) {
            *slot = u32::from_be_bytes(*word);
        }
        Ok(result)
    }

    /// Reads `opaque x[len]`: `len` bytes and their padding, whose contents are ignored.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn fixed_opaque(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let bytes = self.take(len)?;
        self.take(padding(len))?;
        Ok(bytes)
    }

    /// Reads `opaque x<limit>` or `string s<limit>`: length word, bytes, padding.
    ///
    /// # Errors
    /// [`DecodeError::TooLong`] when the length is over `limit`, else [`DecodeError::Truncated`].
    pub fn opaque(&mut self, limit: usize) -> Result<&'a [u8], DecodeError> {
        let len = self.u32()? as usize;
        if len > limit {
            return Err(DecodeError::TooLong { limit, len });
        }
        self.fixed_opaque(len)
    }

    /// Reads the count of a `T x<limit>` whose elements take at least `element_size` bytes each.
    ///
    /// The caller may safely allocate that many elements, because the remaining bytes can hold
    /// them.
    ///
    /// # Errors
    /// [`DecodeError::TooLong`] when the count is over `limit`, [`DecodeError::Truncated`] when the
    /// remaining bytes cannot hold so many elements.
    pub fn count(&mut self, limit: usize, element_size: usize) -> Result<usize, DecodeError> {
        let len = self.u32()? as usize;
        if len > limit {
            return Err(DecodeError::TooLong { limit, len });
        }
        match len.checked_mul(element_size.max(1)) {
            Some(needed) if needed <= self.remaining() => Ok(len),
            _ => Err(DecodeError::Truncated),
        }
    }
}

macro_rules! decode_scalar {
    ($($type:ty, $size:literal => $method:ident),*) => {$(
        impl Decode for $type {
            const MIN_SIZE: usize = $size;

            #[inline]
            fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                d.$method()
            }
        }
    )*};
}

decode_scalar!(u32, 4 => u32, i32, 4 => i32, u64, 8 => u64, i64, 8 => i64);

macro_rules! decode_narrow {
    ($($type:ty),*) => {$(
        impl Decode for $type {
            const MIN_SIZE: usize = 4;

            /// Takes the low bits of the word: peers disagree on sign extension.
            #[inline]
            fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                d.u32().map(|word| word as $type)
            }
        }
    )*};
}

decode_narrow!(u8, u16, i16);

impl Decode for bool {
    const MIN_SIZE: usize = 4;

    /// Any word but 0 is true: peers send more than 0 and 1.
    #[inline]
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.u32().map(|word| word != 0)
    }
}

impl<T: Decode + Copy + Default, const N: usize> Decode for [T; N] {
    const MIN_SIZE: usize = N * T::MIN_SIZE;

    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut array = [T::default(); N];
        for element in &mut array {
            *element = T::decode(d)?;
        }
        Ok(array)
    }
}
