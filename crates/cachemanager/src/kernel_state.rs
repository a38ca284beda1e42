//! The facts about one vnode that the kernel may hold, and the notices that it is owed. The rule is
//! in `promises/coherence.rs`.

use std::time::Duration;

use tokio::time::Instant;

/// A promise is given up this much earlier than the kernel stops believing it. The value exceeds
/// the interval between two checks (`write_back/store.rs`) plus the time of a notice.
pub(crate) const TOLD_EARLIER: Duration = Duration::from_secs(6);

/// The notice that the kernel must receive about a vnode: see
/// [`Promises::send_notices`](super::Promises::send_notices).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "the kernel goes on believing it"]
pub(crate) struct Owed {
    pub(super) attributes: bool,
    pub(super) contents: bool,
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
}

/// The state that the kernel may hold about a vnode, and its unanswered requests.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(super) attributes: bool,
    pub(super) contents: bool,
    /// The kernel was given attributes at some time, so it has a length.
    pub(super) has_length: bool,
    /// The file is longer than the kernel knows.
    pub(super) longer: bool,
    /// The number of unanswered requests for attributes.
    pub(super) questions: u32,
    /// The kernel holds bytes of another version, which the cache found during a request. The value
    /// is the length that the file had.
    pub(super) outdated: Option<u64>,
    /// The number of notices owed so far.
    pub(super) notices: u64,
    /// The time of the last of them.
    pub(super) noticed: Option<Instant>,
    /// How often the cache asked the server again without a request of the kernel.
    pub(super) unasked: u32,
}

impl Held {
    pub(super) fn take(&mut self) -> Owed {
        self.outdated = None;
        let owed = Owed {
            attributes: std::mem::take(&mut self.attributes),
            contents: std::mem::take(&mut self.contents),
        };
        if owed != Owed::NOTHING {
            self.owes();
        }
        owed
    }

    pub(super) fn owes(&mut self) {
        self.notices += 1;
        self.noticed = Some(Instant::now());
    }

    /// The promise has ended. Returns the notice that is owed.
    pub(super) fn end(&mut self) -> Owed {
        self.take()
    }

    /// The changed names of a directory are sent one by one. The kernel continues to hold the
    /// others.
    pub(super) fn keep_names(&mut self) {
        self.contents = true;
    }

    /// A server's answer shows another version of a file. The arguments are its old and its new
    /// length. Returns the notice that is owed.
    pub(super) fn news(&mut self, (was, is): (u64, u64)) -> Owed {
        self.longer |= self.has_length && is > was;
        if self.questions == 0 {
            return self.take();
        }
        if self.contents {
            self.outdated.get_or_insert(was);
        }
        Owed::NOTHING
    }

    /// A request is about to be answered with this length. `crossed`: the kernel may ignore the
    /// answer. Returns the notice that must be sent before the answer.
    pub(super) fn answer(&mut self, length: u64, crossed: bool) -> Owed {
        match self.outdated.take() {
            Some(was) if was == length || crossed => self.take(),
            _ => Owed::NOTHING,
        }
    }

    /// Counts a request to the server without a request of the kernel. Returns whether there were
    /// at most `most` of them, and the kernel has a length.
    pub(super) fn may_renew(&mut self, most: u32) -> bool {
        self.unasked += 1;
        self.has_length && self.unasked <= most
    }

    /// Returns whether the kernel must learn that the file is longer.
    pub(super) fn is_longer(&self) -> bool {
        self.longer
    }

    /// The kernel has the new length.
    pub(super) fn length_sent(&mut self) {
        self.longer = false;
    }
}
