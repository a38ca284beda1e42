//! `cellar umount`: ends mounts by `cellar mount`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{Failure, Failures, Outcome};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cellar umount /afs
  cellar umount --all")]
pub(crate) struct Options {
    /// The directories of mounts.
    #[arg(value_name = "DIR", required_unless_present = "all")]
    directories: Vec<PathBuf>,
    /// End all mounts that you may end.
    #[arg(short, long, conflicts_with = "directories")]
    all: bool,
    /// Detach the mount now, and end it when no program uses it any more.
    #[arg(short, long)]
    lazy: bool,
}

pub(crate) fn run(options: Options) -> Outcome {
    let known = cellar_fuse::mount_points()?;
    let directories = match options.all {
        true => known.clone(),
        false => options.directories,
    };
    let mut failures = Failures::of("cellar umount");
    for directory in &directories {
        failures.note(umount(directory, &known, options.lazy));
    }
    failures.end()
}

fn umount(directory: &Path, known: &[PathBuf], lazy: bool) -> Outcome {
    // The path is not resolved: a mount whose server is silent would not answer.
    let place = std::path::absolute(directory)?;
    let shown = directory.display();
    if !known.contains(&place) {
        let real = place.canonicalize().ok();
        if real.is_none_or(|real| !known.contains(&real)) {
            return Err(Failure::new(format!(
                "{shown}: not a mount by 'cellar mount'; 'findmnt -t fuse.cellar' lists those"
            )));
        }
    }
    let mut command = match rustix::process::geteuid().is_root() {
        true => Command::new("umount"),
        false => {
            let mut command = Command::new("fusermount3");
            command.arg("-u");
            command
        }
    };
    if lazy {
        command.arg(match rustix::process::geteuid().is_root() {
            true => "-l",
            false => "-z",
        });
    }
    let done = command.arg("--").arg(&place).output();
    let done = done.map_err(|cause| Failure::new(format!("{shown}: {cause}")))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    let hint = match said.contains("busy") {
        true => {
            ". Programs use it: 'fuser -vm' lists them; --lazy detaches it and ends it after them"
        }
        false => "",
    };
    Err(Failure::new(format!("{said}{hint}")))
}
