//! Write-back: the bytes and attributes that programs wrote, until a server has them.
//!
//! | file | task |
//! | --- | --- |
//! | `store.rs` | changes of bytes, and the store of one file |
//! | `attributes.rs` | changes of attributes |
//! | `queue.rs` | stores that no program waits for |
//! | `dirty_limit.rs` | refuses writes when no server takes the dirty bytes |
//! | `recovery.rs` | stores the changes that an earlier process left |

use std::sync::{Arc, Weak};

use super::changes::Changes;
use super::creates::Creates;
use super::environment::Environment;
use super::promises::Promises;
use super::reads::Reads;
use super::statuses::Statuses;
use super::vnode_table::VnodeTable;

mod attributes;
mod dirty_limit;
mod queue;
mod recovery;
mod store;
pub(crate) mod store_state;

use dirty_limit::FailedVolumes;
use queue::StoreQueue;

/// See the head of the file.
pub struct WriteBack {
    pub(super) env: Arc<Environment>,
    pub(super) vnodes: Arc<VnodeTable>,
    pub(super) promises: Arc<Promises>,
    pub(super) creates: Arc<Creates>,
    pub(super) statuses: Arc<Statuses>,
    pub(super) changes: Arc<Changes>,
    pub(super) reads: Arc<Reads>,
    queue: StoreQueue,
    failed_volumes: FailedVolumes,
    me: Weak<Self>,
}

impl WriteBack {
    pub(super) fn new(reads: &Arc<Reads>, changes: Arc<Changes>) -> Arc<Self> {
        let statuses = &reads.statuses;
        Arc::new_cyclic(|me| Self {
            env: statuses.env.clone(),
            vnodes: statuses.vnodes.clone(),
            promises: statuses.promises.clone(),
            creates: statuses.creates.clone(),
            statuses: statuses.clone(),
            changes,
            reads: reads.clone(),
            queue: StoreQueue::default(),
            failed_volumes: FailedVolumes::default(),
            me: me.clone(),
        })
    }

    /// A reference for background tasks.
    fn me(&self) -> Option<Arc<Self>> {
        self.me.upgrade()
    }
}
