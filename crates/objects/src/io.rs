//! Reading and writing the bytes of a layout.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cellar_wire::ids::{Uniquifier, VnodeId};
use cellar_wire::object::{Capability, Layout, OBJECTS_MAX, ObjectId, Placed};
use cellar_xdr::List;

mod chunks;
mod read_call;
mod reader;
mod row;
mod write_lane;
mod writer;

pub use reader::Reader;
pub use writer::{Writer, Written};

pub(crate) use read_call::ReadCall;
pub(crate) use reader::check;
pub(crate) use write_lane::Lane;

/// What proves to the devices what may be done.
#[derive(Clone)]
pub enum Capabilities {
    /// One for each object of the layout, as a file server gave them out. Empty: not to be used.
    Listed(Arc<List<Capability, OBJECTS_MAX>>),
    /// A server's own: one for each device, that allows everything. It is asked for the device's number.
    Made(Arc<dyn Fn(u32) -> Capability + Send + Sync>),
}

impl Capabilities {
    /// For the object at a place; `None`: it is not to be used.
    pub(crate) fn at(&self, place: usize, osd: u32) -> Option<Capability> {
        match self {
            Self::Listed(list) => list.get(place).filter(|one| !one.is_empty()).cloned(),
            Self::Made(make) => Some(make(osd)),
        }
    }
}

impl fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Listed(_) => "Listed",
            Self::Made(_) => "Made",
        })
    }
}

/// The objects of one version of a file, and the right to use them.
#[derive(Clone, Debug)]
pub struct ObjectSet {
    /// Whose they are.
    pub vnode: VnodeId,
    /// Whose they are.
    pub uniquifier: Uniquifier,
    /// Where they are. Of a [`Writer`]: the versions are those before, and `version` is the new one.
    pub layout: Layout,
    /// The right.
    pub capabilities: Capabilities,
}

impl ObjectSet {
    /// The name of the object at a place.
    pub(crate) fn object(&self, placed: &Placed) -> ObjectId {
        self.layout.object(self.vnode, self.uniquifier, placed)
    }
}

/// Settings of a [`Reader`].
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// Bytes of an object that one call asks for, at most.
    pub call_bytes: u64,
    /// Bytes that are read ahead of the caller, about. Each open call holds up to 1 MiB; one for each
    /// stripe is open in any case.
    pub window_bytes: u64,
    /// Silence after which another copy is read, or parity.
    pub patience: Duration,
    /// What is read is needed for a store, and nothing else has it: devices are waited for although a file server
    /// stands in for them.
    pub insists: bool,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            call_bytes: 8 << 20,
            window_bytes: 8 << 20,
            patience: Duration::from_secs(1),
            insists: false,
        }
    }
}

/// Settings of a [`Writer`].
#[derive(Clone, Copy, Debug)]
pub struct WriteOptions {
    /// Bytes of an object that one call brings, at most.
    pub call_bytes: u64,
    /// Calls for each object that were sent and are not answered yet.
    pub calls_ahead: usize,
    /// Time without progress after which a device counts as failed, where the file can do without.
    pub patience: Duration,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            call_bytes: 8 << 20,
            calls_ahead: 4,
            patience: Duration::from_secs(10),
        }
    }
}

/// Bytes of zeros handed out at a time.
const ZEROS_BYTES: usize = 64 << 10;

/// At most `length` zeros.
pub(crate) fn zeros(length: u64) -> Bytes {
    static ZEROS: [u8; ZEROS_BYTES] = [0; ZEROS_BYTES];
    let length = usize::try_from(length).unwrap_or(ZEROS_BYTES);
    Bytes::from_static(&ZEROS[..length.min(ZEROS_BYTES)])
}
