//! Control of the cache manager: extended attributes that only such a mount has, read and set on a
//! path in it. `cellar fs` uses them. Their values are text, so that `getfattr` and `setfattr` work
//! too. The kernel identifies the caller.
//!
//! 1. Settings of the whole mount are for root and the mounting user. A user who may see a file may
//!    flush it or its volume. A user who may write a file may set its limit of store behind.
//! 2. The list of unstored files contains the caller's own files; for root and the mounting user it
//!    contains all.

use std::sync::Arc;

use cellar_cachemanager::{SIZE_MIN, SYSNAMES_MAX, Vnode};
use cellar_client::{Cell, CellName, errno};
use cellar_wire::acl::Rights;
use fuser::{Errno, INodeNo};

use crate::inodes::Node;
use crate::requests::{Answer, Requests, code};

/// The common prefix of their names.
const PREFIX: &[u8] = b"afs.cellar.";
/// Read: lines of a word and its value for the mount.
pub const STATUS: &str = "afs.cellar.status";
/// Read: the cell of a file, in the form of [`Cell::line`].
pub const CELL: &str = "afs.cellar.cell";
/// Read, with a page number from 0 at the end: some of the cells, one a line. Empty after the last
/// page.
pub const CELLS: &str = "afs.cellar.cells.";
/// Read in pages likewise: aliases of cells, each with its cell.
pub const ALIASES: &str = "afs.cellar.aliases.";
/// Read in pages likewise, for unstored files: fid, cell, bytes, data version, user (or `-`), and
/// errno of the last store (or 0).
pub const UNSTORED: &str = "afs.cellar.unstored.";
/// Read in pages likewise: cell and address of servers that did not answer a short while ago.
pub const SILENT: &str = "afs.cellar.silent.";
/// Read: an empty value, after the kernel has received all earlier notices.
pub const HEARD: &str = "afs.cellar.heard";
/// Set to any value, by a user whose tokens have changed.
pub const TOKENS: &str = "afs.cellar.tokens";
/// Set to `file`, `volume` or `all`.
pub const FLUSH: &str = "afs.cellar.flush";
/// Set on a directory: the name of a mount point in it.
pub const FLUSH_MOUNT: &str = "afs.cellar.flushmount";
/// Set to any value.
pub const CHECK_VOLUMES: &str = "afs.cellar.checkvolumes";
/// Set to a size in KiB; 0 for the size at the start.
pub const CACHE_SIZE: &str = "afs.cellar.cachesize";
/// Set to names, one a line.
pub const SYSNAMES: &str = "afs.cellar.sysnames";
/// Set to a [`Cell::line`].
pub const NEW_CELL: &str = "afs.cellar.newcell";
/// Set to the alias and the cell.
pub const NEW_ALIAS: &str = "afs.cellar.newalias";
/// Set to `on` or `off`.
pub const CRYPT: &str = "afs.cellar.crypt";
/// Of a file: KiB that may be unstored when it is closed, or `default`.
pub const STORE_BEHIND: &str = "afs.cellar.storebehind";
/// Set to the KiB that may be unstored in files without a value of their own.
pub const STORE_BEHIND_ALL: &str = "afs.cellar.storebehind.all";

/// Lines of one value. All of them fit into the 64 KiB that a value may have.
const LINES: usize = 128;
/// The longest value of `@sys`. Source: `MAXSYSNAME` of OpenAFS.
const SYSNAME_BYTES_MAX: usize = 127;
/// The largest limit in KiB for a file: 1 TiB.
pub const STORE_BEHIND_MAX: u64 = 1 << 30;

/// Returns whether an extended attribute is one of these.
pub(crate) fn is_control(name: &[u8]) -> bool {
    name.starts_with(PREFIX)
}

/// The lines of a page, from `page * LINES` on.
fn page(lines: impl Iterator<Item = String>, page: &str) -> Answer<String> {
    let page: usize = page.parse().map_err(|_| Errno::EOPNOTSUPP)?;
    let skipped = lines.skip(page.saturating_mul(LINES));
    Ok(skipped.take(LINES).map(|line| line + "\n").collect())
}

fn on_or_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

fn number(text: &str) -> Answer<u64> {
    text.trim().parse().map_err(|_| Errno::EINVAL)
}

impl Requests {
    /// Returns whether rule 1 lets a user change settings of the mount.
    fn manages(&self, uid: u32) -> bool {
        uid == 0 || uid == self.owner
    }

    fn must_manage(&self, uid: u32) -> Answer<()> {
        if self.manages(uid) {
            Ok(())
        } else {
            Err(Errno::EPERM)
        }
    }

