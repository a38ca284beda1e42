//! `cellar mount`: the name space of AFS as a directory of this machine.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cellar_client::cache::{self, Cache, Identities, Leases, Root, SIZE_MIN};
use cellar_fuse::Mount;
use cellar_fuse::control::STORE_BEHIND_MAX;
use cellar_rpc::{Runtime, RuntimeConfig};
use prometheus_client::registry::Registry;

mod tokens;
mod watch;

use crate::failure::{Failure, Outcome};
use crate::files::now;
use crate::metrics::{Metrics, Place};
use crate::quantities;
use crate::session::{CellOptions, cell_aliases};
use tokens::Tokens;

/// Statuses that are remembered when nobody says: about 100 MB.
const VNODES_MAX: u32 = 100_000;
const VNODES_MIN: i64 = 1_000;
/// Bytes kept when nobody says: in memory, and on disk.
const MEMORY_BYTES: u64 = 256 << 20;
const DISK_BYTES: u64 = 2 << 30;
/// Threads that answer requests which had to wait for a server.
const WORKERS_MAX: usize = 4;
/// How often it is looked whether somebody unmounted it.
const LOOK_TIME: Duration = Duration::from_millis(100);
/// How often it is looked whether the mount of a process that has ended is dead: the kernel ends the process first.
const GUARD_TRIES: u32 = 600;
/// How long what is not stored yet is tried to be stored at the end.
const CLOSE_TIME: Duration = Duration::from_secs(120);

/// `cellar mount`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cellar mount /afs                                     the cell here, and those of CellServDB
  cellar mount /mnt --cell demo.cell --server 192.0.2.1 another cell
  cellar mount /mnt --root-volume user.ann              one volume
  cellar mount /afs --cache /var/cache/cellar --cache-size 20G
docs/operating/mounting.md says more.")]
pub(crate) struct Options {
    /// Where; DIR/CELL/... is the name space.
    directory: PathBuf,
    #[command(flatten)]
    cell: CellOptions,
    /// Mount this volume of the cell alone, by name or number.
    #[arg(long, value_name = "VOLUME")]
    root_volume: Option<String>,
    /// Keep bytes in this directory, which is for this mount alone; the next mount goes on with them. Without, they
    /// are in memory.
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Bytes to keep: a number, or one with K, M, G or T. Default: 256M in memory, 2G in a directory.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    cache_size: Option<u64>,
    /// Files and directories of which the status is remembered. Beyond, what was not looked at for longest is forgotten, by
    /// the kernel too; directories that it has stay before Linux 6.18.
    #[arg(long, value_name = "NUMBER", default_value_t = VNODES_MAX, value_parser = clap::value_parser!(u32).range(VNODES_MIN..))]
    stat: u32,
    /// A server's silence after which programs are told ETIMEDOUT.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = quantities::seconds_within(6..=3600))]
    timeout: u64,
    /// Time after which something is sent to each file server that will call back, where nothing
    /// else was, so that a NAT
    /// on the way keeps its mapping; 0: never.
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = quantities::seconds_within(0..=3600))]
    nat_ping: u64,
    /// KiB of a file that may still have to be stored when close returns, as of 'cellar fs storebehind -allfiles'.
    #[arg(long, value_name = "KIB", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=STORE_BEHIND_MAX))]
    store_behind: u64,
    /// What is made without asking in a directory in which many files are made, and which the server leases to this machine: 'files',
    /// of each of which the server is told when the file is closed, or 'none'.
    #[arg(long, value_name = "WHAT", default_value = "files", num_args = 0..=1, require_equals = true, default_missing_value = "", value_parser = parse_leases)]
    leases: Leases,
    /// An option of earlier versions.
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "", value_parser = no_io_uring)]
    io_uring: Option<()>,
    /// What @sys stands for; may be given several times.
    #[arg(long, value_name = "NAME", default_values_t = default_sysnames())]
    sysname: Vec<String>,
    /// Tell figures by HTTP, for Prometheus: on a port of this machine, an address and port, or a socket's path.
    #[arg(long, value_name = "PLACE")]
    metrics: Option<Place>,
    /// For my own programs only. Default: for every user's, where root mounts.
    #[arg(long)]
    only_me: bool,
    /// Set-user-id programs in it take effect.
    #[arg(long)]
    suid: bool,
}

