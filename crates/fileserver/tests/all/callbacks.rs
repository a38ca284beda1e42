//! Promises and breaks: which hosts are notified of what, and which calls wait for them.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::common::{CLONE, Cell, Machine, OPEN, mode, name, run};
use cellar_fileserver::callback::VOLUME_LIFETIME_SECS;
use cellar_fileserver::limits::BREAK_WAIT_LEAST;
use cellar_until::{until, until_some};
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{self, AfsStoreStatus};

/// The time that a busy machine may add to any measured time.
const SLACK: Duration = Duration::from_millis(700);

#[test]
fn a_new_host_is_asked_who_it_is_and_told_to_forget() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        machine.status(Fid::root(OPEN)).await;
        machine.status(Fid::root(OPEN)).await;
        assert_eq!(machine.service.asked.load(Ordering::Relaxed), 1);
        assert_eq!(machine.forgot(), 1);
        let figures = cell.server.figures();
        assert_eq!((figures.hosts.hosts, figures.callbacks.held), (1, 1));
        assert_eq!(figures.contacts.introductions, 1);
    });
}

#[test]
fn everybody_but_the_originator_is_notified_before_a_change_is_answered() {
    let cell = Cell::start();
    let (writer, reader) = (Machine::new(&cell, 1), Machine::new(&cell, 2));
    run(async {
        let root = Fid::root(OPEN);
        let fid = writer.create(root, "f").await;
        let see = async || {
            reader.status(root).await;
            reader.status(fid).await;
            assert_eq!(reader.take_breaks(), [], "no change was made");
        };
        see().await;
        writer.store(fid, 0, b"x").await.unwrap();
        assert_eq!(reader.take_breaks(), [fid]);
        writer.store(fid, 0, b"y").await.unwrap();
        assert_eq!(reader.take_breaks(), [], "one promise, one break");
        see().await;
        writer
            .ok(&rxafs::StoreStatus {
                fid,
                in_status: mode(0o600),
            })
            .await;
        assert_eq!(reader.take_breaks(), [fid]);
        see().await;
        let other = writer.create(root, "g").await;
        assert_eq!(reader.take_breaks(), [root]);
        see().await;
        writer
            .ok(&rxafs::Link {
                dir_fid: root,
                name: name("h"),
                existing_fid: other,
            })
            .await;
        assert_eq!(reader.take_breaks(), [root]);
        see().await;
        reader.status(other).await;
        writer
            .ok(&rxafs::RemoveFile {
                dir_fid: root,
                name: name("h"),
            })
            .await;
        assert_eq!(
            reader.take_breaks(),
            [root, other],
            "a file with a name left has a new status"
        );
        see().await;
        reader.status(other).await;
        writer
            .ok(&rxafs::RemoveFile {
                dir_fid: root,
                name: name("g"),
            })
            .await;
        assert_eq!(
            reader.take_breaks(),
            [root],
            "one without is gone, as its directory shows"
        );
        assert_eq!(writer.take_breaks(), [], "the originator has the answer");
    });
}

#[test]
fn directories_and_lists_and_locks_break_too() {
    let cell = Cell::start();
    let (writer, reader) = (Machine::new(&cell, 1), Machine::new(&cell, 2));
    run(async {
        let root = Fid::root(OPEN);
        let (a, b) = (
            writer.make_dir(root, "a").await,
            writer.make_dir(root, "b").await,
        );
        let inner = writer.make_dir(a, "inner").await;
        let file = writer.create(a, "file").await;
        for fid in [root, a, b, inner, file] {
            reader.status(fid).await;
        }
        writer.status(inner).await;
        let rename = |what| rxafs::Rename {
            old_dir_fid: a,
            old_name: name(what),
            new_dir_fid: b,
            new_name: name(what),
        };
        writer.ok(&rename("inner")).await;
        assert_eq!(reader.take_breaks(), [a, b, inner]);
        assert_eq!(
            writer.take_breaks(),
            [inner],
            "no answer carries the moved directory's status"
        );
        reader.status(a).await;
        reader.status(b).await;
        writer.ok(&rename("file")).await;
        assert_eq!(
            reader.take_breaks(),
            [a, file, b].map(|fid| fid).to_vec().sorted()
        );
        reader.status(b).await;
        let text = "1\n0\nsystem:anyuser\t127\n\0";
        let access_list = rxafs::AfsOpaque::try_from(text).unwrap();
        writer
            .ok(&rxafs::StoreACL {
                fid: b,
                access_list,
            })
            .await;
        assert_eq!(reader.take_breaks(), [b]);
        writer
            .ok(&rxafs::SetLock {
                fid: file,
                lock_type: 0,
            })
            .await;
        writer
            .ok(&rxafs::SetLock {
                fid: file,
                lock_type: 0,
            })
            .await;
        assert_eq!(reader.status(file).await.status.lock_count, 2);
        writer.ok(&rxafs::ReleaseLock { fid: file }).await;
        assert_eq!(reader.take_breaks(), []);
        writer.ok(&rxafs::ReleaseLock { fid: file }).await;
        assert_eq!(
            reader.take_breaks(),
            [file],
            "whoever waits for the lock looks again"
        );
    });
}

