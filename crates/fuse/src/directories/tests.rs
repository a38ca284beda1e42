//! Tests what names are sent with, over a real file server in this process, without a kernel.

use std::pin::Pin;

use cellar_cachemanager::{Anonymous, Cache, NewAttributes, Notice, User, Vnode, Watcher};
use cellar_testcell::{NOW, TestCell};
use cellar_until::until;
use cellar_wire::acl::Rights;
use parking_lot::Mutex;

use super::*;
use crate::control::*;
use crate::inodes::{Inodes, ROOT};
use crate::mount::Options;

const ROOT_DIR: INodeNo = INodeNo(ROOT);
const OPTIONS: Options = Options {
    all_users: true,
    threads: 1,
    suid: false,
};

/// A client of the cell with a simulated kernel.
async fn client(cell: &TestCell) -> Client {
    client_on(cell, cell.port()).await
}

async fn client_on(cell: &TestCell, port: cellar_testcell::Port) -> Client {
    let options = cell.cache_options();
    let cache = Cache::new(port, options, Arc::new(Anonymous), || NOW).expect("cache");
    let notices = Arc::new(RecordedNotices::default());
    cache.watch(notices.clone());
    let user = cache.user(0).await.expect("user");
    let root = cache
        .names()
        .root(&user)
        .await
        .expect("root")
        .expect("a volume");
    let inodes = Arc::new(Inodes::new(Node::Vnode(root.clone())));
    let requests = Requests::new(cache, inodes, &OPTIONS);
    Client {
        requests,
        user,
        root,
        notices,
    }
}

/// The notices that the kernel would get.
#[derive(Default)]
struct RecordedNotices(Mutex<Vec<cellar_wire::ids::Fid>>);

