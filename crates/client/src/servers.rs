//! Connections to servers, one for each cell, address and service, and which addresses were silent.
//!
//! The security of calls is set for each cell; calls to a cell without a setting are anonymous. An
//! administrator's socket leads to a server process, which identifies its callers by their Unix
//! user. With such a socket, every call to the addresses of that process goes through the socket
//! instead of UDP, whatever the role.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cellar_rpc::{CallError, Connection, ConnectionOptions, Port, Security};
use cellar_wire::abort::AbortCode;
use cellar_wire::package::Package;
use cellar_wire::rxafs;
use parking_lot::Mutex;

use crate::cell::CellName;
use crate::latency::{Latencies, Latency};
use crate::reach::{Age, Reach};
use crate::server_names::ServerNames;

/// The most connections kept for a cell; when more are needed, its pool is emptied.
const CONNECTIONS_MAX: usize = 10_000;
/// The most concurrent calls to a file server. The limit is high so that a program's call does not
/// queue behind read-ahead.
const CALLS_MAX: usize = 128;

/// The source of a new token for a cell when the one in use has expired. The program that keeps
/// tokens fresh may have stored one there meanwhile.
pub trait Renewal: fmt::Debug + Send + Sync {
    /// The security for calls to the cell's servers from now on; `None` if there is nothing newer.
    fn renew<'a>(
        &'a self,
        cell: &'a CellName,
    ) -> Pin<Box<dyn Future<Output = Option<Security>> + Send + 'a>>;
}

/// The socket of a server on this machine, which treats its callers as administrators.
#[derive(Clone, Debug)]
pub struct Administrator {
    /// The cell of the server.
    pub cell: CellName,
    /// The addresses on which the server answers: calls to these go through the socket. Calls to
    /// other servers of the cell use the cell's security.
    pub addresses: Vec<IpAddr>,
    /// The socket.
    pub socket: Connection,
}

/// The pool of connections.
#[derive(Debug)]
pub struct Servers {
    port: Port,
    administrator: Option<Administrator>,
    renewal: Option<Arc<dyn Renewal>>,
    cells: Mutex<HashMap<CellName, OfCell>>,
    reach: Arc<Reach>,
    latencies: Latencies,
}

/// The security of calls to a cell, and the connections to its servers.
#[derive(Debug)]
struct OfCell {
    security: Security,
    /// The connections, each with its age ([`Reach::age`]).
    connections: HashMap<(SocketAddr, u16), (Age, Connection)>,
}

impl Default for OfCell {
    fn default() -> Self {
        Self {
            security: Security::null(),
            connections: HashMap::new(),
        }
    }
}

impl Servers {
    /// Makes a pool that calls from `port`; with `administrator`, calls to that server go through
    /// its socket.
    pub fn new(
        port: Port,
        administrator: Option<Administrator>,
        renewal: Option<Arc<dyn Renewal>>,
    ) -> Self {
        Self::reaching(port, administrator, renewal, Arc::default())
    }

    /// As [`Self::new`], for one of several users who share the knowledge of servers' reachability.
    pub(crate) fn reaching(
        port: Port,
        administrator: Option<Administrator>,
        renewal: Option<Arc<dyn Renewal>>,
        reach: Arc<Reach>,
    ) -> Self {
        Self {
            port,
            administrator,
            renewal,
            cells: Mutex::default(),
            reach,
            latencies: Latencies::default(),
        }
    }

    /// Sets the security of calls to `cell`, after a token was obtained, renewed or given up. Calls
    /// in progress keep the old security.
    pub fn set_security(&self, cell: &CellName, security: Security) {
        let of_cell = OfCell {
            security,
            connections: HashMap::new(),
        };
        self.cells.lock().insert(cell.clone(), of_cell);
    }

    /// Returns whether a call failed because the cell's token has expired, and a new token is in
    /// use now. The call may then be repeated over a new connection.
    pub async fn renewed(&self, cell: &CellName, error: &CallError) -> bool {
        let CallError::Aborted(code) = error else {
            return false;
        };
        let expired = matches!(
            code.to_plain(),
            // The last two codes: the key of the ticket is retired, or another key has its number.
            AbortCode::RXKADEXPIRED
                | AbortCode::VICETOKENDEAD
                | AbortCode::RXKADUNKNOWNKEY
                | AbortCode::RXKADBADTICKET
        );
        let Some(renewal) = self.renewal.as_ref().filter(|_| expired) else {
            return false;
        };
        match renewal.renew(cell).await {
            Some(security) => {
                tracing::debug!(%cell, "continuing with a new token");
                self.set_security(cell, security);
                true
            }
            None => false,
        }
    }

