//! Renews the promises about open files after a server's break, and sends the length of files that
//! grew to the kernel.
//!
//! 1. sendfile(2), splice(2), copy_file_range(2) and a mapping use the length that the kernel has,
//!    and do not ask for a newer one. So the kernel receives the new length of an open file that
//!    grew, before the server that broke the promise is answered (`coherence.rs`, rule 6).
//! 2. No notice carries a length. But a notice that stores a byte behind the end in the kernel's
//!    cache makes the file longer there. So the notice stores the last byte of the file. A program
//!    of this machine may write that byte at the same time, so the page is dropped right after. A
//!    file that shrank needs no such notice: the kernel takes the length from the first read that
//!    reaches the end. Of two such reads at a time the kernel uses the one that is answered first.
//!    sendfile(2) may then show zeros up to the start of the other one.
//! 3. An OpenAFS server answers no request about a file before its break was answered, and a far
//!    server would keep the writer waiting. These are asked as well, but the answer to the break
//!    does not wait for them.
//!    An OpenAFS server breaks the promises about a read-only volume when it takes the volume off
//!    line to release it. It does not break them again when the new contents are there. So a
//!    request that finds the volume off line is repeated every [`OFF_LINE_WAIT`].
//! 4. So a program may read before that request is answered. Then the kernel asks for bytes, and
//!    gets the length before them. The system call uses the length that the kernel has afterwards.
//!    The notice may wait for a page that the read holds, but the kernel takes the length before it
//!    waits. So the read is answered after [`LENGTH_WAIT`] at the latest.
//! 5. If the kernel makes no request itself, this is done [`UNASKED_MAX`] times. Then the promise
//!    stays broken, and stores by other clients need not wait for this client any more.

use std::sync::Arc;
use std::time::Duration;

use cellar_wire::abort::AbortCode;
use cellar_wire::rxafs;
use tokio::task::JoinSet;

use crate::reads::Reads;
use crate::user::User;
use crate::vnode::Vnode;
use crate::watcher::{Length, NOTICE_TIMEOUT};
use cellar_client::error::Result;

/// How often a file is renewed if the kernel makes no request about it.
const UNASKED_MAX: u32 = 8;
/// The most open files that are renewed after one break.
const RENEWED_MAX: usize = 16;
/// The longest round trip of a server that is waited for. The writer waits as long.
const NEAR: Duration = Duration::from_millis(40);
/// The number of bytes before the end that are fetched with the last one.
const TAIL: u64 = 64 << 10;
/// The time between two requests about a file of a volume that is off line.
const OFF_LINE_WAIT: Duration = Duration::from_millis(100);
/// The most requests about a file of a volume that is off line. They take ten seconds, longer than
/// a release whose clone is on the same partition.
const OFF_LINE_TRIES: u32 = 100;
/// How often the length is sent if the file changes in between.
const TRIES: u32 = 4;
/// The longest time that a read waits until the kernel has the length.
const LENGTH_WAIT: Duration = Duration::from_millis(20);

/// The requests to servers for which the answer to a break waits.
#[derive(Default)]
pub(crate) struct Renewals {
    waited_for: JoinSet<()>,
    count: usize,
}

impl Renewals {
    /// Asks the server about a vnode whose promise was just broken, if a program has it open.
    pub(crate) fn renew(&mut self, reads: &Arc<Reads>, vnode: &Arc<Vnode>) {
        if self.count >= RENEWED_MAX {
            return;
        }
        let user = {
            let mut state = vnode.state.lock();
            let user = state.opens.opener().cloned();
            user.filter(|_| state.kernel.may_renew(UNASKED_MAX))
        };
        let Some(user) = user else {
            return;
        };
        self.count += 1;
        let is_near = is_near(&user, vnode);
        let renewed = renew_one(reads.clone(), user, vnode.clone());
        if is_near {
            self.waited_for.spawn(renewed);
        } else {
            tokio::spawn(renewed);
        }
    }

