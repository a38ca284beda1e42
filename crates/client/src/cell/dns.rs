//! The lookup of a cell in the DNS, for cells that no list on this machine names.
//!
//! 1. SRV records of `_afs3-vlserver._udp.CELL` name the location servers, sorted by priority and,
//!    within a priority, by falling weight. Without SRV records, AFSDB records of `CELL` name them.
//!    Source: RFC 5864, RFC 1183.
//! 2. The port of the first server defines the ports of the cell: all default ports are shifted by
//!    the same number. Servers on other ports are left out.
//! 3. Only names that look like a domain are looked up, and a missing name is remembered for
//!    [`ABSENT_TIME`]. So a file manager that looks for `.Trash` costs no query, and `autorun.inf`
//!    one.
//! 4. A caller waits at most [`DNS_TIME`], whatever time-outs the machine's resolver has.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{RData, RecordType};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Cell, CellName, DATABASE_SERVERS_MAX, Ports};

/// The longest time that a caller waits for the DNS.
pub const DNS_TIME: Duration = Duration::from_secs(5);
/// The longest time that one name server gets for its answer.
const TRY_TIME: Duration = Duration::from_secs(2);
/// The shortest time for which the records of a cell are valid, even if their TTL is shorter.
const LIFE_MIN: Duration = Duration::from_secs(60);
/// The longest time for which the records of a cell are valid, even if their TTL is longer.
const LIFE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// The time for which a name without records counts as absent.
const ABSENT_TIME: Duration = Duration::from_secs(600);
/// The time for which a name counts as absent after the DNS did not answer.
const FAILED_TIME: Duration = Duration::from_secs(30);
/// The most absent names that are remembered.
const ABSENT_MAX: usize = 1_024;
/// The most lookups at a time.
const ASKING_MAX: usize = 8;
/// The type of AFSDB records, and their subtype for location servers. Source: RFC 1183.
const AFSDB: u16 = 18;
const LOCATION_SERVER: [u8; 2] = [0, 1];
/// The default port of location servers.
const LOCATION_PORT: u16 = 7003;

/// The name servers to ask.
#[derive(Clone, Copy, Debug)]
enum NameServers {
    /// Those of `/etc/resolv.conf`, which is read at each lookup.
    System,
    /// This one alone.
    At(SocketAddr),
}

/// A client of the DNS that looks up cells.
pub struct Dns {
    servers: NameServers,
    absent: Mutex<HashMap<CellName, Instant>>,
    asking: Semaphore,
}

impl fmt::Debug for Dns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dns")
            .field("servers", &self.servers)
            .finish()
    }
}

/// A cell from the DNS, and the time for which its records are valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Discovered {
    pub(crate) cell: Cell,
    pub(crate) life: Duration,
}

/// The reason why no cell was found.
enum Missing {
    /// The DNS has no records for the name.
    Absent,
    /// No name server answered, or one failed.
    Failed(NetError),
}

impl From<NetError> for Missing {
    fn from(error: NetError) -> Self {
        if error.is_no_records_found() {
            Self::Absent
        } else {
            Self::Failed(error)
        }
    }
}

/// A server of a record, by name.
struct Named {
    /// Servers with the least rank come first.
    rank: (u16, u16),
    host: String,
    port: u16,
}

impl Dns {
    /// A client of the name servers of `/etc/resolv.conf`.
    pub fn system() -> Self {
        Self::of(NameServers::System)
    }

    /// A client of one name server.
    pub fn at(server: SocketAddr) -> Self {
        Self::of(NameServers::At(server))
    }

    fn of(servers: NameServers) -> Self {
        Self {
            servers,
            absent: Mutex::default(),
            asking: Semaphore::new(ASKING_MAX),
        }
    }

    /// The cell of this name, if the DNS knows it. Takes [`DNS_TIME`] at most.
    pub async fn cell(&self, name: &CellName) -> Option<Cell> {
        self.discover(name).await.map(|found| found.cell)
    }

    pub(crate) async fn discover(&self, name: &CellName) -> Option<Discovered> {
        if !may_be_a_domain(name.as_str()) || self.is_absent(name) {
            return None;
        }
        let asked = tokio::time::timeout(DNS_TIME, async {
            let _turn = self.asking.acquire().await;
            self.ask(name).await
        });
        let time = match asked.await {
            Ok(Ok(found)) => {
                tracing::info!(cell = %name, servers = ?found.cell.database_servers, "found in the DNS");
                return Some(found);
            }
            Ok(Err(Missing::Absent)) => ABSENT_TIME,
            Ok(Err(Missing::Failed(error))) => {
                tracing::info!(cell = %name, %error, "the DNS does not answer");
                FAILED_TIME
            }
            Err(_) => {
                tracing::info!(cell = %name, "the DNS does not answer in time");
                FAILED_TIME
            }
        };
        self.remember_absent(name, time);
        None
    }

    fn is_absent(&self, name: &CellName) -> bool {
        let absent = self.absent.lock();
        absent
            .get(name)
            .is_some_and(|until| *until > Instant::now())
    }

    fn remember_absent(&self, name: &CellName, time: Duration) {
        let now = Instant::now();
        let mut absent = self.absent.lock();
        if absent.len() >= ABSENT_MAX {
            absent.retain(|_, until| *until > now);
        }
        if absent.len() >= ABSENT_MAX {
            absent.clear();
        }
        absent.insert(name.clone(), now + time);
    }

