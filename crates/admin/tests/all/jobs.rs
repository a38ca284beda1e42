//! Release and move, with each party killed at each step, and then continued. At the end there is
//! one valid copy and no temporary volume, and the VLDB agrees.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::paper::{World, is_finished};
use cellar_admin::Error;
use cellar_admin::vos::job::{JobContext, Step, Stop, Unwatched, Watched, Watcher};
use cellar_admin::vos::{MoveOptions, ReleaseOptions, Released, entry_flags, site_flags};
use cellar_wire::{VolumeId, afsvol};
use tokio::sync::Notify;

/// The party that dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Party {
    Client,
    /// The client, after a call to a volume server instead of after a step.
    ClientInCalls,
    Source,
    Destination,
    Vldb,
    /// No party dies; the job is asked to stop.
    Stopped,
}

const PARTIES: [Party; 5] = [
    Party::Client,
    Party::Source,
    Party::Destination,
    Party::Vldb,
    Party::Stopped,
];

/// Kills a party after the step with number `at`.
struct Killer<'a> {
    world: &'a World,
    stop: &'a Stop,
    party: Party,
    at: usize,
    seen: AtomicUsize,
    killed: AtomicBool,
    dead: Arc<Notify>,
    steps: parking_lot::Mutex<Vec<Step>>,
}

impl<'a> Killer<'a> {
    fn new(world: &'a World, stop: &'a Stop, party: Party, at: usize) -> Self {
        let killer = Self {
            world,
            stop,
            party,
            at,
            seen: AtomicUsize::new(0),
            killed: AtomicBool::new(false),
            dead: Arc::default(),
            steps: parking_lot::Mutex::default(),
        };
        if party == Party::ClientInCalls {
            world.cut_after(at + 1, killer.dead.clone());
        }
        killer
    }

    /// Whether a party was killed.
    fn has_killed(&self) -> bool {
        self.killed.load(Ordering::SeqCst) || self.world.is_cut()
    }
}

impl Watcher for Killer<'_> {
    fn done(&self, step: Step) -> Watched<'_> {
        if step.name == "copied" {
            // A client writes while the clone is sent.
            let id = *self.world.servers[0].volumes().keys().next().unwrap();
            self.world.servers[0].write(id.0, id.1, 77);
        }
        self.steps.lock().push(step);
        let number = self.seen.fetch_add(1, Ordering::SeqCst);
        if number != self.at || self.party == Party::ClientInCalls {
            return Box::pin(std::future::ready(()));
        }
        self.killed.store(true, Ordering::SeqCst);
        match self.party {
            Party::ClientInCalls => {}
            Party::Client => {
                self.dead.notify_one();
                return Box::pin(std::future::pending());
            }
            Party::Source => self.world.servers[0].crash(),
            Party::Destination => self.world.servers[1].crash(),
            Party::Vldb => self.world.vldb(true),
            Party::Stopped => self.stop.ask(),
        }
        Box::pin(std::future::ready(()))
    }
}

/// The context of a job without a watcher, with a short idle time before it takes over from a dead
/// job.
fn quiet(stop: &Stop) -> JobContext<'_> {
    JobContext::new(&Unwatched, stop).taking_over_after(Duration::from_millis(1500))
}

/// Runs a job until it ends or its client dies; `None` if it died.
async fn until_killed<T>(
    killer: &Killer<'_>,
    job: impl Future<Output = cellar_admin::Result<T>>,
) -> Option<cellar_admin::Result<T>> {
    tokio::select! {
        biased;
        () = killer.dead.notified() => None,
        done = job => Some(done),
    }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(test);
}

/// Runs a case for every party and step, in parallel, until the job ends before the step.
async fn matrix<F: Future<Output = bool>>(steps: usize, case: impl Fn(Party, usize) -> F) {
    let cases: Vec<_> = PARTIES
        .iter()
        .flat_map(|party| (0..steps).map(|at| (*party, at)))
        .collect();
    let mut reached = 0;
    for some in cases.chunks(12) {
        let some = some.iter().map(|(party, at)| case(*party, *at));
        let done = futures_util::future::join_all(some.collect::<Vec<_>>()).await;
        reached += done.into_iter().filter(|reached| *reached).count();
    }
    assert!(
        reached >= 4 * steps,
        "only {reached} cases of {steps} steps came to their step"
    );
}

