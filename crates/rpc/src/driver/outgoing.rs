//! Outgoing calls: the Rx connections behind a [`crate::Connection`], and the bytes of each call.
//!
//! Each used `Connection` has a pool of client connections. A call takes a free channel of any of
//! them, or creates another connection, up to the pool's limit of calls; beyond that it waits. A
//! failed connection leaves the pool; the next call creates a new one, with a new cid.
//!
//! A call begins only after all protocol events were handled. A channel is free as soon as its call
//! has failed, and the table of calls has one slot for a channel. If a new call took the slot
//! first, the failed call would never be notified.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use cellar_rx::{
    CallId, ConnectionId, ConnectionOptions, ReadOutcome, StartCallError, WriteOutcome, code,
};
use cellar_wire::abort::AbortCode;

use super::{CallUser, Driver, State};
use crate::CallError;
use crate::limits::{CALLS_WAITING_PER_CONNECTION, OUTGOING_RECEIVED_BYTES_MAX};
use crate::outgoing::{CallShared, CallState};
use crate::port::RxConnection;

/// The client connections of one [`crate::Connection`].
#[derive(Default)]
pub(super) struct Pool {
    pub(super) connections: Vec<ConnectionId>,
    pub(super) waiting: VecDeque<Arc<CallShared>>,
    /// Number of calls that have a channel, or are about to get one.
    active: usize,
}

/// Result of moving a call's bytes.
enum TransferStep {
    GoesOn,
    /// The call is over and had a channel.
    Over,
}

impl Driver {
    /// Starts a call, or queues it if its connection is at its limit of calls.
    pub(crate) fn start_call(&self, shared: Arc<CallShared>, timeout: Option<Duration>) {
        let Some(connection) = shared.connection().cloned() else {
            return;
        };
        if self.closed.get() {
            shared.fail(CallError::Closed);
            return;
        }
        let started = {
            let mut state = self.state.borrow_mut();
            if let Some(timeout) = timeout {
                let due = self.now() + timeout;
                state.next_deadline += 1;
                let key = (due, state.next_deadline);
                shared.state.lock().deadline = Some(key);
                state.deadlines.insert(key, shared.clone());
            }
            let pool = state.pools.entry(connection.key).or_default();
            if pool.active < connection.calls_max() && pool.waiting.is_empty() {
                pool.active += 1;
                Ok(true)
            } else if pool.waiting.len() < CALLS_WAITING_PER_CONNECTION {
                pool.waiting.push_back(shared.clone());
                Ok(false)
            } else {
                Err(CallError::TooManyCalls)
            }
        };
        match started {
            Ok(true) => self.begin_call(&connection, &shared),
            Ok(false) => {}
            Err(failure) => {
                self.forget_deadline(&shared);
                shared.fail(failure);
            }
        }
    }

    /// Gives a call a channel and starts it, now or when all events are handled.
    fn begin_call(&self, connection: &Arc<RxConnection>, shared: &Arc<CallShared>) {
        let call = {
            let mut state = self.state.borrow_mut();
            if state.endpoint.has_events() {
                state.to_begin.push_back(shared.clone());
                drop(state);
                return self.request_turn();
            }
            let call = self.take_channel(&mut state, connection);
            if let Some(call) = call {
                state.set_slot(call, CallUser::Outgoing(shared.clone()));
                shared.state.lock().call = Some(call);
            }
            call
        };
        if call.is_some() {
            self.pump(shared);
        } else {
            self.forget_deadline(shared);
            shared.fail(CallError::Dead);
            self.begin_next(connection);
        }
    }

    /// Begins a call that waited until all events were handled. Returns whether there was one.
    pub(super) fn begin_due(&self) -> bool {
        let Some(shared) = self.state.borrow_mut().to_begin.pop_front() else {
            return false;
        };
        let Some(connection) = shared.connection() else {
            return true;
        };
        if is_awaited(&shared) {
            self.begin_call(connection, &shared);
        } else {
            self.forget_deadline(&shared);
            self.begin_next(connection);
        }
        true
    }

