//! The disk that the cache directory is on is full.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use super::*;

/// A small file system; gone with this. `None` where none may be mounted.
struct Disk(tempfile::TempDir);

impl Disk {
    fn of(bytes: usize) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"]);
        let mounted = mount.arg(directory.path()).output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: no file system can be mounted");
            return None;
        }
        Some(Self(directory))
    }

    fn cache(&self) -> PathBuf {
        self.0.path().join("cache")
    }

    /// Takes all the room that is left.
    fn fill(&self) -> PathBuf {
        let path = self.0.path().join("ballast");
        let mut file = std::fs::File::create(&path).expect("made");
        for count in [64 << 10, 1] {
            while file.write_all(&vec![1; count]).is_ok() {}
        }
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _also = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn bytes(count: usize, seed: u8) -> Vec<u8> {
    (0..count).map(|i| (i / 1_000) as u8 ^ seed).collect()
}

async fn made(client: &bench::Client, name: &str, contents: &[u8]) {
    let file = client.make(name).await;
    client.put(&file, contents).await.expect("stored");
}

#[tokio::test]
async fn stored_bytes_make_room() {
    let Some(disk) = Disk::of(8 << 20) else {
        return;
    };
    let bench = Bench::start();
    let a = bench.client().await;
    let names = ["one", "two", "three"];
    for (seed, name) in (0..).zip(names) {
        made(&a, name, &bytes(5 << 20, seed)).await;
    }
    let b = bench.client_with(1 << 30, Some(disk.cache())).await;
    for (seed, name) in (0..).zip(names) {
        assert!(b.contents(name).await == bytes(5 << 20, seed), "{name}");
    }
    assert!(
        b.cache.management().used() > 1 << 20,
        "{}",
        b.cache.management().used()
    );
    // Writes of programs succeed, too, also after earlier dirty bytes.
    let new = bytes(12 << 20, 9);
    let file = b.make("new").await;
    let handle = b.open(&file, Rights::WRITE).await;
    for (at, part) in (0..).step_by(1 << 20).zip(new.chunks(1 << 20)) {
        handle.write(at, part).await.expect("written");
    }
    handle.store(false).await.expect("stored");
    handle.close().await;
    assert!(a.contents("new").await == new);
    drop(b);
    bench.end();
}

#[tokio::test]
async fn reads_work_without_the_cache() {
    let Some(disk) = Disk::of(8 << 20) else {
        return;
    };
    let bench = Bench::start();
    let a = bench.client().await;
    let mut contents = bytes(3 << 20, 1);
    made(&a, "file", &contents).await;
    made(&a, "small", b"small").await;
    let b = bench.client_with(1 << 30, Some(disk.cache())).await;
    let file = b.find("file").await;
    let handle = b.open(&file, Rights::READ.union(Rights::WRITE)).await;
    handle.write(70_000, b"dirty").await.expect("written");
    contents[70_000..70_005].copy_from_slice(b"dirty");
    let ballast = disk.fill();
    for at in [0, 65_000, 2 << 20] {
        let read = handle.read(at, 100_000).await.expect("read");
        assert!(read == contents[at as usize..at as usize + 100_000], "{at}");
    }
    let end = (3 << 20) - 10;
    let read = handle.read(end, 100).await.expect("read");
    assert_eq!(read, contents[end as usize..]);
    assert_eq!(b.contents("small").await, b"small");
    let full = handle.write(1 << 20, &bytes(100_000, 3)).await;
    assert_eq!(errno(&full.expect_err("no room")), 28);
    std::fs::remove_file(ballast).expect("removed");
    handle.write(1 << 20, &bytes(100_000, 3)).await.expect("ok");
    contents[1 << 20..(1 << 20) + 100_000].copy_from_slice(&bytes(100_000, 3));
    handle.store(false).await.expect("stored");
    handle.close().await;
    assert!(a.contents("file").await == contents);
    assert!(b.contents("file").await == contents);
    drop((file, b));
    bench.end();
}
