//! Rebuilds one object of a layout on another device, because its device is gone, lacks a version,
//! holds wrong bytes, or is drained.
//!
//! 1. A copy (or the object itself, if its device still has it) is copied from device to device.
//!    The bytes do not pass through this process. Otherwise, with an erasure code, the object is
//!    computed from the others and written.
//! 2. The checksum of the new object is compared with that of its source before a layout may name
//!    it.
//! 3. The new object has its own name (a new serial number). A device that returns with the old
//!    object is harmless: garbage collection removes it.
//! 4. [`Pace`] bounds the bytes per second of all repairs that share it.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use cellar_rpc::{CallError, CallOptions};
use cellar_wire::abort::AbortCode;
use cellar_wire::object::{ObjectId, Placed, Scheme};
use cellar_wire::osd::{Checksum, ChecksumReply, Copy, SUM_SHA256};
use futures_util::future::join_all;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, sleep_until};

use crate::arithmetic::{copies_of, length_at, stripe_of};
use crate::devices::{Condition, Devices, words_of};
use crate::erasure::Code;
use crate::error::{Error, Result};
use crate::io::{Lane, ObjectSet, ReadCall, WriteOptions, check};

/// Bytes of each shard that are computed at a time.
const STEP_BYTES: u64 = 1 << 20;

/// Silence after which another object is used.
const PATIENCE: Duration = Duration::from_secs(5);

/// Lowest copy rate of a device, bytes per second.
const WORK_RATE_MIN: u64 = 1 << 20;

/// Time limit for an object, however short.
const WORK_TIME: Duration = Duration::from_secs(120);

/// Time limit for an object, however long.
const WORK_TIME_MAX: Duration = Duration::from_secs(2 * 86_400);

/// Destination of a rebuilt object.
#[derive(Clone, Copy, Debug)]
pub struct RebuildTarget {
    /// Device number.
    pub osd: u32,
    /// Serial number of the object, which the file has never used.
    pub serial: u32,
}

/// Rebuilds the object at `place`. The result replaces it in the layout of every version of the
/// file that names it. `length` is that of the file. The capabilities must be a server's.
///
/// # Errors
/// No source is left, or the target does not accept the object.
pub async fn rebuild(
    devices: &Devices,
    set: &ObjectSet,
    place: usize,
    target: RebuildTarget,
    length: u64,
    pace: &Pace,
) -> Result<Placed> {
    check(&set.layout)?;
    let placed = set.layout.objects.get(place).copied();
    let placed = placed.ok_or(Error::Misused("the layout has no such place"))?;
    let made = Placed {
        osd: target.osd,
        serial: target.serial,
        version: placed.version,
        stale: false,
    };
    if placed.version == 0 {
        return Ok(made);
    }
    let bytes = length_at(&set.layout.shape, place, length);
    let mut failure = None;
    for source in sources(devices, set, place) {
        pace.take(bytes).await;
        match copy(devices, set, source, &made, bytes).await {
            Ok(()) => return Ok(made),
            Err(cause) => {
                tracing::info!(place, source, osd = target.osd, %cause, "copying an object failed");
                failure = Some(cause);
            }
        }
    }
    if set.layout.shape.scheme == Scheme::Erasure {
        compute(devices, set, place, &made, bytes, pace).await?;
        return Ok(made);
    }
    let osd = placed.osd;
    Err(match failure {
        Some(cause) => Error::Device { osd, cause },
        None => Error::Unavailable { osd },
    })
}

/// Returns the places whose objects have the same bytes, the best first.
fn sources(devices: &Devices, set: &ObjectSet, place: usize) -> Vec<usize> {
    let shape = &set.layout.shape;
    let mut places: Vec<usize> = match stripe_of(shape, place) {
        Some(stripe) => copies_of(shape, stripe).collect(),
        None => vec![place],
    };
    let condition = |place: &usize| devices.condition(set.layout.objects[*place].osd);
    places.retain(|place| !set.layout.objects[*place].stale && condition(place) != Condition::Dead);
    // Other copies come before the one that is to be replaced.
    places.sort_by_key(|of| (condition(of), *of == place));
    places
}

