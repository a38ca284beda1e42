//! Failed authentication: counted for each reason and for each peer, and slowed down.
//!
//! 1. After too many failures within a minute, a peer gets no challenge for some seconds: its calls
//!    wait. Calls of honest users behind the same address wait as long, and then continue. No
//!    connection waits for more than one such pause. Addresses can be forged, and an attacker who
//!    keeps failing from one must not lock its owner out.
//! 2. A peer is one IPv4 address or one IPv6 network (/64): within such a network an attacker has
//!    all addresses.
//! 3. The table is bounded. When it is full, the peer whose minute began first is removed.
//! 4. The log gets a line when failures begin. After that it gets at most one line in ten seconds,
//!    which counts the failures since the last line.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};

use cellar_wire::AbortCode;
use parking_lot::Mutex;

/// The most peers in the table.
const PEERS_MAX: usize = 4096;
/// The time over which failures are added up, in seconds.
const WINDOW: u64 = 60;
/// Failures within that time after which a peer is paused.
const FAILURES_MAX: u32 = 20;
/// The length of a pause without challenges, in seconds.
const PAUSE: u64 = 10;
/// The time between two lines in the log, in seconds.
const LOG_INTERVAL: u64 = 10;

/// The codes of the class, in the order of their numbers.
const CODES: [AbortCode; 13] = [
    AbortCode::RXKADINCONSISTENCY,
    AbortCode::RXKADPACKETSHORT,
    AbortCode::RXKADLEVELFAIL,
    AbortCode::RXKADTICKETLEN,
    AbortCode::RXKADOUTOFSEQUENCE,
    AbortCode::RXKADNOAUTH,
    AbortCode::RXKADBADKEY,
    AbortCode::RXKADBADTICKET,
    AbortCode::RXKADUNKNOWNKEY,
    AbortCode::RXKADEXPIRED,
    AbortCode::RXKADSEALEDINCON,
    AbortCode::RXKADDATALEN,
    AbortCode::RXKADILLEGALLEVEL,
];

/// Counts of accepted and refused connections since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Authenticated connections.
    pub authenticated: u64,
    /// Refused responses, by code. Codes that never occurred are left out.
    pub refused: Vec<(AbortCode, u64)>,
    /// Connections that were ended because a packet was wrong, late or changed; by code.
    pub broken: Vec<(AbortCode, u64)>,
    /// Challenges that were withheld because the peer had failed too often.
    pub withheld: u64,
    /// Peers with failures in the table.
    pub failing_peers: usize,
}

/// The counters, and the peers with failures.
#[derive(Default)]
pub(crate) struct Failures {
    authenticated: AtomicU64,
    withheld: AtomicU64,
    refused: [AtomicU64; CODES.len()],
    broken: [AtomicU64; CODES.len()],
    peers: Mutex<Peers>,
}

#[derive(Default)]
struct Peers {
    table: HashMap<IpAddr, Peer>,
    /// The time of the last line in the log.
    logged_at: Option<u64>,
    /// The failures since then.
    unlogged: u64,
}

#[derive(Clone, Copy)]
struct Peer {
    since: u64,
    failures: u32,
    paused_until: u64,
}

fn count(counters: &[AtomicU64], code: AbortCode) {
    let at = CODES.iter().position(|&each| each == code);
    if let Some(counter) = counters.get(at.unwrap_or(0)) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

fn list(counters: &[AtomicU64]) -> Vec<(AbortCode, u64)> {
    let counts = counters
        .iter()
        .map(|counter| counter.load(Ordering::Relaxed));
    let pairs = CODES.into_iter().zip(counts);
    pairs.filter(|&(_, count)| count > 0).collect()
}

/// The address or network that identifies a peer.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 => v4,
    }
}

