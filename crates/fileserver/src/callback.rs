//! Callbacks: the server's promises to tell hosts when what they cache changes.
//!
//! **What must hold.** If a host holds a promise that it believes in, and has not been told
//! otherwise, then what it was sent with the promise is what the server still has. The argument,
//! which the code can be checked against:
//!
//! 1. *Giving* (`rxafs::promise`): take the shard's stamp; read the status; give the promise only
//!    if the stamp is unchanged ([`CallbackTable::promise`]), else read again.
//! 2. *Changing*: the volume applies the change so that readers see it; then the promises are
//!    collected ([`CallbackTable::collect`]), which raises the stamp; then the hosts are told
//!    ([`Breaker`]); and only then is the change answered.
//! 3. So for a promise given on a status read *before* a change was applied: either it was in the
//!    table when the change collected, and its host is told; or the collection came between the
//!    reading and the giving, raised the stamp, and the promise was not given.
//! 4. A collected promise is gone from the table. Telling its host does not depend on the call that
//!    made the change: it runs as a task of its own, so a client that hangs up takes no break with
//!    it. It ends in one of two ways: the host answered, in time or late; or the host is *down*,
//!    with the fid in its list of delayed breaks ([`crate::host`]).
//! 5. A host that is down, or late, gets no answer to any call before it was told everything that is delayed,
//!    or to forget all (`InitCallBackState3`). So it never mixes what it cached before with what it
//!    reads after.
//! 6. A break overtaken by the answer to a fetch is the client's to see: it compares break counters
//!    around its call. Both stock clients do.
//! 7. Over a clean restart the table and the hosts are saved (`saved`), after the last change was
//!    answered, and the file is deleted when it is read. So after a crash there is none: every
//!    host is unknown at its first call, and is told to forget all before it is answered.
//!
//! The originator of a change keeps its promise: the answer brings it the new status. The one
//! exception is a directory moved to another parent, whose status no reply carries.
//!
//! One unreachable host delays nobody but within [`crate::limits::BREAK_WAIT_LEAST`] (or a few of
//! its own round trips), once: it is then down, and a host that is down is not waited for. Why that
//! is enough: `breaks`.

mod breaks;
mod lifetime;
pub(crate) mod saved;
mod table;

pub use breaks::{BreakCounters, Breaker, Pending};
pub use lifetime::{BULK_HOLDERS, VOLUME_LIFETIME_SECS, lifetime_secs};
pub(crate) use table::fid_hash;
pub use table::{CallbackTable, Lifetime, NoPromise, Stamp, TableCounts};
