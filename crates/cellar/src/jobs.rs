//! `cellar jobs`: lists, shows and changes the jobs of file servers.

use std::net::IpAddr;

use cellar_admin::date::to_the_minute;
use cellar_admin::jobs::{Change, Details, Job, Jobs, Selection};
use cellar_admin::table::{Side, Table, short_size};
use serde_json::json;

use crate::failure::{Failure, Failures, Outcome};
use crate::output::{out, outln};
use crate::session::{As, CellOptions, Session, resolve};
use crate::suite::print_json;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List the jobs of file servers.
    #[command(after_help = "States:
  queued     waits for its turn: 'first' and 'last' change the order
  running    a step runs
  waiting    pauses after an error, or until its time comes
  done, failed, cancelled

Examples:
  cellar jobs list
  cellar jobs list --all fs2.example.org
  cellar jobs list --kind archive-copy --json")]
    List(ListOptions),
    /// Show a job with the results of its files.
    #[command(after_help = "Examples:
  cellar jobs show 17
  cellar jobs show 17 fs2.example.org --json")]
    Show(JobOptions),
    /// End a job. Finished files keep their results.
    #[command(after_help = "Example:
  cellar jobs cancel 17")]
    Cancel(JobOptions),
    /// Run a failed or cancelled job again.
    #[command(after_help = "Example:
  cellar jobs retry 17")]
    Retry(JobOptions),
    /// Put a queued job before all others of its user.
    #[command(after_help = "Example:
  cellar jobs first 17")]
    First(JobOptions),
    /// Put a queued job behind all others of its user.
    #[command(after_help = "Example:
  cellar jobs last 17")]
    Last(JobOptions),
}

#[derive(Debug, clap::Args)]
struct ListOptions {
    /// The file server, by name or address. Default: all of the cell.
    #[arg(id = "fileserver", value_name = "SERVER")]
    server: Option<String>,
    /// Also list jobs that have ended.
    #[arg(short, long)]
    all: bool,
    /// Only jobs of this kind.
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    /// Only jobs of this user; 'system' for those that servers submit by themselves.
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cell: CellOptions,
}

#[derive(Debug, clap::Args)]
struct JobOptions {
    /// The number of the job.
    #[arg(value_name = "JOB")]
    id: u64,
    /// The file server, by name or address. Needed if the cell has several.
    #[arg(id = "fileserver", value_name = "SERVER")]
    server: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cell: CellOptions,
}

impl Options {
    fn cell(&self) -> &CellOptions {
        match &self.command {
            Command::List(options) => &options.cell,
            Command::Show(options)
            | Command::Cancel(options)
            | Command::Retry(options)
            | Command::First(options)
            | Command::Last(options) => &options.cell,
        }
    }
}

/// Runs a command.
pub(crate) async fn run(options: Options) -> Outcome {
    let session = options.cell().session(None, As::AdministratorIfPossible);
    let session = session.await?;
    let outcome = run_in(&session, &options).await;
    session.end(outcome).await
}

async fn run_in(session: &Session, options: &Options) -> Outcome {
    let jobs = Jobs::new(&session.client, &session.cell);
    match &options.command {
        Command::List(options) => list(&jobs, options).await,
        Command::Show(options) => show(&jobs, options).await,
        Command::Cancel(options) => change(&jobs, options, Change::Cancel, "cancelled").await,
        Command::Retry(options) => change(&jobs, options, Change::Retry, "queued again").await,
        Command::First(options) => {
            change(&jobs, options, Change::First, "the next of its user").await
        }
        Command::Last(options) => {
            change(&jobs, options, Change::Last, "the last of its user").await
        }
    }
}

/// The file servers to ask: the named one, or all of the cell.
pub(crate) async fn servers(jobs: &Jobs<'_>, named: Option<&str>) -> Outcome<Vec<IpAddr>> {
    match named {
        Some(server) => Ok(vec![resolve(server)?.0]),
        None => Ok(jobs.servers().await?),
    }
}

