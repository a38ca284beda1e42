//! Answers requests: at once if possible, otherwise in the background.

use std::sync::Arc;
use std::task::{Context, Waker};

use fuser::{Errno, Generation, INodeNo, ReplyEmpty, ReplyEntry, Request};

use super::Filesystem;
use crate::directories::DirectoryReply;
use crate::requests::{Answer, Entry, Requests, nothing};

impl Filesystem {
    /// Runs `work` here if it need not wait, otherwise in the background.
    pub(super) fn run(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut work = Box::pin(work);
        let _inside = self.runtime.enter();
        let mut here = Context::from_waker(Waker::noop());
        if work.as_mut().poll(&mut here).is_pending() {
            // The runtime polls it again first, with a working waker.
            self.runtime.spawn(work);
        }
    }

    /// Answers a request with an entry.
    pub(super) fn entry<F>(
        &self,
        request: &Request,
        reply: ReplyEntry,
        work: impl FnOnce(Arc<Requests>) -> F,
    ) where
        F: Future<Output = Answer<Entry>> + Send + 'static,
    {
        let (requests, caller) = (self.requests.clone(), self.caller(request));
        let work = work(requests.clone());
        self.run(async move {
            match requests.within(&caller, work).await {
                Ok(entry) => {
                    give(reply, &entry);
                    requests.entered(&entry);
                }
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// Answers a request with an empty reply.
    pub(super) fn empty<F>(
        &self,
        request: &Request,
        reply: ReplyEmpty,
        work: impl FnOnce(Arc<Requests>) -> F,
    ) where
        F: Future<Output = Answer<()>> + Send + 'static,
    {
        let (requests, caller) = (self.requests.clone(), self.caller(request));
        let work = work(requests.clone());
        self.run(async move {
            match requests.within(&caller, work).await {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// Answers a request for names of an open directory, from `offset` on.
    pub(super) fn page<P>(
        &self,
        request: &Request,
        (number, handle): (INodeNo, u64),
        offset: u64,
        mut page: P,
    ) where
        P: DirectoryReply + Send + 'static,
    {
        let (requests, caller) = (self.requests.clone(), self.caller(request));
        let uid = request.uid();
        self.run(async move {
            let read = requests.read_dir(uid, number, handle, offset, &mut page);
            match requests.within(&caller, read).await {
                Ok(given) => {
                    page.send();
                    given.sent();
                }
                Err(errno) => page.refuse(errno),
            }
        });
    }

    /// Answers a look-up. If the kernel may keep it, the absence of the name is an answer too.
    pub(super) fn look_up(
        &self,
        request: &Request,
        parent: INodeNo,
        name: Vec<u8>,
        reply: ReplyEntry,
    ) {
        let uid = request.uid();
        let (requests, caller) = (self.requests.clone(), self.caller(request));
        self.run(async move {
            let root = requests.find_root(uid, parent);
            let found = requests.within(&caller, root).await;
            let seen = match found.and_then(|()| requests.seen(parent)) {
                Ok(seen) => seen,
                Err(errno) => return reply.error(errno),
            };
            let lookup = requests.lookup(uid, parent, &name, &seen);
            match requests.within(&caller, lookup).await {
                Ok(entry) => {
                    give(reply, &entry);
                    requests.entered(&entry);
                }
                Err(errno) => {
                    let is_absent = errno.code() == Errno::ENOENT.code();
                    let time = is_absent.then(|| requests.absent(parent, &name, &seen));
                    match time.flatten() {
                        Some(time) => {
                            reply.entry(&time, &nothing(), Generation(0));
                        }
                        None => reply.error(errno),
                    }
                }
            }
            requests.answered(&seen);
        });
    }
}

/// Sends the entry of a name.
fn give(reply: ReplyEntry, entry: &Entry) {
    reply.entry_with_ttls(
        &entry.attr_time,
        &entry.entry_time,
        &entry.attr,
        Generation(entry.generation),
    );
}
