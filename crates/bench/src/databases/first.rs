//! `cellar bench first-lookup`: calls database servers until each has answered, and prints the
//! times. Measures the time from the start of servers to their first answers.

use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cellar_rpc::{CallError, Security};
use cellar_wire::AbortCode;
use futures_util::stream::{FuturesUnordered, StreamExt as _};

use super::servers;
use super::worker::{by_name, create_user, create_volume, name_to_id};
use crate::client::Client;
use crate::rxafs::{BenchError, Protection, localauth, seconds};

/// Options of `cellar bench first-lookup`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:
  cellar bench first-lookup --server 10.77.0.2,10.77.0.3 --server-etc cell-data/server-etc

Prints a line 'ready', then for each server and call the time of day of the first answer, in seconds. A change has no
server, because any of them may take it.")]
pub struct Options {
    /// Addresses of the database servers.
    #[arg(long, value_delimiter = ',', required = true)]
    pub server: Vec<String>,
    /// Directory with the cell's key (KeyFileExt or rxkad.keytab) and ThisCell.
    #[arg(long, value_name = "DIR")]
    pub server_etc: PathBuf,
    /// Also create a volume's entry with ids from here on, and a user.
    #[arg(long, value_name = "ID")]
    pub create_from: Option<u32>,
    /// Time limit, seconds.
    #[arg(long, default_value_t = 300.0)]
    pub patience: f64,
    /// Address to call from.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub bind: IpAddr,
}

/// Pause between two calls. A call that is sent before the server's start is lost, so the next one
/// does not wait for its answer.
const PAUSE: Duration = Duration::from_millis(5);
/// Longest time for an answer.
const ONE_CALL: Duration = Duration::from_millis(500);
/// Longest time for a change. Changes are made one after the other.
const ONE_CHANGE: Duration = Duration::from_secs(10);

/// Calls the servers. Returns the number of those that did not answer.
///
/// # Errors
/// [`BenchError`].
pub fn run(options: &Options) -> Result<u64, BenchError> {
    let servers = servers(&options.server)?;
    let ticket = localauth(&options.server_etc, Protection::Clear)?;
    let count = servers.len();
    let anonymous = Client::start_all(options.bind, &servers, &Security::null(), count)?;
    let known = Client::start_all(options.bind, &servers, &ticket, count)?;
    // New connections for changes: those of the lookups have calls that were lost.
    let changing = Client::start_all(options.bind, &servers, &ticket, count)?;
    let end = Instant::now() + seconds(options.patience);
    let waiter = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    println!("ready");
    io::stdout().flush()?;
    let failed = waiter.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for ((anonymous, known), server) in anonymous.iter().zip(&known).zip(&servers) {
            let (anonymous, known) = (anonymous.clone(), known.clone());
            let server = server.location.ip();
            tasks.spawn(async move {
                let location = first(end, || by_name(&anonymous, 0));
                let protection = first(end, || name_to_id(&known, 0));
                (server, tokio::join!(location, protection))
            });
        }
        let mut failed = 0;
        while let Some(done) = tasks.join_next().await {
            let (server, (location, protection)) = done.map_err(io::Error::other)?;
            for (what, at) in [("vl-lookup", location), ("pr-lookup", protection)] {
                failed += u64::from(!show(&format!("{what} {server}"), at));
            }
        }
        if let Some(first) = options.create_from {
            // The changes go to any server that takes them.
            let turn = std::sync::atomic::AtomicUsize::new(0);
            let next = || {
                let turn = turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                &changing[turn % changing.len()]
            };
            let at = made(end, || create_volume(next(), first)).await;
            failed += u64::from(!show("vl-create", at));
            let name = format!("first{first}");
            let at = made(end, || create_user(next(), &name)).await;
            failed += u64::from(!show("pr-create", at));
        }
        Ok::<u64, BenchError>(failed)
    })?;
    for client in anonymous.iter().chain(&known).chain(&changing) {
        client.shutdown();
    }
    Ok(failed)
}

fn show(what: &str, at: Option<f64>) -> bool {
    match at {
        Some(at) => println!("{what} at {at:.6}"),
        None => println!("{what} not answered"),
    }
    at.is_some()
}

/// Calls at short intervals until there is an answer; returns its time of day.
async fn first<F>(end: Instant, mut call: impl FnMut() -> F) -> Option<f64>
where
    F: Future<Output = Result<(), CallError>>,
{
    let mut open = FuturesUnordered::new();
    while Instant::now() < end {
        open.push(tokio::time::timeout(ONE_CALL, call()));
        let pause = tokio::time::sleep(PAUSE);
        tokio::pin!(pause);
        loop {
            tokio::select! {
                Some(done) = open.next() => if let Ok(Ok(())) = done {
                    return Some(now());
                },
                () = &mut pause => break,
            }
        }
    }
    None
}

/// Repeats a change until it is made; returns the time of day.
async fn made<F>(end: Instant, mut call: impl FnMut() -> F) -> Option<f64>
where
    F: Future<Output = Result<(), CallError>>,
{
    while Instant::now() < end {
        match tokio::time::timeout(ONE_CHANGE, call()).await {
            Ok(Ok(())) => return Some(now()),
            // An earlier call made the entry, and its reply was lost.
            Ok(Err(error)) if is_there(error.code()) => return Some(now()),
            Ok(Err(_)) | Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
    None
}

fn is_there(code: AbortCode) -> bool {
    matches!(
        code,
        AbortCode::VL_NAMEEXIST | AbortCode::VL_IDEXIST | AbortCode::PREXIST
    )
}

fn now() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}
