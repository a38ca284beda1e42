//! A file server with one volume, and cache managers of it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cellar_cachemanager::{
    self, Attributes, Cache, Handle, Identities, NewAttributes, Notice, User, Vnode, Watcher,
};
use cellar_client::{CellName, Renewal};
use cellar_rpc::Security;
use cellar_testcell::{Held, TestCell};
use cellar_wire::acl::Rights;

pub(crate) use cellar_testcell::NOW;

/// Tokens of a kind that every server takes.
pub(crate) fn securities() -> HashMap<CellName, Security> {
    let cell = CellName::new("test.cell").expect("name");
    HashMap::from([(cell, Security::null())])
}

/// Which user has tokens, of a kind that every server takes.
pub(crate) struct Tokens(pub(crate) Option<u32>);

impl Identities for Tokens {
    fn stamp(&self, uid: u32) -> Pin<Box<dyn Future<Output = Option<u64>> + Send + '_>> {
        Box::pin(std::future::ready((self.0 == Some(uid)).then_some(1)))
    }

    fn securities<'a>(
        &'a self,
        _uid: u32,
    ) -> Pin<Box<dyn Future<Output = HashMap<CellName, Security>> + Send + 'a>> {
        Box::pin(std::future::ready(securities()))
    }

    fn renewal(&self, _uid: u32) -> Option<Arc<dyn Renewal>> {
        None
    }
}

/// The cell, and clients of it.
pub(crate) struct Bench(TestCell);

impl std::ops::Deref for Bench {
    type Target = TestCell;

    fn deref(&self) -> &TestCell {
        &self.0
    }
}

impl Bench {
    /// One in which everybody may do everything.
    pub(crate) fn start() -> Self {
        Self(TestCell::start(Rights::ALL))
    }

    pub(crate) async fn client(&self) -> Client {
        self.client_with(64 << 20, None).await
    }

    /// A client, and a file with `bytes` that it has made.
    pub(crate) async fn one_with_a_file(&self, bytes: &[u8]) -> (Client, Arc<Vnode>) {
        let a = self.client().await;
        let file = a.make("file").await;
        a.put(&file, bytes).await.expect("stored");
        (a, file)
    }

    /// Two clients, and a file with `bytes` that both know.
    pub(crate) async fn two_with_a_file(&self, bytes: &[u8]) -> [(Client, Arc<Vnode>); 2] {
        let (a, file) = self.one_with_a_file(bytes).await;
        let b = self.client().await;
        let seen = b.find("file").await;
        [(a, file), (b, seen)]
    }

    pub(crate) async fn client_with(&self, size: u64, directory: Option<PathBuf>) -> Client {
        self.client_of(Tokens(None), 0, size, directory).await
    }

    /// A client that makes files without asking where it has the lease of the directory.
    pub(crate) async fn leasing(&self, directory: Option<PathBuf>) -> Client {
        let leases = cellar_cachemanager::Leases::Files;
        let options = cellar_cachemanager::Options {
            leases,
            directory,
            ..self.cache_options()
        };
        self.anonymous(options).await
    }

    /// A client that remembers this many vnodes.
    pub(crate) async fn remembering(&self, vnodes_max: usize) -> Client {
        let options = cellar_cachemanager::Options {
            vnodes_max,
            ..self.cache_options()
        };
        self.anonymous(options).await
    }

    async fn anonymous(&self, options: cellar_cachemanager::Options) -> Client {
        let tokens = Arc::new(Tokens(None));
        let cache = Cache::new(self.port(), options, tokens, || NOW).expect("cache");
        let user = cache.user(0).await.expect("user");
        let root = cache
            .names()
            .root(&user)
            .await
            .expect("root")
            .expect("a volume");
        Client { cache, user, root }
    }