    fn resolver(&self) -> Result<TokioResolver, NetError> {
        let provider = TokioRuntimeProvider::default();
        let mut builder = match self.servers {
            NameServers::System => TokioResolver::builder(provider)?,
            NameServers::At(server) => {
                let mut connection = ConnectionConfig::udp();
                connection.port = server.port();
                let server = NameServerConfig::new(server.ip(), true, vec![connection]);
                let config = ResolverConfig::from_name_servers(vec![server]);
                TokioResolver::builder_with_config(config, provider)
            }
        };
        let options = builder.options_mut();
        options.timeout = options.timeout.min(TRY_TIME);
        // The resolver serves one lookup; results are cached by the caller.
        options.cache_size = 0;
        builder.build()
    }

    async fn ask(&self, name: &CellName) -> Result<Discovered, Missing> {
        let resolver = self.resolver()?;
        let service = format!("_afs3-vlserver._udp.{name}.");
        let (named, life) = match resolver.srv_lookup(service).await {
            Ok(answer) => (of_services(&answer), life(&answer)),
            Err(error) if error.is_no_records_found() => {
                let kind = RecordType::Unknown(AFSDB);
                let answer = resolver.lookup(format!("{name}."), kind).await?;
                (of_databases(&answer), life(&answer))
            }
            Err(error) => return Err(error.into()),
        };
        let port = named.first().ok_or(Missing::Absent)?.port;
        let ports = port.checked_sub(3).and_then(Ports::based_at);
        let named = named.into_iter().filter(|server| server.port == port);
        let mut asked = JoinSet::new();
        for (order, server) in named.take(DATABASE_SERVERS_MAX).enumerate() {
            let resolver = resolver.clone();
            asked.spawn(async move { (order, resolver.ipv4_lookup(server.host).await) });
        }
        let (mut found, mut failed) = (Vec::new(), None);
        while let Some(answered) = asked.join_next().await {
            match answered {
                Ok((order, Ok(answer))) => {
                    found.extend(addresses(&answer).map(|address| (order, address)));
                }
                Ok((_, Err(error))) => failed = Some(error),
                // The runtime ended the task.
                Err(_) => {}
            }
        }
        found.sort_by_key(|(order, _)| *order);
        let mut servers: Vec<IpAddr> = Vec::new();
        for (_, address) in found {
            if !servers.contains(&address) && servers.len() < DATABASE_SERVERS_MAX {
                servers.push(address);
            }
        }
        match (ports, failed) {
            (Some(ports), _) if !servers.is_empty() => Ok(Discovered {
                cell: Cell {
                    name: name.clone(),
                    database_servers: servers,
                    ports,
                },
                life,
            }),
            (_, Some(error)) => Err(error.into()),
            _ => Err(Missing::Absent),
        }
    }
}

/// Whether a name may be a registered domain: it contains a dot, and its last label is not a
/// number.
fn may_be_a_domain(name: &str) -> bool {
    let mut labels = name.split('.');
    let last = labels.next_back().unwrap_or_default();
    name.contains('.')
        && !last.is_empty()
        && !last.bytes().all(|byte| byte.is_ascii_digit())
        && labels.all(|label| !label.is_empty())
}

/// The location servers of SRV records, in order. The root as target means that the service does
/// not exist.
fn of_services(answer: &Lookup) -> Vec<Named> {
    let records = answer
        .answers()
        .iter()
        .filter_map(|record| match &record.data {
            RData::SRV(service) if !service.target.is_root() => Some(Named {
                rank: (service.priority, u16::MAX - service.weight),
                host: service.target.to_ascii(),
                port: service.port,
            }),
            _ => None,
        });
    let mut named: Vec<_> = records.collect();
    named.sort_by_key(|server| server.rank);
    named
}

fn of_databases(answer: &Lookup) -> Vec<Named> {
    let records = answer
        .answers()
        .iter()
        .filter_map(|record| match &record.data {
            RData::Unknown { code, rdata } if u16::from(*code) == AFSDB => {
                let host = database_host(&rdata.anything)?;
                Some(Named {
                    rank: (0, 0),
                    host,
                    port: LOCATION_PORT,
                })
            }
            _ => None,
        });
    records.collect()
}

/// The host in the bytes of an AFSDB record: a subtype, and a name in the form of the DNS. The name
/// is not compressed in records of this type (RFC 3597).
fn database_host(bytes: &[u8]) -> Option<String> {
    let mut rest = bytes.strip_prefix(&LOCATION_SERVER)?;
    let mut host = String::new();
    loop {
        let (length, after) = rest.split_first()?;
        if *length == 0 {
            return (after.is_empty() && !host.is_empty()).then_some(host);
        }
        let (label, after) = after.split_at_checked(usize::from(*length))?;
        let legal = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if *length > 63 || !label.iter().all(legal) {
            return None;
        }
        host.push_str(std::str::from_utf8(label).ok()?);
        host.push('.');
        rest = after;
    }
}

fn addresses(answer: &Lookup) -> impl Iterator<Item = IpAddr> + '_ {
    answer
        .answers()
        .iter()
        .filter_map(|record| match &record.data {
            RData::A(address) => Some(IpAddr::V4(address.0)),
            _ => None,
        })
}

fn life(answer: &Lookup) -> Duration {
    let times = answer.answers().iter().map(|record| record.ttl);
    let least = Duration::from_secs(times.min().unwrap_or_default().into());
    least.clamp(LIFE_MIN, LIFE_MAX)
}

#[cfg(test)]
mod tests;
