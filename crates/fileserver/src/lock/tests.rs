//! Tests of locks on files and ranges.

use super::*;

const FID: Fid = Fid::new(1, 2, 3);

#[test]
fn readers_share_and_a_writer_is_alone() {
    let locks = LockTable::default();
    assert_eq!(locks.set(FID, LockType::Read, 0), Ok(()));
    assert_eq!(locks.set(FID, LockType::Read, 0), Ok(()));
    assert_eq!(locks.count(FID, 1), 2);
    assert_eq!(locks.set(FID, LockType::Write, 1), Err(LockError::Conflict));
    assert!(!locks.release(FID, 1));
    assert!(locks.release(FID, 1));
    assert!(!locks.release(FID, 1), "releasing nothing is no error");
    assert_eq!(locks.set(FID, LockType::Write, 1), Ok(()));
    assert_eq!(locks.count(FID, 1), -1);
    assert_eq!(locks.set(FID, LockType::Read, 1), Err(LockError::Conflict));
    assert_eq!(locks.set(FID, LockType::Write, 1), Err(LockError::Conflict));
    assert!(locks.release(FID, 1));
    assert_eq!(locks.count(FID, 1), 0);
}

#[test]
fn a_lock_ends_unless_extended() {
    let locks = LockTable::default();
    assert_eq!(locks.extend(FID, 0), Err(LockError::NotLocked));
    assert_eq!(locks.set(FID, LockType::Write, 0), Ok(()));
    assert_eq!(locks.extend(FID, 200), Ok(()));
    assert_eq!(locks.count(FID, 499), -1);
    assert_eq!(locks.count(FID, 500), 0);
    // Expired but not removed: it may still be extended.
    assert_eq!(locks.extend(FID, 510), Ok(()));
    assert_eq!(locks.count(FID, 510), -1);
    locks.sweep(810 + LOCK_SECS);
    assert_eq!(locks.held(), 0);
    assert_eq!(locks.extend(FID, 1200), Err(LockError::NotLocked));
}

#[test]
fn an_expired_lock_is_discarded_by_the_next() {
    let locks = LockTable::default();
    assert_eq!(locks.set(FID, LockType::Write, 0), Ok(()));
    assert_eq!(locks.set(FID, LockType::Read, LOCK_SECS), Ok(()));
    assert_eq!(locks.count(FID, LOCK_SECS), 1);
    locks.forget(FID);
    assert_eq!(locks.held(), 0);
}

fn range(first: u64, last: u64, alone: bool) -> LockRange {
    LockRange { first, last, alone }
}

/// Sends the list of one client.
fn hold(locks: &LockTable, client: u32, ranges: &[LockRange], now: u32) -> Result<bool, LockError> {
    let ranges = HeldRanges::of_all(ranges.iter().copied());
    locks.hold(FID, ([client; 4], u64::from(now)), None, &ranges, now)
}

#[test]
fn ranges_of_two_clients_and_whole_files_exclude_each_other() {
    let (read, write) = (range(0, 9, false), range(0, 9, true));
    let (beside, last) = (range(10, 19, true), range(u64::MAX, u64::MAX, true));
    // The ranges of the first client, those that the second wants, and whether it gets them.
    for (had, wanted, expected) in [
        (read, read, true),
        (read, write, false),
        (write, read, false),
        (write, write, false),
        (write, beside, true),
        (write, last, true),
        (range(0, u64::MAX, true), last, false),
        (range(9, 10, false), beside, false),
    ] {
        let locks = LockTable::default();
        assert_eq!(hold(&locks, 1, &[had], 0), Ok(false));
        assert_eq!(hold(&locks, 1, &[had], 0), Ok(false), "said twice");
        let found = locks.test(FID, [2; 4], wanted, 0);
        assert_eq!(found, (!expected).then_some(had));
        assert_eq!(locks.test(FID, [1; 4], wanted, 0), None, "the owner's own");
        assert_eq!(hold(&locks, 2, &[wanted], 0).is_ok(), expected);
        assert_eq!(locks.held_by(FID, [1; 4], 0).ranges(), [had]);
    }
    // The same against locks on the whole file.
    for (kind, wanted, expected) in [
        (LockType::Read, read, true),
        (LockType::Read, write, false),
        (LockType::Write, read, false),
        (LockType::Write, write, false),
    ] {
        let locks = LockTable::default();
        assert_eq!(locks.set(FID, kind, 0), Ok(()));
        assert_eq!(hold(&locks, 1, &[wanted], 0).is_ok(), expected);
        assert_eq!(locks.test(FID, [1; 4], wanted, 0).is_none(), expected);
        let locks = LockTable::default();
        assert_eq!(hold(&locks, 1, &[wanted], 0), Ok(false));
        assert_eq!(locks.set(FID, kind, 0).is_ok(), expected);
    }
}