    /// That of a user of its machine.
    pub(crate) async fn client_of(
        &self,
        tokens: Tokens,
        uid: u32,
        size: u64,
        directory: Option<PathBuf>,
    ) -> Client {
        let options = cellar_cachemanager::Options {
            directory,
            size,
            sysnames: vec!["other".to_owned(), "amd64_linux26".to_owned()],
            ..self.cache_options()
        };
        let cache = Cache::new(self.port(), options, Arc::new(tokens), || NOW).expect("cache");
        let user = cache.user(uid).await.expect("user");
        let root = cache
            .names()
            .root(&user)
            .await
            .expect("root")
            .expect("a volume");
        Client { cache, user, root }
    }

    pub(crate) fn end(self) {
        self.0.end();
    }
}

pub(crate) struct Client {
    pub(crate) cache: Arc<Cache>,
    pub(crate) user: Arc<User>,
    pub(crate) root: Arc<Vnode>,
}

impl Client {
    pub(crate) async fn find(&self, name: &str) -> Arc<Vnode> {
        let found = self
            .cache
            .names()
            .lookup(&self.user, &self.root, name.as_bytes())
            .await;
        found.expect(name).vnode
    }

    pub(crate) async fn make(&self, name: &str) -> Arc<Vnode> {
        let made = self
            .cache
            .names()
            .create_file(&self.user, &self.root, name.as_bytes(), 0o644)
            .await;
        made.expect(name)
    }

    pub(crate) async fn open(&self, vnode: &Arc<Vnode>, wanted: Rights) -> Handle {
        let open = self.cache.open(&self.user, vnode, wanted, false).await;
        open.expect("open")
    }

    /// truncate(2).
    pub(crate) async fn cut(
        &self,
        vnode: &Arc<Vnode>,
        length: u64,
    ) -> cellar_client::Result<Attributes> {
        let wanted = NewAttributes {
            length: Some(length),
            ..NewAttributes::default()
        };
        let (cache, user) = (&self.cache, &self.user);
        cache.set_attributes(user, vnode, wanted, false).await
    }

    /// Writes a file as a program does; what `close` says.
    pub(crate) async fn put(&self, vnode: &Arc<Vnode>, bytes: &[u8]) -> cellar_client::Result<()> {
        let open = self
            .cache
            .open(&self.user, vnode, Rights::WRITE, true)
            .await;
        let handle = open.expect("open");
        handle.write(0, bytes).await.expect("write");
        let stored = handle.store(false).await;
        handle.close().await;
        stored
    }

    pub(crate) async fn get(&self, vnode: &Arc<Vnode>) -> Vec<u8> {
        let handle = self.open(vnode, Rights::READ).await;
        let mut all = Vec::new();
        loop {
            let some = handle.read(all.len() as u64, 100_000).await.expect("read");
            if some.is_empty() {
                break;
            }
            all.extend(some);
        }
        handle.close().await;
        all
    }

    /// The contents of the file of this name.
    pub(crate) async fn contents(&self, name: &str) -> Vec<u8> {
        let file = self.find(name).await;
        self.get(&file).await
    }

    pub(crate) async fn names(&self) -> Vec<String> {
        let listing = self
            .cache
            .statuses()
            .listing(&self.user, &self.root)
            .await
            .expect("names");
        let text = |name: &Bytes| String::from_utf8_lossy(name).into_owned();
        listing.keys().map(text).collect()
    }
}

/// Until so many calls are held.
pub(crate) async fn held(calls: &Held, count: usize) {
    let come = async {
        while calls.count() < count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let come = tokio::time::timeout(Duration::from_secs(60), come).await;
    assert!(come.is_ok(), "{} calls of {count}", calls.count());
}

/// Counts the notices to the kernel.
#[derive(Default)]
pub(crate) struct NoticeCounter(pub(crate) AtomicUsize);

impl Watcher for NoticeCounter {
    fn changed(&self, _vnode: &Arc<Vnode>, _notice: Notice) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn has_notices(&self, _vnode: &Vnode) -> bool {
        false
    }

    fn notified<'a>(&'a self, _vnode: &'a Vnode) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(std::future::ready(()))
    }

    fn all_delivered(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }
}
