//! A request of the kernel for attributes: `promises/coherence.rs` has the rules.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Reads;
use crate::kernel_state::Owed;
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
        let owed = {
            let mut state = self.vnode.state.lock();
            let held = &mut state.held;
            held.questions = held.questions.saturating_sub(1);
            match held.outdated {
                // No answer brought the other version to the kernel.
                Some(_) if held.questions == 0 => held.take(),
                _ => Owed::NOTHING,
            }
        };
        self.reads.promises.send_notices(self.vnode, owed);
    }
}

impl<'a> AttributesRequest<'a> {
    /// Begins a request and waits for notices (rule 4).
    pub(crate) async fn begin(reads: &'a Reads, vnode: &'a Arc<Vnode>) -> Self {
        let notices = {
            let mut state = vnode.state.lock();
            state.held.questions += 1;
            state.held.unasked = 0;
            state.held.notices
        };
        let crossed = reads.env.audience.has_notices(vnode);
        let question = Self {
            reads,
            vnode,
            notices,
            crossed,
        };
        reads.env.audience.notified(vnode).await;
        question
    }

    /// Sends the notices that are needed before the answer. The status must be known.
    pub(crate) async fn finish(self, user: &Arc<User>) {
        let (reads, vnode) = (self.reads, self.vnode);
        let (owed, crossed) = {
            let mut state = vnode.state.lock();
            let length = vnode.body.lock().length();
            let recent = |at: Instant| at.elapsed() < QUEUED;
            let crossed = self.crossed
                || state.held.notices != self.notices
                || state.held.noticed.is_some_and(recent);
            let owed = state.held.answer(length, crossed);
            if !crossed {
                state.held.length_sent();
            }
            // For a file that is not open, the next open checks its length.
            (owed, crossed && state.opens > 0)
        };
        reads.promises.send_notices(vnode, owed);
        reads.env.audience.notified(vnode).await;
        if crossed {
            reads.lengthen(user, vnode).await;
        }
    }
}
