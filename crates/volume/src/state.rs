//! The state of open partitions and volumes in memory: shared parts, caches, locks, reserved
//! numbers, statistics, and tickets of changes that are not durable.

pub(crate) mod core;
pub(crate) mod history;
pub(crate) mod hold;
pub(crate) mod pending_changes;
pub(crate) mod reserve;
pub(crate) mod retired_count;
pub(crate) mod ticket;
pub(crate) mod traffic;
pub(crate) mod usage;
pub(crate) mod vnode_slots;
