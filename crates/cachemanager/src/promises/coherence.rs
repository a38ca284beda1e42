//! Notices to the kernel: the rules that say when a notice is sent, and why they are right.
//!
//! "The kernel" is the part that shows the cache to programs ([`Watcher`](crate::Watcher)).
//! It keeps attributes, names and bytes, and uses them without a request to the cache.
//!
//! # The rule
//!
//! 1. A notice about a vnode is owed if the kernel may hold something about the vnode that is no
//!    longer true. Reasons: the promise was broken, has run out, or was lost with its server; or an
//!    answer of a server shows another version. It is owed once.
//! 2. The break of a server is answered after the notice has taken effect, or after
//!    [`NOTICE_TIMEOUT`](crate::NOTICE_TIMEOUT).
//! 3. If the kernel receives the news with the next answer anyway, no notice is sent.
//! 4. A request for attributes, an open and a lock wait for the notices about their vnode that are
//!    under way. Reads, writes and changes of attributes do not wait: notices wait for pages that
//!    these requests hold.
//! 5. Before a program gets a lock, the cache asks the server about the file, unless its status is
//!    promised.
//! 6. If a file grew and the kernel may use the old length without a request, the cache sends the
//!    new length to the kernel (`reads/renew.rs`). It does not if the kernel has a greater length,
//!    which a notice cannot lower.
//!
//! # Why
//!
//! The kernel numbers the states of an inode. Each notice and each write raises the number. The
//! kernel accepts the attributes of an answer only if the number is the same as when it asked. So
//! an answer is lost if a notice overtakes it. It is also lost if a notice follows closely, because
//! the task that asked applies the answer some time after it was written. The kernel then continues
//! with the old length: read(2) and lseek(2) ask once and do not check again; sendfile(2) and
//! copy_file_range(2) do not even ask. Hence rule 3. The notice that matters was sent when the
//! promise ended, before the server (and so the `close` on the other machine) was answered. The
//! kernel has held nothing since then, and the next answer brings the new length.
//!
//! Rule 3 needs care if a promise ended without a notice. Pages of the old version may then be in
//! the kernel. If the length differs, the kernel drops all pages in the same step in which it takes
//! the length (without `FUSE_EXPLICIT_INVAL_DATA`). If the length is the same, a notice before the
//! answer drops the pages (`AttributesRequest::finish`). The attributes of that answer are lost,
//! which does no harm because the length is right. A promise that is about to run out is given up
//! `NOTICE_EARLIER` before the kernel stops believing it ([`Vnode::ran_out`]). So no request falls
//! between the two.
//!
//! An answer cannot know of a second break that happens after the answer is written.
//! `AttributesRequest::finish` sees the breaks before that, and then sends the length of an open
//! file separately (rule 6). It does the same if a notice was sent within the last `QUEUED`. The
//! request may have waited in the kernel's queue since before that notice. One case remains: a
//! break between the answer and the moment when the kernel applies it. Only a program that ignores
//! the lock which the reader holds can cause it.
//!
//! # The state of a vnode
//!
//! `KernelState` records the facts that the kernel was given since the last notice, and its
//! unanswered requests:
//!
//! | event | attributes | contents | owed |
//! | --- | --- | --- | --- |
//! | an answer with attributes that may be believed | held | | |
//! | bytes are read, written, or given away; names are given | | held | |
//! | the promise ends, the file vanishes | none | none | what was held |
//! | a server breaks a directory's promise | none | unchanged names | all held (`compare.rs`) |
//! | another version, no request | none | none | what was held |
//! | another version, during a request | | outdated | by the request, for equal lengths |
//!
//! The marks are set before the answer is computed, under the lock under which promises end. A
//! promise that ends in between finds the marks, and its notice comes after the answer: the kernel
//! locks the pages that it asks for. [`Vnode::attributes`] is the only source of a time for which
//! attributes are valid, and it sets the mark. [`Owed`] must be used, and only
//! [`Promises::send_notices`] uses it.
//!
//! Directory entries (readdir) in the kernel's cache are not part of this. A program gets them only
//! after an open, and the mount's answer to the open says whether they are current.

use std::sync::Arc;

use crate::broken_directory::Before;
use crate::promises::Promises;
use crate::promises::kernel_state::Owed;
use crate::vnode::{Attributes, Vnode};
use crate::watcher::{Length, Notice};

/// The notice that tells the kernel what is owed.
pub(super) fn notice(owed: Owed) -> Option<Notice> {
    if owed.includes_contents() {
        return Some(Notice::Contents);
    }
    (owed == Owed::ATTRIBUTES).then_some(Notice::Attributes)
}

impl Vnode {
    /// Returns the attributes for `stat`, if they are known. From now on the kernel holds them, if
    /// they are valid for some time.
    pub fn attributes(&self) -> Option<Attributes> {
        let mut state = self.state.lock();
        let status = self.with_changes_in(&state, state.status.last()?);
        let valid = state.status.valid();
        state
            .kernel
            .give_attributes(status.length, !valid.is_zero());
        Some(Attributes { status, valid })
    }

    /// Like [`Vnode::attributes`], for a directory whose names are returned too. From now on the
    /// kernel holds the names.
    pub fn attributes_with_names(&self) -> Option<Attributes> {
        self.hold_contents();
        self.attributes()
    }

    /// The kernel receives bytes or names of the vnode, and may hold them. Returns whether the file
    /// is longer than the kernel may know.
    pub(crate) fn hold_contents(&self) -> bool {
        let mut state = self.state.lock();
        state.kernel.give_contents();
        state.kernel.asked();
        state.kernel.is_longer()
    }
}

impl Promises {
    /// Sends the notice that is owed.
    pub(crate) fn send_notices(&self, vnode: &Arc<Vnode>, owed: Owed) {
        if let Some(notice) = notice(owed) {
            self.env.audience.send(vnode, notice);
        }
    }

    /// Sends the notice about a directory whose names are compared. It replaces the notice that is
    /// owed.
    pub(crate) fn send_names(&self, directory: &Arc<Vnode>, before: Before) {
        self.env.audience.send(directory, Notice::Names(before));
    }

    /// Makes the kernel drop all that it holds about a vnode. Needed if the kernel received
    /// something that may no longer be true, or that differs from what it believes.
    pub fn invalidate(&self, vnode: &Arc<Vnode>) {
        let _all = vnode.state.lock().kernel.end();
        self.send_notices(vnode, Owed::ALL);
    }

    /// Makes the kernel drop attributes that may never have been the server's.
    pub(crate) fn invalidate_attributes(&self, vnode: &Arc<Vnode>) {
        let owed = vnode.state.lock().kernel.end_attributes();
        self.send_notices(vnode, owed);
    }

    /// Sends the new length of a file that grew to the kernel, which then has its last byte too.
    pub(crate) fn send_length(&self, vnode: &Arc<Vnode>, length: Length) {
        vnode.state.lock().kernel.give_contents();
        self.env.audience.send(vnode, Notice::Length(length));
    }
}
