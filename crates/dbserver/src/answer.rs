//! The procedures of database servers, independent of their transport.
//!
//! A procedure of a database server is a function from the caller and the arguments to the results.
//! It is an `impl Answer<Server> for Arguments` in the file named after it. The service over Rx,
//! other roles in the same process and tests all use it.

use cellar_rpc::Caller;
use cellar_wire::{AbortCode, AfsTime, Procedure};

use crate::guard::Guard;
use crate::{Error, Identity};

/// The implementation of a procedure by server `S`.
pub trait Answer<S>: Procedure {
    /// Whether the procedure waits for the database or takes long. It then runs on a thread that
    /// may block.
    const BLOCKS: bool;

    /// Executes the procedure.
    ///
    /// # Errors
    /// A refusal by the protocol's rules, or an error of the database.
    fn answer(self, server: &S, who: Identity) -> Result<Self::Reply, Error>;
}

/// The common part of the procedures of a database server.
pub(crate) trait Server: Send + Sync + 'static {
    /// The code of its package for a damaged database.
    const DAMAGED: AbortCode;

    /// Whether a procedure is an administrative act, which is written to the audit log.
    fn is_administrative(_opcode: u32) -> bool {
        false
    }

    /// The current time.
    fn now(&self) -> AfsTime;

    /// The identity of a caller for this server.
    fn identify(&self, caller: &Caller, guard: &Guard) -> Identity {
        match guard.identify(caller).is_superuser() {
            true => Identity::Superuser,
            false => Identity::ANONYMOUS,
        }
    }

    /// Checks whether the rules of this server let `who` use a procedure at all.
    ///
    /// # Errors
    /// The code of the refusal.
    fn admit(&self, _who: Identity, _opcode: u32) -> Result<(), AbortCode> {
        Ok(())
    }

    /// Counts a call, by success or failure.
    fn count(&self, _opcode: u32, _refused: bool) {}

    /// Admits, executes and counts a call.
    fn ask<P: Answer<Self>>(&self, who: Identity, arguments: P) -> Result<P::Reply, AbortCode>
    where
        Self: Sized,
    {
        self.admit_and_count(P::OPCODE, who, || arguments.answer(self, who))
    }

    /// Admits a call, runs `work` and counts the call.
    fn admit_and_count<T>(
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
