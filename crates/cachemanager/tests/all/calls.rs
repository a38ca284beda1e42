//! How often the file server is called for what programs do.

use std::sync::Arc;

use cellar_cachemanager::{Handle, NewAttributes, Vnode};
use cellar_client::errno;
use cellar_wire::abort::AbortCode;
use cellar_wire::acl::Rights;
use cellar_wire::ids::{AfsTime, ViceId};
use cellar_wire::rxafs;

use crate::bench::{Bench, Client, NOW};

/// The calls of each kind since the cell was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Calls {
    made: u64,
    stored: u64,
    statuses_set: u64,
    statuses: u64,
    fetched: u64,
}

impl Calls {
    fn of(bench: &Bench) -> Self {
        Self {
            made: bench.calls::<rxafs::CreateFile>() + bench.calls::<rxafs::MakeDir>(),
            stored: bench.calls::<rxafs::StoreData64>(),
            statuses_set: bench.calls::<rxafs::StoreStatus>(),
            statuses: bench.calls::<rxafs::FetchStatus>(),
            fetched: bench.calls::<rxafs::FetchData64>(),
        }
    }

    fn since(bench: &Bench, before: Self) -> Self {
        let now = Self::of(bench);
        Self {
            made: now.made - before.made,
            stored: now.stored - before.stored,
            statuses_set: now.statuses_set - before.statuses_set,
            statuses: now.statuses - before.statuses,
            fetched: now.fetched - before.fetched,
        }
    }
}

/// A client whose programs have looked before they make anything.
async fn looked(client: Client) -> Client {
    client.names().await;
    client
}

async fn fresh(bench: &Bench) -> Client {
    looked(bench.client().await).await
}

impl Client {
    /// open(2) of a new file.
    async fn create(&self, directory: &Arc<Vnode>, name: &str) -> Handle {
        let (cache, user) = (&self.cache, &self.user);
        let made = cache
            .names()
            .create_file(user, directory, name.as_bytes(), 0o600);
        cache.opened(user, &made.await.expect(name))
    }

    async fn set(&self, vnode: &Arc<Vnode>, wanted: NewAttributes) -> Result<(), i32> {
        let (cache, user) = (&self.cache, &self.user);
        let set = cache.set_attributes(user, vnode, wanted, false).await;
        set.map(|_| ()).map_err(|error| errno(&error))
    }

    /// Sets the attributes that `tar` sets of each unpacked file, as root.
    async fn set_as_tar(&self, vnode: &Arc<Vnode>) {
        assert_eq!(self.set(vnode, TIME).await, Ok(()));
        assert_eq!(self.set(vnode, OWNER).await, Err(1));
        assert_eq!(self.set(vnode, MODE).await, Ok(()));
    }

    async fn seen(&self, name: &str) -> (u64, u32, AfsTime) {
        let found = self
            .cache
            .names()
            .lookup(&self.user, &self.root, name.as_bytes());
        let vnode = found.await.expect(name).vnode;
        self.shown(&vnode).await
    }

    /// Length, mode and time, as `stat` shows them.
    async fn shown(&self, vnode: &Arc<Vnode>) -> (u64, u32, AfsTime) {
        let attributes = self.cache.reads().attributes(&self.user, vnode).await;
        let status = attributes.expect("attributes").status;
        (status.length, status.unix_mode, status.client_mod_time)
    }
}

/// close(2).
async fn close(handle: Handle) -> Result<(), i32> {
    let stored = handle.store(false).await;
    handle.close().await;
    stored.map_err(|error| errno(&error))
}

const THEN: AfsTime = AfsTime(1_000_000_000);
const NOTHING: NewAttributes = NewAttributes {
    mode: None,
    owner: None,
    group: None,
    length: None,
    modified: None,
};
const TIME: NewAttributes = NewAttributes {
    modified: Some(THEN),
    ..NOTHING
};
const OWNER: NewAttributes = NewAttributes {
    owner: Some(ViceId(5)),
    group: Some(ViceId(0)),
    ..NOTHING
};
const MODE: NewAttributes = NewAttributes {
    mode: Some(0o444),
    ..NOTHING
};

