//! The time for which an operation is retried while servers are away.
//!
//! A command reports at once that no server answers. Programs on a mount know nothing of servers,
//! and a restarted file server is away for a short time only. So a mount waits:
//!
//! 1. An operation that no server accepts is retried after 50 ms. Each later wait is twice as long,
//!    up to one second. The retries end when the operation has lasted as long as the mount's
//!    patience (`--timeout`).
//! 2. The client does not wait for a server that has been away for that long already. A call to it
//!    fails at once; otherwise files could not be closed for hours.
//! 3. If a server has answered another call since this one failed, the time of its absence begins
//!    again. A restarted server often answers between two failures.
//!
//! A repeated operation must have the same effect if the server has executed it before
//! ([`crate::operation`]).

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

use crate::reach::Reach;

/// The first wait.
const WAIT_MIN: Duration = Duration::from_millis(50);
/// The longest wait.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The waits of one operation.
#[derive(Debug)]
pub(crate) struct Waits {
    began: Instant,
    next: Duration,
}

impl Waits {
    /// The waits of an operation that begins now.
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            next: WAIT_MIN,
        }
    }

    /// The wait before these servers, none of which can be reached, are tried again. `None` means
    /// that the operation fails.
    pub(crate) fn next(&mut self, reach: &Reach, servers: &[SocketAddr]) -> Option<Duration> {
        let patience = reach.patience()?;
        let now = Instant::now();
        let goes_on = |since: Instant| now.saturating_duration_since(since) < patience;
        let mut servers = servers.iter();
        let helps = servers.any(|server| reach.away_since(*server).is_none_or(goes_on));
        if !goes_on(self.began) || !helps {
            return None;
        }
        let wait = self.next;
        self.next = (wait * 2).min(WAIT_MAX);
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_mount_waits_for_a_server_that_is_started_again() {
        let server = SocketAddr::from(([192, 0, 2, 1], 7000));
        let reach = Reach::default();
        reach.silent(server);
        assert_eq!(Waits::new().next(&reach, &[server]), None, "a command");
        reach.set_patience(10 * SECOND);
        let mut waits = Waits::new();
        let mut all = Vec::new();
        while let Some(wait) = waits.next(&reach, &[server]) {
            all.push(wait.as_millis());
            tokio::time::sleep(wait).await;
            reach.silent(server);
        }
        assert_eq!(all[..7], [50, 100, 200, 400, 800, 1000, 1000]);
        assert_eq!(waits.began.elapsed().as_secs(), 10);
        // The server has been away for the whole patience already: the next operation fails at
        // once.
        assert_eq!(Waits::new().next(&reach, &[server]), None);
        // Another server of the volume has been away only since now.
        let other = SocketAddr::from(([192, 0, 2, 2], 7000));
        reach.silent(other);
        assert!(Waits::new().next(&reach, &[server, other]).is_some());
        // The server has answered, so the time begins again.
        reach.answered(server);
        reach.silent(server);
        assert!(Waits::new().next(&reach, &[server]).is_some());
        // The server has answered another call since ours failed.
        reach.answered(server);
        assert!(Waits::new().next(&reach, &[server]).is_some());
        assert_eq!(Waits::new().next(&reach, &[]), None);
        reach.silent(server);
        // The time also begins again after a while without calls.
        tokio::time::sleep(crate::reach::DOWN_TIME + SECOND).await;
        reach.silent(server);
        assert!(Waits::new().next(&reach, &[server]).is_some());
    }
}