/// Runs a case in which the client dies after its first call, then one after its second call, and
/// so on. It stops when the job ends before the call.
async fn calls<F: Future<Output = bool>>(at_least: usize, case: impl Fn(Party, usize) -> F) {
    for first in (0..).step_by(12) {
        let some = (first..first + 12).map(|at| case(Party::ClientInCalls, at));
        let done = futures_util::future::join_all(some.collect::<Vec<_>>()).await;
        if let Some(some) = done.iter().position(|reached| !reached) {
            assert!(first + some >= at_least, "only {} calls", first + some);
            return;
        }
    }
}

/// Checks that at most one copy of a volume takes writes.
fn check_single(world: &World, id: VolumeId, case: &str) {
    let serving: Vec<_> = world
        .all()
        .into_iter()
        .filter(|(_, _, volume, paper)| {
            *volume == id && paper.in_service && paper.volume_type == afsvol::READWRITE
        })
        .collect();
    assert!(serving.len() <= 1, "{case}: {serving:?}");
}

async fn moved(party: Party, at: usize, to: (usize, i32), cellar: bool, kib: u32) -> bool {
    let case = format!("{party:?} after step {at}, to {to:?}, cellar {cellar}, {kib} KiB");
    let world = World::new(cellar).await;
    world.set_size(kib);
    let id = world.create("vol").await;
    world.volumes().backup("vol").await.unwrap();
    let contents = world.servers[0].volumes()[&(0, id)].contents.clone();
    let (from, to) = (world.place(0, 0), world.place(to.0, to.1));
    let options = MoveOptions::default();
    let stop = Stop::default();
    let killer = Killer::new(&world, &stop, party, at);
    let volumes = world.volumes();
    let job = volumes.move_volume("vol", from, to, options, JobContext::new(&killer, &stop));
    let first = until_killed(&killer, job).await;
    let killed = killer.has_killed();
    check_single(&world, id, &case);
    world.heal();
    check_single(&world, id, &case);
    let steps = killer.steps.lock().clone();
    if let Some(Ok(_)) = &first {
        let entry = world.entry("vol").await;
        assert_eq!(entry.sites[0].server, to.server, "{case}");
    }
    let stop = Stop::default();
    let again = volumes
        .move_volume("vol", from, to, options, quiet(&stop))
        .await;
    // A volume whose move was complete cannot be moved again from its old place.
    let done = match &again {
        Ok(_) => true,
        Err(error) => error
            .to_string()
            .ends_with(&format!("it is on {to} already")),
    };
    assert!(done, "{case}: first {first:?}, then {again:?}; {steps:?}");
    let entry = world.entry("vol").await;
    assert!(is_finished(&entry), "{case}: {entry:?}");
    assert_eq!(entry.sites.len(), 1, "{case}");
    let site = &entry.sites[0];
    assert_eq!(
        (site.server, site.partition),
        (to.server.into(), to.partition),
        "{case}"
    );
    let all = world.all();
    assert_eq!(all.len(), 1, "{case}: {all:?}; {steps:?}");
    let (_, _, volume, paper) = &all[0];
    assert_eq!(*volume, id);
    assert!(paper.in_service && !paper.destroy_me, "{case}: {paper:?}");
    let mut found = paper.contents.clone();
    let written = found.remove(&77).is_some();
    assert_eq!(found, contents, "{case}");
    let copied = steps.iter().any(|step| step.name == "copied");
    assert_eq!(written, copied, "{case}: what was written meanwhile");
    for server in &world.servers {
        let open = server.transactions();
        assert!(open.is_empty(), "{case}: {open:?}; {steps:?}");
    }
    killed
}

#[test]
fn a_move_to_another_server_survives_everybody_s_death() {
    run(async {
        matrix(8, |party, at| moved(party, at, (1, 0), false, 2)).await;
        matrix(8, |party, at| moved(party, at, (1, 0), true, 2)).await;
    });
}

#[test]
fn a_move_survives_the_death_of_its_client_after_any_call() {
    run(async {
        calls(15, |party, at| moved(party, at, (1, 0), false, 2)).await;
        calls(15, |party, at| moved(party, at, (1, 0), true, 2)).await;
        calls(20, |party, at| moved(party, at, (1, 0), false, 100_000)).await;
    });
}

#[test]
fn a_move_between_partitions_survives_everybody_s_death() {
    run(matrix(8, |party, at| moved(party, at, (0, 1), false, 2)));
}

#[test]
fn a_move_of_a_large_volume_survives_everybody_s_death() {
    run(matrix(10, |party, at| {
        moved(party, at, (1, 0), false, 100_000)
    }));
}

