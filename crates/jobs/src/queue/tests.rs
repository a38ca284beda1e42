//! The order of starts, without an engine.

use super::*;

fn job(user: &str) -> Placement {
    Placement {
        kind: 0,
        user: user.into(),
        resource: "archive".into(),
        group: "".into(),
        priority: Priority(0),
        order: 0,
    }
}

fn queue(limits: Limits) -> Queue {
    Queue::new([limits], usize::MAX)
}

const ONE: Limits = Limits {
    running: usize::MAX,
    running_per_resource: 1,
    running_per_user: usize::MAX,
    unfinished_per_user: usize::MAX,
    group_run: 0,
    stopping: std::time::Duration::ZERO,
    retry: crate::kind::Retry {
        attempts: 1,
        first: std::time::Duration::ZERO,
        longest: std::time::Duration::ZERO,
    },
};

const ALL: Limits = Limits {
    running_per_resource: usize::MAX,
    ..ONE
};

/// Inserts jobs of users in this order, numbered from 1.
fn insert(queue: &mut Queue, users: &[&str]) {
    for (n, user) in (1..).zip(users) {
        let placement = Placement {
            order: n,
            ..job(user)
        };
        queue.insert(JobId(n as u64), placement);
    }
}

fn starts(queue: &mut Queue) -> Vec<u64> {
    std::iter::from_fn(|| queue.next()).map(|id| id.0).collect()
}

/// The example of the fact sheet of AFS/OSD, Appendix E: a1 b1 c1 a2 c2 a3 a4.
#[test]
fn the_nth_job_of_a_user_competes_with_the_nth_of_others() {
    let mut queue = queue(ALL);
    insert(&mut queue, &["a", "a", "a", "a", "b", "c", "c"]);
    let order = [1, 5, 6, 2, 7, 3, 4];
    let preview: Vec<u64> = queue.preview(9).into_iter().map(|id| id.0).collect();
    assert_eq!(preview, order);
    assert_eq!(starts(&mut queue), order);
}

/// One at a time: after a1 has left, a2 is at the end of the first rank, behind b1 and c1.
#[test]
fn a_departure_moves_the_next_job_of_the_user_to_the_end_of_its_new_rank() {
    let mut queue = queue(ONE);
    insert(&mut queue, &["a", "a", "a", "a", "b", "c", "c"]);
    let mut order = Vec::new();
    while let Some(id) = queue.next() {
        assert_eq!(queue.next(), None, "one at a time");
        order.push(id.0);
        queue.leave(id);
    }
    assert_eq!(order, [1, 5, 6, 2, 7, 3, 4]);
}

#[test]
fn a_hundred_thousand_jobs_of_one_user_delay_no_other() {
    const MANY: u64 = 100_000;
    let mut queue = queue(Limits {
        running_per_resource: 4,
        ..ONE
    });
    for n in 1..=MANY {
        let placement = Placement {
            order: n as i64,
            ..job("many")
        };
        queue.insert(JobId(n), placement);
    }
    let mut running: std::collections::VecDeque<_> = (0..4).filter_map(|_| queue.next()).collect();
    assert_eq!(running.len(), 4);
    for n in 1..=1000 {
        let other = JobId(MANY + n);
        queue.insert(other, job("other"));
        let before = queue.touched();
        queue.leave(running.pop_front().unwrap());
        assert_eq!(queue.next(), Some(other), "the single job is next");
        queue.leave(other);
        running.push_back(queue.next().unwrap());
        let touched = queue.touched() - before;
        assert!(
            touched <= 8,
            "{touched} lanes and pools for two starts and departures"
        );
    }
    assert_eq!(
        queue.pools[0].users.len(),
        1,
        "users without jobs are forgotten"
    );
    assert_eq!(queue.pools[0].lanes.len(), 1);
}

/// As many users as jobs: a start still touches few lanes.
#[test]
fn a_hundred_thousand_users_cost_no_more() {
    let mut queue = queue(ONE);
    for n in 1..=100_000 {
        queue.insert(JobId(n), job(&n.to_string()));
    }
    for n in 1..=1000 {
        let before = queue.touched();
        assert_eq!(queue.next(), Some(JobId(n)));
        queue.leave(JobId(n));
        let touched = queue.touched() - before;
        assert!(touched <= 4, "{touched}");
    }
}

#[test]
fn a_higher_priority_comes_before_fairness() {
    let mut queue = queue(ALL);
    insert(&mut queue, &["a", "b"]);
    let urgent = |order| Placement {
        priority: Priority(5),
        order,
        ..job("a")
    };
    queue.insert(JobId(10), urgent(10));
    queue.insert(JobId(11), urgent(11));
    assert_eq!(
        starts(&mut queue),
        [10, 11, 2, 1],
        "a has two running jobs, so b is before it"
    );
}

