//! The options for opening a partition, with the cost of each.

use std::time::Duration;

/// The moment when a change counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// A ticket resolves after the change is on the disk: a power cut loses no acknowledged change.
    Strict,
    /// A ticket resolves at once, and the journal is synced at this interval. A power cut loses the
    /// changes of up to one interval: whole changes, and always the newest ones.
    Relaxed(Duration),
}

/// Settings of one open partition. All sizes in bytes.
#[derive(Clone, Debug)]
pub struct Options {
    /// Default `Strict`.
    pub durability: Durability,
    /// Size of one journal file; there are up to four. The memory for changes that are not yet in
    /// the base table is at most about twice this size. Default 24 MiB.
    pub journal_bytes: u64,
    /// Page cache of the base table. Default 48 MiB.
    pub base_cache_bytes: usize,
    /// Decoded vnodes kept for status reads, about 400 bytes each. Default 100,000.
    pub cached_vnodes: usize,
    /// Bodies and directory pages kept with these vnodes. Default 32 MiB.
    pub cached_body_bytes: usize,
    /// Room kept back so that tables can always be flushed and removals always succeed. Files for
    /// bodies and journals leave this much free. Half of it lies in a file; an eighth is for
    /// removals alone. At most an eighth of the file system. Default 128 MiB.
    pub reserve_bytes: u64,
    /// A body up to this length is kept in the table, not in blocks of its own; at most 16 KiB.
    /// Default 4 KiB: see the decision record for the measurement.
    pub inline_bytes: usize,
    /// Versions per second that the background removal of clones and large files examines. Default
    /// 50,000.
    pub reap_rate: u32,
    /// If the journal is damaged, opens the partition without the changes behind the damage, which
    /// are then lost. Otherwise such a partition is refused. Default false.
    pub drop_damaged_journal: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::Strict,
            journal_bytes: 24 << 20,
            base_cache_bytes: 48 << 20,
            cached_vnodes: 100_000,
            cached_body_bytes: 32 << 20,
            reserve_bytes: 128 << 20,
            inline_bytes: 4096,
            reap_rate: 50_000,
            drop_damaged_journal: false,
        }
    }
}
