//! Values whose length the interface bounds. So encoding them cannot fail.

use std::fmt;
use std::ops::Deref;

use bytes::Bytes;

use crate::{Decode, DecodeError, Decoder, Encode, Encoder};

/// A value was longer than the interface allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("length {len} is over the limit of {limit}")]
pub struct TooLong {
    /// The bound of the type, in bytes or elements.
    pub limit: usize,
    /// The length of the refused value.
    pub len: usize,
}

fn within(limit: usize, len: usize) -> Result<(), TooLong> {
    if len > limit {
        Err(TooLong { limit, len })
    } else {
        Ok(())
    }
}

/// The text of a name in messages: UTF-8 as it is, other bytes escaped.
fn show(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => f.write_str(text),
        _ => write!(f, "{}", bytes.escape_ascii()),
    }
}

macro_rules! byte_string {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name<const LIMIT: usize>(Bytes);

        impl<const LIMIT: usize> $name<LIMIT> {
            /// The most bytes that fit.
            pub const LIMIT: usize = LIMIT;

            /// Takes `bytes` if they fit.
            ///
            /// # Errors
            /// [`TooLong`] when there are more than `LIMIT`.
            pub fn new(bytes: impl Into<Bytes>) -> Result<Self, TooLong> {
                let bytes = bytes.into();
                within(LIMIT, bytes.len())?;
                Ok(Self(bytes))
            }

            /// A value known when the program is written.
            ///
            /// # Panics
            /// When `text` is longer than `LIMIT`: a compile error in constants.
            pub const fn from_static(text: &'static str) -> Self {
                assert!(text.len() <= LIMIT, "longer than the type's limit");
                Self(Bytes::from_static(text.as_bytes()))
            }

            /// The bytes, which need not be UTF-8.
            pub fn as_bytes(&self) -> &[u8] {
                &self.0
            }

            /// The bytes, without copying them.
            pub fn into_bytes(self) -> Bytes {
                self.0
            }

            /// The text if it is UTF-8.
            pub fn as_str(&self) -> Option<&str> {
                std::str::from_utf8(&self.0).ok()
            }
        }

        impl<const LIMIT: usize> Deref for $name<LIMIT> {
            type Target = [u8];

            fn deref(&self) -> &[u8] {
                &self.0
            }
        }

        impl<const LIMIT: usize> AsRef<[u8]> for $name<LIMIT> {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }

        impl<const LIMIT: usize> TryFrom<&[u8]> for $name<LIMIT> {
            type Error = TooLong;

            fn try_from(bytes: &[u8]) -> Result<Self, TooLong> {
                within(LIMIT, bytes.len())?;
                Ok(Self(Bytes::copy_from_slice(bytes)))
            }
        }

        impl<const LIMIT: usize> TryFrom<&str> for $name<LIMIT> {
            type Error = TooLong;

            fn try_from(text: &str) -> Result<Self, TooLong> {
                Self::try_from(text.as_bytes())
            }
        }

        impl<const LIMIT: usize> TryFrom<String> for $name<LIMIT> {
            type Error = TooLong;

            fn try_from(text: String) -> Result<Self, TooLong> {
                Self::new(text)
            }
        }

        impl<const LIMIT: usize> TryFrom<Vec<u8>> for $name<LIMIT> {
            type Error = TooLong;

            fn try_from(bytes: Vec<u8>) -> Result<Self, TooLong> {
                Self::new(bytes)
            }
        }

        impl<const LIMIT: usize> TryFrom<Bytes> for $name<LIMIT> {
            type Error = TooLong;

            fn try_from(bytes: Bytes) -> Result<Self, TooLong> {
                Self::new(bytes)
            }
        }

        impl<const LIMIT: usize> PartialEq<[u8]> for $name<LIMIT> {
            fn eq(&self, other: &[u8]) -> bool {
                self.as_bytes() == other
            }
        }

        impl<const LIMIT: usize> PartialEq<str> for $name<LIMIT> {
            fn eq(&self, other: &str) -> bool {
                self.as_bytes() == other.as_bytes()
            }
        }

        impl<const LIMIT: usize> PartialEq<&str> for $name<LIMIT> {
            fn eq(&self, other: &&str) -> bool {
                self.as_bytes() == other.as_bytes()
            }
        }

        impl<const LIMIT: usize> fmt::Debug for $name<LIMIT> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"{}\"", self.0.escape_ascii())
            }
        }

        impl<const LIMIT: usize> Encode for $name<LIMIT> {
            fn encode(&self, out: &mut Encoder<'_>) {
                out.opaque(&self.0);
            }
        }

        impl<const LIMIT: usize> Decode for $name<LIMIT> {
            const MIN_SIZE: usize = 4;

            fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                d.opaque(LIMIT).map(|bytes| Self(Bytes::copy_from_slice(bytes)))
            }
        }
    };
}

byte_string! {
    /// `opaque x<LIMIT>`: at most `LIMIT` bytes without further meaning to XDR.
    Opaque
}

byte_string! {
    /// `string s<LIMIT>`: text of at most `LIMIT` bytes, in no particular encoding, without NUL at
    /// its end. A NUL inside is carried: the reader of a name decides which bytes it may contain.
    AfsString
}

impl<const LIMIT: usize> fmt::Display for AfsString<LIMIT> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(&self.0, f)
    }
}

/// `T x<LIMIT>`: at most `LIMIT` elements.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct List<T, const LIMIT: usize>(Vec<T>);

impl<T, const LIMIT: usize> List<T, LIMIT> {
    /// The most elements that fit.
    pub const LIMIT: usize = LIMIT;

