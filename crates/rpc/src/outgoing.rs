//! Outgoing call: the caller's handle, and the state shared with the transport.
//!
//! 1. Caller and transport may be on different threads. [`CallShared`] holds the result and two
//!    queues. One has bytes that the caller has written and the transport has not taken. The other
//!    has received bytes that the caller has not read. A lock held for a few instructions guards
//!    it; on the shard's own thread it is never contended.
//! 2. Both directions are bounded. If a caller does not read, `received` fills up, the transport
//!    stops reading, and the protocol's window closes. If a server does not read, `unsent` fills up
//!    and the writer waits.
//! 3. Each side notifies the other of changes: the caller by [`CallShared::pump`], the transport by
//!    waking `reader` and `writer`. Wakers are called without the lock.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use bytes::{Buf, Bytes, BytesMut};
use cellar_rx::{CallId, Time};
use cellar_wire::abort::AbortCode;
use cellar_xdr::{Decode, DecodeError, Decoder};
use parking_lot::Mutex;

use crate::CallError;
use crate::limits::{OUTGOING_RECEIVED_BYTES_MAX, OUTGOING_UNSENT_BYTES_MAX, RESULT_BYTES_MAX};
use crate::port::RxConnection;

/// Client end of a call in progress. Dropping it before its end aborts it.
pub struct OutgoingCall {
    shared: Arc<CallShared>,
    /// Received and not yet consumed.
    held: Bytes,
}

impl OutgoingCall {
    pub(crate) fn new(shared: Arc<CallShared>) -> Self {
        Self {
            shared,
            held: Bytes::new(),
        }
    }