#[test]
fn limits_of_kind_resource_and_user_hold() {
    let limits = Limits {
        running: 3,
        running_per_resource: 2,
        running_per_user: 1,
        ..ONE
    };
    let mut queue = Queue::new([limits, ALL], 5);
    let mut n = 0;
    for resource in ["one", "two"] {
        for user in ["a", "b", "c"] {
            for kind in [0, 1] {
                n += 1;
                let placement = Placement {
                    kind,
                    resource: resource.into(),
                    order: n as i64,
                    ..job(user)
                };
                queue.insert(JobId(n), placement);
            }
        }
    }
    let mut left = 12;
    let mut running: Vec<JobId> = Vec::new();
    while left > 0 {
        running.extend(std::iter::from_fn(|| queue.next()));
        let of_kind = |kind: usize, is: &dyn Fn(&Placement) -> bool| {
            let slots = running.iter().map(|id| &queue.jobs[id].placement);
            slots.filter(|p| p.kind == kind && is(p)).count()
        };
        assert!(running.len() <= 5 && !running.is_empty());
        assert_eq!(queue.running(), running.len());
        assert!(of_kind(0, &|_| true) <= 3);
        for resource in ["one", "two"] {
            assert!(of_kind(0, &|p| &*p.resource == resource) <= 2);
        }
        for user in ["a", "b", "c"] {
            assert!(of_kind(0, &|p| &*p.user == user) <= 1);
        }
        let first = running.remove(0);
        queue.leave(first).unwrap();
        left -= 1;
    }
    assert_eq!(queue.next(), None);
    assert!(queue.jobs.is_empty());
}

#[test]
fn a_group_runs_together_and_not_for_ever() {
    let mut queue = queue(Limits {
        group_run: 3,
        ..ONE
    });
    // Two tapes in turn, each job of another user.
    for n in 1..=12 {
        let placement = Placement {
            group: ["tape1", "tape2"][n as usize % 2].into(),
            ..job(&n.to_string())
        };
        queue.insert(JobId(n), placement);
    }
    let mut tapes = String::new();
    while let Some(id) = queue.next() {
        tapes.push(if id.0 % 2 == 0 { '1' } else { '2' });
        queue.leave(id);
    }
    assert_eq!(tapes, "222111222111");
}

#[test]
fn a_held_resource_delays_only_its_own_jobs() {
    let mut queue = queue(ALL);
    let on = |resource: &str| Placement {
        resource: resource.into(),
        ..job("a")
    };
    queue.insert(JobId(1), on("down"));
    queue.insert(JobId(2), on("up"));
    let pool = queue.hold(0, &"down".into(), Time(100));
    assert_eq!(starts(&mut queue), [2]);
    queue.release(pool, Time(99));
    assert_eq!(starts(&mut queue), [0; 0]);
    queue.release(pool, Time(100));
    assert_eq!(starts(&mut queue), [1]);
}

#[test]
fn a_queued_job_can_be_removed_and_moved_within_its_user() {
    let mut queue = queue(ALL);
    insert(&mut queue, &["a", "a", "a", "b"]);
    let mut third = queue.remove(JobId(3)).unwrap();
    assert!(queue.remove(JobId(3)).is_none());
    third.order = queue.order_at(&third, true);
    queue.insert(JobId(3), third);
    assert!(queue.remove(JobId(1)).is_some());
    assert_eq!(queue.next(), Some(JobId(3)), "a keeps its place before b");
    assert_eq!(starts(&mut queue), [4, 2]);
    assert!(queue.remove(JobId(2)).is_none(), "it runs");
}

/// Random operations beside a model that computes ranks and tickets as the fetch queue does: a
/// list ordered by rank, in which a departure moves all later jobs of the user.
#[test]
fn the_order_is_that_of_the_fetch_queue() {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    let seed = std::env::var("CELLAR_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(rand::random);
    println!("CELLAR_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut queue = queue(ALL);
    // Rank, user, job, whether it runs.
    let mut model: Vec<(usize, usize, JobId, bool)> = Vec::new();
    for n in 1..=3000 {
        match random.random_range(0..3) {
            0 => {
                let user = random.random_range(0..4);
                let id = JobId(n);
                let placement = Placement {
                    order: n as i64,
                    ..job(&user.to_string())
                };
                queue.insert(id, placement);
                let rank = model.iter().filter(|row| row.1 == user).count();
                let at = model.partition_point(|row| row.0 <= rank);
                model.insert(at, (rank, user, id, false));
            }
            1 => {
                let first = model.iter_mut().find(|row| !row.3);
                let wanted = first.map(|row| {
                    row.3 = true;
                    row.2
                });
                assert_eq!(queue.next(), wanted);
            }
            _ => {
                // The first running job of some user leaves. The fetch queue serves a user's jobs
                // in order, too.
                let user = random.random_range(0..4);
                let at = model.iter().position(|row| row.1 == user && row.3);
                let Some(at) = at else { continue };
                let (rank, _, id, _) = model.remove(at);
                queue.leave(id).unwrap();
                let later: Vec<_> = model
                    .extract_if(.., |row| row.1 == user && row.0 > rank)
                    .collect();
                for (rank, user, id, runs) in later {
                    let at = model.partition_point(|row| row.0 < rank);
                    model.insert(at, (rank - 1, user, id, runs));
                }
            }
        }
    }
}
