//! Cells: their names, the addresses of their database servers, and the ports of their roles.
//!
//! A [`Cell`] comes from a `CellServDB` ([`parse_cell_serv_db`]), a cell's directory on this
//! machine, a server address of the command line, or the DNS ([`Dns`]). `KnownCells` is the table
//! of a client's cells. Other facts about a cell, for instance the file server of a volume, come
//! from its VL servers.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

mod cell_serv_db;
mod dns;
mod known;

pub use cell_serv_db::{parse_cell_alias, parse_cell_serv_db, parse_server_names};
pub use dns::{DNS_TIME, Dns};
pub use known::{KnownCells, Reachability};

/// The longest cell name, in bytes. Source: `CellServDB` as OpenAFS reads it (63 and a NUL).
pub const CELL_NAME_BYTES_MAX: usize = 63;

/// The most database servers of a cell. Source: `AFSMAXCELLHOSTS`.
pub const DATABASE_SERVERS_MAX: usize = 8;

/// The name of a cell: a domain name, stored in lower case, in which clients compare it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellName(String);

/// A text that is not a cell name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not a cell name: use 1 to {CELL_NAME_BYTES_MAX} letters, digits, dots, dashes and \
     underscores, for example example.org"
)]
pub struct BadCellName(String);

impl CellName {
    /// Checks a name: it must be usable as a path component and as a word of `CellServDB`.
    ///
    /// # Errors
    /// [`BadCellName`] with the text.
    pub fn new(name: &str) -> Result<Self, BadCellName> {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let ok = !name.is_empty()
            && name.len() <= CELL_NAME_BYTES_MAX
            && name.chars().all(legal)
            && !name.starts_with(['.', '-']);
        if ok {
            Ok(Self(name.to_ascii_lowercase()))
        } else {
            Err(BadCellName(name.to_owned()))
        }
    }

    /// The name as text, in lower case.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CellName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for CellName {
    type Err = BadCellName;
    fn from_str(name: &str) -> Result<Self, BadCellName> {
        Self::new(name)
    }
}

/// The UDP ports of a cell's roles. Stock clients use only the default ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// File server (RXAFS).
    pub fileserver: u16,
    /// Protection server (PR).
    pub protection: u16,
    /// Volume location server (VL).
    pub location: u16,
    /// Volume server (AFSVol).
    pub volume: u16,
    /// Overseer (BOZO).
    pub overseer: u16,
}

impl Default for Ports {
    fn default() -> Self {
        Self {
            fileserver: 7000,
            protection: 7002,
            location: 7003,
            volume: 7005,
            overseer: 7007,
        }
    }
}

impl Ports {
    /// The default ports, shifted so that the location server has port `location`; `None` as in
    /// [`Ports::based_at`].
    pub fn of_location(location: u16) -> Option<Self> {
        location.checked_sub(3).and_then(Self::based_at)
    }

    /// The default ports, shifted so that the file server has port `fileserver`.
    ///
    /// `None` if one of the ports would be out of range.
    pub fn based_at(fileserver: u16) -> Option<Self> {
        let port = |offset: u16| fileserver.checked_add(offset);
        (fileserver != 0).then_some(())?;
        Some(Self {
            fileserver,
            protection: port(2)?,
            location: port(3)?,
            volume: port(5)?,
            overseer: port(7)?,
        })
    }
}

/// A cell and the addresses of its database servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Its name.
    pub name: CellName,
    /// The machines on which its VL and PR servers run, in order of preference.
    pub database_servers: Vec<IpAddr>,
    /// The ports of its roles.
    pub ports: Ports,
}

impl Cell {
    /// The addresses of its VL servers.
    pub fn location_servers(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.database_servers
            .iter()
            .map(|ip| SocketAddr::new(*ip, self.ports.location))
    }

    /// The addresses of its PR servers.
    pub fn protection_servers(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.database_servers
            .iter()
            .map(|ip| SocketAddr::new(*ip, self.ports.protection))
    }

    /// The cell in one line: its name, the ports of its roles, and the addresses of its database
    /// servers.
    pub fn line(&self) -> String {
        let p = &self.ports;
        let ports = [p.fileserver, p.protection, p.location, p.volume, p.overseer];
        let ports = ports.map(|port| port.to_string()).join(",");
        let servers = self.database_servers.iter().map(|ip| format!(" {ip}"));
        format!("{} {ports}{}", self.name, servers.collect::<String>())
    }

    /// Parses a line that [`Cell::line`] wrote; `None` if the line has another form.
    pub fn parse_line(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let name = CellName::new(words.next()?).ok()?;
        let ports: Vec<u16> = words
            .next()?
            .split(',')
            .map(|port| port.parse().ok())
            .collect::<Option<_>>()?;
        let [fileserver, protection, location, volume, overseer] = ports[..] else {
            return None;
        };
        let servers = words.map(|word| word.parse().ok());
        let database_servers = servers.collect::<Option<Vec<IpAddr>>>()?;
        let many = 1..=DATABASE_SERVERS_MAX;
        many.contains(&database_servers.len()).then_some(Self {
            name,
            database_servers,
            ports: Ports {
                fileserver,
                protection,
                location,
                volume,
                overseer,
            },
        })
    }

    /// The lines of the cell in a `CellServDB`: one for the name, and one for each server.
    pub fn cell_serv_db(&self) -> String {
        let mut text = format!(">{}\t#Cell name\n", self.name);
        for ip in self.database_servers.iter().take(DATABASE_SERVERS_MAX) {
            text.push_str(&format!("{ip}    #{ip}\n"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_lower_case_and_bounded() {
        assert_eq!(
            CellName::new("Example.ORG").expect("name").as_str(),
            "example.org"
        );
        for bad in ["", ".hidden", "a b", "a/b", "a#b", "-x", &"x".repeat(64)] {
            assert!(CellName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn our_own_files_are_read_back() {
        let cell = Cell {
            name: CellName::new("demo.cell").expect("name"),
            database_servers: vec![IpAddr::from([127, 0, 0, 1])],
            ports: Ports::default(),
        };
        let read = parse_cell_serv_db(&cell.cell_serv_db());
        assert_eq!(read, std::slice::from_ref(&cell));
        let moved = Cell {
            ports: Ports::based_at(17000).expect("ports"),
            ..cell
        };
        let line = moved.line();
        assert_eq!(line, "demo.cell 17000,17002,17003,17005,17007 127.0.0.1");
        assert_eq!(Cell::parse_line(&line), Some(moved));
        for bad in [
            "",
            "x",
            "x 1,2,3,4,5",
            "x 1,2,3,4 192.0.2.1",
            "x 1,2,3,4,5 y",
        ] {
            assert_eq!(Cell::parse_line(bad), None, "{bad}");
        }
    }

    #[test]
    fn ports_move_together() {
        let ports = Ports::based_at(17000).expect("ports");
        assert_eq!(ports.location, 17003);
        assert_eq!(Ports::based_at(7000), Some(Ports::default()));
        assert_eq!(Ports::based_at(65530), None);
    }
}