    fn file(&self, number: INodeNo) -> Answer<Arc<Vnode>> {
        match self.node(number)? {
            Node::Vnode(vnode) => Ok(vnode),
            Node::Cells | Node::Volumes | Node::Cell(_) | Node::Link(_) => Err(Errno::EINVAL),
        }
    }

    /// The cell of a file, or of a listed cell's name.
    fn cell_of(&self, number: INodeNo) -> Answer<CellName> {
        let Node::Cell(name) = self.node(number)? else {
            return Ok(self.file(number)?.volume().cell.clone());
        };
        let name = name.strip_prefix(b".").unwrap_or(&name);
        let name = std::str::from_utf8(name).map_err(|_| Errno::EINVAL)?;
        CellName::new(name).map_err(|_| Errno::EINVAL)
    }

    /// The value of one of these attributes.
    pub(crate) fn control(&self, uid: u32, number: INodeNo, name: &[u8]) -> Answer<Vec<u8>> {
        let name = std::str::from_utf8(name).map_err(|_| Errno::EOPNOTSUPP)?;
        let text = match name {
            STATUS => self.status(),
            CELL => {
                let name = self.cell_of(number)?;
                let cells = self.cache.cells();
                let cell = cells.iter().find(|cell| cell.name == name);
                cell.ok_or(Errno::ENOENT)?.line()
            }
            STORE_BEHIND => match self
                .cache
                .write_back()
                .store_behind_of(&*self.file(number)?)
            {
                Some(bytes) => (bytes >> 10).to_string(),
                None => "default".to_owned(),
            },
            _ => {
                if let Some(at) = name.strip_prefix(CELLS) {
                    let cells = self.cache.cells();
                    page(cells.iter().map(Cell::line), at)?
                } else if let Some(at) = name.strip_prefix(ALIASES) {
                    let aliases = self.cache.management().aliases().into_iter();
                    page(aliases.map(|(alias, cell)| format!("{alias} {cell}")), at)?
                } else if let Some(at) = name.strip_prefix(SILENT) {
                    let silent = self.cache.management().silent_servers().into_iter();
                    page(silent.map(|(cell, ip)| format!("{cell} {ip}")), at)?
                } else if let Some(at) = name.strip_prefix(UNSTORED) {
                    self.unstored(uid, at)?
                } else {
                    return Err(Errno::EOPNOTSUPP);
                }
            }
        };
        Ok(text.into_bytes())
    }

    fn unstored(&self, uid: u32, at: &str) -> Answer<String> {
        let whose = (!self.manages(uid)).then_some(uid);
        let all = self.cache.management().waiting(whose).into_iter();
        let line = |(one, failed): cellar_cachemanager::UnstoredFile| {
            let user = match one.writer {
                u32::MAX => "-".to_owned(),
                uid => uid.to_string(),
            };
            let failed = failed.unwrap_or(0);
            let (fid, cell, bytes, version) = (one.fid, one.cell, one.bytes, one.version);
            format!("{fid} {cell} {bytes} {version} {user} {failed}")
        };
        let aside = self.cache.management().aside(whose).into_iter();
        let aside = aside.map(|path| format!("aside {}", path.display()));
        page(all.map(line).chain(aside), at)
    }

    fn status(&self) -> String {
        let cache = &self.cache;
        let sysnames = cache.management().sysnames();
        let home = cache.cells().into_iter().next();
        let home = home.map_or(String::new(), |cell| cell.name.to_string());
        let lines = [
            ("owner", self.owner.to_string()),
            ("home", home),
            ("cache-kib", (cache.management().size() >> 10).to_string()),
            (
                "used-kib",
                cache.management().used().div_ceil(1 << 10).to_string(),
            ),
            (
                "dirty-kib",
                cache.management().dirty().div_ceil(1 << 10).to_string(),
            ),
            ("vnodes", cache.management().vnodes_known().to_string()),
            ("vnodes-max", cache.options().vnodes_max.to_string()),
            ("crypt", on_or_off(cache.management().encrypts()).to_owned()),
            ("suid", on_or_off(self.suid).to_owned()),
            (
                "store-behind-kib",
                (cache.management().store_behind() >> 10).to_string(),
            ),
            ("sysnames", sysnames.join(" ")),
        ];
        lines
            .into_iter()
            .map(|(word, value)| format!("{word} {value}\n"))
            .collect()
    }