/// An impossible move is refused before it changes anything: no lock, no transaction, no new
/// volume.
#[test]
fn a_move_that_cannot_be_done_begins_nothing() {
    run(async {
        let world = World::new(false).await;
        let id = world.create("vol").await;
        let volumes = world.volumes();
        let place = |server, partition| world.place(server, partition);
        // A copy on another partition of a destination, which the VLDB does not name.
        world.servers[2].insert(1, id, "vol");
        let table = [
            (place(0, 1), place(1, 0), "cannot access volume"),
            (place(1, 0), place(0, 0), "already"),
            (place(1, 0), place(1, 1), "the VLDB has it on"),
            (place(0, 0), place(0, 0), "to its home partition ignored"),
            (place(0, 0), place(1, 7), "does not exist on the server"),
            (place(0, 7), place(1, 0), "does not exist on the server"),
            (place(0, 0), place(2, 0), "a volume of that id is on"),
        ];
        for (from, to, wanted) in table {
            let (before, entry) = (world.all(), world.entry("vol").await);
            let stop = Stop::default();
            let options = MoveOptions::default();
            let moved = volumes
                .move_volume("vol", from, to, options, quiet(&stop))
                .await;
            let said = moved.expect_err("refused").to_string();
            assert!(said.contains(wanted), "{from} to {to}: {said}");
            assert_eq!(world.all().len(), before.len(), "{from} to {to}");
            assert_eq!(world.entry("vol").await, entry, "{from} to {to}");
        }
    });
}

/// Checks that every site has the image, and that no other volume exists.
fn check_released(world: &World, id: VolumeId, sites: &[(usize, i32)], case: &str) {
    let all = world.all();
    let source = &all
        .iter()
        .find(|(_, _, volume, _)| *volume == id)
        .unwrap()
        .3;
    assert_eq!(all.len(), 1 + sites.len(), "{case}: {all:?}");
    let mut created = Vec::new();
    for (server, partition) in sites {
        let (_, _, _, site) = all
            .iter()
            .find(|(at, part, volume, _)| (at, part) == (server, partition) && *volume != id)
            .unwrap_or_else(|| panic!("{case}: nothing on {server} {partition}: {all:?}"));
        assert_eq!(site.contents, source.contents, "{case} on {server}");
        assert!(site.in_service && !site.destroy_me, "{case}: {site:?}");
        assert_eq!(site.name, "vol.readonly", "{case}");
        created.push(site.created);
    }
    created.dedup();
    assert_eq!(created.len(), 1, "{case}: clients would see two versions");
}

async fn released(party: Party, at: usize, cellar: bool, local_site: bool) -> bool {
    let case = format!("{party:?} after step {at}, cellar {cellar}, local site {local_site}");
    let world = World::new(cellar).await;
    let id = world.create("vol").await;
    let mut sites = vec![(1, 0), (2, 1)];
    if local_site {
        sites.insert(0, (0, 0));
    }
    let volumes = world.volumes();
    for (server, partition) in &sites {
        let place = world.place(*server, *partition);
        volumes.add_site("vol", place, None, false).await.unwrap();
    }
    let stop = Stop::default();
    let quiet = quiet(&stop);
    let first = volumes
        .release("vol", ReleaseOptions::default(), quiet)
        .await
        .unwrap();
    assert!(first.is_complete(), "{first:?}");
    check_released(&world, id, &sites, "the first release");
    world.servers[0].write(0, id, 2);
    world.servers[0].write(0, id, 9);

    let asked = Stop::default();
    let killer = Killer::new(&world, &asked, party, at);
    let context = JobContext::new(&killer, &asked);
    let job = volumes.release("vol", ReleaseOptions::default(), context);
    let outcome = until_killed(&killer, job).await;
    let killed = killer.has_killed();
    let steps = killer.steps.lock().clone();
    world.heal();
    if let Some(Ok(first)) = &outcome {
        let entry = world.entry("vol").await;
        assert_eq!(first.unfinished, !is_finished(&entry), "{case}: {entry:?}");
    }
    let resume = ReleaseOptions {
        resume: true,
        ..ReleaseOptions::default()
    };
    let second = volumes.release("vol", resume, quiet).await;
    let second =
        second.unwrap_or_else(|error| panic!("{case}: {outcome:?}, then {error}; {steps:?}"));
    assert!(second.is_complete(), "{case}: {second:?}");
    let entry = world.entry("vol").await;
    assert!(
        is_finished(&entry),
        "{case}: {entry:?}; {outcome:?}; {second:?}; {steps:?}"
    );
    // A release that no site received was undone; another plain release makes it.
    let taken_back = second.sites.is_empty() && matches!(&outcome, Some(Err(_)))
        || matches!(&outcome, Some(Ok(Released { sites, .. })) if sites.iter().all(|site| site.error.is_some()));
    if taken_back {
        let again = volumes
            .release("vol", ReleaseOptions::default(), quiet)
            .await
            .unwrap();
        assert!(again.is_complete(), "{case}: {again:?}");
    }
    check_released(&world, id, &sites, &case);
    for server in &world.servers {
        let open = server.transactions();
        assert!(open.is_empty(), "{case}: {open:?}; {steps:?}");
    }
    killed
}

