//! Files without a mount: `cellar ls`, `cat`, `cp` and the other file commands, on `/afs/CELL/…`
//! paths.

mod cat;
mod chmod;
mod cp;
mod df;
mod du;
mod find;
mod glob;
pub(crate) mod hsm;
mod ls;
mod make;
mod rm;
mod shown;
mod stat;
mod tasks;
mod tree;

use std::pin::pin;
use std::time::{Duration, SystemTime};

use cellar_client::Stop;
use cellar_wire::ids::AfsTime;
use clap::Subcommand;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

use crate::failure::{Failure, Outcome};
use crate::session::{As, Session};

/// How long an interrupted copy may take to abort its stores.
const GIVE_UP_TIME: Duration = Duration::from_secs(5);

/// The file commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List directories.
    #[command(
        disable_help_flag = true,
        after_help = "Examples:
  cellar ls /afs/demo.cell
  cellar ls -la /afs/demo.cell/scratch
  cellar ls -lhR '/afs/demo.cell/scratch/run*'
  cellar ls --cell demo.cell --server 192.0.2.1 /afs/demo.cell"
    )]
    Ls(ls::Options),
    /// Write files to standard output.
    #[command(after_help = "Example:\n  cellar cat /afs/demo.cell/scratch/hello")]
    Cat(cat::Options),
    /// Copy files and trees into AFS, out of it, or within it.
    #[command(after_help = "Examples:
  cellar cp README.md /afs/demo.cell/scratch/
  cellar cp -r /usr/share/doc /afs/demo.cell/scratch/doc
  cellar cp /afs/demo.cell/scratch/README.md .
  tar c src | cellar cp - /afs/demo.cell/scratch/src.tar
  cellar cp --layout ec=4+2 --verify run.h5 /afs/demo.cell/data/
  cellar cp --resume /afs/demo.cell/data/run.h5 .")]
    Cp(cp::Options),
    /// Make directories.
    #[command(after_help = "Examples:
  cellar mkdir /afs/demo.cell/scratch/new
  cellar mkdir -p -m 700 /afs/demo.cell/scratch/a/b/c")]
    Mkdir(make::MkdirOptions),
    /// Remove files, links and (with -r) trees.
    #[command(after_help = "Examples:
  cellar rm /afs/demo.cell/scratch/README.md
  cellar rm -r /afs/demo.cell/scratch/doc
Mount points are removed with 'cellar fs rmmount', volumes with 'cellar vos remove'.")]
    Rm(rm::Options),
    /// Make a symbolic link (-s), or a hard link to a file of the same directory.
    #[command(after_help = "Examples:
  cellar ln -s README.md /afs/demo.cell/scratch/symbolic
  cellar ln /afs/demo.cell/scratch/README.md /afs/demo.cell/scratch/hard")]
    Ln(make::LnOptions),
    /// Rename a file or directory, or move it within its volume.
    #[command(after_help = "Examples:
  cellar mv /afs/demo.cell/scratch/old /afs/demo.cell/scratch/new
  cellar mv /afs/demo.cell/scratch/file /afs/demo.cell/scratch/directory/")]
    Mv(make::MvOptions),
    /// Show the status of files: type, owner, rights, times, fid and volume.
    #[command(after_help = "Examples:
  cellar stat /afs/demo.cell/scratch/README.md
  cellar stat --no-follow --json /afs/demo.cell/scratch")]
    Stat(stat::Options),
    /// Add up the sizes of trees.
    #[command(
        disable_help_flag = true,
        after_help = "Examples:
  cellar du -sh /afs/demo.cell/scratch
  cellar du -h --max-depth 1 /afs/demo.cell/scratch
  cellar du -xsh /afs/demo.cell/scratch             stay in the volume
Mount points are followed, and each volume is counted once. 'cellar df' shows a volume's quota and
room."
    )]
    Du(du::Options),
    /// Show the quota and room of volumes.
    #[command(
        disable_help_flag = true,
        after_help = "Examples:
  cellar df -h /afs/demo.cell/scratch
  cellar df --json '/afs/demo.cell/*'"
    )]
    Df(df::Options),
    /// Change mode bits.
    #[command(after_help = "Examples:
  cellar chmod 644 /afs/demo.cell/scratch/README.md
  cellar chmod -R u+rwX,go-w /afs/demo.cell/scratch/src
Access lists decide who may read and write: 'cellar fs setacl' changes them.")]
    Chmod(chmod::Options),
    /// Find files by name, type, size, age and owner.
    #[command(after_help = "Examples:
  cellar find /afs/demo.cell/scratch --name '*.root' --min-size 1G
  cellar find /afs/demo.cell --type m
  cellar find /afs/demo.cell/scratch --type f --older-than 90d -x -0 | xargs -0 cellar rm
Mount points are followed, as find(1) does in AFS; -x stays in the volume of PATH.")]
    Find(find::Options),
}

impl Command {
    /// The name for error messages.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Ls(_) => "ls",
            Self::Cat(_) => "cat",
            Self::Cp(_) => "cp",
            Self::Mkdir(_) => "mkdir",
            Self::Rm(_) => "rm",
            Self::Ln(_) => "ln",
            Self::Mv(_) => "mv",
            Self::Stat(_) => "stat",
            Self::Du(_) => "du",
            Self::Df(_) => "df",
            Self::Chmod(_) => "chmod",
            Self::Find(_) => "find",
        }
    }
}

