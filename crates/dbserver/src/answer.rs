//! How a procedure is answered, apart from how it came.
//!
//! A procedure of a database server is a function from the caller and the arguments to the results.
//! It is written as `impl Answer<Server> for Arguments` in the file named after it, and used by the
//! service over Rx, by other roles in the same process and by tests alike.

use cellar_wire::{AbortCode, Procedure};

use crate::{Error, Identity};

/// The answer of server `S` to a procedure.
pub trait Answer<S>: Procedure {
    /// Whether the answer waits for the database or takes long: it is then given on a thread that
    /// may block.
    const BLOCKS: bool;

    /// Does what is asked.
    ///
    /// # Errors
    /// The protocol's refusal, or the database's.
    fn answer(self, server: &S, who: Identity) -> Result<Self::Reply, Error>;
}

/// A database server: what its procedures have in common.
pub(crate) trait Server: Send + Sync + 'static {
    /// The code of its package for a damaged database.
    const DAMAGED: AbortCode;

    /// Counts a call, and whether it was refused.
    fn count(&self, opcode: u32, refused: bool);

    /// Answers and counts.
    fn ask<P: Answer<Self>>(&self, who: Identity, arguments: P) -> Result<P::Reply, AbortCode>
    where
        Self: Sized,
    {
        let outcome = arguments
            .answer(self, who)
            .map_err(|error| error.abort_code(Self::DAMAGED));
        self.count(P::OPCODE, outcome.is_err());
        outcome
    }
}
