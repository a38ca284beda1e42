//! The store of a mount's cache: the bytes of files, in memory or on disk, and their index.
//!
//! 1. A [`Body`] is the content of one cached file: which bytes are here, which are dirty, and
//!    which call stores them next.
//! 2. The [`Index`] is the log of a cache directory. With it, the next process continues with the
//!    files that an earlier process left. The head comment of `cache_index.rs` explains why no
//!    crash makes the cache serve or store wrong bytes.
//! 3. Small files share files, the packs. The head comment of `pack_slots.rs` explains why that is
//!    as safe.
//!
//! | module | content |
//! | --- | --- |
//! | `body` | the state of one file: fetched, written, stored, lent, recovered |
//! | `backing_store` | the place of the bytes: memory, a slot of a pack, or a file |
//! | `pack_slots` | many small files in one file |
//! | `byte_ranges` | sets of bytes |
//! | `cache_index` | the log of a cache directory, its replay and its eviction |
//! | `index_entry` | the state of one file in the index |
//! | `index_record` | the records of the log |
//! | `recovery_notes` | the records of one body, and checksums of bytes of an earlier process |
//!
//! The crate calls no servers, knows no users and uses no executor. Its calls block on the disk.

mod backing_store;
mod body;
mod byte_ranges;
mod cache_index;
#[cfg(test)]
mod crashes;
mod index_entry;
mod index_record;
mod pack_slots;
mod recovery_notes;

pub use body::{Body, Piece, STORE_BYTES, Space};
pub use cache_index::{Index, Unstored, aside_in, unstored_in};
pub use index_entry::{FileKey, LocalCreate};
pub use recovery_notes::{RecoveredChanges, checksums};
