//! The cells that a client knows: those it was given, their other names, and those that the DNS knows.
//!
//! A cell keeps its number for as long as the client lives. What came from the DNS is asked for again when it has
//! run out: in the background, as what is known serves until something else is.
//!
//! Of a cell whose servers did not answer that is remembered for [`SILENT_TIME`], so that not everybody who comes by waits for
//! them in turn; meanwhile they are asked in the background.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use crate::cell::{Cell, CellName};
use crate::dns::{Discovered, Dns};
use crate::error::{Error, Result};

/// Cells that are known at most: more than there are.
const CELLS_MAX: usize = 4_096;
/// How soon a cell that has run out, and is not found again, is asked for once more.
const RETRY: Duration = Duration::from_secs(300);
/// How long it is remembered that nobody of a cell answered.
const SILENT_TIME: Duration = Duration::from_secs(300);
/// How soon such a cell is asked again, in the background.
const PROBE_TIME: Duration = Duration::from_secs(10);

/// All cells that are known.
#[derive(Debug)]
pub(crate) struct Cells {
    known: RwLock<Vec<Known>>,
    /// Other names of cells.
    aliases: RwLock<HashMap<CellName, CellName>>,
    dns: OnceLock<Dns>,
    /// Cells of which nobody answered.
    silent: Mutex<HashMap<CellName, Silence>>,
}

#[derive(Clone, Copy, Debug)]
struct Silence {
    /// Since the last question.
    since: Instant,
    /// It is being asked again.
    asked: bool,
}

/// What a cell that did not answer is good for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It has answered, or was not asked for a while.
    Yes,
    /// Nobody should wait for it.
    No,
    /// The same, and whoever is told this asks it again in the background.
    AskAgain,
}

#[derive(Debug)]
struct Known {
    cell: Cell,
    /// The name as a cache's directory has it.
    name: Arc<str>,
    /// Of the DNS: when it is asked for again.
    until: Option<Instant>,
}

