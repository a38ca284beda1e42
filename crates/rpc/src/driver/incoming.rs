//! Incoming calls: from the first packet to the end of the handler.
//!
//! A call is accepted (queued by its client), run (its handler polled once), and then either
//! finished or made a task. As a task it counts as running, except while it waits for its peer.

use std::any::Any;
use std::future::Future;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use cellar_rx::{CallId, ConnectionId, ReadOutcome, Refusal, Time, WriteOutcome, code};
use cellar_wire::abort::AbortCode;

use super::{CallUser, Driver, ServiceEntry};
use crate::incoming::{IncomingCall, Peer, Transport};
use crate::limits::WRITE_CHUNK_BYTES;
use crate::port::Port;
use crate::shard;
use crate::statistics::CallRecord;

/// A call that waits for its turn.
#[derive(Debug)]
pub(super) struct QueuedCall {
    call: CallId,
    connection: ConnectionId,
    service: u16,
    client: SocketAddr,
    arrived: Time,
}

impl QueuedCall {
    /// Client of the call.
    pub(super) fn client(&self) -> SocketAddr {
        self.client
    }
}

/// State of a call in progress.
pub(super) struct IncomingSlot {
    client: SocketAddr,
    /// Waker of a handler that waits for its peer.
    pub(super) waker: Option<Waker>,
    /// Code with which the protocol ended the call; its id is then invalid.
    pub(super) failed: Option<i32>,
    /// Whether the handler is a task.
    spawned: bool,
    /// Whether admission control counts it as running.
    counted: bool,
    waits_for_peer: bool,
}

impl IncomingSlot {
    const fn new(client: SocketAddr) -> Self {
        Self {
            client,
            waker: None,
            failed: None,
            spawned: false,
            counted: false,
            waits_for_peer: false,
        }
    }

    /// The client whose place among the running calls this occupies.
    pub(super) fn counted(&self) -> Option<SocketAddr> {
        self.counted.then_some(self.client)
    }
}

type Handling = Pin<Box<dyn Future<Output = ()>>>;

impl Driver {
    /// Accepts a new call: queues it, or refuses it.
    pub(super) fn accept(&self, call: CallId, connection: ConnectionId, service: u16) {
        let now = self.turn_time.get();
        let mut state = self.state.borrow_mut();
        let Some(info) = state.endpoint.connection(connection) else {
            state
                .endpoint
                .refuse(now, call, Refusal::Abort(code::CALL_DEAD));
            return;
        };
        let client = info.peer;
        let queued = QueuedCall {
            call,
            connection,
            service,
            client,
            arrived: now,
        };
        if state.admission.offer(client, queued).is_ok() {
            state.set_slot(call, CallUser::Incoming(IncomingSlot::new(client)));
            return;
        }
        let entry = state.services.iter().find(|entry| entry.id == service);
        let busy = entry.map_or(AbortCode::VBUSY, |entry| entry.options.busy_code);
        state.endpoint.refuse(now, call, Refusal::Abort(busy.0));
        self.counters.calls_refused.add(1);
    }

    /// Polls the handler of a call whose turn has come, and makes a task of it if it is pending.
    pub(super) fn run_call(self: &Rc<Self>, queued: QueuedCall, now: Time) {
        let QueuedCall { call, client, .. } = queued;
        let Some(mut handling) = self.handling(queued, now) else {
            return;
        };
        let mut context = Context::from_waker(Waker::noop());
        let poll = catch_unwind(AssertUnwindSafe(|| handling.as_mut().poll(&mut context)));
        match poll {
            Ok(Poll::Ready(())) => self.counters.calls_inline.add(1),
            Ok(Poll::Pending) => {
                self.counters.calls_pending.add(1);
                self.handler_pending(call, client);
                // The task polls it again at once, with a real waker.
                let driver = self.clone();
                shard::spawn(async move {
                    let outcome = CatchPanic(handling).await;
                    if outcome.is_err() {
                        driver.handler_panicked();
                    }
                });
            }
            Err(_) => self.handler_panicked(),
        }
    }

    fn handler_panicked(&self) {
        // Dropping the call has aborted it, and the program's panic hook has logged the panic.
        self.counters.handler_panics.add(1);
    }

