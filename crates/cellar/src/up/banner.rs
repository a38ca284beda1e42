//! The text that `cellar up` prints when the cell is up: how to reach it.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use cellar_client::Ports;
use cellar_volume::Durability;
use cellar_wire::ids::PartitionId;

use crate::cell_directory::{self, CellDirectory, Identity, Part};

/// The text for standard output.
pub(super) fn text(
    directory: &CellDirectory,
    identity: &Identity,
    held: &[(PartitionId, usize)],
    is_new: bool,
    without_realm: bool,
    durability: Durability,
    took: Duration,
) -> String {
    let cell = &identity.cell;
    let name = &cell.name;
    let ports = &cell.ports;
    match identity.part {
        Part::Whole => {}
        Part::Fileserver => {
            return of_a_file_server(directory, identity, held, is_new, durability, took);
        }
        Part::Databases => return of_databases(directory, identity, is_new, took),
    }
    let address = identity.address.to_string();
    let here = directory.path();
    let shown = std::path::absolute(here).unwrap_or_else(|_| here.to_owned());
    let shown = shown.display();
    let option = dir_option(here);
    let verb = if is_new {
        "was created and is up"
    } else {
        "is up"
    };
    let mut text = String::new();
    let _ = writeln!(
        text,
        "\nCell {name} {verb}, in {shown} ({:.2} s)",
        took.as_secs_f64()
    );
    let _ = writeln!(
        text,
        "  on {}: files {}, volumes {}, locations {}, users {}, overseer {} (UDP)",
        if identity.bind.is_unspecified() {
            "all addresses".to_owned()
        } else {
            address.clone()
        },
        ports.fileserver,
        ports.volume,
        ports.location,
        ports.protection,
        ports.overseer
    );
    let _ = writeln!(text, "  partitions: {}", contents(held));
    if let Some(loss) = loss(durability) {
        let _ = writeln!(text, "  {loss}");
    }
    if identity.bind.is_loopback() {
        let _ = writeln!(
            text,
            "  Only this machine can reach it, and OpenAFS's vos refuses such an address of a server;
  'cellar up{option} --bind ADDRESS' makes it reachable for others."
        );
    }
    if without_realm {
        let _ = writeln!(
            text,
            "  No Kerberos realm yet: on this machine root and this account are its administrators, by a random key
  of the cell; all other users are anonymous. docs/operating/keys.md describes the next steps."
        );
    }
    let _ = writeln!(
        text,
        "\nStore and read a file, without any AFS client:
  cellar cp{option} README.md /afs/{name}/scratch/
  cellar ls{option} -l /afs/{name}/scratch
  cellar cat{option} /afs/{name}/scratch/README.md"
    );
    let _ = writeln!(
        text,
        "\nFor the CellServDB of AFS clients:\n{}",
        cell.cell_serv_db().trim_end()
    );
    if *ports != Ports::default() {
        let _ = writeln!(
            text,
            "\nStock clients use only the ports 7000 to 7007, so they cannot reach this cell."
        );
    } else {
        let _ = writeln!(
            text,
            "\nLinux's own AFS client (as root):
  modprobe kafs
  echo 'add {name} {address}' >/proc/fs/afs/cells
  mount -t afs '%{name}:root.cell.' /mnt      ('%{name}:scratch.' for that volume)

OpenAFS's user-space client (as root; Debian: openafs-fuse):
  afsd.fuse -confdir {shown}/client-etc -dynroot -nosettime -memcache -mountdir /afs"
        );
    }
    let _ = writeln!(text, "\nCtrl-C stops it; the same command starts it again.");
    text
}

/// The option with which commands find the directory, with a blank in front; empty if they find it
/// without one.
fn dir_option(here: &Path) -> String {
    match here.to_str() {
        Some(cell_directory::DEFAULT | cell_directory::SYSTEM) => String::new(),
        _ => format!(" --dir {}", here.display()),
    }
}

