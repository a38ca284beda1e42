//! Takes a census at intervals, and submits jobs for its candidates.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cellar_jobs::{Clock, Engine, Error, Filter, NewJob, Progress, Settings, Time};
use cellar_objects::repair::Pace;
use cellar_rpc::Runtime;
use cellar_wire::osddb::{OSD_WIPEABLE, OsdListed};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::{error, info, warn};

use super::super::failure::Failure;
use super::super::limits::DEVICES_INTERVAL;
use super::super::{Objects, WallClock};
use super::census::{CANDIDATES_MAX, Candidate, Census};
use super::kinds::{
    Arguments, COPY, FILES_PER_JOB, FileArgument, FilesKind, RECALL, SYSTEM, VERIFY, WIPE,
    resource_of,
};
use super::replicas;
use super::work::{Paces, Worker};
use super::{Day, Days, DeviceUse, Hsm, HsmConfig, PinTable};

/// Shortest pause between two censuses while there are more candidates than one can hold.
const PAUSE_MIN: Duration = Duration::from_secs(10);
/// Pause while the list of devices, the policies and the pins are not known yet.
const NOT_KNOWN_PAUSE: Duration = Duration::from_millis(500);

struct JobClock(WallClock);

impl Clock for JobClock {
    fn now(&self) -> Time {
        Time(u64::try_from((self.0)().as_millis()).unwrap_or(u64::MAX))
    }
}

impl Objects {
    /// Starts the job engine, and copies and wipes files as policies and water marks demand. Ends
    /// older bytes whose time has passed. Only the first call has an effect.
    pub fn start_hsm(self: &Arc<Self>, runtime: &Runtime, config: HsmConfig) {
        let objects = self.clone();
        runtime.spawn(0, || async move { objects.keep_hsm(config).await });
        let objects = self.clone();
        runtime.spawn(0, || async move { objects.end_older().await });
    }

    /// The job engine, when it runs.
    pub fn jobs(&self) -> Option<&Engine> {
        self.hsm.get().map(|hsm| &hsm.engine)
    }

    /// The last census; `None` before the first.
    pub fn census(&self) -> Option<Arc<Census>> {
        let census = self.hsm.get()?.census.lock().clone();
        Some(census).filter(|census| census.taken > 0)
    }

    /// Asks for a census now. Returns at once.
    pub fn look_for_candidates(&self) {
        if let Some(hsm) = self.hsm.get() {
            hsm.look.notify_one();
        }
    }

    async fn keep_hsm(self: Arc<Self>, config: HsmConfig) {
        let paces = Paces {
            copies: Pace::new(config.copy_rate),
            verification: Pace::new(config.verify_rate),
        };
        let worker = Worker::start(&self, paces);
        let kinds = [COPY, WIPE, RECALL, VERIFY].map(|name| {
            let worker = worker.clone();
            Arc::new(FilesKind { name, worker }) as Arc<dyn cellar_jobs::JobKind>
        });
        let clock = Arc::new(JobClock(self.clock.clone()));
        let jobs = config.jobs.clone();
        let opened = Engine::open(jobs, kinds.to_vec(), clock, Settings::default()).await;
        let engine = match opened {
            Ok(engine) => engine,
            Err(cause) => {
                error!(%cause, "the job engine does not start: no file is copied or wiped by itself");
                return;
            }
        };
        let hsm = self.hsm.get_or_init(|| Hsm {
            engine,
            days: Days::new(config.jobs.clone()),
            pin_table: config.pins.clone(),
            census: Mutex::default(),
            look: Notify::new(),
        });
        let kept = self.clone();
        let table = config.pins.clone();
        tokio::task::spawn_local(async move { kept.keep_pins(table).await });
        let (mut asked, mut followed) = (false, None);
        while !self.is_stopping() {
            let pause = match self.loaded_lists.is_complete() && self.pins.are_known() {
                true => {
                    let now = tokio::time::Instant::now();
                    if asked || followed.is_none_or(|at| now - at >= replicas::INTERVAL) {
                        followed = Some(now);
                        if let Err(failure) = self.follow_wipes().await {
                            warn!(%failure, "read-only volumes do not follow the wipes elsewhere");
                        }
                    }
                    self.round(hsm, &config).await.min(replicas::INTERVAL)
                }
                false => NOT_KNOWN_PAUSE,
            };
            asked = timeout(pause, hsm.look.notified()).await.is_ok();
        }
        hsm.engine.stop().await;
    }

