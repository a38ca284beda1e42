//! File servers in the location database.
//!
//! A server has a number, to which entries refer. A registered server has a UUID, a uniquifier that
//! rises with every change, and up to 15 addresses. A server that only occurs in entries, by its
//! address, has only that address.

use cellar_wire::{AfsUuid, List};
use cellar_xdr::xdr_struct;

xdr_struct! {
    /// One server, stored under its number.
    pub(crate) struct Server {
        /// Nil for a server that never registered.
        pub(crate) uuid: AfsUuid,
        /// Rises when the addresses change.
        pub(crate) uniquifier: u32,
        /// The addresses, in the order in which the server gave them. Empty if another server has
        /// taken the last one over.
        pub(crate) addresses: List<u32, 15>,
    }
}

impl Server {
    /// A server known by one address.
    pub(crate) fn unregistered(address: u32) -> Self {
        Self {
            uuid: AfsUuid::NIL,
            uniquifier: 0,
            addresses: List::from_iter_cut([address]),
        }
    }

    /// Whether it has registered.
    pub(crate) fn is_registered(&self) -> bool {
        !self.uuid.is_nil()
    }

    /// The address that stands for it in forms without UUIDs.
    pub(crate) fn address(&self) -> u32 {
        self.addresses.first().copied().unwrap_or(0)
    }
}
