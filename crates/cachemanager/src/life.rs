//! The life of a vnode, as programs of this machine and the file server see it.
//!
//! | state | event | next state |
//! | --- | --- | --- |
//! | `Present` | a program creates the file in a leased directory | `PendingCreate` |
//! | `PendingCreate` | the server has created the file | `Present` |
//! | `PendingCreate` | the file can never be created | `Gone` |
//! | `Present` | a program removes the last name of the open file | `SillyRenamed` |
//! | `SillyRenamed` | the last program closes the file | `Removed` |
//! | `Present`, `SillyRenamed`, `Gone` | a program removes the last name | `Removed` |
//! | `Present` | the server answers that there is no such vnode | `Gone` |
//! | `Gone`, `Removed` | the server answers with a status | `Present` |
//! | `Removed`, a directory | the server answers a question from before the removal | `Removed` |
//! | `Removed`, a directory | the server answers with fewer than two links | `Removed` |
//!
//! Every other event leaves the state as it is:
//!
//! 1. `SillyRenamed` survives the answer "no such vnode". The close still removes the name.
//! 2. `SillyRenamed` and `PendingCreate` survive a status. The name that the program removed does
//!    not come back, and only the queue of pending creates knows that the server has created the
//!    file.
//! 3. `Removed` survives the answer "no such vnode", which is expected then.
//!
//! The name of `SillyRenamed` is NFS's term for the same answer to the same question.

use std::sync::Arc;

use bytes::Bytes;

use crate::creates::create_queue::Pending;
use crate::user::User;
use crate::vnode::Vnode;

/// See the table above.
#[derive(Debug, Default)]
pub(crate) enum Life {
    /// The server has it, as far as this machine knows.
    #[default]
    Present,
    /// A program of this machine created it, and the server does not know it yet.
    PendingCreate(Pending),
    /// Its last name was removed while it was open. It has another name until the last close.
    SillyRenamed(SillyRename),
    /// Programs of this machine removed its last name.
    Removed,
    /// The server answered that there is no such vnode, and no program of this machine removed it.
    Gone,
}

/// The name of a removed file that is still open, and the user who removed it.
#[derive(Clone, Debug)]
pub(crate) struct SillyRename {
    pub(crate) directory: Arc<Vnode>,
    pub(crate) name: Bytes,
    pub(crate) user: Arc<User>,
}

impl Life {
    /// The create that the server was not told of.
    pub(crate) fn pending(&self) -> Option<&Pending> {
        match self {
            Self::PendingCreate(pending) => Some(pending),
            _ => None,
        }
    }

    /// Whether it has the name of a removed open file.
    pub(crate) fn is_silly_renamed(&self) -> bool {
        matches!(self, Self::SillyRenamed(_))
    }

    /// Whether programs of this machine removed its last name, and no program has it open by
    /// another.
    pub(crate) fn is_removed(&self) -> bool {
        matches!(self, Self::Removed)
    }

    /// Whether no server has it any more.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self, Self::Removed | Self::Gone)
    }

    /// A program created it in a leased directory.
    pub(crate) fn create_pending(&mut self, pending: Pending) {
        debug_assert!(
            matches!(self, Self::Present | Self::PendingCreate(_)),
            "a create of {self:?}"
        );
        *self = Self::PendingCreate(pending);
    }

    /// The server has created it.
    pub(crate) fn created(&mut self) {
        if let Self::PendingCreate(_) = self {
            *self = Self::Present;
        }
    }

    /// It can never be created. Returns the create, if one was pending.
    pub(crate) fn create_failed(&mut self) -> Option<Pending> {
        match std::mem::replace(self, Self::Gone) {
            Self::PendingCreate(pending) => Some(pending),
            other => {
                *self = other;
                None
            }
        }
    }

    /// Its last name was replaced by that of a removed open file.
    pub(crate) fn silly_renamed(&mut self, to: SillyRename) {
        debug_assert!(
            !matches!(self, Self::PendingCreate(_)),
            "the server knows it: it has renamed it"
        );
        *self = Self::SillyRenamed(to);
    }

    /// The last program has closed it. Returns the name to remove, if it has one of a removed open
    /// file.
    pub(crate) fn closed(&mut self) -> Option<SillyRename> {
        match std::mem::replace(self, Self::Removed) {
            Self::SillyRenamed(name) => Some(name),
            other => {
                *self = other;
                None
            }
        }
    }

    /// A program of this machine removed its last name.
    pub(crate) fn removed(&mut self) {
        match self {
            Self::PendingCreate(_) => {}
            Self::Present | Self::SillyRenamed(_) | Self::Removed | Self::Gone => {
                *self = Self::Removed;
            }
        }
    }

    /// The server answered that there is no such vnode.
    pub(crate) fn vanished(&mut self) {
        match self {
            Self::Present => *self = Self::Gone,
            Self::PendingCreate(_) | Self::SillyRenamed(_) | Self::Removed | Self::Gone => {}
        }
    }

    /// The server answered with a status. `is_unlinked`: the status shows a directory that has no
    /// name, or answers a question from before its removal. OpenAFS's servers keep the vnode of an
    /// empty directory that a rename replaces, with one link.
    pub(crate) fn seen(&mut self, is_unlinked: bool) {
        match self {
            Self::Gone => *self = Self::Present,
            Self::Removed if !is_unlinked => *self = Self::Present,
            Self::Removed | Self::Present | Self::PendingCreate(_) | Self::SillyRenamed(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_brings_back_all_but_a_directory_removed_since() {
        for (is_unlinked, is_back) in [(false, true), (true, false)] {
            let mut life = Life::Removed;
            life.seen(is_unlinked);
            assert_eq!(!life.is_gone(), is_back);
        }
        let mut life = Life::default();
        life.vanished();
        assert!(life.is_gone() && !life.is_removed());
        life.seen(true);
        assert!(!life.is_gone());
        // A removal by a program here stays one when the server confirms it.
        life.removed();
        life.vanished();
        assert!(life.is_removed());
        assert!(life.closed().is_none() && life.is_removed());
        assert!(life.create_failed().is_none() && life.is_removed());
    }
}
