//! Selects the cell and the identity of a command.
//!
//! The cell is found, in this order:
//!
//! 1. `--server ADDRESS`: one of its database servers, with `--cell` for its name;
//! 2. the directory of a cell on this machine that was named: `--dir`, or `CELLAR_DIR`;
//! 3. the `CellServDB` that `CELLAR_CELLSERVDB` names; `ThisCell` beside it names the home cell,
//!    and `CellAlias` other names of cells;
//! 4. `./cell-data` ([`crate::default_directory`]);
//! 5. `/etc/openafs/CellServDB`, with its `ThisCell` and `CellAlias`;
//! 6. the DNS, for a cell that `--cell` or a path names and that is in none of those. Never with
//!    `--no-dns`.
//!
//! So a place that was named comes before a place that happens to exist. The cells of the
//! `CellServDB` are known in any case.
//!
//! A path in a mount is in the cell that the mount reports, unless `--server` is given. The mount's
//! cell replaces another cell of the same name, and that cell's directory is then not used.
//!
//! A command that changes databases or volumes uses the administrator's socket of the cell's
//! directory, if it may open it. File commands use the socket only with `--admin`. All other calls
//! go over UDP, with the user's token if there is one ([`crate::identity`]). If the directory
//! belongs to a file server only, its socket leads to no databases. The cell's key beside it is
//! used instead.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cellar_client::cell::{parse_cell_alias, parse_cell_serv_db};
use cellar_client::{Administrator, Cell, CellName, Client, Config, Dns, Ports};
use cellar_rpc::Runtime;

use crate::cell_directory::{CellDirectory, Part};
use crate::default_directory;
use crate::failure::{Failure, Outcome};
use crate::identity::IdentityOptions;
use crate::mounted;

/// The environment variable that names a `CellServDB`.
const CELL_SERV_DB: &str = "CELLAR_CELLSERVDB";

/// Options that select the cell.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct CellOptions {
    /// The cell. Default: the cell in --dir, otherwise the cell in ThisCell.
    #[arg(long, value_name = "NAME")]
    pub(crate) cell: Option<String>,
    /// A database server of the cell: ADDRESS, or ADDRESS:PORT with the port of its volume location
    /// server.
    #[arg(long, value_name = "ADDRESS", alias = "dbserver")]
    pub(crate) server: Vec<String>,
    /// Do not look up unlisted cells in the DNS.
    #[arg(long, env = "CELLAR_NO_DNS")]
    pub(crate) no_dns: bool,
    /// Directory of a cell on this machine. Default: ./cell-data, if it exists and
    /// CELLAR_CELLSERVDB is not set.
    #[arg(long, value_name = "DIR", env = "CELLAR_DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Act as administrator, through the socket in --dir (as root or the owner of the cell).
    #[arg(long)]
    pub(crate) admin: bool,
    /// Report as whom the command acts.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    #[command(flatten)]
    pub(crate) identity: IdentityOptions,
    /// Use the token even if the administrator's socket could be used.
    #[arg(skip)]
    pub(crate) by_token: bool,
    /// Further cells, reported by a mount.
    #[arg(skip)]
    pub(crate) reported: Vec<Cell>,
}

/// Whether the administrator's socket is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum As {
    /// Never: calls go over UDP with the token.
    Anybody,
    /// If the socket exists and can be opened; otherwise calls go over UDP.
    AdministratorIfPossible,
    /// Always; otherwise fail with the reason.
    Administrator,
}

/// A client and the runtime that it runs on.
pub(crate) struct Session {
    pub(crate) client: Arc<Client>,
    /// The home cell.
    pub(crate) cell: Cell,
    /// Calls to the home cell are authenticated: by a token, the key, or the local administrator's
    /// socket.
    pub(crate) authenticated: bool,
    runtime: Runtime,
}

impl Session {
    /// Says goodbye to the servers and stops the network. Returns the command's outcome unchanged.
    pub(crate) async fn end(self, outcome: Outcome) -> Outcome {
        self.client.goodbye().await;
        self.runtime.shutdown();
        outcome
    }
}

impl CellOptions {
    /// Finds the cell and makes a client. `path` is a path of the command; its cell is a hint if
    /// only an address was given.
    pub(crate) async fn session(&self, path: Option<&str>, who: As) -> Outcome<Session> {
        let paths: Vec<&str> = path.into_iter().collect();
        self.session_about(&paths, who).await
    }