trait Sorted {
    fn sorted(self) -> Self;
}

impl Sorted for Vec<Fid> {
    fn sorted(mut self) -> Self {
        self.sort_unstable();
        self
    }
}

#[test]
fn promises_given_up_are_not_broken() {
    let cell = Cell::start();
    let (writer, reader) = (Machine::new(&cell, 1), Machine::new(&cell, 2));
    run(async {
        let root = Fid::root(OPEN);
        let fid = writer.create(root, "f").await;
        reader.status(root).await;
        reader.status(fid).await;
        let fids = rxafs::Fids::from_iter_cut([fid]);
        let callbacks = rxafs::Callbacks::new();
        reader.ok(&rxafs::GiveUpCallBacks { fids, callbacks }).await;
        writer.store(fid, 0, b"x").await.unwrap();
        assert_eq!(reader.take_breaks(), []);
        reader.status(fid).await;
        reader.ok(&rxafs::GiveUpAllCallBacks {}).await;
        writer.store(fid, 0, b"y").await.unwrap();
        writer.create(root, "g").await;
        assert_eq!(reader.take_breaks(), []);
        let fids = rxafs::Fids::new();
        let callbacks = rxafs::Callbacks::from_iter_cut([rxafs::Callback::NONE]);
        assert_eq!(
            reader
                .code(&rxafs::GiveUpCallBacks { fids, callbacks })
                .await,
            22
        );
    });
}

#[test]
fn a_silent_host_delays_one_change_a_moment_and_learns_it_on_return() {
    let cell = Cell::start();
    let writer = Machine::new(&cell, 1);
    let (silent, reader) = (Machine::new(&cell, 2), Machine::new(&cell, 3));
    run(async {
        let root = Fid::root(OPEN);
        let (one, two) = (
            writer.create(root, "1").await,
            writer.create(root, "2").await,
        );
        for machine in [&silent, &reader] {
            machine.status(one).await;
            machine.status(two).await;
            machine.forgot();
        }
        silent.service.silent.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        writer.store(one, 0, b"x").await.unwrap();
        let waited = begun.elapsed();
        assert!(waited >= BREAK_WAIT_LEAST, "{waited:?}");
        assert!(waited < BREAK_WAIT_LEAST + SLACK, "{waited:?}");
        assert_eq!(reader.take_breaks(), [one]);
        // The host is down now: no change waits for it any more.
        let begun = Instant::now();
        writer.store(two, 0, b"x").await.unwrap();
        assert!(begun.elapsed() < SLACK, "{:?}", begun.elapsed());
        let figures = cell.server.figures();
        assert_eq!(figures.hosts.down, 1);
        assert_eq!((figures.callbacks.late, figures.callbacks.delayed), (1, 1));
        until("the silence is counted", async || {
            cell.server.figures().contacts.silences == 1
        })
        .await;
        // Before its next call is answered, it gets the breaks that it missed.
        silent.service.silent.store(false, Ordering::Relaxed);
        silent.status(root).await;
        assert_eq!(silent.take_breaks(), [one, two]);
        assert_eq!(silent.forgot(), 0);
        assert_eq!(cell.server.figures().hosts.down, 0);
    });
}

/// Makes a machine's address receive packets and never answer: no reply, no acknowledgement.
async fn fall_silent(machine: &Machine) -> tokio::net::UdpSocket {
    let address = machine.port.local_address();
    machine.port.close();
    until_some("a free address", async || {
        tokio::net::UdpSocket::bind(address).await.ok()
    })
    .await
}

#[test]
fn machines_that_are_gone_delay_a_change_once_and_together() {
    let cell = Cell::start();
    let writer = Machine::new(&cell, 1);
    let gone: Vec<Machine> = (10..14).map(|last| Machine::new(&cell, last)).collect();
    let reader = Machine::new(&cell, 3);
    run(async {
        let root = Fid::root(OPEN);
        let fid = writer.create(root, "f").await;
        let other = writer.create(root, "g").await;
        let mut silent = Vec::new();
        for machine in &gone {
            machine.status(fid).await;
            machine.status(other).await;
            silent.push(fall_silent(machine).await);
        }
        reader.status(fid).await;
        let begun = Instant::now();
        writer.store(fid, 0, b"x").await.unwrap();
        let waited = begun.elapsed();
        println!("a store waits {waited:?} for four silent holders");
        assert!(waited >= BREAK_WAIT_LEAST, "{waited:?}");
        assert!(waited < BREAK_WAIT_LEAST + SLACK, "{waited:?}");
        assert_eq!(
            reader.take_breaks(),
            [fid],
            "a live host is notified in time"
        );
        let begun = Instant::now();
        writer.store(other, 0, b"y").await.unwrap();
        assert!(begun.elapsed() < SLACK, "{:?}", begun.elapsed());
        let callbacks = cell.server.figures().callbacks;
        assert_eq!((callbacks.late, callbacks.delayed), (4, 4));
    });
}

