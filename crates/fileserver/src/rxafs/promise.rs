//! Giving promises: step 1 of the argument in [`crate::callback`].

use std::sync::Arc;

use cellar_volume::Volume;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::Callback;

use crate::abort_map::Refusal;
use crate::callback::{BULK_HOLDERS, Lifetime, NoPromise, VOLUME_LIFETIME_SECS};
use crate::callbacks::Callbacks;
use crate::limits::PROMISE_TRIES;
use crate::session::Session;

/// The callback of a status without a promise. It is already expired, so that no client relies on
/// it.
pub(crate) const NO_PROMISE: Callback = Callback {
    version: 1,
    expires_in_secs: 0,
    callback_type: Callback::DROPPED,
};

/// Reads the status of a vnode with `read`, and promises to notify the caller of changes. `read`
/// may run more than once. If it fails, nothing was promised, except in the last attempt (see
/// below).
///
/// In a read-write volume the promise is for the fid. In other volumes one promise is for the whole
/// volume.
pub(crate) fn with_promise<T>(
    callbacks: &Arc<Callbacks>,
    session: &Session,
    volume: &Volume,
    fid: Fid,
    bulk: bool,
    read: impl Fn() -> Result<T, Refusal>,
) -> Result<(T, Callback), Refusal> {
    let Some(host) = session.promise_to() else {
        return Ok((read()?, NO_PROMISE));
    };
    let (key, lifetime) = if volume.is_writable() {
        let extra_holders = if bulk { BULK_HOLDERS } else { 0 };
        (fid, Lifetime::Shared { extra_holders })
    } else {
        (
            Fid::whole_volume(fid.volume),
            Lifetime::Fixed(VOLUME_LIFETIME_SECS),
        )
    };
    for attempt in 0..=PROMISE_TRIES {
        // Under many changes, the promise is given first and the status read afterwards. If the
        // read is refused, a promise remains that no client relies on; it costs one break.
        let first = attempt == PROMISE_TRIES;
        let stamp = (!first).then(|| callbacks.table.stamp(key));
        let before = if first { None } else { Some(read()?) };
        match callbacks
            .table
            .promise(key, host, session.now.0, lifetime, stamp)
        {
            Ok(secs) => {
                let value = match before {
                    Some(value) => value,
                    None => read()?,
                };
                if volume.is_gone() {
                    // The status that was read belongs to a volume that another one has replaced. A
                    // volume is marked gone before its promises are collected. So if the mark is
                    // not set here, the collection finds this promise.
                    return Ok((value, NO_PROMISE));
                }
                return Ok((value, Callback::shared(secs)));
            }
            Err(NoPromise::Changed) => {}
            Err(NoPromise::Full) => {
                callbacks.make_room_for_promises();
                break;
            }
        }
    }
    Ok((read()?, NO_PROMISE))
}
