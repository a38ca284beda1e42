//! Operations on a cell for its administrators, used by the command line and the console.
//!
//! One module a suite of the originals: [`vos`] (volumes), [`pts`] (users and groups), [`fs`] (access
//! lists, quotas, mount points), [`bos`] (what runs on a server), [`osd`] (object storage devices and
//! policies). An operation calls the servers and
//! answers typed results; how the originals print them is a method of the result, so that the
//! commands and their JSON come from one value.

pub mod bos;
pub mod date;
mod error;
pub mod fs;
mod host_names;
mod json;
pub mod osd;
pub mod pts;
pub mod table;
pub mod vos;
mod words;

pub use error::{Error, Result};
pub use host_names::HostNames;
