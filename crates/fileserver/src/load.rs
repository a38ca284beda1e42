//! The load by volume, user and client machine: a bounded table of those with the most calls.
//!
//! 1. A call has a note ([`observe`]). The session enters the user and the machine, the search of
//!    the volume enters the volume, and transfers enter their bytes. The note belongs to the call's
//!    task and does not follow work to other threads. The search is done on the call's own thread
//!    first, so nearly every call has a volume.
//! 2. When the call ends, the counts are added to the stripe of this thread. So no call waits for
//!    another thread, except for a reader of the tables.
//! 3. A stripe has [`ENTRIES`] entries of each kind. If a new one finds no room, it takes the place
//!    and the rank of the entry with the least rank. This is the space-saving algorithm of
//!    Metwally, Agrawal and El Abbadi. So a frequent one is never lost for long. Its counts begin
//!    at 0, so readers get no counts of others.
//! 4. Ranks are halved from time to time, so that earlier load gives way to later load.

use std::cell::Cell;
use std::future::Future;
use std::net::IpAddr;
use std::time::Duration;

use cellar_wire::List;
use cellar_wire::afsvol::{LOAD_ENTRIES_MAX, LoadEntry};
use cellar_wire::ids::{ViceId, VolumeId};
use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::stripe;

/// Stripes of the tables, for as many threads.
const STRIPES: usize = 8;
/// Entries of each kind in a stripe. All stripes together fill a reply.
const ENTRIES: usize = LOAD_ENTRIES_MAX / STRIPES;
/// Calls of a stripe after which all ranks are halved.
const HALVING_CALLS: u32 = 65_536;

/// The kinds of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// By volume.
    Volumes = 0,
    /// By user.
    Users = 1,
    /// By client machine.
    Clients = 2,
}

/// The facts that a call's handler enters.
#[derive(Debug, Default)]
pub(crate) struct Note {
    volume: Cell<Option<VolumeId>>,
    user: Cell<Option<ViceId>>,
    machine: Cell<Option<IpAddr>>,
    bytes: Cell<u64>,
}

tokio::task_local! {
    static NOTE: Note;
}

/// Runs a call's handler, and returns its outcome with the note.
pub(crate) async fn observe<T>(handler: impl Future<Output = T>) -> (T, Note) {
    let noted = async {
        let outcome = handler.await;
        let note = NOTE.with(|note| Note {
            volume: note.volume.clone(),
            user: note.user.clone(),
            machine: note.machine.clone(),
            bytes: note.bytes.clone(),
        });
        (outcome, note)
    };
    NOTE.scope(Note::default(), noted).await
}

/// Enters the volume of the call.
pub(crate) fn note_volume(volume: VolumeId) {
    let _unobserved = NOTE.try_with(|note| note.volume.set(Some(volume)));
}

/// Enters the caller.
pub(crate) fn note_caller(user: ViceId, machine: Option<IpAddr>) {
    let _unobserved = NOTE.try_with(|note| {
        note.user.set(Some(user));
        note.machine.set(machine);
    });
}

/// Enters transferred bytes.
pub(crate) fn note_bytes(bytes: u64) {
    let _unobserved = NOTE.try_with(|note| note.bytes.set(note.bytes.get() + bytes));
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    key: u128,
    operations: u64,
    bytes: u64,
    micros: u64,
}

/// The entries of one kind.
#[derive(Default)]
struct Heavy {
    places: HashMap<u128, usize>,
    entries: Vec<Counts>,
    /// The rank of each entry.
    ranks: Vec<u64>,
}

impl Heavy {
    fn add(&mut self, key: u128, bytes: u64, micros: u64) {
        let place = match self.places.get(&key) {
            Some(place) => *place,
            None => self.enter(key),
        };
        self.ranks[place] += 1;
        let entry = &mut self.entries[place];
        entry.operations += 1;
        entry.bytes += bytes;
        entry.micros += micros;
    }

    /// Makes a place for a key, if need be that of another.
    fn enter(&mut self, key: u128) -> usize {
        let new = Counts {
            key,
            ..Counts::default()
        };
        let least = self.ranks.iter().enumerate().min_by_key(|(_, rank)| **rank);
        let place = match least {
            Some((place, _)) if self.entries.len() >= ENTRIES => {
                self.places.remove(&self.entries[place].key);
                self.entries[place] = new;
                place
            }
            _ => {
                self.entries.push(new);
                self.ranks.push(0);
                self.entries.len() - 1
            }
        };
        self.places.insert(key, place);
        place
    }
}

#[derive(Default)]
struct Stripe {
    kinds: [Heavy; 3],
    calls: u32,
}

/// The tables of a server.
pub(crate) struct Load(Box<[Mutex<Stripe>]>);

