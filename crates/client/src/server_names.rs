//! The names of servers, for the log: a line about a lost server has its name beside its address.
//!
//! Names come from `CellServDB`, and from lookups that a program makes in the background. A call
//! never waits for a name. Lock order: the table of connections ([`crate::Servers`]), then this
//! one.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::cell::CellName;

/// The most servers with a name: more than all cells have together.
const SERVERS_MAX: usize = 10_000;

/// The names of servers by their addresses.
#[derive(Debug, Default)]
pub struct ServerNames(Mutex<HashMap<IpAddr, ServerName>>);

/// The known facts of a server, for a line of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerName {
    /// The name of its host.
    pub host: Option<Arc<str>>,
    /// A cell in which it was called.
    pub cell: Option<CellName>,
}

impl ServerNames {
    /// Names the host of an address, unless it has a name.
    pub fn add_host(&self, address: IpAddr, host: &str) {
        self.change(address, |known| {
            known.host.get_or_insert_with(|| host.into());
        });
    }

    /// Notes that an address was called as a server of a cell.
    pub(crate) fn add_cell(&self, address: IpAddr, cell: &CellName) {
        self.change(address, |known| {
            known.cell.get_or_insert_with(|| cell.clone());
        });
    }

    /// The known facts of an address.
    pub fn of(&self, address: IpAddr) -> ServerName {
        self.0.lock().get(&address).cloned().unwrap_or_default()
    }

    fn change(&self, address: IpAddr, change: impl FnOnce(&mut ServerName)) {
        let mut all = self.0.lock();
        if all.len() < SERVERS_MAX || all.contains_key(&address) {
            change(all.entry(address).or_default());
        }
    }
}