    /// Waits for the answers, at most [`NOTICE_TIMEOUT`]. Later answers are applied too.
    pub(crate) async fn done(mut self) {
        let all = async { while self.waited_for.join_next().await.is_some() {} };
        let _late = tokio::time::timeout(NOTICE_TIMEOUT, all).await;
        self.waited_for.detach_all();
    }
}

/// Asks for the status of an open file, and sends its length to the kernel.
async fn renew_one(reads: Arc<Reads>, user: Arc<User>, vnode: Arc<Vnode>) {
    for _ in 0..OFF_LINE_TRIES {
        match reads.statuses.status(&user, &vnode).await {
            Ok(_) => return reads.lengthen(&user, &vnode).await,
            Err(error) if error.code() == Some(AbortCode::VOFFLINE) && vnode.is_open() => {
                tokio::time::sleep(OFF_LINE_WAIT).await;
            }
            Err(error) => {
                tracing::debug!(fid = %vnode.fid(), %error, "not renewed");
                return;
            }
        }
    }
}

/// Whether the server is near, and one of Cellar's, which answer requests while they break
/// promises.
fn is_near(user: &User, vnode: &Vnode) -> bool {
    let servers = user.client().servers();
    let path = vnode.promised_by().and_then(|server| {
        let connection = servers.connection(&vnode.volume().cell, server, &rxafs::PACKAGE);
        connection.network_path()
    });
    path.is_some_and(|path| path.wide && path.round_trip <= NEAR)
}

impl Reads {
    /// Sends the length of a file to the kernel if the file is longer than the kernel knows.
    pub(crate) async fn lengthen(&self, user: &Arc<User>, vnode: &Arc<Vnode>) {
        for _ in 0..TRIES {
            if !vnode.state.lock().kernel.is_longer() {
                return;
            }
            match self.last_byte(user, vnode).await {
                Ok(Some(length)) => {
                    self.promises.send_length(vnode, length.clone());
                    self.env.audience.notified(vnode).await;
                    let mut state = vnode.state.lock();
                    if let Some((at, _)) = length.last() {
                        state.kernel.length_sent(at + 1);
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(fid = %vnode.fid(), %error, "the kernel does not get its length");
                    return;
                }
            }
        }
    }

    /// Sends the length of a file that grew to the kernel before a read is answered (rule 4). A
    /// notice that waits for that read goes on after the answer.
    pub(super) async fn lengthen_before_read(&self, user: &Arc<User>, vnode: &Arc<Vnode>) {
        let Some(reads) = self.me() else {
            return;
        };
        let (user, vnode) = (user.clone(), vnode.clone());
        let sent = tokio::spawn(async move { reads.lengthen(&user, &vnode).await });
        let _late = tokio::time::timeout(LENGTH_WAIT, sent).await;
    }

    /// Returns the last byte of a file; `None` if the file changed in between.
    async fn last_byte(&self, user: &Arc<User>, vnode: &Arc<Vnode>) -> Result<Option<Length>> {
        self.statuses.status(user, vnode).await?;
        let breaks = vnode.breaks();
        let length = vnode.length();
        let Some(at) = length.checked_sub(1) else {
            vnode.state.lock().kernel.length_sent(0);
            return Ok(None);
        };
        if vnode.body.lock().lacks(at, length) {
            let start = length.saturating_sub(TAIL);
            let (pieces, status) = self.statuses.fetch(user, vnode, start, length).await?;
            let fill =
                |body: &mut cellar_cachestore::Body| body.fill(&status, start..length, &pieces);
            self.with_room(vnode, start..length, fill)?;
        }
        let last = {
            let mut body = vnode.body.lock();
            if body.length() != length || !body.gaps(at, length).is_empty() {
                return Ok(None);
            }
            body.read(at, length)
        };
        let last = last.map_err(|cause| super::local(vnode, cause))?;
        let length = |last: &u8| Length::new(vnode, length, *last, breaks);
        Ok(last.first().map(length))
    }
}
