//! When a shortage of room begins and ends: the room that is left counts free blocks too.

use super::Space;
use crate::error::{Error, Result};

impl Space {
    /// A change is refused for lack of room. Returns its error.
    pub(crate) fn refused(&self) -> Error {
        self.room.shortage().refused(self.left().unwrap_or(0));
        Error::DiskFull
    }

    /// Looks whether a shortage of room has ended. Costs nothing if there is none.
    pub(crate) fn look_for_room(&self) {
        if self.room.shortage().is_any()
            && let Ok(left) = self.left()
        {
            self.room.shortage().look(left);
        }
    }

    /// The bytes that the store can take, in new and in free blocks.
    fn left(&self) -> Result<u64> {
        Ok(self.room.left()? + self.allocated_but_unused())
    }
}