/// A line about the changes that a power cut loses with relaxed durability.
pub(crate) fn loss(durability: Durability) -> Option<String> {
    match durability {
        Durability::Strict => None,
        Durability::Relaxed(interval) => Some(format!(
            "Durability is relaxed: a power cut loses the changes of the last {} ms.",
            interval.as_millis()
        )),
    }
}

/// The most volumes of a partition that a start counts.
pub(super) const COUNT_MAX: usize = 10_000;

/// The partitions in one line, with what they hold.
fn contents(held: &[(PartitionId, usize)]) -> String {
    let one = |(id, volumes): &(PartitionId, usize)| match *volumes {
        0 => format!("{id} (no volumes)"),
        1 => format!("{id} (1 volume)"),
        COUNT_MAX.. => format!("{id} ({COUNT_MAX} volumes or more)"),
        volumes => format!("{id} ({volumes} volumes)"),
    };
    held.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The text of databases without a file server.
fn of_databases(
    directory: &CellDirectory,
    identity: &Identity,
    is_new: bool,
    took: Duration,
) -> String {
    let Identity { cell, address, .. } = identity;
    let here = directory.path();
    let hint = match identity.bind.is_loopback() {
        true => {
            "\n  Only this machine can reach them; 'cellar serve --bind ADDRESS' makes them reachable for others."
        }
        false => "",
    };
    let verb = if is_new {
        "were created and are up"
    } else {
        "are up"
    };
    format!(
        "\nThe databases of cell {} {verb}, in {} ({:.2} s)
  at {address}: locations {}, users {}, overseer {} (UDP){hint}

A file server joins with a copy of {}, which holds the cell's key:
  cellar serve fileserver --bind ADDRESS --join SERVER-ETC --first-volumes     (the cell's first file server)
  cellar serve fileserver --bind ADDRESS --join SERVER-ETC

For the CellServDB of AFS clients:\n{}

Ctrl-C stops it; 'cellar serve{}' starts it again.\n",
        cell.name,
        here.display(),
        took.as_secs_f64(),
        cell.ports.location,
        cell.ports.protection,
        cell.ports.overseer,
        directory.server_etc().display(),
        cell.cell_serv_db().trim_end(),
        dir_option(here),
    )
}

/// The text of a file server that has joined a cell.
fn of_a_file_server(
    directory: &CellDirectory,
    identity: &Identity,
    held: &[(PartitionId, usize)],
    is_new: bool,
    durability: Durability,
    took: Duration,
) -> String {
    let Identity { cell, address, .. } = identity;
    let name = &cell.name;
    let shown = directory.path().display();
    let verb = if is_new { "has joined" } else { "is back in" };
    let loss = loss(durability).map_or_else(String::new, |loss| format!("\n  {loss}"));
    let first = held.first().map(|(id, _)| id.to_string());
    let first = first
        .as_deref()
        .map_or("a", |name| name.trim_start_matches("/vicep"));
    let databases: Vec<_> = cell
        .database_servers
        .iter()
        .map(ToString::to_string)
        .collect();
    let next = match held.iter().any(|(_, volumes)| *volumes > 0) {
        true => {
            format!("The volumes of this server:\n  cellar vos listvol --dir {shown} {address}")
        }
        false => format!(
            "It holds no volumes until some are created on it or moved to it:
  cellar vos create --dir {shown} {address} {first} NAME
  cellar vos move --dir {shown} NAME OTHER-SERVER a {address} {first}"
        ),
    };
    format!(
        "\nThis file server {verb} cell {name}, in {shown} ({:.2} s)
  at {address}: files {}, volumes {}, overseer {} (UDP); databases at {}
  partitions: {}{loss}

{next}

Ctrl-C stops it; 'cellar up --dir {shown}' starts it again.\n",
        took.as_secs_f64(),
        cell.ports.fileserver,
        cell.ports.volume,
        cell.ports.overseer,
        databases.join(", "),
        contents(held),
    )
}
