//! Local creation: files that programs created in leased directories, and that the server does not
//! know yet.
//!
//! | file | task |
//! | --- | --- |
//! | `leases.rs` | takes and returns the leases of directories |
//! | `local_create.rs` | creates a file under a lease |
//! | `create_queue.rs` | one queue of pending creates |
//! | `pending_create.rs` | sends the queues to the servers |
//! | `given_up.rs` | drops creates and stores whose target is gone |
//!
//! A request to a server about a vnode waits first until the server knows the vnode
//! ([`Creates::flush_pending`]).

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};

use cellar_wire::ids::VolumeId;
use cellar_wire::rxafs::AfsFetchStatus;
use tokio::time::Instant;

use super::environment::Environment;
use super::lock_order::{LEAF, Ordered};
use super::promises::Promises;
use super::vnode_table::VnodeTable;

pub(super) mod create_queue;
mod given_up;
pub(crate) mod lease;
mod leases;
mod local_create;
mod pending_create;

use create_queue::Queue;
use local_create::{Numbers, Template};
pub(crate) use pending_create::SMALL;

/// See the head of the file.
pub struct Creates {
    env: Arc<Environment>,
    vnodes: Arc<VnodeTable>,
    promises: Arc<Promises>,
    /// The number of pending creates.
    pending_creates: AtomicUsize,
    /// The queues, by cell, volume, and number of the user.
    queues: Ordered<LEAF, HashMap<(u32, VolumeId, u32), Arc<Queue>>>,
    /// Volumes on servers without leases, and the time until which that is assumed.
    unknown: Ordered<LEAF, HashMap<(u32, VolumeId), Instant>>,
    numbers: Ordered<LEAF, HashMap<(u32, VolumeId), Numbers>>,
    templates: Ordered<LEAF, HashMap<Template, AfsFetchStatus>>,
    me: Weak<Self>,
}

impl Creates {
    pub(super) fn new(
        env: Arc<Environment>,
        vnodes: Arc<VnodeTable>,
        promises: Arc<Promises>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            env,
            vnodes,
            promises,
            pending_creates: AtomicUsize::new(0),
            queues: Ordered::default(),
            unknown: Ordered::default(),
            numbers: Ordered::default(),
            templates: Ordered::default(),
            me: me.clone(),
        })
    }

    /// A reference for background tasks.
    fn me(&self) -> Option<Arc<Self>> {
        self.me.upgrade()
    }
}