    /// Carries out the setting of one of these attributes.
    pub(crate) async fn set_control(
        &self,
        uid: u32,
        number: INodeNo,
        name: &[u8],
        value: &[u8],
    ) -> Answer<()> {
        let name = std::str::from_utf8(name).map_err(|_| Errno::EOPNOTSUPP)?;
        let text = std::str::from_utf8(value).map_err(|_| Errno::EINVAL)?;
        match name {
            TOKENS => self.cache.look_again(uid),
            FLUSH if text == "all" => {
                self.must_manage(uid)?;
                self.cache.management().flush_all();
            }
            FLUSH => {
                let user = self.user(uid).await?;
                self.find_root(uid, number).await?;
                let vnode = self.file(number)?;
                let flushed = match text {
                    "file" => self.cache.management().flush(&user, &vnode).await,
                    "volume" => self.cache.management().flush_volume(&user, &vnode).await,
                    _ => return Err(Errno::EINVAL),
                };
                flushed.map_err(code)?;
            }
            FLUSH_MOUNT => {
                let user = self.user(uid).await?;
                self.find_root(uid, number).await?;
                if let Node::Cells | Node::Volumes = self.node(number)? {
                    self.cache.management().flush_cell(value).map_err(code)?;
                    return Ok(());
                }
                let directory = self.file(number)?;
                let flushed = self
                    .cache
                    .management()
                    .flush_mount(&user, &directory, value)
                    .await;
                flushed.map_err(code)?;
            }
            STORE_BEHIND => {
                let user = self.user(uid).await?;
                let vnode = self.file(number)?;
                let rights = self
                    .cache
                    .statuses()
                    .rights(&user, &vnode)
                    .await
                    .map_err(code)?;
                if vnode.is_directory() {
                    return Err(Errno::EISDIR);
                }
                if !rights.contains(Rights::WRITE) {
                    return Err(Errno::EACCES);
                }
                let bytes = match text {
                    "default" => None,
                    _ => Some(store_behind(text)?),
                };
                self.cache.write_back().set_store_behind_of(&vnode, bytes);
            }
            _ => {
                self.must_manage(uid)?;
                self.manage(name, text).await?;
            }
        }
        Ok(())
    }

    async fn manage(&self, name: &str, text: &str) -> Answer<()> {
        match name {
            CHECK_VOLUMES => self.cache.management().check_volumes(),
            CACHE_SIZE => {
                let bytes = match number(text)? {
                    0 => self.cache.options().size,
                    kib => kib.checked_mul(1 << 10).ok_or(Errno::EINVAL)?,
                };
                if bytes < SIZE_MIN {
                    return Err(Errno::EINVAL);
                }
                self.cache.management().set_size(bytes);
            }
            SYSNAMES => {
                let names: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
                let is_one = |name: &String| name.len() <= SYSNAME_BYTES_MAX && !name.contains('/');
                if names.is_empty() || names.len() > SYSNAMES_MAX || !names.iter().all(is_one) {
                    return Err(Errno::EINVAL);
                }
                self.cache.management().set_sysnames(&names);
            }
            NEW_CELL => {
                let cell = Cell::parse_line(text).ok_or(Errno::EINVAL)?;
                if !self.cache.management().new_cell(cell) {
                    return Err(Errno::ENOSPC);
                }
            }
            NEW_ALIAS => {
                let (alias, cell) = text.split_once(' ').ok_or(Errno::EINVAL)?;
                let name = |text| CellName::new(text).map_err(|_| Errno::EINVAL);
                let (alias, cell) = (name(alias)?, name(cell)?);
                let added = self.cache.management().new_alias(alias, &cell).await;
                let added = added.map_err(|error| match error {
                    cellar_client::Error::UnknownCell(_) => Errno::ENOENT,
                    error => Errno::from_i32(errno(&error)),
                })?;
                if !added {
                    return Err(Errno::EEXIST);
                }
            }
            CRYPT => {
                let on = match text {
                    "on" => true,
                    "off" => false,
                    _ => return Err(Errno::EINVAL),
                };
                self.cache.management().set_encrypt(on).await;
                if self.cache.management().encrypts() != on {
                    return Err(Errno::EOPNOTSUPP);
                }
            }
            STORE_BEHIND_ALL => self
                .cache
                .management()
                .set_store_behind(store_behind(text)?),
            _ => return Err(Errno::EOPNOTSUPP),
        }
        Ok(())
    }
}

/// Parses a limit in KiB and returns bytes.
fn store_behind(text: &str) -> Answer<u64> {
    match number(text)? {
        kib @ 0..=STORE_BEHIND_MAX => Ok(kib << 10),
        _ => Err(Errno::EINVAL),
    }
}