    /// The statistics of the last days, the oldest first.
    ///
    /// # Errors
    /// `Invalid`: this server has no hierarchical storage. `Busy`: its database cannot be read.
    pub async fn days(&self) -> Result<Vec<Day>, Failure> {
        let hsm = self.hsm.get().ok_or(Failure::Invalid)?;
        hsm.days.list().await.map_err(|_| Failure::Busy)
    }

    /// The use of the devices that report.
    fn uses(&self) -> BTreeMap<u32, DeviceUse> {
        let listed = self.storage().map(|storage| storage.devices.list());
        let alive = listed.into_iter().flatten().filter(|device| !device.dead);
        let uses = alive.filter(|device| device.state.total > 0).map(|device| {
            let (total, free) = (device.state.total, device.state.free);
            let used = total.saturating_sub(free);
            (device.entry.id, DeviceUse { used, total })
        });
        uses.collect()
    }

    async fn keep_pins(self: Arc<Self>, table: Arc<dyn PinTable>) {
        while !self.is_stopping() {
            self.load_pins(&*table).await;
            let pause = match self.pins.are_known() {
                true => DEVICES_INTERVAL,
                false => NOT_KNOWN_PAUSE,
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Takes a census, and submits jobs. Returns the pause before the next.
    async fn round(self: &Arc<Self>, hsm: &Hsm, config: &HsmConfig) -> Duration {
        let interval = config.interval;
        let census = match self.take_census(config.verify_interval).await {
            Ok(census) => Arc::new(census),
            Err(_) if self.is_stopping() => return Duration::ZERO,
            Err(failure) => {
                warn!(%failure, "cannot examine the files for archives");
                return interval.max(PAUSE_MIN);
            }
        };
        *hsm.census.lock() = census.clone();
        if let Err(error) = hsm
            .days
            .note(census.taken, &self.figures(), self.uses())
            .await
        {
            warn!(%error, "the statistics of the day cannot be written");
        }
        if interval.is_zero() {
            return Duration::MAX;
        }
        if let Err(failure) = self.submit(&hsm.engine, &census).await {
            warn!(%failure, "the job engine takes no jobs for archives");
        }
        let mut lists = census.copies.values();
        match lists.any(|files| files.len() >= CANDIDATES_MAX) {
            true => PAUSE_MIN.max(Duration::from_millis(census.millis) * 10),
            false => interval,
        }
    }

    async fn submit(&self, engine: &Engine, census: &Census) -> Result<(), Error> {
        let Some(storage) = self.storage() else {
            return Ok(());
        };
        for listed in storage.devices.list() {
            let (id, name) = (listed.entry.id, resource_of(&listed.entry));
            if let Some(files) = census.copies.get(&id) {
                submit_files(engine, COPY, (id, &name), files).await?;
            }
            let archive = census.archives.get(&id).filter(|_| !listed.dead);
            if let Some(archive) = archive.filter(|archive| !archive.candidates.is_empty()) {
                submit_files(engine, VERIFY, (id, &name), &archive.candidates).await?;
            }
            let files = to_wipe(&listed, census);
            if !files.is_empty() {
                submit_files(engine, WIPE, (id, &name), &files).await?;
            }
        }
        Ok(())
    }
}

/// The files to wipe so that a device falls to its low water mark. Servers share the work: each
/// frees a part that corresponds to its part of the device.
fn to_wipe(listed: &OsdListed, census: &Census) -> Vec<Candidate> {
    let (entry, state) = (&listed.entry, &listed.state);
    let used = state.total.saturating_sub(state.free);
    let high = u64::from(entry.marks.high);
    let mark = |thousandths: u64| (state.total / 1000).saturating_mul(thousandths);
    let is_full = high > 0 && used > mark(high) && !listed.dead;
    let Some(device) = census.devices.get(&entry.id) else {
        return Vec::new();
    };
    if !is_full || entry.flags & OSD_WIPEABLE == 0 {
        return Vec::new();
    }
    let excess = used.saturating_sub(mark(entry.marks.end().into()));
    let own = device.online.bytes.min(used);
    let share = u128::from(excess) * u128::from(own) / u128::from(used.max(1));
    let mut freed = 0;
    let files = device.candidates.iter().take_while(|file| {
        let more = freed < share;
        freed += u128::from(file.frees);
        more
    });
    files.copied().collect()
}

/// Submits jobs for these files, unless earlier ones of the same kind and device are unfinished.
async fn submit_files(
    engine: &Engine,
    kind: &'static str,
    (osd, name): (u32, &str),
    files: &[Candidate],
) -> Result<(), Error> {
    let unfinished = Filter {
        kind: Some(kind.to_owned()),
        resource: Some(name.to_owned()),
        unfinished: true,
        ..Filter::default()
    };
    if !engine.list(unfinished, 1).await?.is_empty() {
        return Ok(());
    }
    let jobs = files.chunks(FILES_PER_JOB).map(|files| {
        let arguments = Arguments {
            osd,
            files: files.iter().map(FileArgument::from).collect(),
        };
        NewJob {
            kind: kind.to_owned(),
            user: SYSTEM.to_owned(),
            resource: name.to_owned(),
            arguments: json!(arguments),
            expected: Progress {
                bytes: files.iter().map(|file| file.length).sum(),
                items: files.len() as u64,
                failed: 0,
            },
            ..NewJob::default()
        }
    });
    let jobs = engine.submit_all(jobs.collect()).await?.len();
    info!(
        kind,
        device = name,
        files = files.len(),
        jobs,
        "jobs for archives begin"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::census::{DeviceCensus, Tally};
    use super::*;
    use cellar_wire::ids::Fid;

    fn device(total: u64, free: u64, mark: u16) -> OsdListed {
        let mut listed = OsdListed {
            entry: Default::default(),
            state: Default::default(),
            dead: false,
        };
        (listed.entry.id, listed.entry.flags) = (7, OSD_WIPEABLE);
        listed.entry.marks.high = mark;
        (listed.state.total, listed.state.free) = (total, free);
        listed
    }

    /// A census with ten files of 10,000 bytes each on device 7.
    fn census() -> Census {
        let file = Candidate {
            fid: Fid::default(),
            length: 10_000,
            age: 1,
            frees: 10_000,
            copies: 1,
        };
        let device = DeviceCensus {
            online: Tally {
                files: 10,
                bytes: 100_000,
            },
            candidates: vec![file; 10],
            ..DeviceCensus::default()
        };
        let mut census = Census::default();
        census.devices.insert(7, device);
        census
    }

    #[test]
    fn a_device_is_wiped_down_to_its_low_mark() {
        // 100 of 120 KB are used; the mark is at 60, the low mark at 54.
        let files = to_wipe(&device(120_000, 20_000, 500), &census());
        assert_eq!(files.len(), 5);
        let mut lower = device(120_000, 20_000, 500);
        lower.entry.marks.low = 300;
        assert_eq!(to_wipe(&lower, &census()).len(), 7, "down to 36 KB");
        assert_eq!(to_wipe(&device(120_000, 20_000, 900), &census()).len(), 0);
        assert_eq!(to_wipe(&device(120_000, 20_000, 0), &census()).len(), 0);
    }

    #[test]
    fn a_server_frees_its_share_of_a_device() {
        // Half of the used bytes belong to other servers.
        let files = to_wipe(&device(240_000, 40_000, 500), &census());
        assert_eq!(files.len(), 5);
        let mut other = device(120_000, 20_000, 500);
        other.entry.flags = 0;
        assert!(to_wipe(&other, &census()).is_empty(), "not wipeable");
        other.entry.flags = OSD_WIPEABLE;
        other.dead = true;
        assert!(
            to_wipe(&other, &census()).is_empty(),
            "not known to be full"
        );
    }
}
