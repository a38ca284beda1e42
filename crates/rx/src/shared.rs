//! Table bounds for the whole process, independent of its number of ports and processors.
//!
//! All endpoints of a process count into one [`Shared`]. Half of each bound is common; the other
//! half is divided equally among the endpoints. A flood of one port takes the common half and that
//! port's own part, and every other endpoint keeps its part.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::config::Limits;

/// One bound, and the total that all endpoints use of it.
#[derive(Debug, Default)]
struct Pool {
    limit: usize,
    used: AtomicUsize,
}

/// Bounds that several endpoints share; see [`crate::Config::shared`].
#[derive(Debug)]
pub struct Shared {
    endpoints: AtomicUsize,
    connections: Pool,
    peers: Pool,
    calls: Pool,
    unverified_connections: Pool,
    unverified_bytes: Pool,
    early_calls: Pool,
}

impl Shared {
    /// Creates the bounds for all endpoints that receive the result, from those of `limits` that
    /// apply to the process.
    #[must_use]
    pub fn new(limits: &Limits) -> Arc<Self> {
        let pool = |limit| Pool {
            limit,
            used: AtomicUsize::new(0),
        };
        Arc::new(Self {
            endpoints: AtomicUsize::new(0),
            connections: pool(limits.connections),
            peers: pool(limits.peers),
            calls: pool(limits.calls),
            unverified_connections: pool(limits.unverified_connections),
            unverified_bytes: pool(limits.unverified_bytes),
            early_calls: pool(limits.unverified_calls),
        })
    }

    /// Server connections of unverified addresses, and bytes held for them, in all endpoints.
    #[must_use]
    pub fn unverified(&self) -> (usize, usize) {
        let used = |pool: &Pool| pool.used.load(Ordering::Relaxed);
        (
            used(&self.unverified_connections),
            used(&self.unverified_bytes),
        )
    }
}

/// The use that one endpoint makes of one bound.
#[derive(Debug)]
pub(crate) struct Holding {
    shared: Arc<Shared>,
    pool: fn(&Shared) -> &Pool,
    own: usize,
}

impl Holding {
    fn new(shared: &Arc<Shared>, pool: fn(&Shared) -> &Pool) -> Self {
        Self {
            shared: shared.clone(),
            pool,
            own: 0,
        }
    }

    fn pool(&self) -> &Pool {
        (self.pool)(&self.shared)
    }

    /// Number held by this endpoint.
    pub(crate) const fn own_count(&self) -> usize {
        self.own
    }

    /// Whether one more may be added.
    pub(crate) fn has_room(&self) -> bool {
        let pool = self.pool();
        let divided = pool.limit / 2;
        let endpoints = self.shared.endpoints.load(Ordering::Relaxed).max(1);
        if endpoints == 1 {
            return pool.used.load(Ordering::Relaxed) < pool.limit;
        }
        self.own < divided / endpoints || pool.used.load(Ordering::Relaxed) < pool.limit - divided
    }

    pub(crate) fn add(&mut self, count: usize) {
        self.own += count;
        self.pool().used.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn sub(&mut self, count: usize) {
        let count = count.min(self.own);
        self.own -= count;
        self.pool().used.fetch_sub(count, Ordering::Relaxed);
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.sub(self.own);
    }
}

/// The use that one endpoint makes of all bounds.
#[derive(Debug)]
pub(crate) struct EndpointShare {
    shared: Arc<Shared>,
    pub(crate) connections: Holding,
    pub(crate) peers: Holding,
    /// Calls in progress, except those of unverified connections.
    pub(crate) calls: Holding,
    pub(crate) unverified_connections: Holding,
    /// Calls given to the driver before their address was verified.
    pub(crate) early_calls: Holding,
}

impl EndpointShare {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        shared.endpoints.fetch_add(1, Ordering::Relaxed);
        Self {
            connections: Holding::new(&shared, |shared| &shared.connections),
            peers: Holding::new(&shared, |shared| &shared.peers),
            calls: Holding::new(&shared, |shared| &shared.calls),
            unverified_connections: Holding::new(&shared, |shared| &shared.unverified_connections),
            early_calls: Holding::new(&shared, |shared| &shared.early_calls),
            shared,
        }
    }

    /// Returns a new, empty use of the bound of bytes for unverified addresses.
    pub(crate) fn unverified_bytes(&self) -> Holding {
        Holding::new(&self.shared, |shared| &shared.unverified_bytes)
    }

    /// Returns this endpoint's equal part of a total for the process.
    pub(crate) fn part(&self, figure: usize) -> usize {
        figure / self.shared.endpoints.load(Ordering::Relaxed).max(1)
    }
}

impl Drop for EndpointShare {
    fn drop(&mut self) {
        self.shared.endpoints.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(holding: &mut Holding) -> usize {
        let mut count = 0;
        while holding.has_room() {
            holding.add(1);
            count += 1;
        }
        count
    }

    #[test]
    fn one_figure_for_all_and_a_part_for_each() {
        let limits = Limits {
            connections: 80,
            ..Limits::default()
        };
        let shared = Shared::new(&limits);
        let mut endpoints: Vec<EndpointShare> =
            (0..4).map(|_| EndpointShare::new(shared.clone())).collect();
        let taken: Vec<usize> = endpoints
            .iter_mut()
            .map(|held| fill(&mut held.connections))
            .collect();
        assert_eq!(taken, [40, 10, 10, 10]);
        assert!(taken.iter().sum::<usize>() <= 80);
        endpoints.clear();
        let mut alone = EndpointShare::new(shared.clone());
        assert_eq!(fill(&mut alone.connections), 80);
        alone.connections.sub(1000);
        assert!(alone.connections.has_room());
        assert_eq!(alone.part(50), 50);
    }
}
