//! Stores and creations whose target is gone: no server can take them, so they are given up.
//!
//! | answer | store of a file | creation in a directory |
//! | --- | --- | --- |
//! | `VNOVNODE` of the file server | the file is gone | the directory is gone |
//! | the VLDB knows no such volume, or no site of it | the volume is gone | the volume is gone |
//! | any other, and silence | tried again ([`super::behind`]) | tried again ([`super::pending`]) |
//!
//! 1. A file server that says `VNOVOL`, `VOFFLINE` or `VMOVED` is not believed alone: the volume
//!    may be on its way to another server. The VLDB decides.
//! 2. Changes of what this machine's own programs removed are dropped: no program misses them.
//! 3. Changes of what another machine or an administrator removed are put aside where the cache is
//!    in a directory, and are lost where it is in memory. One line of the log says so, and the next
//!    `close` or `fsync` of the file is told.

use std::sync::Arc;

use cellar_rpc::CallError;
use cellar_wire::abort::AbortCode;

use super::Cache;
use super::pending::Queue;
use super::vnode::Vnode;
use crate::error::Error;

/// What is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// The file that is stored, or the directory in which something is made.
    Vnode,
    /// The volume of either.
    Volume,
}

impl Gone {
    /// By the table in the head comment. `None`: it is worth trying again.
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

impl Cache {
    /// A store of a file failed, or a question about it: perhaps it is no more.
    pub(crate) fn note_failure(&self, vnode: &Arc<Vnode>, error: &Error) {
        // A creation that fails says something about its directory.
        if self.is_pending(vnode) {
            return;
        }
        match Gone::of(error) {
            Some(gone @ Gone::Vnode) => {
                let by_us = {
                    let state = vnode.state.lock();
                    state.life.is_removed() || state.removing > 0 || state.life.is_silly_renamed()
                };
                let owed = vnode.vanished();
                self.give_up(vnode, by_us, gone.reason("the file is gone"));
                self.pay(vnode, owed);
            }
            // What is cached of it may still be read.
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
            let lost = body.left_over().is_some() || (body.is_changed() && !by_us);
            match lost {
                true => body.put_aside(why),
                false => body.abandon(),
            }
            lost
        };
        if lost {
            tracing::warn!(fid = %vnode.fid(), volume = %vnode.volume.full_name(), why, "not stored, and given up");
            vnode.state.lock().refused = Some(AbortCode::from_errno(2));
        }
        self.unstored.lock().remove(&vnode.key);
    }

    /// Whether something of a file waits for another try.
    pub(crate) fn still_waits(&self, vnode: &Vnode) -> bool {
        self.is_pending(vnode) || vnode.body.lock().is_changed()
    }

    /// Whether a store that failed is worth telling about: something waits for another try, or was
    /// lost.
    pub(crate) fn is_missed(&self, vnode: &Vnode) -> bool {
        self.still_waits(vnode) || vnode.state.lock().refused.is_some()
    }

    /// What was to be made cannot be made: its directory or its volume is gone. Its name is gone
    /// with that.
    pub(super) fn creation_gone(
        &self,
        queue: &Queue,
        number: u64,
        (vnode, directory): (&Arc<Vnode>, &Arc<Vnode>),
        (gone, cause): (Gone, &CallError),
    ) {
        let by_us = gone == Gone::Vnode && directory.state.lock().life.is_removed();
        let waiting = queue.take_waiting(number);
        self.give_up(vnode, by_us, gone.reason("its directory is gone"));
        let _was_queued = self.never_born(vnode);
        if by_us {
            // Bytes that a program writes to it from now on are dropped, too.
            vnode.state.lock().life.removed();
        }
        for sender in waiting {
            let _gone = sender.send(Err(cause.clone()));
        }
    }

    /// This machine has removed a directory: what it refused to take before cannot be made any
    /// more.
    pub(crate) fn creations_gone_with(&self, directory: &Arc<Vnode>) {
        if directory.state.lock().untold == 0 {
            return;
        }
        let queues: Vec<_> = self.early.queues.lock().values().cloned().collect();
        let cause = CallError::Aborted(AbortCode::VNOVNODE);
        for queue in queues {
            for (number, vnode) in queue.resting_in(directory) {
                let of = (&vnode, directory);
                self.creation_gone(&queue, number, of, (Gone::Vnode, &cause));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::CellName;

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
