//! Measures restores, and the cost of clones in a volume of a few vnodes and in one of a million.
//!
//! `cargo run -p cellar-volume --example restore_bench --profile dist -- [DIR] [VNODES]`
//!
//! First 500 MB in five files and 20,000 files of 1 KiB in 20 directories are restored into a new
//! volume, and again over it. Then a volume of VNODES files (default 1,000,000) is restored,
//! cloned, restored again under the clone, and the clone is deleted. This measures the time of
//! cloning, and the rate at which the space is freed, with the partition closed and opened in
//! between.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cellar_volume::disk::FileDisk;
use cellar_volume::{
    AccessList, FileType, Options, Partition, Restore, RestoreMode, RestoredInfo, SnapshotSpec,
    VnodeImage, Volume, VolumeKind, VolumeSpec,
};
use cellar_wire::dir::{Directory, VnodeRef};
use cellar_wire::ids::{AfsTime, Uniquifier, ViceId, VnodeId, VolumeId};

const NOW: AfsTime = AfsTime(1_700_000_000);
const LARGE_FILES: u32 = 5;
const LARGE_BYTES: u64 = 100_000_000;
const PUSH_BYTES: usize = 64 << 10;
const CLONES: u32 = 51;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// The contents of a generated volume: directories below the root, with files of one length.
struct Tree {
    directories: u32,
    files_each: u32,
    small_bytes: usize,
    large: u32,
}

fn image(vnode: u32, kind: FileType, parent: u32, length: u64) -> VnodeImage {
    let directory = kind == FileType::Directory;
    VnodeImage {
        vnode: VnodeId(vnode),
        uniquifier: Uniquifier(vnode),
        kind,
        mode: 0o755,
        link_count: if directory { 2 } else { 1 },
        data_version: 1,
        client_time: NOW,
        server_time: NOW,
        author: ViceId(1),
        owner: ViceId(1),
        group: ViceId(0),
        parent: VnodeId(parent),
        length,
        acl: directory.then(|| Arc::new(AccessList::administrators_only())),
        layout: None,
        copies: None,
        wiped: None,
        policy: 0,
    }
}

fn target(vnode: u32) -> VnodeRef {
    VnodeRef {
        vnode: VnodeId(vnode),
        uniquifier: Uniquifier(vnode),
    }
}

fn put_directory(
    restore: &mut Restore,
    vnode: u32,
    entries: impl Iterator<Item = (String, u32)>,
    subdirectories: u32,
) -> Outcome {
    let failed = |error: cellar_wire::dir::DirError<std::convert::Infallible>| error.to_string();
    let mut directory = Directory::create(Vec::new(), target(vnode), target(1)).map_err(failed)?;
    for (name, child) in entries {
        directory
            .insert_missing(name.as_bytes(), target(child))
            .map_err(failed)?;
    }
    let pages = directory.into_pages().concat();
    let mut image = image(vnode, FileType::Directory, 1, pages.len() as u64);
    image.link_count += subdirectories;
    restore.put(&image)?;
    restore.push(pages.into())?;
    Ok(())
}

impl Tree {
    fn directory(index: u32) -> u32 {
        3 + 2 * index
    }

    fn file(&self, directory: u32, index: u32) -> u32 {
        2 + 2 * (directory * self.files_each + index)
    }

    fn large_file(&self, index: u32) -> u32 {
        self.file(self.directories, index)
    }

    /// Puts all vnodes; `seed` makes one version differ from another.
    fn put(&self, restore: &mut Restore, seed: u8) -> Outcome {
        let names = (0..self.directories).map(|n| (format!("d{n}"), Self::directory(n)));
        let large = (0..self.large).map(|n| (format!("large{n}"), self.large_file(n)));
        put_directory(restore, 1, names.chain(large), self.directories)?;
        for directory in 0..self.directories {
            let names = (0..self.files_each).map(|n| (format!("file{n}"), self.file(directory, n)));
            put_directory(restore, Self::directory(directory), names, 0)?;
        }
        let small = Bytes::from(vec![seed; self.small_bytes]);
        for directory in 0..self.directories {
            for index in 0..self.files_each {
                let vnode = self.file(directory, index);
                let parent = Self::directory(directory);
                let image = image(vnode, FileType::File, parent, small.len() as u64);
                restore.put(&image)?;
                restore.push(small.clone())?;
            }
        }
        let part: Vec<u8> = (0..PUSH_BYTES).map(|n| (n / 3) as u8 ^ seed | 1).collect();
        let part = Bytes::from(part);
        for index in 0..self.large {
            let vnode = self.large_file(index);
            restore.put(&image(vnode, FileType::File, 1, LARGE_BYTES))?;
            let mut left = LARGE_BYTES as usize;
            while left > 0 {
                let count = left.min(part.len());
                restore.push(part.slice(..count))?;
                left -= count;
            }
        }
        Ok(())
    }
}