#[test]
fn a_late_host_is_told_all_the_same_and_not_served_before() {
    let cell = Cell::start();
    let (writer, slow) = (Machine::new(&cell, 1), Machine::new(&cell, 2));
    run(async {
        let root = Fid::root(OPEN);
        let fid = writer.create(root, "f").await;
        slow.status(fid).await;
        slow.forgot();
        // Each of its answers takes a second now.
        slow.service
            .answers_after_millis
            .store(1000, Ordering::Relaxed);
        writer.store(fid, 0, b"x").await.unwrap();
        assert_eq!(
            slow.take_breaks(),
            [],
            "it is late, and the change is answered"
        );
        // The call of the late host waits until it has received the break.
        slow.status(root).await;
        assert_eq!(slow.take_breaks(), [fid]);
        assert_eq!(slow.forgot(), 0);
        assert_eq!(cell.server.figures().hosts.down, 0);
        assert_eq!(cell.server.figures().contacts.silences, 0);
    });
}

#[test]
fn a_host_that_missed_too_much_forgets_everything() {
    let cell = Cell::start();
    let writer = Machine::new(&cell, 1);
    let silent = Machine::new(&cell, 2);
    run(async {
        let root = Fid::root(OPEN);
        let mut fids = Vec::new();
        for number in 0..40 {
            let dir = writer.make_dir(root, &format!("d{number}")).await;
            for number in 0..30 {
                fids.push(writer.create(dir, &format!("f{number}")).await);
            }
        }
        for &fid in &fids {
            silent.status(fid).await;
        }
        silent.forgot();
        silent.service.silent.store(true, Ordering::Relaxed);
        for &fid in &fids {
            writer
                .ok(&rxafs::StoreStatus {
                    fid,
                    in_status: mode(0o600),
                })
                .await;
        }
        silent.service.silent.store(false, Ordering::Relaxed);
        silent.status(root).await;
        assert_eq!(silent.forgot(), 1);
        assert_eq!(silent.take_breaks(), []);
    });
}

#[test]
fn a_replaced_clone_is_broken_whole() {
    let cell = Cell::start();
    let (reader, admin) = (Machine::new(&cell, 1), Machine::new(&cell, 2));
    run(async {
        cell.make_clone();
        let status = reader.status(Fid::root(CLONE)).await;
        assert_eq!(status.callback.expires_in_secs, VOLUME_LIFETIME_SECS);
        cell.server.break_volume(CLONE).await;
        assert_eq!(reader.take_breaks(), [Fid::whole_volume(CLONE)]);
        assert_eq!(admin.take_breaks(), []);
    });
}

#[test]
fn a_full_table_makes_room_and_serves_on() {
    let cell = Cell::start_with(|config| cellar_fileserver::Config {
        callbacks_max: 20,
        ..config
    });
    let (old, new) = (Machine::new(&cell, 1), Machine::new(&cell, 2));
    run(async {
        let root = Fid::root(OPEN);
        let mut fids = Vec::new();
        for number in 0..30 {
            fids.push(old.create(root, &format!("f{number}")).await);
        }
        cell.wait_secs(10);
        old.forgot();
        for &fid in &fids {
            // A status is answered with or without a promise.
            new.status(fid).await;
        }
        until("the least active host makes room", async || {
            old.forgot() >= 1
        })
        .await;
        assert!(cell.server.figures().callbacks.held <= 20);
        let last = new.status(fids[29]).await;
        assert!(last.callback.expires_in_secs > 0);
        old.status(root).await;
    });
}

#[test]
fn nothing_is_promised_to_what_serves_no_callbacks() {
    let cell = Cell::start();
    let tool = Machine::new(&cell, 1);
    tool.service.deaf.store(true, Ordering::Relaxed);
    let writer = Machine::new(&cell, 2);
    run(async {
        let fid = writer.create(Fid::root(OPEN), "f").await;
        let status = tool.status(fid).await;
        assert_eq!(status.callback.expires_in_secs, 0);
        let status = AfsStoreStatus::default();
        tool.ok(&rxafs::StoreStatus {
            fid,
            in_status: status,
        })
        .await;
        assert_eq!(writer.take_breaks(), [fid]);
        assert_eq!(cell.server.figures().callbacks.held, 0);
        writer.status(fid).await;
        // Nor does the local administrator have an address for callbacks.
        let admin = cell.admin().await;
        let status = admin.call(&rxafs::FetchStatus { fid }).await.unwrap();
        assert_eq!(status.callback.expires_in_secs, 0);
        admin
            .call(&rxafs::StoreStatus {
                fid,
                in_status: mode(0o600),
            })
            .await
            .unwrap();
        assert_eq!(writer.take_breaks(), [fid]);
    });
}
