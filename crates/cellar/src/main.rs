//! The one binary: a whole AFS cell, and the commands to use and run it.
//!
//! Each command is a module that parses only its own options, calls one of the role or client
//! crates, and prints. All errors become a [`failure::Failure`] here, in one place.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

mod cell_directory;
mod check;
mod command_line;
mod completion;
mod config;
mod console;
mod daemon;
mod db;
mod default_directory;
mod failure;
mod files;
mod identity;
mod jobs;
mod key;
mod last_start;
mod links;
mod log;
mod login;
mod manual;
mod metrics;
mod mount;
mod mounted;
mod osd_serve;
mod output;
mod panics;
mod partition;
mod progress;
mod quantities;
mod reload;
mod restart;
mod rxperf;
mod serve;
mod server;
mod service_manager;
mod session;
mod settings;
mod stand_in;
mod statistics;
mod status;
mod stop_signals;
mod suite;
mod tokens;
mod top;
mod umount;
mod up;

use daemon::Daemon;
use failure::{Failure, Outcome};
use last_start::LastStart;
use log::LogFormat;

/// The allocator of the static program. That of musl has one lock for all threads.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A whole AFS cell in one program.
///
/// Servers, databases, tools and clients that speak the AFS-3 protocol to OpenAFS and to the Linux
/// kernel's AFS client.
#[derive(Debug, Parser)]
#[command(name = "cellar", bin_name = "cellar", version, max_term_width = 100)]
#[command(after_help = "A first minute:
  cellar up                                   start a cell here (Ctrl-C stops it)
  cellar cp README.md /afs/demo.cell/scratch  in another terminal: store a file
  cellar ls -l /afs/demo.cell/scratch
  cellar cat /afs/demo.cell/scratch/README.md")]
struct Cli {
    /// The format of log lines on standard error.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text, display_order = 900)]
    log_format: LogFormat,
    /// The log lines to print, as a level or a 'tracing' filter: 'debug', 'info,cellar_rpc=trace'.
    /// Default: 'warn', and 'info' for servers.
    #[arg(
        long,
        global = true,
        value_name = "FILTER",
        env = "CELLAR_LOG",
        display_order = 901
    )]
    log: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a whole cell in the foreground; the first run creates the cell.
    Up(up::Options),
    /// Run the named roles of a cell on this machine, in the foreground.
    Serve(serve::Options),
    StandIn(stand_in::Options),
    #[command(flatten)]
    Files(files::Command),
    /// Mount AFS through FUSE.
    Mount(mount::Options),
    /// End mounts.
    Umount(umount::Options),
    #[command(hide = true)]
    MountGuard(mount::GuardOptions),
    /// The helper of mount(8), for 'mount -t cellar': make a link /sbin/mount.cellar.
    #[command(hide = true)]
    MountHelper(mount::HelperOptions),
    /// Get a Kerberos ticket and an AFS token, to act as yourself.
    Login(login::Options),
    /// List your tokens.
    #[command(after_help = "Examples:
  cellar tokens
  cellar tokens --cell example.org --json")]
    Tokens(tokens::TokensOptions),
    /// Discard your tokens.
    #[command(after_help = "Examples:
  cellar logout                        discard the tokens of all cells; keep the Kerberos tickets
  cellar logout --cell example.org     discard the token of one cell
  cellar logout --all                  discard the Kerberos tickets too")]
    Logout(tokens::LogoutOptions),
    /// List, add and remove the keys of a cell's servers.
    Key(key::Options),
    /// Check a configuration file, or show the values in force.
    Config(config::Options),
    /// Check, export, import or move the databases of a cell.
    Db(db::Options),
    /// Files with copies in archives: copy, wipe, recall, list; the state of each file server.
    Hsm(files::hsm::Options),
    /// Jobs of file servers: list, show, cancel, retry.
    Jobs(jobs::Options),
    /// Volumes: create, remove, list and examine them (like OpenAFS's vos).
    #[command(
        disable_help_flag = true,
        after_help = "Examples:\n  cellar vos help                 list the operations\n  cellar vos help create          describe one operation, with examples\n  cellar vos examine root.cell"
    )]
    Vos(Words),
    /// Users and groups (like OpenAFS's pts).
    #[command(
        disable_help_flag = true,
        after_help = "Examples:\n  cellar pts help                 list the operations\n  cellar pts help createuser      describe one operation, with examples\n  cellar pts examine alice"
    )]
    Pts(Words),
    /// Access lists, quotas and mount points (like OpenAFS's fs).
    #[command(
        disable_help_flag = true,
        after_help = "Examples:\n  cellar fs help                  list the operations\n  cellar fs help setacl           describe one operation, with examples\n  cellar fs listacl /afs/demo.cell/scratch"
    )]
    Fs(Words),
    /// The server processes of a machine (like OpenAFS's bos).
    #[command(
        disable_help_flag = true,
        after_help = "Examples:\n  cellar bos help                 list the operations\n  cellar bos help status          describe one operation, with examples\n  cellar bos status 192.0.2.1"
    )]
    Bos(Words),
    /// Object storage devices and policies (like AFS/OSD's osd).
    #[command(
        disable_help_flag = true,
        after_help = "Examples:\n  cellar osd help                 list the operations\n  cellar osd policy help          list the operations on policies\n  cellar osd list\n  cellar osd serve --help         run a device on a machine of its own"
    )]
    Osd(Words),
    /// Take a file server out of a cell, or give its place to another machine.
    Server(server::Options),
    /// Add, remove and verify partitions of file servers.
    Partition(partition::Options),
    /// Show how a cell is: its servers, partitions, devices and volumes.
    Status(status::Options),
    /// Show the volumes, users and client machines that cause load.
    Top(top::Options),
    /// Serve a web console of a cell.
    Console(console::Options),
    /// Check this machine as a server or client of a cell, and say how to mend it.
    Check(check::Options),
    /// Show every counter of a running cell.
    Statistics(statistics::Options),
    /// Measure the throughput of Rx, against another cellar or OpenAFS's rxperf.
    Rxperf(rxperf::Options),
    /// Print the completion of command lines for a shell.
    Completion(completion::Options),
    /// Write the manual pages into a directory. Packages use it.
    #[command(hide = true)]
    Manual(manual::Options),
    /// Put load on a server and measure it.
    #[command(after_help = "Examples:
  cellar bench rxafs --help
  cellar bench walk --help
  cellar bench make-volumes --help
  cellar bench first-answer --help
  cellar bench objects --help
