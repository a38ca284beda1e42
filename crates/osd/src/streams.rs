//! Streams of bytes under way: how many, and whose.
//!
//! A client may hold as many as are free, so one alone gets half of all, and there is always room for
//! another's first.

use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;

/// Those of a process.
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

/// One stream; it ends when this is dropped.
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

    /// One more of a client's; `None`: it has to come back later.
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

    /// How many there are.
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
