//! Checks whether servers can still reach this machine, and so whether their promises are valid.
//!
//! A promise is only valid while the server can reach this machine. If the network path was cut, a
//! server may have tried to break a promise in vain. OpenAFS's file server repeats the break at our
//! next call, Cellar's a while later. So all promises end, and statuses are fetched again:
//!
//! 1. *when this machine's address towards a server changes*, or when there is one again after
//!    there was none ([`Sources`]);
//! 2. *when this machine has slept* ([`Sleeps`]): the clock by which promises are measured stood
//!    still;
//! 3. the promises of one server, *when it answers again after a call to it had no answer*.
//!
//! Cases 1 and 2 are checked every [`LOOK_TIME`], and also end all connections (`reach.rs` says
//! why). To notice case 3 without calls of programs, the cache sends probes. It asks a server for
//! the time if the server has given a promise and was silent for `PROBE_TIME`. By this probe, a
//! server that could not deliver a break also learns that this machine is reachable. Between these
//! calls, small datagrams without answers keep the mappings of address translators on the path,
//! without which no call would reach us (`Options::nat_ping`).

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cellar_rpc::CallError;
use cellar_wire::rxafs::{self};
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

use crate::statuses::Statuses;
use crate::vnode::Vnode;
use cellar_client::cell::CellName;
use cellar_client::client::own_address;

/// The interval of the checks.
const LOOK_TIME: Duration = Duration::from_secs(1);
/// The most servers whose network path each check looks at.
const WAYS_MAX: usize = 16;
/// A shorter sleep is ignored: no server gives up so soon.
const SLEEP_MIN: Duration = Duration::from_secs(1);

/// Detects that this machine has slept.
#[derive(Debug, Default)]
struct Sleeps {
    /// The difference between the clock that continues during sleep and the one that stops.
    ahead: Option<Duration>,
}

impl Sleeps {
    /// Compares the two clocks. Returns whether the machine slept. The clock that stops must be
    /// read second: then a pause between the reads makes the difference smaller.
    fn compare(&mut self, going_on: Duration, standing_still: Duration) -> bool {
        let ahead = going_on.saturating_sub(standing_still);
        let before = *self.ahead.get_or_insert(ahead);
        self.ahead = Some(before.max(ahead));
        ahead > before + SLEEP_MIN
    }
}

fn clock(id: ClockId) -> Duration {
    let time = clock_gettime(id);
    Duration::new(
        time.tv_sec.try_into().unwrap_or(0),
        time.tv_nsec.try_into().unwrap_or(0),
    )
}

/// The source address of our packets to each server: the current one, and the last one before the
/// path was lost.
#[derive(Debug, Default)]
struct Sources(HashMap<SocketAddr, (Option<IpAddr>, Option<IpAddr>)>);

/// The change of the paths to servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathChange {
    Same,
    /// There was no path for a while.
    Back,
    /// Our address has changed.
    Another,
}

impl Sources {
    /// Compares the addresses with the current ones (`None`: there is no path to that server). A
    /// lost path alone is not reported.
    fn compare(&mut self, now: HashMap<SocketAddr, Option<IpAddr>>) -> PathChange {
        let mut way = PathChange::Same;
        let mut known = HashMap::new();
        for (server, address) in now {
            let before = self.0.get(&server).copied();
            let (was, last) = before.unwrap_or((address, address));
            match address {
                Some(_) if last.is_some() && last != address => way = PathChange::Another,
                Some(_) if was.is_none() && way == PathChange::Same => way = PathChange::Back,
                _ => {}
            }
            known.insert(server, (address, address.or(last)));
        }
        self.0 = known;
        way
    }
}

/// The results of the last check.
#[derive(Debug, Default)]
struct LastCheck {
    sleeps: Sleeps,
    sources: Sources,
}

impl Statuses {
    /// Runs the checks for the life of the cache.
    pub(crate) async fn keep_alive(statuses: Weak<Self>) {
        let mut look = LastCheck::default();
        loop {
            let Some(statuses) = statuses.upgrade() else {
                return;
            };
            statuses.check_paths(&mut look);
            drop(statuses);
            tokio::time::sleep(LOOK_TIME).await;
        }
    }

    fn check_paths(&self, look: &mut LastCheck) {
        let going_on = clock(ClockId::Boottime);
        let slept = look.sleeps.compare(going_on, clock(ClockId::Monotonic));
        let mut servers = self.promises.promisers().servers();
        servers.truncate(WAYS_MAX);
        servers.extend(self.env.home().location_servers().next());
        let ways: HashMap<_, _> = servers.into_iter().map(|s| (s, own_address(s))).collect();
        let mut addresses: Vec<IpAddr> = ways.values().copied().flatten().collect();
        addresses.sort_unstable();
        addresses.dedup();
        let way = look.sources.compare(ways);
        if slept || way != PathChange::Same {
            tracing::info!(
                slept,
                ?way,
                ?addresses,
                "all promises end; statuses are fetched again"
            );
            self.network_changed(addresses, way == PathChange::Another);
        }
        let last_answer = |server| self.env.reach.last_answer(server);
        let due =
            self.promises
                .promisers()
                .due(Instant::now(), self.env.options.nat_ping, last_answer);
        for server in due.pings {
            self.env.port.keep_mapping(server);
        }
        for (cell, server) in due.probes {
            self.probe(&cell, server);
        }
    }

