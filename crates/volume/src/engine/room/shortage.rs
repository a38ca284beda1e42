//! The shortage of room on a partition. Its states exist for the log. An administrator reads one
//! line when the partition becomes full and one when it has room again, not one for each change.
//!
//! | state | event | next state | line |
//! | --- | --- | --- | --- |
//! | none | a change is refused | refusing | the partition is full: changes are refused |
//! | none, refusing | a flush finds no room | overflow | the partition is full |
//! | overflow | a flush finds room | refusing | none |
//! | refusing | much more is available than at the refusal | none | the partition has room again |
//!
//! "Much more" is half of the reserve. A partition on which large stores fail and small ones fit
//! would otherwise write two lines for each store.

use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::Mutex;

/// The shortage of one partition.
#[derive(Debug)]
pub(crate) struct Shortage {
    /// Names the partition in the log.
    span: tracing::Span,
    /// The bytes by which the available room must grow until the shortage ends.
    margin: u64,
    state: Mutex<State>,
    /// The kind of the state, for callers that do not wait for the lock.
    kind: AtomicU8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    None,
    /// Changes that add something are refused if they do not fit.
    Refusing {
        /// The bytes that were available at the first refusal.
        available: u64,
    },
    /// Every change that adds something is refused.
    Overflow,
}

impl State {
    fn kind(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Refusing { .. } => 1,
            Self::Overflow => 2,
        }
    }
}

impl Shortage {
    /// No shortage yet. `margin`: the bytes of room that end one.
    pub(super) fn new(margin: u64) -> Self {
        Self {
            span: tracing::Span::current(),
            margin,
            state: Mutex::new(State::None),
            kind: AtomicU8::new(State::None.kind()),
        }
    }

    /// Whether there is a shortage.
    pub(crate) fn is_any(&self) -> bool {
        self.kind.load(Ordering::Relaxed) != State::None.kind()
    }

    /// Whether every change that adds something is refused.
    pub(super) fn is_overflow(&self) -> bool {
        self.kind.load(Ordering::Relaxed) == State::Overflow.kind()
    }

    /// A change was refused while `available` bytes could be stored.
    pub(crate) fn refused(&self, available: u64) {
        let begins = self.change(|state| match state {
            State::None => State::Refusing { available },
            other => other,
        });
        if begins {
            tracing::warn!(parent: &self.span, available, "the partition is full: changes are refused");
        }
    }

    /// A flush found no room.
    pub(super) fn overflowed(&self) {
        if self.change(|_| State::Overflow) {
            tracing::warn!(parent: &self.span, "the partition is full: only removals are accepted");
        }
    }

    /// A flush found room.
    pub(super) fn flushed(&self) {
        self.change(|state| match state {
            State::Overflow => State::Refusing { available: 0 },
            other => other,
        });
    }

    /// `available` bytes can be stored.
    pub(crate) fn look(&self, available: u64) {
        let ends = self.change(|state| match state {
            State::Refusing { available: before } if available >= before + self.margin => {
                State::None
            }
            other => other,
        });
        if ends {
            tracing::info!(parent: &self.span, available, "the partition has room again");
        }
    }

    /// Changes the state. Returns whether it is another one now.
    fn change(&self, next: impl FnOnce(State) -> State) -> bool {
        let mut state = self.state.lock();
        let before = *state;
        *state = next(before);
        self.kind.store(state.kind(), Ordering::Relaxed);
        before != *state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_ends_when_much_more_room_is_there() {
        let shortage = Shortage::new(100);
        let state = || *shortage.state.lock();
        shortage.look(0);
        assert!(!shortage.is_any());
        shortage.refused(50);
        shortage.refused(10);
        assert_eq!(state(), State::Refusing { available: 50 });
        assert!(shortage.is_any() && !shortage.is_overflow());
        shortage.look(149);
        assert!(shortage.is_any());
        shortage.look(150);
        assert_eq!(state(), State::None);
        shortage.overflowed();
        shortage.refused(0);
        shortage.look(1000);
        assert!(shortage.is_overflow(), "only a flush ends it");
        shortage.flushed();
        shortage.look(99);
        assert!(shortage.is_any() && !shortage.is_overflow());
        shortage.look(100);
        assert!(!shortage.is_any());
    }
}
