//! Asking for statuses: one, or many at a time.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cellar_rpc::CallError;
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{self, AfsFetchStatus, Callback, FileType};
use tokio::time::Instant;

use super::Cache;
use super::coherence::Question;
use super::user::User;
use super::vnode::{Attributes, Vnode};
use crate::error::{Error, Result};
use crate::fetch::FetchCall;

/// An answer of our own: what a server would say.
pub(crate) fn refused(what: impl Into<String>, code: AbortCode) -> Error {
    Error::Fileserver {
        what: what.into(),
        cause: CallError::Aborted(code),
    }
}

/// When a call was begun, and how many promises had been broken then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) at: Instant,
    pub(crate) breaks: u64,
    /// How many changes of our own had been answered.
    pub(crate) own: u64,
    /// Where the vnode was not known yet: how many breaks of unknown ones there had been.
    strays: Option<u64>,
    /// Who answered; not known before.
    pub(crate) by: Option<SocketAddr>,
}

impl Asked {
    pub(crate) fn about(vnode: &Vnode) -> Self {
        Self {
            at: Instant::now(),
            breaks: vnode.breaks.load(Ordering::Acquire),
            own: vnode.own.load(Ordering::Acquire),
            strays: None,
            by: None,
        }
    }

    /// About a vnode that the call will make.
    pub(crate) fn about_new(strays: u64) -> Self {
        Self {
            at: Instant::now(),
            breaks: 0,
            own: 0,
            strays: Some(strays),
            by: None,
        }
    }

    /// The answer came from this address.
    pub(crate) fn answered_by(mut self, server: SocketAddr) -> Self {
        self.by = Some(server);
        self
    }
}

impl Cache {
    /// A change of these was not answered, and the server may make it still. Until that is
    /// decided nothing that is answered about them is believed for longer than the answer takes
    /// ([`Vnode::decided`]).
    pub(crate) fn undecided(&self, vnodes: &[&Arc<Vnode>]) {
        for vnode in vnodes {
            vnode.state.lock().undecided = Some(None);
        }
        self.doubt(vnodes);
    }

    /// What a server answered about a vnode.
    pub(crate) fn heard(
        &self,
        user: &User,
        vnode: &Arc<Vnode>,
        status: &AfsFetchStatus,
        promise: Option<(Callback, Asked)>,
    ) {
        let promise = promise.map(|promise| vnode.decided(self.judged(promise)));
        let owed = vnode.heard(user.id(), status, promise);
        self.pay(vnode, owed);
        // Afterwards: whoever ends what a server promised finds this one.
        if let Some((callback, asked)) = &promise {
            self.alive.promised(vnode, callback, asked);
        }
    }

    /// The same, of a directory in which `count` things were made by us that its names have already.
    pub(crate) fn heard_grown(
        &self,
        user: &User,
        directory: &Arc<Vnode>,
        grown: (u64, &AfsFetchStatus),
        promise: Option<(Callback, Asked)>,
    ) {
        let promise = promise.map(|promise| directory.decided(self.judged(promise)));
        let owed = directory.heard_grown(user.id(), grown, promise);
        self.pay(directory, owed);
        if let Some((callback, asked)) = &promise {
            self.alive.promised(directory, callback, asked);
        }
    }

    /// A promise, unless something may have been missed since it was asked for.
    fn judged(&self, (callback, asked): (Callback, Asked)) -> (Callback, Asked) {
        let strays = self.strays.load(Ordering::Acquire);
        let missed = asked.strays.is_some_and(|before| before != strays)
            || (asked.by).is_some_and(|by| self.reach.returned_since(by, asked.at));
        let callback = if missed { Callback::NONE } else { callback };
        (callback, asked)
    }

    /// The status that holds now, with the user's rights: what is promised, or the server's answer.
    ///
    /// # Errors
    /// The server's refusal, or its silence.
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

    /// What the server says, whatever is promised.
    pub(crate) async fn ask(&self, user: &Arc<User>, vnode: &Arc<Vnode>) -> Result<AfsFetchStatus> {
        self.told(vnode).await?;
        let asked = Asked::about(vnode);
        let fid = vnode.fid();
        let what = format!("status of {fid}");
        let (reply, by) = user
            .client()
            .call_volume_at(&vnode.volume, &what, &rxafs::FetchStatus { fid })
            .await
            .inspect_err(|error| self.note_failure(vnode, error))?;
        let asked = asked.answered_by(by);
        self.heard(user, vnode, &reply.status, Some((reply.callback, asked)));
        Ok(reply.status)
    }

    /// What `stat` tells, and for how long, for a kernel that asks.
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

    /// The same for a kernel that changes something meanwhile: no notice is waited for.
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

    /// Asks for those of these vnodes of one directory whose status is not promised, at most
    /// [`rxafs::BULK_MAX`] with one call. One that fails alone is left to be asked for alone.
    ///
    /// # Errors
    /// No server of the volume answers.
    pub async fn statuses(&self, user: &Arc<User>, vnodes: &[Arc<Vnode>]) -> Result<()> {
        let unknown: Vec<_> = vnodes
            .iter()
            .filter(|vnode| vnode.promised(user).is_none() && !self.is_pending(vnode))
            .collect();
        for some in unknown.chunks(rxafs::BULK_MAX) {
            let asked: Vec<_> = some.iter().map(|vnode| Asked::about(vnode)).collect();
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
                    self.heard(user, vnode, status, Some((*callback, asked)));
                }
            }
        }
        Ok(())
    }

    /// Fetches `start..end` of a vnode: the bytes there are, with the status at that moment.
    pub(crate) async fn fetch(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        start: u64,
        end: u64,
    ) -> Result<(Vec<Bytes>, AfsFetchStatus)> {
        self.told(vnode).await?;
        if let Some(answer) = self.fetch_directly(user, vnode, start, end).await {
            return Ok(answer);
        }
        let asked = Asked::about(vnode);
        let (pieces, reply, by) = self.fetch_at(user, vnode, start, end).await?;
        let asked = asked.answered_by(by);
        self.heard(user, vnode, &reply.status, Some((reply.callback, asked)));
        Ok((pieces, reply.status))
    }

    /// The same, without taking notice of the status.
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

    /// The same, with the address that answered.
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
