//! `cellar up` and `cellar serve`: run the roles of a cell in one process, in the foreground. `up`
//! makes a whole cell, or with `--join` one more file server of an existing cell.
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
//! 7. `bos restart` ends it in the same way; then the program starts again in the same process.

pub(crate) mod addresses;
pub(crate) mod banner;
mod bootstrap;
mod bozo;
mod copies;
pub(crate) mod damaged;
mod databases;
mod decide;
pub(crate) mod engine;
mod family;
mod file_figures;
pub(crate) mod join;
pub(crate) mod lock;
mod metrics;
pub(crate) mod narrow;
pub(crate) mod osds;
pub(crate) mod partitions;
pub(crate) mod parts;
mod pieces;
mod pins;
pub(crate) mod ports;
mod probe;
mod protection;
pub(crate) mod recall_limit;
mod remote_databases;
mod roles;
mod statistics;
mod trust;
pub(crate) mod upkeep;

use std::io::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::cell_directory::{CellDirectory, Identity, Part};
use crate::daemon::Daemon;
use crate::default_directory;
use crate::failure::{Failure, Outcome};
use crate::last_start::LastStart;
use crate::osd_serve;
use crate::reload::Reloader;
use crate::restart;
use crate::serve::{self, Role};
use crate::service_manager::{self, Announced};
use crate::stand_in::announce::{self, Watched};
use crate::stop_signals::{End, StopSignals};

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
    /// Directory of the cell; made if it is missing. Default of 'cellar serve': /var/lib/cellar.
    /// Default of 'cellar up': ./cell-data, unless it is missing and /var/lib/cellar holds a cell.
    #[arg(long, value_name = "DIR", env = "CELLAR_DIR")]
    dir: Option<PathBuf>,
    /// Roles to run: databases, fileserver, osds. Default: those for which the directory was made;
    /// 'cellar up' makes a new cell with databases and a file server.
    #[arg(
        long,
        value_enum,
        value_name = "ROLE,...",
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub(crate) roles: Vec<Role>,
    /// Drop this option of the last start, so that its default is in force again; 'all' drops all.
    #[arg(long, value_name = "KEY,...", value_delimiter = ',')]
    forget: Vec<String>,
    /// The options of the last start, and those of this one.
    #[arg(skip)]
    pub(crate) last_start: LastStart,
    /// A new directory needs roles.
    #[arg(skip)]
    pub(crate) must_name_roles: bool,
    /// Name of the cell. Default: its present name, or demo.cell for a new cell.
    #[arg(long, value_name = "NAME")]
    cell: Option<String>,
    /// Run only a file server, and join the cell of this directory: a copy of another server's
    /// server-etc, or of OpenAFS's /etc/openafs/server. Needed once; its files are copied.
    #[arg(long, value_name = "SERVER-ETC")]
    pub(crate) join: Option<PathBuf>,
    /// Make root.afs and root.cell on this file server, if the cell does not have them. Needed once
    /// in a cell that began with databases alone.
    #[arg(long)]
    first_volumes: bool,
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
    /// If devices are the only role: their numbers in the cell's list ('cellar osd list').
    /// Default: those that the directory has. Device 7 is in osd7.
    #[arg(long = "id", value_name = "N,...", value_delimiter = ',')]
    ids: Vec<u32>,
    /// If devices are the only role: makes a device an archive, as for 'cellar osd serve'.
    #[arg(long, value_name = "N=PLACE", value_parser = osd_serve::archive)]
    archive: Vec<(u32, cellar_osd::Place)>,
    /// If devices are the only role: their port. Default: the file server's + 6.
    #[arg(long, value_name = "PORT")]
    osd_port: Option<u16>,
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
    etcd: engine::EtcdOptions,
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
    /// The options for a process of devices alone.
    fn devices(self, directory: PathBuf) -> osd_serve::Options {
        osd_serve::Options {
            dir: directory,
            ids: self.ids,
            archive: self.archive,
            cell: self.cell,
            join: self.join,
            bind: self.bind,
            osd_port: self.osd_port,
            fileserver_port: self.fileserver_port,
            durability: self.durability,
            damaged: self.damaged,
            scrubbing: self.scrubbing,
            metrics: self.metrics,
            shards: self.shards,
            forget: self.forget,
            last_start: self.last_start,
        }
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

/// Whether devices are served, as a role or because the directory has some.
fn runs_devices(options: &Options, directory: &CellDirectory) -> Outcome<bool> {
    match &options.roles[..] {
        [] => Ok(options.osds > 0 || osds::are_in(directory.path())?),
        roles => Ok(roles.contains(&Role::Osds)),
    }
}

pub(crate) fn run(mut options: Options) -> Outcome {
    let start = Instant::now();
    let directory = default_directory::named_or_default(options.dir.as_deref())?;
    if serve::is_devices_alone(&options, &directory) {
        return osd_serve::serve(options.devices(directory.path().to_owned()));
    }
    if !directory.identity_file().exists() {
        serve::check_named(&options, directory.path())?;
    }
    if !directory.path().exists() {
        // A refusal leaves nothing behind.
        let (identity, _) = decide::decide(&options, None, &directory.server_etc())?;
        ports::check_all(&identity, runs_devices(&options, &directory)?, false)?;
    }
    options.last_start.report();
    let metrics = options.metrics.listen()?;
    cellar_private::passage(directory.path()).map_err(|cause| {
        Failure::new(format!(
            "cannot make {}: {cause}",
            directory.path().display()
        ))
    })?;
    narrow::directory(&directory)?;
    let program = restart::program()?;
    let lock = lock::take(&directory.lock_file())?;
    narrow::contents(&directory)?;
    options.damaged.check(directory.path())?;
    let known = directory.identity()?;
    let (mut identity, addresses) =
        decide::decide(&options, known.as_ref(), &directory.server_etc())?;
    let has_stand_in = announce::is_there(&directory);
    ports::check_all(&identity, runs_devices(&options, &directory)?, has_stand_in)?;
    if known.is_none() {
        // Existing volumes are left as they are.
        identity.complete = pieces::take_over(&directory, &options.new)?;
    }
    let is_new = !identity.complete;
    let etc = directory.server_etc();
    if let Some(from) = options.join.as_deref().filter(|_| is_new) {
        join::copy(from, &etc)?;
    }
    if identity.part == Part::Fileserver {
        // The databases may have moved to other servers.
        identity.cell = join::cell_of(&etc, identity.cell.ports)?;
    }
    if known.is_none() || is_new {
        directory.write_identity(&identity)?;
    }
    let roles = roles::Roles::open(&directory, &identity, addresses, &options)?;
    let used = Some(roles.used(&directory));
    if identity.used != used {
        // Written before data is stored in the pieces. The rest of the identity is written only
        // when the ports are open.
        identity.used.clone_from(&used);
        let known = known.clone().filter(|_| !is_new);
        let known = known.map(|known| Identity { used, ..known });
        directory.write_identity(known.as_ref().unwrap_or(&identity))?;
    }
    if options.first_volumes {
        roles.missing_volumes(&identity)?;
    }
    if is_new {
        roles.first_volumes(&identity)?;
        identity.complete = true;
        directory.write_identity(&identity)?;
    }
    let without_realm = roles.trust.is_alone();
    let held = roles.held();
    let restart = roles.restart.clone();
    let signals = StopSignals::listen()?;
    // Only other servers with the same databases can serve the clients of a stopped one.
    let shares = identity.part.has_databases() && engine::EtcdPlace::load(&directory)?.is_some();
    let mut watched = shares.then(|| Watched::new(&directory, &identity));
    let running = roles.start(&directory, &identity, metrics.is_some(), watched.as_mut())?;
    if let Some(watched) = &mut watched {
        watched.ports_open(&running.ports());
    }
    let metrics = metrics
        .map(|place| place.serve(running.pages()))
        .transpose()?;
    // Written only now: the next start must not try an address that cannot be bound.
    if known.as_ref() != Some(&identity) {
        directory.write_identity(&identity)?;
    }
    options.last_start.save(&directory)?;
    // The reader of standard output may be gone; the cell serves in any case.
    let banner = banner::text(
        &directory,
        &identity,
        &held,
        is_new,
        without_realm,
        options.durability,
        start.elapsed(),
    );
    let _unread = std::io::stdout().write_all(banner.as_bytes());
    if let Some(metrics) = &metrics {
        tracing::info!(place = %metrics.place(), "metrics are served");
    }
    let announced = Announced::ready(running.ports());
    let mut reloader = Reloader::new(crate::values_of_keys);
    let end = signals.wait(&restart, || {
        service_manager::reload(|| {
            reloader.reload(metrics.as_ref(), running.fileserver());
            join::note_moved_databases(&directory.server_etc(), &identity);
        });
    });
    match end {
        End::Signal(signal) => {
            tracing::info!(signal, "stopping");
            announced.stopping();
        }
        End::Restart => {
            tracing::info!("restarting, as 'bos restart' asked");
            announced.restarting();
        }
    }
    drop(metrics);
    drop(watched);
    running.stop()?;
    tracing::info!("stopped");
    drop(lock);
    match end {
        End::Signal(_) => Ok(()),
        End::Restart => Err(restart::run(&program, &crate::command_of(Daemon::Up))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
