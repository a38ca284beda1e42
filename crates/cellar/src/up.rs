//! `cellar up`: runs a whole cell in one process, in the foreground; with `--join`, one more file
//! server of an existing cell.
//!
//! 1. The directory is locked; a second `up` on it is refused. The rights of other accounts are
//!    removed.
//! 2. `cell.json` holds the identity of the cell. The first start decides and writes it.
//! 3. Databases and partitions are opened. That replays their journals and scans nothing. Pieces
//!    that the cell has used must be there ([`pieces`]).
//! 4. The first start makes the first volumes. The steps can be repeated, so a crash among them
//!    costs nothing; `complete` in `cell.json` records that they are done.
//! 5. The ports open, the server's addresses are registered, and the program prints how to reach
//!    the cell.
//! 6. A signal ends it: the ports close, callback state is saved, then partitions and databases are
//!    closed. A second signal ends it at once, which loses nothing that was acknowledged.

pub(crate) mod banner;
mod bootstrap;
mod bozo;
mod copies;
pub(crate) mod damaged;
mod databases;
mod family;
pub(crate) mod join;
pub(crate) mod lock;
mod metrics;
pub(crate) mod narrow;
pub(crate) mod osds;
mod partitions;
pub(crate) mod parts;
mod pieces;
mod probe;
mod protection;
mod remote_databases;
mod roles;
mod statistics;
mod trust;
pub(crate) mod upkeep;

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cellar_client::{Cell, CellName, Ports};

use crate::cell_directory::{self, Identity, Part};
use crate::default_directory;
use crate::failure::{Failure, Outcome};
use crate::service_manager::Announced;
use crate::stop_signals::StopSignals;

/// The name of a new cell if none is given.
const DEFAULT_CELL: &str = "demo.cell";

