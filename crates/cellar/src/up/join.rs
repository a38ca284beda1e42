//! How a file server joins an existing cell: with a server's configuration directory of that cell,
//! Cellar's `server-etc` or OpenAFS's `/etc/openafs/server`.
//!
//! The files, including the key, are copied when the directory is made, and belong to this server
//! from then on. As in any AFS cell, the administrator adds and retires keys on every server, and
//! changes `CellServDB` on every server. `CellServDB` is read at each start, so a cell's database
//! servers may move.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use cellar_client::cell::{parse_cell_serv_db, parse_server_names};
use cellar_client::{Cell, CellName, Ports};

use crate::cell_directory::{Identity, replace_file};
use crate::failure::{Failure, Outcome};

/// The files of a server's configuration directory. Without the first two there is no cell to join.
const FILES: [&str; 7] = [
    "ThisCell",
    "CellServDB",
    "KeyFileExt",
    "rxkad.keytab",
    "UserList",
    "krb.conf",
    "krb.excl",
];

/// The cell of a server's configuration directory, with its database servers.
pub(crate) fn cell_of(server_etc: &Path, ports: Ports) -> Outcome<Cell> {
    let read = |name: &str| {
        let path = server_etc.join(name);
        fs::read_to_string(&path).map_err(|cause| {
            let path = path.display();
            Failure::new(format!(
                "{path}: {cause}. To join, a file server needs the directory with ThisCell, CellServDB \
                 and the keys of a server of the cell: 'server-etc' of Cellar, /etc/openafs/server of \
                 OpenAFS"
            ))
        })
    };
    let this_cell = read("ThisCell")?;
    let name = CellName::new(this_cell.split_whitespace().next().unwrap_or_default())?;
    let listed = parse_cell_serv_db(&read("CellServDB")?);
    let cell = listed.into_iter().find(|cell| cell.name == name);
    let cell = cell.ok_or_else(|| {
        Failure::new(format!(
            "{}: the file lists no database server of cell {name}",
            server_etc.join("CellServDB").display()
        ))
    })?;
    Ok(Cell { ports, ..cell })
}

/// The names that `CellServDB` in a server's configuration directory gives to servers, for the log.
pub(crate) fn server_names(server_etc: &Path) -> Vec<(IpAddr, String)> {
    let listed = fs::read_to_string(server_etc.join("CellServDB"));
    parse_server_names(&listed.unwrap_or_default())
}

/// Logs that `CellServDB` names other database servers than those in use. They are used after a
/// restart, because calls and registrations are bound to the present ones.
pub(crate) fn note_moved_databases(server_etc: &Path, identity: &Identity) {
    if identity.part.has_databases() {
        return;
    }
    match cell_of(server_etc, identity.cell.ports) {
        Ok(cell) if cell == identity.cell => {}
        Ok(cell) => {
            let servers = cell.database_servers;
            tracing::warn!(
                ?servers,
                "the change of CellServDB or ThisCell needs a restart"
            );
        }
        Err(failure) => tracing::error!(%failure, "the cell's database servers stay the same"),
    }
}

/// Copies a configuration directory. Existing files are replaced.
pub(crate) fn copy(from: &Path, to: &Path) -> Outcome {
    cellar_private::directory(to)
        .map_err(|cause| Failure::new(format!("cannot make {}: {cause}", to.display())))?;
    if fs::canonicalize(from).ok() == fs::canonicalize(to).ok() {
        return Ok(());
    }
    for name in FILES {
        let source = from.join(name);
        match fs::read(&source) {
            Ok(bytes) => {
                let copied = zeroize::Zeroizing::new(bytes);
                replace_file(&to.join(name), &copied)?;
            }
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => return Err(Failure::new(format!("{}: {cause}", source.display()))),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn etc(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("tempdir");
        for (name, text) in files {
            fs::write(directory.path().join(name), text).expect("write");
        }
        directory
    }

    #[test]
    fn the_cell_is_the_one_that_this_cell_names() {
        let from = etc(&[
            ("ThisCell", "b.org\n"),
            (
                "CellServDB",
                ">a.org\n192.0.2.1 #a\n>b.org\n192.0.2.2 #b\n192.0.2.3 #c\n",
            ),
        ]);
        let cell = cell_of(from.path(), Ports::default()).expect("cell");
        assert_eq!(cell.name.as_str(), "b.org");
        let servers = [[192, 0, 2, 2], [192, 0, 2, 3]].map(IpAddr::from);
        assert_eq!(cell.database_servers, servers);
    }

    #[test]
    fn a_server_list_without_a_cell_is_refused() {
        for files in [
            &[][..],
            &[("ThisCell", "b.org\n")],
            &[("ThisCell", "b.org"), ("CellServDB", ">a.org\n192.0.2.1\n")],
            &[("ThisCell", ""), ("CellServDB", ">a.org\n192.0.2.1\n")],
        ] {
            assert!(cell_of(etc(files).path(), Ports::default()).is_err());
        }
    }

    #[test]
    fn copies_are_for_their_owner_alone() {
        let from = etc(&[("KeyFileExt", "secret"), ("other", "not ours")]);
        let to = tempfile::tempdir().expect("tempdir");
        let to = to.path().join("server-etc");
        copy(from.path(), &to).expect("copy");
        copy(&to, &to).expect("onto itself");
        let copied = to.join("KeyFileExt");
        assert_eq!(fs::read(&copied).expect("read"), b"secret");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&copied), mode(&to)), (0o600, 0o700));
        assert!(!to.join("other").exists());
    }
}
