//! `cellar hsm`: files with copies in archives.
//!
//! The commands walk over trees, and go on after a file that failed. The last line of a command
//! says how many files and bytes it concerned.

mod pins;
mod queue;
mod report;
mod run;
mod status;

use std::time::Duration;

use cellar_admin::hsm::Archives;
use cellar_admin::osd::{Device, Osds};

use crate::failure::{Failure, Outcome};
use crate::progress::Progress;
use crate::quantities;
use crate::session::{As, CellOptions, Session};
use run::{Run, Work};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    #[command(flatten)]
    Files(FileCommand),
    /// Show the files in objects and in archives, and the work that is left, by file server.
    #[command(
        after_help = "File servers examine their files at intervals ('cellar up --archive-every').

Examples:
  cellar hsm status
  cellar hsm status --now fs2.example.org"
    )]
    Status(status::StatusOptions),
    /// Show copied, wiped, recalled and verified files by day, and when devices will be full.
    #[command(
        after_help = "File servers count with each census. Forecasts are by the growth of the last two weeks.

Examples:
  cellar hsm report
  cellar hsm report --days 60 --json"
    )]
    Report(report::ReportOptions),
    /// List the recalls of wiped files that wait or run, by archive.
    #[command(after_help = "States:
  queued   waits for its turn; the place counts the queued recalls of the archive
  running  the archive is being read
'cellar jobs first JOB' puts a recall before all others of its user, 'cellar jobs cancel JOB' ends it.

Examples:
  cellar hsm queue
  cellar hsm queue --archive tape1 fs2.example.org --json")]
    Queue(queue::QueueOptions),
    /// List the files that are to be copied to an archive, or to be wiped from a device, next.
    #[command(after_help = "Examples:
  cellar hsm candidates tape1
  cellar hsm candidates disk3 --max 1000 --json")]
    Candidates(status::CandidateOptions),
    /// Keep files, or all files below directories, on the online devices for some time.
    #[command(
        after_help = "A pin holds for present and future files below a directory, in the same volume. It recalls nothing:
'cellar hsm prefetch -r PATH' does.

Examples:
  cellar hsm pin --for 14d /afs/demo.cell/data/run7
  cellar hsm pin --forever --admin /afs/demo.cell/software"
    )]
    Pin(pins::PinOptions),
    /// Remove pins. A path without a pin is an error.
    #[command(after_help = "Examples:
  cellar hsm unpin /afs/demo.cell/data/run7
  cellar hsm unpin --owner alice /afs/demo.cell/data/run7")]
    Unpin(pins::UnpinOptions),
    /// List the pins of the cell.
    #[command(after_help = "Example:
  cellar hsm pins --json")]
    Pins(pins::ListOptions),
}

/// A command on files.
#[derive(Debug, clap::Subcommand)]
enum FileCommand {
    /// Copy files to archives.
    #[command(after_help = "Examples:
  cellar hsm archive /afs/demo.cell/data/run7.h5
  cellar hsm archive -r --to tape1,tape2 /afs/demo.cell/data")]
    Archive {
        /// The archives, by name or number. Default: every archive of the cell.
        #[arg(long, value_name = "ARCHIVE,...", value_delimiter = ',')]
        to: Vec<String>,
        #[command(flatten)]
        files: FileOptions,
    },
    /// Take files off the online devices. Their bytes stay in the archives.
    #[command(after_help = "Examples:
  cellar hsm wipe /afs/demo.cell/data/run7.h5
  cellar hsm wipe -r --copies 2 --dry-run /afs/demo.cell/data")]
    Wipe {
        /// The number of archives that must confirm a good copy.
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
        copies: u32,
        /// Only say which files could be wiped. The archives are not asked.
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        files: FileOptions,
    },
    /// Read copies of files back from archives, and compare them with the recorded sums.
    #[command(
        after_help = "File servers do this by themselves, slowly ('cellar up --verify-every', '--verify-rate'). A bad copy is
not used any more.

Examples:
  cellar hsm verify /afs/demo.cell/data/run7.h5
  cellar hsm verify -r --in tape1 /afs/demo.cell/data"
    )]
    Verify {
        /// The archives, by name or number. Default: every archive of the cell.
        #[arg(long = "in", value_name = "ARCHIVE,...", value_delimiter = ',')]
        archives: Vec<String>,
        #[command(flatten)]
        files: FileOptions,
    },
    /// Bring wiped files back to the online devices, before a program opens them.
    #[command(after_help = "Example:
  cellar hsm prefetch -r /afs/demo.cell/data/run7")]
    Prefetch {
        /// The longest wait for one file. Its recall goes on after that.
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = time)]
        timeout: Duration,
        #[command(flatten)]
        files: FileOptions,
    },
    /// List the copies of files.
    #[command(after_help = "States:
  good   the archive has the present bytes
  bad    the archive lost the copy, or has other bytes; it is not used
  older  the bytes that the file had before its last change
