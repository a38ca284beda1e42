//! `cellar bench make-volumes`: creates many empty volumes on a file server, like `vos create` but
//! without entries in the location database. For measuring the cost of a large number of volumes.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use cellar_rpc::{CallError, Connection, PortConfig, Runtime, RuntimeConfig};
use cellar_wire::afsvol;
use cellar_wire::ids::VolumeId;

use crate::rxafs::{BenchError, Protection, localauth, resolve};

/// Options of `cellar bench make-volumes`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:
  cellar bench make-volumes --server 10.77.0.2 --server-etc cell-data/server-etc --count 170000 --first-id 600000000")]
pub struct Options {
    /// Address of the volume server: ADDRESS or ADDRESS:7005.
    #[arg(long)]
    pub server: String,
    /// Configuration directory of a server of the cell, for the key.
    #[arg(long)]
    pub server_etc: PathBuf,
    /// Partition, by its letter.
    #[arg(long, default_value_t = 'a', value_parser = partition)]
    pub partition: char,
    /// Number of volumes.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub count: u32,
    /// Id of the first volume; the others have the ids that follow.
    #[arg(long)]
    pub first_id: u32,
    /// Prefix of the names; the id follows.
    #[arg(long, default_value = "bench.")]
    pub prefix: String,
    /// Number of concurrent creations.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub parallel: u16,
    /// Address to call from.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub bind: IpAddr,
}

fn partition(text: &str) -> Result<char, String> {
    match text.parse::<char>() {
        Ok(letter) if letter.is_ascii_lowercase() => Ok(letter),
        _ => Err(String::from("a letter from a to z")),
    }
}

/// Creates the volumes, and prints the time. Returns the number of failures.
///
/// # Errors
/// [`BenchError`].
pub fn run(options: &Options) -> Result<u64, BenchError> {
    let server = resolve(&options.server, 7005)?;
    let security = localauth(&options.server_etc, Protection::Clear)?;
    let runtime = Runtime::start(RuntimeConfig {
        shards: 1,
        blocking_threads: 1,
        name: String::from("volumes"),
        ..RuntimeConfig::default()
    })?;
    let port = runtime.open(PortConfig::new((options.bind, 0).into()))?;
    let waiter = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let start = Instant::now();
    let work = Arc::new(Work {
        options: options.clone(),
        next: AtomicU32::new(0),
    });
    let failed = waiter.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        let service = afsvol::PACKAGE.service_id;
        let connection = port.connect(server, service, security);
        for _ in 0..options.parallel {
            tasks.spawn(work.clone().make(connection.clone()));
        }
        let mut failed = 0;
        while let Some(done) = tasks.join_next().await {
            failed += done.map_err(io::Error::other)?;
        }
        Ok::<u64, BenchError>(failed)
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let count = u64::from(options.count) - failed;
    println!(
        "{count} volumes in {seconds:.2} s, {:.0}/s; {failed} failed",
        count as f64 / seconds
    );
    runtime.shutdown();
    Ok(failed)
}

struct Work {
    options: Options,
    next: AtomicU32,
}

impl Work {
    /// Creates volumes in sequence until there are enough; returns the number of failures.
    async fn make(self: Arc<Self>, server: Connection) -> u64 {
        let mut failed = 0;
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.options.count {
                return failed;
            }
            if let Err(error) = self.make_one(&server, number).await {
                if failed == 0 {
                    eprintln!("volume {number}: {error}");
                }
                failed += 1;
            }
        }
    }

    async fn make_one(&self, server: &Connection, number: u32) -> Result<(), CallError> {
        let id = self.options.first_id.wrapping_add(number);
        let name = format!("{}{id}", self.options.prefix);
        let arguments = afsvol::CreateVolume {
            partition: self.options.partition as i32 - 'a' as i32,
            name: afsvol::VolumeNameArgument::new(name.into_bytes()).unwrap_or_default(),
            volume_type: afsvol::READWRITE,
            parent: VolumeId(0),
            volume: VolumeId(id),
        };
        let trans = server.call(&arguments).await?.trans;
        // Online, and not deleted with its transaction.
        let set = server.call(&afsvol::SetFlags { trans, flags: 0 }).await;
        server.call(&afsvol::EndTrans { trans }).await?;
        set.map(|_| ())
    }
}