async fn list(jobs: &Jobs<'_>, options: &ListOptions) -> Outcome {
    let selection = Selection {
        kind: options.kind.clone(),
        user: options.user.clone(),
        ended: options.all,
    };
    let servers = servers(jobs, options.server.as_deref()).await?;
    let (mut failures, mut all) = (Failures::of("cellar jobs list"), Vec::new());
    for server in &servers {
        let listed = jobs.list(*server, &selection).await;
        all.extend(failures.note(listed).into_iter().flatten());
    }
    if options.json {
        print_json(&json!({ "jobs": all }))?;
        return failures.end();
    }
    let mut table = Table::new([
        ("Job", Side::Right),
        ("Server", Side::Left),
        ("Kind", Side::Left),
        ("User", Side::Left),
        ("Device", Side::Left),
        ("State", Side::Left),
        ("Files", Side::Right),
        ("Size", Side::Right),
        ("Failed", Side::Right),
        ("Since", Side::Left),
        ("Reason", Side::Left),
    ]);
    for job in &all {
        table.row([
            job.id.to_string(),
            job.server.to_string(),
            job.kind.clone(),
            job.user.clone(),
            job.resource.clone(),
            state(job).to_owned(),
            of(job.files, job.expected_files, |n| n.to_string()),
            of(job.bytes, job.expected_bytes, short_size),
            job.failed.to_string(),
            to_the_minute(job.ended.or(job.started).unwrap_or(job.created) / 1000),
            job.error.clone().unwrap_or_default(),
        ]);
    }
    match table.is_empty() {
        true if options.all => outln!("No jobs"),
        true => outln!("No unfinished jobs; --all lists those that have ended"),
        false => out!("{table}"),
    }
    failures.end()
}

/// The state of a job in one word.
fn state(job: &Job) -> &str {
    match job.cancelling {
        true => "cancelling",
        false => &job.state,
    }
}

/// A finished amount, and the whole if it is known.
fn of(finished: u64, expected: u64, text: impl Fn(u64) -> String) -> String {
    match expected {
        0 => text(finished),
        _ => format!("{}/{}", text(finished), text(expected)),
    }
}

/// The file server of a job.
async fn one_server(jobs: &Jobs<'_>, options: &JobOptions) -> Outcome<IpAddr> {
    let servers = servers(jobs, options.server.as_deref()).await?;
    match servers.as_slice() {
        [server] => Ok(*server),
        [] => Err(Failure::new("the cell has no file server")),
        _ => Err(Failure::usage(format!(
            "the cell has several file servers, each with a job {}: name the server behind the number",
            options.id
        ))),
    }
}

async fn show(jobs: &Jobs<'_>, options: &JobOptions) -> Outcome {
    let server = one_server(jobs, options).await?;
    let details = jobs.show(server, options.id).await?;
    if options.json {
        return print_json(&details);
    }
    let Details { job, items, .. } = &details;
    let time = |millis: u64| to_the_minute(millis / 1000);
    outln!("Job {} on {}: {}", job.id, job.server, state(job));
    outln!("  kind       {}", job.kind);
    outln!("  user       {}", job.user);
    outln!("  device     {}", job.resource);
    let files = of(job.files, job.expected_files, |n| n.to_string());
    outln!("  files      {files}, {} failed", job.failed);
    outln!(
        "  size       {}",
        of(job.bytes, job.expected_bytes, short_size)
    );
    outln!("  submitted  {}", time(job.created));
    for (name, at) in [
        ("started", job.started),
        ("ended", job.ended),
        ("waits until", job.until),
    ] {
        if let Some(at) = at {
            outln!("  {name:<10} {}", time(at));
        }
    }
    if let Some(error) = &job.error {
        outln!("  error      {error}");
    }
    for item in items {
        match &item.error {
            None => outln!("  done    {}", item.file),
            Some(error) => outln!("  failed  {}: {error}", item.file),
        }
    }
    Ok(())
}

async fn change(jobs: &Jobs<'_>, options: &JobOptions, change: Change, words: &str) -> Outcome {
    let server = one_server(jobs, options).await?;
    jobs.change(server, options.id, change).await?;
    if options.json {
        let details = jobs.show(server, options.id).await?;
        return print_json(&details.job);
    }
    outln!("Job {} on {server}: {words}", options.id);
    Ok(())
}