impl Failures {
    pub(super) fn authenticated(&self) {
        self.authenticated.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a refused packet of an authenticated connection.
    pub(super) fn broken(&self, code: AbortCode) {
        count(&self.broken, code);
    }

    /// Counts a refused response, and writes a line to the log if one is due.
    pub(super) fn refused(&self, peer: IpAddr, code: AbortCode, now: u64) {
        count(&self.refused, code);
        let mut peers = self.peers.lock();
        let failures = peers.fail(network(peer), now);
        peers.unlogged += 1;
        let due = peers
            .logged_at
            .is_none_or(|at| now >= at + LOG_INTERVAL || now < at);
        if due {
            let all = std::mem::take(&mut peers.unlogged);
            peers.logged_at = Some(now);
            drop(peers);
            let reason = code.name().unwrap_or("unknown");
            tracing::warn!(%peer, reason, of_this_peer = failures, since_last_line = all, "authentication failed");
        }
    }

    /// Whether a connection of `peer` gets no challenge now. It has waited for one since `asked`.
    /// Counts withheld challenges.
    pub(super) fn withholds(&self, peer: IpAddr, asked: u64, now: u64) -> bool {
        if now >= asked + PAUSE {
            return false;
        }
        let peers = self.peers.lock();
        // A clock that was set back must not lock a peer out.
        let paused = peers
            .table
            .get(&network(peer))
            .is_some_and(|peer| now < peer.paused_until && now + PAUSE >= peer.paused_until);
        if paused {
            self.withheld.fetch_add(1, Ordering::Relaxed);
        }
        paused
    }

    pub(crate) fn figures(&self) -> Figures {
        Figures {
            authenticated: self.authenticated.load(Ordering::Relaxed),
            refused: list(&self.refused),
            broken: list(&self.broken),
            withheld: self.withheld.load(Ordering::Relaxed),
            failing_peers: self.peers.lock().table.len(),
        }
    }
}

impl Peers {
    /// Counts a failure. Returns the number of failures in this minute.
    fn fail(&mut self, address: IpAddr, now: u64) -> u32 {
        if self.table.len() >= PEERS_MAX && !self.table.contains_key(&address) {
            self.table
                .retain(|_, peer| now < peer.since + WINDOW && now >= peer.since);
            if self.table.len() >= PEERS_MAX
                && let Some(oldest) = self.table.iter().min_by_key(|(_, peer)| peer.since)
            {
                let oldest = *oldest.0;
                self.table.remove(&oldest);
            }
        }
        let peer = self.table.entry(address).or_insert(Peer {
            since: now,
            failures: 0,
            paused_until: 0,
        });
        if now >= peer.since + WINDOW || now < peer.since {
            peer.since = now;
            peer.failures = 0;
        }
        peer.failures = peer.failures.saturating_add(1);
        let failures = peer.failures;
        if failures >= FAILURES_MAX {
            // Half the allowance remains after the pause.
            peer.failures = FAILURES_MAX / 2;
            peer.paused_until = now + PAUSE;
        }
        failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: AbortCode = AbortCode::RXKADBADTICKET;

    #[test]
    fn many_failures_pause_a_peer_and_no_other() {
        let failures = Failures::default();
        let (bad, good) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        for _ in 1..FAILURES_MAX {
            failures.refused(bad, CODE, 1000);
            assert!(!failures.withholds(bad, 1000, 1000));
        }
        failures.refused(bad, CODE, 1000);
        assert!(failures.withholds(bad, 1000, 1000));
        assert!(failures.withholds(bad, 1009, 1009));
        assert!(!failures.withholds(good, 1009, 1009));
        assert!(!failures.withholds(bad, 1010, 1010), "the pause is over");
        assert!(!failures.withholds(bad, 500, 500), "the clock was set back");
        let figures = failures.figures();
        assert_eq!(figures.refused, [(CODE, u64::from(FAILURES_MAX))]);
        assert_eq!((figures.withheld, figures.failing_peers), (2, 1));
        for _ in 0..FAILURES_MAX {
            failures.refused(bad, CODE, 1015);
        }
        assert!(failures.withholds(bad, 1009, 1018), "paused again");
        assert!(!failures.withholds(bad, 1009, 1019), "has waited enough");
    }

    #[test]
    fn a_failure_now_and_then_is_let_pass() {
        let failures = Failures::default();
        let peer = IpAddr::from([192, 0, 2, 1]);
        for round in 0..100 {
            failures.refused(peer, CODE, 1000 + round * 10);
            assert!(!failures.withholds(peer, 1000 + round * 10, 1000 + round * 10));
        }
    }

    #[test]
    fn a_network_counts_as_one_peer() {
        let failures = Failures::default();
        for host in 0..FAILURES_MAX {
            let host = u16::try_from(host).unwrap();
            let peer = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, host).into();
            failures.refused(peer, CODE, 1000);
        }
        let other = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 9, 9, 9, 9).into();
        assert!(failures.withholds(other, 1000, 1000));
    }

    #[test]
    fn the_table_is_bounded() {
        let failures = Failures::default();
        for peer in 0..20_000u32 {
            failures.refused(
                IpAddr::from(peer.to_be_bytes()),
                CODE,
                1000 + u64::from(peer) / 1000,
            );
        }
        assert_eq!(failures.figures().failing_peers, PEERS_MAX);
        failures.refused(IpAddr::from([192, 0, 2, 1]), CODE, 5000);
        assert_eq!(failures.figures().failing_peers, 1, "old ones are gone");
    }
}
