//! What an engine knows about its cluster and itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::certificates::Certificate;
use crate::messages::ListedMember;

/// Writes are tried for this long after the cluster last answered. It covers the election of a new
/// leader. Later writes fail at once.
const GRACE: Duration = Duration::from_secs(2);
/// While the cluster is silent, a transaction is tried again for this long after its beginning.
const REPEAT: Duration = Duration::from_millis(200);

/// One member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// The addresses at which it serves clients.
    pub addresses: Vec<String>,
    /// Whether it leads the cluster.
    pub is_leader: bool,
}

/// The state of one address of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The address.
    pub address: String,
    /// The version of etcd there.
    pub version: String,
    /// Bytes of etcd's database.
    pub bytes: u64,
    /// The reason why it does not answer.
    pub fault: Option<String>,
    /// Entries of the cluster's log that it has not received.
    pub behind: u64,
    /// The time in which it answered or failed.
    pub answered_in: Duration,
}

/// The state of an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The first part of all keys.
    pub prefix: String,
    /// The configured addresses.
    pub places: Vec<Place>,
    /// The members of the cluster.
    pub members: Vec<Member>,
    /// Alarms of the cluster: name of the member and of the alarm.
    pub alarms: Vec<(String, &'static str)>,
    /// The files with certificates of this server.
    pub certificates: Vec<Certificate>,
    /// Whether the cluster answers writes.
    pub is_reachable: bool,
    /// The time since the copy was known to be current.
    pub staleness: Duration,
    /// The revision of the database.
    pub revision: u64,
    /// Transactions that were committed.
    pub commits: u64,
    /// Commits in etcd: each has one transaction or more.
    pub groups: u64,
    /// Groups that ran again because a row had changed.
    pub conflicts: u64,
    /// Cut commits whose outcome was found out.
    pub resolved: u64,
    /// Times that the copy was read again as a whole.
    pub reloads: u64,
}

impl Status {
    /// The leader of the cluster, if it is known.
    pub fn leader(&self) -> Option<&Member> {
        self.members.iter().find(|member| member.is_leader)
    }

    /// The host of the leader: its address without the port.
    pub fn leader_host(&self) -> Option<&str> {
        let address = self.leader()?.addresses.first()?;
        let (_, rest) = address.split_once("://")?;
        let host = rest.split('/').next()?;
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
        Some(host.trim_matches(['[', ']']))
    }
}

/// Whether the cluster answers.
///
/// | state | event | next |
/// |---|---|---|
/// | up | a probe or commit is not answered | down |
/// | down | a probe or commit is answered | up |
#[derive(Clone, Debug)]
enum Reach {
    Up,
    Down { since: Instant, reason: String },
}

/// The figures of an engine. Each lock is held for a moment, and none under another.
#[derive(Debug)]
pub(crate) struct Figures {
    reach: Mutex<Reach>,
    current: Mutex<Instant>,
    seen: Mutex<Seen>,
    pub(crate) commits: AtomicU64,
    pub(crate) groups: AtomicU64,
    pub(crate) conflicts: AtomicU64,
    pub(crate) resolved: AtomicU64,
    pub(crate) reloads: AtomicU64,
}

/// What the monitor last saw.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) places: Vec<Place>,
    pub(crate) members: Vec<ListedMember>,
    pub(crate) leader: u64,
    pub(crate) alarms: Vec<(u64, i32)>,
    pub(crate) certificates: Vec<Certificate>,
}

impl Figures {
    pub(crate) fn new() -> Self {
        Self {
            reach: Mutex::new(Reach::Up),
            current: Mutex::new(Instant::now()),
            seen: Mutex::default(),
            commits: AtomicU64::new(0),
            groups: AtomicU64::new(0),
            conflicts: AtomicU64::new(0),
            resolved: AtomicU64::new(0),
            reloads: AtomicU64::new(0),
        }
    }

    pub(crate) fn answered(&self) {
        let mut reach = self.reach.lock();
        if let Reach::Down { since, .. } = &*reach {
            tracing::info!(after = ?since.elapsed(), "etcd answers again");
            *reach = Reach::Up;
        }
    }

    pub(crate) fn silent(&self, reason: &str) {
        let mut reach = self.reach.lock();
        if let Reach::Up = &*reach {
            tracing::warn!(reason, "etcd does not answer; the databases take no writes");
            *reach = Reach::Down {
                since: Instant::now(),
                reason: reason.to_owned(),
            };
        }
    }

    /// The reason why a write that has lasted for a time fails at once.
    pub(crate) fn refusal(&self, lasted: Duration) -> Option<String> {
        match &*self.reach.lock() {
            Reach::Down { since, reason } if since.elapsed() > GRACE || lasted > REPEAT => {
                Some(reason.clone())
            }
            Reach::Down { .. } | Reach::Up => None,
        }
    }

    /// The copy has everything that was committed before `time`.
    pub(crate) fn current_at(&self, time: Instant) {
        *self.current.lock() = time;
    }

    pub(crate) fn seen(&self) -> Seen {
        self.seen.lock().clone()
    }

    pub(crate) fn see(&self, seen: Seen) {
        *self.seen.lock() = seen;
    }

    pub(crate) fn status(&self, prefix: &str, revision: u64) -> Status {
        let seen = self.seen();
        let name_of = |id: u64| {
            let member = seen.members.iter().find(|member| member.id == id);
            member.map_or_else(|| format!("{id:x}"), |member| member.name.clone())
        };
        let count = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        let alarms = seen.alarms.iter();
        let members = seen.members.iter().map(|member| Member {
            name: member.name.clone(),
            addresses: member.client_urls.clone(),
            is_leader: member.id == seen.leader,
        });
        Status {
            prefix: prefix.to_owned(),
            members: members.collect(),
            alarms: alarms
                .map(|(member, alarm)| (name_of(*member), alarm_name(*alarm)))
                .collect(),
            is_reachable: matches!(&*self.reach.lock(), Reach::Up),
            staleness: self.current.lock().elapsed(),
            revision,
            commits: count(&self.commits),
            groups: count(&self.groups),
            conflicts: count(&self.conflicts),
            resolved: count(&self.resolved),
            reloads: count(&self.reloads),
            places: seen.places,
            certificates: seen.certificates,
        }
    }
}

/// etcd's name of an alarm.
pub(crate) fn alarm_name(alarm: i32) -> &'static str {
    match alarm {
        1 => "NOSPACE",
        2 => "CORRUPT",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leaders_host_has_no_port() {
        let of = |address: &str| {
            let member = Member {
                name: "one".into(),
                addresses: vec![address.to_owned()],
                is_leader: true,
            };
            let status = Status {
                members: vec![member],
                ..Status::default()
            };
            status.leader_host().map(str::to_owned)
        };
        assert_eq!(of("http://192.0.2.1:2379").as_deref(), Some("192.0.2.1"));
        assert_eq!(
            of("https://db1.example.org:2379/").as_deref(),
            Some("db1.example.org")
        );
        assert_eq!(
            of("http://[2001:db8::1]:2379").as_deref(),
            Some("2001:db8::1")
        );
    }
}