    /// Streams `bytes` after the arguments. Waits while the server has no room.
    ///
    /// # Errors
    /// [`CallError`] if the call failed; [`CallError::AnsweredEarly`] after [`Self::finish`].
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), CallError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut bytes = Some(bytes);
        poll_fn(|cx| {
            let mut state = self.shared.state.lock();
            if let Some(failure) = &state.failed {
                return Poll::Ready(Err(failure.clone()));
            }
            if state.finished {
                return Poll::Ready(Err(CallError::AnsweredEarly));
            }
            if state.unsent_bytes >= OUTGOING_UNSENT_BYTES_MAX {
                state.writer = Some(cx.waker().clone());
                return Poll::Pending;
            }
            if let Some(bytes) = bytes.take() {
                state.unsent_bytes += bytes.len();
                state.unsent.push_back(bytes);
            }
            Poll::Ready(Ok(()))
        })
        .await?;
        self.shared.pump();
        Ok(())
    }

    /// Ends the request. Reading does this automatically.
    pub fn finish(&mut self) {
        let changed = {
            let mut state = self.shared.state.lock();
            !std::mem::replace(&mut state.finished, true)
        };
        if changed {
            self.shared.pump();
        }
    }

    /// Returns the next bytes of the reply as they arrive; `None` at its end.
    ///
    /// # Errors
    /// [`CallError`] if the call failed. Data read before must then be discarded.
    pub async fn read_chunk(&mut self) -> Result<Option<Bytes>, CallError> {
        if !self.held.is_empty() {
            return Ok(Some(std::mem::take(&mut self.held)));
        }
        self.finish();
        let mut refill = false;
        let chunk = poll_fn(|cx| {
            let mut state = self.shared.state.lock();
            if let Some(chunk) = state.received.pop_front() {
                let full = state.received_bytes >= OUTGOING_RECEIVED_BYTES_MAX;
                state.received_bytes -= chunk.len();
                refill = full && state.received_bytes < OUTGOING_RECEIVED_BYTES_MAX;
                return Poll::Ready(Ok(Some(chunk)));
            }
            if let Some(failure) = &state.failed {
                return Poll::Ready(Err(failure.clone()));
            }
            if state.ended {
                return Poll::Ready(Ok(None));
            }
            state.reader = Some(cx.waker().clone());
            Poll::Pending
        })
        .await?;
        if refill {
            self.shared.pump();
        }
        Ok(chunk)
    }

    /// Returns the next bytes of the reply, at most `max`, from one received chunk. The rest stays
    /// available.
    ///
    /// # Errors
    /// [`CallError::BadReply`] if the reply ends here; otherwise as [`Self::read_chunk`].
    pub async fn read_some(&mut self, max: u64) -> Result<Bytes, CallError> {
        let Some(mut chunk) = self.read_chunk().await? else {
            return Err(CallError::BadReply(DecodeError::Truncated));
        };
        if chunk.len() as u64 > max {
            self.held = chunk.split_off(usize::try_from(max).unwrap_or(chunk.len()));
        }
        Ok(chunk)
    }

    /// Reads exactly `len` bytes of the reply, and calls `sink` with each piece of at most one
    /// received chunk.
    ///
    /// # Errors
    /// [`CallError::BadReply`] if the reply ends early; otherwise as [`Self::read_chunk`].
    pub async fn read_exact(
        &mut self,
        mut len: u64,
        mut sink: impl FnMut(Bytes),
    ) -> Result<(), CallError> {
        while len > 0 {
            let chunk = self.read_some(len).await?;
            len -= chunk.len() as u64;
            sink(chunk);
        }
        Ok(())
    }

    /// Decodes one value from the next bytes of the reply: a length, or the results.
    ///
    /// # Errors
    /// [`CallError::BadReply`] if it does not parse or the reply ends early; otherwise as
    /// [`Self::read_chunk`].
    pub async fn read<T: Decode>(&mut self) -> Result<T, CallError> {
        let mut ended = false;
        let mut retry_at = 0;
        loop {
            if self.held.len() >= retry_at || ended {
                let mut decoder = Decoder::new(&self.held);
                match T::decode(&mut decoder) {
                    Ok(value) => {
                        let used = decoder.consumed();
                        self.held.advance(used);
                        return Ok(value);
                    }
                    Err(DecodeError::Truncated) if !ended => retry_at = self.held.len() * 2,
                    Err(cause) => return Err(CallError::BadReply(cause)),
                }
            }
            let held = std::mem::take(&mut self.held);
            match self.read_chunk().await? {
                Some(chunk) if held.is_empty() => self.held = chunk,
                Some(chunk) => self.held = join(held, &chunk),
                None => {
                    ended = true;
                    self.held = held;
                }
            }
        }
    }

    /// Decodes the results at the end of the reply. Reads the reply to its end, so the call has
    /// succeeded when this returns. Bytes after the results are ignored.
    ///
    /// # Errors
    /// [`CallError::BadReply`] if the rest of the reply does not parse, or is longer than
    /// [`crate::limits::RESULT_BYTES_MAX`]; otherwise as [`Self::read_chunk`].
    pub async fn results<T: Decode>(self) -> Result<T, CallError> {
        Ok(T::from_xdr(&self.result_bytes().await?)?)
    }

    /// Returns the rest of the reply. Errors as [`Self::results`].
    pub(crate) async fn result_bytes(mut self) -> Result<Bytes, CallError> {
        let mut whole = self.read_chunk().await?.unwrap_or_default();
        while let Some(chunk) = self.read_chunk().await? {
            let len = whole.len() + chunk.len();
            if len > RESULT_BYTES_MAX {
                let limit = RESULT_BYTES_MAX;
                return Err(CallError::BadReply(DecodeError::TooLong { limit, len }));
            }
            whole = join(whole, &chunk);
        }
        Ok(whole)
    }

    /// Aborts the call with `code`.
    pub fn abort(self, code: AbortCode) {
        self.shared.abandon(code);
    }
}

/// Appends to bytes that usually have no other reference.
pub(crate) fn join(held: Bytes, more: &[u8]) -> Bytes {
    let mut joined = held.try_into_mut().unwrap_or_else(|held| {
        let mut copy = BytesMut::with_capacity(held.len() * 2 + more.len());
        copy.extend_from_slice(&held);
        copy
    });
    joined.extend_from_slice(more);
    joined.freeze()
}

impl Drop for OutgoingCall {
    fn drop(&mut self) {
        self.shared.abandon(AbortCode::RX_USER_ABORT);
    }
}

