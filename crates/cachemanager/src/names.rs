//! The name space: resolves names in directories, across mount points and cells.
//!
//! 1. The root is either *dynamic* or the root of one volume. The dynamic root contains the known
//!    cells by name. A dot before the name leads to the cell's read-write `root.cell`. `@cell` is
//!    the home cell. If the servers of a cell were silent, lookups of the cell fail at once for a
//!    while.
//! 2. A mount point is replaced by the root of the volume that it names, chosen by AFS's rules
//!    ([`cellar_client::mount_point`]). A mount point whose volume is not found is an error of that
//!    name only.
//! 3. A name that ends in `@sys` is tried with each system name in the place of `@sys`.
//! 4. A program that opens a directory, or looks up names in their order, probably looks up the
//!    following names next. So their statuses are fetched together with that of the first one, in
//!    calls for many vnodes.
//! 5. A user without the right to look into a directory receives an error, whatever the cache holds
//!    for other users.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use cellar_rpc::CallError;
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::BULK_MAX;
use tokio::time::Instant;

use super::changes::Changes;
use super::creates::Creates;
use super::environment::Environment;
use super::life::SillyRename;
use super::lock_order::{Ordered, TABLE};
use super::promises::Promises;
use super::request::{afs_name, path_error, refused};
use super::statuses::Statuses;
use super::statuses::cached_names::Listing;
use super::user::User;
use super::vnode::Vnode;
use super::vnode_table::VnodeTable;
use super::write_back::WriteBack;
use cellar_client::cell::{CellName, KnownCells, Reachability};
use cellar_client::error::{Error, PathProblem, Result};
use cellar_client::mount_point::MountPoint;
use cellar_client::volume::Volume;

mod compare;
mod make;
pub(crate) mod name_state;
mod silly_rename;

/// How often a name is looked up if its file is replaced meanwhile.
const TRIES: u32 = 8;

/// The root of a name space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// The known cells, by name.
    Cells,
    /// A volume of the home cell, by name or number. The name may have a suffix.
    Volume(String),
}

/// The result of a lookup.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// The vnode that the name leads to.
    pub vnode: Arc<Vnode>,
    /// The name is a mount point or a cell: the vnode is the root of a volume.
    pub crossed: bool,
}

/// A lookup in a cell that is under way.
struct CellLookup<'a> {
    cells: &'a KnownCells,
    cell: &'a CellName,
    /// If the caller gives up at this time or later, the cell counts as silent.
    silent_at: Instant,
    /// Whether the cell answered. `None`: the caller gave up before the end.
    answered: Option<bool>,
}

impl Drop for CellLookup<'_> {
    fn drop(&mut self) {
        let late = (Instant::now() >= self.silent_at).then_some(false);
        if let Some(answered) = self.answered.or(late) {
            self.cells.note_answer(self.cell, answered);
        }
    }
}

/// Rule 4: returns whether names are looked up in order. Called for a name that leads to a vnode
/// without a promise.
fn is_in_order(directory: &Vnode, listing: &Listing, name: &Bytes) -> bool {
    let mut state = directory.state.lock();
    state.names.looked_up(listing, name)
}

/// See the head of the file.
pub struct Names {
    env: Arc<Environment>,
    vnodes: Arc<VnodeTable>,
    promises: Arc<Promises>,
    creates: Arc<Creates>,
    statuses: Arc<Statuses>,
    changes: Arc<Changes>,
    write_back: Arc<WriteBack>,
    /// Names of removed files that could not be removed at the last close.
    silly_names: Ordered<TABLE, Vec<SillyRename>>,
    /// Servers that are too slow for a comparison of names.
    slow: compare::SlowServers,
    me: Weak<Self>,
}

