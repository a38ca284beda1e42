//! A request of the kernel for attributes: `promises/coherence.rs` has the rules.

use std::sync::Arc;
use std::time::Duration;

use super::Reads;
use crate::user::User;
use crate::vnode::Vnode;

/// The longest time that a request may take from the kernel to us. If it arrives sooner than this
/// after a notice, it may be older than the notice.
const QUEUED: Duration = Duration::from_secs(1);

/// A request of the kernel for the attributes of a vnode.
pub(crate) struct AttributesRequest<'a> {
    reads: &'a Reads,
    vnode: &'a Arc<Vnode>,
    /// The number of notices owed at the start.
    notices: u64,
    /// A notice was under way at the start.
    crossed: bool,
}

impl Drop for AttributesRequest<'_> {
    fn drop(&mut self) {
        let owed = self.vnode.state.lock().kernel.end_request();
        self.reads.promises.send_notices(self.vnode, owed);
    }
}

impl<'a> AttributesRequest<'a> {
    /// Begins a request and waits for notices (rule 4).
    pub(crate) async fn begin(reads: &'a Reads, vnode: &'a Arc<Vnode>) -> Self {
        let notices = vnode.state.lock().kernel.begin_request();
        let crossed = reads.env.audience.has_notices(vnode);
        let request = Self {
            reads,
            vnode,
            notices,
            crossed,
        };
        reads.env.audience.notified(vnode).await;
        request
    }

    /// Sends the notices that are needed before the answer. The status must be known.
    pub(crate) async fn finish(self, user: &Arc<User>) {
        let (reads, vnode) = (self.reads, self.vnode);
        let (owed, crossed) = {
            let mut state = vnode.state.lock();
            let length = vnode.body.lock().length();
            let crossed = self.crossed || state.kernel.may_cross(self.notices, QUEUED);
            let owed = state.kernel.answer(length, crossed);
            // For a file that is not open, the next open checks its length.
            (owed, crossed && state.opens.is_open())
        };
        reads.promises.send_notices(vnode, owed);
        reads.env.audience.notified(vnode).await;
        if crossed {
            reads.lengthen(user, vnode).await;
        }
    }
}
