//! Statuses, names and bytes: answers requests from the cache while promises hold, and asks servers
//! otherwise. Also ends promises: at a break, and when this machine or a server was unreachable.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use cellar_rpc::CallError;
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::{Fid, Uniquifier, VnodeId, VolumeId};
use cellar_wire::rxafs::{self, AfsFetchStatus, FileType};

use super::creates::Creates;
use super::environment::Environment;
use super::promises::Promises;
use super::promises::status_request::StatusRequest;
use super::user::User;
use super::vnode::{Attributes, Vnode};
use super::vnode_table::VnodeTable;
use cellar_client::error::Result;
use cellar_client::fetch::FetchCall;
use cellar_client::rxafscb::CallbackService;

mod access;
pub(crate) mod cached_names;
pub(crate) mod device_locations;
mod direct;
mod keep_alive;
mod listing;

pub(crate) use access::rights_to_file;

/// See the head of the file.
pub struct Statuses {
    pub(super) env: Arc<Environment>,
    pub(super) vnodes: Arc<VnodeTable>,
    pub(super) promises: Arc<Promises>,
    pub(super) creates: Arc<Creates>,
    /// Answers the calls of servers. It must know this machine's addresses.
    callbacks: OnceLock<Arc<CallbackService>>,
}

impl Statuses {
    pub(super) fn new(
        env: Arc<Environment>,
        vnodes: Arc<VnodeTable>,
        promises: Arc<Promises>,
        creates: Arc<Creates>,
    ) -> Self {
        Self {
            env,
            vnodes,
            promises,
            creates,
            callbacks: OnceLock::new(),
        }
    }

    /// Sets the service that answers servers. Only the first call has an effect.
    pub(super) fn answer_by(&self, callbacks: Arc<CallbackService>) {
        let _first = self.callbacks.set(callbacks);
    }

    /// Ends the promise about a vnode, or the promises about all vnodes of a volume. Returns those
    /// that the cache has.
    pub(crate) fn break_promises(&self, fid: Fid) -> Vec<Arc<Vnode>> {
        self.env.counts.breaks.fetch_add(1, Ordering::Relaxed);
        let broken: Vec<_> = if fid.vnode == VnodeId(0) {
            let volume = fid.volume;
            self.vnodes.matching(|v| v.key().1.volume == volume)
        } else {
            let cells = 0..self.env.cells.count() as u32;
            cells
                .filter_map(|cell| self.vnodes.known(cell, fid))
                .collect()
        };
        if broken.is_empty() {
            self.promises.note_unknown_break();
        }
        for vnode in &broken {
            let (owed, before) = match fid.vnode == VnodeId(0) {
                true => (vnode.broken(), None),
                false => vnode.broken_by_server(),
            };
            self.creates.lease_ends(vnode);
            match before {
                Some(before) => self.promises.send_names(vnode, before),
                None => self.promises.send_notices(vnode, owed),
            }
        }
        broken
    }

    /// Gives up all promises about a volume. The next use of each of its vnodes asks the server.
    pub fn distrust(&self, volume: VolumeId) {
        let all = Fid {
            volume,
            vnode: VnodeId(0),
            uniquifier: Uniquifier(0),
        };
        let _broken = self.break_promises(all);
    }

    /// Returns the current status with the user's rights: the promised one, or the server's answer.
    ///
    /// # Errors
    /// The server refuses, or does not answer.
    pub async fn status(&self, user: &Arc<User>, vnode: &Arc<Vnode>) -> Result<AfsFetchStatus> {
        if let Some(status) = vnode.promised(user) {
            self.env.counts.statuses.hit();
            return Ok(status);
        }
        self.env.counts.statuses.missed();
        let _alone = vnode.alone().await;
        if let Some(status) = vnode.promised(user) {
            return Ok(status);
        }
        self.ask(user, vnode).await
    }

    /// Fetches the status from the server, even if it is promised.
    pub(crate) async fn ask(&self, user: &Arc<User>, vnode: &Arc<Vnode>) -> Result<AfsFetchStatus> {
        self.creates.flush_pending(vnode).await?;
        let asked = StatusRequest::about(vnode);
        let fid = vnode.fid();
        let what = format!("status of {fid}");
        let (reply, by) = user
            .client()
            .call_volume_at(vnode.volume(), &what, &rxafs::FetchStatus { fid })
            .await
            .inspect_err(|error| self.creates.note_failure(vnode, error))?;
        let asked = asked.answered_by(by);
        self.promises
            .apply_status(user, vnode, &reply.status, Some((reply.callback, asked)));
        Ok(reply.status)
    }

    /// Like [`Reads::attributes`](super::Reads::attributes), for a request that changes something.
    /// Does not wait for notices.
    pub(crate) async fn attributes_now(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
    ) -> Result<Attributes> {
        let status = self.status(user, vnode).await?;
        Ok(Self::attributes_with(vnode, status))
    }

    /// The attributes of a vnode for which the server answered with this status.
    pub(crate) fn attributes_with(vnode: &Vnode, status: AfsFetchStatus) -> Attributes {
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
    pub async fn fetch_many(&self, user: &Arc<User>, vnodes: &[Arc<Vnode>]) -> Result<()> {
        let unknown: Vec<_> = vnodes
            .iter()
            .filter(|vnode| vnode.promised(user).is_none() && !self.creates.is_pending(vnode))
            .collect();
        for some in unknown.chunks(rxafs::BULK_MAX) {
            let asked: Vec<_> = some
                .iter()
                .map(|vnode| StatusRequest::about(vnode))
                .collect();
            let arguments = rxafs::InlineBulkStatus {
                fids: rxafs::Fids::from_iter_cut(some.iter().map(|vnode| vnode.fid())),
            };
            let volume = some[0].volume().clone();
            let what = format!("statuses of {} files", some.len());
            let (reply, by) = user
                .client()
                .call_volume_at(&volume, &what, &arguments)
                .await?;
            let answers = reply.statuses.iter().zip(reply.callbacks.iter());
            for ((vnode, asked), (status, callback)) in some.iter().zip(asked).zip(answers) {
                if status.file_type != FileType::Invalid && status.error_code == AbortCode(0) {
                    let asked = asked.answered_by(by);
                    self.promises
                        .apply_status(user, vnode, status, Some((*callback, asked)));
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
        self.creates.flush_pending(vnode).await?;
        if let Some(answer) = self.fetch_directly(user, vnode, start, end).await {
            return Ok(answer);
        }
        let asked = StatusRequest::about(vnode);
        let (pieces, reply, by) = self.fetch_at(user, vnode, start, end).await?;
        let asked = asked.answered_by(by);
        self.promises
            .apply_status(user, vnode, &reply.status, Some((reply.callback, asked)));
        Ok((pieces, reply.status))
    }

    /// Like [`Statuses::fetch`], without applying the status.
    pub(crate) async fn fetch_without_status(
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
        let mut operation =
            cellar_client::VolumeOperation::start(user.client(), vnode.volume()).await?;
        loop {
            match fetch_once(operation.connection(), vnode.fid(), start..end).await {
                Ok(answer) => {
                    operation.succeeded();
                    let bytes: usize = answer.0.iter().map(Bytes::len).sum();
                    self.env
                        .counts
                        .fetched
                        .fetch_add(bytes as u64, Ordering::Relaxed);
                    return Ok((answer.0, answer.1, operation.address()));
                }
                Err(error) => {
                    let failed = operation.failed(error, &what).await;
                    failed.inspect_err(|error| self.creates.note_failure(vnode, error))?;
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