impl Names {
    pub(super) fn new(write_back: &Arc<WriteBack>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            env: write_back.env.clone(),
            vnodes: write_back.vnodes.clone(),
            promises: write_back.promises.clone(),
            creates: write_back.creates.clone(),
            statuses: write_back.statuses.clone(),
            changes: write_back.changes.clone(),
            write_back: write_back.clone(),
            silly_names: Ordered::default(),
            slow: compare::SlowServers::default(),
            me: me.clone(),
        })
    }

    /// A reference for background tasks.
    fn me(&self) -> Option<Arc<Self>> {
        self.me.upgrade()
    }

    /// Returns the directory at the root; `None` for the dynamic root.
    ///
    /// # Errors
    /// The volume cannot be found.
    pub async fn root(&self, user: &Arc<User>) -> Result<Option<Arc<Vnode>>> {
        match &self.env.options.root {
            Root::Cells => Ok(None),
            Root::Volume(name) => {
                let home = self.env.home().name.clone();
                self.top(user, &home, name, false).await.map(Some)
            }
        }
    }

    /// Returns the target of the link that another name of a cell is in the dynamic root, with or
    /// without a dot before it.
    pub fn alias_of(&self, name: &[u8]) -> Option<String> {
        let text = std::str::from_utf8(name).ok()?;
        let (dot, text) = match text.strip_prefix('.') {
            Some(rest) => (".", rest),
            None => ("", text),
        };
        let alias = CellName::new(text).ok()?;
        let cell = self.env.cells.real(&alias);
        (cell != alias).then(|| format!("{dot}{cell}"))
    }

    /// Returns whether a name in the dynamic root, without a dot before it, is a known cell, and so
    /// a directory.
    pub fn lists(&self, name: &[u8]) -> bool {
        let name = name.strip_prefix(b".").unwrap_or(name);
        let name = std::str::from_utf8(name).ok();
        let name = name.and_then(|name| CellName::new(name).ok());
        name.is_some_and(|name| self.env.cells.number(&name).is_some())
    }

    /// Returns the root directory of the cell that a name in the dynamic root means. Its status is
    /// known afterwards. An unknown cell is looked up in the DNS.
    ///
    /// # Errors
    /// There is no such cell, or none of its servers answers.
    pub async fn lookup_cell(&self, user: &Arc<User>, name: &[u8]) -> Result<Lookup> {
        let not_found = || path_error(name, PathProblem::NotFound);
        let text = std::str::from_utf8(name).map_err(|_| not_found())?;
        let (text, read_write) = match text.strip_prefix('.') {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let cell = match text {
            "@cell" => self.env.home().name.clone(),
            text => CellName::new(text).map_err(|_| not_found())?,
        };
        let cell = self.env.cells.find(&cell).await;
        let cell = cell.map_err(|_| not_found())?;
        match self.env.cells.reachability(&cell.name) {
            Reachability::Answers => {}
            now => {
                if now == Reachability::ProbeNow {
                    self.ask_again(user, cell.name.clone(), read_write);
                }
                let servers = cell.location_servers().map(|server| server.to_string());
                return Err(Error::DatabaseUnreachable {
                    servers: servers.collect::<Vec<_>>().join(", "),
                    cell: cell.name,
                    role: "volume location",
                    cause: CallError::Dead,
                });
            }
        }
        let found = async {
            let vnode = self.top(user, &cell.name, "root.cell", read_write).await?;
            self.statuses.status(user, &vnode).await?;
            Ok::<_, Error>(vnode)
        };
        let mut asking = CellLookup {
            cells: &self.env.cells,
            cell: &cell.name,
            silent_at: Instant::now() + self.env.options.patience,
            answered: None,
        };
        let found = found.await;
        let failed: Option<&Error> = found.as_ref().err();
        asking.answered = Some(failed.is_none_or(|error| !error.is_unreachable()));
        drop(asking);
        Ok(Lookup {
            vnode: found?,
            crossed: true,
        })
    }

    /// The volume that a name in `.:mount` of the dynamic root means: `CELL:VOLUME`, by the
    /// volume's name or number. It is the read-write volume, unless the name ends in `.readonly` or
    /// `.backup`. `CELL:VOLUME:VNODE:UNIQUIFIER` is one vnode of it. Its status is known
    /// afterwards. Source: observed with OpenAFS's clients.
    ///
    /// # Errors
    /// There is no such cell, volume or vnode; no server answers.
    pub async fn lookup_volume(&self, user: &Arc<User>, name: &[u8]) -> Result<Lookup> {
        let not_found = || path_error(name, PathProblem::NotFound);
        let text = std::str::from_utf8(name).map_err(|_| not_found())?;
        let mut parts = text.split(':');
        let (cell, volume) = parts.next().zip(parts.next()).ok_or_else(not_found)?;
        let cell = CellName::new(cell).map_err(|_| not_found())?;
        let mount = MountPoint::parse(format!("%{volume}.").as_bytes()).ok_or_else(not_found)?;
        let cell = self.env.cells.find(&cell).await;
        let cell = cell.map_err(|_| not_found())?.name;
        let fid = match (parts.next(), parts.next(), parts.next()) {
            (None, ..) => None,
            (Some(vnode), Some(uniquifier), None) => {
                let number = |text: &str| text.parse::<u32>().map_err(|_| not_found());
                Some((number(vnode)?, number(uniquifier)?))
            }
            _ => return Err(not_found()),
        };
        let volume = user.client().mounted(None, &cell, &mount).await?;
        let fid = fid.map_or(Fid::root(volume.id), |(vnode, uniquifier)| {
            Fid::new(volume.id.0, vnode, uniquifier)
        });
        let vnode = self.vnodes.vnode(&volume, fid)?;
        self.statuses.status(user, &vnode).await?;
        Ok(Lookup {
            vnode,
            crossed: true,
        })
    }

    /// Checks in the background whether a cell that was silent answers now.
    fn ask_again(&self, user: &Arc<User>, cell: CellName, read_write: bool) {
        let (user, cells) = (user.clone(), self.env.cells.clone());
        tokio::spawn(async move {
            let client = user.client();
            let mount = root_cell(read_write);
            let asked = async {
                let volume = client.mounted(None, &cell, &mount).await?;
                client.status(&volume, Fid::root(volume.id)).await
            };
            let asked = asked.await;
            let answered = asked.map_or_else(|error| !error.is_unreachable(), |_| true);
            cells.note_answer(&cell, answered);
        });
    }

    async fn top(
        &self,
        user: &Arc<User>,
        cell: &CellName,
        volume: &str,
        read_write: bool,
    ) -> Result<Arc<Vnode>> {
        let mount = MountPoint {
            read_write,
            cell: None,
            volume: volume.to_owned(),
        };
        let volume = user.client().mounted(None, cell, &mount).await?;
        self.vnodes.vnode(&volume, Fid::root(volume.id))
    }

    /// Looks a name up in a directory. The status of the result is known afterwards.
    ///
    /// # Errors
    /// There is no such name; the user has no right to look; a server does not answer.
    pub async fn lookup(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        name: &[u8],
    ) -> Result<Lookup> {
        // An impossible name has an error of its own, different from that of a missing one.
        afs_name(name)?;
        for _ in 0..TRIES {
            let listing = self.statuses.listing(user, directory).await?;
            let (found, fid) = self
                .find(&listing, name)
                .ok_or_else(|| path_error(name, PathProblem::NotFound))?;
            let followed = self.follow(user, directory, &listing, &found, fid).await;
            let gone = self.vnodes.vnode(directory.volume(), fid)?.is_gone();
            if followed.is_ok() || !gone {
                return followed;
            }
            // Perhaps another file replaced it, and the break has not arrived yet.
            self.promises.end_promises(&[directory]);
            let now = self.statuses.listing(user, directory).await?;
            if self.find(&now, name).is_some_and(|(_, again)| again == fid) {
                return followed;
            }
        }
        Err(refused(
            format!("{}: it was replaced during each lookup", directory.fid()),
            AbortCode::from_errno(11),
        ))
    }

    /// Returns the vnode of a name that was found in a listing. Follows a mount point.
    async fn follow(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        listing: &Listing,
        name: &Bytes,
        fid: Fid,
    ) -> Result<Lookup> {
        let vnode = self.child(directory, name, fid)?;
        if vnode.promised(user).is_none() && is_in_order(directory, listing, name) {
            let neighbours = self.neighbours(user, directory, listing, name, &vnode)?;
            if neighbours.len() > 1 {
                // If the server does not answer, this is the result. If it answers with an error
                // code (for instance, it does not know the call), the status alone is fetched
                // below.
                let asked = self.statuses.fetch_many(user, &neighbours).await;
                asked.or_else(|error| error.code().map(|_| ()).ok_or(error))?;
            }
        }
        let status = self.statuses.status(user, &vnode).await?;
        if !Vnode::is_mount_point(&status) {
            return Ok(Lookup {
                vnode,
                crossed: false,
            });
        }
        let volume = self.mounted(user, &vnode).await?;
        let vnode = self.vnodes.vnode(&volume, Fid::root(volume.id))?;
        self.statuses.status(user, &vnode).await?;
        Ok(Lookup {
            vnode,
            crossed: true,
        })
    }

    /// Rule 3.
    fn find(&self, listing: &Listing, name: &[u8]) -> Option<(Bytes, Fid)> {
        if let Some((name, fid)) = listing.get_key_value(name) {
            return Some((name.clone(), *fid));
        }
        let before = name.strip_suffix(b"@sys")?;
        self.env.sysnames().iter().find_map(|sysname| {
            let tried = [before, sysname.as_bytes()].concat();
            let (name, fid) = listing.get_key_value(tried.as_slice())?;
            Some((name.clone(), *fid))
        })
    }

    /// Returns the vnode and those without a promise that follow it in the directory.
    fn neighbours(
        &self,
        user: &User,
        directory: &Vnode,
        listing: &Listing,
        name: &Bytes,
        vnode: &Arc<Vnode>,
    ) -> Result<Vec<Arc<Vnode>>> {
        let mut all = vec![vnode.clone()];
        for (_, fid) in listing.range(name.clone()..).skip(1).take(BULK_MAX * 2) {
            let next = self.vnodes.vnode(directory.volume(), *fid)?;
            if next.promised(user).is_none() {
                all.push(next);
            }
            if all.len() >= BULK_MAX {
                break;
            }
        }
        Ok(all)
    }

    /// The volume that a mount point leads to.
    async fn mounted(&self, user: &Arc<User>, mount: &Arc<Vnode>) -> Result<Arc<Volume>> {
        let text = self.statuses.link_text(user, mount).await?;
        let parsed = MountPoint::parse(&text).ok_or_else(|| {
            let text = String::from_utf8_lossy(&text).into_owned();
            path_error(b"mount point", PathProblem::BadMountPoint(text))
        })?;
        let from = mount.volume();
        user.client().mounted(Some(from), &from.cell, &parsed).await
    }

    /// Notes that a program is about to look up the names in this directory one after the other.
    pub fn will_walk(&self, directory: &Vnode) {
        directory.state.lock().names.look_up_in_order();
    }

    /// Returns the vnode of a name in a listing. For a mount point this is the mount point itself.
    ///
    /// # Errors
    /// Never, for a vnode of a known cell.
    pub fn child(&self, directory: &Vnode, name: &Bytes, fid: Fid) -> Result<Arc<Vnode>> {
        let vnode = self.vnodes.vnode(directory.volume(), fid)?;
        if !vnode.is_directory() {
            vnode.state.lock().names.set_found_as(name);
        }
        Ok(vnode)
    }
}

fn root_cell(read_write: bool) -> MountPoint {
    MountPoint {
        read_write,
        cell: None,
        volume: "root.cell".to_owned(),
    }
}
