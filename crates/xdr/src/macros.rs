//! Macros that declare a structure or an enumeration together with its XDR form.

/// Declares structures whose XDR form is their fields in order.
///
/// ```
/// cellar_xdr::xdr_struct! {
///     /// A version of a database.
///     #[derive(Copy)]
///     pub struct Version {
///         /// When it was labelled.
///         pub epoch: u32,
///         /// Changes since then.
///         pub counter: u32,
///     }
/// }
/// use cellar_xdr::{Decode, Encode};
/// let version = Version { epoch: 2, counter: 7 };
/// assert_eq!(Version::MIN_SIZE, 8);
/// assert_eq!(&version.to_xdr()[..], [0, 0, 0, 2, 0, 0, 0, 7]);
/// assert_eq!(Version::from_xdr(&version.to_xdr()), Ok(version));
/// ```
#[macro_export]
macro_rules! xdr_struct {
    ($(
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $( $(#[$field_meta:meta])* $field_vis:vis $field:ident : $type:ty ),* $(,)?
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        $vis struct $name {
            $( $(#[$field_meta])* $field_vis $field: $type, )*
        }

        impl $crate::Encode for $name {
            #[allow(unused_variables)]
            fn encode(&self, out: &mut $crate::Encoder<'_>) {
                out.reserve(<Self as $crate::Decode>::MIN_SIZE);
                $( $crate::Encode::encode(&self.$field, out); )*
            }
        }

        impl $crate::Decode for $name {
            const MIN_SIZE: usize = 0 $( + <$type as $crate::Decode>::MIN_SIZE )*;

            #[allow(unused_variables)]
            fn decode(d: &mut $crate::Decoder<'_>) -> Result<Self, $crate::DecodeError> {
                $( let $field = <$type as $crate::Decode>::decode(d)?; )*
                Ok(Self { $( $field ),* })
            }
        }
    )*};
}

/// Declares enumerations whose XDR form is one word. A word that is not listed is
/// [`DecodeError::Invalid`](crate::DecodeError::Invalid).
///
/// Use it only if no peer may send another value. If a server has its own abort code for an unknown
/// value, keep the word as an integer.
#[macro_export]
macro_rules! xdr_enum {
    ($(
        $(#[$meta:meta])*
        $vis:vis enum $name:ident {
            $( $(#[$variant_meta:meta])* $variant:ident = $value:literal ),* $(,)?
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        $vis enum $name {
            $( $(#[$variant_meta])* $variant = $value, )*
        }

        impl $name {
            /// The value of this word, if it has one.
            $vis const fn from_word(word: u32) -> Option<Self> {
                match word {
                    $( $value => Some(Self::$variant), )*
                    _ => None,
                }
            }
        }

        impl $crate::Encode for $name {
            fn encode(&self, out: &mut $crate::Encoder<'_>) {
                out.u32(*self as u32);
            }
        }

        impl $crate::Decode for $name {
            const MIN_SIZE: usize = 4;

            fn decode(d: &mut $crate::Decoder<'_>) -> Result<Self, $crate::DecodeError> {
                Self::from_word(d.u32()?).ok_or($crate::DecodeError::Invalid(concat!(
                    "not a value of ", stringify!($name)
                )))
            }
        }
    )*};
}
