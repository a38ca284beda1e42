//! What names are given with, over a real file server in this process; no kernel.

use std::pin::Pin;

use cellar_client::cache::{Anonymous, Cache, User, Wanted, Watcher};
use cellar_testcell::{NOW, TestCell};
use cellar_wire::acl::Rights;
use parking_lot::Mutex;

use super::*;
use crate::inodes::Inodes;

const ROOT_DIR: INodeNo = INodeNo(ROOT);

/// A client of the cell, whose kernel is on paper.
async fn client(cell: &TestCell) -> Client {
    let (port, options) = (cell.port(), cell.cache_options());
    let cache = Cache::new(port, options, Arc::new(Anonymous), || NOW).expect("cache");
    let told = Arc::new(Told::default());
    cache.watch(told.clone());
    let user = cache.user(0).await.expect("user");
    let root = cache.root(&user).await.expect("root").expect("a volume");
    let inodes = Arc::new(Inodes::new(Node::Vnode(root.clone())));
    let requests = Requests::new(cache, inodes, true);
    Client {
        requests,
        user,
        root,
        told,
    }
}

/// What the kernel would be told.
#[derive(Default)]
struct Told(Mutex<Vec<cellar_wire::ids::Fid>>);

impl Watcher for Told {
    fn changed(&self, vnode: &Arc<Vnode>, _contents: bool) {
        self.0.lock().push(vnode.fid());
    }

    fn settled(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }
}

struct Client {
    requests: Requests,
    user: Arc<User>,
    root: Arc<Vnode>,
    told: Arc<Told>,
}

impl Client {
    async fn make(&self, name: &str) -> Arc<Vnode> {
        let cache = &self.requests.cache;
        let made = cache.create_file(&self.user, &self.root, name.as_bytes(), 0o644);
        made.await.expect(name)
    }

    async fn remove(&self, name: &str) {
        let cache = &self.requests.cache;
        let removed = cache.remove_file(&self.user, &self.root, name.as_bytes());
        removed.await.expect(name);
    }

    async fn open(&self) -> u64 {
        self.requests.open_dir(0, ROOT_DIR).await.expect("open")
    }

    /// Reads a page of at most `room` lines.
    async fn read(&self, handle: u64, offset: u64, room: usize) -> (Paper, Gift<'_>) {
        let mut page = Paper {
            room,
            lines: Vec::new(),
        };
        let read = self
            .requests
            .read_dir(0, ROOT_DIR, handle, offset, &mut page);
        let gift = read.await.expect("read");
        (page, gift)
    }

    fn lookups(&self, name: &str, page: &Paper) -> Option<u64> {
        let number = page.number(name).expect(name);
        self.requests.inodes.lookups(number)
    }
}

/// A page: the name of each line, and the inode and time that it gave.
struct Paper {
    room: usize,
    lines: Vec<(String, Option<(u64, Duration)>)>,
}

impl Paper {
    fn number(&self, name: &str) -> Option<u64> {
        let line = self.lines.iter().find(|(known, _)| known == name)?;
        line.1.map(|(number, _)| number)
    }
}

impl Page for Paper {
    const PLUS: bool = true;

    fn is_full(&mut self, line: &Line<'_>) -> bool {
        if self.lines.len() >= self.room {
            return true;
        }
        let given = line.entry.as_ref();
        let given = given.map(|given| (given.attr.ino.0, given.time));
        let name = String::from_utf8_lossy(line.name).into_owned();
        self.lines.push((name, given));
        false
    }

    fn send(self) {}

    fn refuse(self, errno: Errno) {
        panic!("refused: {}", errno.code());
    }
}

#[tokio::test]
async fn what_is_given_counts_as_looked_up_and_nothing_else_does() {
    let cell = TestCell::start(Rights::ALL);
    let client = client(&cell).await;
    for number in 0..120 {
        client.make(&format!("f{number:03}")).await;
    }
    let handle = client.open().await;
    // "." and ".." and 60 files: more than is asked for at a time.
    let (page, gift) = client.read(handle, 0, 62).await;
    gift.sent();
    assert_eq!(page.lines.len(), 62);
    assert_eq!(page.lines[0], (".".to_owned(), None));
    assert_eq!(page.lines[1], ("..".to_owned(), None));
    for (name, given) in &page.lines[2..] {
        let (_, time) = given.expect(name);
        assert!(time > Duration::from_secs(60), "{name}: {time:?}");
        assert_eq!(client.lookups(name, &page), Some(1), "{name}");
    }
    // What did not fit is not known to the kernel: its number is the next page's.
    let (rest, gift) = client.read(handle, 62, 1_000).await;
    assert_eq!(rest.lines.len(), 60);
    assert_eq!(rest.lines[0].0, "f060");
    assert_eq!(client.lookups("f060", &rest), Some(1));
    // It is never sent: the kernel has nothing of it.
    drop(gift);
    assert_eq!(client.lookups("f060", &rest), None);
    // A second time, and all forgotten.
    let (again, gift) = client.read(handle, 2, 1).await;
    gift.sent();
    assert_eq!(client.lookups("f000", &again), Some(2));
    let number = again.number("f000").expect("given");
    client.requests.inodes.forget(number, 2);
    assert_eq!(client.requests.inodes.lookups(number), None);
    cell.end();
}

#[tokio::test]
async fn a_directory_is_listed_as_it_was_opened_and_gives_what_it_has_now() {
    let cell = TestCell::start(Rights::ALL);
    let (reader, writer) = (client(&cell).await, client(&cell).await);
    for name in ["a", "b", "c"] {
        writer.make(name).await;
    }
    let handle = reader.open().await;
    writer.remove("a").await;
    writer.remove("b").await;
    writer.make("b").await;
    let (page, gift) = reader.read(handle, 2, 10).await;
    gift.sent();
    let names: Vec<_> = page.lines.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(page.number("a"), None);
    // The name leads to another file by now.
    assert_eq!(page.number("b"), None);
    assert!(page.number("c").is_some());
    cell.end();
}

#[tokio::test]
async fn what_breaks_before_the_answer_has_arrived_is_told_after_it() {
    let cell = TestCell::start(Rights::ALL);
    let (reader, writer) = (client(&cell).await, client(&cell).await);
    let file = writer.make("file").await;
    writer.make("other").await;
    let handle = reader.open().await;
    let (page, gift) = reader.read(handle, 2, 10).await;
    assert!(page.number("file").is_some());
    let cache = &writer.requests.cache;
    let wanted = Wanted {
        mode: Some(0o600),
        ..Default::default()
    };
    let set = cache.set_attributes(&writer.user, &file, wanted, false);
    set.await.expect("mode");
    // It has been told by now; the kernel forgot it with what it did not have yet.
    for _ in 0..500 {
        if reader.told.0.lock().contains(&file.fid()) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let before = std::mem::take(&mut *reader.told.0.lock());
    assert!(before.contains(&file.fid()));
    gift.sent();
    assert_eq!(*reader.told.0.lock(), [file.fid()]);
    cell.end();
}

#[tokio::test]
async fn cells_are_names_alone() {
    let cell = TestCell::start(Rights::ALL);
    let mut client = client(&cell).await;
    // Each would have to be asked for where it is.
    let cells = Arc::new(Inodes::new(Node::Cells));
    client.requests = Requests::new(client.requests.cache.clone(), cells, true);
    let handle = client.open().await;
    let (page, gift) = client.read(handle, 2, 10).await;
    gift.sent();
    assert_eq!(page.lines, [("test.cell".to_owned(), None)]);
    cell.end();
}
