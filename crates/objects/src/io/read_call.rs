//! One `Read` of a contiguous range of one object: its bytes, and zeros where the object ends before.

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

/// How long a device may always take, even if it had time before: the caller may have been busy and not
/// listened.
const GRACE: Duration = Duration::from_millis(200);

/// A range of an object under way.
pub(crate) struct ReadCall {
    /// The object's place in its layout.
    pub(crate) place: usize,
    call: Option<OutgoingCall>,
    /// Bytes that the device still sends; `None`: it has not said yet.
    coming: Option<u64>,
    /// Bytes that it may send.
    asked: u64,
    /// Bytes of the range that are still to be handed out.
    left: u64,
    /// When something was heard last.
    heard: Instant,
    /// How long nobody may listen before it is no fault of the device that the call ended.
    patient: Duration,
    left_alone: bool,
}

impl ReadCall {
    /// Asks for `range` of the object at `place`. An object that was never written is zeros. `file_length`: that
    /// of the file if it is known; what lies behind is zeros and not asked for, a capability may not allow it.
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
            heard: Instant::now(),
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
        // The device may begin now, not when somebody asks for the first byte.
        call.finish();
        opened.call = Some(call);
        opened.coming = None;
        Ok(opened)
    }

    /// At most `max` of the next bytes, not none unless all were handed out. `patience`: silence after which the
    /// device counts as failed.
    pub(crate) async fn next(
        &mut self,
        max: u64,
        patience: Option<Duration>,
    ) -> Result<Bytes, CallError> {
        self.left_alone |= self.heard.elapsed() >= self.patient;
        let Some(patience) = patience else {
            return self.take(max).await;
        };
        let deadline = (self.heard + patience).max(Instant::now() + GRACE);
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
                    let surplus = DecodeError::Invalid("more bytes than asked for");
                    return Err(CallError::BadReply(surplus));
                }
                self.heard = Instant::now();
                *self.coming.insert(coming)
            }
        };
        let mut bytes = Bytes::new();
        if coming > 0 {
            bytes = call.read_some(coming.min(max)).await?;
            self.heard = Instant::now();
            self.left -= bytes.len() as u64;
            self.coming = Some(coming - bytes.len() as u64);
        }
        if self.coming == Some(0) {
            // Only when it has ended the call has succeeded, and dropping it aborts nothing.
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

    /// Whether the caller had not listened for so long that the device may have given the call up, or we: it was
    /// read ahead, and is to be asked again.
    pub(crate) fn was_left_alone(&self) -> bool {
        self.left_alone
    }

    /// Whether nothing was heard for about as long as `patience`: not all calls were opened in the same moment.
    /// Spoils the call.
    pub(crate) fn is_silent(&mut self, patience: Duration) -> bool {
        self.call.is_some()
            && self.heard + patience / 2 <= Instant::now()
            && self.take(u64::MAX).now_or_never().is_none()
    }

    /// Listens on behind the back of whoever has given it up: a device that says something after all was only slow.
    pub(crate) fn listen(mut self: Box<Self>, devices: Devices, osd: u32) {
        tokio::spawn(async move {
            match self.take(u64::MAX).await {
                // If nobody passes it over any more, this machine has changed its network meanwhile.
                Err(cause @ (CallError::Dead | CallError::Gone)) if devices.is_passed_over(osd) => {
                    devices.failed(osd, &cause);
                }
                Ok(_) | Err(CallError::Aborted(_) | CallError::BadReply(_)) => devices.heard(osd),
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
