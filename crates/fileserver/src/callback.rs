//! Callbacks: the server's promises to notify hosts of changes to files that they cache.
//!
//! **Invariant.** As long as a host believes in a promise and has received no break, the data sent
//! with that promise is still current. The argument, against which the code can be checked:
//!
//! 1. *Giving* (`rxafs::promise`): take the shard's stamp and read the status. Give the promise
//!    only if the stamp is unchanged ([`CallbackTable::promise`]); otherwise read again.
//! 2. *Changing*: the volume applies the change, so that readers see it. Then the promises are
//!    collected ([`CallbackTable::collect`]), which raises the stamp. Then the hosts are notified
//!    ([`Breaker`]). Only then is the change answered.
//! 3. Consider a promise for a status that was read *before* a change was applied. If it was in the
//!    table when the change collected, its host is notified. If the collection came between the
//!    reading and the giving, it raised the stamp, and the promise was not given.
//! 4. A collected promise is no longer in the table. A separate task notifies its host, so a client
//!    that hangs up does not cancel a break. The task ends in one of two ways. Either the host
//!    answered, in time or late. Or it is *down*, with the fid in its list of delayed breaks
//!    ([`crate::host`]).
//! 5. Before a host that is down or late gets an answer, it must receive all delayed breaks, or the
//!    order to forget everything (`InitCallBackState3`). So it never mixes data cached before with
//!    data read after.
//! 6. A break may overtake the answer to a fetch. The client must detect this: it compares break
//!    counters around its call. Both stock clients do.
//! 7. At a clean stop the table and the hosts are saved (`saved`), after the last change was
//!    answered. The file is deleted when it is read. So after a crash there is no file: every host
//!    is unknown at its first call, and must forget everything before it is answered.
//!
//! The originator of a change keeps its promise, because the answer brings it the new status. The
//! one exception is a directory moved to another parent, whose status no reply carries.
//!
//! One unreachable host delays each change at most once, by [`crate::limits::BREAK_WAIT_LEAST`] or
//! a few of its own round trips. After that it is down, and no change waits for a host that is
//! down. The module `breaks` says why that is enough.

mod breaks;
mod lifetime;
pub(crate) mod saved;
mod table;

pub use breaks::{BreakCounters, Breaker, Pending};
pub use lifetime::{BULK_HOLDERS, VOLUME_LIFETIME_SECS, lifetime_secs};
pub(crate) use table::fid_hash;
pub use table::{CallbackTable, Lifetime, NoPromise, Stamp, TableCounts};
