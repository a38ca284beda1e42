//! `cellar serve osds` and `cellar osd serve`: an object storage server alone, in the foreground,
//! on a machine of its own.
//!
//! 1. Its directory has a copy of a server's configuration directory, with the cell's key and the
//!    addresses of the databases. It has a device in `osd7` for number 7. The administrator makes
//!    the entries of the devices first, with `cellar osd create`.
//! 2. The server's heartbeats tell the databases its address.
//! 3. A signal ends it: first the port is closed, then the devices.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use cellar_auth::Authority;
use cellar_auth::audit::Audit;
use cellar_client::Ports;
use cellar_osd::{NotAPlace, OsdServer, Place};
use cellar_rpc::{PortConfig, Runtime, RuntimeConfig};
use clap::{CommandFactory as _, FromArgMatches as _, Parser};

use crate::cell_directory::CellDirectory;
use crate::daemon::{self, Daemon, Phase};
use crate::failure::{Failure, Outcome};
use crate::last_start::LastStart;
use crate::reload::Reloader;
use crate::restart::Restart;
use crate::service_manager::{self, Announced};
use crate::stop_signals::StopSignals;
use crate::up::parts::Parts;
use crate::up::{addresses, banner, damaged, durability, join, lock, narrow, osds, ports, upkeep};

/// The security class of Kerberos tickets, in Rx.
const RXKAD_INDEX: u8 = 2;

/// Run an object storage server for the devices of this machine.
#[derive(Debug, Parser)]
#[command(
    name = "cellar osd serve",
    bin_name = "cellar osd serve",
    max_term_width = 100,
    args_override_self = true
)]
#[command(after_help = "Examples:
  cellar osd serve --dir /srv/osd --id 7,8 --join /root/server-etc --bind 192.0.2.12
  cellar osd serve --dir /srv/osd --id 7,8 --bind 192.0.2.12     (after the first time)
  cellar osd serve --dir /srv/osd --id 9 --archive 9=/mnt/tape   (9: cellar osd create tape -archival)")]
pub(crate) struct Options {
    /// The directory of the devices: osd7 in it is device 7, and may be a mounted disk.
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Numbers of the devices in the cell's list of devices ('cellar osd list'). Default: those
    /// that the directory has.
    #[arg(long = "id", value_name = "N,...", value_delimiter = ',')]
    pub(crate) ids: Vec<u32>,
    /// Makes device N an archive. PLACE is a directory, or https://HOST/BUCKET[/PREFIX] for S3; it
    /// is empty the first time. Later starts remember it.
    #[arg(long, value_name = "N=PLACE", value_parser = archive)]
    pub(crate) archive: Vec<(u32, Place)>,
    /// The cell's name. A directory of another cell is refused.
    #[arg(long, value_name = "NAME")]
    pub(crate) cell: Option<String>,
    /// A copy of another server's server-etc, or of OpenAFS's /etc/openafs/server. Needed once; its
    /// files are copied.
    #[arg(long, value_name = "SERVER-ETC")]
    pub(crate) join: Option<PathBuf>,
    /// Address to answer on; clients receive it. 0.0.0.0 answers on all addresses. Default:
    /// 127.0.0.1.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) bind: Option<IpAddr>,
    /// Port to answer on. Default: the file servers' + 6.
    #[arg(long, visible_alias = "port", value_name = "PORT")]
    pub(crate) osd_port: Option<u16>,
    /// Port of the cell's file servers. The ports of the databases follow from it. Default: 7000.
    #[arg(long, value_name = "PORT")]
    pub(crate) fileserver_port: Option<u16>,
    /// When a change counts as done, as for 'cellar up': strict, relaxed or relaxed:MILLISECONDS.
    #[arg(long, value_name = "MODE", default_value = "strict", value_parser = durability)]
    pub(crate) durability: cellar_volume::Durability,
    #[command(flatten)]
    pub(crate) damaged: damaged::Damaged,
    #[command(flatten)]
    pub(crate) scrubbing: upkeep::Scrubbing,
    #[command(flatten)]
    pub(crate) metrics: crate::metrics::MetricsOptions,
    /// Number of network threads. Default: one for each processor.
    #[arg(long, value_name = "N")]
    pub(crate) shards: Option<usize>,
    /// Drop this option of the last start, so that its default is in force again; 'all' drops all.
    #[arg(long, value_name = "KEY,...", value_delimiter = ',')]
    pub(crate) forget: Vec<String>,
    /// The options of the last start, and those of this one.
    #[arg(skip)]
    pub(crate) last_start: LastStart,
}

/// Parses `N=PLACE`: a device and the place of its archive.
pub(crate) fn archive(text: &str) -> Result<(u32, Place), String> {
    let parsed = text
        .split_once('=')
        .and_then(|(id, place)| Some((id.parse().ok()?, place)));
    let (id, place) = parsed.ok_or("write the number of a device and a place: 9=/mnt/tape")?;
    Ok((
        id,
        place
            .parse()
            .map_err(|wrong: NotAPlace| wrong.to_string())?,
    ))
}

/// Returns whether the arguments of `cellar osd` ask for a server.
pub(crate) fn is_server_command(words: &[String]) -> bool {
    words.first().is_some_and(|word| word == "serve")
}

/// The command line of the server.
pub(crate) fn command() -> clap::Command {
    Options::command()
}