fn create(partition: &Partition, id: u32) -> Outcome<Arc<Volume>> {
    let spec = VolumeSpec {
        root: false,
        ..VolumeSpec::new(VolumeId(id), format!("bench{id}"), ViceId(1), NOW)
    };
    Ok(partition.create_volume(&spec)?.wait()?)
}

fn restore(partition: &Partition, id: u32, tree: &Tree, seed: u8) -> Outcome<Duration> {
    let start = Instant::now();
    let mut restore = partition.begin_restore(VolumeId(id), RestoreMode::Incremental)?;
    tree.put(&mut restore, seed)?;
    let info = RestoredInfo {
        info: restore.volume().info(),
        next_uniquifier: 0,
        received: None,
    };
    restore.commit(info)?.wait()?;
    Ok(start.elapsed())
}

/// The shortest, median and longest time of some clones, each durable.
fn clone_times(partition: &Partition, id: u32) -> Outcome<[Duration; 3]> {
    let mut times = Vec::new();
    for n in 0..CLONES {
        let (source, clone) = (VolumeId(id), VolumeId(id + 1000 + n));
        let start = Instant::now();
        let spec = SnapshotSpec::new(source, clone, "clone", VolumeKind::ReadOnly, NOW);
        partition.snapshot(&spec)?.wait()?;
        times.push(start.elapsed());
        partition.delete_volume(clone)?.wait()?;
    }
    times.sort();
    let last = times.len() - 1;
    Ok([times[0], times[last / 2], times[last]])
}

fn report(what: &str, time: Duration, vnodes: u32, bytes: f64) {
    let seconds = time.as_secs_f64();
    println!(
        "{what:<44} {seconds:>7.2} s {:>9.0} vnodes/s {:>7.0} MB/s",
        f64::from(vnodes) / seconds,
        bytes / seconds / 1e6
    );
}

fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let scratch = tempfile::tempdir()?;
    let folder = match arguments.next() {
        Some(folder) => PathBuf::from(folder),
        None => scratch.path().to_owned(),
    };
    let vnodes: u32 = arguments
        .next()
        .map_or(Ok(1_000_000), |text| text.parse())?;
    std::fs::create_dir_all(&folder)?;
    let open = || -> Outcome<Arc<Partition>> {
        Ok(Partition::open(
            FileDisk::open(&folder)?,
            Options::default(),
        )?)
    };
    let partition = open()?;
    let mixed = Tree {
        directories: 20,
        files_each: 1000,
        small_bytes: 1024,
        large: LARGE_FILES,
    };
    let bytes = LARGE_BYTES as f64 * f64::from(LARGE_FILES) + 20_000.0 * 1024.0;
    create(&partition, 1)?;
    for what in ["500 MB and 20,000 files", "the same over it"] {
        let time = restore(&partition, 1, &mixed, what.len() as u8)?;
        report(what, time, 20_026, bytes);
    }
    let small = Tree { large: 0, ..mixed };
    create(&partition, 2)?;
    let time = restore(&partition, 2, &small, 1)?;
    report("20,000 files of 1 KiB", time, 20_021, 20_000.0 * 1024.0);

    let few = Tree {
        directories: 1,
        files_each: 8,
        small_bytes: 100,
        large: 0,
    };
    create(&partition, 3)?;
    restore(&partition, 3, &few, 1)?;
    let many = Tree {
        directories: vnodes.div_ceil(10_000),
        files_each: vnodes.min(10_000),
        ..few
    };
    create(&partition, 4)?;
    let time = restore(&partition, 4, &many, 1)?;
    report(
        "a volume of files of 100 bytes",
        time,
        vnodes,
        f64::from(vnodes) * 100.0,
    );
    for (id, count) in [(3, 10), (4, vnodes)] {
        let [least, middle, most] =
            clone_times(&partition, id)?.map(|time| time.as_secs_f64() * 1e3);
        println!(
            "clone of {count} vnodes, durable: {least:.2} ms, median {middle:.2}, longest {most:.2}"
        );
    }
    let spec = SnapshotSpec::new(VolumeId(4), VolumeId(5), "old", VolumeKind::ReadOnly, NOW);
    partition.snapshot(&spec)?.wait()?;
    let time = restore(&partition, 4, &many, 2)?;
    report(
        "all of it restored again under a clone",
        time,
        vnodes,
        f64::from(vnodes) * 100.0,
    );
    partition.delete_volume(VolumeId(5))?.wait()?;
    let (start, before) = (Instant::now(), partition.counters().reaped);
    std::thread::sleep(Duration::from_secs(3));
    let first = partition.counters().reaped - before;
    println!("removed in the background: {} versions/s", first / 3);
    partition.close()?;
    drop(partition);
    let partition = open()?;
    let opened = start.elapsed();
    partition.reap_now()?;
    println!(
        "closed, opened, the rest removed in {:.1} s: {} versions",
        (start.elapsed() - opened).as_secs_f64(),
        partition.counters().reaped
    );
    Ok(())
}
