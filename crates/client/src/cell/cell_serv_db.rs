//! The files `CellServDB` and `CellAlias`, which every AFS client has.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use super::{Cell, CellName, DATABASE_SERVERS_MAX, Ports};

/// Parses a `CellServDB`.
///
/// Lines are `>cell [linked-cell] #comment` and `a.b.c.d #name`. The address of a database server
/// that does not vote is in brackets. Bad lines are skipped, as every client does: one bad line in
/// a list of two hundred cells must not hide the other cells. Cells without a server are left out,
/// as are servers after the first [`DATABASE_SERVERS_MAX`] of a cell.
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

/// Parses the names of servers in a `CellServDB`: the comment of a line with an address, up to the
/// first blank. Lines without one, and those whose comment is an address, name nothing.
pub fn parse_server_names(text: &str) -> Vec<(IpAddr, String)> {
    let named = text.lines().filter_map(|line| {
        let (address, comment) = line.split_once('#')?;
        let address = address.trim().trim_start_matches('[').trim_end_matches(']');
        let address: Ipv4Addr = address.parse().ok()?;
        let name = comment.split_whitespace().next()?;
        name.parse::<IpAddr>()
            .is_err()
            .then(|| (IpAddr::V4(address), name.to_owned()))
    });
    named.collect()
}

/// Parses a `CellAlias`: maps other names of cells to the names of the cells.
///
/// Lines are `cell alias`, and `#` begins a comment. Bad lines are skipped, as is an alias that
/// equals the name of its cell. Of two lines with the same alias the first counts. Source:
/// `CellAlias(5)` of OpenAFS.
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
    fn a_cell_serv_db_with_every_kind_of_line() {
        let text = "\
>first.org linked.org #First cell
192.0.2.1 #db1.first.org
  [192.0.2.2] #clone.first.org
not an address

>broken cell name/ #x
>second.org#no blank
198.51.100.7\t\t#db.second.org
>empty.org  #a cell without servers
";
        let cells = parse_cell_serv_db(text);
        let names: Vec<_> = cells.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["first.org", "second.org"]);
        assert_eq!(cells[0].database_servers.len(), 2);
        assert_eq!(cells[1].database_servers, [IpAddr::from([198, 51, 100, 7])]);
        let text =
            format!("{text}198.51.100.8 # db2.second.org a comment\n198.51.100.9 #198.51.100.9\n");
        let named = [
            ([192, 0, 2, 1], "db1.first.org"),
            ([192, 0, 2, 2], "clone.first.org"),
            ([198, 51, 100, 7], "db.second.org"),
            ([198, 51, 100, 8], "db2.second.org"),
        ];
        let named = named.map(|(address, name)| (IpAddr::from(address), name.to_owned()));
        assert_eq!(parse_server_names(&text), named);
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
}