    fn take_channel(&self, state: &mut State, connection: &Arc<RxConnection>) -> Option<CallId> {
        let now = self.now();
        let State {
            endpoint,
            pools,
            pool_of,
            ..
        } = state;
        let pool = pools.entry(connection.key).or_default();
        // The newest first, since it most likely has a free channel.
        let mut index = pool.connections.len();
        while index > 0 {
            index -= 1;
            match endpoint.start_call(now, pool.connections[index]) {
                Ok(call) => {
                    let last = pool.connections.len() - 1;
                    pool.connections.swap(index, last);
                    return Some(call);
                }
                Err(StartCallError::NoChannel) => {}
                Err(StartCallError::Failed(_) | StartCallError::Gone) => {
                    let id = pool.connections.swap_remove(index);
                    pool_of.remove(&id);
                    endpoint.close(now, id);
                }
            }
        }
        let options = ConnectionOptions {
            dead_time: connection.options.dead_time,
            idle_dead_time: connection.options.idle_dead_time,
            hard_dead_time: None,
        };
        let security = connection.security.make();
        let id = endpoint.connect(
            now,
            connection.peer(),
            connection.service_id,
            security,
            options,
        );
        pool.connections.push(id);
        pool_of.insert(id, connection.key);
        endpoint.start_call(now, id).ok()
    }

    /// Moves a call's bytes in both directions, as far as possible.
    pub(crate) fn pump(&self, shared: &Arc<CallShared>) {
        let (pumped, wakers) = {
            let mut state = self.state.borrow_mut();
            let mut call_state = shared.state.lock();
            let pumped = self.pump_locked(
                &mut state,
                &mut call_state,
                shared.connection().map(|c| &**c),
            );
            (pumped, call_state.take_due_wakers())
        };
        for waker in wakers.into_iter().flatten() {
            self.wake(waker);
        }
        if matches!(pumped, TransferStep::Over) {
            self.call_over(shared);
        }
        self.request_turn();
    }

    fn pump_locked(
        &self,
        state: &mut State,
        shared: &mut CallState,
        connection: Option<&RxConnection>,
    ) -> TransferStep {
        let now = self.now();
        let Some(call) = shared.call else {
            // Still waits for a channel; if it was given up, that is noticed at its turn.
            return TransferStep::GoesOn;
        };
        if let Some(code) = shared.abandoned {
            state.endpoint.abort(now, call, code.0);
            shared.failed = Some(CallError::Aborted(code));
            return TransferStep::Over;
        }
        if shared.failed.is_some() {
            return TransferStep::GoesOn;
        }
        let endpoint = &mut state.endpoint;
        while let Some(chunk) = shared.unsent.pop_front() {
            let len = chunk.len();
            match endpoint.write(now, call, chunk) {
                Ok(WriteOutcome::Accepted) => {
                    shared.unsent_bytes -= len;
                    shared.progressed = true;
                }
                Ok(WriteOutcome::Full(chunk)) => {
                    shared.unsent.push_front(chunk);
                    break;
                }
                Err(cellar_rx::CallError::NotWriting) => {
                    // The server has already begun to reply, so the rest of the request is not
                    // sent. The caller sees the reply, usually an abort.
                    shared.unsent.clear();
                    shared.unsent_bytes = 0;
                    shared.finished = true;
                    shared.progressed = true;
                }
                Err(cellar_rx::CallError::Failed(code)) => {
                    shared.failed = Some(failure(code));
                    return TransferStep::Over;
                }
                Err(cellar_rx::CallError::Gone) => {
                    shared.failed = Some(CallError::Dead);
                    return TransferStep::Over;
                }
            }
        }
        if shared.unsent.is_empty() && shared.finished && !shared.finish_sent {
            shared.finish_sent = true;
            endpoint.finish(now, call);
        }
        if !shared.finish_sent {
            return TransferStep::GoesOn;
        }
        while shared.received_bytes < OUTGOING_RECEIVED_BYTES_MAX {
            match endpoint.read(now, call) {
                ReadOutcome::Chunk(chunk) => {
                    shared.received_bytes += chunk.len();
                    shared.received.push_back(chunk);
                    shared.progressed = true;
                }
                ReadOutcome::Pending => return TransferStep::GoesOn,
                ReadOutcome::End => {
                    if let Some(path) = endpoint.path(call)
                        && let Some(connection) = connection
                    {
                        connection.note_path(path);
                    }
                    shared.ended = true;
                    return TransferStep::Over;
                }
                ReadOutcome::Failed(code) => {
                    if let Some(connection) = connection.filter(|_| endpoint.was_resent(call)) {
                        connection.note_repeat();
                    }
                    shared.failed = Some(failure(code));
                    return TransferStep::Over;
                }
            }
        }
        TransferStep::GoesOn
    }

