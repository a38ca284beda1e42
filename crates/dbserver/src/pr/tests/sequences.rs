//! Random sequences with a comparison of all lists, and restarts.

use super::*;

/// Random changes by random callers. The lists stay consistent after each permitted change.
#[test]
fn random_sequences_keep_the_lists_in_step() {
    for seed in 0..5 {
        let cell = cell();
        let mut random = StdRng::seed_from_u64(seed);
        let mut known = vec![32766, -204, -203];
        let mut done = 0;
        for step in 0..220 {
            let pick = |r: &mut StdRng, known: &[i32]| known[r.random_range(0..known.len())];
            let (a, b) = (pick(&mut random, &known), pick(&mut random, &known));
            let who = match random.random_range(0..4) {
                0 => user(pick(&mut random, &known)),
                _ => ADMIN,
            };
            let outcome = match random.random_range(0..12) {
                0 | 1 => cell
                    .new_entry(who, &format!("u{step}"), 0, 0)
                    .map(|id| known.push(id)),
                2 | 3 => {
                    let owner = cell.entry(a).map_or("x".to_owned(), |e| e.name.to_string());
                    let prefix = owner.split(':').next().unwrap_or_default();
                    let made = cell.new_entry(who, &format!("{prefix}:g{step}"), PRGRP, a);
                    made.map(|id| known.push(id))
                }
                4..8 => cell.add(who, a, b),
                8 => cell.take(who, a, b),
                9 => cell.delete(who, a),
                10 => {
                    let id = if a > 0 { 1000 + step } else { -1000 - step };
                    cell.change(who, a, "", 0, id).map(|()| known.push(id))
                }
                _ => cell.change(who, a, "", b, 0),
            };
            done += u32::from(outcome.is_ok());
        }
        assert!(done > 40, "seed {seed}: {done} changes");
        cell.check();
        for entry in cell.list(3) {
            let cps = cell.cps(entry.id.0);
            assert!(cps.is_sorted() && cps.contains(&ViceId::ANYUSER) && cps.contains(&entry.id));
            for group in cps.iter().filter(|id| id.0 < 0 && cell.entry(id.0).is_ok()) {
                let _known = cell.is_member(entry.id.0, group.0).unwrap();
            }
        }
    }
}

#[test]
fn everything_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let db: Arc<dyn CellDb> = Arc::new(Embedded::open(&dir.path().join("db")).unwrap());
        Pr::open(db, Arc::new(|| AfsTime(7)), "example.org").unwrap()
    };
    let name: PrNameArgument = "jane".try_into().unwrap();
    open()
        .ask(
            ADMIN,
            NewEntry {
                name,
                flag: 0,
                owner: ViceId(0),
            },
        )
        .unwrap();
    let pr = open();
    assert_eq!(pr.id(b"jane"), Some(ViceId(1)));
    assert_eq!(pr.ask(ANYONE, ListMax {}).unwrap().uid, ViceId(1));
    let names = List::from_iter_cut([PrName::try_from("system:administrators").unwrap()]);
    assert_eq!(
        pr.ask(ANYONE, NameToID { names }).unwrap().ids.into_vec(),
        ids([-204])
    );
}

#[test]
fn writers_beside_each_other_keep_the_lists_in_step() {
    let cell = cell();
    let users: Vec<i32> = (0..6).map(|n| cell.user(&format!("u{n}"))).collect();
    let groups: Vec<i32> = (0..4)
        .map(|n| cell.group(&format!("u0:g{n}"), users[0]))
        .collect();
    let added = std::sync::atomic::AtomicI32::new(0);
    std::thread::scope(|scope| {
        for seed in 0..6 {
            let (cell, users, groups, added) = (&cell, &users, &groups, &added);
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed);
                for _ in 0..40 {
                    let user = users[random.random_range(0..users.len())];
                    let group = groups[random.random_range(0..groups.len())];
                    let (outcome, change) = match random.random() {
                        true => (cell.add(ADMIN, user, group), 1),
                        false => (cell.take(ADMIN, user, group), -1),
                    };
                    match outcome {
                        Ok(()) => added.fetch_add(change, std::sync::atomic::Ordering::Relaxed),
                        Err(AbortCode::PRIDEXIST | AbortCode::PRNOENT) => 0,
                        Err(code) => panic!("{code}"),
                    };
                }
            });
        }
    });
    let counts: i32 = groups
        .iter()
        .map(|group| cell.entry(*group).unwrap().count)
        .sum();
    assert_eq!(
        counts,
        added.into_inner(),
        "each acknowledged change counts once"
    );
    cell.check();
}
