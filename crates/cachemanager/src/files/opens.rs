//! The open handles of a file.

use std::sync::Arc;

use crate::user::User;

/// See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct Opens {
    /// The number of open handles.
    count: u32,
    /// The user who opened it last. Repeated requests to the server are made for this user.
    opener: Option<Arc<User>>,
    /// It was just created, and no program has closed it since.
    is_new: bool,
}

impl Opens {
    /// A program of this machine has created it.
    pub(crate) fn created(&mut self) {
        self.is_new = true;
    }

    /// Whether it was just created, and no program has closed it since.
    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    /// A program closes it.
    pub(crate) fn note_close(&mut self) {
        self.is_new = false;
    }

    /// Counts a new handle.
    pub(crate) fn add(&mut self, user: &Arc<User>) {
        self.count += 1;
        self.opener = Some(user.clone());
    }

    /// Counts a handle less. Returns whether it was the last one.
    pub(crate) fn remove(&mut self) -> bool {
        self.count = self.count.saturating_sub(1);
        self.count == 0
    }

    /// Whether a program has it open.
    pub(crate) fn is_open(&self) -> bool {
        self.count > 0
    }

    /// The user who opened it last, if it is open.
    pub(crate) fn opener(&self) -> Option<&Arc<User>> {
        self.opener.as_ref().filter(|_| self.is_open())
    }
}
