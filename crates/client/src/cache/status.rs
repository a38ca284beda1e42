//! Fetches statuses, one or many in a call, and bytes.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cellar_rpc::CallError;
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{self, AfsFetchStatus, Callback, FileType};

use super::Cache;
use super::coherence::Question;
use super::request::StatusRequest;
use super::user::User;
use super::vnode::{Attributes, Vnode};
use crate::error::Result;
use crate::fetch::FetchCall;

impl Cache {
    /// Notes that a change of these vnodes had no answer, so that the server may still make it.
    /// Until that is decided, no answer about them gives a promise ([`Vnode::decided`]).
    pub(crate) fn undecided(&self, vnodes: &[&Arc<Vnode>]) {
        for vnode in vnodes {
            vnode.state.lock().undecided = Some(None);
        }
        self.end_promises(vnodes);
    }

    /// Applies a server's answer about a vnode.
    pub(crate) fn apply_status(
        &self,
        user: &User,
        vnode: &Arc<Vnode>,
        status: &AfsFetchStatus,
        promise: Option<(Callback, StatusRequest)>,
    ) {
        let promise = promise.map(|promise| vnode.decided(self.judged(promise)));
        let owed = vnode.apply_status(user.id(), status, promise);
        self.send_notices(vnode, owed);
        // This comes last, so that a task that ends the promises of a server finds this one.
        if let Some((callback, asked)) = &promise {
            self.alive.promised(vnode, callback, asked);
        }
    }

    /// Like [`Cache::apply_status`], for a directory in which we created `count` things that its
    /// listing already has.
    pub(crate) fn apply_growth(
        &self,
        user: &User,
        directory: &Arc<Vnode>,
        grown: (u64, &AfsFetchStatus),
        promise: Option<(Callback, StatusRequest)>,
    ) {
        let promise = promise.map(|promise| directory.decided(self.judged(promise)));
        let owed = directory.apply_growth(user.id(), grown, promise);
        self.send_notices(directory, owed);
        if let Some((callback, asked)) = &promise {
            self.alive.promised(directory, callback, asked);
        }
    }

    /// Drops the promise if a break may have been missed since the call began.
    fn judged(&self, (callback, asked): (Callback, StatusRequest)) -> (Callback, StatusRequest) {
        let strays = self.strays.load(Ordering::Acquire);
        let missed = asked.strays.is_some_and(|before| before != strays)
            || (asked.by).is_some_and(|by| self.reach.returned_since(by, asked.at));
        let callback = if missed { Callback::NONE } else { callback };
        (callback, asked)
    }

    /// Returns the current status with the user's rights: the promised one, or the server's answer.
    ///
    /// # Errors
    /// The server refuses, or does not answer.
    pub async fn status(&self, user: &Arc<User>, vnode: &Arc<Vnode>) -> Result<AfsFetchStatus> {
        if let Some(status) = vnode.promised(user) {
            self.counts.statuses.hit();
            return Ok(status);
        }
        self.counts.statuses.missed();
        let _alone = vnode.asking.lock().await;
        if let Some(status) = vnode.promised(user) {
            return Ok(status);
        }
        self.ask(user, vnode).await
    }

    /// Fetches the status from the server, even if it is promised.
    pub(crate) async fn ask(&self, user: &Arc<User>, vnode: &Arc<Vnode>) -> Result<AfsFetchStatus> {
        self.flush_pending(vnode).await?;
        let asked = StatusRequest::about(vnode);
        let fid = vnode.fid();
        let what = format!("status of {fid}");
        let (reply, by) = user
            .client()
            .call_volume_at(&vnode.volume, &what, &rxafs::FetchStatus { fid })
            .await
            .inspect_err(|error| self.note_failure(vnode, error))?;
        let asked = asked.answered_by(by);
        self.apply_status(user, vnode, &reply.status, Some((reply.callback, asked)));
        Ok(reply.status)
    }

    /// Answers a request of the kernel for attributes. Waits for notices about the vnode.
    ///
    /// # Errors
    /// As [`Cache::status`].
    pub async fn attributes(&self, user: &Arc<User>, vnode: &Arc<Vnode>) -> Result<Attributes> {
        let question = Question::begin(self, vnode).await;
        let status = match self.status(user, vnode).await {
            Err(error) if error.code() == Some(AbortCode::VNOVNODE) => {
                let status = vnode.removed_directory().ok_or(error)?;
                let valid = std::time::Duration::ZERO;
                return Ok(Attributes { status, valid });
            }
            status => status?,
        };
        question.settle(user).await;
        Ok(self.attributes_with(vnode, status))
    }