fn default_sysnames() -> Vec<String> {
    let name = match std::env::consts::ARCH {
        "aarch64" => "arm64_linux26",
        _ => "amd64_linux26",
    };
    vec![name.to_owned()]
}

/// Refuses an option that is gone.
fn no_io_uring(_when: &str) -> Result<(), String> {
    let text = "requests no longer come over io_uring, and the option is gone: leave it out";
    Err(text.to_owned())
}

fn parse_size(text: &str) -> Result<u64, String> {
    let size =
        quantities::size(text).ok_or_else(|| format!("'{text}' is not a size: 500M, 20G"))?;
    if size < SIZE_MIN {
        return Err(format!("at least {}M are needed", SIZE_MIN >> 20));
    }
    Ok(size)
}

fn parse_leases(text: &str) -> Result<Leases, &'static str> {
    match text {
        "files" => Ok(Leases::Files),
        "none" => Ok(Leases::None),
        "all" => Err(
            "--leases=all was removed: directories and links are made at the server; use --leases=files",
        ),
        "" => Err("--leases needs a value: --leases=files or --leases=none"),
        _ => Err("it is 'files' or 'none'"),
    }
}

/// Runs it until it is unmounted or interrupted.
pub(crate) fn run(options: Options) -> Outcome {
    if options.cell.admin || options.cell.identity.localauth {
        return Err(Failure::usage(
            "a mount acts for each user with his own tokens: --admin and --localauth are for commands",
        ));
    }
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers.min(WORKERS_MAX))
        .enable_all()
        .build()?
        .block_on(mounted(options))
}

async fn mounted(options: Options) -> Outcome {
    let cells = options.cell.known_cells().await?;
    if cells.is_empty() {
        return Err(Failure::new(
            "which cell? There is no ./cell-data here and no CellServDB: --cell NAME --server ADDRESS \
             names one",
        ));
    }
    let me = rustix::process::geteuid();
    let all_users = me.is_root() && !options.only_me;
    let patience = Duration::from_secs(options.timeout);
    let network = Runtime::start(RuntimeConfig {
        shards: 1,
        dead_time: patience,
        name: "rx-client".to_owned(),
        ..RuntimeConfig::default()
    })?;
    let size = match (options.cache_size, &options.cache) {
        (Some(size), _) => size,
        (None, Some(_)) => DISK_BYTES,
        (None, None) => MEMORY_BYTES,
    };
    let (identity, dns) = (options.cell.identity, options.cell.dns());
    let identities: Arc<dyn Identities> = match identity.noauth {
        true => Arc::new(cache::Anonymous),
        false => {
            let home = cells[0].name.clone();
            Arc::new(Tokens::of(me.as_raw(), home, identity.level().into()).await)
        }
    };
    let kept_in = options.cache.clone();
    let cache = Cache::new(
        network.client_port()?,
        cache::Options {
            cells,
            root: options.root_volume.map_or(Root::Cells, Root::Volume),
            directory: options.cache,
            size,
            vnodes_max: options.stat as usize,
            sysnames: options.sysname,
            patience,
            nat_ping: (options.nat_ping > 0).then(|| Duration::from_secs(options.nat_ping)),
            leases: options.leases,
        },
        identities,
        now,
    )?;
    if let Some(dns) = dns {
        cache.discover(dns);
    }
    cache.alias(cell_aliases());
    cache.set_store_behind(options.store_behind << 10);
    let user = cache.user(me.as_raw()).await?;
    let root = cache.root(&user).await?;
    if let Some(root) = &root {
        cache.attributes(&user, root).await?;
    }
    // What an earlier one did not store comes before what programs do now; a silent server is not waited for twice.
    let _late = tokio::time::timeout(patience * 2, cache.take_up()).await;
    if let Some(directory) = &kept_in {
        tell_of_leftovers(directory);
    }
    let metrics = match &options.metrics {
        Some(place) => {
            let mut registry = Registry::default();
            cache.register(&mut registry);
            Some(Metrics::start(place, registry).await?)
        }
        None => None,
    };
    let keeper = tokio::spawn(cache.clone().keep());
    let how = cellar_fuse::Options {
        all_users,
        threads: 2,
        suid: options.suid,
    };
    let directory = options.directory;
    let mount = Mount::new(cache.clone(), root, &directory, &how)
        .map_err(|cause| cannot_mount(&directory, &cause))?;
    let guard = Guard::start(&directory);
    crate::output::print(format_args!(
        "{} is mounted; Ctrl-C or umount ends it\n",
        directory.display()
    ));
    let ended = wait(&mount).await;
    keeper.abort();
    if let Err(cause) = mount.unmount() {
        say(format_args!("{}: {cause}", directory.display()));
    }
    let outcome = close(&cache, kept_in.as_deref()).await;
    drop((guard, metrics));
    network.shutdown();
    ended.and(outcome)
}

