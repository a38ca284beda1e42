//! The load of a file server by volume, user and client machine, for `cellar top`.

use cellar_xdr::xdr_struct;

/// `GetLoad`: by volume.
pub const LOAD_VOLUMES: u32 = 0;
/// `GetLoad`: by user.
pub const LOAD_USERS: u32 = 1;
/// `GetLoad`: by client machine.
pub const LOAD_CLIENTS: u32 = 2;

/// The most entries in one reply.
pub const LOAD_ENTRIES_MAX: usize = 1024;

xdr_struct! {
    /// The calls of clients for one volume, of one user, or from one machine. The counts only grow.
    /// They begin again at 0 if the server forgets the entry meanwhile.
    #[derive(Copy, Default)]
    pub struct LoadEntry {
        /// The number of the volume or user in the last word, or the IPv6 address of the machine.
        /// An IPv4 address is mapped.
        pub key: [u32; 4],
        /// Calls that ended.
        pub operations: u64,
        /// Bytes of files that they transferred.
        pub bytes: u64,
        /// Microseconds from their start to their end.
        pub micros: u64,
    }
}
