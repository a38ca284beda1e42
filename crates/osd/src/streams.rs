//! Bound of concurrent data streams, in total and for each client.
//!
//! A client may have as many as are free. A single client thus gets half of all, and there is
//! always room for the first one of another client.

use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;

/// The streams of a process.
#[derive(Debug)]
pub(crate) struct Streams {
    max: usize,
    running: Mutex<Running>,
}

#[derive(Debug, Default)]
struct Running {
    all: usize,
    by_client: HashMap<IpAddr, usize>,
}

/// One stream, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Stream {
    streams: Arc<Streams>,
    client: IpAddr,
}

impl Streams {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            running: Mutex::default(),
        })
    }

    /// Begins a stream of a client; `None`: the client must retry later.
    pub(crate) fn begin(self: &Arc<Self>, client: IpAddr) -> Option<Stream> {
        let mut running = self.running.lock();
        let free = self.max - running.all;
        let own = running.by_client.get(&client).copied().unwrap_or(0);
        if own >= free {
            return None;
        }
        running.all += 1;
        running.by_client.insert(client, own + 1);
        Some(Stream {
            streams: Arc::clone(self),
            client,
        })
    }

    /// Returns the number of streams.
    pub(crate) fn count(&self) -> usize {
        self.running.lock().all
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut running = self.streams.running.lock();
        running.all -= 1;
        if let Some(own) = running.by_client.get_mut(&self.client) {
            *own -= 1;
            if *own == 0 {
                running.by_client.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_gets_half_and_there_is_room_for_the_next() {
        let streams = Streams::new(8);
        let client = |n| IpAddr::from([192, 0, 2, n]);
        let of = |n| -> Vec<_> { std::iter::from_fn(|| streams.begin(client(n))).collect() };
        let first = of(1);
        let second = of(2);
        assert_eq!((first.len(), second.len()), (4, 2));
        assert!(streams.begin(client(3)).is_some());
        drop(first);
        assert_eq!((streams.count(), of(3).len()), (2, 3));
        drop(second);
        assert_eq!(streams.count(), 0);
        assert!(streams.running.lock().by_client.is_empty());
    }
}
