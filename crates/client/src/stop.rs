//! Asking work to stop that cleans up behind itself: dropping it would leave that to the servers, and to time.

use tokio::sync::watch;

/// A way to ask work to stop. Clones ask the same work.
#[derive(Clone, Debug)]
pub struct Stop(watch::Sender<bool>);

impl Default for Stop {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl Stop {
    /// Asks.
    pub fn ask(&self) {
        self.0.send_replace(true);
    }

    /// Whether it was asked.
    pub fn is_asked(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it is asked.
    pub async fn asked(&self) {
        let mut receiver = self.0.subscribe();
        // The sender lives as long as self.
        let _asked = receiver.wait_for(|asked| *asked).await;
    }

    /// Does some work that can be dropped at any time; `None`: it was, for this was asked.
    pub async fn unless<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.asked() => None,
        }
    }
}