// A later option overrides an earlier one: the words of a configuration file come first.
#[derive(Debug, clap::Args)]
#[command(args_override_self = true)]
#[command(after_help = "Examples:
  cellar up
  cellar up --dir /srv/cell --cell example.org --bind 192.0.2.10
  cellar up --fileserver-port 17000       (stock clients use only the customary ports)
  cellar up --config /etc/cellar/cellar.toml
  cellar up --metrics 9100                (http://127.0.0.1:9100/metrics for Prometheus)
  cellar up --dir /srv/fs2 --bind 192.0.2.11 --join /root/server-etc
                                          (one more file server of the cell of these keys)")]
pub(crate) struct Options {
    /// Take options from this TOML file: each key is the name of an option without the dashes.
    /// Options of the command line override it. 'cellar config check FILE' checks it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory of the cell; made if it is missing. Default: ./cell-data.
    #[arg(long, value_name = "DIR", env = "CELLAR_DIR")]
    dir: Option<PathBuf>,
    /// Name of the cell. Default: its present name, or demo.cell for a new cell.
    #[arg(long, value_name = "NAME")]
    cell: Option<String>,
    /// Run only a file server, and join the cell of this directory: a copy of another server's
    /// server-etc, or of OpenAFS's /etc/openafs/server. Needed once; its files are copied.
    #[arg(long, value_name = "SERVER-ETC")]
    join: Option<PathBuf>,
    /// Address to answer on; it is registered for clients. Default: the last one, or 127.0.0.1 for
    /// a new cell, which only this machine can reach. 0.0.0.0 answers on all addresses.
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<IpAddr>,
    /// Port of the file server. The ports of the other roles follow: +2 users, +3 locations, +5
    /// volumes, +6 objects, +7 overseer. Default: 7000.
    #[arg(long, value_name = "PORT")]
    fileserver_port: Option<u16>,
    /// When a change counts as done. 'strict': when it survives a loss of power. 'relaxed' or
    /// 'relaxed:MILLISECONDS': earlier. Then a loss of power loses the changes of the last 100 (or
    /// MILLISECONDS) ms.
    #[arg(long, value_name = "MODE", default_value = "strict", value_parser = durability)]
    durability: cellar_volume::Durability,
    /// Smallest number of object storage devices, in osd1, osd2, ... of the directory. Existing
    /// devices run in any case.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=64))]
    osds: u32,
    /// Location of this server, as far as known. Objects of its files go to devices of the same
    /// site, if there are enough. Default: the last one given; '' for none.
    #[arg(long, value_name = "SITE/ROOM/RACK/HOST", value_parser = osds::location)]
    location: Option<String>,
    /// Owner of this server. Objects of its files go first to devices of that owner and of no
    /// owner. Default: the last one given; '' for none.
    #[arg(long, value_name = "NAME", value_parser = osds::owner)]
    owner: Option<String>,
    /// Idle time after which a volume transaction is ended. A restore or move whose client died
    /// locks its volume until then.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = crate::quantities::seconds_within(1..=86_400))]
    transaction_idle: u64,
    #[command(flatten)]
    damaged: damaged::Damaged,
    #[command(flatten)]
    new: pieces::New,
    #[command(flatten)]
    keeping: upkeep::FileServerUpkeep,
    #[command(flatten)]
    scrubbing: upkeep::Scrubbing,
    #[command(flatten)]
    metrics: crate::metrics::MetricsOptions,
    /// Show the RPC statistics (RXSTATS) to anonymous callers too. Default: only to superusers.
    #[arg(long)]
    open_statistics: bool,
    /// Number of network threads. Default: one for each processor.
    #[arg(long, value_name = "N")]
    shards: Option<usize>,
}

impl Options {
    /// The configuration file.
    pub(crate) fn config(&self) -> Option<&Path> {
        self.config.as_deref()
    }
}

pub(crate) fn durability(text: &str) -> Result<cellar_volume::Durability, String> {
    use cellar_volume::Durability;
    let (mode, time) = text.split_once(':').unwrap_or((text, ""));
    match (mode, time) {
        ("strict", "") => Ok(Durability::Strict),
        ("relaxed", "") => Ok(Durability::Relaxed(Duration::from_millis(100))),
        ("relaxed", time) => match time.parse() {
            Ok(milliseconds @ 1..=60_000) => {
                Ok(Durability::Relaxed(Duration::from_millis(milliseconds)))
            }
            _ => Err(format!(
                "'{time}' is not a number of milliseconds from 1 to 60000"
            )),
        },
        _ => Err(format!(
            "'{text}' is neither strict nor relaxed nor relaxed:MILLISECONDS"
        )),
    }
}

/// The time since 1970.
pub(crate) fn wall_clock() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

pub(crate) fn run(options: Options) -> Outcome {
    let start = Instant::now();
    let metrics = options.metrics.listen()?;
    let directory = default_directory::named_or_default(options.dir.as_deref())?;
    cellar_private::passage(directory.path()).map_err(|cause| {
        Failure::new(format!(
            "cannot make {}: {cause}",
            directory.path().display()
        ))
    })?;
    narrow::directory(&directory)?;
    let _lock = lock::take(&directory.lock_file())?;
    narrow::contents(&directory)?;
    options.damaged.check(directory.path())?;
    let known = directory.identity()?;
    let mut identity = decide(&options, known.as_ref())?;
    if known.is_none() {
        // Existing volumes are left as they are.
        identity.complete = pieces::take_over(&directory, &options.new)?;
    }
    let is_new = !identity.complete;
    if identity.part == Part::Fileserver {
        let etc = directory.server_etc();
        if let Some(from) = options.join.as_deref().filter(|_| is_new) {
            join::copy(from, &etc)?;
        }
        // The databases may have moved to other servers.
        identity.cell = join::cell_of(&etc, identity.cell.ports)?;
    }
    if known.is_none() || is_new {
        directory.write_identity(&identity)?;
    }
    let roles = roles::Roles::open(&directory, &identity, &options)?;
    let used = Some(roles.used(&directory));
    if identity.used != used {
        // Written before data is stored in the pieces. The rest of the identity is written only
        // when the ports are open.
        identity.used.clone_from(&used);
        let known = known.clone().filter(|_| !is_new);
        let known = known.map(|known| Identity { used, ..known });
        directory.write_identity(known.as_ref().unwrap_or(&identity))?;
    }
    if is_new {
        roles.first_volumes(&identity)?;
        identity.complete = true;
        directory.write_identity(&identity)?;
    }
    let without_realm = roles.trust.is_alone();
    let partitions = roles.partitions();
    let running = roles.start(&directory, &identity, metrics.is_some())?;
    let metrics = metrics
        .map(|place| place.serve(running.pages()))
        .transpose()?;
    // Written only now: the next start must not try an address that cannot be bound.
    if known.as_ref() != Some(&identity) {
        directory.write_identity(&identity)?;
    }
    // The reader of standard output may be gone; the cell serves in any case.
    let banner = banner::text(
        &directory,
        &identity,
        &partitions,
        is_new,
        without_realm,
        options.durability,
        start.elapsed(),
    );
    let signals = StopSignals::listen()?;
    let _unread = std::io::stdout().write_all(banner.as_bytes());
    if let Some(metrics) = &metrics {
        tracing::info!(place = %metrics.place(), "metrics are served");
    }
    let announced = Announced::ready(running.ports());
    let signal = signals.wait();
    tracing::info!(signal, "stopping");
    announced.stopping();
    drop(metrics);
    running.stop()?;
    tracing::info!("stopped; 'cellar up' starts the cell again");
    Ok(())
}

/// The identity of the cell: the known one, changed by the command line.
fn decide(options: &Options, known: Option<&Identity>) -> Outcome<Identity> {
    let default = Path::new(cell_directory::DEFAULT);
    let place = options.dir.as_deref().unwrap_or(default);
    let ports = match (options.fileserver_port, known) {
        (Some(port), _) => Ports::based_at(port)
            .ok_or_else(|| Failure::usage(format!("{port}: choose a port from 1 to 65528")))?,
        (None, Some(known)) => known.cell.ports,
        (None, None) => Ports::default(),
    };
    let joined = options.join.as_deref();
    let joined = joined.map(|etc| join::cell_of(etc, ports)).transpose()?;
    if let Some(known) = known.filter(|known| known.part == Part::Whole)
        && joined.is_some()
    {
        return Err(Failure::new(format!(
            "{} holds the whole cell {}: join with another --dir",
            place.display(),
            known.cell.name
        )));
    }
    let wanted = options.cell.as_deref().map(CellName::new).transpose()?;
    if let (Some(joined), Some(wanted)) = (&joined, &wanted)
        && joined.name != *wanted
    {
        return Err(Failure::usage(format!(
            "--join names cell {}, --cell {wanted}: leave --cell out",
            joined.name
        )));
    }
    let wanted = wanted.or_else(|| joined.as_ref().map(|cell| cell.name.clone()));
    if let (Some(known), Some(wanted)) = (known, &wanted)
        && known.cell.name != *wanted
    {
        return Err(Failure::new(format!(
            "{} holds cell {}, not {wanted}: leave --cell out, or make another cell with --dir",
            place.display(),
            known.cell.name
        )));
    }
    let name = match (wanted, known) {
        (Some(name), _) => name,
        (None, Some(known)) => known.cell.name.clone(),
        (None, None) => CellName::new(DEFAULT_CELL)?,
    };
    let part = match (&joined, known) {
        (Some(_), _) => Part::Fileserver,
        (None, Some(known)) => known.part,
        (None, None) => Part::Whole,
    };
    let database_servers = |own: IpAddr| match (joined, known) {
        (Some(cell), _) => cell.database_servers,
        (None, Some(known)) if part == Part::Fileserver => known.cell.database_servers.clone(),
        _ => vec![own],
    };
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let bind = options
        .bind
        .unwrap_or_else(|| known.map_or(loopback, |known| known.bind));
    let address = if bind.is_unspecified() {
        own_address()?
    } else {
        bind
    };
    if !address.is_ipv4() {
        return Err(Failure::usage(format!(
            "{address}: AFS databases list servers by IPv4 addresses; bind one of those"
        )));
    }
    Ok(Identity {
        cell: Cell {
            name,
            database_servers: database_servers(address),
            ports,
        },
        part,
        address,
        server_uuid: known.map_or_else(
            || *uuid::Uuid::new_v4().as_bytes(),
            |known| known.server_uuid,
        ),
        bind,
        location: given_or_last(&options.location, known.map(|known| &known.location)),
        owner: given_or_last(&options.owner, known.map(|known| &known.owner)),
        complete: known.is_some_and(|known| known.complete),
        used: known.and_then(|known| known.used.clone()),
    })
}

/// The value given now, otherwise the last value.
fn given_or_last(now: &Option<String>, last: Option<&String>) -> String {
    now.as_ref().or(last).cloned().unwrap_or_default()
}

/// The address by which other machines see this one: the source address of packets to them.
fn own_address() -> Outcome<IpAddr> {
    let ask = || -> std::io::Result<IpAddr> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        // A documentation address. It is routed like any other, and connect(2) sends nothing.
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 7000))?;
        Ok(socket.local_addr()?.ip())
    };
    ask().map_err(|cause| {
        Failure::new(format!(
            "cannot find the address by which clients reach this machine, since it has no route ({cause}); \
             name one with --bind ADDRESS"
        ))
    })
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

    use super::*;

    /// The options of an empty command line.
    fn options() -> Options {
        let command = Options::augment_args(clap::Command::new("up"));
        // Without the environment of the test.
        let matches = command
            .mut_arg("dir", |dir| dir.env(None))
            .get_matches_from(["up"]);
        Options::from_arg_matches(&matches).expect("options")
    }

    #[test]
    fn a_new_cell_is_this_machines_own() {
        let identity = decide(&options(), None).expect("identity");
        assert_eq!(identity.cell.name.as_str(), DEFAULT_CELL);
        assert_eq!(
            identity.cell.database_servers,
            [IpAddr::from([127, 0, 0, 1])]
        );
        assert_eq!(identity.cell.ports, Ports::default());
        assert!(!identity.complete);
    }

    #[test]
    fn a_known_cell_keeps_what_it_has() {
        let known = decide(
            &Options {
                cell: Some("a.org".to_owned()),
                bind: Some(IpAddr::from([192, 0, 2, 1])),
                fileserver_port: Some(17000),
                ..options()
            },
            None,
        )
        .expect("first");
        let again = decide(&options(), Some(&known)).expect("again");
        assert_eq!(again, known);
        let moved = Options {
            bind: Some(IpAddr::from([192, 0, 2, 2])),
            location: Some("hq/r1".to_owned()),
            owner: Some("physics".to_owned()),
            ..options()
        };
        let moved = decide(&moved, Some(&known)).expect("moved");
        assert_eq!((&*moved.location, &*moved.owner), ("hq/r1", "physics"));
        let without_owner = Options {
            owner: Some(String::new()),
            ..options()
        };
        let without_owner = decide(&without_owner, Some(&moved)).expect("without owner");
        assert_eq!(
            (&*without_owner.location, &*without_owner.owner),
            ("hq/r1", "")
        );
        assert_eq!(moved.server_uuid, known.server_uuid);
        assert_eq!(moved.cell.database_servers, [IpAddr::from([192, 0, 2, 2])]);
        let renamed = Options {
            cell: Some("b.org".to_owned()),
            ..options()
        };
        assert!(decide(&renamed, Some(&known)).is_err());
    }

    #[test]
    fn a_file_server_joins_once() {
        let etc = tempfile::tempdir().expect("tempdir");
        std::fs::write(etc.path().join("ThisCell"), "a.org\n").expect("write");
        let list = ">a.org\n192.0.2.1 #db\n";
        std::fs::write(etc.path().join("CellServDB"), list).expect("write");
        let join = || Options {
            join: Some(etc.path().to_owned()),
            bind: Some(IpAddr::from([192, 0, 2, 9])),
            ..options()
        };
        let joined = decide(&join(), None).expect("joined");
        assert_eq!(joined.part, Part::Fileserver);
        assert_eq!(joined.cell.name.as_str(), "a.org");
        assert_eq!(joined.cell.database_servers, [IpAddr::from([192, 0, 2, 1])]);
        assert_eq!(joined.address, IpAddr::from([192, 0, 2, 9]));
        assert_eq!(decide(&options(), Some(&joined)).expect("again"), joined);
        assert_eq!(decide(&join(), Some(&joined)).expect("repeated"), joined);
        let other = Options {
            cell: Some("b.org".to_owned()),
            ..join()
        };
        assert!(decide(&other, None).is_err());
        let whole = Options {
            cell: Some("a.org".to_owned()),
            ..options()
        };
        let whole = decide(&whole, None).expect("whole");
        assert!(decide(&join(), Some(&whole)).is_err());
    }

    #[test]
    fn durability_modes() {
        assert_eq!(durability("strict"), Ok(cellar_volume::Durability::Strict));
        let relaxed = cellar_volume::Durability::Relaxed(Duration::from_millis(20));
        assert_eq!(durability("relaxed:20"), Ok(relaxed));
        for bad in ["", "strict:1", "relaxed:0", "relaxed:x", "fast"] {
            assert!(durability(bad).is_err(), "{bad}");
        }
    }
}