    /// Like [`Self::session`], for a command with several paths.
    pub(crate) async fn session_about(&self, paths: &[&str], who: As) -> Outcome<Session> {
        let CellSource { cells, directory } = self.find_or_ask(paths).await?;
        let Some(home) = cells.first().cloned() else {
            return Err(Failure::new(
                "no cell is known: there is no ./cell-data here and no CellServDB. Start one with \
                 'cellar up', or name one of its database servers: --cell NAME --server ADDRESS",
            ));
        };
        let by_token = self.by_token || self.identity.noauth || self.identity.localauth;
        let who = match who {
            _ if self.admin => As::Administrator,
            As::AdministratorIfPossible if by_token => As::Anybody,
            who => who,
        };
        let mut identity = self.identity;
        let who = match (who, &directory) {
            (As::Administrator, Some((directory, Part::Fileserver))) => {
                if !directory.may_read_keys() {
                    return Err(Failure::new(format!(
                        "--admin: only root and the owner of {} may read the cell's key there",
                        directory.path().display()
                    )));
                }
                identity.localauth = true;
                As::Anybody
            }
            (As::AdministratorIfPossible, Some((directory, Part::Fileserver))) => {
                identity.localauth = directory.may_read_keys();
                As::Anybody
            }
            (who, _) => who,
        };
        let directory = directory.map(|(directory, _)| directory);
        let administrator = match administrator(directory.as_ref(), who).await? {
            Some(socket) => Some(Administrator {
                cell: home.name.clone(),
                addresses: home.database_servers.clone(),
                socket,
            }),
            None => None,
        };
        let mut security = match &administrator {
            // No other cell is called.
            Some(_) if cells.len() == 1 => HashMap::new(),
            own => {
                let by_token = own.is_none();
                identity
                    .securities(&cells, directory.as_ref(), by_token)
                    .await?
            }
        };
        // Other file servers of the cell accept the administrator by the key.
        if administrator.is_some()
            && let Some(by_key) = identity.by_key(&home.name, directory.as_ref())
        {
            security.insert(home.name.clone(), by_key);
        }
        let authenticated = administrator.is_some() || security.contains_key(&home.name);
        if self.verbose {
            let name = &home.name;
            let acts_as = match &directory {
                Some(directory) if administrator.is_some() => {
                    let socket = directory.admin_socket();
                    format!("administrator of cell {name}, through {}", socket.display())
                }
                _ if !authenticated => format!("system:anyuser in cell {name}, without a token"),
                _ if identity.localauth => {
                    format!("administrator of cell {name}, with the cell's key")
                }
                _ => crate::identity::token_holder(name).await,
            };
            crate::output::errln!("Acting as {acts_as}.");
        }
        let runtime = Runtime::client_only()
            .map_err(|cause| Failure::new(format!("cannot open a UDP port for calls: {cause}")))?;
        let port = runtime.client_port()?;
        let client = Client::new(
            port,
            Config {
                cells,
                administrator,
                security,
                renewal: identity.renewal(),
            },
        )?;
        if let Some(dns) = self.dns() {
            client.discover(dns);
        }
        client.alias(cell_aliases());
        Ok(Session {
            client: Arc::new(client),
            cell: home,
            authenticated,
            runtime,
        })
    }

    /// The known cells, the home cell first.
    pub(crate) async fn known_cells(&self) -> Outcome<Vec<Cell>> {
        Ok(self.find_or_ask(&[]).await?.cells)
    }

    /// The resolver for cells that are in no list; `None` if a server is given.
    pub(crate) fn dns(&self) -> Option<Dns> {
        (!self.no_dns && self.server.is_empty()).then(Dns::system)
    }

