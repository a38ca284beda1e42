//! The identity of a cell at a start: the known one, changed by the command line.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use cellar_client::{Cell, CellName, Ports};

use super::{Options, addresses, join};
use crate::cell_directory::{self, CellDirectory, Identity, Part};
use crate::failure::{Failure, Outcome};
use crate::serve::{self, Role};

/// The name of a new cell if none is given.
const DEFAULT_CELL: &str = "demo.cell";

/// The identity of the cell: the known one, changed by the command line. Also the addresses that
/// are registered, with the one of the identity in front.
pub(super) fn decide(
    options: &Options,
    known: Option<&Identity>,
    server_etc: &Path,
) -> Outcome<(Identity, Vec<IpAddr>)> {
    let default = Path::new(cell_directory::DEFAULT);
    let place = options.dir.as_deref().unwrap_or(default);
    let part = part(options, known, place)?;
    let ports = match (options.fileserver_port, known) {
        (Some(port), _) => Ports::based_at(port)
            .ok_or_else(|| Failure::usage(format!("{port}: choose a port from 1 to 65528")))?,
        (None, Some(known)) => known.cell.ports,
        (None, None) => Ports::default(),
    };
    let shares_databases = !options.etcd.etcd.is_empty() || is_in_etcd(place);
    let joined = options.join.as_deref();
    let joined = joined.map(|etc| join::cell_of(etc, ports)).transpose()?;
    if let Some(known) = known.filter(|known| known.part.has_databases())
        && joined.is_some()
        && !shares_databases
    {
        return Err(Failure::new(format!(
            "{} holds the databases of the cell {}: join with another --dir",
            place.display(),
            known.cell.name
        )));
    }
    let wanted = options.cell.as_deref().map(CellName::new).transpose()?;
    if let (Some(joined), Some(wanted)) = (&joined, &wanted)
        && joined.name != *wanted
    {
        return Err(Failure::usage(format!(
            "--join names cell {}, --cell {wanted}: leave --cell out",
            joined.name
        )));
    }
    let wanted = wanted.or_else(|| joined.as_ref().map(|cell| cell.name.clone()));
    if let (Some(known), Some(wanted)) = (known, &wanted)
        && known.cell.name != *wanted
    {
        return Err(Failure::new(format!(
            "{} holds cell {}, not {wanted}: leave --cell out, or make another cell with --dir",
            place.display(),
            known.cell.name
        )));
    }
    let name = match (wanted, known) {
        (Some(name), _) => name,
        (None, Some(known)) => known.cell.name.clone(),
        (None, None) => CellName::new(DEFAULT_CELL)?,
    };
    // CellServDB in server-etc lists the servers that share the databases.
    let listed = || join::cell_of(server_etc, ports).ok();
    let database_servers = |own: IpAddr| {
        let others = match (joined, known) {
            (Some(cell), _) => cell.database_servers,
            (None, Some(known)) if part == Part::Fileserver => known.cell.database_servers.clone(),
            _ if shares_databases => listed().map_or_else(Vec::new, |cell| cell.database_servers),
            _ => Vec::new(),
        };
        if part == Part::Fileserver || others.contains(&own) {
            return others;
        }
        // The own address is the first: it is the nearest.
        let lost = known.map(|known| known.address);
        let others = others.into_iter().filter(|other| Some(*other) != lost);
        std::iter::once(own).chain(others).collect()
    };
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let bind = options
        .bind
        .unwrap_or_else(|| known.map_or(loopback, |known| known.bind));
    let addresses = addresses::registered(server_etc, bind)?;
    let address = addresses.first().copied().unwrap_or(bind);
    if !address.is_ipv4() {
        return Err(Failure::usage(format!(
            "{address}: AFS databases list servers by IPv4 addresses; bind one of those"
        )));
    }
    let identity = Identity {
        cell: Cell {
            name,
            database_servers: database_servers(address),
            ports,
        },
        part,
        address,
        server_uuid: known.map_or_else(
            || *uuid::Uuid::new_v4().as_bytes(),
            |known| known.server_uuid,
        ),
        bind,
        location: given_or_last(&options.location, known.map(|known| &known.location)),
        owner: given_or_last(&options.owner, known.map(|known| &known.owner)),
        complete: known.is_some_and(|known| known.complete),
        used: known.and_then(|known| known.used.clone()),
    };
    Ok((identity, addresses))
}

/// Whether the databases of a directory are in etcd.
fn is_in_etcd(place: &Path) -> bool {
    CellDirectory::new(place).etcd_file().exists()
}

