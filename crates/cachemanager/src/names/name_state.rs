//! The use of names: how the names in a directory are looked up, the name of a file, and the
//! removals of its last name.

use bytes::Bytes;

use crate::statuses::cached_names::Listing;

/// Two consecutive lookups count as in order if at most this many names apart.
const NEAR: usize = 4;

/// See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct NameState {
    /// Directories: the order of lookups.
    lookups: Lookups,
    /// Files: the name by which it was found last.
    found_as: Option<Bytes>,
    /// The number of programs of this machine that are about to remove its last name.
    removals: u32,
}

/// The order in which the names in a directory are looked up.
#[derive(Debug, Default)]
enum Lookups {
    /// No name led to a vnode without a promise.
    #[default]
    None,
    /// The last name that led to a vnode without a promise.
    Last(Bytes),
    /// The names are looked up in order, so the following names are fetched too.
    InOrder,
}

impl NameState {
    /// Notes a lookup of a name that leads to a vnode without a promise. Returns whether names are
    /// looked up in order.
    pub(crate) fn looked_up(&mut self, listing: &Listing, name: &Bytes) -> bool {
        let is_next = match &self.lookups {
            Lookups::InOrder => return true,
            Lookups::None => false,
            Lookups::Last(last) => {
                // Names between the two may have promises for another reason, so their lookups do
                // not come here.
                let mut next = listing.range(last.clone()..).skip(1).take(NEAR);
                next.any(|(next, _)| next == name)
            }
        };
        self.lookups = match is_next {
            true => Lookups::InOrder,
            false => Lookups::Last(name.clone()),
        };
        is_next
    }

    /// A program is about to look up the names in order.
    pub(crate) fn look_up_in_order(&mut self) {
        self.lookups = Lookups::InOrder;
    }

    /// The name by which the file was found last.
    pub(crate) fn found_as(&self) -> Option<&Bytes> {
        self.found_as.as_ref()
    }

    /// The file was found by this name.
    pub(crate) fn set_found_as(&mut self, name: &Bytes) {
        self.found_as = Some(name.clone());
    }

    /// A program is about to remove the last name.
    pub(crate) fn begin_removal(&mut self) {
        self.removals += 1;
    }

    /// The program has removed it, or failed to.
    pub(crate) fn end_removal(&mut self) {
        self.removals = self.removals.saturating_sub(1);
    }

    /// Whether a program is about to remove the last name.
    pub(crate) fn is_being_removed(&self) -> bool {
        self.removals > 0
    }
}
