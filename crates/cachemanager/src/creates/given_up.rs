//! Stores and creates whose target is gone: no server can execute them, so they are given up.
//!
//! | answer | store of a file | create in a directory |
//! | --- | --- | --- |
//! | `VNOVNODE` of the file server | the file is gone | the directory is gone |
//! | the VLDB knows no such volume, or no site of it | the volume is gone | the volume is gone |
//! | any other, or no answer | retried (`queue.rs`) | retried (`pending_create.rs`) |
//!
//! 1. The answers `VNOVOL`, `VOFFLINE` and `VMOVED` of a file server are not enough: the volume may
//!    be on its way to another server. The VLDB decides.
//! 2. If this machine's own programs removed the target, the changes are dropped: no program misses
//!    them.
//! 3. If another machine or an administrator removed it, the changes are put aside in the cache
//!    directory, or lost if the cache is in memory. One line of the log reports it, and the next
//!    `close` or `fsync` of the file returns the error.

use std::sync::Arc;

use cellar_rpc::CallError;
use cellar_wire::abort::AbortCode;

use crate::creates::Creates;
use crate::creates::create_queue::Queue;
use crate::vnode::Vnode;
use cellar_client::error::Error;

/// The kind of target that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// The file of the store, or the directory of the create.
    Vnode,
    /// The volume of either.
    Volume,
}

impl Gone {
    /// Applies the table in the head comment. `None`: a retry may succeed.
    pub(crate) fn of(error: &Error) -> Option<Self> {
        match error {
            Error::NoSuchVolume { .. } | Error::NoSuchSite { .. } => Some(Self::Volume),
            error if error.code() == Some(AbortCode::VNOVNODE) => Some(Self::Vnode),
            _ => None,
        }
    }

    fn reason(self, target: &'static str) -> &'static str {
        match self {
            Self::Vnode => target,
            Self::Volume => "its volume is gone",
        }
    }
}

impl Creates {
    /// Handles a failed store of a file, or a failed request about it: perhaps the file is gone.
    pub(crate) fn note_failure(&self, vnode: &Arc<Vnode>, error: &Error) {
        // A failed create says something about its directory, not about the file.
        if self.is_pending(vnode) {
            return;
        }
        match Gone::of(error) {
            Some(gone @ Gone::Vnode) => {
                let by_us = {
                    let state = vnode.state.lock();
                    state.life.is_removed()
                        || state.names.is_being_removed()
                        || state.life.is_silly_renamed()
                };
                let owed = vnode.vanished();
                self.give_up(vnode, by_us, gone.reason("the file is gone"));
                self.promises.send_notices(vnode, owed);
            }
            // Its cached bytes may still be read.
            Some(gone @ Gone::Volume) if vnode.body.lock().is_changed() => {
                self.give_up(vnode, false, gone.reason("the file is gone"));
            }
            Some(Gone::Volume) | None => {}
        }
    }

    /// Rules 2 and 3. `by_us`: this machine's own programs removed the file.
    fn give_up(&self, vnode: &Arc<Vnode>, by_us: bool, why: &str) {
        let lost = {
            let mut body = vnode.body.lock();
            let lost = body.recovered().is_some() || (body.is_changed() && !by_us);
            match lost {
                true => body.put_aside(why),
                false => body.abandon(),
            }
            lost
        };
        if lost {
            tracing::warn!(fid = %vnode.fid(), volume = %vnode.volume().full_name(), why, "not stored, and given up");
            let enoent = Some(AbortCode::from_errno(2));
            vnode.state.lock().stores.set_refused(enoent);
        }
        self.vnodes.forget_unstored(vnode);
    }

    /// Whether a store or create of the file waits for a retry.
    pub(crate) fn is_retried(&self, vnode: &Vnode) -> bool {
        self.is_pending(vnode) || vnode.body.lock().is_changed()
    }

    /// Whether a failed store must be reported: something waits for a retry, or was lost.
    pub(crate) fn must_report(&self, vnode: &Vnode) -> bool {
        self.is_retried(vnode) || vnode.state.lock().stores.is_refused()
    }

    /// Gives up a create whose directory or volume is gone. Its name is gone with the directory.
    pub(super) fn abandon_create(
        &self,
        queue: &Queue,
        number: u64,
        (vnode, directory): (&Arc<Vnode>, &Arc<Vnode>),
        (gone, cause): (Gone, &CallError),
    ) {
        let by_us = gone == Gone::Vnode && directory.state.lock().life.is_removed();
        let waiting = queue.take_waiting(number);
        self.give_up(vnode, by_us, gone.reason("its directory is gone"));
        let _was_queued = self.cancel_create(vnode);
        if by_us {
            // Bytes that a program writes to it later are dropped, too.
            vnode.state.lock().life.removed();
        }
        for sender in waiting {
            let _gone = sender.send(Err(cause.clone()));
        }
    }

    /// Gives up the creates that a directory had refused, after this machine removed the directory.
    pub(crate) fn abandon_creates_in(&self, directory: &Arc<Vnode>) {
        if !directory.state.lock().lease.has_pending() {
            return;
        }
        let queues: Vec<_> = self.queues.lock().values().cloned().collect();
        let cause = CallError::Aborted(AbortCode::VNOVNODE);
        for queue in queues {
            for (number, vnode) in queue.resting_in(directory) {
                let of = (&vnode, directory);
                self.abandon_create(&queue, number, of, (Gone::Vnode, &cause));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellar_client::cell::CellName;

    fn answer(code: AbortCode) -> Error {
        Error::Fileserver {
            what: "storing".to_owned(),
            cause: CallError::Aborted(code),
        }
    }

    #[test]
    fn only_what_cannot_come_back_is_gone() {
        let cell = CellName::new("test.cell").expect("a name");
        let volume = "v".to_owned();
        let no_volume = Error::NoSuchVolume { cell, volume };
        assert_eq!(Gone::of(&no_volume), Some(Gone::Volume));
        assert_eq!(Gone::of(&answer(AbortCode::VNOVNODE)), Some(Gone::Vnode));
        // VNOVOL, VNOSERVICE, VOFFLINE, VBUSY, VMOVED, EDQUOT, VOVERQUOTA, EIO, EACCES.
        for code in [103, 105, 106, 110, 111, 122, 109, 5, 13] {
            assert_eq!(Gone::of(&answer(AbortCode(code))), None, "{code}");
        }
        let silent = Error::Fileserver {
            what: "storing".to_owned(),
            cause: CallError::Dead,
        };
        assert_eq!(Gone::of(&silent), None);
    }
}
