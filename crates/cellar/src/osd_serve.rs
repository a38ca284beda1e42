//! `cellar osd serve`: an object storage server alone, in the foreground, on a machine of its own.
//!
//! 1. Its directory has a copy of a server's configuration directory, with the cell's key and the
//!    addresses of the databases. It has a device in `osd7` for number 7. The administrator makes
//!    the entries of the devices first, with `cellar osd create`.
//! 2. The server's heartbeats tell the databases its address.
//! 3. A signal ends it: first the port is closed, then the devices.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use cellar_auth::Authority;
use cellar_auth::audit::Audit;
use cellar_client::Ports;
use cellar_osd::OsdServer;
use cellar_rpc::{PortConfig, Runtime, RuntimeConfig};
use clap::Parser;

use crate::cell_directory::CellDirectory;
use crate::failure::{Failure, Outcome};
use crate::service_manager::Announced;
use crate::stop_signals::StopSignals;
use crate::up::parts::Parts;
use crate::up::{banner, damaged, durability, join, lock, narrow, osds, upkeep};

/// The security class of Kerberos tickets, in Rx.
const RXKAD_INDEX: u8 = 2;

/// Run an object storage server for the devices of this machine.
#[derive(Debug, Parser)]
#[command(
    name = "cellar osd serve",
    bin_name = "cellar osd serve",
    max_term_width = 100
)]
#[command(after_help = "Examples:
  cellar osd serve --dir /srv/osd --id 7,8 --join /root/server-etc --bind 192.0.2.12
  cellar osd serve --dir /srv/osd --id 7,8 --bind 192.0.2.12     (after the first time)")]
struct Options {
    /// The directory of the devices: osd7 in it is device 7, and may be a mounted disk.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Numbers of the devices in the cell's list of devices ('cellar osd list').
    #[arg(
        long = "id",
        value_name = "N,...",
        value_delimiter = ',',
        required = true
    )]
    ids: Vec<u32>,
    /// The cell's name. A directory of another cell is refused.
    #[arg(long, value_name = "NAME")]
    cell: Option<String>,
    /// A copy of another server's server-etc, or of OpenAFS's /etc/openafs/server. Needed once; its
    /// files are copied.
    #[arg(long, value_name = "SERVER-ETC")]
    join: Option<PathBuf>,
    /// Address to answer on; clients receive it.
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    bind: IpAddr,
    /// Port to answer on.
    #[arg(long, value_name = "PORT", default_value_t = 7006)]
    port: u16,
    /// Port of the cell's file servers. The ports of the databases follow from it.
    #[arg(long, value_name = "PORT", default_value_t = 7000)]
    fileserver_port: u16,
    /// When a change counts as done, as for 'cellar up': strict, relaxed or relaxed:MILLISECONDS.
    #[arg(long, value_name = "MODE", default_value = "strict", value_parser = durability)]
    durability: cellar_volume::Durability,
    #[command(flatten)]
    damaged: damaged::Damaged,
    #[command(flatten)]
    scrubbing: upkeep::Scrubbing,
    #[command(flatten)]
    metrics: crate::metrics::MetricsOptions,
    /// Number of network threads. Default: one for each processor.
    #[arg(long, value_name = "N")]
    shards: Option<usize>,
}

/// Returns whether the arguments of `cellar osd` ask for a server.
pub(crate) fn is_server_command(words: &[String]) -> bool {
    words.first().is_some_and(|word| word == "serve")
}

/// Runs the server; the first word is `serve`.
pub(crate) fn run(words: &[String]) -> Outcome {
    let options = match Options::try_parse_from(words) {
        Ok(options) => options,
        Err(error) => error.exit(),
    };
    if options.bind.is_unspecified() {
        return Err(Failure::usage(
            "name the address by which clients reach this machine: --bind ADDRESS".to_owned(),
        ));
    }
    let metrics = options.metrics.listen()?;
    let directory = CellDirectory::new(&options.dir);
    let at =
        |cause: &dyn std::fmt::Display| Failure::new(format!("{}: {cause}", options.dir.display()));
    cellar_private::directory(directory.path()).map_err(|cause| at(&cause))?;
    narrow::directory(&directory)?;
    let _lock = lock::take(&directory.lock_file())?;
    narrow::contents(&directory)?;
    options.damaged.check(directory.path())?;
    let etc = directory.server_etc();
    if let Some(from) = &options.join {
        join::copy(from, &etc)?;
    }
    let ports = Ports::based_at(options.fileserver_port).ok_or_else(|| {
        Failure::usage(format!(
            "{}: choose a port from 1 to 65528",
            options.fileserver_port
        ))
    })?;
    let cell = join::cell_of(&etc, ports)?;
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
    let mut devices = Vec::with_capacity(options.ids.len());
    for &id in &options.ids {
        let path = options.dir.join(format!("osd{id}"));
        osds::check_mounted(&options.dir, &path)?;
        cellar_private::directory(&path).map_err(|cause| at(&cause))?;
        osds::set_number(&path, id)?;
        devices.push((
            id,
            osds::store(&path, options.durability, &options.damaged)?,
        ));
        osds::note_used(&options.dir, &path, id)?;
    }
    let mut config = osds::config(&authority, keys);
    options.scrubbing.set(&mut config);
    config.databases = cell.location_servers().collect();
    config.addresses = vec![options.bind];
    let server = OsdServer::new(config, devices);
    let mut threads = RuntimeConfig {
        name: "cellar-osd".to_owned(),
        ..RuntimeConfig::default()
    };
    if let Some(shards) = options.shards {
        threads.shards = shards.max(1);
    }
    let runtime = Runtime::start(threads).map_err(|cause| at(&cause))?;
    let address = SocketAddr::new(options.bind, options.port);
    let port = PortConfig::new(address)
        .service(server.service())
        .security(RXKAD_INDEX, authority.server_security());
    let port = runtime
        .open(port)
        .map_err(|cause| Failure::of_port(&cause, address))?;
    server.start(&runtime, &port);
    let parts = Parts {
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
    let signals = StopSignals::listen()?;
    println!(
        "Object storage of cell {}: devices {:?} on {address} (UDP)",
        cell.name,
        server.devices()
    );
    if let Some(loss) = banner::loss(options.durability) {
        println!("{loss}");
    }
    let announced = Announced::ready(vec![port]);
    let signal = signals.wait();
    tracing::info!(signal, "stopping");
    announced.stopping();
    drop(metrics);
    runtime.shutdown();
    server.stop().map_err(|cause| at(&cause))
}
