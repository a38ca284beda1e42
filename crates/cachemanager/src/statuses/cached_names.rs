//! The names that a vnode contains: those in a directory, or the text of a symbolic link.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use cellar_wire::ids::Fid;
use tokio::time::{Duration, Instant};

use crate::user::User;

/// The names in a directory in their order, each with its fid.
pub type Listing = BTreeMap<Bytes, Fid>;

/// See the head of the file. Each part has the data version that it belongs to.
#[derive(Debug, Default)]
pub(crate) struct CachedNames {
    listing: Option<(u64, Arc<Listing>)>,
    /// The user for whom the listing was fetched.
    lister: Option<Arc<User>>,
    /// When the names were last compared after a break (`names/compare.rs`).
    compared: Option<Instant>,
    link_text: Option<(u64, Bytes)>,
}

impl CachedNames {
    /// The listing, of whatever version.
    pub(crate) fn latest_listing(&self) -> Option<Arc<Listing>> {
        self.listing.as_ref().map(|(_, listing)| listing.clone())
    }

    /// The listing of a version.
    pub(crate) fn listing(&self, version: u64) -> Option<&Arc<Listing>> {
        let (of, listing) = self.listing.as_ref()?;
        (*of == version).then_some(listing)
    }

    /// The listing of a version, for a change of its names that keeps the version.
    pub(crate) fn listing_mut(&mut self, version: u64) -> Option<&mut Arc<Listing>> {
        let (of, listing) = self.listing.as_mut()?;
        (*of == version).then_some(listing)
    }

    /// Replaces the listing by one that was fetched for a user.
    pub(crate) fn set_listing(&mut self, version: u64, listing: Arc<Listing>, lister: &Arc<User>) {
        self.listing = Some((version, listing));
        self.lister = Some(lister.clone());
    }

    /// We created the directory: it has no names.
    pub(crate) fn set_empty(&mut self, version: u64) {
        self.listing = Some((version, Arc::default()));
    }

    /// We made `changes` changes, which led to `version`. `edit` applies them to the listing. If
    /// the version grew by another number, other clients made changes too, and the listing is
    /// dropped.
    pub(crate) fn advance(
        &mut self,
        changes: u64,
        version: u64,
        edit: impl FnOnce(&mut Arc<Listing>),
    ) {
        match &mut self.listing {
            Some((of, listing)) if of.wrapping_add(changes) == version => {
                edit(listing);
                *of = version;
            }
            _ => self.listing = None,
        }
    }

    /// The server refuses to create a file, so its name leads nowhere.
    pub(crate) fn remove_refused(&mut self, name: &Bytes, fid: Fid) {
        if let Some((_, listing)) = &mut self.listing
            && listing.get(name) == Some(&fid)
        {
            Arc::make_mut(listing).remove(name);
        }
    }

    /// Drops the names.
    pub(crate) fn forget(&mut self) {
        self.listing = None;
        self.link_text = None;
    }

    /// Returns the listing of a version with its user if it may be compared with the next one, and
    /// counts that as a comparison. `pause`: the least time between two comparisons.
    pub(crate) fn begin_comparison(
        &mut self,
        version: u64,
        pause: Duration,
    ) -> Option<(Arc<Listing>, Arc<User>)> {
        let rested = self.compared.is_none_or(|at| at.elapsed() >= pause);
        let listing = self.listing(version).filter(|_| rested)?.clone();
        let lister = self.lister.clone()?;
        self.compared = Some(Instant::now());
        Some((listing, lister))
    }

    /// The text of the symbolic link in a version.
    pub(crate) fn link_text(&self, version: u64) -> Option<&Bytes> {
        let (of, text) = self.link_text.as_ref()?;
        (*of == version).then_some(text)
    }

    /// Replaces the text of the symbolic link.
    pub(crate) fn set_link_text(&mut self, version: u64, text: Bytes) {
        self.link_text = Some((version, text));
    }
}