docs/developing/performance.md has measured figures and says how to repeat them.")]
    Bench(BenchOptions),
}

/// The words of a suite's command line. The suite parses them.
#[derive(Debug, clap::Args)]
struct Words {
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "OPERATION ..."
    )]
    words: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct BenchOptions {
    #[command(subcommand)]
    what: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Call a file server, VL server and PR server from many clients at the same time.
    Rxafs(cellar_bench::rxafs::Options),
    /// Fetch the status of every vnode of a volume and hold the promises, to measure a server's
    /// memory.
    Walk(cellar_bench::walk::Options),
    /// Create very many empty volumes, to measure what each costs the server.
    MakeVolumes(cellar_bench::make_volumes::Options),
    /// Ask for volumes until the server answers for them, and print the time that took.
    FirstAnswer(cellar_bench::first_answer::Options),
    /// Call location and protection servers with large databases from many clients.
    Databases(cellar_bench::databases::Options),
    /// Write large databases for the servers of OpenAFS, and for 'cellar db import'.
    MakeDatabases(cellar_bench::make_databases::Options),
    /// Write very many files in objects and archives into a partition, to measure the census.
    MakeCatalogue(cellar_bench::make_catalogue::Options),
    /// Call database servers until each has answered, and print the times.
    FirstLookup(cellar_bench::databases::first::Options),
    /// Read all files of a volume that are in archives only, and measure the time of each.
    Recalls(cellar_bench::recalls::Options),
    /// Write files to a directory and read them, by the library of archives alone.
    Archives(cellar_bench::archives::Options),
    /// Write and read large files, striped or not, from many clients, and measure the machine's
    /// limits.
    Objects(cellar_bench::objects::Options),
}

impl Command {
    fn name(&self) -> String {
        let name = match self {
            Self::Up(_) => "up",
            Self::Serve(_) => "serve",
            Self::StandIn(_) => "stand-in",
            Self::Files(files) => files.name(),
            Self::Mount(_) => "mount",
            Self::Umount(_) => "umount",
            Self::MountGuard(_) => "mount-guard",
            Self::MountHelper(_) => return "mount.cellar".to_owned(),
            Self::Login(_) => "login",
            Self::Tokens(_) => "tokens",
            Self::Logout(_) => "logout",
            Self::Key(_) => "key",
            Self::Config(_) => "config",
            Self::Db(_) => "db",
            Self::Hsm(_) => "hsm",
            Self::Jobs(_) => "jobs",
            Self::Vos(_) => return "vos".to_owned(),
            Self::Pts(_) => return "pts".to_owned(),
            Self::Fs(_) => return "fs".to_owned(),
            Self::Bos(_) => return "bos".to_owned(),
            Self::Osd(_) => return "osd".to_owned(),
            Self::Server(server) => return format!("cellar server {}", server.name()),
            Self::Partition(partition) => return format!("cellar partition {}", partition.name()),
            Self::Status(_) => "status",
            Self::Check(_) => "check",
            Self::Top(_) => "top",
            Self::Console(_) => "console",
            Self::Statistics(_) => "statistics",
            Self::Rxperf(_) => "rxperf",
            Self::Completion(_) => "completion",
            Self::Manual(_) => "manual",
            Self::Bench(_) => "bench",
        };
        format!("cellar {name}")
    }

