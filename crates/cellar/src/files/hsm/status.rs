//! `cellar hsm status` and `candidates`: the censuses of file servers.

use std::time::Duration;

use cellar_admin::date::to_the_minute;
use cellar_admin::jobs::{DeviceCount, Jobs, ServerCensus, Tally};
use cellar_admin::osd::{Device, Osds};
use cellar_admin::table::{Side, Table, short_size};
use serde_json::json;

use crate::failure::{Failures, Outcome};
use crate::jobs::servers;
use crate::output::{out, outln};
use crate::progress::Progress;
use crate::session::{As, CellOptions, Session};
use crate::suite::print_json;

/// Pause between two questions whether a census has ended.
const ASK_AGAIN: Duration = Duration::from_millis(300);
/// Time for a requested census. One of 100 million files takes longer.
const CENSUS_LONGEST: Duration = Duration::from_secs(600);

#[derive(Debug, clap::Args)]
pub(crate) struct StatusOptions {
    /// The file server, by name or address. Default: all of the cell.
    #[arg(id = "fileserver", value_name = "SERVER")]
    server: Option<String>,
    /// Examine all files now, and wait for the result. Default: the last census.
    #[arg(long)]
    now: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cell: CellOptions,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CandidateOptions {
    /// The archive or device, by name or number.
    #[arg(value_name = "DEVICE")]
    device: String,
    /// The number of files to list.
    #[arg(long, value_name = "N", default_value_t = 50)]
    max: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cell: CellOptions,
}

pub(super) async fn status(options: &StatusOptions) -> Outcome {
    let session = options.cell.session(None, As::AdministratorIfPossible);
    let session = session.await?;
    let outcome = status_in(&session, options).await;
    session.end(outcome).await
}

async fn status_in(session: &Session, options: &StatusOptions) -> Outcome {
    let jobs = Jobs::new(&session.client, &session.cell);
    let devices = Osds::new(&session.client, &session.cell).list().await?;
    let (mut failures, mut all) = (Failures::of("cellar hsm status"), Vec::new());
    for server in servers(&jobs, options.server.as_deref()).await? {
        let asked = match options.now {
            true => census_now(&jobs, server, &devices).await,
            false => jobs.census(server, false, &devices).await,
        };
        all.extend(failures.note(asked));
    }
    match options.json {
        true => print_json(&json!({ "servers": all }))?,
        false => all.iter().for_each(print),
    }
    failures.end()
}

/// Asks for a census, and waits for it.
async fn census_now(
    jobs: &Jobs<'_>,
    server: std::net::IpAddr,
    devices: &[Device],
) -> cellar_admin::Result<ServerCensus> {
    let progress = Progress::files();
    progress.name(&format!("file server {server} examines its files"));
    let before = jobs.census(server, true, devices).await?;
    let begun = tokio::time::Instant::now();
    loop {
        if begun.elapsed() > CENSUS_LONGEST {
            return Err(cellar_admin::Error::Usage(format!(
                "file server {server} has not ended the census in 10 minutes; it goes on. Show its \
                 result later without --now"
            )));
        }
        tokio::time::sleep(ASK_AGAIN).await;
        progress.waits();
        let now = jobs.census(server, false, devices).await?;
        // A census of a small server ends within the same second.
        let is_new = (now.taken, now.millis) != (before.taken, before.millis);
        if is_new || now.taken.is_some_and(|taken| taken + 1 >= unix_now()) {
            progress.finish();
            return Ok(now);
        }
    }
}

/// Seconds since 1970.
pub(super) fn unix_now() -> u64 {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |now| now.as_secs())
}

