//! Tests for every argument and result of every procedure: round trip, truncation, traces, absurd
//! lengths.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeSet;

use cellar_wire::DecodeError;
use cellar_wire::RequestError;

use crate::seeded;

use crate::packages::all_messages;
use crate::seeded::Random;

thread_local! {
    /// The largest single allocation of this thread since the value was last set to 0.
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

/// Records the size of the largest allocation.
struct Noting;

#[allow(unsafe_code, reason = "an allocator can only be observed by being one")]
// SAFETY: every call is passed on to the system's allocator with unchanged arguments.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Noting = Noting;

const SAMPLES: usize = 6;

#[test]
fn every_message_survives_a_round_trip() {
    let mut random = Random::new(seeded::seed());
    for message in all_messages() {
        let samples = message.samples(&mut random, SAMPLES);
        assert_eq!(samples.len(), SAMPLES, "no sample of {}", message.name());
        let mut different = BTreeSet::new();
        for bytes in samples {
            let decoded = message.decode(&bytes).expect("its own encoding");
            assert_eq!(decoded.canonical, bytes, "{}", message.name());
            let again = message
                .decode(&decoded.canonical)
                .expect("its own encoding");
            assert_eq!(again.debug, decoded.debug);
            assert!(message.is_reply || decoded.debug.contains(message.procedure.name));
            assert_eq!(bytes.len() % 4, 0);
            different.insert(bytes);
        }
        let is_empty = different.first().is_some_and(|bytes| bytes.is_empty());
        assert!(
            different.len() > 1 || is_empty,
            "samples of {} are alike",
            message.name()
        );
    }
}

#[test]
fn every_truncation_is_refused_as_one() {
    let mut random = Random::new(seeded::seed());
    for message in all_messages() {
        for bytes in message.samples(&mut random, 1) {
            for end in 0..bytes.len() {
                let error = message.decode(&bytes[..end]).err();
                let truncated = Some(RequestError::Arguments {
                    procedure: message.procedure.name,
                    cause: DecodeError::Truncated,
                });
                assert_eq!(error, truncated, "{} cut to {end} bytes", message.name());
            }
        }
    }
}

#[test]
fn surplus_bytes_are_left_alone() {
    let mut random = Random::new(seeded::seed());
    for message in all_messages() {
        for bytes in message.samples(&mut random, 1) {
            let longer = [&bytes[..], b"surplus."].concat();
            let decoded = message.decode(&longer).expect("a message and more");
            assert_eq!(decoded.canonical, bytes, "{}", message.name());
        }
    }
}

/// Any word may be a length, so each word in turn gets an absurd value.
#[test]
fn absurd_lengths_cost_no_memory() {
    let mut random = Random::new(seeded::seed());
    for message in all_messages() {
        for bytes in message.samples(&mut random, 1) {
            let mut damaged = bytes.to_vec();
            for at in (0..bytes.len()).step_by(4) {
                for absurd in [u32::MAX, i32::MAX as u32, 0x0100_0000, 499_999, 65_535] {
                    damaged[at..at + 4].copy_from_slice(&absurd.to_be_bytes());
                    LARGEST.set(0);
                    let decoded = message.decode(&damaged);
                    let largest = LARGEST.get();
                    drop(decoded);
                    // The allocations must be in proportion to the received bytes. The text of a
                    // trace is the largest part.
                    let limit = 4096 + 64 * bytes.len();
                    assert!(
                        largest <= limit,
                        "{}: {largest} bytes at once",
                        message.name()
                    );
                }
                damaged[at..at + 4].copy_from_slice(&bytes[at..at + 4]);
            }
        }
    }
}

#[test]
fn tables_are_in_order_and_names_unique() {
    let mut packages = BTreeSet::new();
    for message in all_messages() {
        if !packages.insert(message.package.name) {
            continue;
        }
        let procedures = message.package.procedures;
        assert!(
            procedures.is_sorted_by(|a, b| a.opcode < b.opcode),
            "{}",
            message.package.name
        );
        let names: BTreeSet<_> = procedures.iter().map(|procedure| procedure.name).collect();
        assert_eq!(names.len(), procedures.len());
        for (index, procedure) in procedures.iter().enumerate() {
            assert_eq!(procedure.index, index);
            assert_eq!(message.package.procedure(procedure.opcode), Some(procedure));
        }
        assert_eq!(message.package.procedure(0xffff_0000), None);
    }
    assert_eq!(packages.len(), 13);
}
