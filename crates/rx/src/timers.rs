//! Timer queue: a heap with lazy deletion.
//!
//! Each call, and each connection with something to repeat, has at most one valid entry: the one
//! equal to its `armed` time. If a deadline moves later, the entry stays: it fires early, finds
//! nothing due and is reinserted. If a deadline moves earlier, a second entry is added. A busy
//! channel therefore touches the heap a few times per second, however many calls it carries.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::time::Time;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TimerOwner {
    Call(u32),
    Connection(u32),
    Sweep,
}

#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Time, TimerOwner)>>,
}

impl Timers {
    pub(crate) fn push(&mut self, at: Time, target: TimerOwner) {
        self.heap.push(Reverse((at, target)));
    }

    pub(crate) fn peek(&self) -> Option<(Time, TimerOwner)> {
        self.heap.peek().map(|entry| entry.0)
    }

    pub(crate) fn pop_due(&mut self, now: Time) -> Option<(Time, TimerOwner)> {
        if self.peek()?.0 > now {
            return None;
        }
        self.heap.pop().map(|entry| entry.0)
    }

    pub(crate) fn pop(&mut self) {
        self.heap.pop();
    }

    /// Releases unused memory.
    pub(crate) fn shrink(&mut self) {
        self.heap.shrink_to(2 * self.heap.len());
    }
}
