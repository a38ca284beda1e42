//! The kernel, as the cache sees it: the receiver of notices.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::broken_directory::Before;
use super::vnode::Vnode;

/// The time that a file server, or a program, waits for notices.
pub const NOTICE_TIMEOUT: Duration = Duration::from_millis(250);

/// Something that is no longer true, and that the kernel must drop.
#[derive(Clone, Debug)]
pub enum Notice {
    /// The attributes.
    Attributes,
    /// The attributes, and all bytes of a file or names of a directory.
    Contents,
    /// The attributes of a directory, and its names that changed:
    /// [`Names::changed_names`](super::Names::changed_names).
    Names(Before),
    /// A file is longer than the kernel knows.
    Length(Length),
}

/// The length of a file that grew.
#[derive(Clone, Debug)]
pub struct Length {
    vnode: Arc<Vnode>,
    length: u64,
    last: u8,
    breaks: u64,
}

impl Length {
    /// `last`: the last byte of the file. It is valid while the count of broken promises is
    /// `breaks`.
    pub(crate) fn new(vnode: &Arc<Vnode>, length: u64, last: u8, breaks: u64) -> Self {
        let vnode = vnode.clone();
        Self {
            vnode,
            length,
            last,
            breaks,
        }
    }

    /// Returns the position and value of the last byte; `None` if the file may have changed.
    pub fn last(&self) -> Option<(u64, u8)> {
        let is_so = self.vnode.breaks() == self.breaks && self.vnode.length() == self.length;
        let at = self.length.checked_sub(1)?;
        is_so.then_some((at, self.last))
    }
}

/// The receiver of notices: the kernel, or code in its place. It shows the cache to programs and
/// must know what is no longer true.
pub trait Watcher: Send + Sync {
    /// Sends a notice to the kernel. Does not wait. Notices about one vnode take effect in the
    /// order of the calls. Equal notices may be merged.
    fn changed(&self, vnode: &Arc<Vnode>, notice: Notice);
    /// Returns whether a notice about this vnode is under way. Names in a directory do not count: a
    /// request may hold the directory's lock.
    fn has_notices(&self, vnode: &Vnode) -> bool;
    /// Waits until the notices about this vnode that were under way at the call have taken effect.
    fn notified<'a>(&'a self, vnode: &'a Vnode) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
    /// Waits until all notices that were under way at the call have taken effect, at most
    /// [`NOTICE_TIMEOUT`].
    fn all_delivered(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
    /// Names in the dynamic root may lead to other volumes now, so the kernel must look them up
    /// again.
    fn cells_changed(&self) {}
    /// The cache holds too many vnodes. These were not used for long, and the kernel was shown
    /// them. The kernel is asked to release those that no program uses.
    fn crowded(&self, vnodes: Vec<Arc<Vnode>>) {
        drop(vnodes);
    }
}

/// The watcher, if there is one. Only `promises/coherence.rs` sends it notices.
#[derive(Default)]
pub(crate) struct Audience(OnceLock<Arc<dyn Watcher>>);

impl Audience {
    /// Sets the watcher. Only the first call has an effect.
    pub(crate) fn set(&self, watcher: Arc<dyn Watcher>) {
        if self.0.set(watcher).is_err() {
            tracing::debug!("the cache has a watcher already");
        }
    }

    pub(crate) fn crowded(&self, vnodes: Vec<Arc<Vnode>>) {
        if let Some(watcher) = self.0.get() {
            watcher.crowded(vnodes);
        }
    }

    /// See [`Watcher::cells_changed`].
    pub(crate) fn cells_changed(&self) {
        if let Some(watcher) = self.0.get() {
            watcher.cells_changed();
        }
    }

    /// See [`Watcher::all_delivered`].
    pub(crate) async fn all_delivered(&self) {
        if let Some(watcher) = self.0.get() {
            watcher.all_delivered().await;
        }
    }

    /// See [`Watcher::notified`].
    pub(crate) async fn notified(&self, vnode: &Vnode) {
        if let Some(watcher) = self.0.get()
            && watcher.has_notices(vnode)
        {
            watcher.notified(vnode).await;
        }
    }

    pub(crate) fn has_notices(&self, vnode: &Vnode) -> bool {
        let watcher = self.0.get();
        watcher.is_some_and(|watcher| watcher.has_notices(vnode))
    }

    pub(crate) fn send(&self, vnode: &Arc<Vnode>, notice: Notice) {
        if let Some(watcher) = self.0.get() {
            watcher.changed(vnode, notice);
        }
    }
}
