//! `cellar mount`: makes AFS a directory of this machine.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cellar_cachemanager::{Cache, Identities, Leases, Root, SIZE_MIN};
use cellar_fuse::Mount;
use cellar_fuse::control::STORE_BEHIND_MAX;
use cellar_rpc::{Runtime, RuntimeConfig};
use futures_util::future::BoxFuture;

mod helper;
mod server_names;
mod tokens;
mod watch;

use crate::failure::{Failure, Outcome};
use crate::files::now;
use crate::metrics::snapshot::Snapshot;
use crate::metrics::{MetricsOptions, Pages, process};
use crate::quantities;
use crate::service_manager::Announced;
use crate::session::{CellOptions, cell_aliases};
use crate::stop_signals::MountSignals;
use tokens::Tokens;

pub(crate) use helper::{Options as HelperOptions, run as help};

/// Default number of remembered statuses: about 100 MB.
const VNODES_MAX: u32 = 100_000;
const VNODES_MIN: i64 = 1_000;
/// Default sizes of the cache: in memory, and on disk.
const MEMORY_BYTES: u64 = 256 << 20;
const DISK_BYTES: u64 = 2 << 30;
/// Threads for requests that wait for a server.
const WORKERS_MAX: usize = 4;
/// Interval at which the process checks whether it was unmounted.
const LOOK_TIME: Duration = Duration::from_millis(100);
/// Number of checks whether the mount of an ended process is dead: the kernel ends the process
/// first.
const GUARD_TRIES: u32 = 600;
/// How long unstored data is retried when the mount ends.
const CLOSE_TIME: Duration = Duration::from_secs(120);

/// `cellar mount`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cellar mount /afs                                     this machine's cell, and the cells of CellServDB
  cellar mount /mnt --cell demo.cell --server 192.0.2.1 one cell, by the address of a database server
  cellar mount /mnt --root-volume user.ann              one volume of the cell
  cellar mount /afs --cache /var/cache/cellar --cache-size 20G
docs/operating/mounting.md describes mounts in detail.")]
pub(crate) struct Options {
    /// The directory to mount on. Cells appear as DIR/CELL.
    directory: PathBuf,
    #[command(flatten)]
    cell: CellOptions,
    /// Mount only this volume of the cell, by name or number.
    #[arg(long, value_name = "VOLUME")]
    root_volume: Option<String>,
    /// Keep the cache in this directory, for this mount only; the next mount continues with it.
    /// Default: in memory.
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Size of the cache: bytes, or a number with K, M, G or T. Default: 256M in memory, 2G in a
    /// directory.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    cache_size: Option<u64>,
    /// Number of files and directories whose status is remembered. Beyond it the least recently
    /// used are forgotten, by the kernel too; before Linux 6.18 directories that the kernel holds
    /// stay.
    #[arg(long, value_name = "NUMBER", default_value_t = VNODES_MAX, value_parser = clap::value_parser!(u32).range(VNODES_MIN..))]
    stat: u32,
    /// Time without an answer from a server after which programs receive ETIMEDOUT.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = quantities::seconds_within(6..=3600))]
    timeout: u64,
    /// Interval of packets to idle file servers that may call back, so that a NAT on the path keeps
    /// its mapping; 0: never.
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = quantities::seconds_within(0..=3600))]
    nat_ping: u64,
    /// Unstored data in KiB that a file may have when close(2) returns, like 'cellar fs storebehind
    /// -allfiles'.
    #[arg(long, value_name = "KIB", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=STORE_BEHIND_MAX))]
    store_behind: u64,
    /// Create new files locally in a directory that the server leases to this machine. 'files': the
    /// server learns of each file when it is closed. 'none': every create is a call to the server.
    /// Leases begin in directories in which many files are created.
    #[arg(long, value_name = "WHAT", default_value = "files", num_args = 0..=1, require_equals = true, default_missing_value = "", value_parser = parse_leases)]
    leases: Leases,
    /// An option of earlier versions.
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "", value_parser = no_io_uring)]
    io_uring: Option<()>,
    /// A meaning of @sys; may be given several times.
    #[arg(long, value_name = "NAME", default_values_t = default_sysnames())]
    sysname: Vec<String>,
    #[command(flatten)]
    metrics: MetricsOptions,
    /// Give access only to programs of the mounting user. Default: to every user if root mounts.
    #[arg(long)]
    only_me: bool,
    /// Honour set-user-id bits of programs in the mount.
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

/// Refuses an option that no longer exists.
fn no_io_uring(_when: &str) -> Result<(), String> {
    let text = "io_uring is no longer used, and the option is gone: leave it out";
    Err(text.to_owned())
}

fn parse_size(text: &str) -> Result<u64, String> {
    let size = quantities::size(text)
        .ok_or_else(|| format!("'{text}' is not a size: write for example 500M or 20G"))?;
    if size < SIZE_MIN {
        return Err(format!("a cache needs at least {}M", SIZE_MIN >> 20));
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
        _ => Err("write 'files' or 'none'"),
    }
}

