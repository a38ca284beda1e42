//! Files whose names we remove while programs have them open, or while something of them is not stored.
//!
//! 1. The last name of an open file becomes another one that nobody looks for, and goes when the file is closed: a server
//!    lets a file go with its last name.
//! 2. So it is with a file whose name another one is about to get, but for one thing: if that does not come to it, the name
//!    is given back. Until it is known, its last close removes nothing.
//! 3. A directory goes with its name, also while programs have it open. They see it as it was
//!    last, without links.
//! 4. Bytes that wait to be stored of a file that we have removed ourselves are dropped. If
//!    another client has removed it, they are kept aside ([`super::status`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::AfsTime;
use cellar_wire::rxafs::{self, AfsFetchStatus};

use super::Cache;
use super::behind::RETRY;
use super::change::afs_name;
use super::status::refused;
use super::user::User;
use super::vnode::{Leftover, Vnode};
use crate::error::Result;

/// Names of removed files that wait to be removed.
const LEFTOVERS_MAX: usize = 4_096;
/// How often a name for a removed open file is looked for.
const LEFTOVER_TRIES: u32 = 100;

/// We remove the last name of a file ourselves: that the server no longer knows it is no news then, and nobody misses what was
/// not stored.
pub(crate) struct Removing(Arc<Vnode>);

impl Removing {
    pub(crate) fn of(file: &Arc<Vnode>) -> Self {
        file.state.lock().removing += 1;
        Self(file.clone())
    }
}

impl Drop for Removing {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.removing = state.removing.saturating_sub(1);
    }
}

/// An open file that has lost its name to something that is about to get it. Whoever waits may be told to give up: it gets
/// its name back then.
pub(crate) struct Replaced<'a> {
    cache: &'a Cache,
    name: &'a [u8],
    file: Arc<Vnode>,
    leftover: Option<Leftover>,
}

impl<'a> Replaced<'a> {
    /// Takes a file's last name from it.
    ///
    /// # Errors
    /// The server's refusal: it has it still.
    pub(crate) async fn take(
        cache: &'a Cache,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        name: &'a [u8],
        file: &Arc<Vnode>,
    ) -> Result<Self> {
        let leftover = cache.leave_over(user, directory, name, file).await?;
        Ok(Self {
            cache,
            name,
            file: file.clone(),
            leftover: Some(leftover),
        })
    }

    /// What was to get the name has come to it, or not.
    pub(crate) async fn settle(mut self, came: bool) {
        let Some(leftover) = self.leftover.clone() else {
            return;
        };
        if came {
            self.leftover = None;
            self.cache.left_over(&self.file, leftover).await;
        } else {
            self.cache.put_back(self.name, &self.file, leftover).await;
            self.leftover = None;
        }
    }
}

