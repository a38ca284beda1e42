//! The latency watch: how long a disk takes for 64 KiB.
//!
//! Every ten seconds the probe of a partition writes 64 KiB to a file of its own and syncs it. It
//! drops the pages from the system's cache, and reads the bytes back. CERN finds slow disks by such
//! figures before users do. A slow disk is probed less often: a probe never takes more than one
//! hundredth of the time.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use cellar_rpc::{LATENCY_BOUNDS_MICROS, LatencyCounts};
use cellar_wire::ids::PartitionId;
use parking_lot::Mutex;
use rustix::fs::{Advice, fadvise};

use crate::failure::{Failure, Outcome};
use crate::metrics::snapshot::Snapshot;

/// Bytes of a probe.
const PROBE_BYTES: usize = 64 << 10;
/// Interval of the probes of a fast disk.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// Smallest ratio of an interval and the duration of its probe.
const PROBE_SHARE: u32 = 100;
/// A probe that takes longer is logged.
const PROBE_SLOW: Duration = Duration::from_secs(1);
/// The file of the probe, in the directory of the partition.
const PROBE_FILE: &str = "latency-probe";
const SECOND_MICROS: f64 = 1e6;

/// The probes of all partitions, each with a thread of its own. Dropping them ends the threads.
pub(crate) struct Probes {
    probes: Vec<(PartitionId, Arc<Figures>)>,
    /// Closed to stop the threads. A thread in a call of a stuck disk is not waited for.
    _running: Vec<SyncSender<()>>,
}

/// The durations of the probes of one disk.
#[derive(Default)]
struct Figures {
    write: Durations,
    read: Durations,
    failures: AtomicU64,
}

#[derive(Default)]
struct Durations(Mutex<(LatencyCounts, u64)>);

impl Probes {
    /// Starts the probes of these directories.
    pub(super) fn start(partitions: Vec<(PartitionId, PathBuf)>) -> Outcome<Self> {
        let mut probes = Self {
            probes: Vec::new(),
            _running: Vec::new(),
        };
        for (id, directory) in partitions {
            let figures = Arc::new(Figures::default());
            let (running, stop) = sync_channel(1);
            let counted = figures.clone();
            thread::Builder::new()
                .name(format!("probe{}", id.to_string().replace('/', "-")))
                .spawn(move || watch(id, &directory.join(PROBE_FILE), &counted, &stop))
                .map_err(|cause| {
                    Failure::new(format!("cannot start the probe of a disk: {cause}"))
                })?;
            probes.probes.push((id, figures));
            probes._running.push(running);
        }
        Ok(probes)
    }

    /// Adds the durations to the metrics.
    pub(super) fn add(&self, snapshot: &mut Snapshot) {
        let bounds = LATENCY_BOUNDS_MICROS.map(|bound| bound as f64 / SECOND_MICROS);
        let bounds = || bounds.into_iter().chain([f64::INFINITY]);
        for (id, figures) in &self.probes {
            for (operation, durations) in [("write", &figures.write), ("read", &figures.read)] {
                let (counts, micros) = *durations.0.lock();
                snapshot
                    .histograms(
                        "cellar_partition_probe_seconds",
                        "Durations of a write and sync, and of a read, of 64 KiB",
                    )
                    .histogram(
                        [("partition", id), ("operation", &operation)],
                        micros as f64 / SECOND_MICROS,
                        bounds().zip(counts).collect(),
                    );
            }
            snapshot
                .counters(
                    "cellar_partition_probe_failures",
                    "Probes that ended with an error",
                )
                .sample(
                    [("partition", id)],
                    figures.failures.load(Ordering::Relaxed),
                );
        }
    }
}

impl Durations {
    fn count(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let slot = LATENCY_BOUNDS_MICROS.partition_point(|bound| *bound < micros);
        let mut counted = self.0.lock();
        counted.0[slot] += 1;
        counted.1 = counted.1.saturating_add(micros);
    }
}

/// Probes one disk until the other end of `stop` is gone.
fn watch(id: PartitionId, path: &Path, figures: &Figures, stop: &Receiver<()>) {
    let mut pause = Duration::ZERO;
    let mut failed = false;
    while stop.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let begun = Instant::now();
        match probe(path) {
            Ok((write, read)) => {
                figures.write.count(write);
                figures.read.count(read);
                failed = false;
            }
            Err(cause) => {
                figures.failures.fetch_add(1, Ordering::Relaxed);
                // One line for the change of state, not one for each probe.
                if !std::mem::replace(&mut failed, true) {
                    tracing::warn!(partition = %id, %cause, "the disk cannot be probed");
                }
            }
        }
        let took = begun.elapsed();
        if took > PROBE_SLOW {
            tracing::warn!(partition = %id, ?took, "the disk is slow: a write and a read of 64 KiB");
        }
        pause = PROBE_INTERVAL.max(took * PROBE_SHARE);
    }
    let _gone = std::fs::remove_file(path);
}

/// Writes and syncs the bytes, and reads them back from the disk. Returns both durations.
fn probe(path: &Path) -> io::Result<(Duration, Duration)> {
    let mut bytes = vec![0x5a; PROBE_BYTES];
    let file = open(path)?;
    let begun = Instant::now();
    file.write_all_at(&bytes, 0)?;
    file.sync_data()?;
    let write = begun.elapsed();
    fadvise(&file, 0, None, Advice::DontNeed)?;
    let begun = Instant::now();
    file.read_exact_at(&mut bytes, 0)?;
    Ok((write, begun.elapsed()))
}

fn open(path: &Path) -> io::Result<File> {
    cellar_private::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_probed_at_once_and_the_file_goes_at_the_end() {
        let directory = tempfile::tempdir().expect("directory");
        let id = PartitionId::new(0).expect("a letter");
        let probes = Probes::start(vec![(id, directory.path().to_owned())]).expect("start");
        let figures = probes.probes[0].1.clone();
        let file = directory.path().join(PROBE_FILE);
        let until = Instant::now() + Duration::from_secs(20);
        while figures.read.0.lock().1 == 0 && Instant::now() < until {
            thread::yield_now();
        }
        let (counts, micros) = *figures.write.0.lock();
        assert_eq!(counts.iter().sum::<u64>(), 1);
        assert!(micros > 0 && file.exists());
        let mut snapshot = Snapshot::default();
        probes.add(&mut snapshot);
        let text = snapshot.text().expect("text");
        let line =
            "cellar_partition_probe_seconds_count{partition=\"/vicepa\",operation=\"read\"} 1\n";
        assert!(text.contains(line), "{text}");
        drop(probes);
        while file.exists() && Instant::now() < until {
            thread::yield_now();
        }
        assert!(!file.exists(), "the thread removes its file");
    }

    #[test]
    fn an_error_is_counted() {
        let figures = Figures::default();
        let (running, stop) = sync_channel(1);
        let missing = Path::new("/nonexistent-partition/latency-probe");
        let counted = &figures;
        thread::scope(|scope| {
            scope.spawn(move || {
                watch(
                    PartitionId::new(0).expect("a letter"),
                    missing,
                    counted,
                    &stop,
                );
            });
            while figures.failures.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            drop(running);
        });
        assert_eq!(figures.write.0.lock().1, 0);
    }
}
