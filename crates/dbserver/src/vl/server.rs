//! File servers, as the location database knows them.
//!
//! A server has a number, which entries refer to. One that has registered has a UUID, a uniquifier
//! that rises with every change, and up to 15 addresses. One that was only ever named by address in
//! an entry has just that.

use cellar_wire::{AfsUuid, List};
use cellar_xdr::xdr_struct;

xdr_struct! {
    /// One server, stored under its number.
    pub(crate) struct Server {
        /// Nil for a server that never registered.
        pub(crate) uuid: AfsUuid,
        /// Rises when the addresses change.
        pub(crate) uniquifier: u32,
        /// In the order in which the server gave them. May be empty when another server took the
        /// last one away.
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

    /// Whether it has said who it is.
    pub(crate) fn is_registered(&self) -> bool {
        !self.uuid.is_nil()
    }

    /// The address by which forms without UUIDs name it.
    pub(crate) fn address(&self) -> u32 {
        self.addresses.first().copied().unwrap_or(0)
    }
}