impl Drop for Replaced<'_> {
    fn drop(&mut self) {
        let Some(leftover) = self.leftover.take() else {
            return;
        };
        let (Some(cache), Ok(runtime)) = (self.cache.me(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let (name, file) = (Bytes::copy_from_slice(self.name), self.file.clone());
        runtime.spawn(async move { cache.put_back(&name, &file, leftover).await });
    }
}

impl Cache {
    /// A name of it is gone since that time of the server's.
    pub(crate) async fn unlinked(&self, user: &Arc<User>, file: &Arc<Vnode>, at: AfsTime) {
        if file.is_directory() {
            return file.directory_removed();
        }
        let waits = file.body.lock().is_changed() && file.state.lock().opens == 0;
        match file.last_status() {
            Some(status) if status.link_count > 1 => {
                let status = AfsFetchStatus {
                    link_count: status.link_count - 1,
                    server_mod_time: status.server_mod_time.max(at),
                    ..status
                };
                let owed = file.heard(user.id(), &status, None);
                self.pay(file, owed);
            }
            // Another client may have given it another name, of which we have not been told: what waits is not thrown away
            // before the server says that the file is gone.
            _ if waits && !self.is_gone_at_server(user, file).await => {}
            _ => {
                file.state.lock().removed = true;
                // The kernel removed the name itself.
                let _known = file.vanished();
                if file.state.lock().opens == 0 {
                    file.body.lock().abandon();
                    self.unstored.lock().remove(&file.key);
                }
            }
        }
    }

    async fn is_gone_at_server(&self, user: &Arc<User>, file: &Arc<Vnode>) -> bool {
        let asked = self.ask(user, file).await;
        asked.is_err_and(|error| error.code() == Some(AbortCode::VNOVNODE))
    }

    /// Renames an open file whose last name is removed, until it is closed. Source: OpenAFS's name.
    /// Answers what [`Self::left_over`] or [`Self::put_back`] is to be told.
    pub(crate) async fn leave_over(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        name: &[u8],
        file: &Arc<Vnode>,
    ) -> Result<Leftover> {
        let listing = self.listing(user, directory).await?;
        let free = (0..LEFTOVER_TRIES).find_map(|_| {
            let number = self.ticks.fetch_add(1, Ordering::Relaxed);
            let name = format!(".__afs{number:X}{:X}", file.fid().uniquifier.0);
            (!listing.contains_key(name.as_bytes())).then(|| Bytes::from(name))
        });
        let leftover =
            free.ok_or_else(|| refused("no name for an open file", AbortCode::EEXIST))?;
        drop(listing);
        let new = afs_name(&leftover)?;
        let reply = self
            .change(user, (directory, None), name, |old_dir_fid, old_name| {
                rxafs::Rename {
                    old_dir_fid,
                    old_name,
                    new_dir_fid: old_dir_fid,
                    new_name: new,
                }
            })
            .await?;
        let (fid, leftover_name) = (file.fid(), leftover.clone());
        self.directory_changed(user, directory, &reply.new_dir_status, |listing| {
            listing.remove(name);
            listing.insert(leftover_name, fid);
        });
        Ok(Leftover {
            directory: directory.clone(),
            name: leftover,
            user: user.clone(),
        })
    }

    /// A file has no other name than that any more, and goes when it is closed; at once, if it was closed meanwhile.
    pub(crate) async fn left_over(&self, file: &Arc<Vnode>, leftover: Leftover) {
        let open = {
            let mut state = file.state.lock();
            state.leftover = Some(leftover);
            state.opens > 0
        };
        if !open {
            self.remove_leftover(file).await;
        }
    }

    /// What was to replace a file did not come: that gets its name back. Where the server did not say so, its directory does:
    /// what has the name by now keeps it.
    async fn put_back(&self, name: &[u8], file: &Arc<Vnode>, leftover: Leftover) {
        let Leftover {
            directory,
            name: old,
            user,
        } = leftover;
        let back = async {
            let listing = self.listing(&user, &directory).await?;
            if listing.contains_key(name) || listing.get(&old) != Some(&file.fid()) {
                return Err(refused("its old name", AbortCode::EEXIST));
            }
            drop(listing);
            let new = afs_name(name)?;
            self.change(&user, (&directory, None), &old, |old_dir_fid, old_name| {
                rxafs::Rename {
                    old_dir_fid,
                    old_name,
                    new_dir_fid: old_dir_fid,
                    new_name: new,
                }
            })
            .await
        };
        match back.await {
            Ok(reply) => {
                let (fid, new) = (file.fid(), Bytes::copy_from_slice(name));
                self.directory_changed(&user, &directory, &reply.new_dir_status, |listing| {
                    listing.remove(&old);
                    listing.insert(new, fid);
                });
            }
            // It is not removed under that name: it may be all that there is of it.
            Err(error) => {
                let (name, old) = (String::from_utf8_lossy(name), String::from_utf8_lossy(&old));
                tracing::warn!(%name, %old, %error, "a rename failed, and what it was to replace stays under another name");
            }
        }
    }

    /// Removes what was left over of a file that nobody has open any more.
    pub(crate) async fn remove_leftover(&self, file: &Arc<Vnode>) {
        let leftover = {
            let mut state = file.state.lock();
            let Some(leftover) = state.leftover.take() else {
                return;
            };
            state.removed = true;
            leftover
        };
        file.body.lock().abandon();
        self.unstored.lock().remove(&file.key);
        let Leftover {
            directory,
            name,
            user,
        } = leftover;
        let leftover = Leftover {
            directory,
            name,
            user,
        };
        self.remove_leftover_name(leftover).await;
        // The kernel has closed it.
        let _known = file.vanished();
    }

    /// Removes such a name. It is tried again later, if no server can be reached: the answer is
    /// `false` then.
    async fn remove_leftover_name(&self, leftover: Leftover) -> bool {
        let Leftover {
            directory,
            name,
            user,
        } = &leftover;
        let Err(error) = self.remove_name(user, directory, name).await else {
            return true;
        };
        if error.is_not_found() {
            return true;
        }
        let waits = error.is_unreachable() && {
            let mut leftovers = self.leftovers.lock();
            let has_room = leftovers.len() < LEFTOVERS_MAX;
            if has_room {
                leftovers.push(leftover.clone());
            }
            has_room
        };
        if !waits {
            let name = String::from_utf8_lossy(name);
            tracing::warn!(%name, %error, "a removed file stays under this name");
        }
        !waits
    }

    /// Tries again to remove what could not be removed before, for as long as servers answer.
    pub(crate) async fn remove_leftovers(&self) {
        let mut leftovers = std::mem::take(&mut *self.leftovers.lock()).into_iter();
        for leftover in leftovers.by_ref() {
            if !self.remove_leftover_name(leftover).await {
                break;
            }
        }
        self.leftovers.lock().extend(leftovers);
    }

    /// Does so for as long as the cache lives.
    pub(crate) async fn keep_removing(cache: std::sync::Weak<Self>) {
        loop {
            tokio::time::sleep(RETRY).await;
            let Some(cache) = cache.upgrade() else {
                return;
            };
            cache.remove_leftovers().await;
        }
    }
}