#[test]
fn a_status_counts_ranges_as_readers_or_a_writer() {
    let locks = LockTable::default();
    assert_eq!(locks.set(FID, LockType::Read, 0), Ok(()));
    let some = [range(0, 9, false), range(20, 29, false)];
    assert_eq!(hold(&locks, 1, &some, 0), Ok(false));
    assert_eq!(hold(&locks, 2, &some, 0), Ok(false));
    assert_eq!(locks.count(FID, 1), 3);
    assert!(!locks.release(FID, 1), "others are left");
    assert_eq!(hold(&locks, 1, &[], 1), Ok(false));
    assert_eq!(hold(&locks, 2, &[range(5, 5, true)], 1), Ok(false));
    assert_eq!(locks.count(FID, 1), -1);
    assert_eq!(hold(&locks, 2, &[], 2), Ok(true), "no holder is left");
    assert_eq!(hold(&locks, 2, &[], 2), Ok(false), "no holder existed");
    assert_eq!((locks.count(FID, 2), locks.held()), (0, 0));
}

#[test]
fn ranges_end_unless_they_are_said_again() {
    let locks = LockTable::default();
    assert_eq!(hold(&locks, 1, &[range(0, 9, true)], 0), Ok(false));
    assert_eq!(hold(&locks, 1, &[range(0, 9, true)], 200), Ok(false));
    let others = [range(5, 5, true)];
    assert_eq!(hold(&locks, 2, &others, 499), Err(LockError::Conflict));
    assert_eq!(hold(&locks, 2, &others, 500), Ok(false));
    // An owner that returns after the expiry has lost its ranges.
    let again = hold(&locks, 1, &[range(0, 9, true)], 501);
    assert_eq!(again, Err(LockError::Conflict));
    assert_eq!(hold(&locks, 1, &[range(6, 9, true)], 501), Ok(false));
    locks.sweep(900);
    assert_eq!(locks.held(), 0);
    // A lock on the whole file that expired is lost to ranges as well.
    assert_eq!(locks.set(FID, LockType::Write, 1_000), Ok(()));
    assert_eq!(hold(&locks, 1, &[range(0, 0, false)], 1_300), Ok(false));
    assert_eq!(locks.extend(FID, 1_301), Err(LockError::NotLocked));
}

#[test]
fn overtaken_answers_do_not_count() {
    let locks = LockTable::default();
    let say = |serial: u64, ranges: &[LockRange]| {
        let ranges = HeldRanges::of_all(ranges.iter().copied());
        locks.hold(FID, ([1; 4], serial), None, &ranges, 0)
    };
    assert_eq!(say(2, &[range(0, 9, true)]), Ok(false));
    assert_eq!(say(1, &[]), Err(LockError::Overtaken));
    assert_eq!(say(1, &[range(5, 5, true)]), Err(LockError::Overtaken));
    let held = locks.held_by(FID, [1; 4], 0);
    assert_eq!(held.ranges(), [range(0, 9, true)]);
    assert_eq!(say(2, &[range(0, 9, true)]), Ok(false));
}

#[test]
fn a_file_has_a_bounded_number_of_ranges() {
    let locks = LockTable::default();
    let each = cellar_wire::rxafs::LOCK_RANGES_MAX as u64;
    let of = |client: u64| {
        let first = move |n: u64| 2 * (client * each + n);
        (0..each).map(move |n| range(first(n), first(n), true))
    };
    let clients = RANGES_PER_FILE as u64 / each;
    for client in 0..clients {
        let all: Vec<_> = of(client).collect();
        assert_eq!(hold(&locks, client as u32, &all, 0), Ok(false));
    }
    let one = [range(1, 1, false)];
    assert_eq!(hold(&locks, 99, &one, 0), Err(LockError::TooManyRanges));
    // An owner with ranges may change them without adding any.
    assert_eq!(hold(&locks, 0, &one, 1), Ok(false));
    assert_eq!(hold(&locks, 99, &[range(3, 3, false)], 1), Ok(false));
    locks.forget(FID);
    assert_eq!(locks.held(), 0);
    assert_eq!(locks.shard(FID).lock().tally.all, 0);
}

#[test]
fn a_file_has_a_bounded_number_of_owners() {
    let locks = LockTable::default();
    let of = |client: u32| range(u64::from(client), u64::from(client), true);
    let bound = HOLDERS_PER_FILE as u32;
    for client in 0..bound {
        assert_eq!(hold(&locks, client, &[of(client)], 0), Ok(false));
    }
    // Refused for that reason, before ranges are compared.
    let wanted = [of(0)];
    assert_eq!(
        hold(&locks, bound, &wanted, 0),
        Err(LockError::TooManyRanges)
    );
    // An existing owner may add ranges.
    let more = [of(0), of(bound)];
    assert_eq!(hold(&locks, 0, &more, 1), Ok(false));
    assert_eq!(hold(&locks, 0, &[of(1)], 2), Err(LockError::Conflict));
    assert_eq!(hold(&locks, 0, &[], 3), Ok(false));
    assert_eq!(hold(&locks, bound, &wanted, 3), Ok(false));
}

