//! The place of an archive, and the patience with it.

use std::path::PathBuf;
use std::time::Duration;

use crate::S3Location;

/// The place of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A directory of this machine. It may be a mounted file system that a tape system watches.
    Directory(PathBuf),
    /// A bucket of S3.
    S3(S3Location),
}

/// Time limits and parallelism of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Longest wait for one step: a part written, a piece read, an answer. The operation then ends
    /// with [`crate::Error::Slow`].
    pub patience: Duration,
    /// Longest wait for the first bytes of a copy. A tape system needs hours.
    pub recall_patience: Duration,
    /// Requests of a [`crate::Driver`] that run at the same time. The others wait.
    pub parallel: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(60),
            recall_patience: Duration::from_secs(60),
            parallel: 4,
        }
    }
}