    /// Returns the future that handles a call to its end; `None` if the call failed while it
    /// waited.
    fn handling(self: &Rc<Self>, queued: QueuedCall, started: Time) -> Option<Handling> {
        let QueuedCall {
            call,
            connection,
            service,
            client,
            arrived,
        } = queued;
        let mut state = self.state.borrow_mut();
        match state.slot(call).map(|slot| &slot.user) {
            Some(CallUser::Incoming(slot)) if slot.failed.is_none() => {}
            _ => {
                state.clear_slot(call);
                return None;
            }
        }
        let info = state.endpoint.connection(connection);
        let entry = state
            .services
            .iter()
            .find(|entry| entry.id == service)
            .cloned();
        let (Some(info), Some(entry)) = (info, entry) else {
            state.clear_slot(call);
            state
                .endpoint
                .refuse(started, call, Refusal::Abort(code::INVALID_OPERATION));
            return None;
        };
        drop(state);
        let peer = Peer {
            address: info.peer,
            local: info.local,
            epoch: info.epoch,
            cid: info.cid,
            service_id: info.service,
            security_index: info.security_index,
        };
        let rx = RxCall {
            driver: self.clone(),
            call,
            connection,
            client,
            over: false,
        };
        let limit = entry.options.argument_bytes_max;
        let incoming = IncomingCall::new(Transport::Rx(rx), peer, info.caller, limit);
        Some(Box::pin(answer(
            self.clone(),
            entry,
            incoming,
            arrived,
            started,
        )))
    }

    fn handler_pending(&self, call: CallId, client: SocketAddr) {
        let mut state = self.state.borrow_mut();
        let Some(slot) = state.slot(call) else { return };
        let CallUser::Incoming(slot) = &mut slot.user else {
            return;
        };
        slot.spawned = true;
        if !slot.waits_for_peer {
            slot.counted = true;
            state.admission.begin(client);
        }
    }

    /// Returns the code with which the protocol ended a call, if it did.
    fn failure(&self, call: CallId) -> Option<AbortCode> {
        let mut state = self.state.borrow_mut();
        match state.slot(call).map(|slot| &slot.user) {
            Some(CallUser::Incoming(slot)) => slot.failed.map(AbortCode),
            _ => Some(AbortCode::RX_CALL_DEAD),
        }
    }

    /// Records that the handler waits for the peer.
    fn wait_for_peer(&self, call: CallId, client: SocketAddr, waker: &Waker) {
        let mut freed = false;
        {
            let mut state = self.state.borrow_mut();
            let Some(slot) = state.slot(call) else { return };
            let CallUser::Incoming(slot) = &mut slot.user else {
                return;
            };
            slot.waker = Some(waker.clone());
            slot.waits_for_peer = true;
            if std::mem::take(&mut slot.counted) {
                freed = state.admission.end(client);
            }
        }
        if freed {
            self.request_turn();
        }
    }

    /// Records that the handler continues.
    fn peer_waited_for(&self, call: CallId, client: SocketAddr) {
        let mut state = self.state.borrow_mut();
        let Some(slot) = state.slot(call) else { return };
        let CallUser::Incoming(slot) = &mut slot.user else {
            return;
        };
        if std::mem::take(&mut slot.waits_for_peer) && slot.spawned && !slot.counted {
            slot.counted = true;
            state.admission.begin(client);
        }
    }

    /// Releases the call after its handler has ended.
    fn release(&self, call: CallId, client: SocketAddr) {
        {
            let mut state = self.state.borrow_mut();
            let counted = match state.slot(call).map(|slot| &slot.user) {
                Some(CallUser::Incoming(slot)) => slot.counted,
                _ => false,
            };
            if counted {
                state.admission.end(client);
            }
            state.clear_slot(call);
        }
        // There is either output, or a place for a waiting call.
        self.request_turn();
    }
}

/// Handles one call: handler, end of the reply, statistics.
async fn answer(
    driver: Rc<Driver>,
    entry: Rc<ServiceEntry>,
    mut call: IncomingCall,
    arrived: Time,
    started: Time,
) {
    let outcome = entry.service.call(&mut call).await;
    let aborted = call.complete(outcome).await.is_some();
    if !driver.port.0.statistics.is_on() {
        return;
    }
    let (bytes_received, bytes_sent) = call.traffic();
    let ended = driver.clock.now();
    let record = CallRecord {
        aborted,
        bytes_received,
        bytes_sent,
        queued_micros: micros_between(arrived, started),
        executed_micros: micros_between(started, ended),
    };
    entry.counters.record(call.known_opcode(), &record);
}

fn micros_between(earlier: Time, later: Time) -> u64 {
    later.as_micros().saturating_sub(earlier.as_micros())
}

/// A future whose panic ends the future, not its thread.
struct CatchPanic(Handling);

impl Future for CatchPanic {
    type Output = Result<(), ()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(cx))) {
            Ok(poll) => poll.map(Ok),
            Err(_) => Poll::Ready(Err(())),
        }
    }
}