/// The part of the cell that runs from now on. Databases may get a file server beside them.
fn part(options: &Options, known: Option<&Identity>, place: &Path) -> Outcome<Part> {
    let has = |role| options.roles.contains(&role);
    let named = match (has(Role::Databases), has(Role::Fileserver)) {
        (true, true) => Some(Part::Whole),
        (true, false) => Some(Part::Databases),
        (false, true) => Some(Part::Fileserver),
        (false, false) => None,
    };
    if options.join.is_some()
        && has(Role::Databases)
        && options.etcd.etcd.is_empty()
        && !is_in_etcd(place)
    {
        return Err(Failure::usage(
            "--join is for file servers and devices: the databases of a cell are on its first server. Several \
             database servers share them in etcd: add --etcd",
        ));
    }
    if named.is_none() && has(Role::Osds) {
        return Err(Failure::new(format!(
            "{} holds more than devices: name the other roles too, or another --dir",
            place.display()
        )));
    }
    match (named, known.map(|known| known.part)) {
        (Some(Part::Whole), Some(Part::Databases)) => Ok(Part::Whole),
        (Some(named), Some(known)) if named != known => Err(Failure::new(format!(
            "{} was made for {}, not for {}: start these, or name another --dir",
            place.display(),
            serve::roles_of(known),
            serve::roles_of(named)
        ))),
        (Some(Part::Fileserver), None) if options.join.is_none() => Err(Failure::usage(
            "a file server without databases joins a cell at its first start: add --join SERVER-ETC, with a copy \
             of server-etc of the database server",
        )),
        (Some(named), _) => Ok(named),
        (None, Some(known)) => Ok(known),
        (None, None) if options.join.is_some() => Ok(Part::Fileserver),
        (None, None) => Ok(Part::Whole),
    }
}

/// The value given now, otherwise the last value.
fn given_or_last(now: &Option<String>, last: Option<&String>) -> String {
    now.as_ref().or(last).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

    use super::*;

    /// The options of an empty command line.
    fn options() -> Options {
        let command = Options::augment_args(clap::Command::new("up"));
        // Without the environment of the test.
        let matches = command
            .mut_arg("dir", |dir| dir.env(None))
            .get_matches_from(["up"]);
        Options::from_arg_matches(&matches).expect("options")
    }

    fn decided(options: &Options, known: Option<&Identity>) -> Outcome<Identity> {
        decide(options, known, Path::new("/nonexistent")).map(|(identity, _)| identity)
    }

    #[test]
    fn a_new_cell_is_this_machines_own() {
        let identity = decided(&options(), None).expect("identity");
        assert_eq!(identity.cell.name.as_str(), DEFAULT_CELL);
        assert_eq!(
            identity.cell.database_servers,
            [IpAddr::from([127, 0, 0, 1])]
        );
        assert_eq!(identity.cell.ports, Ports::default());
        assert!(!identity.complete);
    }

    #[test]
    fn a_known_cell_keeps_what_it_has() {
        let known = decided(
            &Options {
                cell: Some("a.org".to_owned()),
                bind: Some(IpAddr::from([192, 0, 2, 1])),
                fileserver_port: Some(17000),
                ..options()
            },
            None,
        )
        .expect("first");
        let again = decided(&options(), Some(&known)).expect("again");
        assert_eq!(again, known);
        let moved = Options {
            bind: Some(IpAddr::from([192, 0, 2, 2])),
            location: Some("hq/r1".to_owned()),
            owner: Some("physics".to_owned()),
            ..options()
        };
        let moved = decided(&moved, Some(&known)).expect("moved");
        assert_eq!((&*moved.location, &*moved.owner), ("hq/r1", "physics"));
        let without_owner = Options {
            owner: Some(String::new()),
            ..options()
        };
        let without_owner = decided(&without_owner, Some(&moved)).expect("without owner");
        assert_eq!(
            (&*without_owner.location, &*without_owner.owner),
            ("hq/r1", "")
        );
        assert_eq!(moved.server_uuid, known.server_uuid);
        assert_eq!(moved.cell.database_servers, [IpAddr::from([192, 0, 2, 2])]);
        let renamed = Options {
            cell: Some("b.org".to_owned()),
            ..options()
        };
        assert!(decided(&renamed, Some(&known)).is_err());
    }

    #[test]
    fn a_file_server_joins_once() {
        let etc = tempfile::tempdir().expect("tempdir");
        std::fs::write(etc.path().join("ThisCell"), "a.org\n").expect("write");
        let list = ">a.org\n192.0.2.1 #db\n";
        std::fs::write(etc.path().join("CellServDB"), list).expect("write");
        let join = || Options {
            join: Some(etc.path().to_owned()),
            bind: Some(IpAddr::from([192, 0, 2, 9])),
            ..options()
        };
        let joined = decided(&join(), None).expect("joined");
        assert_eq!(joined.part, Part::Fileserver);
        assert_eq!(joined.cell.name.as_str(), "a.org");
        assert_eq!(joined.cell.database_servers, [IpAddr::from([192, 0, 2, 1])]);
        assert_eq!(joined.address, IpAddr::from([192, 0, 2, 9]));
        assert_eq!(decided(&options(), Some(&joined)).expect("again"), joined);
        assert_eq!(decided(&join(), Some(&joined)).expect("repeated"), joined);
        let other = Options {
            cell: Some("b.org".to_owned()),
            ..join()
        };
        assert!(decided(&other, None).is_err());
        let whole = Options {
            cell: Some("a.org".to_owned()),
            ..options()
        };
        let whole = decided(&whole, None).expect("whole");
        assert!(decided(&join(), Some(&whole)).is_err());
    }
}