    /// Handles a call that the protocol ended.
    pub(super) fn outgoing_failed(&self, shared: &Arc<CallShared>, code: i32) {
        let call = shared.state.lock().call;
        if let Some(connection) = shared.connection()
            && call.is_some_and(|call| self.state.borrow().endpoint.was_resent(call))
        {
            connection.note_repeat();
        }
        shared.fail(failure(code));
        self.call_over(shared);
    }

    /// Ends a call that exceeded its deadline.
    pub(super) fn expire(&self, shared: &Arc<CallShared>) {
        let call = {
            let mut call_state = shared.state.lock();
            call_state.deadline = None;
            if call_state.is_over() {
                None
            } else {
                call_state.call
            }
        };
        if let Some(call) = call {
            let now = self.now();
            self.state
                .borrow_mut()
                .endpoint
                .abort(now, call, code::CALL_TIMEOUT);
        }
        shared.fail(CallError::Timeout);
        if call.is_some() {
            self.call_over(shared);
        }
    }

    /// Releases the channel of an ended call for the next one.
    fn call_over(&self, shared: &Arc<CallShared>) {
        self.forget_deadline(shared);
        let wakers = {
            let mut call_state = shared.state.lock();
            let Some(call) = call_state.call.take() else {
                return;
            };
            self.state.borrow_mut().clear_slot(call);
            call_state.take_wakers()
        };
        for waker in wakers.into_iter().flatten() {
            self.wake(waker);
        }
        if let Some(connection) = shared.connection() {
            self.begin_next(connection);
        }
    }

    /// Gives the freed channel to the next waiting call.
    fn begin_next(&self, connection: &Arc<RxConnection>) {
        let next = {
            let mut state = self.state.borrow_mut();
            let Some(pool) = state.pools.get_mut(&connection.key) else {
                return;
            };
            let next = std::iter::from_fn(|| pool.waiting.pop_front()).find(is_awaited);
            if next.is_none() {
                pool.active = pool.active.saturating_sub(1);
            }
            next
        };
        if let Some(next) = next {
            self.begin_call(connection, &next);
        }
    }

    fn forget_deadline(&self, shared: &Arc<CallShared>) {
        let key = shared.state.lock().deadline.take();
        if let Some(key) = key {
            self.state.borrow_mut().deadlines.remove(&key);
        }
    }

    /// Handles the drop of a [`crate::Connection`] after the last of its calls.
    pub(crate) fn forget_connection(&self, key: u64) {
        let now = self.now();
        let mut state = self.state.borrow_mut();
        let Some(pool) = state.pools.remove(&key) else {
            return;
        };
        for id in pool.connections {
            state.pool_of.remove(&id);
            state.endpoint.close(now, id);
        }
        drop(state);
        self.request_turn();
    }

    /// Wakes without a borrow of the state: at once, or at the end of the step in a turn.
    fn wake(&self, waker: Waker) {
        if self.in_turn.get() {
            self.due_wakers.borrow_mut().push(waker);
        } else {
            waker.wake();
        }
    }
}

/// Whether a caller still waits for a call.
fn is_awaited(shared: &Arc<CallShared>) -> bool {
    let state = shared.state.lock();
    !state.is_over() && state.abandoned.is_none()
}

/// Converts an abort code, or a local one, into the caller's error.
fn failure(code: i32) -> CallError {
    match code {
        code::CALL_DEAD => CallError::Dead,
        code::GONE => CallError::Gone,
        code::CALL_TIMEOUT => CallError::Timeout,
        code => CallError::Aborted(AbortCode(code)),
    }
}