/// Runs the server; the first word is `serve`.
pub(crate) fn run(words: &[String]) -> Outcome {
    let command = command();
    let parsed = |words: &[OsString]| {
        let parsed = command.clone().try_get_matches_from(words);
        parsed.unwrap_or_else(|error| error.exit())
    };
    let mut line: Vec<OsString> = words.iter().map(OsString::from).collect();
    let (kept, last_start) =
        daemon::words(Daemon::OsdServe, &command, &parsed(&line), Phase::Start)?;
    line.splice(1..1, kept);
    let options = Options::from_arg_matches(&parsed(&line)).unwrap_or_else(|error| error.exit());
    serve(Options {
        last_start,
        ..options
    })
}

/// Runs the server.
pub(crate) fn serve(mut options: Options) -> Outcome {
    let bind = options.bind.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let addresses = addresses::registered(&CellDirectory::new(&options.dir).server_etc(), bind)?;
    let base = options
        .fileserver_port
        .unwrap_or(Ports::default().fileserver);
    let numbers = Ports::based_at(base)
        .ok_or_else(|| Failure::usage(format!("{base}: choose a port from 1 to 65528")))?;
    let socket = SocketAddr::new(
        bind,
        options.osd_port.unwrap_or_else(|| osds::port(&numbers)),
    );
    let mut ids = options.ids.clone();
    if ids.is_empty() {
        ids = osds::used_numbers(&options.dir)?;
    }
    if ids.is_empty() {
        return Err(Failure::usage(format!(
            "{} has no devices yet: make their entries with 'cellar osd create', and name their numbers: --id N,...",
            options.dir.display()
        )));
    }
    if let Some((id, _)) = options.archive.iter().find(|(id, _)| !ids.contains(id)) {
        return Err(Failure::usage(format!(
            "--archive names device {id}, which is not served: add it to --id"
        )));
    }
    options.last_start.report();
    let metrics = options.metrics.listen()?;
    let directory = CellDirectory::new(&options.dir);
    if !directory.path().exists() {
        // A refusal leaves nothing behind.
        ports::check(socket)?;
    }
    let at =
        |cause: &dyn std::fmt::Display| Failure::new(format!("{}: {cause}", options.dir.display()));
    cellar_private::directory(directory.path()).map_err(|cause| at(&cause))?;
    narrow::directory(&directory)?;
    let _lock = lock::take(&directory.lock_file())?;
    narrow::contents(&directory)?;
    options.damaged.check(directory.path())?;
    ports::check(socket)?;
    let etc = directory.server_etc();
    if let Some(from) = &options.join {
        join::copy(from, &etc)?;
    }
    let cell = join::cell_of(&etc, numbers)?;
    if let Some(wanted) = options
        .cell
        .as_deref()
        .filter(|name| *name != cell.name.as_str())
    {
        return Err(Failure::usage(format!(
            "{} is of cell {}, not {wanted}",
            etc.display(),
            cell.name
        )));
    }
    let authority = Authority::open(&etc, cell.name.as_str()).map_err(|cause| at(&cause))?;
    let keys = osds::keys(&authority, &etc)?;
    let mut devices = Vec::with_capacity(ids.len());
    for id in ids {
        let path = options.dir.join(format!("osd{id}"));
        osds::check_mounted(&options.dir, &path)?;
        cellar_private::directory(&path).map_err(|cause| at(&cause))?;
        osds::set_number(&path, id)?;
        let archive = options.archive.iter().find(|(device, _)| *device == id);
        let archive = archive.map(|(_, place)| place);
        devices.push((
            id,
            osds::backing(
                &path,
                cell.name.as_str(),
                archive,
                options.durability,
                &options.damaged,
            )?,
        ));
        osds::note_used(&options.dir, &path, id)?;
    }
    let mut config = osds::config(&authority, keys);
    options.scrubbing.set(&mut config);
    config.databases = cell.location_servers().collect();
    config.server_names = join::server_names(&etc).into_iter().collect();
    config.addresses = addresses;
    let server = OsdServer::new(config, devices);
    let mut threads = RuntimeConfig {
        name: "cellar-osd".to_owned(),
        ..RuntimeConfig::default()
    };
    if let Some(shards) = options.shards {
        threads.shards = shards.max(1);
    }
    let runtime = Runtime::start(threads).map_err(|cause| at(&cause))?;
    let port = PortConfig::new(socket)
        .service(server.service())
        .security(RXKAD_INDEX, authority.server_security());
    let signals = StopSignals::listen()?;
    let port = runtime
        .open(port)
        .map_err(|cause| Failure::of_port(&cause, socket))?;
    server.start(&runtime, &port);
    let parts = Parts {
        etcd: None,
        fileserver: None,
        partitions: Vec::new(),
        probes: None,
        authority,
        audit: Audit::none(),
        osds: Some(server.clone()),
        ports: vec![("objects", port.clone())],
    };
    let metrics = metrics
        .map(|place| place.serve(Arc::new(parts)))
        .transpose()?;
    options.last_start.save(&directory)?;
    println!(
        "Object storage of cell {}: devices {:?} on {socket} (UDP)",
        cell.name,
        server.devices()
    );
    if let Some(loss) = banner::loss(options.durability) {
        println!("{loss}");
    }
    println!("Ctrl-C stops it; the same command without --join starts it again.");
    let announced = Announced::ready(vec![port]);
    let mut reloader = Reloader::new(crate::values_of_keys);
    // No overseer is in this process, so none asks for a restart.
    let end = signals.wait(&Restart::default(), || {
        service_manager::reload(|| reloader.reload(metrics.as_ref(), None));
    });
    tracing::info!(?end, "stopping");
    announced.stopping();
    drop(metrics);
    runtime.shutdown();
    server.stop().map_err(|cause| at(&cause))
}