/// A call over Rx, for [`IncomingCall`].
pub(crate) struct RxCall {
    driver: Rc<Driver>,
    call: CallId,
    connection: ConnectionId,
    client: SocketAddr,
    /// Whether the call has ended at this end.
    over: bool,
}

impl RxCall {
    pub(crate) fn port(&self) -> &Port {
        &self.driver.port
    }

    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, AbortCode>> {
        self.check()?;
        let now = self.driver.now();
        let outcome = self.driver.state.borrow_mut().endpoint.read(now, self.call);
        match outcome {
            ReadOutcome::Chunk(chunk) => {
                self.driver.peer_waited_for(self.call, self.client);
                // The window moved, and an ACK may be due.
                self.driver.request_turn();
                Poll::Ready(Ok(Some(chunk)))
            }
            ReadOutcome::End => {
                self.driver.peer_waited_for(self.call, self.client);
                Poll::Ready(Ok(None))
            }
            ReadOutcome::Pending => {
                self.driver
                    .wait_for_peer(self.call, self.client, cx.waker());
                Poll::Pending
            }
            ReadOutcome::Failed(code) => Poll::Ready(Err(self.fail(code))),
        }
    }

    /// Writes the contents of `unsent`; data without room stays there.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        unsent: &mut Bytes,
    ) -> Poll<Result<(), AbortCode>> {
        self.check()?;
        let now = self.driver.now();
        while !unsent.is_empty() {
            let len = unsent.len().min(WRITE_CHUNK_BYTES);
            let chunk = unsent.slice(..len);
            let outcome = self
                .driver
                .state
                .borrow_mut()
                .endpoint
                .write(now, self.call, chunk);
            match outcome {
                Ok(WriteOutcome::Accepted) => unsent.advance(len),
                Ok(WriteOutcome::Full(_)) => {
                    self.driver
                        .wait_for_peer(self.call, self.client, cx.waker());
                    self.driver.request_turn();
                    return Poll::Pending;
                }
                Err(cellar_rx::CallError::Failed(code)) => {
                    return Poll::Ready(Err(self.fail(code)));
                }
                Err(cellar_rx::CallError::Gone | cellar_rx::CallError::NotWriting) => {
                    return Poll::Ready(Err(self.fail(code::CALL_DEAD)));
                }
            }
        }
        self.driver.peer_waited_for(self.call, self.client);
        self.driver.request_turn();
        Poll::Ready(Ok(()))
    }

    /// Ends the reply; the protocol still delivers it.
    pub(crate) fn finish(&mut self) {
        if !std::mem::replace(&mut self.over, true) {
            let now = self.driver.now();
            self.driver
                .state
                .borrow_mut()
                .endpoint
                .finish(now, self.call);
            self.driver.release(self.call, self.client);
        }
    }

    pub(crate) fn abort(&mut self, code: AbortCode) {
        if !std::mem::replace(&mut self.over, true) {
            if self.driver.failure(self.call).is_none() {
                let now = self.driver.now();
                self.driver
                    .state
                    .borrow_mut()
                    .endpoint
                    .abort(now, self.call, code.0);
            }
            self.driver.release(self.call, self.client);
        }
    }

    pub(crate) fn connection_data(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        let state = self.driver.state.borrow();
        match state.connection_data.get(self.connection.slot()) {
            Some(Some((owner, data))) if *owner == self.connection => Some(data.clone()),
            _ => None,
        }
    }

    pub(crate) fn set_connection_data(&self, data: Arc<dyn Any + Send + Sync>) {
        let mut state = self.driver.state.borrow_mut();
        let index = self.connection.slot();
        if state.connection_data.len() <= index {
            state.connection_data.resize_with(index + 1, || None);
        }
        let replaced = state.connection_data[index].replace((self.connection, data));
        drop(state);
        // Dropped without the borrow, since its drop code is unknown.
        drop(replaced);
    }

    fn check(&mut self) -> Result<(), AbortCode> {
        match self.driver.failure(self.call) {
            None if !self.over => Ok(()),
            None => Err(AbortCode::RX_CALL_DEAD),
            Some(code) => Err(self.fail(code.0)),
        }
    }

    fn fail(&mut self, code: i32) -> AbortCode {
        if !std::mem::replace(&mut self.over, true) {
            self.driver.release(self.call, self.client);
        }
        AbortCode(code)
    }
}

impl Drop for RxCall {
    fn drop(&mut self) {
        self.abort(AbortCode::RX_USER_ABORT);
    }
}