impl fmt::Debug for OutgoingCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutgoingCall").finish_non_exhaustive()
    }
}

/// State of a call that caller and transport share.
pub(crate) struct CallShared {
    pub(crate) state: Mutex<CallState>,
    carrier: CallCarrier,
}

/// Transport of the call.
pub(crate) enum CallCarrier {
    Rx(Arc<RxConnection>),
    Local(Arc<tokio::sync::Notify>),
}

/// Shared state; see the head of this module.
#[derive(Default)]
pub(crate) struct CallState {
    pub(crate) unsent: VecDeque<Bytes>,
    pub(crate) unsent_bytes: usize,
    /// Whether the caller has written everything.
    pub(crate) finished: bool,
    pub(crate) received: VecDeque<Bytes>,
    pub(crate) received_bytes: usize,
    /// Whether the whole reply was received.
    pub(crate) ended: bool,
    pub(crate) failed: Option<CallError>,
    /// The code to abort with, since the caller dropped the call.
    pub(crate) abandoned: Option<AbortCode>,
    pub(crate) reader: Option<Waker>,
    pub(crate) writer: Option<Waker>,
    /// Whether a pump command is in the shard's queue.
    pub(crate) pump_queued: bool,
    /// The protocol's id of the call, once it has a channel.
    pub(crate) call: Option<CallId>,
    /// Whether the protocol knows that the request has ended.
    pub(crate) finish_sent: bool,
    /// Whether bytes have moved since the wakers were last checked.
    pub(crate) progressed: bool,
    /// Key of the call among the driver's deadlines.
    pub(crate) deadline: Option<(Time, u64)>,
}

impl CallState {
    /// Whether the call has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.ended || self.failed.is_some()
    }

    /// Removes the wakers of the sides with changes; the caller wakes them after releasing the
    /// lock.
    pub(crate) fn take_due_wakers(&mut self) -> [Option<Waker>; 2] {
        let over = self.is_over();
        let progressed = std::mem::take(&mut self.progressed) || over;
        let reader = progressed && (over || !self.received.is_empty());
        let writer = progressed && (over || self.unsent_bytes < OUTGOING_UNSENT_BYTES_MAX);
        [
            if reader { self.reader.take() } else { None },
            if writer { self.writer.take() } else { None },
        ]
    }

    /// Removes all wakers; the caller wakes them after releasing the lock.
    pub(crate) fn take_wakers(&mut self) -> [Option<Waker>; 2] {
        [self.reader.take(), self.writer.take()]
    }
}

impl CallShared {
    pub(crate) fn new(carrier: CallCarrier, request: Bytes, finished: bool) -> Arc<Self> {
        let state = CallState {
            unsent_bytes: request.len(),
            unsent: VecDeque::from([request]),
            finished,
            ..CallState::default()
        };
        Arc::new(Self {
            state: Mutex::new(state),
            carrier,
        })
    }

    /// The connection of a call over Rx.
    pub(crate) fn connection(&self) -> Option<&Arc<RxConnection>> {
        match &self.carrier {
            CallCarrier::Rx(connection) => Some(connection),
            CallCarrier::Local(_) => None,
        }
    }

    /// Notifies the transport of a change on the caller's side.
    fn pump(self: &Arc<Self>) {
        match &self.carrier {
            CallCarrier::Rx(connection) => connection.pump(self),
            CallCarrier::Local(notify) => notify.notify_one(),
        }
    }

    fn abandon(self: &Arc<Self>, code: AbortCode) {
        {
            let mut state = self.state.lock();
            if state.is_over() || state.abandoned.is_some() {
                return;
            }
            state.abandoned = Some(code);
        }
        self.pump();
    }

    /// Ends the call for its caller, unless it has ended already.
    pub(crate) fn fail(&self, failure: CallError) {
        let wakers = {
            let mut state = self.state.lock();
            if state.is_over() {
                return;
            }
            state.failed = Some(failure);
            state.unsent.clear();
            state.unsent_bytes = 0;
            state.take_wakers()
        };
        for waker in wakers.into_iter().flatten() {
            waker.wake();
        }
    }
}
