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
//! the time if the server has given a promise and was silent for [`PROBE_TIME`]. By this probe, a
//! server that could not deliver a break also learns that this machine is reachable. Between these
//! calls, small datagrams without answers keep the mappings of address translators on the path,
//! without which no call would reach us (`Options::nat_ping`).

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cellar_rpc::CallError;
use cellar_wire::rxafs::{self, Callback};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

use super::Cache;
use super::request::StatusRequest;
use super::vnode::Vnode;
use crate::cell::CellName;
use crate::client::own_address;

/// The interval of the checks.
const LOOK_TIME: Duration = Duration::from_secs(1);
/// The longest silence of a server with promises before it is asked for the time.
const PROBE_TIME: Duration = Duration::from_secs(60);
/// The most servers that are remembered. Nothing is sent to further ones.
const SERVERS_MAX: usize = 1_000;
/// The most servers whose network path each check looks at.
const WAYS_MAX: usize = 16;
/// A shorter sleep is ignored: no server gives up so soon.
const SLEEP_MIN: Duration = Duration::from_secs(1);

/// The servers that gave promises.
#[derive(Debug, Default)]
pub(crate) struct Alive {
    promisers: Mutex<HashMap<SocketAddr, Promiser>>,
}

#[derive(Debug)]
struct Promiser {
    cell: CellName,
    /// The end of its last promise.
    until: Instant,
    /// The time of the last datagram without an answer.
    pinged: Instant,
    /// The time of the last call for the time.
    probed: Instant,
}

/// The packets and calls that are due now.
#[derive(Debug, Default, PartialEq, Eq)]
struct Due {
    pings: Vec<SocketAddr>,
    probes: Vec<(CellName, SocketAddr)>,
}

impl Alive {
    /// Notes the promise of a server.
    pub(crate) fn promised(&self, vnode: &Vnode, callback: &Callback, asked: &StatusRequest) {
        let Some(server) = asked.by else {
            return;
        };
        if callback.expires_in_secs == 0 || callback.callback_type == Callback::DROPPED {
            return;
        }
        let until = asked.at + Duration::from_secs(callback.expires_in_secs.into());
        let mut promisers = self.promisers.lock();
        if let Some(known) = promisers.get_mut(&server) {
            known.until = known.until.max(until);
        } else if promisers.len() < SERVERS_MAX {
            let new = Promiser {
                cell: vnode.volume.cell.clone(),
                until,
                pinged: asked.at,
                probed: asked.at,
            };
            promisers.insert(server, new);
        }
    }

    /// Forgets a server whose promises ended. Returns whether it may have given any.
    fn ended(&self, server: SocketAddr) -> bool {
        let mut promisers = self.promisers.lock();
        let full = promisers.len() >= SERVERS_MAX;
        promisers.remove(&server).is_some() || full
    }

    fn servers(&self) -> Vec<SocketAddr> {
        self.promisers.lock().keys().copied().collect()
    }

    /// Returns the servers that were silent for a while and got nothing. `heard`: the time at which
    /// a server last answered. Marks them as handled.
    fn due(
        &self,
        now: Instant,
        every: Option<Duration>,
        heard: impl Fn(SocketAddr) -> Option<Instant>,
    ) -> Due {
        let mut due = Due::default();
        let mut promisers = self.promisers.lock();
        promisers.retain(|_, promiser| now < promiser.until);
        for (server, promiser) in promisers.iter_mut() {
            let heard = heard(*server);
            let since = |last: Instant| {
                let last = heard.map_or(last, |heard| heard.max(last));
                now.saturating_duration_since(last)
            };
            if since(promiser.probed) >= PROBE_TIME {
                promiser.probed = now;
                promiser.pinged = now;
                due.probes.push((promiser.cell.clone(), *server));
            } else if every.is_some_and(|every| since(promiser.pinged) >= every) {
                promiser.pinged = now;
                due.pings.push(*server);
            }
        }
        due
    }
}

