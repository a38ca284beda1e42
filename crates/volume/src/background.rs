//! The work on a whole partition, mostly while it is in use: removal of unused data, scrub, checks,
//! and the list of all named objects.

pub(crate) mod archivable;
pub(crate) mod block_map;
pub(crate) mod check;
pub(crate) mod reap;
pub(crate) mod references;
pub(crate) mod scrub;