    /// The port that calls are sent from; file servers send their calls to it.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Whether calls to `cell` are made as administrator.
    pub fn is_administrator(&self, cell: &CellName) -> bool {
        self.administrator
            .as_ref()
            .is_some_and(|own| own.cell == *cell)
    }

    /// A connection to one service of one server of `cell`.
    pub fn connection(
        &self,
        cell: &CellName,
        peer: SocketAddr,
        package: &'static Package,
    ) -> Connection {
        if let Some(own) = &self.administrator
            && own.cell == *cell
            && own.addresses.contains(&peer.ip())
        {
            return own.socket.clone();
        }
        self.direct_connection(cell, peer, package)
    }

    /// A connection by Rx, even if the address has an administrator's socket: for servers that are
    /// other processes at the same address.
    pub fn direct_connection(
        &self,
        cell: &CellName,
        peer: SocketAddr,
        package: &'static Package,
    ) -> Connection {
        let mut cells = self.cells.lock();
        if !cells.contains_key(cell) {
            cells.insert(cell.clone(), OfCell::default());
        }
        // Other services have long calls that are silent meanwhile: a dump, the examination of a
        // device.
        let of_files = package.service_id == rxafs::PACKAGE.service_id;
        let timeouts = ConnectionOptions {
            idle_dead_time: self.reach.longest_idle().filter(|_| of_files),
            calls_max: of_files.then_some(CALLS_MAX),
            ..ConnectionOptions::default()
        };
        let connect = |security: &Security| {
            self.port
                .connect_with(peer, package.service_id, security.clone(), timeouts)
        };
        let Some(of_cell) = cells.get_mut(cell) else {
            return connect(&Security::null());
        };
        if of_cell.connections.len() >= CONNECTIONS_MAX {
            of_cell.connections.clear();
        }
        let age = self.reach.age(peer);
        let key = (peer, package.service_id);
        match of_cell.connections.get(&key) {
            Some((of_age, connection)) if *of_age == age => connection.clone(),
            _ => {
                self.reach.names().add_cell(peer.ip(), cell);
                // Calls in progress on the old connection end on it.
                let connection = connect(&of_cell.security);
                let entry = (age, connection.clone());
                of_cell.connections.insert(key, entry);
                connection
            }
        }
    }

    /// Connections to the servers of one service that were called so far, without those that are
    /// down.
    pub(crate) fn connections_to(&self, package: &'static Package) -> Vec<Connection> {
        let called: Vec<_> = {
            let cells = self.cells.lock();
            let all = cells.iter().flat_map(|(cell, of_cell)| {
                let keys = of_cell.connections.keys();
                keys.map(move |key| (cell.clone(), *key))
            });
            all.filter(|(_, (_, service))| *service == package.service_id)
                .collect()
        };
        called
            .into_iter()
            .filter(|(_, (peer, _))| !self.is_down(*peer))
            .map(|(cell, (peer, _))| self.direct_connection(&cell, peer, package))
            .collect()
    }

    /// The servers that were called and are down, each with its cell.
    pub fn silent(&self) -> Vec<(CellName, SocketAddr)> {
        let cells = self.cells.lock();
        let called = cells
            .iter()
            .flat_map(|(cell, of_cell)| of_cell.connections.keys().map(move |key| (cell, key.0)));
        called
            .filter(|(_, peer)| self.is_down(*peer))
            .map(|(cell, peer)| (cell.clone(), peer))
            .collect()
    }

    /// Notes that an address did not answer.
    pub fn mark_down(&self, peer: SocketAddr) {
        self.reach.silent(peer);
    }

    /// Notes that an address answered.
    pub fn mark_up(&self, peer: SocketAddr) {
        self.reach.answered(peer);
    }

    /// Notes that an address answered, and the time that it took.
    pub(crate) fn answered(&self, peer: SocketAddr, took: Duration) {
        self.mark_up(peer);
        self.latencies.add(peer, took);
    }

    /// The counts of answer times of each server so far.
    pub fn latencies(&self) -> BTreeMap<SocketAddr, Latency> {
        self.latencies.all()
    }

    /// Whether the address did not answer a short while ago.
    pub fn is_down(&self, peer: SocketAddr) -> bool {
        self.reach.is_down(peer)
    }

    /// The names of servers, for the log.
    pub fn names(&self) -> &ServerNames {
        self.reach.names()
    }

    /// The known reachability of servers.
    pub(crate) fn reach(&self) -> &Reach {
        &self.reach
    }
}
