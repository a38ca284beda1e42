//! The order of the cache's locks, checked in debug builds.
//!
//! | rank | lock | protects |
//! | --- | --- | --- |
//! | [`MAKING_ROOM`] | `FullDisk::making` | one task at a time makes room on a full disk |
//! | [`VNODES`] | `VnodeTable::vnodes` | the table of vnodes |
//! | [`TABLE`] | `unstored`, `locked`, `silly_names`, `fetching` | other tables, of four owners |
//! | [`STATE`] | `Vnode::state` | status, promise, names, life |
//! | [`BODY`] | `Vnode::body` | bytes, and what of them is dirty |
//! | [`LEAF`] | `Queue::line` and the tables of `Creates` | pending creates |
//!
//! 1. A thread that holds a lock takes only locks of higher ranks. So no circle of threads waits
//!    for each other.
//! 2. The exception is [`STATE`]: a thread that holds the state of a directory may take that of a
//!    file in it. No thread does it the other way round.
//! 3. All these locks are held for a few memory accesses, never across an `await`: their guards are
//!    not `Send`.
//! 4. The locks that tasks hold across an `await` are taken before any of these, in this order:
//!    `Locks::server`, `Vnode::store_turn`, `Vnode::alone`, then the turn of a chunk in
//!    `Reads::fetching`.
//! 5. Every other mutex of the cache is private to one file, which takes no second lock while it
//!    holds it.
//!
//! A debug build keeps the ranks that each thread holds, and panics at a lock out of order. A
//! release build pays nothing.

use std::ops::{Deref, DerefMut};

use parking_lot::{Mutex, MutexGuard};

/// See the table above.
pub(crate) const MAKING_ROOM: u8 = 0;
/// See the table above.
pub(crate) const VNODES: u8 = 1;
/// See the table above.
pub(crate) const TABLE: u8 = 2;
/// See the table above.
pub(crate) const STATE: u8 = 3;
/// See the table above.
pub(crate) const BODY: u8 = 4;
/// See the table above.
pub(crate) const LEAF: u8 = 5;

/// A mutex with a place in the order.
#[derive(Debug, Default)]
pub(crate) struct Ordered<const RANK: u8, T>(Mutex<T>);

/// Holds an [`Ordered`] mutex.
pub(crate) struct Guard<'a, const RANK: u8, T> {
    guard: MutexGuard<'a, T>,
    _rank: held::Rank<RANK>,
}

impl<const RANK: u8, T> Ordered<RANK, T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> Guard<'_, RANK, T> {
        let rank = held::Rank::take();
        Guard {
            guard: self.0.lock(),
            _rank: rank,
        }
    }

    /// `None`: another thread holds it. This cannot wait, so any order is allowed.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, RANK, T>> {
        let guard = self.0.try_lock()?;
        Some(Guard {
            guard,
            _rank: held::Rank::add(),
        })
    }
}

impl<const RANK: u8, T> Deref for Guard<'_, RANK, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<const RANK: u8, T> DerefMut for Guard<'_, RANK, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(debug_assertions)]
mod held {
    //! The ranks that this thread holds.

    use std::cell::RefCell;

    use super::STATE;

    thread_local! {
        static RANKS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }

    /// One rank, held.
    pub(super) struct Rank<const RANK: u8>;

    impl<const RANK: u8> Rank<RANK> {
        pub(super) fn take() -> Self {
            let highest = RANKS.with_borrow(|ranks| ranks.iter().max().copied());
            let in_order = highest.is_none_or(|held| held < RANK || held == RANK && RANK == STATE);
            assert!(
                in_order,
                "a lock of rank {RANK} is taken while one of rank {highest:?} is held"
            );
            Self::add()
        }

        pub(super) fn add() -> Self {
            RANKS.with_borrow_mut(|ranks| ranks.push(RANK));
            Self
        }
    }

    impl<const RANK: u8> Drop for Rank<RANK> {
        fn drop(&mut self) {
            RANKS.with_borrow_mut(|ranks| {
                if let Some(at) = ranks.iter().rposition(|rank| *rank == RANK) {
                    ranks.remove(at);
                }
            });
        }
    }
}

#[cfg(not(debug_assertions))]
mod held {
    //! Release builds trust the order.

    pub(super) struct Rank<const RANK: u8>;

    impl<const RANK: u8> Rank<RANK> {
        pub(super) fn take() -> Self {
            Self
        }

        pub(super) fn add() -> Self {
            Self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_in_their_order() {
        let (state, body) = (Ordered::<STATE, u8>::default(), Ordered::<BODY, u8>::new(1));
        let other = Ordered::<STATE, u8>::default();
        let mut first = state.lock();
        let second = other.lock();
        *first += *body.lock();
        drop((first, second));
        assert_eq!(*state.lock(), 1);
        let (first, second) = (body.lock(), body.try_lock());
        assert!(second.is_none());
        drop(first);
        assert_eq!(body.try_lock().map(|body| *body), Some(1));
    }

    #[test]
    #[should_panic(expected = "rank 3 is taken")]
    #[cfg(debug_assertions)]
    fn a_lock_out_of_order_panics() {
        let (state, body) = (
            Ordered::<STATE, u8>::default(),
            Ordered::<BODY, u8>::default(),
        );
        let _body = body.lock();
        let _state = state.lock();
    }
}
