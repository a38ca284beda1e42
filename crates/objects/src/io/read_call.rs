//! One `Read` of a contiguous range of one object; returns zeros after the end of the object.

use std::time::Duration;

use bytes::Bytes;
use cellar_rpc::{CallError, OutgoingCall};
use cellar_wire::DecodeError;
use cellar_wire::abort::AbortCode;
use cellar_wire::osd::{Read, ReadReply};
use futures_util::FutureExt;
use tokio::time::{Instant, timeout_at};

use super::{ObjectSet, zeros};
use crate::arithmetic::length_at;
use crate::devices::Devices;

/// Time that a device always gets, even if it had time before, since the caller may have been busy
/// and not listening.
const GRACE: Duration = Duration::from_millis(200);

/// A range of an object that is being read.
pub(crate) struct ReadCall {
    /// The object's place in its layout.
    pub(crate) place: usize,
    call: Option<OutgoingCall>,
    /// Bytes that the device still sends; `None`: not known yet.
    coming: Option<u64>,
    /// Bytes requested from the device.
    asked: u64,
    /// Bytes of the range that were not returned yet.
    left: u64,
    /// Time of the last received data.
    last_data: Instant,
    /// Time without listening after which the end of the call is no fault of the device.
    patient: Duration,
    left_alone: bool,
}

impl ReadCall {
    /// Starts a read of `range` of the object at `place`. An object that was never written reads as
    /// zeros. `file_length` is the length of the file if known; bytes after it are zeros and are
    /// not requested, since a capability may not permit it.
    pub(crate) async fn open(
        devices: &Devices,
        set: &ObjectSet,
        place: usize,
        range: std::ops::Range<u64>,
        file_length: Option<u64>,
    ) -> Result<Self, CallError> {
        let left = range.end.saturating_sub(range.start);
        let there = file_length.map(|length| length_at(&set.layout.shape, place, length));
        let asked = there.map_or(left, |there| there.saturating_sub(range.start).min(left));
        let mut opened = Self {
            place,
            call: None,
            coming: Some(0),
            asked,
            left,
            last_data: Instant::now(),
            patient: devices.idle_time() / 4,
            left_alone: false,
        };
        let placed = set.layout.objects.get(place).copied().unwrap_or_default();
        if placed.version == 0 || asked == 0 {
            return Ok(opened);
        }
        let refused = CallError::Aborted(AbortCode::EACCES);
        let capability = set.capabilities.at(place, placed.osd).ok_or(refused)?;
        let connection = devices.connection(placed.osd).ok_or(CallError::Dead)?;
        let arguments = Read {
            capability,
            object: set.object(&placed),
            version: placed.version,
            position: range.start,
            length: asked,
        };
        let mut call = connection.open(&arguments).await?;
        // This starts the device now, not at the first read.
        call.finish();
        opened.call = Some(call);
        opened.coming = None;
        Ok(opened)
    }

    /// Returns at most `max` of the next bytes, and at least one unless all were returned.
    /// `patience`: silence after which the device counts as failed.
    pub(crate) async fn next(
        &mut self,
        max: u64,
        patience: Option<Duration>,
    ) -> Result<Bytes, CallError> {
        self.left_alone |= self.last_data.elapsed() >= self.patient;
        let Some(patience) = patience else {
            return self.take(max).await;
        };
        let deadline = (self.last_data + patience).max(Instant::now() + GRACE);
        match timeout_at(deadline, self.take(max)).await {
            Ok(result) => result,
            Err(_) => Err(CallError::Timeout),
        }
    }

    async fn take(&mut self, max: u64) -> Result<Bytes, CallError> {
        let max = max.min(self.left);
        let Some(call) = &mut self.call else {
            let bytes = zeros(max);
            self.left -= bytes.len() as u64;
            return Ok(bytes);
        };
        let coming = match self.coming {
            Some(coming) => coming,
            None => {
                let coming: u64 = call.read().await?;
                if coming > self.asked {
                    let surplus = DecodeError::Invalid("more bytes than requested");
                    return Err(CallError::BadReply(surplus));
                }
                self.last_data = Instant::now();
                *self.coming.insert(coming)
            }
        };
        let mut bytes = Bytes::new();
        if coming > 0 {
            bytes = call.read_some(coming.min(max)).await?;
            self.last_data = Instant::now();
            self.left -= bytes.len() as u64;
            self.coming = Some(coming - bytes.len() as u64);
        }
        if self.coming == Some(0) {
            // The call has succeeded only when it has ended; then dropping it aborts nothing.
            if let Some(call) = self.call.take() {
                call.results::<ReadReply>().await?;
            }
            if bytes.is_empty() {
                bytes = zeros(max);
                self.left -= bytes.len() as u64;
            }
        }
        Ok(bytes)
    }

    /// Whether the caller had not listened for so long that one side may have ended the call. The
    /// data was read ahead and must be requested again.
    pub(crate) fn was_idle(&self) -> bool {
        self.left_alone
    }

    /// Whether nothing was received for about `patience`; the tolerance is for calls opened at
    /// different moments. Invalidates the call.
    pub(crate) fn is_silent(&mut self, patience: Duration) -> bool {
        self.call.is_some()
            && self.last_data + patience / 2 <= Instant::now()
            && self.take(u64::MAX).now_or_never().is_none()
    }

    /// Keeps listening after the reader has given up the call: if the device sends something after
    /// all, it was only slow.
    pub(crate) fn listen(mut self: Box<Self>, devices: Devices, osd: u32) {
        tokio::spawn(async move {
            match self.take(u64::MAX).await {
                // If the device is no longer passed over, this machine has changed its network
                // meanwhile.
                Err(cause @ (CallError::Dead | CallError::Gone)) if devices.is_passed_over(osd) => {
                    devices.failed(osd, &cause);
                }
                Ok(_) | Err(CallError::Aborted(_) | CallError::BadReply(_)) => {
                    devices.clear_silence(osd)
                }
                Err(_) => {}
            }
        });
    }

    /// The rest of the range.
    pub(crate) async fn rest(
        &mut self,
        patience: Option<Duration>,
    ) -> Result<super::chunks::Chunks, CallError> {
        let mut chunks = super::chunks::Chunks::default();
        while self.left > 0 {
            chunks.push(self.next(u64::MAX, patience).await?);
        }
        Ok(chunks)
    }
}