/// Detects that this machine has slept.
#[derive(Debug, Default)]
struct Sleeps {
    /// The difference between the clock that continues during sleep and the one that stops.
    ahead: Option<Duration>,
}

impl Sleeps {
    /// Compares the two clocks. Returns whether the machine slept. The clock that stops must be
    /// read second: then a pause between the reads makes the difference smaller.
    fn looked(&mut self, going_on: Duration, standing_still: Duration) -> bool {
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
enum Way {
    Same,
    /// There was no path for a while.
    Back,
    /// Our address has changed.
    Another,
}

impl Sources {
    /// Compares the addresses with the current ones (`None`: there is no path to that server). A
    /// lost path alone is not reported.
    fn looked(&mut self, now: HashMap<SocketAddr, Option<IpAddr>>) -> Way {
        let mut way = Way::Same;
        let mut known = HashMap::new();
        for (server, address) in now {
            let before = self.0.get(&server).copied();
            let (was, last) = before.unwrap_or((address, address));
            match address {
                Some(_) if last.is_some() && last != address => way = Way::Another,
                Some(_) if was.is_none() && way == Way::Same => way = Way::Back,
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
struct Look {
    sleeps: Sleeps,
    sources: Sources,
}

/// Runs the checks for the life of the cache.
pub(super) async fn keep(cache: Weak<Cache>) {
    let mut look = Look::default();
    loop {
        let Some(cache) = cache.upgrade() else {
            return;
        };
        cache.look_around(&mut look);
        drop(cache);
        tokio::time::sleep(LOOK_TIME).await;
    }
}

impl Cache {
    fn look_around(&self, look: &mut Look) {
        let going_on = clock(ClockId::Boottime);
        let slept = look.sleeps.looked(going_on, clock(ClockId::Monotonic));
        let mut servers = self.alive.servers();
        servers.truncate(WAYS_MAX);
        servers.extend(self.home().location_servers().next());
        let ways: HashMap<_, _> = servers.into_iter().map(|s| (s, own_address(s))).collect();
        let mut addresses: Vec<IpAddr> = ways.values().copied().flatten().collect();
        addresses.sort_unstable();
        addresses.dedup();
        let way = look.sources.looked(ways);
        if slept || way != Way::Same {
            tracing::info!(
                slept,
                ?way,
                ?addresses,
                "all promises end; statuses are fetched again"
            );
            self.network_changed(addresses, way == Way::Another);
        }
        let heard = |server| self.reach.heard_at(server);
        let due = self.alive.due(Instant::now(), self.options.nat_ping, heard);
        for server in due.pings {
            self.port.keep_mapping(server);
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
        self.reach.changed();
        if another {
            self.port.handle_new_address(before);
        }
        if let Some(callbacks) = self.callbacks.get()
            && !addresses.is_empty()
        {
            callbacks.set_addresses(addresses);
        }
        for user in self.users.all() {
            user.client().cell_devices().renew();
        }
        self.promises_end(None);
    }

    /// Ends all promises of a server, or of all servers.
    pub(crate) fn promises_end(&self, server: Option<SocketAddr>) {
        if server.is_some_and(|server| !self.alive.ended(server)) {
            return;
        }
        self.strays.fetch_add(1, Ordering::AcqRel);
        let all: Vec<_> = {
            let vnodes = self.vnodes.lock();
            let its = |vnode: &&Arc<Vnode>| server.is_none_or(|s| vnode.is_promised_by(s));
            vnodes.values().filter(its).cloned().collect()
        };
        for vnode in all {
            let owed = vnode.broken();
            self.lease_ends(&vnode);
            if server.is_none() {
                // The right to read objects belongs to this machine's address.
                vnode.places.forget();
            }
            self.send_notices(&vnode, owed);
        }
    }

    /// Asks a file server for the time, to check whether it is reachable.
    fn probe(&self, cell: &CellName, server: SocketAddr) {
        let Ok(user) = self.anybody() else {
            return;
        };
        let servers = user.client().servers();
        let changes = self.reach.changes();
        let connection = servers.connection(cell, server, &rxafs::PACKAGE);
        let reach = self.reach.clone();
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
        assert!(!sleeps.looked(boot, awake));
        for _ in 0..100 {
            boot += SECOND;
            awake += SECOND;
            assert!(!sleeps.looked(boot, awake));
        }
        // The process was stopped between the two reads.
        assert!(!sleeps.looked(boot, awake + 30 * SECOND));
        boot += 40 * SECOND;
        awake += 40 * SECOND;
        assert!(!sleeps.looked(boot, awake));
        boot += 3 * SECOND;
        awake += SECOND;
        assert!(sleeps.looked(boot, awake), "two seconds of sleep");
        assert!(!sleeps.looked(boot + SECOND, awake + SECOND));
    }

    #[test]
    fn another_address_is_seen_and_one_that_comes_back() {
        let server = |n: u8| SocketAddr::from(([192, 0, 2, n], 7000));
        let address = |n: u8| Some(IpAddr::from([198, 51, 100, n]));
        let mut sources = Sources::default();
        let mut looked = |ways: &[(u8, Option<IpAddr>)]| {
            let ways = ways.iter().map(|(n, address)| (server(*n), *address));
            sources.looked(ways.collect())
        };
        assert_eq!(looked(&[(1, address(1))]), Way::Same);
        let both = |second| [(1, address(1)), (2, second)];
        assert_eq!(looked(&both(address(9))), Way::Same, "a new server");
        assert_eq!(looked(&both(address(1))), Way::Another);
        assert_eq!(looked(&both(None)), Way::Same, "it cannot be asked");
        assert_eq!(looked(&both(None)), Way::Same);
        assert_eq!(looked(&both(address(1))), Way::Back);
        assert_eq!(looked(&both(address(1))), Way::Same);
        assert_eq!(looked(&both(None)), Way::Same);
        assert_eq!(looked(&both(address(2))), Way::Another);
        assert_eq!(looked(&[(1, address(1))]), Way::Same);
    }

    #[test]
    fn silent_servers_that_promised_something_are_sent_something() {
        let vnode = crate::cache::vnode::tests::vnode();
        let server = SocketAddr::from(([192, 0, 2, 1], 7000));
        let alive = Alive::default();
        let every = Some(20 * SECOND);
        let asked = StatusRequest::about(&vnode).answered_by(server);
        let start = asked.at;
        let at = |seconds: u32| start + seconds * SECOND;
        alive.promised(&vnode, &Callback::NONE, &asked);
        assert_eq!(alive.due(at(30), every, |_| None), Due::default());
        let callback = Callback {
            version: 1,
            expires_in_secs: 300,
            callback_type: Callback::SHARED,
        };
        alive.promised(&vnode, &callback, &asked);
        let due = |seconds: u32, every, heard: Option<u32>| {
            let due = alive.due(at(seconds), every, |_| heard.map(at));
            (due.pings.len(), due.probes.len())
        };
        assert_eq!(due(19, every, None), (0, 0));
        assert_eq!(due(20, every, None), (1, 0));
        assert_eq!(due(21, every, None), (0, 0));
        assert_eq!(due(59, every, Some(58)), (0, 0), "it answered");
        assert_eq!(due(77, None, Some(58)), (0, 0));
        assert_eq!(due(78, every, Some(58)), (1, 0));
        assert_eq!(due(117, None, Some(58)), (0, 0));
        assert_eq!(due(118, None, Some(58)), (0, 1));
        assert_eq!(due(119, None, Some(58)), (0, 0));
        assert_eq!(
            due(300, every, None),
            (0, 0),
            "nothing is promised any more"
        );
        alive.promised(&vnode, &callback, &asked);
        assert!(alive.ended(server) && !alive.ended(server));
    }
}