impl Watcher for RecordedNotices {
    fn changed(&self, vnode: &Arc<Vnode>, _notice: Notice) {
        self.0.lock().push(vnode.fid());
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

struct Client {
    requests: Requests,
    user: Arc<User>,
    root: Arc<Vnode>,
    notices: Arc<RecordedNotices>,
}

impl Client {
    async fn make(&self, name: &str) -> Arc<Vnode> {
        let cache = &self.requests.cache;
        let made = cache
            .names()
            .create_file(&self.user, &self.root, name.as_bytes(), 0o644);
        made.await.expect(name)
    }

    async fn remove(&self, name: &str) {
        let cache = &self.requests.cache;
        let removed = cache
            .names()
            .remove_file(&self.user, &self.root, name.as_bytes());
        removed.await.expect(name);
    }

    async fn open(&self) -> u64 {
        let open = self.requests.open_dir(0, ROOT_DIR).await;
        open.expect("open").handle
    }

    /// How the kernel may read the root when it is opened. Closes it again.
    async fn lines(&self) -> FopenFlags {
        let open = self.requests.open_dir(0, ROOT_DIR).await.expect("open");
        self.requests.release_dir(ROOT_DIR, open.handle);
        open.flags()
    }

    /// Reads a page of at most `room` lines.
    async fn read(&self, handle: u64, offset: u64, room: usize) -> (PaperReply, GivenInodes<'_>) {
        let mut page = PaperReply {
            room,
            lines: Vec::new(),
        };
        let read = self
            .requests
            .read_dir(0, ROOT_DIR, handle, offset, &mut page);
        let gift = read.await.expect("read");
        (page, gift)
    }

    fn lookups(&self, name: &str, page: &PaperReply) -> Option<u64> {
        let number = page.number(name).expect(name);
        self.requests.inodes.lookups(number)
    }
}

/// A page: the name of each line, with its inode and time.
struct PaperReply {
    room: usize,
    lines: Vec<(String, Option<(u64, Duration)>)>,
}

impl PaperReply {
    fn number(&self, name: &str) -> Option<u64> {
        let line = self.lines.iter().find(|(known, _)| known == name)?;
        line.1.map(|(number, _)| number)
    }
}

impl DirectoryReply for PaperReply {
    const PLUS: bool = true;

    fn is_full(&mut self, line: &DirectoryLine<'_>) -> bool {
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
async fn only_delivered_entries_count_as_lookups() {
    let cell = TestCell::start(Rights::ALL);
    let client = client(&cell).await;
    for number in 0..120 {
        client.make(&format!("f{number:03}")).await;
    }
    let handle = client.open().await;
    // "." and ".." and 60 files: more than one batch.
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
    // The kernel does not know names that did not fit; the next page gives their inodes.
    let (rest, gift) = client.read(handle, 62, 1_000).await;
    assert_eq!(rest.lines.len(), 60);
    assert_eq!(rest.lines[0].0, "f060");
    assert_eq!(client.lookups("f060", &rest), Some(1));
    // It is never sent, so the kernel has nothing from it.
    drop(gift);
    assert_eq!(client.lookups("f060", &rest), None);
    // Send a second time, and forget all.
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
async fn the_kernel_keeps_a_listing_until_something_in_it_changes() {
    let cell = TestCell::start(Rights::ALL);
    let (reader, writer) = (client(&cell).await, client(&cell).await);
    let file = writer.make("file").await;
    writer.make("other").await;
    let keep = FopenFlags::FOPEN_CACHE_DIR;
    let kept = keep | FopenFlags::FOPEN_KEEP_CACHE;
    assert_eq!(reader.lines().await, keep);
    assert_eq!(reader.lines().await, kept);
    // A change by another machine.
    writer.remove("other").await;
    assert_eq!(reader.lines().await, keep);
    assert_eq!(reader.lines().await, kept);
    // A change by this machine.
    reader.make("mine").await;
    assert_eq!(reader.lines().await, keep);
    assert_eq!(reader.lines().await, kept);
    reader.remove("mine").await;
    assert_eq!(reader.lines().await, keep);
    // As long as an open handle may deliver old lines, new ones are not kept.
    let open = reader.open().await;
    writer.make("late").await;
    assert_eq!(reader.lines().await, FopenFlags::FOPEN_KEEP_CACHE);
    reader.requests.release_dir(ROOT_DIR, open);
    // The kernel has dropped old lines when the first handle makes a request.
    let open = reader.open().await;
    assert_eq!(reader.lines().await, FopenFlags::FOPEN_KEEP_CACHE);
    reader.read(open, 0, 1).await.1.sent();
    assert_eq!(reader.lines().await, kept);
    reader.requests.release_dir(ROOT_DIR, open);
    writer.remove("late").await;
    assert_eq!(reader.lines().await, keep);
    assert_eq!(reader.lines().await, kept);
    // Attributes that were sent with it are taken back.
    let open = reader.open().await;
    let (page, gift) = reader.read(open, 2, 10).await;
    gift.sent();
    reader.requests.release_dir(ROOT_DIR, open);
    let number = page.number("file").expect("given");
    assert_eq!(reader.requests.inodes.of(file.key()), [number]);
    reader.requests.inodes.listings_are_old(number);
    assert_eq!(reader.lines().await, keep);
    cell.end();
}

#[tokio::test]
async fn a_break_before_the_answer_is_delivered_after_it() {
    let cell = TestCell::start(Rights::ALL);
    let (reader, writer) = (client(&cell).await, client(&cell).await);
    let file = writer.make("file").await;
    writer.make("other").await;
    let handle = reader.open().await;
    let (page, gift) = reader.read(handle, 2, 10).await;
    assert!(page.number("file").is_some());
    let cache = &writer.requests.cache;
    let wanted = NewAttributes {
        mode: Some(0o600),
        ..Default::default()
    };
    let set = cache.set_attributes(&writer.user, &file, wanted, false);
    set.await.expect("mode");
    // The notice was written by now. The kernel ignored it, because it did not have the inode yet.
    until("the notice", async || {
        reader.notices.0.lock().contains(&file.fid())
    })
    .await;
    reader.notices.0.lock().clear();
    gift.sent();
    assert_eq!(*reader.notices.0.lock(), [file.fid()]);
    cell.end();
}

#[tokio::test]
async fn cells_are_names_alone() {
    let cell = TestCell::start(Rights::ALL);
    let mut client = client(&cell).await;
    // Each cell would need a call to its servers.
    let cells = Arc::new(Inodes::new(Node::Cells));
    client.requests = Requests::new(client.requests.cache.clone(), cells, &OPTIONS);
    let handle = client.open().await;
    let (page, gift) = client.read(handle, 2, 10).await;
    gift.sent();
    assert_eq!(page.lines, [("test.cell".to_owned(), None)]);
    cell.end();
}

#[tokio::test]
async fn another_name_of_a_cell_is_a_link_in_the_root() {
    let cell = TestCell::start(Rights::ALL);
    let mut client = client(&cell).await;
    let cells = Arc::new(Inodes::new(Node::Cells));
    client.requests = Requests::new(client.requests.cache.clone(), cells, &OPTIONS);
    let requests = &client.requests;
    let set = |name: &'static str, value: &'static str| {
        requests.set_xattr(0, ROOT_DIR, name.as_bytes(), value.as_bytes(), 0)
    };
    set(NEW_ALIAS, "t test.cell").await.expect("an alias");
    let unknown = set(NEW_ALIAS, "u unknown.cell").await;
    assert_eq!(unknown.map_err(|errno| errno.code()), Err(2));
    let taken = set(NEW_ALIAS, "test.cell test.cell").await;
    assert_eq!(taken.map_err(|errno| errno.code()), Err(17));
    let handle = client.open().await;
    let (page, gift) = client.read(handle, 2, 10).await;
    gift.sent();
    let names: Vec<_> = page.lines.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["test.cell", "t"]);
    for (name, text) in [(&b"t"[..], &b"test.cell"[..]), (b".t", b".test.cell")] {
        let seen = requests.seen(ROOT_DIR).expect("the root");
        let entry = requests.lookup(0, ROOT_DIR, name, &seen).await;
        let entry = entry.expect("the alias");
        assert_eq!(entry.attr.kind, FileType::Symlink);
        let number = entry.attr.ino;
        let link = requests.link_text(0, number).await.expect("a link");
        assert_eq!((&link[..], entry.attr.size), (text, text.len() as u64));
        let again = requests.lookup(0, ROOT_DIR, name, &seen).await;
        assert_eq!(again.expect("the alias").attr.ino, number);
        assert_eq!(requests.inodes.lookups(number.0), Some(2));
        requests.inodes.forget(number.0, 2);
        assert_eq!(requests.inodes.lookups(number.0), None);
    }
    cell.end();
}

#[tokio::test]
async fn the_mount_is_managed_by_who_may() {
    let cell = TestCell::start(Rights::ALL);
    let client = client(&cell).await;
    let requests = &client.requests;
    let stranger = requests.owner.wrapping_add(1_000);
    let get = async |uid, name: &str| {
        let value = requests.xattr(uid, ROOT_DIR, name.as_bytes()).await;
        value.map(|value| String::from_utf8(value).expect("text"))
    };
    let set = async |uid, name: &str, value: &str| {
        let set = requests.set_xattr(uid, ROOT_DIR, name.as_bytes(), value.as_bytes(), 0);
        set.await.map_err(|errno| errno.code())
    };
    let line = get(stranger, CELL).await.expect("a cell");
    let parsed = cellar_client::Cell::parse_line(&line);
    assert_eq!(parsed.as_ref(), Some(&cell.cell));
    assert_eq!(
        get(0, &format!("{CELLS}0")).await.expect("cells"),
        line + "\n"
    );
    assert_eq!(get(0, &format!("{CELLS}1")).await.expect("no more"), "");
    let managing = [
        (CACHE_SIZE, "131072", "cache-kib 131072"),
        (SYSNAMES, "one\ntwo", "sysnames one two"),
        (STORE_BEHIND_ALL, "64", "store-behind-kib 64"),
        (NEW_CELL, "other.cell 1,2,3,4,5 192.0.2.1", "home test.cell"),
        (CHECK_VOLUMES, "", ""),
        (FLUSH, "all", ""),
    ];
    for (name, value, notices) in managing {
        assert_eq!(set(stranger, name, value).await, Err(1), "{name}");
        assert_eq!(set(0, name, value).await, Ok(()), "{name}");
        let status = get(stranger, STATUS).await.expect("status");
        assert!(status.contains(notices), "{name}: {status}");
    }
    assert_eq!(set(0, CACHE_SIZE, "0").await, Ok(()));
    assert_eq!(requests.cache.management().size(), 64 << 20);
    assert!(
        requests
            .cache
            .cells()
            .iter()
            .any(|cell| cell.name.as_str() == "other.cell")
    );
    for (name, value) in [
        (CACHE_SIZE, "1000"),
        (CACHE_SIZE, "18446744073709551615"),
        (CACHE_SIZE, "x"),
        (SYSNAMES, " "),
        (SYSNAMES, "a/b"),
        (NEW_CELL, "other.cell"),
        (NEW_ALIAS, "alone"),
        (CRYPT, "perhaps"),
        (FLUSH, "nothing"),
        (STORE_BEHIND_ALL, "1073741825"),
    ] {
        assert_eq!(set(0, name, value).await, Err(22), "{name} {value}");
    }
    for name in ["afs.cellar.nothing", "afs.cellar.cells.x"] {
        assert!(get(0, name).await.is_err(), "{name}");
    }
    // An operation on one directory is allowed for a user who can see it.
    assert_eq!(set(stranger, FLUSH, "volume").await, Ok(()));
    let notices = std::mem::take(&mut *client.notices.0.lock());
    assert!(notices.contains(&client.root.fid()));
    assert_eq!(set(stranger, STORE_BEHIND, "1").await, Err(21));
    cell.end();
}

#[tokio::test]
async fn a_file_is_flushed_and_stored_as_its_users_say() {
    let cell = TestCell::start(Rights::ALL);
    let client = client(&cell).await;
    let (requests, cache) = (&client.requests, &client.requests.cache);
    let uid = requests.owner.wrapping_add(1_000);
    let seen = requests.seen(ROOT_DIR).expect("the root");
    let made = requests
        .create(uid, ROOT_DIR, b"file", 0o644, (2, false))
        .await;
    let (entry, open) = made.expect("a file");
    let handle = open.handle;
    let number = entry.attr.ino;
    let set = async |name: &str, value: &str| {
        let set = requests.set_xattr(uid, number, name.as_bytes(), value.as_bytes(), 0);
        set.await.map_err(|errno| errno.code())
    };
    let get = async |name: &str| {
        let value = requests.xattr(uid, number, name.as_bytes()).await;
        String::from_utf8(value.expect(name)).expect("text")
    };
    assert_eq!(get(STORE_BEHIND).await, "default");
    assert_eq!(set(STORE_BEHIND, "64").await, Ok(()));
    assert_eq!(get(STORE_BEHIND).await, "64");
    requests.write(handle, 0, b"later").await.expect("write");
    requests.store(handle, false).await.expect("close");
    let fid = cache.management().waiting(None)[0].0.fid;
    let line = format!("{fid} test.cell 5 ");
    assert!(get(&format!("{UNSTORED}0")).await.starts_with(&line));
    // Unstored data is not dropped.
    assert_eq!(set(FLUSH, "file").await, Ok(()));
    assert_eq!(cache.management().waiting(None)[0].0.bytes, 5);
    requests.store(handle, true).await.expect("fsync");
    assert_eq!(get(&format!("{UNSTORED}0")).await, "");
    assert_eq!(cache.management().used(), 5);
    assert_eq!(set(FLUSH, "file").await, Ok(()));
    assert_eq!(cache.management().used(), 0);
    requests.release(handle).await;
    drop(seen);
    cell.end();
}

#[tokio::test]
async fn a_volume_within_itself_has_one_number_for_programs() {
    let cell = TestCell::start(Rights::ALL);
    let client = client(&cell).await;
    let (requests, user) = (&client.requests, &client.user);
    let cache = &requests.cache;
    let made = cache
        .names()
        .symlink(user, &client.root, b"self", b"#root.cell.");
    made.await.expect("a mount point");
    let made = cache
        .names()
        .make_dir(user, &client.root, b"d", 0o755)
        .await;
    made.expect("a directory");
    let mut number = ROOT_DIR;
    let mut all = vec![number];
    for _ in 0..3 {
        let seen = requests.seen(number).expect("a directory");
        let entry = requests.lookup(0, number, b"self", &seen).await;
        let entry = entry.expect("the volume again");
        // It is another directory for the kernel, which does not trust the attributes in the
        // answer.
        number = entry.attr.ino;
        assert!(!all.contains(&number) && entry.attr_time.is_zero());
        all.push(number);
        let (attr, time) = requests.attributes(0, number).await.expect("attributes");
        assert!(attr.ino == ROOT_DIR && !time.is_zero());
    }
    // No other directory has a shared number.
    let seen = requests.seen(number).expect("a directory");
    let entry = requests.lookup(0, number, b"d", &seen).await.expect("d");
    assert!(!entry.attr_time.is_zero());
    let (attr, _) = requests.attributes(0, entry.attr.ino).await.expect("d");
    assert_eq!(attr.ino, entry.attr.ino);
    // After the first of two other inodes is forgotten, the last one still shows the same number.
    requests.inodes.forget(all[1].0, 1);
    assert_eq!(requests.inodes.shown(all[2].0), ROOT);
    cell.end();
}

#[tokio::test]
async fn a_mount_point_that_is_made_as_a_link_is_answered_as_one() {
    let cell = TestCell::start(Rights::ALL);
    let client = client(&cell).await;
    let requests = &client.requests;
    let made = requests.symlink(0, ROOT_DIR, b"m", b"#root.cell.").await;
    let made = made.expect("a mount point");
    // The kernel asked for a link and accepts only a link; the next look-up finds the target.
    assert_eq!(made.attr.kind, FileType::Symlink);
    assert!(made.entry_time.is_zero());
    let seen = requests.seen(ROOT_DIR).expect("the root");
    let entry = requests.lookup(0, ROOT_DIR, b"m", &seen).await;
    assert_eq!(entry.expect("the volume").attr.kind, FileType::Directory);
    let made = requests.symlink(0, ROOT_DIR, b"l", b"m").await;
    let made = made.expect("a link");
    assert!(made.attr.kind == FileType::Symlink && !made.entry_time.is_zero());
    cell.end();
}

#[tokio::test]
async fn a_listed_cell_is_asked_when_something_in_it_is_looked_at() {
    let cell = TestCell::start(Rights::ALL);
    let mut client = client(&cell).await;
    client.make("file").await;
    let cells = Arc::new(Inodes::new(Node::Cells));
    client.requests = Requests::new(client.requests.cache.clone(), cells, &OPTIONS);
    let requests = &client.requests;
    let root = requests.seen(ROOT_DIR).expect("the root");
    for name in [&b"test.cell"[..], b".test.cell"] {
        let entry = requests.lookup(0, ROOT_DIR, name, &root).await;
        let entry = entry.expect("a cell");
        let number = entry.attr.ino;
        assert!(entry.attr.kind == FileType::Directory && entry.attr_time.is_zero());
        let (attr, time) = requests.attributes(0, number).await.expect("attributes");
        assert!(attr.ino == number && time.is_zero());
        let said = requests.xattr(0, number, CELL.as_bytes()).await;
        assert_eq!(said.expect("its cell"), cell.cell.line().into_bytes());
        assert!(matches!(requests.node(number), Ok(Node::Cell(_))));
        requests.find_root(0, number).await.expect("it answers");
        let (attr, time) = requests.attributes(0, number).await.expect("attributes");
        assert!(attr.ino == number && !time.is_zero());
        let seen = requests.seen(number).expect("a directory");
        let file = requests.lookup(0, number, b"file", &seen).await;
        assert_eq!(file.expect("a file").attr.kind, FileType::RegularFile);
        // The kernel has the same inode, and gets notices of changes in it.
        let again = requests.lookup(0, ROOT_DIR, name, &root).await;
        let again = again.expect("the cell again");
        let is = |entry: &crate::requests::Entry| (entry.attr.ino, entry.generation);
        assert_eq!(is(&again), is(&entry));
        assert!(requests.inodes.of(client.root.key()).contains(&number.0));
        assert_eq!(requests.inodes.lookups(number.0), Some(2));
        requests.inodes.forget(number.0, 2);
        assert!(requests.inodes.of(client.root.key()).is_empty());
    }
    cell.end();
}

#[tokio::test]
async fn a_silent_cell_delays_no_later_request() {
    let cell = TestCell::start(Rights::ALL);
    let (network, port) = TestCell::hasty_port(Duration::from_secs(6));
    let mut client = client_on(&cell, port).await;
    let cells = Arc::new(Inodes::new(Node::Cells));
    client.requests = Requests::new(client.requests.cache.clone(), cells, &OPTIONS);
    let requests = &client.requests;
    // It receives packets and never answers.
    let server = std::net::UdpSocket::bind("127.0.0.1:0").expect("socket");
    server.set_nonblocking(true).expect("socket");
    let heard = || server.recv(&mut [0; 2_000]).is_ok();
    let port = server.local_addr().expect("address").port();
    let line = format!("quiet.org {port},{port},{port},{port},{port} 127.0.0.1");
    let set = requests.set_xattr(0, ROOT_DIR, NEW_CELL.as_bytes(), line.as_bytes(), 0);
    set.await.expect("a cell");
    let root = requests.seen(ROOT_DIR).expect("the root");
    let entry = requests.lookup(0, ROOT_DIR, b"quiet.org", &root).await;
    let number = entry.expect("a name").attr.ino;
    assert!(!heard(), "a look-up of the name called its server");
    let stat_target = async || {
        requests
            .find_root(0, number)
            .await
            .map_err(|errno| errno.code())
    };
    assert_eq!(stat_target().await, Err(Errno::ETIMEDOUT.code()));
    assert!(heard());
    while heard() {}
    assert_eq!(stat_target().await, Err(Errno::ETIMEDOUT.code()));
    assert!(!heard(), "the silent server was called again at once");
    // A user asks for the cell again.
    let set = requests.set_xattr(0, ROOT_DIR, CHECK_VOLUMES.as_bytes(), b"1", 0);
    set.await.expect("checkvolumes");
    tokio::select! {
        () = until("a call", async || heard()) => {}
        answer = stat_target() => panic!("its server was not called: {answer:?}"),
    }
    network.shutdown();
    cell.end();
}

#[tokio::test]
async fn a_name_with_another_vnode_is_another_inode() {
    let cell = TestCell::start(Rights::ALL);
    let client = client(&cell).await;
    let file = client.make("file").await;
    let inodes = &client.requests.inodes;
    let enter = || inodes.enter(ROOT, b"file", &file, false, true);
    let first = enter();
    assert!(inodes.has_name(first));
    // Files of a writable volume are never lent, so this file always differs from what was lent.
    inodes.lent(first, Some(7));
    let second = enter();
    assert_ne!(second, first);
    assert_eq!(enter(), second);
    assert_eq!((inodes.shown(first), inodes.shown(second)), (first, first));
    assert!(!inodes.has_name(first) && inodes.has_name(second));
    assert_eq!(inodes.of(file.key()), [first, second]);
    // The old inode is closed and forgotten, so no name leads to it any more.
    inodes.lent(first, None);
    inodes.forget(first, 1);
    assert_eq!(enter(), second);
    assert_eq!(inodes.lookups(second), Some(3));
    cell.end();
}
