//! When to look at what: a heap with lazy deletion.
//!
//! Each call, and each connection with something to repeat, has at most one entry that counts: the one
//! equal to its `armed` time. A deadline that moves later leaves the entry where it is (it fires early, finds nothing
//! due and is put back); one that moves earlier adds an entry. So a busy channel touches the heap a few
//! times a second however many calls pass over it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::time::Time;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    Call(u32),
    Connection(u32),
    Sweep,
}

#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Time, Target)>>,
}

impl Timers {
    pub(crate) fn push(&mut self, at: Time, target: Target) {
        self.heap.push(Reverse((at, target)));
    }

    pub(crate) fn peek(&self) -> Option<(Time, Target)> {
        self.heap.peek().map(|entry| entry.0)
    }

    pub(crate) fn pop_due(&mut self, now: Time) -> Option<(Time, Target)> {
        if self.peek()?.0 > now {
            return None;
        }
        self.heap.pop().map(|entry| entry.0)
    }

    pub(crate) fn pop(&mut self) {
        self.heap.pop();
    }

    /// Gives back memory that is not needed now.
    pub(crate) fn shrink(&mut self) {
        self.heap.shrink_to(2 * self.heap.len());
    }
}
