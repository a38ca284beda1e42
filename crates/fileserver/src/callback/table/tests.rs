//! Tests of the table of promises.

use super::*;

fn key(vnode: u32) -> Fid {
    Fid::new(536_870_912, vnode, 7)
}

const SHARED: Lifetime = Lifetime::Shared { extra_holders: 0 };

fn collect(table: &CallbackTable, key: Fid, except: Option<u32>, now: u32) -> Vec<u32> {
    let mut hosts = Vec::new();
    table.collect(key, except.map(HostSlot), now, &mut hosts);
    let mut hosts: Vec<u32> = hosts.into_iter().map(|slot| slot.0).collect();
    hosts.sort_unstable();
    hosts
}

#[test]
fn everyone_but_the_originator_is_notified_once() {
    let table = CallbackTable::new(100, 1);
    for host in 0..5 {
        assert_eq!(
            table.promise(key(2), HostSlot(host), 1000, SHARED, None),
            Ok(14400)
        );
    }
    assert_eq!(table.held(), 5);
    assert_eq!(collect(&table, key(2), Some(3), 1001), [0, 1, 2, 4]);
    assert_eq!(collect(&table, key(2), None, 1001), [3]);
    assert_eq!(collect(&table, key(2), None, 1001), [0; 0]);
    assert_eq!(table.held(), 0);
}

#[test]
fn a_change_between_reading_and_promising_is_seen() {
    let table = CallbackTable::new(100, 2);
    let stamp = table.stamp(key(4));
    assert_eq!(collect(&table, key(4), None, 0), [0; 0]);
    let late = table.promise(key(4), HostSlot(1), 0, SHARED, Some(stamp));
    assert_eq!(late, Err(NoPromise::Changed));
    let stamp = table.stamp(key(4));
    assert!(
        table
            .promise(key(4), HostSlot(1), 0, SHARED, Some(stamp))
            .is_ok()
    );
}

#[test]
fn lifetimes_follow_the_other_holders() {
    let table = CallbackTable::new(100, 3);
    for host in 0..8 {
        assert_eq!(
            table.promise(key(6), HostSlot(host), 0, SHARED, None),
            Ok(14400)
        );
    }
    assert_eq!(
        table.promise(key(6), HostSlot(8), 0, SHARED, None),
        Ok(3600)
    );
    // A holder does not count itself.
    assert_eq!(
        table.promise(key(6), HostSlot(0), 0, SHARED, None),
        Ok(3600)
    );
    let bulk = Lifetime::Shared { extra_holders: 22 };
    assert_eq!(table.promise(key(8), HostSlot(0), 0, bulk, None), Ok(1800));
    assert_eq!(
        table.promise(key(8), HostSlot(0), 0, Lifetime::Fixed(7200), None),
        Ok(7200)
    );
}

#[test]
fn full_refuses_and_frees_again() {
    let table = CallbackTable::new(2, 4);
    assert!(table.promise(key(2), HostSlot(0), 0, SHARED, None).is_ok());
    assert!(table.promise(key(4), HostSlot(0), 0, SHARED, None).is_ok());
    let third = table.promise(key(6), HostSlot(0), 0, SHARED, None);
    assert_eq!(third, Err(NoPromise::Full));
    // Extending a promise needs no room.
    assert!(table.promise(key(4), HostSlot(0), 5, SHARED, None).is_ok());
    assert!(table.give_up(key(2), HostSlot(0)));
    assert!(!table.give_up(key(2), HostSlot(0)));
    assert!(table.promise(key(6), HostSlot(0), 0, SHARED, None).is_ok());
    assert_eq!(table.give_up_all(HostSlot(0)), 2);
    assert_eq!(table.held(), 0);
}

