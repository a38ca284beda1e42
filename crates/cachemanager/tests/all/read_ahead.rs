//! Small files that are fetched before they are asked for.

use std::path::PathBuf;

use cellar_client::errno;
use cellar_wire::acl::Rights;
use cellar_wire::rxafs::FetchData64;

use crate::bench::{Bench, Client, Tokens};

const FILES: usize = 120;
const WINDOW: u64 = 16;

fn name(number: usize) -> String {
    format!("file{number:03}")
}

fn bytes(number: usize) -> Vec<u8> {
    format!("bytes of {number}").into_bytes()
}

/// A cell with files, and a client that knows their statuses and no bytes.
async fn start() -> (Bench, Client) {
    start_with(None).await
}

async fn start_with(directory: Option<PathBuf>) -> (Bench, Client) {
    let bench = Bench::start();
    let writer = bench.client().await;
    for number in 0..FILES {
        let file = writer.make(&name(number)).await;
        writer.put(&file, &bytes(number)).await.expect("stored");
    }
    let reader = bench.client_with(64 << 20, directory).await;
    know(&reader).await;
    (bench, reader)
}

async fn know(client: &Client) {
    for number in 0..FILES {
        client.find(&name(number)).await;
    }
}

impl Client {
    async fn reads(&self, number: usize) {
        assert_eq!(self.contents(&name(number)).await, bytes(number));
    }

    /// Files that were fetched before they were asked for, and those of them that were read.
    fn ahead(&self) -> (u64, u64) {
        let text = self.cache.metrics();
        let figure = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse().ok())
                .unwrap_or_else(|| panic!("{name} in {text}"))
        };
        (
            figure("cellar_prefetched_files_total "),
            figure("cellar_prefetched_files_used_total "),
        )
    }

    /// Waits until no fetch ahead is in progress.
    async fn settles(&self, bench: &Bench) {
        let mut before = (bench.calls::<FetchData64>(), self.ahead());
        let mut same = 0;
        while same < 20 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            let now = (bench.calls::<FetchData64>(), self.ahead());
            same = if now == before { same + 1 } else { 0 };
            before = now;
        }
    }
}

#[tokio::test]
async fn files_read_in_their_order_are_fetched_before_they_are_asked_for() {
    let directory = tempfile::tempdir().expect("a directory");
    for cache in [None, Some(directory.path().to_owned())] {
        let (bench, reader) = start_with(cache).await;
        let before = bench.calls::<FetchData64>();
        for number in 0..FILES {
            reader.reads(number).await;
        }
        reader.settles(&bench).await;
        // Three show the order; each file is fetched once, by its reader or ahead.
        assert_eq!(bench.calls::<FetchData64>() - before, FILES as u64);
        let (ahead, used) = reader.ahead();
        assert!(ahead as usize > FILES / 4, "{ahead} fetched ahead");
        assert!(ahead as usize <= FILES - 3, "{ahead} fetched ahead");
        assert_eq!(used, ahead);
        bench.end();
    }
}

#[tokio::test]
async fn files_read_here_and_there_bring_no_others() {
    let (bench, reader) = start().await;
    let before = bench.calls::<FetchData64>();
    let mut fetched = std::collections::HashSet::new();
    let mut random = 1_u32;
    for _ in 0..FILES {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let number = (random >> 16) as usize % FILES;
        reader.reads(number).await;
        fetched.insert(number);
    }
    // Two and two, and every other one.
    for number in (0..FILES).filter(|number| number / 2 % 2 == 0) {
        reader.reads(number).await;
        fetched.insert(number);
    }
    for number in (0..FILES).step_by(2) {
        reader.reads(number).await;
        fetched.insert(number);
    }
    reader.settles(&bench).await;
    assert_eq!(reader.ahead(), (0, 0));
    assert!(fetched.len() < FILES);
    let calls = bench.calls::<FetchData64>() - before;
    assert_eq!(calls, fetched.len() as u64);
    bench.end();
}

#[tokio::test]
async fn files_ahead_end_where_the_order_does() {
    let (bench, reader) = start().await;
    for number in 0..3 {
        reader.reads(number).await;
        reader.settles(&bench).await;
    }
    assert_eq!(reader.ahead(), (WINDOW, 0));
    // Every other one: each of them begins a new row.
    for number in (4..FILES).step_by(2) {
        reader.reads(number).await;
        reader.settles(&bench).await;
    }
    assert_eq!(reader.ahead(), (WINDOW, WINDOW / 2));
    bench.end();
}

#[tokio::test]
async fn a_window_of_files_is_ahead_of_the_reader() {
    let (bench, reader) = start().await;
    let before = bench.calls::<FetchData64>();
    for number in 0..40 {
        reader.reads(number).await;
        reader.settles(&bench).await;
        let (ahead, used) = reader.ahead();
        let (first, beyond) = if number < 2 {
            (true, 0)
        } else {
            (false, ahead - used)
        };
        assert!(
            first || (WINDOW / 2..=WINDOW).contains(&beyond),
            "{beyond} after {number}"
        );
    }
    let (ahead, used) = reader.ahead();
    assert_eq!(used, 40 - 3);
    assert_eq!(bench.calls::<FetchData64>() - before, 3 + ahead);
    bench.end();
}

