//! The client side without a mount: cells, volumes, paths, files, callbacks.
//!
//! A [`Client`] calls from one UDP port, on which its callback service answers too. The client
//! follows paths from `/afs` ([`path`]) and finds volumes in the VLDB ([`volume_location`]). Every
//! operation on a volume tries its servers in turn until one serves it ([`rotate`],
//! [`VolumeOperation`]). The crate `cellar-cachemanager` adds kept statuses, promises and bytes.
//! The caller passes the tokens of its user in [`Config::security`]. The crate `cellar-kerberos`
//! makes them.

mod access_list;
mod change;
pub mod client;
mod directory;
pub mod errno;
pub mod error;
pub mod fetch;
pub mod latency;
pub mod operation;
pub mod reach;
pub mod rxafscb;
mod server_names;
pub mod servers;
mod stop;
pub mod store;
pub mod volume;

pub mod cell;
pub mod mount_point;
pub mod mounted;
pub mod objects;
mod older;
pub mod path;
mod patience;
pub mod protection;
pub mod rotate;
pub mod volume_location;

pub use cell::{Cell, CellName, DNS_TIME, Dns, Ports};
pub use change::NameInDirectory;
pub use client::{Client, Config, volume_of};
pub use directory::Entry;
pub use errno::errno;
pub use error::{Error, PathProblem, Result, token_sentence};
pub use fetch::{Fetch, FetchCall};
pub use latency::{LATENCY_BOUNDS, Latency};
pub use mount_point::{MountPoint, VolumeKind};
pub use objects::{Download, Upload, UploadStep};
pub use older::OlderBytes;
pub use operation::VolumeOperation;
pub use path::{Follow, LINKS_MAX, Node};
pub use rxafscb::{BreakHandled, CallbackService, Promises};
pub use server_names::{ServerName, ServerNames};
pub use servers::{Administrator, Renewal, Servers};
pub use stop::Stop;
pub use store::Source;
pub use volume::Volume;
