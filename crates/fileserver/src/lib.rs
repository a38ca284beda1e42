//! The file server: RXAFS, hosts, callbacks, locks, access lists
