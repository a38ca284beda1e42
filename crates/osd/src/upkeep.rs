//! Background work on the devices: scrubs, and the end of soft deletes after the retention or when
//! the device is full.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use cellar_volume::objects::{OLDEST_MAX, ObjectStore};
use tokio::time::{Instant, MissedTickBehavior};

use crate::device::Device;
use crate::limits::{ROOM_BYTES, ROOM_INTERVAL, SCRUB_INTERVAL_LEAST};
use crate::server::Server;
use crate::statistics::add;

impl Server {
    /// Runs until the server stops.
    pub(crate) async fn run_upkeep(self: Arc<Self>) {
        let every = self.config.scrub_interval;
        let mut ticks =
            tokio::time::interval(self.config.purge_interval.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut looks = tokio::time::interval(ROOM_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first scrub is due a fraction of the interval after the start, so a server that
        // restarts often scrubs too.
        let mut scrubs =
            tokio::time::interval_at(Instant::now() + every / 64, every.max(SCRUB_INTERVAL_LEAST));
        scrubs.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let scrubs_at_all = self.config.scrub_rate > 0 && !every.is_zero();
        while !self.is_stopping() {
            tokio::select! {
                _ = ticks.tick() => self.purge_old().await,
                _ = looks.tick() => self.make_room().await,
                () = self.lacks_room.notified() => self.make_room().await,
                _ = scrubs.tick(), if scrubs_at_all => {
                    for device in &self.devices {
                        self.begin_scrub(device, self.config.scrub_rate);
                    }
                }
            }
        }
    }

    /// Ends the soft deletes that are older than the retention.
    async fn purge_old(&self) {
        let before = self.now().saturating_sub(self.config.retention.as_secs());
        for device in &self.devices {
            let Some(store) = device.store().cloned() else {
                self.purge_archive(device, before).await;
                continue;
            };
            match cellar_rpc::blocking(move || store.purge(before)).await {
                Ok((purged, _)) => add(&self.statistics.purged, purged.into()),
                Err(error) => {
                    tracing::warn!(osd = device.id, name = device.name(), %error, "cannot end soft deletes")
                }
            }
        }
    }

    /// Ends soft deletes on full devices, the oldest first: new data takes precedence over objects
    /// that could be restored.
    async fn make_room(&self) {
        for device in &self.devices {
            let Some(store) = device.store().cloned() else {
                check_archive(device);
                continue;
            };
            match cellar_rpc::blocking(move || make_room(&store)).await {
                Ok(0) => {}
                Ok(purged) => {
                    add(&self.statistics.purged, purged.into());
                    tracing::info!(
                        osd = device.id,
                        name = device.name(),
                        purged,
                        "the device was full: soft deletes ended early"
                    );
                }
                Err(error) => {
                    tracing::warn!(osd = device.id, name = device.name(), %error, "cannot end soft deletes")
                }
            }
        }
    }

    /// Starts a scrub of a device, unless one is running.
    pub(crate) fn begin_scrub(self: &Arc<Self>, device: &Arc<Device>, rate: u64) {
        let Some(store) = device.store().cloned() else {
            return;
        };
        {
            let mut scrub = device.scrub.lock();
            if scrub.running {
                return;
            }
            scrub.running = true;
            scrub.report = Default::default();
        }
        let (server, device) = (self.clone(), device.clone());
        // A scrub has its own thread: it takes days, and the pool's threads are for calls.
        let thread = std::thread::Builder::new().name(format!("osd-scrub-{}", device.id));
        let scrubbed = device.clone();
        let begun = thread.spawn(move || {
            let outcome = store.scrub(rate, &mut |report| {
                scrubbed.scrub.lock().report = report.clone();
                match server.is_stopping() {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            });
            let mut scrub = scrubbed.scrub.lock();
            scrub.running = false;
            match outcome {
                Ok(report) => scrub.report = report,
                Err(error) => tracing::error!(osd = scrubbed.id, name = scrubbed.name(), %error, "the scrub ended early"),
            }
        });
        if let Err(error) = begun {
            tracing::error!(osd = device.id, name = device.name(), %error, "cannot start a scrub");
            device.scrub.lock().running = false;
        }
    }
}

/// Asks an archive, in the background, whether it is up.
fn check_archive(device: &Arc<Device>) {
    let device = device.clone();
    tokio::task::spawn_local(async move {
        if let Some(archive) = device.archive() {
            archive.check().await;
        }
    });
}

/// Ends as many soft deletes as a full device needs; returns their number.
fn make_room(store: &ObjectStore) -> cellar_volume::Result<u32> {
    let mut all = 0;
    loop {
        let usage = store.usage()?;
        let wanted = ROOM_BYTES.min(usage.total / 20);
        if usage.removed == 0 || usage.free >= wanted || store.stopped().is_some() {
            return Ok(all);
        }
        let (purged, _, durable) = store.purge_oldest(wanted - usage.free)?;
        durable.wait()?;
        // Their space is free only after their pieces are gone, which also matters for the next
        // check of the free space.
        store.reap_now()?;
        all += purged;
        if (purged as usize) < OLDEST_MAX {
            return Ok(all);
        }
    }
}