#[tokio::test]
async fn an_unpacked_file_is_two_calls() {
    let bench = Bench::start();
    let (client, other) = (fresh(&bench).await, fresh(&bench).await);
    let handle = client.create(&client.root, "first").await;
    handle.write(0, b"bytes").await.expect("written");
    client.set_as_tar(handle.vnode()).await;
    assert_eq!(close(handle).await, Ok(()));

    let before = Calls::of(&bench);
    let handle = client.create(&client.root, "second").await;
    handle.write(0, b"bytes").await.expect("written");
    client.set_as_tar(handle.vnode()).await;
    // Other clients do not see it yet, and this client does.
    assert_eq!(client.seen("second").await, (5, 0o444, THEN));
    assert_eq!(other.seen("second").await, (0, 0o600, NOW));
    assert_eq!(close(handle).await, Ok(()));
    let mut calls = Calls::since(&bench, before);
    // Of the other client.
    (calls.statuses, calls.fetched) = (0, 0);
    let two = Calls {
        made: 1,
        stored: 1,
        ..Calls::default()
    };
    assert_eq!(calls, two);
    for client in [&client, &other] {
        assert_eq!(client.seen("second").await, (5, 0o444, THEN));
    }

    // An empty one has nothing to store but that.
    let before = Calls::of(&bench);
    let handle = client.create(&client.root, "empty").await;
    client.set_as_tar(handle.vnode()).await;
    assert_eq!(close(handle).await, Ok(()));
    let two = Calls {
        made: 1,
        statuses_set: 1,
        ..Calls::default()
    };
    assert_eq!(Calls::since(&bench, before), two);
    assert_eq!(other.seen("empty").await, (0, 0o444, THEN));
    bench.end();
}

#[tokio::test]
async fn a_new_directory_is_known_to_be_empty() {
    let bench = Bench::start();
    let client = fresh(&bench).await;
    let before = Calls::of(&bench);
    let made = client
        .cache
        .names()
        .make_dir(&client.user, &client.root, b"new", 0o755);
    let made = made.await.expect("made");
    let there = client
        .cache
        .names()
        .lookup(&client.user, &made, b"file")
        .await;
    assert_eq!(errno(&there.expect_err("nothing")), 2);
    let handle = client.create(&made, "file").await;
    assert_eq!(close(handle).await, Ok(()));
    let listing = client.cache.statuses().listing(&client.user, &made).await;
    assert_eq!(listing.expect("names").len(), 1);
    let two = Calls {
        made: 2,
        ..Calls::default()
    };
    assert_eq!(Calls::since(&bench, before), two);
    bench.end();
}

#[tokio::test]
async fn a_change_of_nothing_makes_no_call() {
    let bench = Bench::start();
    let client = fresh(&bench).await;
    let handle = client.create(&client.root, "file").await;
    handle.write(0, b"bytes").await.expect("written");
    let vnode = handle.vnode().clone();
    assert_eq!(close(handle).await, Ok(()));
    let before = Calls::of(&bench);
    let same = NewAttributes {
        mode: Some(0o600),
        owner: Some(ViceId::ANONYMOUS),
        ..NOTHING
    };
    assert_eq!(client.set(&vnode, same).await, Ok(()));
    assert_eq!(Calls::since(&bench, before), Calls::default());
    // A closed one is not stored by anybody: what changes is sent at once.
    assert_eq!(client.set(&vnode, MODE).await, Ok(()));
    let calls = Calls::since(&bench, before);
    assert_eq!((calls.statuses_set, calls.stored), (1, 0));
    // A user without the right receives the server's refusal, not success from the cache.
    bench.allow(Rights::READ.union(Rights::LOOKUP));
    let stranger = fresh(&bench).await;
    let found = stranger
        .cache
        .names()
        .lookup(&stranger.user, &stranger.root, b"file");
    let vnode = found.await.expect("file").vnode;
    assert_eq!(stranger.set(&vnode, MODE).await, Err(13));
    bench.end();
}