impl Command {
    /// The paths in which patterns are expanded.
    fn patterns(&mut self) -> Option<&mut Vec<String>> {
        match self {
            Self::Ls(options) => Some(&mut options.paths),
            Self::Cat(options) => Some(&mut options.paths),
            Self::Cp(options) => Some(&mut options.paths),
            Self::Rm(options) => Some(&mut options.paths),
            Self::Stat(options) => Some(&mut options.paths),
            Self::Du(options) => Some(&mut options.paths),
            Self::Df(options) => Some(&mut options.paths),
            Self::Chmod(options) => Some(&mut options.paths),
            Self::Find(options) => Some(&mut options.paths),
            // Their paths are names to make.
            Self::Mkdir(_) | Self::Ln(_) | Self::Mv(_) => None,
        }
    }
}

/// Runs one file command.
pub(crate) async fn run(command: Command) -> Outcome {
    let (cell, paths) = match &command {
        Command::Ls(options) => (&options.shown.cell, options.paths.as_slice()),
        Command::Cat(options) => (&options.cell, options.paths.as_slice()),
        Command::Cp(options) => (&options.cell, options.paths.as_slice()),
        Command::Mkdir(options) => (&options.cell, options.paths.as_slice()),
        Command::Rm(options) => (&options.cell, options.paths.as_slice()),
        Command::Ln(options) => (&options.cell, std::slice::from_ref(&options.path)),
        Command::Mv(options) => (&options.cell, std::slice::from_ref(&options.from)),
        Command::Stat(options) => (&options.cell, options.paths.as_slice()),
        Command::Du(options) => (&options.shown.cell, options.paths.as_slice()),
        Command::Df(options) => (&options.shown.cell, options.paths.as_slice()),
        Command::Chmod(options) => (&options.cell, options.paths.as_slice()),
        Command::Find(options) => (&options.cell, options.paths.as_slice()),
    };
    // If only a server's address is given, the first AFS path names the cell.
    let path = paths.iter().find(|path| is_afs(path)).map(String::as_str);
    let encrypt = cell.identity.encrypt;
    let session = cell.session(path, As::Anybody).await?;
    if encrypt && !session.authenticated {
        return Err(Failure::new(format!(
            "--encrypt needs a token for cell {}: 'cellar login' gets one",
            session.cell.name
        )));
    }
    let outcome = run_until_signal(&session, command).await;
    session.end(outcome).await
}

/// Runs a command until it ends or a signal comes. On a signal the calls under way are aborted, and
/// the servers are informed before this process ends.
///
/// A copy has more to undo: stores, which file servers otherwise keep open for a minute, and new
/// files that are still empty. A second signal ends this clean-up too.
async fn run_until_signal(session: &Session, command: Command) -> Outcome {
    let gives_up = matches!(command, Command::Cp(_));
    let mut signals = Signals::new(gives_up)?;
    let stop = Stop::default();
    let mut work = pin!(run_in(session, command, &stop));
    let ended = tokio::select! {
        outcome = &mut work => return outcome,
        ended = signals.next() => ended,
    };
    stop.ask();
    if !gives_up {
        return Err(ended);
    }
    let late = "the servers do not answer; files that were being stored may be locked for others for a minute";
    tokio::select! {
        done = timeout(GIVE_UP_TIME, work) => match done {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(ended),
            Err(_) => Err(ended.but(late)),
        },
        ended = signals.next() => Err(ended),
    }
}

/// The signals that end a command early.
struct Signals {
    interrupt: Signal,
    /// SIGTERM, for commands that clean up. The other commands keep the default action of SIGTERM:
    /// they may be blocked on a write to a pipe, and would not see the signal.
    terminate: Option<Signal>,
}

impl Signals {
    fn new(gives_up: bool) -> Outcome<Self> {
        let terminate = gives_up.then(|| signal(SignalKind::terminate()));
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: terminate.transpose()?,
        })
    }

    /// Waits for the next signal and returns it as the command's failure.
    async fn next(&mut self) -> Failure {
        let terminate = async {
            match &mut self.terminate {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Failure::interrupted(),
            () = terminate => Failure::terminated(),
        }
    }
}

async fn run_in(session: &Session, mut command: Command, stop: &Stop) -> Outcome {
    let must_match = !matches!(&command, Command::Rm(options) if options.force);
    // The target of a copy is not expanded.
    let target = match &mut command {
        Command::Cp(options) => options.paths.pop(),
        _ => None,
    };
    if let Some(paths) = command.patterns() {
        glob::expand(&session.client, paths, must_match).await?;
        paths.extend(target);
    }
    match command {
        Command::Ls(options) => ls::run(session, options).await,
        Command::Cat(options) => cat::run(session, options).await,
        Command::Cp(options) => cp::run(session, options, stop).await,
        Command::Mkdir(options) => make::mkdir(session, options).await,
        Command::Rm(options) => rm::run(session, options).await,
        Command::Ln(options) => make::ln(session, options).await,
        Command::Mv(options) => make::mv(session, options).await,
        Command::Stat(options) => stat::run(session, options).await,
        Command::Du(options) => du::run(session, options).await,
        Command::Df(options) => df::run(session, options).await,
        Command::Chmod(options) => chmod::run(session, options).await,
        Command::Find(options) => find::run(session, options).await,
    }
}

/// Returns whether a path is an AFS path. All other paths are files of this machine.
fn is_afs(path: &str) -> bool {
    path == "/afs" || path.starts_with("/afs/")
}

/// Adds a name to a path.
fn join(path: &str, name: &str) -> String {
    format!("{}/{name}", path.trim_end_matches('/'))
}

/// The current time, in the form of the protocol.
pub(crate) fn now() -> AfsTime {
    AfsTime::from(SystemTime::now())
}

/// A name in printable form, with control characters escaped.
fn printable(name: &[u8]) -> String {
    crate::output::one_line(&String::from_utf8_lossy(name)).into_owned()
}