impl Cells {
    pub(crate) fn new(cells: Vec<Cell>) -> Arc<Self> {
        let given = |cell: Cell| Known {
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

    /// Cells that are not known are asked of `dns` from now on. The first call counts.
    pub(crate) fn discover(&self, dns: Dns) {
        if self.dns.set(dns).is_err() {
            tracing::debug!("the DNS is asked already");
        }
    }

    /// These are other names of cells, from now on.
    pub(crate) fn alias(&self, aliases: HashMap<CellName, CellName>) {
        *self.aliases.write() = aliases;
    }

    /// One more name of a cell. `false`: that is a cell's name, or there are too many.
    pub(crate) fn add_alias(&self, alias: CellName, cell: CellName) -> bool {
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

    /// The cell that a name is another one of, if it is.
    pub(crate) fn real(&self, name: &CellName) -> CellName {
        let aliases = self.aliases.read();
        aliases.get(name).unwrap_or(name).clone()
    }

    /// Other names of cells, and the cells, in their order.
    pub(crate) fn aliases(&self) -> Vec<(CellName, CellName)> {
        let aliases = self.aliases.read();
        let pair = |(alias, cell): (&CellName, &CellName)| (alias.clone(), cell.clone());
        let mut all: Vec<_> = aliases.iter().map(pair).collect();
        all.sort();
        all
    }

    /// A cell is known from now on, or is where this says. `false`: too many are.
    pub(crate) fn add(&self, cell: Cell) -> bool {
        let name = cell.name.clone();
        self.enter(cell, None);
        self.number(&name).is_some()
    }

    pub(crate) fn all(&self) -> Vec<Cell> {
        let known = self.known.read();
        known.iter().map(|known| known.cell.clone()).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.known.read().len()
    }

    /// The home cell: the first.
    pub(crate) fn home(&self) -> Option<Cell> {
        Some(self.known.read().first()?.cell.clone())
    }

    /// A cell's number, and its name as directories have it.
    pub(crate) fn number(&self, name: &CellName) -> Option<(u32, Arc<str>)> {
        let known = self.known.read();
        let number = known.iter().position(|known| known.cell.name == *name)?;
        Some((number as u32, known[number].name.clone()))
    }

    /// What is known of a cell now.
    pub(crate) fn known(&self, name: &CellName) -> Result<Cell> {
        let name = self.real(name);
        let known = self.known.read();
        let found = known.iter().find(|known| known.cell.name == name);
        let found = found.map(|known| known.cell.clone());
        found.ok_or(Error::UnknownCell(name))
    }

    /// The same; one that is not known is asked of the DNS.
    pub(crate) async fn find(self: &Arc<Self>, name: &CellName) -> Result<Cell> {
        let name = &self.real(name);
        let known = self.known(name);
        let Some(dns) = self.dns.get() else {
            return known;
        };
        if let Ok(cell) = known {
            if self.has_run_out(name) {
                let (cells, name) = (self.clone(), name.clone());
                tokio::spawn(async move { cells.ask_again(&name).await });
            }
            return Ok(cell);
        }
        if let Some(found) = dns.discover(name).await {
            self.put(found);
        }
        self.known(name)
    }

    /// Whether a cell is to be asked for again; that is said once.
    fn has_run_out(&self, name: &CellName) -> bool {
        let now = Instant::now();
        let is_out = |known: &Known| known.until.is_some_and(|until| until <= now);
        if !self.known.read().iter().any(is_out) {
            return false;
        }
        let mut known = self.known.write();
        let mut out = known.iter_mut().filter(|known| is_out(known));
        match out.find(|known| known.cell.name == *name) {
            Some(known) => {
                known.until = Some(now + RETRY);
                true
            }
            None => false,
        }
    }

    async fn ask_again(&self, name: &CellName) {
        if let Some(dns) = self.dns.get()
            && let Some(found) = dns.discover(name).await
        {
            self.put(found);
        }
    }

    /// Whether the servers of a cell were silent a short while ago.
    pub(crate) fn heard(&self, name: &CellName) -> Heard {
        self.heard_at(name, Instant::now())
    }

    fn heard_at(&self, name: &CellName, now: Instant) -> Heard {
        let mut silent = self.silent.lock();
        let Some(one) = silent.get_mut(name) else {
            return Heard::Yes;
        };
        match now.saturating_duration_since(one.since) {
            _ if one.asked => Heard::No,
            since if since >= SILENT_TIME => Heard::Yes,
            since if since >= PROBE_TIME => {
                one.asked = true;
                Heard::AskAgain
            }
            _ => Heard::No,
        }
    }

    /// Nobody of a cell answered, or somebody did.
    pub(crate) fn asked(&self, name: &CellName, answered: bool) {
        let mut silent = self.silent.lock();
        if answered {
            silent.remove(name);
        } else if self.number(name).is_some() {
            let since = Instant::now();
            let asked = false;
            silent.insert(name.clone(), Silence { since, asked });
        }
    }

    /// All cells are asked again by whoever wants something of them.
    pub(crate) fn forget_silence(&self) {
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
            None => all.push(Known {
                name: cell.name.as_str().into(),
                cell,
                until,
            }),
        }
    }
}

#[cfg(test)]
impl Cells {
    /// What came from the DNS has run out.
    pub(crate) fn run_out(&self, name: &CellName) {
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
        let cells = Cells::new(vec![cell.clone()]);
        assert_eq!(cells.heard(&name), Heard::Yes);
        cells.asked(&name, false);
        assert_eq!(cells.heard(&name), Heard::No);
        let later = Instant::now() + PROBE_TIME;
        let told = [cells.heard_at(&name, later), cells.heard_at(&name, later)];
        assert_eq!(told, [Heard::AskAgain, Heard::No]);
        // It is still silent: for a while more.
        cells.asked(&name, false);
        assert_eq!(cells.heard(&name), Heard::No);
        let later = Instant::now() + SILENT_TIME;
        assert_eq!(cells.heard_at(&name, later), Heard::Yes);
        for mend in [
            &(|| cells.asked(&name, true)) as &dyn Fn(),
            &|| cells.forget_silence(),
            // It is somewhere else now.
            &|| assert!(cells.add(cell.clone())),
        ] {
            cells.asked(&name, false);
            assert_eq!(cells.heard(&name), Heard::No);
            mend();
            assert_eq!(cells.heard(&name), Heard::Yes);
        }
        let unknown = CellName::new("unknown.org").expect("name");
        cells.asked(&unknown, false);
        assert_eq!(cells.heard(&unknown), Heard::Yes);
    }
}