    /// Handles a change of this machine's addresses, or a sleep. Servers are called over new
    /// connections, and all promises end. `another`: the machine had other addresses before, so
    /// calls under way will get no answer.
    pub fn network_changed(&self, addresses: Vec<IpAddr>, another: bool) {
        let before = std::time::Instant::now();
        self.env.reach.changed();
        if another {
            self.env.port.handle_new_address(before);
        }
        if let Some(callbacks) = self.callbacks.get()
            && !addresses.is_empty()
        {
            callbacks.set_addresses(addresses);
        }
        for user in self.env.users.all() {
            user.client().renew_devices();
        }
        self.promises_end(None);
    }

    /// Ends all promises of a server, or of all servers.
    pub(crate) fn promises_end(&self, server: Option<SocketAddr>) {
        if server.is_some_and(|server| !self.promises.promisers().ended(server)) {
            return;
        }
        self.promises.note_unknown_break();
        let is_its = |vnode: &Arc<Vnode>| server.is_none_or(|s| vnode.is_promised_by(s));
        for vnode in self.vnodes.matching(is_its) {
            let owed = vnode.broken();
            self.creates.lease_ends(&vnode);
            if server.is_none() {
                // The right to read objects belongs to this machine's address.
                vnode.devices.forget();
            }
            self.promises.send_notices(&vnode, owed);
        }
    }

    /// Asks a file server for the time, to check whether it is reachable.
    fn probe(&self, cell: &CellName, server: SocketAddr) {
        let Ok(user) = self.env.anonymous() else {
            return;
        };
        let servers = user.client().servers();
        let changes = self.env.reach.changes();
        let connection = servers.connection(cell, server, &rxafs::PACKAGE);
        let reach = self.env.reach.clone();
        tokio::spawn(async move {
            match connection.call(&rxafs::GetTime {}).await {
                Err(error) if error.is_unreachable() => {
                    if reach.changes() == changes {
                        reach.silent(server);
                    }
                }
                // A limit of our side, not an answer of the server.
                Err(CallError::TooManyCalls) => {}
                _ => reach.answered(server),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_sleep_is_seen_by_two_clocks() {
        let mut sleeps = Sleeps::default();
        let (mut boot, mut awake) = (500 * SECOND, 400 * SECOND);
        assert!(!sleeps.compare(boot, awake));
        for _ in 0..100 {
            boot += SECOND;
            awake += SECOND;
            assert!(!sleeps.compare(boot, awake));
        }
        // The process was stopped between the two reads.
        assert!(!sleeps.compare(boot, awake + 30 * SECOND));
        boot += 40 * SECOND;
        awake += 40 * SECOND;
        assert!(!sleeps.compare(boot, awake));
        boot += 3 * SECOND;
        awake += SECOND;
        assert!(sleeps.compare(boot, awake), "two seconds of sleep");
        assert!(!sleeps.compare(boot + SECOND, awake + SECOND));
    }

    #[test]
    fn another_address_is_seen_and_one_that_comes_back() {
        let server = |n: u8| SocketAddr::from(([192, 0, 2, n], 7000));
        let address = |n: u8| Some(IpAddr::from([198, 51, 100, n]));
        let mut sources = Sources::default();
        let mut compare = |ways: &[(u8, Option<IpAddr>)]| {
            let ways = ways.iter().map(|(n, address)| (server(*n), *address));
            sources.compare(ways.collect())
        };
        assert_eq!(compare(&[(1, address(1))]), PathChange::Same);
        let both = |second| [(1, address(1)), (2, second)];
        assert_eq!(compare(&both(address(9))), PathChange::Same, "a new server");
        assert_eq!(compare(&both(address(1))), PathChange::Another);
        assert_eq!(compare(&both(None)), PathChange::Same, "it cannot be asked");
        assert_eq!(compare(&both(None)), PathChange::Same);
        assert_eq!(compare(&both(address(1))), PathChange::Back);
        assert_eq!(compare(&both(address(1))), PathChange::Same);
        assert_eq!(compare(&both(None)), PathChange::Same);
        assert_eq!(compare(&both(address(2))), PathChange::Another);
        assert_eq!(compare(&[(1, address(1))]), PathChange::Same);
    }
}