    fn run(self) -> Outcome {
        match self {
            Self::Up(options) => up::run(options),
            Self::Serve(options) => serve::run(options),
            Self::StandIn(options) => stand_in::run(&options),
            Self::Files(command) => block_on(files::run(command)),
            Self::Mount(options) => mount::run(options),
            Self::Umount(options) => umount::run(options),
            Self::MountGuard(options) => mount::guard(&options),
            Self::MountHelper(options) => mount::help(&options),
            Self::Login(options) => block_on(login::run(options)),
            Self::Tokens(options) => block_on(tokens::tokens(options)),
            Self::Logout(options) => block_on(tokens::logout(options)),
            Self::Key(options) => key::run(options),
            Self::Config(options) => config::run(&options, &command_of(Daemon::Serve)),
            Self::Db(options) => db::run(&options),
            Self::Hsm(options) => block_on(files::hsm::run(options)),
            Self::Jobs(options) => block_on(jobs::run(options)),
            Self::Vos(words) => block_on(suite::vos::run(words.words)),
            Self::Pts(words) => block_on(suite::pts::run(words.words)),
            Self::Fs(words) => block_on(suite::fs::run(words.words)),
            Self::Bos(words) => block_on(suite::bos::run(words.words)),
            Self::Osd(words) if osd_serve::is_server_command(&words.words) => {
                osd_serve::run(&words.words)
            }
            Self::Osd(words) => block_on(suite::osd::run(words.words)),
            Self::Server(options) => block_on(server::run(options)),
            Self::Partition(options) => block_on(partition::run(&options)),
            Self::Status(options) => block_on(status::run(options)),
            Self::Check(options) => block_on(check::run(options)),
            Self::Top(options) => block_on(top::run(options)),
            Self::Console(options) => block_on(console::run(options)),
            Self::Statistics(options) => block_on(statistics::run(options)),
            Self::Rxperf(options) => block_on(rxperf::run(options)),
            Self::Completion(options) => completion::run(&options, Cli::command()),
            Self::Manual(options) => manual::run(&options, Cli::command()),
            Self::Bench(options) => match options.what {
                // The report lists the failed calls. A run with a failed call is not a measurement.
                Bench::Rxafs(options) => match cellar_bench::rxafs::run(&options)? {
                    0 => Ok(()),
                    failed => Err(Failure::new(format!("{failed} calls failed"))),
                },
                Bench::Walk(options) => match cellar_bench::walk::run(&options)? {
                    0 => Ok(()),
                    failed => Err(Failure::new(format!("{failed} vnodes failed"))),
                },
                Bench::MakeVolumes(options) => match cellar_bench::make_volumes::run(&options)? {
                    0 => Ok(()),
                    failed => Err(Failure::new(format!("{failed} volumes failed"))),
                },
                Bench::FirstAnswer(options) => match cellar_bench::first_answer::run(&options)? {
                    0 => Ok(()),
                    silent => Err(Failure::new(format!("{silent} not answered for"))),
                },
                Bench::Databases(options) => match cellar_bench::databases::run(&options)? {
                    0 => Ok(()),
                    failed => Err(Failure::new(format!("{failed} calls failed"))),
                },
                Bench::MakeDatabases(options) => Ok(cellar_bench::make_databases::run(&options)?),
                Bench::MakeCatalogue(options) => Ok(cellar_bench::make_catalogue::run(&options)?),
                Bench::FirstLookup(options) => match cellar_bench::databases::first::run(&options)?
                {
                    0 => Ok(()),
                    silent => Err(Failure::new(format!("{silent} calls were not answered"))),
                },
                Bench::Recalls(options) => match cellar_bench::recalls::run(&options)? {
                    0 => Ok(()),
                    failed => Err(Failure::new(format!("{failed} files failed"))),
                },
                Bench::Archives(options) => Ok(cellar_bench::archives::run(&options)?),
                Bench::Objects(options) => Ok(cellar_bench::objects::run(&options)?),
            },
        }
    }
}

fn main() -> ExitCode {
    let line = match own_line() {
        Ok(line) => line,
        Err(failure) => return failure.report("cellar"),
    };
    let given = Cli::command().get_matches_from(line);
    let cli = parsed(&given);
    let name = cli.command.name();
    let cli = match with_settings(cli, &given) {
        Ok(cli) => cli,
        Err(failure) => return failure.report(&name),
    };
    log::start(cli.log_format, cli.log.as_deref(), usual_log(&cli.command));
    panics::log_in_one_line();
    allow_descriptors();
    match cli.command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(&name),
    }
}

