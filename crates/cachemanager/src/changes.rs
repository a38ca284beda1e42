//! Changes of names and attributes: one call for each, and the check whether a change without an
//! answer was made.

use std::net::SocketAddr;
use std::sync::Arc;

use cellar_wire::AfsName;
use cellar_wire::ids::{AfsTime, Fid};
use cellar_wire::rxafs::{self, AfsFetchStatus, AfsStoreStatus};
use tokio::time::Instant;

use super::creates::Creates;
use super::environment::Environment;
use super::promises::Promises;
use super::request::afs_name;
use super::statuses::Statuses;
use super::user::User;
use super::vnode::Vnode;
use cellar_client::error::Result;

mod verify;

pub(super) use verify::Verify;
use verify::{NameChange, is_about_name};

/// Sends changes to servers. Has no state of its own.
pub struct Changes {
    env: Arc<Environment>,
    promises: Arc<Promises>,
    creates: Arc<Creates>,
    statuses: Arc<Statuses>,
}

/// A change that is under way. If there is no answer, because the server is silent or the program
/// gave up, the server may still make the change later. It breaks none of our promises for a change
/// of our own. So a drop without an answer marks the vnodes as undecided.
struct UnansweredChange<'a> {
    promises: &'a Promises,
    vnodes: Vec<&'a Arc<Vnode>>,
}

impl UnansweredChange<'_> {
    /// Notes the outcome, if the server made the change or refused it.
    fn resolve<T>(&mut self, outcome: &Result<T>) {
        let answered = match outcome {
            Ok(_) => true,
            Err(error) => error.code().is_some_and(|code| code.0 > 0),
        };
        if answered {
            self.vnodes.clear();
        }
    }
}

impl Drop for UnansweredChange<'_> {
    fn drop(&mut self) {
        self.promises.undecided(&self.vnodes);
    }
}

impl Changes {
    pub(super) fn new(statuses: &Arc<Statuses>) -> Self {
        Self {
            env: statuses.env.clone(),
            promises: statuses.promises.clone(),
            creates: statuses.creates.clone(),
            statuses: statuses.clone(),
        }
    }

    /// Changes the mode, owner, group or modification time.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn set_status(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        set: AfsStoreStatus,
    ) -> Result<AfsFetchStatus> {
        self.creates.flush_pending(vnode).await?;
        let arguments = rxafs::StoreStatus {
            fid: vnode.fid(),
            in_status: set,
        };
        let what = format!("attributes of {}", vnode.fid());
        let mut unanswered = UnansweredChange {
            promises: &self.promises,
            vnodes: vec![vnode],
        };
        let outcome = user
            .client()
            .call_volume(vnode.volume(), &what, &arguments)
            .await
            .inspect_err(|error| self.creates.note_failure(vnode, error));
        unanswered.resolve(&outcome);
        let reply = outcome?;
        self.promises.apply_status(user, vnode, &reply.status, None);
        if let Some(time) = set.client_mod_time {
            vnode.body.lock().set_modified(time);
        }
        Ok(reply.status)
    }

    /// Makes a change in a directory, which may also change `other`.
    pub(crate) async fn change<P: Verify>(
        &self,
        user: &Arc<User>,
        (directory, other): (&Arc<Vnode>, Option<&Arc<Vnode>>),
        name: &[u8],
        arguments: impl FnOnce(Fid, AfsName) -> P,
    ) -> Result<P::Reply> {
        let changed = self.change_at(user, (directory, other), name, arguments);
        Ok(changed.await?.0)
    }

    /// Like [`Changes::change`], and returns the address that answered. `None`: the call had no
    /// answer, and the directory showed that the change was made.
    pub(crate) async fn change_at<P: Verify>(
        &self,
        user: &Arc<User>,
        (directory, other): (&Arc<Vnode>, Option<&Arc<Vnode>>),
        name: &[u8],
        arguments: impl FnOnce(Fid, AfsName) -> P,
    ) -> Result<(P::Reply, Option<SocketAddr>)> {
        for vnode in std::iter::once(directory).chain(other) {
            self.creates.flush_pending(vnode).await?;
        }
        let arguments = arguments(directory.fid(), afs_name(name)?);
        let before = directory.state.lock().contents.latest_listing();
        let change = NameChange {
            changes: self,
            user,
            directory,
            other,
            before: before.and_then(|listing| listing.get(name).copied()),
        };
        let what = String::from_utf8_lossy(name).into_owned();
        let mut unanswered = UnansweredChange {
            promises: &self.promises,
            vnodes: std::iter::once(directory).chain(other).collect(),
        };
        let client = user.client();
        let (began, before) = (Instant::now(), self.env.reach.marks());
        let mut ended = false;
        loop {
            let outcome = client.call_volume_at(directory.volume(), &what, &arguments);
            let error = match outcome.await {
                Ok((reply, by)) => {
                    unanswered.resolve(&Ok(()));
                    return Ok((reply, Some(by)));
                }
                Err(error) => error,
            };
            let goes_on = error.is_gone() && began.elapsed() < self.env.options.patience;
            ended |= error.is_gone();
            let about_name = is_about_name(error.code());
            let restarted = ended || self.env.reach.marks().show_restart_since(before);
            if goes_on || (about_name && restarted) {
                tracing::debug!(name = what, %error, "checking whether the change was made");
                match arguments.verify(change).await {
                    Ok(Some(reply)) => {
                        unanswered.resolve(&Ok(()));
                        return Ok((reply, None));
                    }
                    Ok(None) if goes_on => continue,
                    _ => {}
                }
            }
            // The server says that a name exists, or not, against our copy of the directory. So the
            // copy is wrong: the change stays undecided, and the names are fetched again.
            let refusal = Err(error);
            if !about_name {
                unanswered.resolve(&refusal);
            }
            return refusal;
        }
    }

    /// Removes a name. Returns the time of the removal by the server's clock.
    pub(crate) async fn remove_name(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        name: &[u8],
    ) -> Result<AfsTime> {
        let reply = self
            .change(user, (directory, None), name, |dir_fid, name| {
                rxafs::RemoveFile { dir_fid, name }
            })
            .await?;
        self.promises
            .directory_changed(user, directory, &reply.dir_status, |listing| {
                listing.remove(name);
            });
        Ok(reply.dir_status.server_mod_time)
    }
}