fn print(census: &ServerCensus) {
    let Some(taken) = census.taken else {
        outln!("File server {}: no census since its start", census.server);
        return;
    };
    outln!(
        "File server {}: census of {}, {} ms",
        census.server,
        to_the_minute(taken),
        census.millis
    );
    let mut table = Table::new([
        ("  Files in objects", Side::Left),
        ("Files", Side::Right),
        ("Size", Side::Right),
    ]);
    for (name, Tally { files, bytes }) in [
        ("online", census.online),
        ("online, with a copy", census.copied),
        ("wiped", census.wiped),
        ("lack a copy", census.lacking),
        ("lack a copy, due", census.due),
    ] {
        table.row([format!("  {name}"), files.to_string(), short_size(bytes)]);
    }
    out!("{table}");
    let (archives, online): (Vec<_>, Vec<_>) =
        census.devices.iter().partition(|device| device.archive);
    print_devices(&archives, &online);
    if census.bad_copies > 0 {
        outln!("  bad copies: {}", census.bad_copies);
    }
    for (kind, count) in &census.unfinished_jobs {
        outln!("  unfinished jobs of kind {kind}: {count} ('cellar jobs list')");
    }
    for error in &census.errors {
        outln!("  {error}");
    }
}

fn print_devices(archives: &[&DeviceCount], online: &[&DeviceCount]) {
    let name = |device: &DeviceCount| match device.name.as_str() {
        "" => format!("  {}", device.osd),
        name => format!("  {name}"),
    };
    if !online.is_empty() {
        let mut table = Table::new([
            ("  Device", Side::Left),
            ("Objects", Side::Right),
            ("Size", Side::Right),
            ("Wipeable", Side::Right),
            ("Pinned", Side::Right),
        ]);
        for device in online {
            table.row([
                name(device),
                device.online.files.to_string(),
                short_size(device.online.bytes),
                short_size(device.wipeable.bytes),
                short_size(device.pinned.bytes),
            ]);
        }
        out!("{table}");
    }
    if !archives.is_empty() {
        let mut table = Table::new([
            ("  Archive", Side::Left),
            ("Copies", Side::Right),
            ("Size", Side::Right),
            ("Bad", Side::Right),
            ("To copy", Side::Right),
            ("To verify", Side::Right),
            ("Oldest comparison", Side::Left),
        ]);
        for device in archives {
            table.row([
                name(device),
                device.archived.files.to_string(),
                short_size(device.archived.bytes),
                device.bad.files.to_string(),
                device.copies_due.to_string(),
                device.unverified.files.to_string(),
                device
                    .oldest_comparison
                    .map_or_else(|| "-".to_owned(), to_the_minute),
            ]);
        }
        out!("{table}");
    }
}

pub(super) async fn candidates(options: &CandidateOptions) -> Outcome {
    let session = options.cell.session(None, As::AdministratorIfPossible);
    let session = session.await?;
    let outcome = candidates_in(&session, options).await;
    session.end(outcome).await
}

async fn candidates_in(session: &Session, options: &CandidateOptions) -> Outcome {
    let jobs = Jobs::new(&session.client, &session.cell);
    let osds = Osds::new(&session.client, &session.cell);
    let device = osds.device(&options.device).await?;
    let (mut failures, mut all) = (Failures::of("cellar hsm candidates"), Vec::new());
    for server in servers(&jobs, None).await? {
        let listed = jobs.candidates(server, device.id).await;
        all.extend(failures.note(listed).into_iter().flatten());
    }
    let (files, bytes) = (all.len(), all.iter().map(|file| file.length).sum::<u64>());
    all.truncate(options.max);
    if options.json {
        print_json(&json!({ "candidates": all, "files": files, "bytes": bytes }))?;
        return failures.end();
    }
    let mut table = Table::new([
        ("Fid", Side::Left),
        ("File server", Side::Left),
        ("Size", Side::Right),
        ("Age in days", Side::Right),
    ]);
    for file in &all {
        table.row([
            file.fid.clone(),
            file.server.to_string(),
            short_size(file.length),
            format!("{:.1}", file.age as f64 / 86_400.0),
        ]);
    }
    if !table.is_empty() {
        out!("{table}");
    }
    let verb = match device.archival {
        true => "are to be copied to",
        false => "could be wiped from",
    };
    outln!(
        "{files} files ({}) {verb} {}",
        short_size(bytes),
        device.name
    );
    failures.end()
}
