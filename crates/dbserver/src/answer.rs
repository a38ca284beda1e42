//! The procedures of database servers, independent of their transport.
//!
//! A procedure of a database server is a function from the caller and the arguments to the results.
//! It is an `impl Answer<Server> for Arguments` in the file named after it. The service over Rx,
//! other roles in the same process and tests all use it.

use cellar_auth::audit::Details;
use cellar_rpc::{Caller, IncomingCall, LocalBoxFuture};
use cellar_wire::{AbortCode, AfsTime, Package, Procedure};

use crate::caller::Origin;
use crate::guard::Guard;
use crate::service::DbService;
use crate::{Error, Identity};

/// The items of a [`Server`] that name its package, and its clock. `$wire` is the package's module.
macro_rules! serves {
    ($wire:ident) => {
        fn package() -> &'static cellar_wire::Package {
            &$wire::PACKAGE
        }

        fn serve<'a>(
            service: &'a crate::service::DbService<Self>,
            call: &'a mut cellar_rpc::IncomingCall,
        ) -> cellar_rpc::LocalBoxFuture<'a, Result<(), cellar_wire::AbortCode>> {
            Box::pin(async move { $wire::serve(service, call.opcode().await?, call).await })
        }

        fn now(&self) -> cellar_wire::AfsTime {
            (self.clock)()
        }
    };
}
pub(crate) use serves;

/// The kind of a procedure. The rules about callers and the audit log depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Lookups and reports that need no rule of the server's own.
    Open,
    /// Maps names and ids of users. A caller whose name the protection database does not have may
    /// do this, and nothing else.
    Names,
    /// Shows facts that a cell may hide (`-restricted_query`, `-restrict_anonymous`).
    Listing,
    /// Changes the database. The audit log records it.
    Change,
}

/// The implementation of a procedure by server `S`.
pub trait Answer<S>: Procedure {
    /// Whether the procedure waits for the database or takes long. It then runs on a thread that
    /// may block.
    const BLOCKS: bool;

    /// The kind of the procedure.
    const KIND: Kind = Kind::Open;

    /// The arguments as the audit log shows them, if the procedure is a [change](Kind::Change).
    fn details(&self) -> Details {
        Details::new()
    }

    /// Executes the procedure.
    ///
    /// # Errors
    /// A refusal by the protocol's rules, or an error of the database.
    fn answer(self, server: &S, who: Identity) -> Result<Self::Reply, Error>;

    /// Executes the procedure for a call from another process, if it [blocks](Self::BLOCKS). For
    /// procedures that use more of the caller than its identity.
    ///
    /// # Errors
    /// As [`Answer::answer`].
    fn answer_call(
        self,
        server: &S,
        who: Identity,
        _origin: &Origin,
    ) -> Result<Self::Reply, Error> {
        self.answer(server, who)
    }

    /// The identity in whose name a call from another process is admitted and executed, if the
    /// procedure [blocks](Self::BLOCKS).
    fn acts_as(&self, who: Identity, _origin: &Origin) -> Identity {
        who
    }
}

/// The common part of the procedures of a database server.
pub trait Server: Sized + Send + Sync + 'static {
    /// The code of its package for a damaged database.
    const DAMAGED: AbortCode;

    /// Its package.
    fn package() -> &'static Package;

    /// Answers a call: `serve` of its package.
    fn serve<'a>(
        service: &'a DbService<Self>,
        call: &'a mut IncomingCall,
    ) -> LocalBoxFuture<'a, Result<(), AbortCode>>;

    /// The current time.
    fn now(&self) -> AfsTime;

    /// The identity of a caller for this server.
    fn identify(&self, caller: &Caller, guard: &Guard) -> Identity {
        match guard.identify(caller).is_superuser() {
            true => Identity::Superuser,
            false => Identity::ANONYMOUS,
        }
    }

    /// Checks whether the rules of this server let `who` use a kind of procedures at all.
    ///
    /// # Errors
    /// The code of the refusal.
    fn admit(&self, _who: Identity, _kind: Kind) -> Result<(), AbortCode> {
        Ok(())
    }

    /// Counts a call, by success or failure.
    fn count(&self, _opcode: u32, _refused: bool) {}

    /// Admits, executes and counts a call of this process.
    fn ask<P: Answer<Self>>(&self, who: Identity, arguments: P) -> Result<P::Reply, AbortCode> {
        self.admit_and_count((P::OPCODE, P::KIND), who, || arguments.answer(self, who))
    }

    /// Admits, executes and counts a call of another process.
    fn ask_for<P: Answer<Self>>(
        &self,
        who: Identity,
        origin: &Origin,
        arguments: P,
    ) -> Result<P::Reply, AbortCode> {
        let who = arguments.acts_as(who, origin);
        self.admit_and_count((P::OPCODE, P::KIND), who, || {
            arguments.answer_call(self, who, origin)
        })
    }

    /// Admits a call, runs `work` and counts the call.
    fn admit_and_count<T>(
        &self,
        (opcode, kind): (u32, Kind),
        who: Identity,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, AbortCode> {
        let outcome = self.admit(who, kind).and_then(|()| {
            let done = work();
            done.map_err(|error| error.abort_code(Self::DAMAGED))
        });
        self.count(opcode, outcome.is_err());
        outcome
    }
}
