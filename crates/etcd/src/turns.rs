//! Turns among servers that change the same rows.
//!
//! A commit that meets another server's commit is repeated, and costs etcd as much as one that
//! succeeds. A server that was just answered has the newest rows and would win again. So each
//! server waits for a random part of a window before it sends a group:
//!
//! | event | window |
//! | --- | --- |
//! | start | none: a single server never waits |
//! | conflict | twice as long, from [`WINDOW_MIN`] to [`WINDOW_MAX`] |
//! | commit | a quarter shorter; below [`WINDOW_MIN`] divided by four it is none |
//!
//! Writers that arrive during the wait share the group.

use std::time::Duration;

use rand::Rng as _;

/// The window after the first conflict: about the time of a commit.
const WINDOW_MIN: Duration = Duration::from_millis(2);
/// The longest window.
const WINDOW_MAX: Duration = Duration::from_millis(16);

/// The window of one server.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    window: Duration,
}

impl Turns {
    /// The wait before the next group is sent.
    pub(crate) fn wait(&self) -> Duration {
        match self.window.is_zero() {
            true => Duration::ZERO,
            false => rand::rng().random_range(Duration::ZERO..self.window),
        }
    }

    /// A group met a commit of another server.
    pub(crate) fn conflict(&mut self) {
        self.window = (self.window * 2).clamp(WINDOW_MIN, WINDOW_MAX);
    }

    /// A group was committed.
    pub(crate) fn commit(&mut self) {
        let shorter = self.window * 3 / 4;
        self.window = match shorter < WINDOW_MIN / 4 {
            true => Duration::ZERO,
            false => shorter,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_grows_with_conflicts_and_ends_after_commits() {
        let mut turns = Turns::default();
        assert_eq!(turns.wait(), Duration::ZERO);
        turns.commit();
        assert_eq!(turns.window, Duration::ZERO);
        turns.conflict();
        assert_eq!(turns.window, WINDOW_MIN);
        for _ in 0..100 {
            turns.conflict();
            assert!(turns.wait() < turns.window);
        }
        assert_eq!(turns.window, WINDOW_MAX);
        let commits = (1..100).find(|_| {
            turns.commit();
            turns.window.is_zero()
        });
        assert_eq!(commits, Some(13));
    }
}
