//! Reading and writing of the bytes of a layout.

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

/// Proof to the devices of what is permitted.
#[derive(Clone)]
pub enum Capabilities {
    /// One for each object of the layout, as issued by a file server. An empty one: the object must
    /// not be used.
    Listed(Arc<List<Capability, OBJECTS_MAX>>),
    /// A server's own: one for each device, which permits everything. The argument is the device's
    /// number.
    Made(Arc<dyn Fn(u32) -> Capability + Send + Sync>),
}

impl Capabilities {
    /// Returns the capability for the object at a place; `None`: the object must not be used.
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

/// The objects of one version of a file, and the capabilities for them.
#[derive(Clone, Debug)]
pub struct ObjectSet {
    /// Vnode that owns the objects.
    pub vnode: VnodeId,
    /// Uniquifier that owns the objects.
    pub uniquifier: Uniquifier,
    /// Location of the objects. For a [`Writer`] the versions of the objects are the old ones, and
    /// `version` is the new one.
    pub layout: Layout,
    /// The capabilities.
    pub capabilities: Capabilities,
}

impl ObjectSet {
    /// Returns the id of the object at a place.
    pub(crate) fn object(&self, placed: &Placed) -> ObjectId {
        self.layout.object(self.vnode, self.uniquifier, placed)
    }
}

/// Settings of a [`Reader`].
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// Most bytes of an object that one call requests.
    pub call_bytes: u64,
    /// Approximate bytes that are read ahead of the caller. Each open call holds up to 1 MiB; one
    /// for each stripe is always open.
    pub window_bytes: u64,
    /// Silence after which another copy, or parity, is read.
    pub patience: Duration,
    /// Whether a store needs the data and no other source has it. The reader then waits for devices
    /// even if a file server stands in for them.
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
    /// Most bytes of an object that one call carries.
    pub call_bytes: u64,
    /// Most unanswered calls for each object.
    pub calls_ahead: usize,
    /// Time without progress after which a device counts as failed, if the file can do without it.
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

/// Zeros returned at a time, bytes.
const ZEROS_BYTES: usize = 64 << 10;

/// Returns at most `length` zeros.
pub(crate) fn zeros(length: u64) -> Bytes {
    static ZEROS: [u8; ZEROS_BYTES] = [0; ZEROS_BYTES];
    let length = usize::try_from(length).unwrap_or(ZEROS_BYTES);
    Bytes::from_static(&ZEROS[..length.min(ZEROS_BYTES)])
}
