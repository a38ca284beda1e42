//! The users of protocol calls: handlers of calls that arrive, and callers.

use std::sync::Arc;

use cellar_rx::CallId;

use super::State;
use super::incoming::IncomingSlot;
use crate::outgoing::CallShared;

/// The user of a protocol call.
#[derive(Default)]
pub(super) struct CallSlot {
    pub(super) call: Option<CallId>,
    pub(super) user: CallUser,
}

#[derive(Default)]
pub(super) enum CallUser {
    #[default]
    None,
    Incoming(IncomingSlot),
    Outgoing(Arc<CallShared>),
}

impl State {
    /// Returns the slot of a call, if it still belongs to that call.
    pub(super) fn slot(&mut self, call: CallId) -> Option<&mut CallSlot> {
        self.calls
            .get_mut(call.slot())
            .filter(|slot| slot.call == Some(call))
    }

    pub(super) fn set_slot(&mut self, call: CallId, user: CallUser) {
        let index = call.slot();
        if self.calls.len() <= index {
            self.calls.resize_with(index + 1, CallSlot::default);
        }
        let slot = CallSlot {
            call: Some(call),
            user,
        };
        let before = std::mem::replace(&mut self.calls[index], slot);
        // A client that gave up its call has started the next call of the channel. The handler of
        // the old call may still run; when it ends, it finds no place to release.
        if let CallUser::Incoming(incoming) = before.user
            && let Some(client) = incoming.counted()
        {
            self.admission.end(client);
        }
    }

    pub(super) fn clear_slot(&mut self, call: CallId) {
        if let Some(slot) = self.slot(call) {
            *slot = CallSlot::default();
        }
    }

    pub(super) fn incoming_calls(&self) -> Vec<CallId> {
        let open = |slot: &CallSlot| match &slot.user {
            CallUser::Incoming(incoming) if incoming.failed.is_none() => slot.call,
            _ => None,
        };
        self.calls.iter().filter_map(open).collect()
    }

    pub(super) fn fail_incoming(&mut self, call: CallId, code: i32) {
        if let Some(CallSlot {
            user: CallUser::Incoming(incoming),
            ..
        }) = self.slot(call)
        {
            incoming.failed = Some(code);
        }
    }

    pub(super) fn take_outgoing(&mut self) -> Vec<Arc<CallShared>> {
        self.deadlines.clear();
        let mut outgoing: Vec<_> = self
            .pools
            .drain()
            .flat_map(|(_, pool)| pool.waiting)
            .chain(self.to_begin.drain(..))
            .collect();
        for slot in &mut self.calls {
            if let CallUser::Outgoing(shared) = &slot.user {
                outgoing.push(shared.clone());
                *slot = CallSlot::default();
            }
        }
        outgoing
    }
}
