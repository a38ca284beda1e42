//! The facts about one vnode that the kernel may hold, and the notices that it is owed. The rule is
//! in `coherence.rs`.

use std::time::Duration;

use tokio::time::Instant;

/// A promise is given up this much earlier than the kernel stops believing it. The value exceeds
/// the interval between two checks (`write_back/store.rs`) plus the time of a notice.
pub(crate) const NOTICE_EARLIER: Duration = Duration::from_secs(6);

/// The notice that the kernel must receive about a vnode: see
/// [`Promises::send_notices`](super::Promises::send_notices).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "the kernel goes on believing it"]
pub(crate) struct Owed {
    attributes: bool,
    contents: bool,
}

impl Owed {
    /// The attributes and the contents.
    pub(crate) const ALL: Self = Self {
        attributes: true,
        contents: true,
    };
    /// The attributes.
    pub(crate) const ATTRIBUTES: Self = Self {
        attributes: true,
        contents: false,
    };
    /// Nothing.
    pub(crate) const NOTHING: Self = Self {
        attributes: false,
        contents: false,
    };

    /// Whether a notice about the contents is owed.
    pub(super) fn includes_contents(self) -> bool {
        self.contents
    }
}

/// The state that the kernel may hold about a vnode, and its unanswered requests.
#[derive(Debug, Default)]
pub(crate) struct KernelState {
    attributes: bool,
    contents: bool,
    /// The least length that the kernel may have. `None`: the kernel was given no attributes.
    least_length: Option<u64>,
    /// The file grew, and is longer than the kernel may know.
    is_longer: bool,
    /// The number of unanswered requests for attributes.
    requests: u32,
    /// The kernel holds bytes of another version, which the cache found during a request. The value
    /// is the length that the file had.
    outdated: Option<u64>,
    /// The number of notices owed so far.
    notices: u64,
    /// The time of the last of them.
    noticed: Option<Instant>,
    /// How often the cache asked the server again without a request of the kernel.
    unasked: u32,
}

impl KernelState {
    /// The kernel is given attributes, with this length. `may_hold`: it may believe them for some
    /// time.
    pub(crate) fn give_attributes(&mut self, length: u64, may_hold: bool) {
        // The kernel may ignore them and keep the length that it has.
        self.least_length = Some(self.least_length.map_or(length, |least| least.min(length)));
        self.attributes |= may_hold;
    }

    /// The kernel lowers its length to this one: a program truncates the file, or a read is
    /// answered with fewer bytes than the kernel asked for.
    pub(crate) fn lower_length(&mut self, length: u64) {
        self.least_length = self.least_length.map(|least| least.min(length));
    }

    /// The kernel is given bytes or names, without a request or with one. Also for the changed
    /// names of a directory, which are sent one by one: the kernel continues to hold the others.
    pub(crate) fn give_contents(&mut self) {
        self.contents = true;
    }

    /// The kernel has made a request about the vnode.
    pub(crate) fn asked(&mut self) {
        self.unasked = 0;
    }

    fn take(&mut self) -> Owed {
        self.outdated = None;
        let owed = Owed {
            attributes: std::mem::take(&mut self.attributes),
            contents: std::mem::take(&mut self.contents),
        };
        if owed != Owed::NOTHING {
            self.count_notice();
        }
        owed
    }

    fn count_notice(&mut self) {
        self.notices += 1;
        self.noticed = Some(Instant::now());
    }

    /// The promise has ended. Returns the notice that is owed.
    pub(crate) fn end(&mut self) -> Owed {
        self.take()
    }

    /// The attributes may never have been the server's. Returns the notice that is owed.
    pub(crate) fn end_attributes(&mut self) -> Owed {
        if !std::mem::take(&mut self.attributes) {
            return Owed::NOTHING;
        }
        self.count_notice();
        Owed::ATTRIBUTES
    }

    /// A server's answer shows another version of a file. The arguments are its old and its new
    /// length. Returns the notice that is owed.
    ///
    /// A file may shrink and then grow without a request of the kernel, which still has the first
    /// length. A notice could only make that length greater, and would make the kernel ignore the
    /// next answer with the true length.
    pub(crate) fn new_version(&mut self, (was, is): (u64, u64)) -> Owed {
        let exceeds = self.least_length.is_some_and(|least| is > least);
        self.is_longer = exceeds && (is > was || self.is_longer);
        if self.requests == 0 {
            return self.take();
        }
        if self.contents {
            self.outdated.get_or_insert(was);
        }
        Owed::NOTHING
    }

    /// A request for attributes begins. Returns the number of notices owed so far.
    pub(crate) fn begin_request(&mut self) -> u64 {
        self.requests += 1;
        self.asked();
        self.notices
    }

    /// The request ends. Returns the notice that is owed if no answer brought the other version to
    /// the kernel.
    pub(crate) fn end_request(&mut self) -> Owed {
        self.requests = self.requests.saturating_sub(1);
        match self.outdated {
            Some(_) if self.requests == 0 => self.take(),
            _ => Owed::NOTHING,
        }
    }

    /// Whether a notice may cross the answer to a request: one came after the first `notices`, or
    /// within the last `queued`.
    pub(crate) fn may_cross(&self, notices: u64, queued: Duration) -> bool {
        self.notices != notices || self.noticed.is_some_and(|at| at.elapsed() < queued)
    }

    /// A request is about to be answered with this length. `crossed`: the kernel may ignore the
    /// answer. Returns the notice that must be sent before the answer.
    pub(crate) fn answer(&mut self, length: u64, crossed: bool) -> Owed {
        let owed = match self.outdated.take() {
            Some(was) if was == length || crossed => self.take(),
            _ => Owed::NOTHING,
        };
        if !crossed {
            self.length_sent(length);
        }
        owed
    }

    /// Counts a request to the server without a request of the kernel. Returns whether there were
    /// at most `most` of them, and the kernel has a length.
    pub(crate) fn may_renew(&mut self, most: u32) -> bool {
        self.unasked += 1;
        self.least_length.is_some() && self.unasked <= most
    }

    /// Returns whether the kernel must learn that the file is longer.
    pub(crate) fn is_longer(&self) -> bool {
        self.is_longer
    }

    /// The kernel has this length, or a greater one.
    pub(crate) fn length_sent(&mut self, length: u64) {
        self.least_length = Some(length);
        self.is_longer = false;
    }
}

#[cfg(test)]
mod tests;
