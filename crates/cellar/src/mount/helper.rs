//! `mount.cellar`: the helper of mount(8) for `mount -t cellar`, fstab and autofs.
//!
//! 1. The source is a cell, `CELL:VOLUME`, or `none` for this machine's cells.
//! 2. An option of `-o` is one of `cellar mount` without its dashes: `cache=/var/cache/cellar`.
//!    Options that only mount(8) and fstab read are left out.
//! 3. The helper starts the mount in the background. It ends when the mount is ready, or with the
//!    status of mount(8) for a failed mount.
//! 4. The mount leaves its caller when it is mounted, not before: automount(8) admits only its own
//!    process group to a directory that it mounts, and reads the helper's output to its end.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::failure::{Failure, Outcome};

/// The exit status of mount(8) for a failed mount.
const MOUNT_FAILED: u8 = 32;

/// Interval at which the helper checks whether the mount process has ended.
const LOOK_TIME: Duration = Duration::from_millis(100);

/// Options that say nothing to a mount: they are the defaults, or for mount(8), fstab and systemd.
const IGNORED: [&str; 18] = [
    "rw", "defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "_netdev",
    "nofail", "exec", "async", "nodev", "nosuid", "noatime", "relatime", "silent",
];

/// Options that a mount cannot keep.
const REFUSED: [&str; 5] = ["ro", "noexec", "dev", "sync", "remount"];

/// The command line that mount(8) gives to a helper.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mount -t cellar demo.cell /afs -o server=192.0.2.1,cache=/var/cache/cellar
  mount -t cellar none /afs                             this machine's cell, and those of CellServDB
  mount -t cellar demo.cell:user.ann /home/ann          one volume
fstab: demo.cell  /afs  cellar  server=192.0.2.1,_netdev  0  0
autofs: ann  -fstype=cellar,server=192.0.2.1  :demo.cell\\:user.ann")]
pub(crate) struct Options {
    /// A cell, CELL:VOLUME, or 'none'.
    source: String,
    /// The directory to mount on.
    directory: PathBuf,
    /// Options of 'cellar mount', without dashes and separated by commas.
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Do everything except the mount.
    #[arg(short = 'f')]
    fake: bool,
    /// Print the command.
    #[arg(short = 'v')]
    verbose: bool,
    /// Accepted, without effect.
    #[arg(short = 's')]
    sloppy: bool,
    /// Accepted, without effect.
    #[arg(short = 'n')]
    no_mtab: bool,
    /// The type; only 'cellar'.
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
}

/// The words of `cellar mount` for a request of mount(8).
fn words(options: &Options) -> Outcome<Vec<OsString>> {
    let mut words: Vec<OsString> = vec!["mount".into(), options.directory.clone().into()];
    match options.source.split_once(':') {
        Some((cell, volume)) if !volume.is_empty() => {
            words.push(format!("--cell={cell}").into());
            words.push(format!("--root-volume={volume}").into());
        }
        _ if matches!(options.source.as_str(), "none" | "cellar" | "afs" | "AFS") => {}
        _ => words.push(format!("--cell={}", options.source).into()),
    }
    let all = options.options.iter().flat_map(|list| list.split(','));
    for option in all.filter(|option| !option.is_empty()) {
        let name = option.split_once('=').map_or(option, |(name, _)| name);
        if IGNORED.contains(&name) || name.starts_with("x-") || name == "comment" {
            continue;
        }
        if REFUSED.contains(&name) {
            let reason = format!("-o {name} is not supported by 'cellar mount'");
            return Err(Failure::usage(reason).coded(MOUNT_FAILED));
        }
        words.push(format!("--{option}").into());
    }
    Ok(words)
}

/// Tells a mount that this helper has started it.
const STARTED_BY_HELPER: &str = "CELLAR_MOUNT_HELPER";

/// Leaves the caller of the helper, if this process is a mount that the helper has started: its
/// process group, so that a signal to the terminal's programs does not reach the mount, and a pipe
/// for messages. Later messages of a mount with a pipe are lost.
///
/// # Errors
/// Those of the system.
pub(crate) fn leave_caller() -> std::io::Result<()> {
    if std::env::var_os(STARTED_BY_HELPER).is_none() {
        return Ok(());
    }
    rustix::process::setpgid(None, None)?;
    let kind = rustix::fs::fstat(rustix::stdio::stderr())?.st_mode;
    if rustix::fs::FileType::from_raw_mode(kind) != rustix::fs::FileType::Fifo {
        return Ok(());
    }
    let nowhere = std::fs::File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stderr(nowhere)?;
    Ok(())
}

/// Mounts in the background.
pub(crate) fn run(options: &Options) -> Outcome {
    let words = words(options)?;
    if options.verbose {
        let shown: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        crate::output::errln!("cellar {}", shown.join(" "));
    }
    if options.fake {
        return Ok(());
    }
    let ready = Ready::new()?;
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(words)
        .env("NOTIFY_SOCKET", ready.path())
        .env(STARTED_BY_HELPER, "1")
        .env_remove("WATCHDOG_USEC")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let mut mount = command.spawn()?;
    loop {
        if ready.is_reported()? {
            return Ok(());
        }
        if let Some(status) = mount.try_wait()? {
            // It has printed the reason.
            tracing::debug!(%status, "the mount has ended");
            return Err(Failure::ended(MOUNT_FAILED));
        }
    }
}

/// A socket on which the mount reports that it is ready, as it does to systemd.
struct Ready {
    directory: PathBuf,
    socket: UnixDatagram,
}

impl Ready {
    fn new() -> Outcome<Self> {
        let name = format!("cellar-mount-{}", uuid::Uuid::new_v4().simple());
        let directory = std::env::temp_dir().join(name);
        cellar_private::directory(&directory)?;
        let socket = UnixDatagram::bind(directory.join("ready"))?;
        socket.set_read_timeout(Some(LOOK_TIME))?;
        Ok(Self { directory, socket })
    }

    fn path(&self) -> PathBuf {
        self.directory.join("ready")
    }

    /// Waits a moment for the report.
    fn is_reported(&self) -> Outcome<bool> {
        let mut text = [0; 512];
        match self.socket.recv(&mut text) {
            Ok(length) => {
                let text = String::from_utf8_lossy(&text[..length]);
                Ok(text.lines().any(|line| line == "READY=1"))
            }
            Err(cause) if matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Ok(false)
            }
            Err(cause) => Err(cause.into()),
        }
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        // A temporary directory: nothing depends on its removal.
        let _left = std::fs::remove_dir_all(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(source: &str, options: &[&str]) -> Outcome<String> {
        let words = words(&Options {
            source: source.to_owned(),
            directory: "/afs".into(),
            options: options.iter().map(|&text| text.to_owned()).collect(),
            fake: false,
            verbose: false,
            sloppy: false,
            no_mtab: false,
            kind: None,
        })?;
        let words = words.into_iter().map(|w| w.into_string().expect("text"));
        Ok(words.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn options_of_mount_become_those_of_cellar_mount() {
        for (source, options, wanted) in [
            ("none", &[][..], "mount /afs"),
            (
                "a.b",
                &["rw,_netdev,x-systemd.automount"],
                "mount /afs --cell=a.b",
            ),
            (
                "a.b:user.ann",
                &["server=192.0.2.1,suid", "cache=/c"],
                "mount /afs --cell=a.b --root-volume=user.ann --server=192.0.2.1 --suid --cache=/c",
            ),
        ] {
            assert_eq!(of(source, options).expect("words"), wanted);
        }
        for refused in ["ro", "rw,noexec"] {
            assert!(of("none", &[refused]).is_err(), "{refused}");
        }
    }
}