'Compared' is the time when the bytes in the archive were last compared.

Example:
  cellar hsm copies /afs/demo.cell/data/run7.h5")]
    Copies {
        #[command(flatten)]
        files: FileOptions,
    },
}

#[derive(Debug, clap::Args)]
struct FileOptions {
    /// Files below /afs; '*', '?' and '[...]' stand for names.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Take directories with all their contents. Links and mount points are left alone.
    #[arg(short, long)]
    recursive: bool,
    /// Print JSON: one object for each file, and the totals.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cell: CellOptions,
}

fn time(text: &str) -> Result<Duration, String> {
    quantities::time(text).ok_or_else(|| format!("not a time; {}", quantities::FORMS))
}

impl FileCommand {
    fn files(&mut self) -> &mut FileOptions {
        match self {
            Self::Archive { files, .. }
            | Self::Verify { files, .. }
            | Self::Wipe { files, .. }
            | Self::Prefetch { files, .. }
            | Self::Copies { files } => files,
        }
    }
}

/// Runs a command.
pub(crate) async fn run(options: Options) -> Outcome {
    let mut command = match options.command {
        Command::Files(command) => command,
        Command::Status(options) => return status::status(&options).await,
        Command::Report(options) => return report::report(&options).await,
        Command::Queue(options) => return queue::queue(&options).await,
        Command::Candidates(options) => return status::candidates(&options).await,
        Command::Pin(options) => return pins::pin(&options).await,
        Command::Unpin(options) => return pins::unpin(&options).await,
        Command::Pins(options) => return pins::list(&options).await,
    };
    let who = match &command {
        FileCommand::Archive { .. } | FileCommand::Verify { .. } | FileCommand::Wipe { .. } => {
            As::AdministratorIfPossible
        }
        FileCommand::Prefetch { .. } | FileCommand::Copies { .. } => As::Anybody,
    };
    let files = command.files();
    let first = files.paths.first().cloned();
    let session = files.cell.session(first.as_deref(), who).await?;
    let outcome = run_in(&session, command).await;
    session.end(outcome).await
}

async fn run_in(session: &Session, mut command: FileCommand) -> Outcome {
    super::glob::expand(&session.client, &mut command.files().paths, true).await?;
    let devices = Osds::new(&session.client, &session.cell).list().await?;
    let (work, files) = match command {
        FileCommand::Archive { to, files } => (
            Work::Archive(chosen(&devices, "--to", &to, takes_copies)?),
            files,
        ),
        FileCommand::Verify { archives, files } => (
            Work::Verify(chosen(&devices, "--in", &archives, |_| true)?),
            files,
        ),
        FileCommand::Wipe {
            copies,
            dry_run,
            files,
        } => (Work::Wipe { copies, dry_run }, files),
        FileCommand::Prefetch { timeout, files } => (Work::Prefetch(timeout), files),
        FileCommand::Copies { files } => (Work::Copies, files),
    };
    let run = Run {
        session,
        archives: Archives::new(&session.client),
        devices,
        work,
        progress: Progress::files(),
        json: files.json,
    };
    run.all(&files).await
}

/// Whether an archive takes new copies.
fn takes_copies(archive: &Device) -> bool {
    !archive.draining
}

/// The archives with these names or numbers, which `option` gave; without names, all that are
/// `usual`.
fn chosen(
    devices: &[Device],
    option: &str,
    names: &[String],
    usual: fn(&Device) -> bool,
) -> Outcome<Vec<Device>> {
    let all = || {
        let archives = devices.iter().filter(|device| device.archival);
        archives.filter(|device| !device.obsolete)
    };
    if names.is_empty() {
        let all: Vec<Device> = all().filter(|device| usual(device)).cloned().collect();
        return match all.is_empty() {
            true => Err(Failure::new(
                "the cell has no archive: 'cellar osd create NAME -archival' makes one",
            )),
            false => Ok(all),
        };
    }
    let find = |name: &String| {
        let mut archives = all();
        let found = archives.find(|device| device.name == *name || device.id.to_string() == *name);
        found
            .cloned()
            .ok_or_else(|| Failure::usage(format!("{option}: the cell has no archive '{name}'")))
    };
    names.iter().map(find).collect()
}
