//! Processing of protocol events, and notification of the affected calls.
//!
//! Nothing is called back from here: handlers and callers are tasks that are woken after the step.

use std::rc::Rc;
use std::sync::Arc;

use cellar_rx::{CallId, ConnectionId, Event};

use super::{CallUser, Driver};
use crate::debug;
use crate::outgoing::CallShared;

impl Driver {
    /// Handles all protocol events. Returns whether there were any.
    pub(super) fn handle_events(self: &Rc<Self>) -> bool {
        let mut any = false;
        loop {
            let Some(event) = self.state.borrow_mut().endpoint.poll_event() else {
                if self.begin_due() {
                    any = true;
                    continue;
                }
                return any;
            };
            any = true;
            match event {
                Event::NewCall {
                    call,
                    connection,
                    service,
                } => {
                    self.accept(call, connection, service);
                }
                Event::Readable(call) | Event::Writable(call) => self.progress(call),
                Event::CallFailed { call, code } => self.call_failed(call, code),
                Event::ConnectionFailed { connection, code } => {
                    tracing::debug!(?connection, code, "connection failed");
                    self.connection_gone(connection, true);
                }
                Event::ConnectionClosed { connection } => self.connection_gone(connection, false),
                Event::ChannelFree(_) => {}
                Event::Debug { from, local, query } => {
                    debug::answer(self.clone(), from, local, query);
                }
            }
        }
    }

    /// Continues a call that can be read or written again.
    fn progress(&self, call: CallId) {
        if let Some(shared) = self.woken(call, None) {
            self.pump(&shared);
        }
    }

    fn call_failed(&self, call: CallId, code: i32) {
        if let Some(shared) = self.woken(call, Some(code)) {
            self.outgoing_failed(&shared, code);
        }
    }

    /// Wakes the task of an incoming call, which may have failed. Returns an outgoing call.
    fn woken(&self, call: CallId, failed: Option<i32>) -> Option<Arc<CallShared>> {
        let mut state = self.state.borrow_mut();
        match &mut state.slot(call)?.user {
            CallUser::None => None,
            CallUser::Incoming(incoming) => {
                incoming.failed = failed.or(incoming.failed);
                if let Some(waker) = incoming.waker.take() {
                    self.due_wakers.borrow_mut().push(waker);
                }
                None
            }
            CallUser::Outgoing(shared) => Some(shared.clone()),
        }
    }

    fn connection_gone(&self, connection: ConnectionId, failed: bool) {
        let mut state = self.state.borrow_mut();
        let entry = state.connection_data.get_mut(connection.slot());
        let kept = entry.and_then(|entry| entry.take_if(|(owner, _)| *owner == connection));
        if let Some(key) = state.pool_of.remove(&connection) {
            if let Some(pool) = state.pools.get_mut(&key) {
                pool.connections.retain(|known| *known != connection);
            }
            if failed {
                let now = self.now();
                state.endpoint.close(now, connection);
            }
        }
        drop(state);
        // Dropping a service's data may re-enter the driver.
        drop(kept);
    }
}