#[test]
fn a_release_by_a_temporary_clone_survives_everybody_s_death() {
    run(async {
        matrix(10, |party, at| released(party, at, false, false)).await;
        matrix(10, |party, at| released(party, at, true, false)).await;
    });
}

#[test]
fn a_release_survives_the_death_of_its_client_after_any_call() {
    run(async {
        calls(15, |party, at| released(party, at, false, false)).await;
        calls(15, |party, at| released(party, at, true, true)).await;
    });
}

#[test]
fn a_release_beside_the_volume_survives_everybody_s_death() {
    run(matrix(11, |party, at| released(party, at, false, true)));
}

#[test]
fn a_volume_that_was_restored_to_an_older_state_is_released_whole() {
    run(async {
        let world = World::new(false).await;
        let id = world.create("vol").await;
        let volumes = world.volumes();
        let sites = [(1, 0), (2, 1)];
        for (server, partition) in sites {
            let place = world.place(server, partition);
            volumes.add_site("vol", place, None, false).await.unwrap();
        }
        let stop = Stop::default();
        let release = async || {
            let options = ReleaseOptions::default();
            let done = volumes.release("vol", options, quiet(&stop)).await.unwrap();
            assert!(done.is_complete(), "{done:?}");
        };
        let source = &world.servers[0];
        let old = source.volumes()[&(0, id)].clone();
        // Once with the old dates, as in the dump, and once with the current time.
        for made_now in [false, true] {
            source.write(0, id, 2);
            source.write(0, id, 9);
            release().await;
            check_released(&world, id, &sites, "the newer state");
            source.write(0, id, 3);
            let now = source.volumes()[&(0, id)].updated;
            let dates = if made_now {
                (now, now)
            } else {
                (old.created, old.updated)
            };
            source.restore(0, id, old.contents.clone(), dates);
            release().await;
            check_released(&world, id, &sites, "the older state");
        }
    });
}

#[test]
fn a_site_that_is_down_holds_up_no_other_and_is_resumed() {
    run(async {
        let world = World::new(false).await;
        let id = world.create("vol").await;
        let volumes = world.volumes();
        for server in [1, 2] {
            let place = world.place(server, 0);
            volumes.add_site("vol", place, None, false).await.unwrap();
        }
        let stop = Stop::default();
        let quiet = quiet(&stop);
        world.servers[2].crash();
        let options = ReleaseOptions::default();
        let first = volumes.release("vol", options, quiet).await.unwrap();
        let reached: Vec<_> = first
            .sites
            .iter()
            .map(|site| site.error.is_none())
            .collect();
        assert_eq!(reached, [true, false]);
        let entry = world.entry("vol").await;
        assert!(!entry.is_locked(), "{entry:?}");
        let flags: Vec<_> = entry.sites.iter().map(|site| site.flags).collect();
        assert_eq!(flags[1] & site_flags::NEW_RELEASE, site_flags::NEW_RELEASE);
        assert_eq!(flags[2] & site_flags::DONT_USE, site_flags::DONT_USE);
        let unfinished = volumes.unfinished_releases().await.unwrap();
        assert_eq!(unfinished.len(), 1);
        // A write after the release is no part of it, even if a site gets the release later.
        let image = world.servers[0].volumes()[&(0, id)].contents.clone();
        world.servers[0].write(0, id, 3);
        world.servers[2].start();
        let resume = ReleaseOptions {
            resume: true,
            full: false,
        };
        let second = volumes.release("vol", resume, quiet).await.unwrap();
        assert!(
            second.is_complete() && second.sites.len() == 1,
            "{second:?}"
        );
        let entry = world.entry("vol").await;
        assert!(is_finished(&entry), "{entry:?}");
        for server in [1, 2] {
            let there = world.servers[server].volumes();
            let (_, site) = there.first_key_value().unwrap();
            assert_eq!(site.contents, image, "site {server}");
        }
        assert_eq!(world.all().len(), 3);
        let third = volumes.release("vol", resume, quiet).await.unwrap();
        assert!(third.sites.is_empty(), "nothing is left to resume");
    });
}

