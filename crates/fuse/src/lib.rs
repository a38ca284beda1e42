//! Makes the cache manager visible to programs through FUSE.
//!
//! [`cellar_cachemanager`] decides what is cached and for how long it is valid. This crate turns
//! that into inodes (`inodes`), answers to the kernel's requests (`filesystem`), and notices that
//! invalidate what the kernel holds (`notices`).
//!
//! 1. The kernel may keep names and attributes exactly as long as the promise behind them is in
//!    force. It may keep file contents until a notice invalidates them or the file is opened in
//!    another version. So requests for cached data never reach this process.
//! 2. A request that the cache can answer is answered on the thread that read it. Any other request
//!    continues in the background, and the thread reads the next.
//! 3. No request takes longer than the cache's patience allows, except stores that make progress. A
//!    killed program waits for no request (`caller`).

mod caller;
pub mod control;
mod directories;
mod filesystem;
mod inodes;
#[cfg(test)]
mod model;
mod mount;
mod mount_points;
mod notices;
mod passthrough;
mod requests;
mod xattr;

pub use mount::{Mount, Options, remove_dead};
pub use mount_points::mount_points;
