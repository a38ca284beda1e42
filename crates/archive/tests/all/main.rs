//! Archives, over real directories and over servers of S3.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests read clocks, open sockets, and say where they fail"
)]

mod batches;
mod bytes_of;
mod contract;
mod directory;
mod faulty;
mod s3;
mod versitygw;
