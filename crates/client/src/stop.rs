//! Cancels work that has to clean up at the servers. If its future were only dropped, the servers
//! would have to wait for a time-out.

use tokio::sync::watch;

/// A request to stop some work. All clones refer to the same work.
#[derive(Clone, Debug)]
pub struct Stop(watch::Sender<bool>);

impl Default for Stop {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl Stop {
    /// Requests the stop.
    pub fn ask(&self) {
        self.0.send_replace(true);
    }

    /// Whether the stop was requested.
    pub fn is_asked(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the stop is requested.
    pub async fn asked(&self) {
        let mut receiver = self.0.subscribe();
        // The sender lives as long as self.
        let _asked = receiver.wait_for(|asked| *asked).await;
    }

    /// Runs work that can be dropped at any time; returns `None` if it was dropped because of a
    /// stop.
    pub async fn unless<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.asked() => None,
        }
    }
}