#[test]
fn a_locked_volume_says_so_and_is_left_alone() {
    run(async {
        let world = World::new(false).await;
        let id = world.create("vol").await;
        let volumes = world.volumes();
        let place = world.place(1, 0);
        volumes.add_site("vol", place, None, false).await.unwrap();
        volumes
            .lock(id, cellar_wire::vl::VLOP_BACKUP)
            .await
            .unwrap();
        let stop = Stop::default();
        let quiet = quiet(&stop);
        for resume in [false, true] {
            let options = ReleaseOptions {
                resume,
                full: false,
            };
            match volumes.release("vol", options, quiet).await {
                Err(Error::Locked { .. }) => assert!(!resume),
                // No release was started, so there is nothing to continue.
                Ok(released) => assert!(resume && released.sites.is_empty()),
                other => panic!("{other:?}"),
            }
        }
        let to = world.place(1, 1);
        let moved = volumes
            .move_volume("vol", world.place(0, 0), to, MoveOptions::default(), quiet)
            .await;
        assert!(matches!(moved, Err(Error::Locked { .. })), "{moved:?}");
        assert_eq!(world.all().len(), 1);
    });
}

#[test]
fn a_living_job_is_not_taken_for_a_dead_one() {
    run(async {
        let world = Arc::new(World::new(false).await);
        let id = world.create("vol").await;
        let volumes = world.volumes();
        // Another client moves the volume and continues to use its transaction.
        volumes.lock(id, cellar_wire::vl::VLOP_MOVE).await.unwrap();
        let stop = Stop::default();
        let asked = stop.clone();
        let busy = async {
            // Longer than the idle limit of 4 s, which is many times the client's pause of 200 ms.
            tokio::time::sleep(Duration::from_secs(6)).await;
            asked.ask();
        };
        let to = world.place(1, 0);
        let context = JobContext::new(&Unwatched, &stop).taking_over_after(Duration::from_secs(4));
        let trans = afsvol::TransCreate {
            volume: id,
            partition: 0,
            flags: afsvol::IT_BUSY,
        };
        let peer =
            std::net::SocketAddr::new(world.place(0, 0).server.into(), world.cell.ports.volume);
        let connection =
            world
                .client
                .servers()
                .connection(&world.cell.name, peer, &afsvol::PACKAGE);
        let mut held = connection.call(&trans).await.unwrap().trans;
        let use_it = async {
            for number in 1.. {
                tokio::time::sleep(Duration::from_millis(200)).await;
                let look = afsvol::GetStatus { trans: held };
                connection.call(&look).await.unwrap();
                if number % 5 == 0 {
                    // Between two steps the client has no transaction.
                    let end = afsvol::EndTrans { trans: held };
                    connection.call(&end).await.unwrap();
                    held = connection.call(&trans).await.unwrap().trans;
                }
            }
        };
        let moving = volumes.move_volume(
            "vol",
            world.place(0, 0),
            to,
            MoveOptions::default(),
            context,
        );
        let moved = tokio::select! {
            (moved, ()) = async { tokio::join!(moving, busy) } => moved,
            () = use_it => unreachable!("it goes on for ever"),
        };
        assert!(matches!(moved, Err(Error::Interrupted)), "{moved:?}");
        assert!(world.entry("vol").await.is_locked());
    });
}

#[test]
fn a_backup_that_is_stopped_before_its_clone_leaves_nothing() {
    run(async {
        let world = World::new(true).await;
        world.create("vol").await;
        let volumes = world.volumes();
        for at in 0..2 {
            let stop = Stop::default();
            let killer = Killer::new(&world, &stop, Party::Stopped, at);
            if at == 1 {
                // Before the first step.
                stop.ask();
            }
            let made = volumes.backup_in("vol", JobContext::new(&killer, &stop));
            let made = made.await;
            assert!(matches!(made, Err(Error::Interrupted)), "{made:?}");
            let entry = world.entry("vol").await;
            assert!(
                !entry.is_locked() && entry.flags & entry_flags::BACKUP_EXISTS == 0,
                "{entry:?}"
            );
            assert_eq!(world.servers[0].volumes().len(), 1);
            assert!(world.servers[0].transactions().is_empty());
        }
        let stop = Stop::default();
        let killer = Killer::new(&world, &stop, Party::Stopped, 9);
        let made = volumes.backup_in("vol", JobContext::new(&killer, &stop));
        made.await.unwrap();
        let steps: Vec<_> = killer.steps.lock().iter().map(|step| step.name).collect();
        assert_eq!(steps, ["locked", "cloned", "opened"]);
    });
}
