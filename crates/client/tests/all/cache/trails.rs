//! Small files that are fetched before they are asked for.

use std::path::PathBuf;

use cellar_client::errno;
use cellar_wire::acl::Rights;
use cellar_wire::rxafs::FetchData64;

use crate::cache::bench::{Bench, Client, Tokens};

const FILES: usize = 120;

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
    fn guesses(&self) -> (u64, u64) {
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

    /// Waits until nothing is fetched that nobody waits for.
    async fn settles(&self, bench: &Bench) {
        let mut before = (bench.calls::<FetchData64>(), self.guesses());
        let mut same = 0;
        while same < 20 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            let now = (bench.calls::<FetchData64>(), self.guesses());
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
        // Four are read before the first guess; each file is fetched once, whoever was first.
        assert_eq!(bench.calls::<FetchData64>() - before, FILES as u64);
        let (guessed, right) = reader.guesses();
        assert!(guessed as usize > FILES / 4, "{guessed} guessed");
        assert!(guessed as usize <= FILES - 4, "{guessed} guessed");
        assert_eq!(right, guessed);
        bench.end();
    }
}

#[tokio::test]
async fn so_are_those_in_the_order_of_their_numbers() {
    let bench = Bench::start();
    let writer = bench.client().await;
    for number in 0..FILES {
        let file = writer.make(&format!("f{number}.c")).await;
        writer.put(&file, b"bytes").await.expect("stored");
    }
    let reader = bench.client().await;
    reader.names().await;
    reader.cache.will_walk(&reader.root);
    for number in 0..FILES {
        reader.find(&format!("f{number}.c")).await;
    }
    for number in 0..40 {
        reader.contents(&format!("f{number}.c")).await;
        reader.settles(&bench).await;
    }
    // After f0, f1, which are in the order of names too, f2 begins; no others than those that would have come next.
    let (guessed, right) = reader.guesses();
    assert_eq!(right, 40 - 6);
    assert!(guessed <= right + 64, "{guessed} guessed");
    bench.end();
}

#[tokio::test]
async fn files_read_here_and_there_are_not_guessed() {
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
    assert_eq!(reader.guesses(), (0, 0));
    assert!(fetched.len() < FILES);
    let calls = bench.calls::<FetchData64>() - before;
    assert_eq!(calls, fetched.len() as u64);
    bench.end();
}

#[tokio::test]
async fn guesses_that_are_wrong_end() {
    let (bench, reader) = start().await;
    // One after the other, then every other one: the guesses between are never read.
    for number in (0..8).chain((8..FILES).step_by(2)) {
        reader.reads(number).await;
        reader.settles(&bench).await;
    }
    let (guessed, right) = reader.guesses();
    let wrong = guessed - right;
    assert!(right > 4 && wrong <= 40, "{right} right, {wrong} wrong");
    bench.end();
}

#[tokio::test]
async fn guesses_stop_where_the_reader_does() {
    let (bench, reader) = start().await;
    let before = bench.calls::<FetchData64>();
    for number in 0..5 {
        reader.reads(number).await;
        reader.settles(&bench).await;
    }
    let calls = bench.calls::<FetchData64>() - before;
    let (guessed, right) = reader.guesses();
    assert_eq!(right, 1);
    assert!((2..=6).contains(&guessed), "{guessed} guessed");
    assert_eq!(calls, 4 + guessed);
    // Whatever is guessed, there is an end to it.
    for number in 5..40 {
        reader.reads(number).await;
        reader.settles(&bench).await;
    }
    let (guessed, right) = reader.guesses();
    let wrong = guessed - right;
    assert!(
        (2..=64).contains(&wrong),
        "{guessed} guessed, {right} right"
    );
    bench.end();
}

#[tokio::test]
async fn large_files_and_those_with_bytes_of_ours_are_not_guessed() {
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
    // The fifth, of two, and then of four those behind the large one and ours.
    assert_eq!(reader.guesses(), (3, 1));
    assert_eq!(bench.calls::<FetchData64>() - before, 4 + 3);
    handle.close().await;
    bench.end();
}

#[tokio::test]
async fn a_change_after_a_guess_is_seen() {
    let (bench, reader) = start().await;
    let writer = bench.client().await;
    for number in 0..10 {
        reader.reads(number).await;
    }
    reader.settles(&bench).await;
    let (guessed, right) = reader.guesses();
    assert!(guessed > right, "{guessed} guessed, {right} read");
    for number in 10..FILES {
        let file = writer.find(&name(number)).await;
        writer.put(&file, b"another").await.expect("stored");
        assert_eq!(reader.contents(&name(number)).await, b"another");
    }
    bench.end();
}

#[tokio::test]
async fn a_change_while_guesses_are_on_their_way_is_seen() {
    let (bench, reader) = start().await;
    let writer = bench.client().await;
    let mut files = Vec::new();
    for number in 0..FILES {
        files.push(writer.find(&name(number)).await);
    }
    for number in 0..FILES - 1 {
        // While the reader's guesses beyond this one are asked for.
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
async fn what_was_guessed_for_one_user_is_not_for_who_may_not_read() {
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
    let (guessed, right) = reader.guesses();
    assert!(guessed > right);
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
async fn files_that_the_user_may_not_read_are_not_guessed() {
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
async fn a_full_cache_is_not_filled_with_guesses() {
    // Four files of ten bytes are read, and two are guessed if there is room for them.
    for (room, guessed) in [(40 + 9, 0), (40 + 10, 1), (100_000, 2)] {
        let (bench, reader) = start().await;
        let writer = bench.client().await;
        let big = writer.make("big").await;
        let length = (64 << 20) - room;
        writer.put(&big, &vec![7; length]).await.expect("stored");
        assert_eq!(reader.contents("big").await.len(), length);
        for number in 0..4 {
            reader.reads(number).await;
            reader.settles(&bench).await;
        }
        assert_eq!(reader.guesses(), (guessed, 0));
        assert_eq!(reader.cache.used(), (length + 40) as u64 + guessed * 10);
        bench.end();
    }
}
