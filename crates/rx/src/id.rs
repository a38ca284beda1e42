//! Names of connections and calls, as the driver holds them.
//!
//! Each is a slot number and the generation of that slot, so a name kept too long names nothing
//! instead of something else.

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
            /// Slot number: small, reused after the thing is gone. Good as an index into a table
            /// beside the endpoint, if [`Self::generation`] is compared too.
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
    /// A connection of this endpoint, client or server end.
    ConnectionId
}
slot_id! {
    /// A call of this endpoint, client or server end. It stands for the driver's interest in the
    /// call: it ends as [`crate::Endpoint`] says, which may be before the last packet is acknowledged.
    CallId
}
