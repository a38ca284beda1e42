//! Operations on a cell for its administrators, used by the command line and the console.
//!
//! Each module corresponds to one suite of OpenAFS's commands: [`vos`] (volumes), [`pts`] (users
//! and groups), [`fs`] (access lists, quotas, mount points), [`bos`] (the server processes of a
//! machine), [`osd`] (object storage devices and policies). [`hsm`], [`jobs`] and [`recalls`] are
//! about archives, and the jobs of file servers. [`status`] asks all servers of a cell.
//! An operation calls the servers and returns a typed result. The result has the methods that print
//! it as OpenAFS does. The commands and their JSON therefore come from one value.

pub mod bos;
pub mod date;
mod error;
pub mod fs;
mod host_names;
pub mod hsm;
pub mod jobs;
mod json;
pub mod load;
pub mod osd;
pub mod pts;
pub mod recalls;
pub mod status;
pub mod table;
pub mod vos;
mod words;

pub use error::{Error, Result};
pub use host_names::{HostNames, reverse_name};
