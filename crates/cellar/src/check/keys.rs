//! The keys of a server.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;

use cellar_auth::{Authority, Enctype};

use super::{Finding, Server, directory};

const CHECK: &str = "keys";

pub(super) fn check(server: &Server) -> Vec<Finding> {
    let etc = server.directory.server_etc();
    let dir = server.directory.path().as_os_str();
    let mut findings = Vec::new();
    let owner = fs::metadata(server.directory.path()).map_or(0, |about| about.uid());
    let files = ["KeyFileExt", "rxkad.keytab"];
    let present: Vec<_> = files
        .iter()
        .map(|name| etc.join(name))
        .filter(|path| path.exists())
        .collect();
    for path in &present {
        directory::private(path, owner, 0o077, &mut findings);
    }
    let import = ["cellar", "key", "import-keytab", "--dir"].map(OsStr::new);
    let import = import.into_iter().chain([dir, "afs.keytab".as_ref()]);
    if present.is_empty() {
        let text = format!("{} has no keys", etc.display());
        findings.push(Finding::error(CHECK, text).mended_by(import));
        return findings;
    }
    let cell = server.identity.cell.name.as_str();
    let keys = match Authority::open(&etc, cell) {
        Ok(authority) => authority.keys().list(),
        Err(cause) => {
            findings.push(Finding::error(CHECK, cause.to_string()));
            return findings;
        }
    };
    let Some(newest) = keys.last().map(|key| key.kvno) else {
        let text = format!("{} has no usable key", etc.display());
        findings.push(Finding::error(CHECK, text).mended_by(import));
        return findings;
    };
    let of_newest = keys.iter().filter(|key| key.kvno == newest);
    let types: Vec<_> = of_newest.clone().map(|key| key.enctype.name()).collect();
    let text = format!("the newest key has version {newest}: {}", types.join(", "));
    findings.push(
        if of_newest.clone().all(|key| key.enctype == Enctype::Arcfour) {
            Finding::warning(CHECK, format!("{text}, which is weak")).mended_by(import.clone())
        } else {
            Finding::ok(CHECK, text)
        },
    );
    if is_alone(server) {
        let text = "the cell has only its own first key, so no Kerberos realm can issue tokens";
        findings.push(Finding::note(CHECK, text).mended_by(import));
    }
    findings
}

/// Whether the server has only the random key that its first start made.
pub(super) fn is_alone(server: &Server) -> bool {
    let cell = server.identity.cell.name.as_str();
    let authority = Authority::open(&server.directory.server_etc(), cell);
    authority.is_ok_and(|authority| authority.keys().list().iter().all(|key| key.kvno == 0))
}