/// Makes the target copy the object at `source`, and compares the checksums.
async fn copy(
    devices: &Devices,
    set: &ObjectSet,
    source: usize,
    made: &Placed,
    length: u64,
) -> std::result::Result<(), CallError> {
    let from = set.layout.objects[source];
    let refused = CallError::Aborted(AbortCode::EACCES);
    let may = |osd| set.capabilities.at(usize::MAX, osd).ok_or(refused.clone());
    let address = devices.address(from.osd).ok_or(CallError::Dead)?;
    let connection = devices.connection_for_work(made.osd);
    let connection = connection.ok_or(CallError::Dead)?;
    let arguments = Copy {
        capability: may(made.osd)?,
        object: set.object(made),
        version: made.version,
        source_capability: may(from.osd)?,
        source: set.object(&from),
        source_version: from.version,
        host: words_of(address.ip()),
        port: u32::from(address.port()),
    };
    connection
        .call_with(&arguments, work_timeout(length))
        .await?;
    let there = sum(devices, set, &from, length).await?;
    let here = sum(devices, set, made, length).await?;
    if there != here {
        return Err(CallError::Aborted(AbortCode::EIO));
    }
    Ok(())
}

async fn sum(
    devices: &Devices,
    set: &ObjectSet,
    placed: &Placed,
    length: u64,
) -> std::result::Result<ChecksumReply, CallError> {
    let refused = CallError::Aborted(AbortCode::EACCES);
    let capability = set.capabilities.at(usize::MAX, placed.osd).ok_or(refused)?;
    let connection = devices.connection_for_work(placed.osd);
    let connection = connection.ok_or(CallError::Dead)?;
    let object: ObjectId = set.object(placed);
    let version = placed.version;
    let arguments = Checksum {
        capability,
        object,
        version,
        sums: SUM_SHA256,
    };
    connection.call_with(&arguments, work_timeout(length)).await
}

/// Time limit for a device to copy an object or compute its checksum: it sends nothing until that
/// is done.
fn work_timeout(length: u64) -> CallOptions {
    let slow = Duration::from_secs(length / WORK_RATE_MIN);
    CallOptions {
        timeout: Some((WORK_TIME + slow).min(WORK_TIME_MAX)),
    }
}

/// Computes the object at `place` of an erasure code from others and writes it.
async fn compute(
    devices: &Devices,
    set: &ObjectSet,
    place: usize,
    made: &Placed,
    length: u64,
    pace: &Pace,
) -> Result<()> {
    let target = |cause| Error::Device {
        osd: made.osd,
        cause,
    };
    let mut code = Code::of(&set.layout.shape).ok_or(Error::Misused("no erasure code"))?;
    let capability = set.capabilities.at(usize::MAX, made.osd);
    let refused = CallError::Aborted(AbortCode::EACCES);
    let capability = capability.ok_or_else(|| target(refused))?;
    let (object, versions) = (set.object(made), (0, made.version));
    let options = WriteOptions::default();
    let lane = Lane::new(devices, made.osd, capability, object, versions, options);
    let mut lane = lane.ok_or_else(|| target(CallError::Dead))?;
    lane.begin(0..length);
    let mut usable: Vec<usize> = (0..set.layout.objects.len())
        .filter(|other| *other != place && !set.layout.objects[*other].stale)
        .filter(|other| {
            let placed = &set.layout.objects[*other];
            placed.version == 0 || devices.condition(placed.osd) != Condition::Dead
        })
        .collect();
    let mut sha = Sha256::new();
    let mut done = 0;
    while done < length {
        let range =
            done..(done + STEP_BYTES).min(length.next_multiple_of(crate::arithmetic::BLOCK));
        let wanted = usize::try_from(range.end.min(length) - done).unwrap_or(0);
        pace.take(wanted as u64).await;
        let shards = shards(devices, set, &mut usable, range.clone()).await?;
        let mut computed = code
            .reconstruct(&shards, &[place])
            .map_err(|_| Error::Misused("shards of different lengths"))?;
        let mut bytes = computed.pop().unwrap_or_default();
        bytes.truncate(wanted);
        sha.update(&bytes);
        lane.write(bytes, None).await.map_err(target)?;
        done = range.end;
        tokio::task::yield_now().await;
    }
    lane.drain(None).await.map_err(target)?;
    if length == 0 {
        lane.truncate(0, None).await.map_err(target)?;
    }
    let there = sum(devices, set, made, length).await.map_err(target)?;
    let digest = sha.finalize();
    let mut same = there.length == length;
    for (word, bytes) in there.sha256.iter().zip(digest.chunks_exact(4)) {
        same &= word.to_be_bytes() == *bytes;
    }
    if !same {
        return Err(target(CallError::Aborted(AbortCode::EIO)));
    }
    Ok(())
}