    /// An empty list.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// An empty list with room for `capacity` elements (at most `LIMIT`).
    pub fn with_capacity(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity.min(LIMIT)))
    }

    /// Appends `element` if there is room.
    ///
    /// # Errors
    /// [`TooLong`] when the list is full; `element` is dropped.
    pub fn push(&mut self, element: T) -> Result<(), TooLong> {
        within(LIMIT, self.0.len() + 1)?;
        self.0.push(element);
        Ok(())
    }

    /// A list of the first `LIMIT` of `elements`; the others are left out.
    pub fn from_iter_cut(elements: impl IntoIterator<Item = T>) -> Self {
        Self(elements.into_iter().take(LIMIT).collect())
    }

    /// The elements, without copying them.
    pub fn into_vec(self) -> Vec<T> {
        self.0
    }

    /// The elements, to be changed in place.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<T, const LIMIT: usize> Default for List<T, LIMIT> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, const LIMIT: usize> Deref for List<T, LIMIT> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T, const LIMIT: usize> TryFrom<Vec<T>> for List<T, LIMIT> {
    type Error = TooLong;

    fn try_from(elements: Vec<T>) -> Result<Self, TooLong> {
        within(LIMIT, elements.len())?;
        Ok(Self(elements))
    }
}

impl<T: Clone, const LIMIT: usize> TryFrom<&[T]> for List<T, LIMIT> {
    type Error = TooLong;

    fn try_from(elements: &[T]) -> Result<Self, TooLong> {
        within(LIMIT, elements.len())?;
        Ok(Self(elements.to_vec()))
    }
}

impl<T, const LIMIT: usize> IntoIterator for List<T, LIMIT> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a, T, const LIMIT: usize> IntoIterator for &'a List<T, LIMIT> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<T: fmt::Debug, const LIMIT: usize> fmt::Debug for List<T, LIMIT> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.0).finish()
    }
}

impl<T: Encode + Decode, const LIMIT: usize> Encode for List<T, LIMIT> {
    fn encode(&self, out: &mut Encoder<'_>) {
        out.reserve(4 + self.0.len() * T::MIN_SIZE);
        out.u32(self.0.len() as u32);
        for element in &self.0 {
            element.encode(out);
        }
    }
}

impl<T: Decode, const LIMIT: usize> Decode for List<T, LIMIT> {
    const MIN_SIZE: usize = 4;

    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        const { assert!(T::MIN_SIZE > 0, "a list of nothing has no bound") };
        let count = d.count(LIMIT, T::MIN_SIZE)?;
        let mut elements = Vec::with_capacity(count);
        for _ in 0..count {
            elements.push(T::decode(d)?);
        }
        Ok(Self(elements))
    }
}

/// The word of a `char`. Peers on x86 have signed characters and extend the sign, so this does too.
fn char_word(byte: u8) -> u32 {
    i32::from(byte as i8) as u32
}

/// `char x[N]` that holds binary data: `N` words, one byte in each.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WordBytes<const N: usize>(
    /// The bytes, the low eight bits of each word.
    pub [u8; N],
);

impl<const N: usize> Default for WordBytes<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> fmt::Debug for WordBytes<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl<const N: usize> Encode for WordBytes<N> {
    fn encode(&self, out: &mut Encoder<'_>) {
        out.words(self.0.map(char_word));
    }
}

impl<const N: usize> Decode for WordBytes<N> {
    const MIN_SIZE: usize = 4 * N;

    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self(d.words::<N>()?.map(|word| word as u8)))
    }
}

/// `char name[N]` that holds text: `N` words with one character in each, ended by a NUL.
///
/// Holds at most `N - 1` bytes, none of them NUL. Words after the NUL are ignored when read and
/// zero when written. Writing extends the sign of a character. Reading uses the low eight bits of
/// each word.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct WordString<const N: usize>(Bytes);

impl<const N: usize> WordString<N> {
    /// The most bytes that fit.
    pub const LIMIT: usize = N - 1;

    /// Takes `bytes` up to their first NUL, if they fit.
    ///
    /// # Errors
    /// [`TooLong`] when more than `N - 1` bytes come before the first NUL.
    pub fn new(bytes: &[u8]) -> Result<Self, TooLong> {
        let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        within(Self::LIMIT, text.len())?;
        Ok(Self(Bytes::copy_from_slice(text)))
    }

    /// The bytes, which need not be UTF-8 and hold no NUL.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text if it is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl<const N: usize> Deref for WordString<N> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<const N: usize> TryFrom<&[u8]> for WordString<N> {
    type Error = TooLong;

    fn try_from(bytes: &[u8]) -> Result<Self, TooLong> {
        Self::new(bytes)
    }
}

impl<const N: usize> TryFrom<&str> for WordString<N> {
    type Error = TooLong;

    fn try_from(text: &str) -> Result<Self, TooLong> {
        Self::new(text.as_bytes())
    }
}

impl<const N: usize> PartialEq<str> for WordString<N> {
    fn eq(&self, other: &str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl<const N: usize> PartialEq<&str> for WordString<N> {
    fn eq(&self, other: &&str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl<const N: usize> fmt::Debug for WordString<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl<const N: usize> fmt::Display for WordString<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(&self.0, f)
    }
}

impl<const N: usize> Encode for WordString<N> {
    fn encode(&self, out: &mut Encoder<'_>) {
        let mut words = [0; N];
        for (word, &byte) in words.iter_mut().zip(self.0.iter()) {
            *word = char_word(byte);
        }
        out.words(words);
    }
}

impl<const N: usize> Decode for WordString<N> {
    const MIN_SIZE: usize = 4 * N;

    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let bytes = WordBytes::<N>::decode(d)?.0;
        Self::new(&bytes).map_err(|_| DecodeError::Invalid("a name in a structure has no NUL"))
    }
}