    /// Finds the cell in the lists. If a cell that the command names is not listed, the DNS is
    /// asked for it.
    async fn find_or_ask(&self, paths: &[&str]) -> Outcome<CellSource> {
        let path = paths.first().copied();
        // Paths in mounts: the mount reports the cell.
        let in_mounts = paths
            .iter()
            .filter_map(|path| Some((*path, mounted::cell_of(path)?)));
        let mut reported = cells_of_mounts(in_mounts)?;
        for cell in &self.reported {
            if !reported.iter().any(|known| known.name == cell.name) {
                reported.push(cell.clone());
            }
        }
        if !self.server.is_empty() {
            reported.clear();
        }
        let find = |more: &[Cell]| -> Outcome<CellSource> {
            let mut found = self.find(path, more)?;
            found.believe(&reported);
            Ok(found)
        };
        let mut more = reported.clone();
        let found = find(&more);
        let Some(dns) = self.dns() else {
            return found;
        };
        let aliases = cell_aliases();
        let wanted = self
            .cell
            .as_deref()
            .and_then(|name| CellName::new(name).ok());
        let before = more.len();
        for name in wanted.into_iter().chain(path.and_then(cell_of_path)) {
            let name = aliases.get(&name).cloned().unwrap_or(name);
            let listed = match &found {
                Ok(found) => found.cells.iter().any(|cell| cell.name == name),
                Err(_) => false,
            };
            if !listed && let Some(cell) = dns.cell(&name).await {
                more.push(cell);
            }
        }
        if more.len() == before {
            return found;
        }
        find(&more)
    }

    /// Finds the cell in the lists and in `more`.
    fn find(&self, path: Option<&str>, more: &[Cell]) -> Outcome<CellSource> {
        let wanted = self.cell.as_deref().map(CellName::new).transpose()?;
        if !self.server.is_empty() {
            return self.by_server(wanted, path);
        }
        let wanted = wanted.map(|name| cell_aliases().remove(&name).unwrap_or(name));
        let mut cells = Vec::new();
        let mut directory = None;
        let list_named = named_list().is_some();
        if self.dir.is_some() || !list_named {
            let candidate = default_directory::named_or_default(self.dir.as_deref())?;
            match candidate.known_identity()? {
                Some(identity) => {
                    cells.push(identity.cell);
                    directory = Some((candidate, identity.part));
                }
                None if self.dir.is_some() => {
                    return Err(Failure::new(format!(
                        "{} holds no cell: 'cellar up --dir {0}' makes one",
                        candidate.path().display()
                    )));
                }
                None => {}
            }
        }
        let list = list_of_cells();
        let (listed, this_cell) = match cell_serv_db(&list) {
            Err(cause) if list_named && directory.is_none() => {
                return Err(Failure::new(format!(
                    "{}, which {CELL_SERV_DB} names: {cause}. Name an existing CellServDB, unset the variable, or \
                     name the cell: --cell NAME --server ADDRESS",
                    list.display()
                )));
            }
            listed => listed.unwrap_or_default(),
        };
        // ThisCell names the home cell, unless this machine runs a cell.
        let (home, others): (Vec<_>, Vec<_>) = listed
            .into_iter()
            .partition(|cell| Some(&cell.name) == this_cell.as_ref());
        let more = more.iter().cloned();
        for cell in home.into_iter().chain(others).chain(more) {
            if !cells.iter().any(|known: &Cell| known.name == cell.name) {
                cells.push(cell);
            }
        }
        if let Some(wanted) = wanted {
            let place = cells.iter().position(|cell| cell.name == wanted);
            let place = place.ok_or_else(|| cellar_client::Error::UnknownCell(wanted.clone()))?;
            if place != 0 {
                directory = None;
            }
            let cell = cells.remove(place);
            cells.insert(0, cell);
        }
        Ok(CellSource { cells, directory })
    }

    fn by_server(&self, wanted: Option<CellName>, path: Option<&str>) -> Outcome<CellSource> {
        let mut ports = Ports::default();
        let mut port_named = false;
        let mut servers = Vec::new();
        for server in &self.server {
            let (address, port) = resolve(server)?;
            servers.push(address);
            if let Some(location) = port {
                port_named = true;
                ports = Ports::of_location(location)
                    .ok_or_else(|| Failure::usage(format!("{server}: not a port to use")))?;
            }
        }
        // If the cell is on this machine, its ports are known and its socket may be used.
        let local = default_directory::named_or_default(self.dir.as_deref())?;
        let identity = local.known_identity()?.filter(|identity| {
            let cell = &identity.cell;
            wanted.as_ref().is_none_or(|name| *name == cell.name)
                && (!port_named || ports.location == cell.ports.location)
                && servers
                    .iter()
                    .all(|server| cell.database_servers.contains(server))
        });
        if let Some(identity) = identity {
            return Ok(CellSource {
                cells: vec![identity.cell],
                directory: Some((local, identity.part)),
            });
        }
        let name = match wanted.or_else(|| path.and_then(cell_of_path)) {
            Some(name) => name,
            // Commands on databases do not need the name.
            None => CellName::new("unnamed.cell")?,
        };
        Ok(CellSource {
            cells: vec![Cell {
                name,
                database_servers: servers,
                ports,
            }],
            directory: None,
        })
    }
}