/// A process that takes the mount away when this one is gone, however it went.
struct Guard(Option<std::process::Child>);

impl Guard {
    fn start(directory: &Path) -> Self {
        use std::os::unix::process::CommandExt;
        use std::process::{Command, Stdio};
        let started = std::path::absolute(directory).and_then(|directory| {
            Command::new("/proc/self/exe")
                .arg("mount-guard")
                .arg(directory)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .current_dir("/")
                // Ctrl-C is not for it.
                .process_group(0)
                .spawn()
        });
        if let Err(cause) = &started {
            tracing::warn!(%cause, "nobody takes the mount away if this process dies");
        }
        Self(started.ok())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // It has nothing to do any more; the pipe ends with it.
            let _gone = child.kill();
            let _status = child.wait();
        }
    }
}

/// `cellar mount-guard`: what [`Guard`] starts.
#[derive(Debug, clap::Args)]
pub(crate) struct GuardOptions {
    /// What is mounted.
    directory: PathBuf,
}

/// Waits until whoever started it has ended, and takes his mount away if it is dead.
pub(crate) fn guard(options: &GuardOptions) -> Outcome {
    let mut nothing = [0; 1];
    // The other end is closed by the kernel.
    while std::io::Read::read(&mut std::io::stdin(), &mut nothing)? > 0 {}
    for _ in 0..GUARD_TRIES {
        if cellar_fuse::remove_dead(&options.directory)? {
            return Ok(());
        }
        std::thread::sleep(LOOK_TIME);
    }
    Ok(())
}

fn cannot_mount(directory: &Path, cause: &std::io::Error) -> Failure {
    let hint = if !Path::new("/dev/fuse").exists() {
        ". There is no /dev/fuse: 'modprobe fuse', or give the container that device"
    } else if cause.kind() == std::io::ErrorKind::PermissionDenied && !may_open_device() {
        ". This user may not open /dev/fuse, as everybody usually may: 'chmod 666 /dev/fuse'"
    } else if cause.kind() == std::io::ErrorKind::PermissionDenied {
        ". Who is not root needs fusermount3 (package fuse3), and must own the directory"
    } else {
        ""
    };
    Failure::new(format!("{}: {cause}{hint}", directory.display()))
}

fn may_open_device() -> bool {
    let mut options = std::fs::File::options();
    options.read(true).write(true).open("/dev/fuse").is_ok()
}

