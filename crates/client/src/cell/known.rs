//! The table of the cells that a client knows: configured cells, their aliases, and cells from the
//! DNS.
//!
//! 1. A cell keeps its number for the life of the client.
//! 2. When the DNS records of a cell expire, the DNS is asked again in the background. The old
//!    addresses are used until the answer arrives.
//! 3. If no server of a cell answered, the table remembers that for [`SILENT_TIME`], so that not
//!    every program waits for the servers in turn. Meanwhile the servers are probed in the
//!    background.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use super::dns::{Discovered, Dns};
use super::{Cell, CellName};
use crate::error::{Error, Result};

/// The most cells in the table: more than there are in the world.
const CELLS_MAX: usize = 4_096;
/// The time after which the DNS is asked again for an expired cell that it did not find.
const RETRY: Duration = Duration::from_secs(300);
/// The time for which a cell counts as silent after none of its servers answered.
const SILENT_TIME: Duration = Duration::from_secs(300);
/// The time after which a silent cell is probed, in the background.
const PROBE_TIME: Duration = Duration::from_secs(10);

/// The cells that a client knows.
#[derive(Debug)]
pub struct KnownCells {
    /// The position of a cell is its number.
    known: RwLock<Vec<KnownCell>>,
    /// Aliases of cells.
    aliases: RwLock<HashMap<CellName, CellName>>,
    dns: OnceLock<Dns>,
    /// Cells of which no server answered.
    silent: Mutex<HashMap<CellName, Silence>>,
}

#[derive(Clone, Copy, Debug)]
struct Silence {
    /// The time of the last unanswered call.
    since: Instant,
    /// A probe is under way.
    probing: bool,
}

/// Whether a caller should wait for the servers of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reachability {
    /// The servers answered, or were not called for `SILENT_TIME`.
    Answers,
    /// The servers are silent: callers should not wait for them.
    Silent,
    /// As `Silent`, and the caller that gets this value must probe the servers in the background.
    ProbeNow,
}

#[derive(Debug)]
struct KnownCell {
    cell: Cell,
    /// The name, shared with the entries of the cache directory.
    name: Arc<str>,
    /// When the records of the DNS expire; `None` for a cell that is not from the DNS.
    until: Option<Instant>,
}

impl KnownCells {
    /// Starts with these cells.
    pub fn new(cells: Vec<Cell>) -> Arc<Self> {
        let given = |cell: Cell| KnownCell {
            name: cell.name.as_str().into(),
            cell,
            until: None,
        };
        Arc::new(Self {
            known: RwLock::new(cells.into_iter().map(given).collect()),
            aliases: RwLock::default(),
            dns: OnceLock::new(),
            silent: Mutex::default(),
        })
    }

    /// Looks unknown cells up in `dns` from now on. Only the first call has an effect.
    pub fn discover(&self, dns: Dns) {
        if self.dns.set(dns).is_err() {
            tracing::debug!("the DNS is used already");
        }
    }

    /// Replaces all aliases.
    pub fn alias(&self, aliases: HashMap<CellName, CellName>) {
        *self.aliases.write() = aliases;
    }

    /// Adds an alias. Returns false if the alias is the name of a cell, or if there are too many
    /// aliases.
    pub fn add_alias(&self, alias: CellName, cell: CellName) -> bool {
        if self.number(&alias).is_some() {
            return false;
        }
        let mut aliases = self.aliases.write();
        if aliases.len() >= CELLS_MAX && !aliases.contains_key(&alias) {
            return false;
        }
        aliases.insert(alias, cell);
        true
    }

    /// The cell of an alias; any other name is returned as it is.
    pub fn real(&self, name: &CellName) -> CellName {
        let aliases = self.aliases.read();
        aliases.get(name).unwrap_or(name).clone()
    }

    /// All aliases with their cells, sorted.
    pub fn aliases(&self) -> Vec<(CellName, CellName)> {
        let aliases = self.aliases.read();
        let pair = |(alias, cell): (&CellName, &CellName)| (alias.clone(), cell.clone());
        let mut all: Vec<_> = aliases.iter().map(pair).collect();
        all.sort();
        all
    }

    /// Adds a cell, or replaces its addresses. Returns false if the table is full.
    pub fn add(&self, cell: Cell) -> bool {
        let name = cell.name.clone();
        self.enter(cell, None);
        self.number(&name).is_some()
    }

    /// The cells that are known now.
    pub fn all(&self) -> Vec<Cell> {
        let known = self.known.read();
        known.iter().map(|known| known.cell.clone()).collect()
    }

    /// The number of cells that are known now.
    pub fn count(&self) -> usize {
        self.known.read().len()
    }

    /// The home cell: the first.
    pub(crate) fn home(&self) -> Option<Cell> {
        Some(self.known.read().first()?.cell.clone())
    }

    /// The number of a cell, and its shared name.
    pub fn number(&self, name: &CellName) -> Option<(u32, Arc<str>)> {
        let known = self.known.read();
        let number = known.iter().position(|known| known.cell.name == *name)?;
        Some((number as u32, known[number].name.clone()))
    }

    /// The cell of a name or alias.
    ///
    /// # Errors
    /// [`Error::UnknownCell`] if it is not in the table.
    pub(crate) fn known(&self, name: &CellName) -> Result<Cell> {
        let name = self.real(name);
        let known = self.known.read();
        let found = known.iter().find(|known| known.cell.name == name);
        let found = found.map(|known| known.cell.clone());
        found.ok_or(Error::UnknownCell(name))
    }