struct CellSource {
    cells: Vec<Cell>,
    /// The directory of the first cell, if it is on this machine, and the part of the cell that
    /// runs here.
    directory: Option<(CellDirectory, Part)>,
}

impl CellSource {
    /// Applies the cells that mounts report. A path in a mount is in the cell that the mount calls.
    /// A directory or list here may have another cell of the same name. Such a directory is not
    /// used.
    fn believe(&mut self, reported: &[Cell]) {
        for cell in reported {
            match self.cells.iter().position(|known| known.name == cell.name) {
                None => self.cells.push(cell.clone()),
                Some(place) if is_same(&self.cells[place], cell) => {}
                Some(place) => {
                    self.cells[place] = cell.clone();
                    if place == 0 {
                        self.directory = None;
                    }
                }
            }
        }
    }
}

/// Returns whether two cells of one name are the same cell: the same servers in any order, and the
/// same ports.
fn is_same(one: &Cell, other: &Cell) -> bool {
    let servers = |cell: &Cell| {
        cell.database_servers
            .iter()
            .copied()
            .collect::<BTreeSet<_>>()
    };
    one.name == other.name && one.ports == other.ports && servers(one) == servers(other)
}

/// The cells that mounts report for paths in them.
///
/// # Errors
/// Two different cells have the same name, so that the name does not identify one of them.
fn cells_of_mounts<'p>(paths: impl Iterator<Item = (&'p str, Cell)>) -> Outcome<Vec<Cell>> {
    let mut reported: Vec<(&str, Cell)> = Vec::new();
    for (path, cell) in paths {
        match reported.iter().find(|(_, known)| known.name == cell.name) {
            None => reported.push((path, cell)),
            Some((_, known)) if is_same(known, &cell) => {}
            Some((first, _)) => {
                return Err(Failure::new(format!(
                    "{path} and {first} are in different cells that are both called {}; one command cannot \
                     tell them apart",
                    cell.name
                )));
            }
        }
    }
    Ok(reported.into_iter().map(|(_, cell)| cell).collect())
}

async fn administrator(
    directory: Option<&CellDirectory>,
    who: As,
) -> Outcome<Option<cellar_rpc::Connection>> {
    if who == As::Anybody {
        return Ok(None);
    }
    let Some(directory) = directory else {
        return match who {
            As::Administrator => Err(Failure::new(
                "--admin needs the directory of a cell on this machine: give --dir",
            )),
            _ => Ok(None),
        };
    };
    let socket = directory.admin_socket();
    match cellar_rpc::local::connect(&socket).await {
        Ok(connection) => Ok(Some(connection)),
        Err(cause) if who == As::Administrator => Err(Failure::new(format!(
            "{}: {cause}. Is 'cellar up --dir {}' running, and are you root or its owner?",
            socket.display(),
            directory.path().display()
        ))),
        Err(cause) => {
            tracing::debug!(socket = %socket.display(), %cause, "no administrator's socket");
            Ok(None)
        }
    }
}

/// Parses `ADDRESS`, `NAME`, or either with a port.
pub(crate) fn resolve(server: &str) -> Outcome<(IpAddr, Option<u16>)> {
    if let Ok(address) = server.parse::<IpAddr>() {
        return Ok((address, None));
    }
    if let Ok(address) = server.parse::<SocketAddr>() {
        return Ok((address.ip(), Some(address.port())));
    }
    let (name, port) = match server.rsplit_once(':') {
        Some((name, port)) => match port.parse::<u16>() {
            Ok(port) => (name, Some(port)),
            Err(_) => return Err(Failure::usage(format!("{server}: not a server's address"))),
        },
        None => (server, None),
    };
    // AFS addresses are IPv4; take one if there is one.
    let found: Vec<_> = (name, port.unwrap_or(7003))
        .to_socket_addrs()
        .map_err(|cause| Failure::new(format!("{name}: {cause}")))?
        .collect();
    let address = found
        .iter()
        .find(|address| address.is_ipv4())
        .or(found.first());
    address
        .map(|address| (address.ip(), port))
        .ok_or_else(|| Failure::new(format!("{name} has no address")))
}

