//! Cells: their names, where their database servers are, and on which ports their roles answer.
//!
//! A cell is found in a `CellServDB` (the list every AFS client has), in the directory of a cell
//! that runs on this machine, or by a server address given on the command line. What is known is a
//! [`Cell`]; everything else (which file server has a volume) is asked from its VL servers.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// The longest cell name, in bytes. Source: `CellServDB` as OpenAFS reads it (63 and a NUL).
pub const CELL_NAME_BYTES_MAX: usize = 63;

/// The most database servers a cell has. Source: `AFSMAXCELLHOSTS`.
pub const DATABASE_SERVERS_MAX: usize = 8;

/// The name of a cell: a domain name, kept in lower case, which is how clients compare it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellName(String);

/// Why a text is not a cell name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not a cell name: use 1 to {CELL_NAME_BYTES_MAX} letters, digits, dots, dashes and \
     underscores, for example example.org"
)]
pub struct BadCellName(String);

impl CellName {
    /// Takes a name, refusing what could not be a path component or a `CellServDB` word.
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

    /// The name.
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

/// The UDP ports of a cell's roles. Stock clients know only the customary ones.
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
    /// The customary ports, moved so that the location server answers at `location`; `None` as in [`Ports::based_at`].
    pub fn of_location(location: u16) -> Option<Self> {
        location.checked_sub(3).and_then(Self::based_at)
    }

    /// The customary ports, moved so that the file server answers at `fileserver`.
    ///
    /// `None` if one of them would not be a port.
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

/// A cell and where to ask about it.
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
    /// Where its VL servers answer.
    pub fn location_servers(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.database_servers
            .iter()
            .map(|ip| SocketAddr::new(*ip, self.ports.location))
    }

    /// Where its PR servers answer.
    pub fn protection_servers(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.database_servers
            .iter()
            .map(|ip| SocketAddr::new(*ip, self.ports.protection))
    }

    /// The cell in one line: its name, the ports of its roles, and the addresses of its database servers.
    pub fn line(&self) -> String {
        let p = &self.ports;
        let ports = [p.fileserver, p.protection, p.location, p.volume, p.overseer];
        let ports = ports.map(|port| port.to_string()).join(",");
        let servers = self.database_servers.iter().map(|ip| format!(" {ip}"));
        format!("{} {ports}{}", self.name, servers.collect::<String>())
    }

    /// What [`Cell::line`] wrote; `None`: it did not.
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

    /// The cell as `CellServDB` writes it; two lines for a cell with one server.
    pub fn cell_serv_db(&self) -> String {
        let mut text = format!(">{}\t#Cell name\n", self.name);
        for ip in self.database_servers.iter().take(DATABASE_SERVERS_MAX) {
            text.push_str(&format!("{ip}    #{ip}\n"));
        }
        text
    }
}

/// Reads a `CellServDB`.
///
/// Lines are `>cell [linked-cell] #comment` and `a.b.c.d #name`, the address in brackets for a
/// database server that does not vote. What cannot be read is skipped, as every client does: one
/// bad line in a list of two hundred cells must not hide the others. Cells without a server and
/// servers past [`DATABASE_SERVERS_MAX`] are left out.
pub fn parse_cell_serv_db(text: &str) -> Vec<Cell> {
    let mut cells: Vec<Cell> = Vec::new();
    let mut in_a_cell = false;
    for line in text.lines().map(str::trim_start) {
        if let Some(rest) = line.strip_prefix('>') {
            let word = rest
                .split(|c: char| c.is_whitespace() || c == '#')
                .next()
                .unwrap_or("");
            in_a_cell = match CellName::new(word) {
                Ok(name) => {
                    let cell = Cell {
                        name,
                        database_servers: Vec::new(),
                        ports: Ports::default(),
                    };
                    cells.push(cell);
                    true
                }
                Err(_) => false,
            };
            continue;
        }
        let Some(cell) = cells.last_mut().filter(|_| in_a_cell) else {
            continue;
        };
        let word = line
            .split(|c: char| c.is_whitespace() || c == '#')
            .next()
            .unwrap_or("");
        let word = word.trim_start_matches('[').trim_end_matches(']');
        if let Ok(ip) = word.parse::<Ipv4Addr>()
            && cell.database_servers.len() < DATABASE_SERVERS_MAX
        {
            cell.database_servers.push(IpAddr::V4(ip));
        }
    }
    cells.retain(|cell| !cell.database_servers.is_empty());
    cells
}

/// Reads a `CellAlias`: other names of cells, and the cells they mean.
///
/// Lines are `cell alias`, `#` begins a comment. Source: `CellAlias(5)` of OpenAFS. What cannot be read is skipped, as is
/// an alias that is the name of its cell; of two lines with one alias the first counts.
pub fn parse_cell_alias(text: &str) -> HashMap<CellName, CellName> {
    let mut aliases = HashMap::new();
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or("").split_whitespace();
        let (Some(cell), Some(alias), None) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        if let (Ok(cell), Ok(alias)) = (CellName::new(cell), CellName::new(alias))
            && cell != alias
        {
            aliases.entry(alias).or_insert(cell);
        }
    }
    aliases
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
    fn a_cell_serv_db_with_every_kind_of_line() {
        let text = "\
>first.org linked.org #First cell
192.0.2.1 #db1.first.org
  [192.0.2.2] #clone.first.org
not an address

>broken cell name/ #x
>second.org#no blank
198.51.100.7\t\t#db.second.org
>empty.org  #nobody serves this one
";
        let cells = parse_cell_serv_db(text);
        let names: Vec<_> = cells.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["first.org", "second.org"]);
        assert_eq!(cells[0].database_servers.len(), 2);
        assert_eq!(cells[1].database_servers, [IpAddr::from([198, 51, 100, 7])]);
    }

    #[test]
    fn what_we_write_we_read() {
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
    fn aliases_with_every_kind_of_line() {
        let text = "\
# other names
first.org first # the first
second.org\tsecond.org
  second.org  2
third.org first
one word three
alone
bad/name x
";
        let aliases = parse_cell_alias(text);
        let name = |text| CellName::new(text).expect("name");
        let expected = [("first", "first.org"), ("2", "second.org")];
        let expected = expected.map(|(alias, cell)| (name(alias), name(cell)));
        assert_eq!(aliases, expected.into());
    }

    #[test]
    fn ports_move_together() {
        let ports = Ports::based_at(17000).expect("ports");
        assert_eq!(ports.location, 17003);
        assert_eq!(Ports::based_at(7000), Some(Ports::default()));
        assert_eq!(Ports::based_at(65530), None);
    }
}
