//! `cellar hsm`: files with copies in archives.
//!
//! The commands walk over trees, and go on after a file that failed. The last line of a command
//! says how many files and bytes it concerned.

use std::time::Duration;

use cellar_admin::hsm::{Archives, Copies};
use cellar_admin::osd::{Device, Osds};
use cellar_admin::table::{Side, Table, short_size};
use cellar_client::{Follow, Node};
use serde_json::json;

use super::tree::{Across, Visit, walk};
use crate::failure::{Failure, Failures, Outcome};
use crate::output::{out, outln};
use crate::progress::Progress;
use crate::quantities;
use crate::session::{As, CellOptions, Session};
use crate::suite::print_json;

/// Digits of a BLAKE3 in a table.
const DIGITS: usize = 12;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
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

impl Options {
    fn files(&mut self) -> &mut FileOptions {
        match &mut self.command {
            Command::Archive { files, .. }
            | Command::Wipe { files, .. }
            | Command::Prefetch { files, .. }
            | Command::Copies { files } => files,
        }
    }

    pub(super) fn paths(&mut self) -> &mut Vec<String> {
        &mut self.files().paths
    }
}

/// The result for one file.
enum Done {
    /// Nothing had to be done.
    Nothing,
    /// Something was done with a file of that length.
    Changed,
}

/// The work of a command on each file.
enum Work {
    Archive(Vec<Device>),
    Wipe { copies: u32, dry_run: bool },
    Prefetch(Duration),
    Copies,
}

impl Work {
    /// The command, and its verb in the past.
    fn words(&self) -> (&'static str, &'static str) {
        match self {
            Self::Archive(_) => ("cellar hsm archive", "copied"),
            Self::Wipe { dry_run: true, .. } => ("cellar hsm wipe", "could be wiped"),
            Self::Wipe { .. } => ("cellar hsm wipe", "wiped"),
            Self::Prefetch(_) => ("cellar hsm prefetch", "recalled"),
            Self::Copies => ("cellar hsm copies", "listed"),
        }
    }
}

/// Runs a command.
pub(crate) async fn run(mut options: Options) -> Outcome {
    let first = options.paths().first().cloned();
    let who = match &options.command {
        Command::Archive { .. } | Command::Wipe { .. } => As::AdministratorIfPossible,
        Command::Prefetch { .. } | Command::Copies { .. } => As::Anybody,
    };
    let session = options.files().cell.session(first.as_deref(), who).await?;
    let outcome = run_in(&session, options).await;
    session.end(outcome).await
}

async fn run_in(session: &Session, mut options: Options) -> Outcome {
    super::glob::expand(&session.client, options.paths(), true).await?;
    let devices = Osds::new(&session.client, &session.cell).list().await?;
    let (work, files) = match options.command {
        Command::Archive { to, files } => (Work::Archive(chosen(&devices, &to)?), files),
        Command::Wipe {
            copies,
            dry_run,
            files,
        } => (Work::Wipe { copies, dry_run }, files),
        Command::Prefetch { timeout, files } => (Work::Prefetch(timeout), files),
        Command::Copies { files } => (Work::Copies, files),
    };
    let mut run = Run {
        session,
        archives: Archives::new(&session.client),
        devices,
        work,
        progress: Progress::names(),
        listed: Vec::new(),
        looked: 0,
        changed: 0,
        bytes: 0,
    };
    run.all(&files).await
}

/// The archives with these names or numbers; all if there are none.
fn chosen(devices: &[Device], names: &[String]) -> Outcome<Vec<Device>> {
    let all = || devices.iter().filter(|device| device.archival);
    if names.is_empty() {
        let all: Vec<Device> = all().cloned().collect();
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
            .ok_or_else(|| Failure::usage(format!("--to: the cell has no archive '{name}'")))
    };
    names.iter().map(find).collect()
}

/// A command on its way over the files.
struct Run<'a> {
    session: &'a Session,
    archives: Archives<'a>,
    devices: Vec<Device>,
    work: Work,
    progress: Progress,
    /// The files for JSON.
    listed: Vec<serde_json::Value>,
    looked: u64,
    changed: u64,
    bytes: u64,
}

