//! The servers that gave promises: those that were silent for a while get a packet or a call.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use cellar_wire::rxafs::Callback;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::status_request::StatusRequest;
use crate::vnode::Vnode;
use cellar_client::cell::CellName;

/// The most servers that are remembered. Nothing is sent to further ones.
const SERVERS_MAX: usize = 1_000;
/// The longest silence of a server with promises before it is asked for the time.
const PROBE_TIME: Duration = Duration::from_secs(60);
/// The servers that gave promises.
#[derive(Debug, Default)]
pub(crate) struct Promisers {
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
pub(crate) struct Due {
    pub(crate) pings: Vec<SocketAddr>,
    pub(crate) probes: Vec<(CellName, SocketAddr)>,
}

impl Promisers {
    /// Notes the promise of a server.
    pub(crate) fn promised(&self, vnode: &Vnode, callback: &Callback, asked: &StatusRequest) {
        let Some(server) = asked.by() else {
            return;
        };
        if callback.expires_in_secs == 0 || callback.callback_type == Callback::DROPPED {
            return;
        }
        let until = asked.at() + Duration::from_secs(callback.expires_in_secs.into());
        let mut promisers = self.promisers.lock();
        if let Some(known) = promisers.get_mut(&server) {
            known.until = known.until.max(until);
        } else if promisers.len() < SERVERS_MAX {
            let new = Promiser {
                cell: vnode.volume().cell.clone(),
                until,
                pinged: asked.at(),
                probed: asked.at(),
            };
            promisers.insert(server, new);
        }
    }

    /// Forgets a server whose promises ended. Returns whether it may have given any.
    pub(crate) fn ended(&self, server: SocketAddr) -> bool {
        let mut promisers = self.promisers.lock();
        let full = promisers.len() >= SERVERS_MAX;
        promisers.remove(&server).is_some() || full
    }

    pub(crate) fn servers(&self) -> Vec<SocketAddr> {
        self.promisers.lock().keys().copied().collect()
    }

    /// Returns the servers that were silent for a while and got nothing. `last_answer`: the time at
    /// which a server last answered. Marks them as handled.
    pub(crate) fn due(
        &self,
        now: Instant,
        every: Option<Duration>,
        last_answer: impl Fn(SocketAddr) -> Option<Instant>,
    ) -> Due {
        let mut due = Due::default();
        let mut promisers = self.promisers.lock();
        promisers.retain(|_, promiser| now < promiser.until);
        for (server, promiser) in promisers.iter_mut() {
            let last_answer = last_answer(*server);
            let since = |last: Instant| {
                let last = last_answer.map_or(last, |last_answer| last_answer.max(last));
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn silent_servers_that_promised_something_are_sent_something() {
        let vnode = crate::vnode::tests::vnode();
        let server = SocketAddr::from(([192, 0, 2, 1], 7000));
        let alive = Promisers::default();
        let every = Some(20 * SECOND);
        let asked = StatusRequest::about(&vnode).answered_by(server);
        let start = asked.at();
        let at = |seconds: u32| start + seconds * SECOND;
        alive.promised(&vnode, &Callback::NONE, &asked);
        assert_eq!(alive.due(at(30), every, |_| None), Due::default());
        let callback = Callback {
            version: 1,
            expires_in_secs: 300,
            callback_type: Callback::SHARED,
        };
        alive.promised(&vnode, &callback, &asked);
        let due = |seconds: u32, every, last_answer: Option<u32>| {
            let due = alive.due(at(seconds), every, |_| last_answer.map(at));
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
