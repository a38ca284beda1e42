//! Cells that no list here names: asked of the DNS.
//!
//! 1. SRV records of `_afs3-vlserver._udp.CELL` name the location servers, in order of priority and, of the same, by
//!    falling weight; without any, AFSDB records of `CELL` do. Source: RFC 5864, RFC 1183.
//! 2. The first server's port is the cell's: all its roles answer where they customarily do, moved by as much. Servers on
//!    other ports are left out.
//! 3. Only what looks like a domain is asked about, and what is not there is remembered for a while: a file manager that
//!    looks for `.Trash` and `autorun.inf` costs nothing, or one question.
//! 4. Whoever asks waits for [`DNS_TIME`] at most, whatever the machine's resolver has been told.

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

use crate::cell::{Cell, CellName, DATABASE_SERVERS_MAX, Ports};

/// The longest that anybody waits for the DNS.
pub const DNS_TIME: Duration = Duration::from_secs(5);
/// The longest that one name server is waited for.
const TRY_TIME: Duration = Duration::from_secs(2);
/// Shortest time that the records of a cell are believed, however short their own.
const LIFE_MIN: Duration = Duration::from_secs(60);
/// Longest time that the records of a cell are believed, however long their own.
const LIFE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// How long it is remembered that there is no such cell, and that nobody could say.
const ABSENT_TIME: Duration = Duration::from_secs(600);
const FAILED_TIME: Duration = Duration::from_secs(30);
/// Names that are remembered to be no cells.
const ABSENT_MAX: usize = 1_024;
/// Cells asked about at a time.
const ASKING_MAX: usize = 8;
/// The type of AFSDB records, and their subtype for location servers. Source: RFC 1183.
const AFSDB: u16 = 18;
const LOCATION_SERVER: [u8; 2] = [0, 1];
/// The customary port of location servers.
const LOCATION_PORT: u16 = 7003;

/// Who is asked.
#[derive(Clone, Copy, Debug)]
enum Whom {
    /// Those of `/etc/resolv.conf`, as it is when somebody asks.
    System,
    At(SocketAddr),
}

/// The DNS, asked about cells.
pub struct Dns {
    whom: Whom,
    absent: Mutex<HashMap<CellName, Instant>>,
    asking: Semaphore,
}

impl fmt::Debug for Dns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dns").field("whom", &self.whom).finish()
    }
}

/// A cell that was found, and for how long it may be believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Discovered {
    pub(crate) cell: Cell,
    pub(crate) life: Duration,
}

/// Why there is none.
enum Missing {
    /// There is no such cell.
    Absent,
    /// Nobody could say.
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

/// A server by name, as a record has it.
struct Named {
    rank: (u16, u16),
    host: String,
    port: u16,
}

impl Dns {
    /// As this machine asks, by `/etc/resolv.conf`.
    pub fn system() -> Self {
        Self::of(Whom::System)
    }

    /// One name server, and no other.
    pub fn at(server: SocketAddr) -> Self {
        Self::of(Whom::At(server))
    }

    fn of(whom: Whom) -> Self {
        Self {
            whom,
            absent: Mutex::default(),
            asking: Semaphore::new(ASKING_MAX),
        }
    }

    /// The cell of that name, if the DNS knows one. Takes [`DNS_TIME`] at most.
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
        let mut builder = match self.whom {
            Whom::System => TokioResolver::builder(provider)?,
            Whom::At(server) => {
                let mut connection = ConnectionConfig::udp();
                connection.port = server.port();
                let server = NameServerConfig::new(server.ip(), true, vec![connection]);
                let config = ResolverConfig::from_name_servers(vec![server]);
                TokioResolver::builder_with_config(config, provider)
            }
        };
        let options = builder.options_mut();
        options.timeout = options.timeout.min(TRY_TIME);
        // It is made for one question: what is remembered is remembered here.
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
                // It was ended with the runtime.
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

/// Whether a name may be a domain that somebody registered: it has a dot within, and does not end as an address does.
fn may_be_a_domain(name: &str) -> bool {
    let mut labels = name.split('.');
    let last = labels.next_back().unwrap_or_default();
    name.contains('.')
        && !last.is_empty()
        && !last.bytes().all(|byte| byte.is_ascii_digit())
        && labels.all(|label| !label.is_empty())
}

/// The location servers, the preferred first. A target that is the root says that there is no such service.
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

/// The host in the bytes of an AFSDB record: a subtype, and a name as DNS has it, which is not compressed in records of this
/// type (RFC 3597).
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
