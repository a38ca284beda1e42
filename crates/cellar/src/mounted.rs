//! The mounts by `cellar mount` on this machine, as commands use them. A command finds a mount by a
//! path in it, and reads and sets its extended attributes ([`cellar_fuse::control`]).

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

/// The status of a mount: words, each with the rest of its line.
pub(crate) type Status = BTreeMap<String, String>;

/// Notifies the mounts on this machine that the calling user has other tokens now. A mount that
/// this user may not read, or of an older version, notices the change itself within seconds.
pub(crate) fn tokens_changed() {
    for path in cellar_fuse::mount_points().unwrap_or_default() {
        let _noticed_later = Mounted { path }.set(control::TOKENS, "");
    }
}

impl Mounted {
    /// The mount that a path is in, if any.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        mounted::attribute(path, control::STATUS).ok()?;
        Some(Self {
            path: path.to_owned(),
        })
    }

    /// The mount to use: the one that a path names, otherwise that of the current directory,
    /// otherwise the only one.
    pub(crate) fn meant(named: Option<&str>) -> Outcome<Self> {
        if let Some(named) = named {
            return Self::at(Path::new(named))
                .ok_or_else(|| Failure::new(format!("{named}: not in a mount by 'cellar mount'")));
        }
        if let Some(here) = Self::at(Path::new(".")) {
            return Ok(here);
        }
        let all: Vec<_> = cellar_fuse::mount_points()?
            .into_iter()
            .filter_map(|path| Self::at(&path))
            .collect();
        match &all[..] {
            [only] => Ok(only.clone()),
            [] => Err(Failure::new(
                "there is no mount that you may use: 'cellar mount DIR' makes one",
            )),
            _ => {
                let names: Vec<_> = all
                    .iter()
                    .map(|one| one.path.display().to_string())
                    .collect();
                Err(Failure::new(format!(
                    "there are several mounts; choose one with -at: {}",
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

    /// Like [`Self::set`], for settings of the whole mount.
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
                "Permission denied: only root and the mounting user {uid} may do this."
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

    /// All lines of an attribute that is read in pages.
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

/// The cell of the file that a path leads to, if it is in a mount by `cellar mount`.
pub(crate) fn cell_of(path: &str) -> Option<Cell> {
    Cell::parse_line(&mounted::attribute(Path::new(path), control::CELL).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_outside_a_mount_says_so() {
        assert!(Mounted::at(Path::new("/proc")).is_none());
        assert!(cell_of("/proc").is_none());
        let failure = Mounted::meant(Some("/proc")).expect_err("no mount");
        assert!(failure.to_string().contains("not in a mount"));
    }
}
