//! Locks on ranges: the rights that they need, invalid requests, and ownership.

use std::sync::atomic::Ordering;

use crate::common::{ANYUSER, CLONE, Machine, OPEN, list, with_file};
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{self, HeldRanges, LockRange};
use cellar_wire::uae;

const NOBODY_IN_PARTICULAR: [u32; 4] = [99; 4];

fn range(first: u64, last: u64, alone: bool) -> LockRange {
    LockRange { first, last, alone }
}

fn hold(fid: Fid, owner: u32, serial: u64, ranges: &[LockRange]) -> rxafs::HoldRanges {
    rxafs::HoldRanges {
        fid,
        owner: [owner; 4],
        serial,
        ranges: ranges.try_into().unwrap(),
    }
}

/// The code of a call; 0 if it succeeds.
async fn said(machine: &Machine, call: rxafs::HoldRanges) -> i32 {
    match machine.call(&call).await {
        Ok(_) => 0,
        Err(cause) => cause.code().0,
    }
}

/// The lock that conflicts with a range, for an owner without ranges.
async fn seen(machine: &Machine, fid: Fid, range: LockRange) -> Option<LockRange> {
    let owner = NOBODY_IN_PARTICULAR;
    let reply = machine.ok(&rxafs::TestRange { fid, owner, range }).await;
    reply.found.first().copied()
}

#[test]
fn a_range_needs_the_right_that_a_lock_of_its_kind_needs() {
    with_file(async |cell, [machine], fid| {
        let root = Fid::root(OPEN);
        let (read, write) = (range(0, 9, false), range(20, 29, true));
        let (shared, alone, both) = ([read], [write], [read, write]);
        // The codes for a range to read, one to write, and both in one call.
        for (rights, expected) in [
            ("rl", [13, 13, 13]),
            ("rlk", [0, 13, 13]),
            ("rlw", [0, 0, 0]),
            ("rlwk", [0, 0, 0]),
        ] {
            cell.set_list(root, list(&[(ANYUSER, rights)]));
            for (ranges, expected) in [&shared[..], &alone, &both].into_iter().zip(expected) {
                let code = said(machine, hold(fid, 1, 1, ranges)).await;
                assert_eq!(code, expected, "{rights}: {ranges:?}");
                let found = seen(machine, fid, range(0, u64::MAX, true)).await;
                let first = (expected == 0).then_some(ranges[0]);
                assert_eq!(found, first, "{rights}: {ranges:?}");
                // Releasing all ranges needs no right.
                assert_eq!(said(machine, hold(fid, 1, 1, &[])).await, 0);
            }
        }
        // The client keeps its ranges. One more byte, or a write lock in place of a read lock,
        // needs the right.
        assert_eq!(said(machine, hold(fid, 1, 1, &both)).await, 0);
        cell.set_list(root, list(&[(ANYUSER, "rl")]));
        assert_eq!(said(machine, hold(fid, 1, 2, &both)).await, 0);
        for more in [range(0, 10, false), range(0, 9, true)] {
            assert_eq!(said(machine, hold(fid, 1, 3, &[more])).await, 13);
        }
        assert_eq!(said(machine, hold(fid, 2, 3, &shared)).await, 13);
        cell.wait_secs(200);
        assert_eq!(said(machine, hold(fid, 1, 3, &shared)).await, 0);
        // After the expiry, it is as if the client never had the range.
        cell.wait_secs(300);
        assert_eq!(said(machine, hold(fid, 1, 4, &shared)).await, 13);
        // A caller that may not see the status does not learn about locks.
        cell.set_list(root, list(&[(ANYUSER, "l")]));
        let owner = NOBODY_IN_PARTICULAR;
        let test = rxafs::TestRange {
            fid,
            owner,
            range: read,
        };
        assert_eq!(machine.code(&test).await, 13);
    });
}

#[test]
fn a_read_only_volume_has_ranges_to_read_and_keeps_none() {
    with_file(async |cell, [machine], fid| {
        cell.make_clone();
        let copy = Fid {
            volume: CLONE,
            ..fid
        };
        let (read, write) = (range(0, 9, false), range(0, 9, true));
        assert_eq!(said(machine, hold(copy, 1, 1, &[read])).await, 0);
        assert_eq!(seen(machine, copy, write).await, None);
        assert_eq!(said(machine, hold(copy, 1, 2, &[write])).await, 30);
        assert_eq!(said(machine, hold(copy, 1, 2, &[])).await, 0);
        assert_eq!(machine.status(copy).await.status.lock_count, 0);
    });
}

#[test]
fn an_owner_releases_only_its_own_locks() {
    with_file(async |_, [one, two], fid| {
        let mine = range(0, 9, true);
        assert_eq!(said(one, hold(fid, 1, 2, &[mine])).await, 0);
        // Neither another owner nor the release of a whole-file lock removes it.
        assert_eq!(said(two, hold(fid, 2, 9, &[])).await, 0);
        two.ok(&rxafs::ReleaseLock { fid }).await;
        assert_eq!(two.code(&rxafs::ExtendLock { fid }).await, 22);
        assert_eq!(seen(two, fid, range(5, 5, false)).await, Some(mine));
        assert_eq!(said(two, hold(fid, 2, 9, &[range(9, 9, false)])).await, 11);
        assert_eq!(said(two, hold(fid, 2, 9, &[range(10, 19, true)])).await, 0);
        let set = rxafs::SetLock { fid, lock_type: 0 };
        assert_eq!(two.code(&set).await, 11);
        assert_eq!(two.status(fid).await.status.lock_count, -1);
        // An earlier list is ignored.
        assert_eq!(said(one, hold(fid, 1, 1, &[])).await, 22);
        assert_eq!(seen(two, fid, mine).await, Some(mine));
        // The release of the last range notifies the waiting clients.
        two.take_breaks();
        assert_eq!(said(two, hold(fid, 2, 10, &[])).await, 0);
        assert!(two.take_breaks().is_empty());
        assert_eq!(said(one, hold(fid, 1, 3, &[])).await, 0);
        assert_eq!(two.take_breaks(), [fid]);
        two.ok(&set).await;
    });
}

#[test]
fn ranges_that_cannot_be_are_refused() {
    with_file(async |_, [machine], fid| {
        for ranges in [
            &[range(9, 0, false)][..],
            &[range(0, 9, false), range(9, 19, false)],
            &[range(20, 29, false), range(0, 9, false)],
        ] {
            assert_eq!(said(machine, hold(fid, 1, 1, ranges)).await, 22);
        }
        let owner = NOBODY_IN_PARTICULAR;
        let test = |range| rxafs::TestRange { fid, owner, range };
        assert_eq!(machine.code(&test(range(1, 0, false))).await, 22);
        machine.ok(&test(range(1, 1, false))).await;
    });
}

/// ENOLCK, like every errno, is sent in the universal form to hosts that announced it.
#[test]
fn too_many_owners_is_said_as_the_host_understands_it() {
    with_file(async |_, [old, new], fid| {
        new.service.translates_errors.store(true, Ordering::Relaxed);
        let bound = cellar_fileserver::limits::HOLDERS_PER_FILE as u32;
        let of = |owner: u32| {
            let at = u64::from(owner);
            let ranges = HeldRanges::of_all([range(at, at, true)]);
            hold(fid, owner, 1, ranges.ranges())
        };
        for owner in 0..bound {
            assert_eq!(said(old, of(owner)).await, 0);
        }
        let universal = uae::from_errno(37).unwrap().0;
        assert_eq!(said(old, of(bound)).await, 37);
        assert_eq!(said(new, of(bound)).await, universal);
    });
}