/// Runs the mount until it is unmounted or interrupted.
pub(crate) fn run(options: Options) -> Outcome {
    if options.cell.admin || options.cell.identity.localauth {
        return Err(Failure::usage(
            "a mount acts for each user with the user's own tokens: --admin and --localauth are for commands",
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
    let metrics = options.metrics.listen()?;
    let cells = options.cell.known_cells().await?;
    if cells.is_empty() {
        return Err(Failure::new(
            "no cell is known: there is no ./cell-data here and no CellServDB. Name one: --cell NAME \
             --server ADDRESS",
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
        true => Arc::new(cellar_cachemanager::Anonymous),
        false => {
            let home = cells[0].name.clone();
            Arc::new(Tokens::of(me.as_raw(), home, identity.level().into()).await)
        }
    };
    let kept_in = options.cache.clone();
    let port = network.client_port()?;
    let cache = Cache::new(
        port.clone(),
        cellar_cachemanager::Options {
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
    server_names::learn(cache.reach(), dns.is_some())?;
    if let Some(dns) = dns {
        cache.discover(dns);
    }
    cache.alias(cell_aliases());
    cache
        .management()
        .set_store_behind(options.store_behind << 10);
    let user = cache.user(me.as_raw()).await?;
    let root = cache.names().root(&user).await?;
    if let Some(root) = &root {
        cache.reads().attributes(&user, root).await?;
    }
    // Store what an earlier mount left unstored before programs start to write. A silent server is
    // not waited for twice.
    let _late = tokio::time::timeout(patience * 2, cache.write_back().recover()).await;
    if let Some(directory) = &kept_in {
        tell_of_leftovers(directory);
    }
    let metrics = metrics
        .map(|place| place.serve(Arc::new(MountPages(cache.clone()))))
        .transpose()?;
    let keeper = tokio::spawn(cache.clone().keep());
    let how = cellar_fuse::Options {
        all_users,
        threads: 2,
        suid: options.suid,
    };
    let directory = options.directory;
    let signals = MountSignals::listen()?;
    let mount = Mount::new(cache.clone(), root, &directory, &how)
        .map_err(|cause| cannot_mount(&directory, &cause))?;
    // The guard is a process, and keeps what it inherits.
    helper::leave_caller()?;
    let guard = Guard::start(&directory);
    crate::output::print(format_args!(
        "{} is mounted; Ctrl-C or umount ends the mount\n",
        directory.display()
    ));
    let announced = Announced::ready(vec![port]);
    wait(&mount, signals).await;
    announced.stopping();
    keeper.abort();
    if let Err(cause) = mount.unmount() {
        say(format_args!("{}: {cause}", directory.display()));
    }
    let outcome = close(&cache, kept_in.as_deref()).await;
    drop((guard, metrics));
    network.shutdown();
    outcome
}

/// The metrics of a mount.
struct MountPages(Arc<Cache>);

impl Pages for MountPages {
    fn metrics(&self) -> BoxFuture<'_, Option<String>> {
        let mut snapshot = Snapshot::default();
        process::add(&mut snapshot);
        let process = snapshot.text().ok();
        Box::pin(async { process.map(|text| text + &self.0.metrics()) })
    }

    /// A mount serves in any case; a lost server concerns only its own files.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A process that removes the mount when this process is gone for any reason.
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
                // Ctrl-C must not reach this process.
                .process_group(0)
                .spawn()
        });
        if let Err(cause) = &started {
            tracing::warn!(%cause, "cannot start the guard process; the mount stays if this process dies");
        }
        Self(started.ok())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // It has nothing left to do. Killing it closes the pipe.
            let _gone = child.kill();
            let _status = child.wait();
        }
    }
}

/// `cellar mount-guard`: the process that [`Guard`] starts.
#[derive(Debug, clap::Args)]
pub(crate) struct GuardOptions {
    /// The mount point.
    directory: PathBuf,
}

/// Waits until the parent process has ended, and removes its mount if that is dead.
pub(crate) fn guard(options: &GuardOptions) -> Outcome {
    let mut nothing = [0; 1];
    // The kernel closes the other end of the pipe.
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
        ". This user may not open /dev/fuse. Usually every user may: 'chmod 666 /dev/fuse'"
    } else if cause.kind() == std::io::ErrorKind::PermissionDenied {
        ". A user other than root needs fusermount3 (package fuse3), and must own the directory"
    } else {
        ""
    };
    Failure::new(format!("{}: {cause}{hint}", directory.display()))
}

fn may_open_device() -> bool {
    let mut options = std::fs::File::options();
    options.read(true).write(true).open("/dev/fuse").is_ok()
}

/// Waits until a signal comes or the directory is unmounted.
async fn wait(mount: &Mount, mut signals: MountSignals) {
    loop {
        tokio::select! {
            () = signals.next() => return,
            () = tokio::time::sleep(LOOK_TIME) => {}
        }
        if mount.has_ended() {
            return;
        }
    }
}

/// Prints a line at the end of the mount. The terminal may be gone; a panic of `eprintln!` would
/// then lose data that is not stored yet.
fn say(text: std::fmt::Arguments<'_>) {
    let _unread = writeln!(std::io::stderr(), "cellar mount: {text}");
}

/// Reports data in the cache that the server does not have.
fn tell_of_leftovers(directory: &Path) {
    let Ok((unstored, aside)) = cellar_cachemanager::unstored_in(directory) else {
        return;
    };
    for (count, what) in [
        (unstored.len(), "not stored yet"),
        (aside.len(), "put aside, because they cannot be stored"),
    ] {
        if count > 0 {
            eprintln!(
                "cellar mount: changes of {count} files are {what}: cellar fs listunstored {}",
                directory.display()
            );
        }
    }
}

/// Stores the remaining data, and reports what could not be stored.
async fn close(cache: &Cache, directory: Option<&Path>) -> Outcome {
    let kept = directory.map_or(String::new(), |directory| {
        format!(
            "; the next mount with --cache {} retries",
            directory.display()
        )
    });
    let Ok(failed) = tokio::time::timeout(CLOSE_TIME, cache.close()).await else {
        let count = cache.write_back().unstored().len();
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