    /// As `known`, but looks an unknown cell up in the DNS first.
    pub async fn find(self: &Arc<Self>, name: &CellName) -> Result<Cell> {
        let name = &self.real(name);
        let known = self.known(name);
        let Some(dns) = self.dns.get() else {
            return known;
        };
        if let Ok(cell) = known {
            if self.take_expired(name) {
                let (cells, name) = (self.clone(), name.clone());
                tokio::spawn(async move { cells.refresh(&name).await });
            }
            return Ok(cell);
        }
        if let Some(found) = dns.discover(name).await {
            self.put(found);
        }
        self.known(name)
    }

    /// Whether the records of a cell have expired. Returns true once for each expiry.
    fn take_expired(&self, name: &CellName) -> bool {
        let now = Instant::now();
        let is_expired = |known: &KnownCell| known.until.is_some_and(|until| until <= now);
        if !self.known.read().iter().any(is_expired) {
            return false;
        }
        let mut known = self.known.write();
        let mut expired = known.iter_mut().filter(|known| is_expired(known));
        match expired.find(|known| known.cell.name == *name) {
            Some(known) => {
                known.until = Some(now + RETRY);
                true
            }
            None => false,
        }
    }

    async fn refresh(&self, name: &CellName) {
        if let Some(dns) = self.dns.get()
            && let Some(found) = dns.discover(name).await
        {
            self.put(found);
        }
    }

    /// Whether the servers of a cell answered lately.
    pub fn reachability(&self, name: &CellName) -> Reachability {
        self.reachability_at(name, Instant::now())
    }

    fn reachability_at(&self, name: &CellName, now: Instant) -> Reachability {
        let mut silent = self.silent.lock();
        let Some(one) = silent.get_mut(name) else {
            return Reachability::Answers;
        };
        match now.saturating_duration_since(one.since) {
            _ if one.probing => Reachability::Silent,
            since if since >= SILENT_TIME => Reachability::Answers,
            since if since >= PROBE_TIME => {
                one.probing = true;
                Reachability::ProbeNow
            }
            _ => Reachability::Silent,
        }
    }

    /// Notes whether a server of a cell answered.
    pub fn note_answer(&self, name: &CellName, answered: bool) {
        let mut silent = self.silent.lock();
        if answered {
            silent.remove(name);
        } else if self.number(name).is_some() {
            let since = Instant::now();
            let probing = false;
            silent.insert(name.clone(), Silence { since, probing });
        }
    }

    /// Forgets which cells are silent: the next caller waits for their servers again.
    pub fn forget_silence(&self) {
        self.silent.lock().clear();
    }

    fn put(&self, found: Discovered) {
        self.enter(found.cell, Some(Instant::now() + found.life));
    }

    fn enter(&self, cell: Cell, until: Option<Instant>) {
        self.silent.lock().remove(&cell.name);
        let mut all = self.known.write();
        let is_full = all.len() >= CELLS_MAX;
        match all.iter_mut().find(|known| known.cell.name == cell.name) {
            Some(known) => {
                known.cell = cell;
                known.until = until;
            }
            None if is_full => tracing::warn!(cell = %cell.name, "too many cells"),
            None => all.push(KnownCell {
                name: cell.name.as_str().into(),
                cell,
                until,
            }),
        }
    }
}

#[cfg(test)]
impl KnownCells {
    /// Lets the records of a cell expire now.
    pub(crate) fn expire(&self, name: &CellName) {
        for known in self.known.write().iter_mut() {
            if known.cell.name == *name {
                known.until = known.until.map(|_| Instant::now());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_remembered_for_a_while_and_asked_about_once() {
        let name = CellName::new("quiet.org").expect("name");
        let cell = Cell {
            name: name.clone(),
            database_servers: vec![[192, 0, 2, 1].into()],
            ports: crate::cell::Ports::default(),
        };
        let cells = KnownCells::new(vec![cell.clone()]);
        assert_eq!(cells.reachability(&name), Reachability::Answers);
        cells.note_answer(&name, false);
        assert_eq!(cells.reachability(&name), Reachability::Silent);
        let later = Instant::now() + PROBE_TIME;
        let results = [
            cells.reachability_at(&name, later),
            cells.reachability_at(&name, later),
        ];
        assert_eq!(results, [Reachability::ProbeNow, Reachability::Silent]);
        // The cell stays silent: the time begins again.
        cells.note_answer(&name, false);
        assert_eq!(cells.reachability(&name), Reachability::Silent);
        let later = Instant::now() + SILENT_TIME;
        assert_eq!(cells.reachability_at(&name, later), Reachability::Answers);
        for mend in [
            &(|| cells.note_answer(&name, true)) as &dyn Fn(),
            &|| cells.forget_silence(),
            // The cell has new addresses.
            &|| assert!(cells.add(cell.clone())),
        ] {
            cells.note_answer(&name, false);
            assert_eq!(cells.reachability(&name), Reachability::Silent);
            mend();
            assert_eq!(cells.reachability(&name), Reachability::Answers);
        }
        let unknown = CellName::new("unknown.org").expect("name");
        cells.note_answer(&unknown, false);
        assert_eq!(cells.reachability(&unknown), Reachability::Answers);
    }
}
