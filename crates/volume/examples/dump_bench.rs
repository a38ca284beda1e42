//! Measures dumps: a whole volume, its changes by date, and its changes since a state.
//!
//! `cargo run -p cellar-volume --example dump_bench --profile dist -- DIR [FILES [MEGABYTES]]`
//!
//! The volume has FILES files of 1 KiB, 1,000 in a directory, and one of MEGABYTES. Then 10 KiB in
//! the middle of the large one are changed. Bytes are the bytes of bodies that a receiver would
//! get; "looked at" are entries of the table.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use cellar_volume::disk::FileDisk;
use cellar_volume::{
    Content, Context, Frozen, NewVnode, Options, Partition, Since, SnapshotSpec, StoreOutcome,
    StoreSpec, Ticket, Volume, VolumeKind, VolumeSpec,
};
use cellar_wire::ids::{AfsTime, Fid, ViceId, VolumeId};

type Outcome<T> = Result<T, Box<dyn Error>>;

const NEW: NewVnode = NewVnode {
    owner: ViceId(1),
    group: None,
    mode: Some(0o644),
    client_time: None,
};

fn at(seconds: u32) -> Context {
    Context {
        author: ViceId(1),
        now: AfsTime(1_700_000_000 + seconds),
    }
}

fn fill(volume: &Arc<Volume>, files: usize, megabytes: usize) -> Outcome<Fid> {
    let small = [Bytes::from(vec![5; 1024])];
    let mut dir = volume.root();
    let mut last = Ticket::ready();
    for n in 0..files {
        if n % 1000 == 0 {
            let name = format!("d{n}");
            let made = volume.make_dir(volume.root(), name.as_bytes(), &NEW, at(0))?;
            dir = made.outcome.status.fid;
            last.wait()?;
        }
        let name = format!("f{n}");
        let made = volume.create_file(dir, name.as_bytes(), &NEW, at(0))?;
        let fid = made.outcome.status.fid;
        last = volume.store(fid, &StoreSpec::at(0), &small, at(0))?.durable;
    }
    last.wait()?;
    let made = volume.create_file(volume.root(), b"large", &NEW, at(0))?;
    let large = made.outcome.status.fid;
    let begun = volume.begin_store(large, &StoreSpec::at(0), (megabytes as u64) << 20)?;
    let mut store = begun.ok_or("the file is in objects")?;
    for n in 0..megabytes {
        store.push(Bytes::from(vec![n as u8 + 1; 1 << 20]))?;
    }
    if let StoreOutcome::Stored(changed) = store.commit(at(0))? {
        changed.wait()?;
    }
    Ok(large)
}

fn read(partition: &Partition, frozen: &Frozen, since: Since, name: &str) -> Outcome<()> {
    let before = partition.counters().reads;
    let begun = Instant::now();
    let epoch = match since {
        Since::Epoch(epoch) => Some(epoch),
        _ => None,
    };
    let (mut listed, mut whole, mut bytes) = (0u64, 0u64, 0u64);
    let mut vnodes = frozen.vnodes(since)?;
    while let Some(vnode) = vnodes.next()? {
        listed += 1;
        if vnode.image.is_none() {
            continue;
        }
        whole += 1;
        let mut body = frozen.body(&vnode, epoch)?;
        while let Some(part) = body.next(1 << 20)? {
            if let Content::Bytes(part) = part.content {
                bytes += part.len() as u64;
            }
        }
    }
    let took = begun.elapsed().as_secs_f64();
    println!(
        "{name:<28} {:>9.2} ms, {listed} vnodes listed, {whole} in full, {bytes} bytes, {:.0} MB/s, {} looked at",
        took * 1e3,
        bytes as f64 / 1e6 / took,
        partition.counters().reads - before,
    );
    Ok(())
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments
        .next()
        .ok_or("usage: dump_bench DIR [FILES [MEGABYTES]]")?;
    let folder = PathBuf::from(folder).join("dump_bench");
    let mut number = |default| {
        let given = arguments.next().and_then(|text| text.parse().ok());
        given.unwrap_or(default)
    };
    let (files, megabytes) = (number(20_000), number(500));
    let _ = std::fs::remove_dir_all(&folder);
    let partition = Partition::open(FileDisk::open(&folder)?, Options::default())?;
    let spec = VolumeSpec::new(VolumeId(1), "dump", ViceId(1), at(0).now);
    let volume = partition.create_volume(&spec)?.wait()?;
    let large = fill(&volume, files, megabytes)?;
    partition.flush()?;
    let begun = Instant::now();
    let first = volume.freeze()?;
    println!("frozen in {:.2} ms", begun.elapsed().as_secs_f64() * 1e3);
    read(&partition, &first, Since::Everything, "everything, first")?;
    read(&partition, &first, Since::Everything, "everything, again")?;
    let Some(state) = first.state() else {
        return Err("the state has no name".into());
    };
    let changed = [Bytes::from(vec![9; 10 << 10])];
    let position = (megabytes as u64) << 19;
    volume
        .store(large, &StoreSpec::at(position), &changed, at(10))?
        .wait()?;
    let clone = SnapshotSpec::new(
        VolumeId(1),
        VolumeId(2),
        "dump.readonly",
        VolumeKind::ReadOnly,
        at(20).now,
    );
    let begun = Instant::now();
    let clone = partition.snapshot(&clone)?.wait()?;
    println!("cloned in {:.2} ms", begun.elapsed().as_secs_f64() * 1e3);
    let second = clone.freeze()?;
    read(
        &partition,
        &second,
        Since::Date(at(5).now),
        "changed by date",
    )?;
    let since = second.since(&state).ok_or("the first state is forgotten")?;
    read(&partition, &second, since, "changed since the first")?;
    let now = second.state().ok_or("the state has no name")?;
    let since = second.since(&now).ok_or("the state is forgotten")?;
    read(&partition, &second, since, "changed since now")?;
    drop((first, second, clone, volume));
    partition.close()?;
    Ok(std::fs::remove_dir_all(&folder)?)
}