impl Default for Load {
    fn default() -> Self {
        Self((0..STRIPES).map(|_| Mutex::default()).collect())
    }
}

impl Load {
    /// Adds a call that has ended.
    pub(crate) fn add(&self, note: &Note, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bytes = note.bytes.get();
        let volume = note.volume.get().map(|volume| u128::from(volume.0));
        let user = note
            .user
            .get()
            .map(|user| u128::from(user.0.cast_unsigned()));
        let machine = note.machine.get().map(|machine| match machine {
            IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
            IpAddr::V6(address) => address.to_bits(),
        });
        let mut stripe = self.0[stripe::of_this_thread(STRIPES)].lock();
        for (heavy, key) in stripe.kinds.iter_mut().zip([volume, user, machine]) {
            if let Some(key) = key {
                heavy.add(key, bytes, micros);
            }
        }
        stripe.calls += 1;
        if stripe.calls >= HALVING_CALLS {
            stripe.calls = 0;
            for rank in stripe.kinds.iter_mut().flat_map(|heavy| &mut heavy.ranks) {
                *rank /= 2;
            }
        }
    }

    /// The entries of a kind, summed over the stripes.
    pub(crate) fn entries(&self, kind: Kind) -> List<LoadEntry, LOAD_ENTRIES_MAX> {
        let mut sums: HashMap<u128, Counts> = HashMap::new();
        for stripe in &self.0 {
            for entry in &stripe.lock().kinds[kind as usize].entries {
                let sum = sums.entry(entry.key).or_insert(Counts {
                    key: entry.key,
                    ..Counts::default()
                });
                sum.operations += entry.operations;
                sum.bytes += entry.bytes;
                sum.micros += entry.micros;
            }
        }
        let word = |key: u128, at: u32| (key >> (32 * (3 - at))) as u32;
        List::from_iter_cut(sums.into_values().map(|sum| LoadEntry {
            key: [0, 1, 2, 3].map(|at| word(sum.key, at)),
            operations: sum.operations,
            bytes: sum.bytes,
            micros: sum.micros,
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn note(volume: u32, bytes: u64) -> Note {
        Note {
            volume: Cell::new(Some(VolumeId(volume))),
            user: Cell::new(Some(ViceId(7))),
            machine: Cell::new(Some(IpAddr::from([192, 0, 2, 1]))),
            bytes: Cell::new(bytes),
        }
    }

    #[test]
    fn a_busy_volume_stays_in_the_table_among_very_many_others() {
        let load = Load::default();
        let took = Duration::from_micros(3);
        for round in 0..20_000 {
            load.add(&note(1, 10), took);
            load.add(&note(100 + round, 0), took);
        }
        let volumes = load.entries(Kind::Volumes);
        assert!(volumes.len() <= ENTRIES, "this is one thread");
        let busy = volumes.iter().find(|entry| entry.key == [0, 0, 0, 1]);
        let busy = busy.expect("the busy one");
        assert_eq!(
            (busy.operations, busy.bytes, busy.micros),
            (20_000, 200_000, 60_000)
        );
        let others = volumes.iter().filter(|entry| entry.key != busy.key);
        assert!(others.map(|entry| entry.operations).max() <= Some(1));
        let users = load.entries(Kind::Users);
        assert_eq!(
            (users.len(), users[0].key[3], users[0].operations),
            (1, 7, 40_000)
        );
        let clients = load.entries(Kind::Clients);
        assert_eq!(clients[0].key, [0, 0, 0xffff, 0xc000_0201]);
    }

    #[tokio::test]
    async fn a_call_has_its_own_note() {
        note_volume(VolumeId(9));
        let ((), note) = observe(async {
            note_volume(VolumeId(1));
            note_bytes(5);
            note_bytes(6);
            tokio::task::yield_now().await;
            note_caller(ViceId(3), None);
        })
        .await;
        assert_eq!(note.volume.get(), Some(VolumeId(1)));
        assert_eq!((note.user.get(), note.bytes.get()), (Some(ViceId(3)), 11));
    }

    /// Prints the cost; an optimised build takes a small part of the bound.
    #[test]
    fn counting_a_call_is_cheap() {
        const CALLS: u32 = 100_000;
        for (what, volumes) in [("few volumes", 16), ("many volumes", CALLS)] {
            let load = Load::default();
            let begun = Instant::now();
            for call in 0..CALLS {
                load.add(&note(call % volumes, 1), Duration::from_micros(1));
            }
            let cost = begun.elapsed() / CALLS;
            println!("{what}: {cost:?} a call");
            assert!(cost < Duration::from_micros(100), "{what}: {cost:?}");
        }
    }
}
