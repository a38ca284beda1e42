//! The kernel's requests for locks: fcntl(2) and flock(2), which use the same request.

use cellar_cachemanager::{Lock, LockFamily, LockKind, LockOwner};
use fuser::{Errno, FileHandle, ReplyEmpty, ReplyLock, Request};

use super::Filesystem;

/// Kinds of locks. Source: fcntl(2).
const F_RDLCK: i32 = 0;
const F_WRLCK: i32 = 1;
const F_UNLCK: i32 = 2;

/// A request about a lock.
pub(super) struct LockRequest {
    pub(super) handle: FileHandle,
    pub(super) owner: fuser::LockOwner,
    /// The first and the last byte.
    pub(super) range: (u64, u64),
    pub(super) kind: i32,
    pub(super) pid: u32,
    /// Whether it comes from flock(2).
    pub(super) flock: bool,
}

impl LockRequest {
    fn owner(&self) -> LockOwner {
        let family = match self.flock {
            true => LockFamily::Flock,
            false => LockFamily::Record,
        };
        let number = self.owner.0;
        LockOwner { family, number }
    }

    /// The lock of the request; `None` if it is a release.
    fn lock(&self) -> Option<Lock> {
        let kind = match self.kind {
            F_RDLCK => LockKind::Read,
            F_WRLCK => LockKind::Write,
            _ => return None,
        };
        let (first, last) = self.range;
        Some(Lock {
            owner: self.owner(),
            open_file: self.handle.0,
            pid: self.pid,
            first,
            last,
            kind,
        })
    }
}

impl Filesystem {
    /// Answers with the lock that conflicts.
    pub(super) fn get_lock(&self, request: &Request, asked: LockRequest, reply: ReplyLock) {
        let (requests, caller) = (self.requests.clone(), self.caller(request));
        self.run(async move {
            let Some(lock) = asked.lock() else {
                return reply.error(Errno::EINVAL);
            };
            let test = requests.test_lock(asked.handle.0, lock);
            match requests.within(&caller, test).await {
                Ok(None) => reply.locked(lock.first, lock.last, F_UNLCK, 0),
                Ok(Some(found)) => {
                    let kind = match found.kind {
                        LockKind::Read => F_RDLCK,
                        LockKind::Write => F_WRLCK,
                    };
                    reply.locked(found.first, found.last, kind, found.pid);
                }
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// Sets a lock, or releases one. With `sleep` it waits until there is no conflict.
    pub(super) fn set_lock(
        &self,
        request: &Request,
        asked: LockRequest,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let (requests, caller) = (self.requests.clone(), self.caller(request));
        self.run(async move {
            let handle = asked.handle.0;
            // No time limit: the wait can be interrupted, and does not wait for servers.
            let done = match asked.lock() {
                Some(lock) => {
                    let waiting = sleep.then_some(&caller);
                    requests.set_lock(handle, lock, waiting).await
                }
                None => requests.unlock(handle, asked.owner(), asked.range).await,
            };
            match done {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
        });
    }
}