/// The command line of this process, in the form that is parsed.
fn own_line() -> Outcome<Vec<OsString>> {
    let line = links::words(std::env::args_os().collect())?;
    Ok(command_line::options_last(line))
}

fn parsed(given: &ArgMatches) -> Cli {
    Cli::from_arg_matches(given).unwrap_or_else(|error| error.exit())
}

/// The command line of a daemon, with the options that belong to every command.
fn command_of(daemon: Daemon) -> clap::Command {
    let mut all = Cli::command();
    all.build();
    let found = all.find_subcommand(daemon.word()).cloned();
    found.unwrap_or_else(|| clap::Command::new(daemon.word()))
}

/// The daemon of a command line.
fn daemon_of(command: &Command) -> Option<Daemon> {
    match command {
        Command::Up(_) => Some(Daemon::Up),
        Command::Serve(_) => Some(Daemon::Serve),
        _ => None,
    }
}

/// The command line of a daemon behind the words of its other sources, and the options to keep.
fn full_line(
    daemon: Daemon,
    given: &ArgMatches,
    phase: daemon::Phase,
) -> Outcome<(Vec<OsString>, LastStart)> {
    let mut line = own_line()?;
    let Some(given) = given.subcommand_matches(daemon.word()) else {
        return Ok((line, LastStart::default()));
    };
    let (words, last_start) = daemon::words(daemon, &command_of(daemon), given, phase)?;
    let command = line.iter().position(|word| word == daemon.word());
    let behind = command.map_or(line.len(), |at| at + 1);
    line.splice(behind..behind, words);
    Ok((line, last_start))
}

/// If the command is a daemon, parses the command line again, behind the words of its other
/// sources.
fn with_settings(cli: Cli, given: &ArgMatches) -> Outcome<Cli> {
    let Some(daemon) = daemon_of(&cli.command) else {
        return Ok(cli);
    };
    let (line, last_start) = full_line(daemon, given, daemon::Phase::Start)?;
    let mut cli = parsed(&Cli::command().get_matches_from(line));
    match &mut cli.command {
        Command::Up(options) => options.last_start = last_start,
        Command::Serve(options) => options.daemon.last_start = last_start,
        _ => {}
    }
    Ok(cli)
}

/// The value of each key of the running daemon, read again from all sources.
///
/// # Errors
/// A file is wrong; or the command has no configuration.
fn values_of_keys() -> Outcome<BTreeMap<String, serde_json::Value>> {
    let given = Cli::command().try_get_matches_from(own_line()?);
    let given = given.map_err(Failure::usage)?;
    let cli = Cli::from_arg_matches(&given).map_err(Failure::usage)?;
    let Some(daemon) = daemon_of(&cli.command) else {
        return Ok(BTreeMap::new());
    };
    let (line, _) = full_line(daemon, &given, daemon::Phase::Reload)?;
    let all = Cli::command().try_get_matches_from(line);
    let all = all.map_err(Failure::usage)?;
    let command = command_of(daemon);
    let values = all.subcommand_matches(daemon.word()).map(|all| {
        let keys = settings::keys(&command);
        let value = |key: &clap::Arg| {
            let name = key.get_long().unwrap_or_default();
            (name.to_owned(), config::value_of(key, all))
        };
        keys.map(value).collect()
    });
    Ok(values.unwrap_or_default())
}

/// Raises the limit of open descriptors to the most that the system allows. The usual 1,024 are
/// meant for programs that use select(2).
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(cause) = setrlimit(Resource::Nofile, most) {
        tracing::debug!(%cause, "cannot raise the limit of open descriptors");
    }
}

/// The filter of a command's log, if none is named.
fn usual_log(command: &Command) -> &'static str {
    match command {
        Command::Up(_) | Command::Serve(_) | Command::StandIn(_) => "info",
        Command::Osd(words) if osd_serve::is_server_command(&words.words) => "info",
        Command::Console(options) if options.is_server() => "info,cellar_rpc::socket=error",
        Command::Rxperf(_) | Command::Bench(_) => "warn",
        // One line for each lost and regained server.
        Command::Mount(_) => "warn,cellar_client::reach=info,cellar_rpc::socket=error",
        // Every user except root has small socket buffers; a warning would tell the user nothing.
        _ => "warn,cellar_rpc::socket=error",
    }
}

/// How long a finished command waits for threads that still read or write. A pipe may block
/// forever.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// Runs a command's future on this thread. The network has threads of its own.
fn block_on(command: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(command);
    runtime.shutdown_timeout(LAST_WAIT);
    outcome
}
