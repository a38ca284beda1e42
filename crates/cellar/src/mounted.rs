//! Mounts of ours on this machine, seen from a command: found by a path in them, asked and told through extended
//! attributes ([`cellar_fuse::control`]).

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use cellar_client::{Cell, mounted};
use cellar_fuse::control;

use crate::failure::{Failure, Outcome};

/// A path in a mount.
#[derive(Clone, Debug)]
pub(crate) struct Mounted {
    path: PathBuf,
}

/// What a mount says of itself: a word, and the rest of its line.
pub(crate) type Status = BTreeMap<String, String>;

impl Mounted {
    /// If the path is in one.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        mounted::attribute(path, control::STATUS).ok()?;
        Some(Self {
            path: path.to_owned(),
        })
    }

    /// The one that is meant: named by a path in it, or where this command is run, or the only one.
    pub(crate) fn meant(named: Option<&str>) -> Outcome<Self> {
        if let Some(named) = named {
            return Self::at(Path::new(named))
                .ok_or_else(|| Failure::new(format!("{named}: not in a mount by 'cellar mount'")));
        }
        if let Some(here) = Self::at(Path::new(".")) {
            return Ok(here);
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        let all: Vec<_> = mount_points(&mounts)
            .filter_map(|path| Self::at(&path))
            .collect();
        match &all[..] {
            [only] => Ok(only.clone()),
            [] => Err(Failure::new(
                "nothing is mounted here that you may use: 'cellar mount DIR' does that",
            )),
            _ => {
                let names: Vec<_> = all
                    .iter()
                    .map(|one| one.path.display().to_string())
                    .collect();
                Err(Failure::new(format!(
                    "which mount? -at names one: {}",
                    names.join(", ")
                )))
            }
        }
    }

    pub(crate) fn get(&self, name: &str) -> Outcome<String> {
        mounted::attribute(&self.path, name).map_err(|cause| self.failure(&cause))
    }

    pub(crate) fn set(&self, name: &str, value: &str) -> std::io::Result<()> {
        let flags = rustix::fs::XattrFlags::empty();
        Ok(rustix::fs::setxattr(
            &self.path,
            name,
            value.as_bytes(),
            flags,
        )?)
    }

    /// The same, for what the whole mount does.
    pub(crate) fn manage(&self, name: &str, value: &str) -> Outcome {
        self.set(name, value).map_err(|cause| self.failure(&cause))
    }

    pub(crate) fn failure(&self, cause: &Error) -> Failure {
        let path = self.path.display();
        if cause.kind() != ErrorKind::PermissionDenied || cause.raw_os_error() != Some(1) {
            return Failure::new(format!("{path}: {cause}"));
        }
        let owner = self.status().ok();
        let owner = owner.and_then(|status| status.get("owner").cloned());
        match owner.as_deref() {
            None | Some("0") => Failure::new("Permission denied: requires root access."),
            Some(uid) => Failure::new(format!(
                "Permission denied: only root and user {uid}, who mounted it, may do this."
            )),
        }
    }

    pub(crate) fn status(&self) -> Outcome<Status> {
        let text = self.get(control::STATUS)?;
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        Ok(lines
            .map(|(word, rest)| (word.to_owned(), rest.to_owned()))
            .collect())
    }

    /// All lines of what is told in pages.
    pub(crate) fn lines(&self, name: &str) -> Outcome<Vec<String>> {
        let mut all = Vec::new();
        for page in 0.. {
            let text = self.get(&format!("{name}{page}"))?;
            if text.is_empty() {
                break;
            }
            all.extend(text.lines().map(str::to_owned));
        }
        Ok(all)
    }

    pub(crate) fn cells(&self) -> Outcome<Vec<Cell>> {
        let lines = self.lines(control::CELLS)?;
        Ok(lines
            .iter()
            .filter_map(|line| Cell::parse_line(line))
            .collect())
    }
}

/// The cell of what a path leads to, if that is in a mount of ours.
pub(crate) fn cell_of(path: &str) -> Option<Cell> {
    Cell::parse_line(&mounted::attribute(Path::new(path), control::CELL).ok()?)
}

/// Where something of ours is mounted. Source: proc(5).
fn mount_points(mountinfo: &str) -> impl Iterator<Item = PathBuf> {
    let ours = |line: &&str| {
        let (_, behind) = line.split_once(" - ").unwrap_or_default();
        behind.starts_with("fuse.afs cellar ")
    };
    let lines = mountinfo.lines().filter(ours);
    lines.filter_map(|line| Some(unescaped(line.split(' ').nth(4)?)))
}

/// Blanks and the like are octal numbers there.
fn unescaped(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        let number = more.get(..3).filter(|_| *first == b'\\');
        let number = number.and_then(|digits| std::str::from_utf8(digits).ok());
        match number.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &more[3..];
            }
            None => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_among_others() {
        let text = "22 1 8:1 / / rw - ext4 /dev/root rw\n\
                    30 22 0:44 / /mnt/with\\040blank rw,nosuid - fuse.afs cellar rw,user_id=0\n\
                    31 22 0:45 / /other rw - fuse.afs AFS rw\n\
                    32 22 0:46 / /afs rw shared:3 - fuse.afs cellar rw\n";
        let found: Vec<_> = mount_points(text).collect();
        assert_eq!(found, [Path::new("/mnt/with blank"), Path::new("/afs")]);
        assert_eq!(unescaped("a\\"), Path::new("a\\"));
    }

    #[test]
    fn what_is_no_mount_says_so() {
        assert!(Mounted::at(Path::new("/proc")).is_none());
        assert!(cell_of("/proc").is_none());
        let failure = Mounted::meant(Some("/proc")).expect_err("no mount");
        assert!(failure.to_string().contains("not in a mount"));
    }
}