impl Run<'_> {
    async fn all(&mut self, files: &FileOptions) -> Outcome {
        let (command, verb) = self.work.words();
        let mut failures = Failures::of(command);
        let client = &self.session.client;
        for path in &files.paths {
            let Some(top) = failures.note(client.find(path, Follow::ALL).await) else {
                continue;
            };
            if top.is_directory() && !files.recursive {
                let failure = format!("{path}: a directory; -r takes all files below it");
                let _told = failures.note(Err::<(), _>(Failure::usage(failure)));
                continue;
            }
            let depth_max = if files.recursive { usize::MAX } else { 0 };
            let visit = async |visit: &Visit, failures: &mut Failures| {
                let node = &visit.node;
                if !node.is_directory() && !node.is_link() && !node.is_mount_point() {
                    let done = self.file(&visit.path, &visit.node, files.json).await;
                    if let Some(Done::Changed) = failures.note(done) {
                        self.changed += 1;
                        self.bytes += visit.node.status.length;
                    }
                }
                Ok(())
            };
            let (top, mut across) = ((path.as_str(), top), Across::Nothing);
            walk(client, top, depth_max, &mut across, &mut failures, visit).await?;
        }
        self.progress.finish();
        let (changed, looked) = (self.changed, self.looked);
        if files.json {
            print_json(&json!({
                "files": self.listed, "looked": looked, "done": changed, "bytes": self.bytes,
            }))?;
        } else if !matches!(self.work, Work::Copies) {
            let size = short_size(self.bytes);
            outln!("{changed} of {looked} files {verb}, {size}");
        }
        if looked == 0 {
            let _told = failures.note(Err::<(), _>(Failure::new("no file matches")));
        }
        failures.end()
    }

    async fn file(&mut self, path: &str, node: &Node, json: bool) -> Outcome<Done> {
        self.looked += 1;
        self.progress.name(path);
        let before = self.archives.copies(node, path, &self.devices).await?;
        let done = match &self.work {
            Work::Archive(to) => {
                let lacking = |archive: &&Device| !before.good().any(|osd| osd == archive.id);
                let mut done = Done::Nothing;
                for archive in to.iter().filter(lacking) {
                    self.archives.archive(node, path, archive).await?;
                    done = Done::Changed;
                }
                done
            }
            Work::Wipe {
                copies,
                dry_run: true,
            } => match before.online && before.good().count() >= *copies as usize {
                true => Done::Changed,
                false => Done::Nothing,
            },
            Work::Wipe { copies, .. } if before.online => {
                match self.archives.wipe(node, path, *copies).await? {
                    true => Done::Changed,
                    false => Done::Nothing,
                }
            }
            Work::Prefetch(patience) if !before.online => {
                self.archives.recall(node, path, *patience).await?;
                Done::Changed
            }
            Work::Wipe { .. } | Work::Prefetch(_) => Done::Nothing,
            Work::Copies => Done::Changed,
        };
        if !json {
            if let Work::Copies = self.work {
                out!("{}", text(&before));
            }
            return Ok(done);
        }
        let after = match self.work {
            Work::Copies | Work::Wipe { dry_run: true, .. } => before,
            _ => self.archives.copies(node, path, &self.devices).await?,
        };
        let value = serde_json::to_value(&after);
        let value = value.map_err(|error| Failure::new(error.to_string()))?;
        self.listed.push(value);
        Ok(done)
    }
}

/// A file and its copies, for users.
fn text(file: &Copies) -> String {
    let state = match (file.online, file.good().count()) {
        (true, 0) => "online, no copy of the present bytes".to_owned(),
        (true, good) => format!("online, {good} good"),
        (false, 0) => "NOT READABLE: wiped, no good copy".to_owned(),
        (false, good) => format!("wiped, {good} good"),
    };
    let size = short_size(file.length);
    let mut text = format!("{} ({}): {size}, {state}\n", file.path, file.fid);
    if file.copies.is_empty() {
        return text;
    }
    let mut table = Table::new([
        ("Archive", Side::Left),
        ("State", Side::Left),
        ("Data version", Side::Right),
        ("Length", Side::Right),
        ("Made", Side::Left),
        ("BLAKE3", Side::Left),
    ]);
    for copy in &file.copies {
        let name = match copy.osd_name.is_empty() {
            true => copy.osd.to_string(),
            false => copy.osd_name.clone(),
        };
        let made = u32::try_from(copy.made).unwrap_or(u32::MAX);
        table.row([
            name,
            copy.state.to_owned(),
            copy.data_version.to_string(),
            copy.length.to_string(),
            cellar_admin::date::ctime(cellar_wire::AfsTime(made)),
            copy.blake3.chars().take(DIGITS).collect(),
        ]);
    }
    for line in table.to_string().lines() {
        text.push_str(&format!("    {line}\n"));
    }
    text
}
