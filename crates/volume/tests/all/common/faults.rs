//! Runs an operation with every write and every sync failing once, and the power failing at every
//! point, independent of what is stored.

use std::fmt::Debug;

use cellar_volume::disk::{Fault, SimDisk};

/// Returns whether a fault has occurred on a disk.
pub(crate) fn fired(disk: &SimDisk, fault: Fault) -> bool {
    let (writes, syncs, changes) = disk.counts();
    match fault {
        Fault::None => true,
        Fault::Write(n) => writes >= n,
        Fault::Sync(n) => syncs >= n,
        Fault::Dead(n) => changes >= n,
    }
}

/// Runs an operation with every possible fault, each time from the state on a disk that was closed.
///
/// `attempt` opens a disk and runs the operation, with or without a flush after it. It returns
/// whether the operation was acknowledged, or `None` if the fault did not occur. `state` opens a
/// disk without faults, checks it, and returns its contents. `changes` says whether the operation
/// changes the contents.
pub(crate) fn everywhere<S: PartialEq + Debug>(
    start: &SimDisk,
    changes: bool,
    attempt: impl Fn(&SimDisk, bool, Fault) -> Option<bool>,
    state: impl Fn(&SimDisk, &str) -> S,
) {
    let before = state(&start.power_cut(None), "before");
    let after = {
        let disk = start.power_cut(None);
        assert_eq!(attempt(&disk, false, Fault::None), Some(true));
        state(&disk.power_cut(None), "after")
    };
    assert_eq!(before != after, changes, "what the operation does");
    for flush in [false, true] {
        for fault in [Fault::Write as fn(u64) -> Fault, Fault::Sync, Fault::Dead] {
            for n in 1.. {
                let disk = start.power_cut(None);
                let Some(acknowledged) = attempt(&disk, flush, fault(n)) else {
                    break;
                };
                for seed in [None, Some(n), Some(n + 1000)] {
                    let what = format!("{:?} flush {flush} seed {seed:?}", fault(n));
                    let state = state(&disk.power_cut(seed), &what);
                    if acknowledged {
                        assert_eq!(state, after, "{what}: acknowledged and not there");
                    } else {
                        assert!(
                            state == before || state == after,
                            "{what}: a mix {state:#?}"
                        );
                    }
                }
            }
        }
    }
}
