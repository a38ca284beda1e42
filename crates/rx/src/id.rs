//! Identifiers of connections and calls for the driver.
//!
//! Each consists of a slot number and the generation of that slot. An identifier that is kept too
//! long therefore refers to nothing, rather than to another connection or call.

use std::fmt;

macro_rules! slot_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name {
            pub(crate) slot: u32,
            pub(crate) generation: u32,
        }

        impl $name {
            /// Slot number: small, and reused after the object is gone. Usable as an index into a
            /// table beside the endpoint, if [`Self::generation`] is compared too.
            #[must_use]
            pub const fn slot(self) -> usize {
                self.slot as usize
            }

            /// How often the slot has been reused.
            #[must_use]
            pub const fn generation(self) -> u32 {
                self.generation
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({}.{})"), self.slot, self.generation)
            }
        }
    };
}

slot_id! {
    /// Identifies a connection of this endpoint, client or server end.
    ConnectionId
}
slot_id! {
    /// Identifies a call of this endpoint, client or server end. It represents the driver's
    /// interest in the call, which may end before the last packet is acknowledged; see
    /// [`crate::Endpoint`].
    CallId
}