#[tokio::test]
async fn large_files_and_those_with_bytes_of_ours_are_not_fetched_ahead() {
    let (bench, reader) = start().await;
    let writer = bench.client().await;
    let large = writer.find(&name(5)).await;
    writer.put(&large, &vec![1; 65_537]).await.expect("stored");
    let ours = reader.find(&name(6)).await;
    let handle = reader.open(&ours, Rights::WRITE).await;
    handle.write(0, b"ours").await.expect("written");
    know(&reader).await;
    let before = bench.calls::<FetchData64>();
    for number in 0..5 {
        reader.reads(number).await;
        reader.settles(&bench).await;
    }
    // All of the window but the large one and ours.
    assert_eq!(reader.ahead(), (WINDOW - 2, 2));
    assert_eq!(bench.calls::<FetchData64>() - before, 3 + WINDOW - 2);
    handle.close().await;
    bench.end();
}

#[tokio::test]
async fn a_change_after_a_fetch_ahead_is_seen() {
    let (bench, reader) = start().await;
    let writer = bench.client().await;
    for number in 0..10 {
        reader.reads(number).await;
    }
    reader.settles(&bench).await;
    let (ahead, used) = reader.ahead();
    assert!(ahead > used, "{ahead} fetched ahead, {used} read");
    for number in 10..FILES {
        let file = writer.find(&name(number)).await;
        writer.put(&file, b"another").await.expect("stored");
        assert_eq!(reader.contents(&name(number)).await, b"another");
    }
    bench.end();
}

#[tokio::test]
async fn a_change_while_files_are_fetched_ahead_is_seen() {
    let (bench, reader) = start().await;
    let writer = bench.client().await;
    let mut files = Vec::new();
    for number in 0..FILES {
        files.push(writer.find(&name(number)).await);
    }
    for number in 0..FILES - 1 {
        // While the reader's files beyond this one are asked for.
        let next = &files[number + 1];
        let this = name(number);
        let (put, read) = tokio::join!(writer.put(next, b"another"), reader.contents(&this));
        put.expect("stored");
        let expected = if number == 0 {
            bytes(0)
        } else {
            b"another".to_vec()
        };
        assert_eq!(read, expected, "{number}");
    }
    bench.end();
}

#[tokio::test]
async fn bytes_fetched_ahead_for_one_user_are_not_shown_to_others() {
    const USER: u32 = 1_000;
    let bench = Bench::start();
    let writer = bench.client().await;
    for number in 0..FILES {
        let file = writer.make(&name(number)).await;
        writer.put(&file, &bytes(number)).await.expect("stored");
    }
    let reader = bench
        .client_of(Tokens(Some(USER)), USER, 64 << 20, None)
        .await;
    know(&reader).await;
    for number in 0..10 {
        reader.reads(number).await;
    }
    reader.settles(&bench).await;
    let (ahead, used) = reader.ahead();
    assert!(ahead > used);
    bench.allow(Rights::LOOKUP);
    let stranger = reader.cache.user(USER + 1).await.expect("user");
    let calls = bench.calls::<FetchData64>();
    for number in 0..20 {
        let file = reader.find(&name(number)).await;
        let open = reader
            .cache
            .open(&stranger, &file, Rights::READ, false)
            .await;
        assert_eq!(errno(&open.expect_err("not his")), 13);
    }
    assert_eq!(bench.calls::<FetchData64>(), calls);
    bench.end();
}

#[tokio::test]
async fn files_that_the_user_may_not_read_are_not_fetched_ahead() {
    let (bench, reader) = start().await;
    let writer = bench.client().await;
    let mut open = Vec::new();
    for number in 0..4 {
        let file = reader.find(&name(number)).await;
        open.push(reader.open(&file, Rights::READ).await);
    }
    // He hears of the directory, and with it that he may read no more; of the files nothing.
    bench.allow(Rights::LOOKUP.union(Rights::INSERT));
    writer.make("more").await;
    while !reader.names().await.iter().any(|name| name == "more") {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let before = bench.calls::<FetchData64>();
    for handle in &open {
        assert_eq!(errno(&handle.read(0, 10).await.expect_err("not his")), 13);
    }
    reader.settles(&bench).await;
    assert_eq!(bench.calls::<FetchData64>() - before, 4);
    for handle in open {
        handle.close().await;
    }
    bench.end();
}

#[tokio::test]
async fn a_full_cache_is_not_filled_with_files_ahead() {
    // Three files of ten bytes are read. Each fetch that is under way is counted as 64 KiB.
    for (room, ahead) in [(30 + 9, 0), (30 + 10, 1), (2 << 20, WINDOW)] {
        let (bench, reader) = start().await;
        let writer = bench.client().await;
        let big = writer.make("large").await;
        let length = (64 << 20) - room;
        writer.put(&big, &vec![7; length]).await.expect("stored");
        assert_eq!(reader.contents("large").await.len(), length);
        for number in 0..3 {
            reader.reads(number).await;
            reader.settles(&bench).await;
        }
        assert_eq!(reader.ahead(), (ahead, 0));
        let used = reader.cache.management().used() - length as u64;
        assert!(
            (30 + ahead * 10..=30 + ahead * 11).contains(&used),
            "{used}"
        );
        bench.end();
    }
}