#[test]
fn expired_promises_make_room_at_once() {
    let locks = LockTable::default();
    for client in 0..HOLDERS_PER_FILE as u32 {
        let at = u64::from(client);
        assert_eq!(hold(&locks, client, &[range(at, at, true)], 0), Ok(false));
    }
    let others = [range(0, 9, true)];
    let late = hold(&locks, 1_000, &others, LOCK_SECS - 1);
    assert_eq!(late, Err(LockError::TooManyRanges));
    assert_eq!(hold(&locks, 1_000, &others, LOCK_SECS), Ok(false));
    assert_eq!(locks.shard(FID).lock().tally.all, 1);
    // The same for ranges.
    locks.forget(FID);
    let each = cellar_wire::rxafs::LOCK_RANGES_MAX as u64;
    for client in 0..RANGES_PER_FILE as u64 / each {
        let first = move |n: u64| 2 * (client * each + n);
        let all: Vec<_> = (0..each).map(|n| range(first(n), first(n), true)).collect();
        assert_eq!(hold(&locks, client as u32, &all, 0), Ok(false));
    }
    assert_eq!(hold(&locks, 1_000, &others, LOCK_SECS), Ok(false));
    // A call refused because of another lock still removes the expired ones of the file.
    assert_eq!(
        hold(&locks, 1, &others, 2 * LOCK_SECS - 1),
        Err(LockError::Conflict)
    );
    assert_eq!(locks.shard(FID).lock().tally.all, 1);
}

#[test]
fn lists_of_any_lengths_are_compared() {
    let many: Vec<_> = (0..1_000)
        .map(|n| range(10 * n, 10 * n + 4, true))
        .collect();
    for (wanted, expected) in [
        (range(5_000, 5_000, false), false),
        (range(5_005, 5_009, true), true),
        (range(9_995, u64::MAX, true), true),
        (range(9_994, u64::MAX, true), false),
    ] {
        for swapped in [false, true] {
            let locks = LockTable::default();
            let (one, two) = (&many[..], &[wanted][..]);
            let (had, wants) = if swapped { (two, one) } else { (one, two) };
            assert_eq!(hold(&locks, 1, had, 0), Ok(false));
            assert_eq!(hold(&locks, 2, wants, 0).is_ok(), expected, "{wanted:?}");
        }
    }
}

#[test]
fn a_machine_takes_only_its_share() {
    let locks = LockTable::default();
    let [one, two] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
    let share = RANGES_PER_HOST / TABLE_SHARDS;
    let shard = locks.shard(FID);
    // Files of one shard of the table, with owners chosen by the caller.
    let files: Vec<Fid> = (1..1_000)
        .map(|vnode| Fid::new(1, 2 * vnode, 3))
        .filter(|fid| std::ptr::eq(locks.shard(*fid), shard))
        .collect();
    let say = |place: usize, host, count: usize, now: u32| {
        let ranges = HeldRanges::of_all((0..count as u64).map(|n| range(2 * n, 2 * n, true)));
        let who = ([place as u32; 4], u64::from(now));
        locks.hold(files[place], who, Some(host), &ranges, now)
    };
    let each = cellar_wire::rxafs::LOCK_RANGES_MAX;
    let (full, rest) = (share / each, share % each);
    for place in 0..full {
        assert_eq!(say(place, one, each, 0), Ok(false));
    }
    assert_eq!(say(full, one, rest, 0), Ok(false));
    assert_eq!(say(full + 1, one, 1, 0), Err(LockError::TooManyRanges));
    assert_eq!(say(full + 1, two, 1, 0), Ok(false), "others have theirs");
    // The same list from another address stays charged to the earlier machine.
    assert_eq!(say(0, two, each, 1), Ok(false));
    assert_eq!(shard.lock().tally.of(one), share);
    assert_eq!(shard.lock().tally.of(two), 1);
    // Fewer ranges make room. Added ranges are charged to the machine that sends them.
    assert_eq!(say(0, one, each - 1, 2), Ok(false));
    assert_eq!(say(full + 2, one, 1, 2), Ok(false));
    assert_eq!(say(full + 2, two, 2, 3), Ok(false));
    assert_eq!(shard.lock().tally.of(two), 3);
    assert_eq!(say(0, one, each, 4), Ok(false));
    // Every way of removal corrects the counts.
    locks.forget(files[0]);
    assert_eq!(shard.lock().tally.of(one), share - each);
    locks.sweep(1 + LOCK_SECS);
    assert_eq!(shard.lock().tally.of(two), 2);
    locks.forget_volume(VolumeId(1));
    assert_eq!(shard.lock().tally.all, 0);
    assert!(shard.lock().tally.hosts.is_empty());
}