/// The cell that a path names: the component below `/afs`.
fn cell_of_path(path: &str) -> Option<CellName> {
    let name = path.strip_prefix("/afs/")?.split('/').next()?;
    CellName::new(name.trim_start_matches('.')).ok()
}

/// The `CellServDB` that `CELLAR_CELLSERVDB` names.
fn named_list() -> Option<PathBuf> {
    std::env::var_os(CELL_SERV_DB).map(PathBuf::from)
}

/// The named list, otherwise this machine's.
pub(crate) fn list_of_cells() -> PathBuf {
    named_list().unwrap_or_else(|| PathBuf::from("/etc/openafs/CellServDB"))
}

/// Other names of cells: the `CellAlias` beside the `CellServDB`.
pub(crate) fn cell_aliases() -> HashMap<CellName, CellName> {
    let text = fs::read_to_string(list_of_cells().with_file_name("CellAlias"));
    text.map(|text| parse_cell_alias(&text)).unwrap_or_default()
}

/// The cells of a `CellServDB`, and the home cell by the `ThisCell` beside it.
fn cell_serv_db(list: &Path) -> io::Result<(Vec<Cell>, Option<CellName>)> {
    let cells = parse_cell_serv_db(&fs::read_to_string(list)?);
    let home = fs::read_to_string(list.with_file_name("ThisCell"))
        .ok()
        .and_then(|text| CellName::new(text.split_whitespace().next()?).ok());
    Ok((cells, home))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(line: &str) -> Cell {
        Cell::parse_line(line).expect("a cell's line")
    }

    const HERE: &str = "a.cell 7000,7002,7003,7005,7007 192.0.2.1 192.0.2.2";
    const TURNED: &str = "a.cell 7000,7002,7003,7005,7007 192.0.2.2 192.0.2.1";
    const ELSEWHERE: &str = "a.cell 7000,7002,7003,7005,7007 198.51.100.1";
    const OTHER_PORTS: &str = "a.cell 8000,8002,8003,8005,8007 192.0.2.1 192.0.2.2";
    const OTHER: &str = "b.cell 7000,7002,7003,7005,7007 198.51.100.1";

    /// The result if a cell's directory exists here and a mount reports `reported`.
    fn found(reported: &str) -> CellSource {
        let directory = tempfile::tempdir().expect("directory");
        let directory =
            default_directory::named_or_default(Some(directory.path())).expect("directory");
        let mut found = CellSource {
            cells: vec![cell(HERE)],
            directory: Some((directory, Part::Fileserver)),
        };
        found.believe(&[cell(reported)]);
        found
    }

    #[test]
    fn a_mounts_cell_takes_the_place_of_another_of_its_name() {
        for reported in [ELSEWHERE, OTHER_PORTS] {
            let found = found(reported);
            assert_eq!(found.cells, [cell(reported)]);
            assert!(
                found.directory.is_none(),
                "{reported}: its socket leads elsewhere"
            );
        }
    }

    #[test]
    fn the_directory_of_a_mounts_cell_is_used() {
        for (reported, cells) in [
            (HERE, vec![cell(HERE)]),
            (TURNED, vec![cell(HERE)]),
            (OTHER, vec![cell(HERE), cell(OTHER)]),
        ] {
            let found = found(reported);
            assert_eq!(found.cells, cells);
            assert!(found.directory.is_some(), "{reported}");
        }
    }

    #[test]
    fn paths_of_two_cells_of_one_name_are_refused() {
        let reported =
            |second: &str| cells_of_mounts([("x", cell(HERE)), ("y", cell(second))].into_iter());
        assert_eq!(reported(TURNED).expect("one"), [cell(HERE)]);
        assert_eq!(reported(OTHER).expect("two"), [cell(HERE), cell(OTHER)]);
        for second in [ELSEWHERE, OTHER_PORTS] {
            let failure = reported(second).expect_err("one name").to_string();
            assert!(
                failure.contains("y and x are in different cells"),
                "{failure}"
            );
        }
    }
}
