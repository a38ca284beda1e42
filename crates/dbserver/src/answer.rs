//! How a procedure is answered, apart from how it came.
//!
//! A procedure of a database server is a function from the caller and the arguments to the results.
//! It is written as `impl Answer<Server> for Arguments` in the file named after it, and used by the
//! service over Rx, by other roles in the same process and by tests alike.

use cellar_rpc::Caller;
use cellar_wire::{AbortCode, AfsTime, Procedure};

use crate::guard::Guard;
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

    /// Whether a procedure is an administrative act, which is written to the audit log.
    fn is_administrative(_opcode: u32) -> bool {
        false
    }

    /// The time.
    fn now(&self) -> AfsTime;

    /// Who a caller is to this server.
    fn identify(&self, caller: &Caller, guard: &Guard) -> Identity {
        match guard.identify(caller).is_superuser() {
            true => Identity::Superuser,
            false => Identity::ANONYMOUS,
        }
    }

    /// Whether the rules of this server let `who` use a procedure at all.
    ///
    /// # Errors
    /// The code that refuses.
    fn admit(&self, _who: Identity, _opcode: u32) -> Result<(), AbortCode> {
        Ok(())
    }

    /// Counts a call, and whether it was refused.
    fn count(&self, _opcode: u32, _refused: bool) {}

    /// Admits, answers and counts.
    fn ask<P: Answer<Self>>(&self, who: Identity, arguments: P) -> Result<P::Reply, AbortCode>
    where
        Self: Sized,
    {
        self.settle(P::OPCODE, who, || arguments.answer(self, who))
    }

    /// Admits, does `work` and counts.
    fn settle<T>(
        &self,
        opcode: u32,
        who: Identity,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, AbortCode> {
        let outcome = self.admit(who, opcode).and_then(|()| {
            let done = work();
            done.map_err(|error| error.abort_code(Self::DAMAGED))
        });
        self.count(opcode, outcome.is_err());
        outcome
    }
}