#[test]
fn expired_promises_go_silently() {
    let table = CallbackTable::new(100, 5);
    assert!(
        table
            .promise(key(2), HostSlot(0), 0, Lifetime::Fixed(10), None)
            .is_ok()
    );
    assert!(
        table
            .promise(key(4), HostSlot(0), 0, Lifetime::Fixed(10), None)
            .is_ok()
    );
    assert_eq!(table.sweep(10 + PROMISE_MARGIN_SECS - 1), 0);
    assert_eq!(
        collect(&table, key(2), None, 10 + PROMISE_MARGIN_SECS),
        [0; 0]
    );
    assert_eq!(table.sweep(10 + PROMISE_MARGIN_SECS), 1);
    assert_eq!(table.held(), 0);
}

#[test]
fn a_volume_is_collected_whole_and_each_host_notified_once() {
    let table = CallbackTable::new(1000, 6);
    for vnode in 1..50 {
        for host in 0..3 {
            assert!(
                table
                    .promise(key(vnode), HostSlot(host), 0, SHARED, None)
                    .is_ok()
            );
        }
    }
    let other = Fid::new(1, 0, 0);
    assert!(table.promise(other, HostSlot(9), 0, SHARED, None).is_ok());
    let mut hosts = Vec::new();
    table.collect_volume(VolumeId(536_870_912), 1, &mut hosts);
    assert_eq!(hosts, [HostSlot(0), HostSlot(1), HostSlot(2)]);
    assert_eq!(table.held(), 1);
    assert!(table.holds_any(HostSlot(9)) && !table.holds_any(HostSlot(0)));
}

/// Compares the table with a plain map, over a long random run.
#[test]
fn behaves_as_a_map() {
    use std::collections::BTreeMap;
    let table = CallbackTable::new(400, 7);
    let mut model: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    let mut random = 12345u64;
    let mut next = |bound: u64| {
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((random >> 33) % bound) as u32
    };
    for now in 0..20_000u32 {
        let (vnode, host) = (next(60), next(20));
        match next(10) {
            0..=5 => {
                let secs = 1 + next(3000);
                let got =
                    table.promise(key(vnode), HostSlot(host), now, Lifetime::Fixed(secs), None);
                let expires = now + secs + PROMISE_MARGIN_SECS;
                let full = model.len() >= 400 && !model.contains_key(&(vnode, host));
                assert_eq!(got, if full { Err(NoPromise::Full) } else { Ok(secs) });
                if !full {
                    let held = model.entry((vnode, host)).or_insert(expires);
                    *held = (*held).max(expires);
                }
            }
            6 | 7 => {
                let expected: Vec<u32> = (0..20)
                    .filter(|&other| other != host)
                    .filter(|&other| model.get(&(vnode, other)).is_some_and(|&at| at > now))
                    .collect();
                assert_eq!(collect(&table, key(vnode), Some(host), now), expected);
                model.retain(|&(file, other), _| file != vnode || other == host);
            }
            8 => {
                let had = model.remove(&(vnode, host)).is_some();
                assert_eq!(table.give_up(key(vnode), HostSlot(host)), had);
            }
            _ if now % 50 == 0 => {
                let before = model.len();
                model.retain(|&(_, other), _| other != host);
                assert_eq!(table.give_up_all(HostSlot(host)), before - model.len());
            }
            _ => {
                let before = model.len();
                model.retain(|_, &mut at| at > now);
                assert_eq!(table.sweep(now), before - model.len());
            }
        }
        assert_eq!(table.held(), model.len());
    }
    let mut all = BTreeMap::new();
    table.for_each(|key, host, expires| {
        all.insert((key.vnode.0, host.0), expires);
    });
    assert_eq!(all, model);
}

/// A promise takes about 64 bytes, as the head of the module says.
#[test]
fn a_promise_takes_about_64_bytes() {
    let table = CallbackTable::new(200_000, 8);
    for file in 0..200_000 {
        assert!(
            table
                .promise(key(file), HostSlot(file % 100), 0, SHARED, None)
                .is_ok()
        );
    }
    let (files, bytes) = table.files_and_bytes();
    assert_eq!(files, 200_000);
    assert!(
        bytes / 200_000 <= 100,
        "{} bytes a promise",
        bytes / 200_000
    );
}
