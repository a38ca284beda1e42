//! The cache manager shown to programs through FUSE.
//!
//! What is cached and why it is true is [`cellar_client::cache`]'s business; here it becomes inodes
//! (`inodes`), answers to the kernel's requests (`filesystem`), and notices to the kernel that what it
//! keeps is no longer true (`notices`).
//!
//! 1. The kernel may keep names and attributes exactly as long as the promise behind them, and file
//!    contents until it is told otherwise or the file is opened in another version: so what is warm
//!    never reaches this process.
//! 2. A request that can be answered from the cache is answered on the thread that read it; any other goes
//!    on in the background, and the thread reads the next.
//! 3. No request takes longer than the cache's patience allows, but for stores that go on; and a program that is killed
//!    waits for none (`caller`).

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