#[tokio::test]
async fn attributes_that_are_refused_are_told_at_close() {
    let bench = Bench::start();
    let client = fresh(&bench).await;
    let handle = client.create(&client.root, "file").await;
    let vnode = handle.vnode().clone();
    assert_eq!(client.set(&vnode, MODE).await, Ok(()));
    assert_eq!(client.shown(&vnode).await.1, 0o444);
    // The right is removed meanwhile, without a break.
    bench.allow(Rights::READ.union(Rights::LOOKUP));
    assert_eq!(close(handle).await, Err(13));
    assert_eq!(client.shown(&vnode).await.1, 0o600);
    assert!(client.cache.write_back().unstored().is_empty());
    bench.end();
}

#[tokio::test]
async fn bytes_are_stored_without_attributes_that_are_refused() {
    let bench = Bench::start();
    let (client, other) = (fresh(&bench).await, fresh(&bench).await);
    let handle = client.create(&client.root, "file").await;
    handle.write(0, b"bytes").await.expect("written");
    assert_eq!(client.set(handle.vnode(), TIME).await, Ok(()));
    assert_eq!(client.set(handle.vnode(), MODE).await, Ok(()));
    bench.refuse::<rxafs::StoreData64>(AbortCode::EACCES, 1);
    let before = Calls::of(&bench);
    assert_eq!(close(handle).await, Err(13));
    let calls = Calls::since(&bench, before);
    assert_eq!((calls.stored, calls.statuses_set), (2, 0));
    // A time is everybody's to set who may write.
    assert_eq!(other.seen("file").await, (5, 0o600, THEN));
    assert!(client.cache.write_back().unstored().is_empty());
    bench.end();
}

#[tokio::test]
async fn the_last_who_sets_a_time_or_writes_is_right() {
    let bench = Bench::start();
    let (client, other) = (fresh(&bench).await, fresh(&bench).await);
    let handle = client.create(&client.root, "file").await;
    handle.write(0, b"bytes").await.expect("written");
    assert_eq!(client.set(handle.vnode(), TIME).await, Ok(()));
    handle.write(0, b"other").await.expect("written");
    assert_eq!(client.shown(handle.vnode()).await.2, NOW);
    // Set-id bits are not for the bytes' call: at once, and what waited of the mode is over.
    let ordinary = NewAttributes {
        mode: Some(0o640),
        ..NOTHING
    };
    assert_eq!(client.set(handle.vnode(), ordinary).await, Ok(()));
    let set_id = NewAttributes {
        mode: Some(0o4755),
        ..NOTHING
    };
    assert_eq!(client.set(handle.vnode(), set_id).await, Ok(()));
    assert_eq!(close(handle).await, Ok(()));
    let (length, mode, time) = other.seen("file").await;
    assert_eq!((length, mode & 0o777, time), (5, 0o755, NOW));
    bench.end();
}

#[tokio::test]
async fn attributes_outlive_the_cache_manager() {
    let bench = Bench::start();
    let directory = tempfile::tempdir().expect("a directory");
    let start = || async {
        let path = directory.path().to_owned();
        looked(bench.client_with(64 << 20, Some(path)).await).await
    };
    let other = fresh(&bench).await;
    for (name, bytes) in [("written", &b"bytes"[..]), ("empty", b"")] {
        let client = start().await;
        let handle = client.create(&client.root, name).await;
        if !bytes.is_empty() {
            handle.write(0, bytes).await.expect("written");
        }
        assert_eq!(client.set(handle.vnode(), TIME).await, Ok(()));
        assert_eq!(client.set(handle.vnode(), MODE).await, Ok(()));
        // Killed: nothing is closed.
        drop((handle, client));
        let next = start().await;
        next.cache.write_back().recover().await;
        assert!(next.cache.write_back().unstored().is_empty(), "{name}");
        let seen = other.seen(name).await;
        assert_eq!(seen, (bytes.len() as u64, 0o444, THEN), "{name}");
    }
    bench.end();
}