/// Reads a range of as many objects as are needed, from the places `usable`. Places that fail are
/// removed from `usable`.
async fn shards(
    devices: &Devices,
    set: &ObjectSet,
    usable: &mut Vec<usize>,
    range: Range<u64>,
) -> Result<Vec<(usize, Bytes)>> {
    let needed = set.layout.shape.stripes as usize;
    let length = usize::try_from(range.end - range.start).unwrap_or(0);
    let mut last = CallError::Dead;
    let mut failed = Vec::new();
    loop {
        if usable.len() < needed {
            return Err(Error::TooFew {
                left: usable.len(),
                needed,
                failed,
                cause: last,
            });
        }
        let patience = (usable.len() > needed).then_some(PATIENCE);
        let reads = usable[..needed].iter().map(|place| {
            let (place, range) = (*place, range.clone());
            async move {
                let read = async {
                    let mut call = ReadCall::open(devices, set, place, range, None).await?;
                    Ok(call.rest(patience).await?.take(length))
                };
                (place, read.await)
            }
        });
        let mut got = Vec::with_capacity(needed);
        for (place, result) in join_all(reads).await {
            match result {
                Ok(bytes) => got.push((place, bytes)),
                Err(cause) => {
                    let osd = set.layout.objects[place].osd;
                    devices.failed(osd, &cause);
                    failed.push(osd);
                    usable.retain(|other| *other != place);
                    last = cause;
                }
            }
        }
        if got.len() == needed {
            return Ok(got);
        }
    }
}

/// A rate limit in bytes per second, shared by all its users.
#[derive(Debug)]
pub struct Pace {
    /// 0: no limit.
    rate: u64,
    next: Mutex<Option<Instant>>,
}

impl Pace {
    /// Creates a limit in bytes per second; 0: no limit.
    #[must_use]
    pub fn new(rate: u64) -> Self {
        Self {
            rate,
            next: Mutex::default(),
        }
    }

    /// Waits for the time of earlier users, then takes `bytes`; later users wait for these.
    pub async fn take(&self, bytes: u64) {
        if self.rate == 0 {
            return;
        }
        let mine = {
            let mut next = self.next.lock();
            let now = Instant::now();
            let mine = next.map_or(now, |next| next.max(now));
            let cost = Duration::from_secs_f64(bytes as f64 / self.rate as f64);
            *next = Some(mine + cost);
            mine
        };
        sleep_until(mine).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pace_is_kept_by_all_together() {
        let pace = Pace::new(1000);
        let begin = Instant::now();
        join_all((0..10).map(|_| pace.take(500))).await;
        // The last of ten begins when nine have had half a second each.
        assert_eq!(begin.elapsed().as_millis() / 10, 450);
        let free = Pace::new(0);
        free.take(u64::MAX).await;
        assert_eq!(begin.elapsed().as_millis() / 10, 450);
    }
}
