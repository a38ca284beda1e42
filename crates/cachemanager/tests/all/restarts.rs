//! Changes that a file server made, or not, before it was started again.

use std::sync::Arc;
use std::time::Duration;

use cellar_cachemanager::{Cache, Vnode};
use cellar_client::errno;
use cellar_testcell::TestCell;
use cellar_wire::abort::AbortCode;
use cellar_wire::package::Procedure;
use cellar_wire::rxafs::{
    CreateFile, Link, MakeDir, RemoveDir, RemoveFile, Rename, SetLock, StoreData64, Symlink,
};

use crate::bench::{Bench, Client, NOW, Tokens, held};

/// The abort code of a server that ends, also for calls that it has executed.
const ENDS: AbortCode = AbortCode::VRESTARTING;

/// One change of each kind. Answers what each came to: 0 or an errno.
struct Changes {
    client: Client,
    file: Arc<Vnode>,
}

impl Changes {
    async fn new(bench: &Bench) -> Self {
        let client = bench.client().await;
        let file = client.make("file").await;
        client.make("removed").await;
        let made = client
            .cache
            .names()
            .make_dir(&client.user, &client.root, b"old", 0o755);
        made.await.expect("made");
        Self { client, file }
    }

    async fn make<P: Procedure>(&self) -> i32 {
        let Client { cache, user, root } = &self.client;
        let made = match P::OPCODE {
            CreateFile::OPCODE => cache
                .names()
                .create_file(user, root, b"new", 0o640)
                .await
                .map(drop),
            MakeDir::OPCODE => cache
                .names()
                .make_dir(user, root, b"dir", 0o750)
                .await
                .map(drop),
            Symlink::OPCODE => cache
                .names()
                .symlink(user, root, b"link", b"to")
                .await
                .map(drop),
            Link::OPCODE => cache.names().link(user, root, b"another", &self.file).await,
            RemoveFile::OPCODE => cache.names().remove_file(user, root, b"removed").await,
            RemoveDir::OPCODE => cache.names().remove_dir(user, root, b"old").await,
            _ => {
                cache
                    .names()
                    .rename(user, (root, b"file"), (root, b"moved"))
                    .await
            }
        };
        made.map_or_else(|error| errno(&error), |()| 0)
    }
}

async fn made_once<P: Procedure>(name: &str, is_there: bool) {
    for was_made in [true, false] {
        let bench = Bench::start();
        let changes = Changes::new(&bench).await;
        match was_made {
            true => bench.lose::<P>(ENDS, 1),
            false => bench.refuse::<P>(ENDS, 1),
        }
        let before = bench.calls::<P>();
        assert_eq!(changes.make::<P>().await, 0, "{} {was_made}", P::NAME);
        let calls = bench.calls::<P>() - before;
        assert_eq!(calls, if was_made { 1 } else { 2 }, "{}", P::NAME);
        // Programs see it, here and elsewhere; and a second time it fails.
        let other = bench.client().await;
        for client in [&changes.client, &other] {
            let has = client.names().await.contains(&name.to_owned());
            assert_eq!(has, is_there, "{}", P::NAME);
        }
        assert_ne!(changes.make::<P>().await, 0, "{}", P::NAME);
        bench.end();
    }
}

#[tokio::test]
async fn a_change_that_a_server_made_before_its_end_is_not_made_twice() {
    made_once::<CreateFile>("new", true).await;
    made_once::<MakeDir>("dir", true).await;
    made_once::<Symlink>("link", true).await;
    made_once::<Link>("another", true).await;
    made_once::<RemoveFile>("removed", false).await;
    made_once::<RemoveDir>("old", false).await;
    made_once::<Rename>("moved", true).await;
}

#[tokio::test]
async fn an_entry_of_another_client_is_not_taken_for_our_own() {
    let bench = Bench::start();
    let changes = Changes::new(&bench).await;
    let other = bench.client().await;
    // Of the same second and mode, but something is in it.
    let file = other.make("new").await;
    other.put(&file, b"theirs").await.expect("stored");
    bench.refuse::<CreateFile>(ENDS, 1);
    assert_eq!(changes.make::<CreateFile>().await, 17);
    // Empty, and of another mode.
    let made = other
        .cache
        .names()
        .make_dir(&other.user, &other.root, b"dir", 0o700);
    made.await.expect("made");
    bench.refuse::<MakeDir>(ENDS, 1);
    assert_eq!(changes.make::<MakeDir>().await, 17);
    bench.end();
}

#[tokio::test]
async fn a_server_that_ends_counts_no_locks() {
    use cellar_cachemanager::{Lock, LockKind, LockOwner};
    use cellar_wire::rxafs::HoldRanges;
    let bench = Bench::start();
    let changes = Changes::new(&bench).await;
    let Changes { client, file } = &changes;
    bench.refuse::<HoldRanges>(AbortCode::RXGEN_OPCODE, 1);
    bench.refuse::<SetLock>(ENDS, 1);
    let lock = Lock {
        owner: LockOwner::flock(1),
        open_file: 1,
        pid: 1,
        first: 0,
        last: u64::MAX,
        kind: LockKind::Write,
    };
    let locked = client
        .cache
        .locks()
        .set_lock(&client.user, file, lock)
        .await;
    locked.expect("locked");
    bench.end();
}

#[tokio::test]
async fn a_change_that_comes_late_is_seen_by_who_was_told_that_it_did_not() {
    let bench = Bench::start();
    let (network, port) = TestCell::hasty_port(Duration::from_secs(6));
    let options = cellar_cachemanager::Options {
        patience: Duration::from_secs(2),
        ..bench.cache_options()
    };
    let cache = Cache::new(port, options, Arc::new(Tokens(None)), || NOW).expect("cache");
    let user = cache.user(0).await.expect("user");
    let root = cache
        .names()
        .root(&user)
        .await
        .expect("root")
        .expect("a volume");
    let a = Client { cache, user, root };
    assert!(a.names().await.is_empty());
    let creates = bench.hold::<CreateFile>();
    let create = a
        .cache
        .names()
        .create_file(&a.user, &a.root, b"late", 0o644);
    // The program gives up; the server has it.
    let given_up = tokio::time::timeout(Duration::from_secs(1), create).await;
    assert!(given_up.is_err());
    held(&creates, 1).await;
    assert!(a.names().await.is_empty());
    drop(creates);
    let b = bench.client().await;
    while b.names().await.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
        b.cache.statuses().distrust(b.root.fid().volume);
    }
    assert_eq!(a.names().await, ["late"]);
    // It is decided some time after that, and what is answered is promised again.
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    assert_eq!(a.names().await, ["late"]);
    let asked = bench.calls::<cellar_wire::rxafs::FetchStatus>();
    assert_eq!(a.names().await, ["late"]);
    assert_eq!(bench.calls::<cellar_wire::rxafs::FetchStatus>(), asked);
    drop(a);
    network.shutdown();
    bench.end();
}

#[tokio::test]
async fn a_store_that_a_server_did_before_its_end_is_done_again() {
    let bench = Bench::start();
    let (a, file) = bench.one_with_a_file(b"before").await;
    bench.lose::<StoreData64>(ENDS, 1);
    a.put(&file, b"and after").await.expect("stored");
    assert_eq!(a.get(&file).await, b"and after");
    let b = bench.client().await;
    assert_eq!(b.contents("file").await, b"and after");
    bench.end();
}
