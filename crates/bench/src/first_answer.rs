//! `cellar bench first-answer`: requests the status of volumes' root directories from a file server
//! until it answers, and prints the time of each first answer. Measures the time from a server's
//! start to its first answer.

use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cellar_rpc::{CallOptions, Connection, Security};
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::{Fid, VolumeId};
use cellar_wire::rxafs;

use crate::client::{Client, Servers};
use crate::rxafs::{BenchError, resolve, seconds};

/// Options of `cellar bench first-answer`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Example: start it before the server; it ends when the server answers:
  cellar bench first-answer --server 10.77.0.2 --volume 536870915

Anonymous callers need no rights: a refusal is an answer too."
)]
pub struct Options {
    /// Address of the file server: ADDRESS or ADDRESS:7000.
    #[arg(long)]
    pub server: String,
    /// Numbers of volumes, requested in sequence.
    #[arg(long, value_delimiter = ',', required = true)]
    pub volume: Vec<u32>,
    /// Time limit, seconds.
    #[arg(long, default_value_t = 60.0)]
    pub patience: f64,
    /// Address to call from.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub bind: IpAddr,
}

/// Pause between two requests. A request that was sent too early is not waited for: systems report
/// a closed port only now and then.
const PAUSE: Duration = Duration::from_millis(2);
/// Longest time for an answer.
const ONE_CALL: CallOptions = CallOptions {
    timeout: Some(Duration::from_secs(10)),
};
/// Most unanswered requests at a time.
const OPEN_MAX: usize = 200;

/// Sends the requests, and prints for each volume the time of day of the answer, in seconds, and
/// the number of requests. Returns the number of volumes without an answer.
///
/// # Errors
/// [`BenchError`].
pub fn run(options: &Options) -> Result<u64, BenchError> {
    let file = resolve(&options.server, 7000)?;
    let servers = Servers {
        file,
        location: file,
        protection: file,
    };
    let clients = Client::start_all(options.bind, &[servers], &Security::null(), 1)?;
    let client = clients
        .first()
        .ok_or_else(|| io::Error::other("no client"))?;
    let waiter = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    println!("ready");
    io::stdout().flush()?;
    let failed = waiter.block_on(async {
        let mut failed = 0;
        for &volume in &options.volume {
            failed += u64::from(!answered(client, volume, seconds(options.patience)).await);
        }
        failed
    });
    client.shutdown();
    Ok(failed)
}

async fn answered(client: &Client, volume: u32, patience: Duration) -> bool {
    let fid = Fid::root(VolumeId(volume));
    let start = Instant::now();
    let mut tries = 0;
    let mut asked = tokio::task::JoinSet::new();
    while start.elapsed() < patience {
        if asked.len() < OPEN_MAX {
            tries += 1;
            let server = client.file.clone();
            asked.spawn(async move { is_answered(&server, fid).await });
        }
        let next = tokio::time::timeout(PAUSE, asked.join_next()).await;
        if let Ok(Some(Ok(true))) = next {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            println!(
                "volume {volume} at {:.6} tries {tries}",
                now.unwrap_or_default().as_secs_f64()
            );
            return true;
        }
        if next.is_ok() {
            // The request was refused at once: wait before the next one.
            tokio::time::sleep(PAUSE).await;
        }
    }
    println!("volume {volume} not answered, tries {tries}");
    false
}

async fn is_answered(server: &Connection, fid: Fid) -> bool {
    match server
        .call_with(&rxafs::FetchStatus { fid }, ONE_CALL)
        .await
    {
        Ok(_) => true,
        Err(error) => error.code().to_plain() == AbortCode::EACCES,
    }
}
