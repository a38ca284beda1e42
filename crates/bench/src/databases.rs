//! `cellar bench databases`: load on location and protection servers that have the databases of
//! `cellar bench make-databases`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use cellar_rpc::Security;
use clap::ValueEnum;

use crate::client::{Client, Servers};
use crate::load::{self, Shape, Watched};
use crate::report::{Kind, Row};
use crate::rxafs::{BenchError, Protection, localauth, resolve, seconds};

pub mod first;
pub(crate) mod population;
mod worker;

use worker::{Contents, Worker};

/// Action of one step of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Operation {
    /// VL_GetEntryByNameU of a volume at random.
    VlByName,
    /// VL_GetEntryByIDN of a volume at random.
    VlById,
    /// PR_NameToID of a user at random.
    PrNameToId,
    /// PR_GetCPS of a user at random.
    PrCps,
    /// VL_CreateEntryN with a new name and three new ids.
    VlCreate,
    /// PR_NewEntry of a user with a new name.
    PrCreate,
}

impl Operation {
    fn kind(self) -> Kind {
        Kind {
            label: match self {
                Self::VlByName => "VL_GetEntryByNameU",
                Self::VlById => "VL_GetEntryByIDN",
                Self::PrNameToId => "PR_NameToID",
                Self::PrCps => "PR_GetCPS",
                Self::VlCreate => "VL_CreateEntryN",
                Self::PrCreate => "PR_NewEntry",
            },
            items: 1,
            bytes: None,
            by_client: false,
        }
    }

    /// Clients look volumes up without a ticket. File servers have one when they look users up.
    fn needs_ticket(self) -> bool {
        !matches!(self, Self::VlByName | Self::VlById)
    }
}

/// Options of `cellar bench databases`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:
  cellar bench databases --server 10.77.0.2,10.77.0.3 --server-etc cell-data/server-etc \\
      --operations vl-by-name,vl-create --clients 4 --threads 4 --runs 3

Calls about users and creations have a superuser's ticket, made from the cell's key.")]
pub struct Options {
    /// Addresses of the database servers; the clients take them in turn.
    #[arg(long, value_delimiter = ',', required = true)]
    pub server: Vec<String>,
    /// Directory with the cell's key (KeyFileExt or rxkad.keytab) and ThisCell.
    #[arg(long, value_name = "DIR")]
    pub server_etc: PathBuf,
    /// Operations to measure; default: each of them.
    #[arg(long, value_delimiter = ',', value_enum)]
    pub operations: Vec<Operation>,
    /// Volumes of the databases.
    #[arg(long, default_value_t = 1_000_000)]
    pub volumes: u32,
    /// Users of the databases.
    #[arg(long, default_value_t = 100_000)]
    pub users: u32,
    /// First id of new volumes, and part of the names of new users. Each run needs its own.
    #[arg(long, default_value_t = 0x4000_0000)]
    pub create_from: u32,
    /// Client machines.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub clients: u16,
    /// Concurrent calls of each client.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// Length of each measurement after the warm-up, seconds.
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Warm-up before each measurement, seconds.
    #[arg(long, default_value_t = 0.5)]
    pub warm_up: f64,
    /// Measurements of each operation; the median is shown.
    #[arg(long, default_value_t = 1)]
    pub runs: u16,
    /// Processes of the servers on this machine, for their processor time and memory.
    #[arg(long, value_delimiter = ',')]
    pub server_pid: Vec<u32>,
    /// Processes of the store under the servers, whose accounts are shown separately.
    #[arg(long, value_delimiter = ',')]
    pub store_pid: Vec<u32>,
    /// Address that the clients bind to.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub bind: IpAddr,
    /// One JSON object per line instead of the table.
    #[arg(long)]
    pub json: bool,
}

/// Runs the measurements, and prints a line for each finished operation. Returns the number of
/// failed calls.
///
/// # Errors
/// [`BenchError`].
pub fn run(options: &Options) -> Result<u64, BenchError> {
    let servers = servers(&options.server)?;
    let ticket = localauth(&options.server_etc, Protection::Clear)?;
    let shape = Shape {
        clients: usize::from(options.clients),
        threads: usize::from(options.threads),
        warm_up: seconds(options.warm_up),
        measure: seconds(options.seconds),
        pause: Duration::ZERO,
        flood: 0,
    };
    let operations = if options.operations.is_empty() {
        Operation::value_variants().to_vec()
    } else {
        options.operations.clone()
    };
    let watched = Watched {
        servers: &options.server_pid,
        store: &options.store_pid,
    };
    let contents = Arc::new(Contents {
        volumes: options.volumes,
        users: options.users,
        create_from: options.create_from,
        created: AtomicU64::new(0),
    });
    let mut errors = 0;
    for operation in operations {
        let security = match operation.needs_ticket() {
            true => ticket.clone(),
            false => Security::null(),
        };
        let clients = Client::start_all(options.bind, &servers, &security, shape.clients)?;
        let mut rows = Vec::new();
        for _ in 0..options.runs.max(1) {
            let figures = load::run(&clients, &shape, watched, |client, _| {
                Worker::new(operation, client.clone(), contents.clone())
            })?;
            let row = Row::new(&operation.kind(), &figures);
            errors += row.errors;
            rows.push(row);
        }
        for client in &clients {
            client.shutdown();
        }
        let Some(row) = Row::median(rows) else {
            continue;
        };
        if options.json {
            println!("{}", row.json(&operation.kind(), &shape));
        } else {
            println!(
                "{:>3} x {:<3} {}",
                shape.clients,
                shape.threads,
                row.line(&operation.kind())
            );
        }
    }
    Ok(errors)
}

/// The database servers of those addresses.
fn servers(addresses: &[String]) -> Result<Vec<Servers>, BenchError> {
    let of = |address: &String| {
        let location = resolve(address, 7003)?;
        Ok(Servers {
            file: location,
            location,
            protection: SocketAddr::new(location.ip(), 7002),
        })
    };
    let servers: Vec<Servers> = addresses
        .iter()
        .map(of)
        .collect::<Result<_, BenchError>>()?;
    if servers.is_empty() {
        return Err(io::Error::other("no server is given").into());
    }
    Ok(servers)
}