    /// Like [`Cache::attributes`], for a request that changes something. Does not wait for notices.
    pub(crate) async fn attributes_now(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
    ) -> Result<Attributes> {
        let status = self.status(user, vnode).await?;
        Ok(self.attributes_with(vnode, status))
    }

    fn attributes_with(&self, vnode: &Vnode, status: AfsFetchStatus) -> Attributes {
        match vnode.attributes() {
            Some(attributes) => attributes,
            None => Attributes {
                status: vnode.with_own_changes(status),
                valid: std::time::Duration::ZERO,
            },
        }
    }

    /// Fetches the statuses of those of these vnodes of one directory that are not promised, at
    /// most [`rxafs::BULK_MAX`] in one call. A vnode with an error of its own is skipped: a later
    /// request asks for it alone.
    ///
    /// # Errors
    /// No server of the volume answers.
    pub async fn statuses(&self, user: &Arc<User>, vnodes: &[Arc<Vnode>]) -> Result<()> {
        let unknown: Vec<_> = vnodes
            .iter()
            .filter(|vnode| vnode.promised(user).is_none() && !self.is_pending(vnode))
            .collect();
        for some in unknown.chunks(rxafs::BULK_MAX) {
            let asked: Vec<_> = some
                .iter()
                .map(|vnode| StatusRequest::about(vnode))
                .collect();
            let arguments = rxafs::InlineBulkStatus {
                fids: rxafs::Fids::from_iter_cut(some.iter().map(|vnode| vnode.fid())),
            };
            let volume = some[0].volume.clone();
            let what = format!("statuses of {} files", some.len());
            let (reply, by) = user
                .client()
                .call_volume_at(&volume, &what, &arguments)
                .await?;
            let answers = reply.statuses.iter().zip(reply.callbacks.iter());
            for ((vnode, asked), (status, callback)) in some.iter().zip(asked).zip(answers) {
                if status.file_type != FileType::Invalid && status.error_code == AbortCode(0) {
                    let asked = asked.answered_by(by);
                    self.apply_status(user, vnode, status, Some((*callback, asked)));
                }
            }
        }
        Ok(())
    }

    /// Fetches the bytes `start..end` of a vnode, with its status at that moment.
    pub(crate) async fn fetch(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        start: u64,
        end: u64,
    ) -> Result<(Vec<Bytes>, AfsFetchStatus)> {
        self.flush_pending(vnode).await?;
        if let Some(answer) = self.fetch_directly(user, vnode, start, end).await {
            return Ok(answer);
        }
        let asked = StatusRequest::about(vnode);
        let (pieces, reply, by) = self.fetch_at(user, vnode, start, end).await?;
        let asked = asked.answered_by(by);
        self.apply_status(user, vnode, &reply.status, Some((reply.callback, asked)));
        Ok((pieces, reply.status))
    }

    /// Like [`Cache::fetch`], without applying the status.
    pub(crate) async fn fetch_unheard(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        start: u64,
        end: u64,
    ) -> Result<(Vec<Bytes>, rxafs::FetchData64Reply)> {
        let (pieces, reply, _) = self.fetch_at(user, vnode, start, end).await?;
        Ok((pieces, reply))
    }

    /// Fetches the bytes from the file server. Returns the address that answered, too.
    async fn fetch_at(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        start: u64,
        end: u64,
    ) -> Result<(Vec<Bytes>, rxafs::FetchData64Reply, SocketAddr)> {
        let what = format!("reading {}", vnode.fid());
        let mut course = crate::Course::start(user.client(), &vnode.volume).await?;
        loop {
            match fetch_once(course.connection(), vnode.fid(), start..end).await {
                Ok(answer) => {
                    course.succeeded();
                    let bytes: usize = answer.0.iter().map(Bytes::len).sum();
                    self.counts
                        .fetched
                        .fetch_add(bytes as u64, Ordering::Relaxed);
                    return Ok((answer.0, answer.1, course.address()));
                }
                Err(error) => {
                    let failed = course.failed(error, &what).await;
                    failed.inspect_err(|error| self.note_failure(vnode, error))?;
                }
            }
        }
    }
}

async fn fetch_once(
    connection: &cellar_rpc::Connection,
    fid: Fid,
    range: Range<u64>,
) -> std::result::Result<(Vec<Bytes>, rxafs::FetchData64Reply), CallError> {
    let length = range.end - range.start;
    let mut call = FetchCall::open(connection, fid, range.start, length).await?;
    let mut pieces = Vec::new();
    call.read(length, |piece| pieces.push(piece)).await?;
    Ok((pieces, call.finish().await?))
}