/// Until a signal comes, or somebody unmounts it.
async fn wait(mount: &Mount) -> Outcome {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = match ignores_hangup() {
        true => None,
        false => Some(signal(SignalKind::hangup())?),
    };
    loop {
        // Its terminal is closed.
        let hung_up = async {
            match &mut hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            _ = hung_up => return Ok(()),
            () = tokio::time::sleep(LOOK_TIME) => {}
        }
        if mount.has_ended() {
            return Ok(());
        }
    }
}

/// Whether whoever started this wants it to go on without his terminal, as `nohup` does.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    first_is_ignored(&status)
}

/// Whether the first signal, SIGHUP, is ignored. Source: proc_pid_status(5), `SigIgn`.
fn first_is_ignored(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 != 0)
}

/// Says something at the end: the terminal may be gone, and what is not stored yet must not go with it, as it would if
/// `eprintln!` panicked.
fn say(text: std::fmt::Arguments<'_>) {
    let _nobody_reads = writeln!(std::io::stderr(), "cellar mount: {text}");
}

/// Says what is kept that the server has not got.
fn tell_of_leftovers(directory: &Path) {
    let Ok((unstored, aside)) = cache::unstored_in(directory) else {
        return;
    };
    for (count, what) in [
        (unstored.len(), "not stored yet"),
        (aside.len(), "kept aside, because they cannot be stored"),
    ] {
        if count > 0 {
            eprintln!(
                "cellar mount: changes of {count} files are {what}: cellar fs listunstored {}",
                directory.display()
            );
        }
    }
}

/// Stores what is left, and says what could not be.
async fn close(cache: &Cache, directory: Option<&Path>) -> Outcome {
    let kept = directory.map_or(String::new(), |directory| {
        format!(
            "; the next mount with --cache {} tries again",
            directory.display()
        )
    });
    let Ok(failed) = tokio::time::timeout(CLOSE_TIME, cache.close()).await else {
        let count = cache.unstored().len();
        return Err(Failure::new(format!(
            "{count} files could not be stored in time{kept}"
        )));
    };
    for (vnode, error) in &failed {
        let volume = vnode.volume().full_name();
        say(format_args!(
            "not stored: {} in {volume}: {error}{kept}",
            vnode.fid()
        ));
    }
    Failure::if_any(!failed.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn the_option_of_io_uring_is_refused_with_a_sentence() {
        let parse = |arguments: &[&str]| {
            let line = ["mount", "/afs"].iter().chain(arguments).copied();
            <Line as clap::Parser>::try_parse_from(line)
        };
        assert_eq!(
            parse(&[]).expect("a mount").options.directory,
            Path::new("/afs")
        );
        for old in [
            &["--io-uring"][..],
            &["--io-uring", "auto"],
            &["--io-uring=never"],
        ] {
            let refused = parse(old).expect_err("an option that is gone");
            let said = refused.to_string();
            assert!(said.contains("the option is gone: leave it out"), "{said}");
        }
    }

    #[test]
    fn hangups_that_are_ignored() {
        for (mask, ignored) in [("0000000000001001", true), ("0000000000001000", false)] {
            let status = format!("SigBlk:\t0000000000000001\nSigIgn:\t{mask}\n");
            assert_eq!(first_is_ignored(&status), ignored, "{mask}");
        }
        assert!(!first_is_ignored(""));
    }

    #[test]
    fn leases_of_all_are_refused_with_a_sentence() {
        assert_eq!(parse_leases("files"), Ok(Leases::Files));
        assert_eq!(parse_leases("none"), Ok(Leases::None));
        for (text, said) in [
            ("all", "use --leases=files"),
            ("", "needs a value"),
            ("x", "'none'"),
        ] {
            let refusal = parse_leases(text).expect_err(text);
            assert!(refusal.contains(said), "{refusal}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("500M"), Ok(500 << 20));
        assert_eq!(parse_size("2GiB"), Ok(2 << 30));
        assert_eq!(parse_size("1t"), Ok(1 << 40));
        assert_eq!(parse_size("104857600"), Ok(100 << 20));
        for wrong in ["", "G", "-1G", "1M", "99999999999999T", "ten"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
