//! The files of a server: owner, mode, room and kind of their filesystems.

use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cellar_admin::table::short_size;
use rustix::fs::statfs;

use super::{Finding, Server};
use crate::up::partitions;

const CHECK: &str = "directory";
const DISK: &str = "disk";

/// The used share of a filesystem, in percent, from which it counts as full.
const FULL_PERCENT: u64 = 90;

/// Filesystems that lose data in a power cut, or whose syncs and locks depend on another machine.
/// Source: linux/magic.h.
const UNSUITABLE: [(u32, &str); 5] = [
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
];

pub(super) fn check(server: &Server) -> Vec<Finding> {
    let directory = &server.directory;
    let mut findings = Vec::new();
    let owner = match fs::metadata(directory.path()) {
        Ok(about) => about.uid(),
        Err(cause) => {
            let text = format!("{}: {cause}", directory.path().display());
            return vec![Finding::error(CHECK, text)];
        }
    };
    // Others pass through the directory to client-etc.
    private(directory.path(), owner, 0o026, &mut findings);
    let mut own = vec![directory.server_etc(), directory.identity_file()];
    if server.identity.part.has_databases() {
        own.push(directory.databases());
        own.push(directory.database_file());
    }
    for path in &own {
        private(path, owner, 0o077, &mut findings);
    }
    let found = partitions::find(directory).unwrap_or_default();
    let used = server
        .identity
        .used
        .iter()
        .flat_map(|used| &used.partitions);
    for (id, _) in used {
        if !found.contains(id) {
            let path = directory.partition(*id);
            let text = format!("the partition {} is missing", path.display());
            let finding = Finding::error(DISK, text);
            findings.push(finding.mended_by(["mount".as_ref(), path.as_os_str()]));
        }
    }
    for id in found {
        let path = directory.partition(id);
        private(&path, owner, 0o077, &mut findings);
        findings.extend(disk(&path));
    }
    if server.identity.part.has_databases() {
        findings.extend(disk(&directory.databases()));
    }
    if findings.iter().all(|finding| finding.check != CHECK) {
        let text = format!(
            "owners and modes in {} are right",
            directory.path().display()
        );
        findings.push(Finding::ok(CHECK, text));
    }
    findings
}

/// Checks that a file or directory belongs to `owner`, and that others do not have the rights
/// `forbidden`.
pub(super) fn private(path: &Path, owner: u32, forbidden: u32, findings: &mut Vec<Finding>) {
    let shown = path.display();
    let about: Metadata = match fs::metadata(path) {
        Ok(about) => about,
        Err(cause) if cause.kind() == ErrorKind::NotFound => {
            findings.push(Finding::error(CHECK, format!("{shown} is missing")));
            return;
        }
        Err(cause) => {
            findings.push(Finding::error(CHECK, format!("{shown}: {cause}")));
            return;
        }
    };
    if about.uid() != owner {
        let text = format!("{shown} belongs to account {}, not {owner}", about.uid());
        let owner_word = owner.to_string();
        let words = ["chown".as_ref(), owner_word.as_ref(), path.as_os_str()];
        findings.push(Finding::error(CHECK, text).mended_by(words));
    }
    let mode = about.mode() & 0o7777;
    if mode & forbidden != 0 {
        let text = format!("{shown} has mode {mode:o}: other accounts can use it");
        let right = format!("{:o}", mode & !forbidden);
        let words = ["chmod".as_ref(), right.as_ref(), path.as_os_str()];
        findings.push(Finding::error(CHECK, text).mended_by(words));
    }
}

fn disk(path: &Path) -> Option<Finding> {
    let about = statfs(path).ok()?;
    let shown = path.display();
    let block = u64::try_from(about.f_bsize).ok()?;
    let (total, free) = (about.f_blocks * block, about.f_bavail * block);
    // The kernel's magic numbers have 32 bits.
    let kind = about.f_type as u32;
    if let Some((_, name)) = UNSUITABLE.iter().find(|(magic, _)| *magic == kind) {
        let text = format!("{shown} is on {name}, which does not keep acknowledged changes");
        return Some(Finding::warning(DISK, text));
    }
    let room = format!(
        "{shown} has {} free of {}",
        short_size(free),
        short_size(total)
    );
    if total > 0 && (total - free.min(total)) * 100 / total >= FULL_PERCENT {
        // The volumes with their sizes: the administrator chooses those that move.
        let room = format!("{room}; move volumes away, or enlarge the disk");
        return Some(Finding::warning(DISK, room).mended_by([
            "cellar",
            "vos",
            "listvol",
            "localhost",
        ]));
    }
    Some(Finding::ok(DISK, room))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_wrong_mode_has_the_command_that_mends_it() {
        let home = tempfile::tempdir().expect("tempdir");
        let file = home.path().join("key");
        let owner = fs::metadata(home.path()).expect("there").uid();
        let found = |owner| {
            let mut findings = Vec::new();
            private(&file, owner, 0o077, &mut findings);
            findings
        };
        assert!(found(owner)[0].text.ends_with("is missing"));
        fs::write(&file, "").expect("file");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("mode");
        let wrong = found(owner);
        let remedy = format!("chmod 600 {}", file.display());
        assert_eq!(wrong[0].remedy.as_deref(), Some(remedy.as_str()));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("mode");
        assert_eq!(found(owner), []);
        assert!(found(owner + 1)[0].text.contains("belongs to account"));
    }
}
