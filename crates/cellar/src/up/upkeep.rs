//! Background upkeep of partitions and objects, and its intervals: options of `cellar up` and
//! `cellar osd serve`.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use cellar_celldb::Embedded;
use cellar_fileserver::{CellServers, FileServer, HsmConfig, PinTable, RecallLimit, Upkeep};
use cellar_osd::Config;
use cellar_rpc::Runtime;

use super::recall_limit;
use crate::cell_directory::CellDirectory;
use crate::failure::{Failure, Outcome};
use crate::quantities;

/// The upkeep by a file server.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FileServerUpkeep {
    /// Time of silence of an object storage device after which this file server rebuilds its
    /// objects on other devices.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = quantities::time_option)]
    repair_after: Duration,
    /// Largest rate of this file server's repairs of objects, in MiB a second; 0: unlimited.
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    repair_rate: u32,
    /// Interval at which this file server removes objects that no volume names; 0: only 'cellar osd
    /// collect' removes them.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = quantities::time_option)]
    collect_every: Duration,
    /// Age below which such objects are kept.
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = quantities::time_option)]
    collect_grace: Duration,
    /// Interval at which this file server examines its files for copies to archives and for wiping;
    /// 0: only commands copy and wipe files.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = quantities::time_option)]
    archive_every: Duration,
    /// Largest rate at which this file server copies to archives by itself, in MiB a second; 0:
    /// unlimited.
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    archive_rate: u32,
    /// How long archives keep the copies of removed files, and of bytes that were superseded; 0:
    /// they do not ('cellar fs oldversion').
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = quantities::time_option)]
    archive_keep: Duration,
    /// Time after which this file server reads a copy in an archive back and compares it again; 0:
    /// only 'cellar hsm verify' does it.
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = quantities::time_option)]
    verify_every: Duration,
    /// Largest rate at which this file server reads copies back by itself, in MiB a second; 0:
    /// unlimited.
    #[arg(long, value_name = "MIB", default_value_t = 8)]
    verify_rate: u32,
    /// Limits recalls of wiped files; may be repeated. SUBJECT is user:NAME, user:* (each user),
    /// group:NAME or volume:PATTERN; AMOUNT is a size, a number of files ('100files'), or both with
    /// a comma. Example: user:*=2T/1d.
    #[arg(long, value_name = "SUBJECT=AMOUNT/TIME", value_parser = recall_limit::parse)]
    recall_limit: Vec<RecallLimit>,
}

impl FileServerUpkeep {
    /// The limits of recalls.
    pub(super) fn recall_limits(&self) -> Vec<RecallLimit> {
        self.recall_limit.clone()
    }

    /// Opens the database of the jobs, and makes the settings of hierarchical storage.
    pub(super) fn hsm(
        &self,
        directory: &CellDirectory,
        pins: Arc<dyn PinTable>,
    ) -> Outcome<HsmConfig> {
        let path = directory.jobs();
        let at = |cause: &dyn Display| Failure::new(format!("{}: {cause}", path.display()));
        cellar_private::directory(&path).map_err(|cause| at(&cause))?;
        let jobs = Embedded::open(&path.join("jobs.redb")).map_err(|cause| at(&cause))?;
        Ok(HsmConfig {
            jobs: Arc::new(jobs),
            pins,
            interval: self.archive_every,
            copy_rate: mib(self.archive_rate),
            verify_interval: self.verify_every,
            verify_rate: mib(self.verify_rate),
        })
    }

    /// The time for which archives keep older bytes.
    pub(super) fn archive_keep(&self) -> Duration {
        self.archive_keep
    }

    /// The options as the file server's settings.
    pub(super) fn upkeep(&self, servers: Arc<dyn CellServers>) -> Upkeep {
        Upkeep {
            grace: self.collect_grace,
            collect_interval: self.collect_every,
            repair_delay: self.repair_after,
            repair_rate: mib(self.repair_rate),
            ..Upkeep::new(servers)
        }
    }
}

/// The scrubs of partitions and devices, and removed objects.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Scrubbing {
    /// Interval of scrubs, which read and verify everything on the partitions and devices; 0: only
    /// 'cellar partition scrub' and 'cellar osd scrub' do it.
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = quantities::time_option)]
    scrub_every: Duration,
    /// Largest rate at which a scrub reads each partition and device, in MiB a second.
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    scrub_rate: u32,
    /// How long a device with '-dont_unlink' keeps removed objects; less when the device is full.
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = quantities::time_option)]
    retention: Duration,
}

impl Scrubbing {
    /// Starts the regular scrubs of a file server's partitions.
    pub(super) fn start(&self, fileserver: &FileServer, runtime: &Runtime) {
        fileserver.scrub_regularly(runtime, self.scrub_every, mib(self.scrub_rate));
    }

    /// Enters the options into the settings of a server.
    pub(crate) fn set(&self, config: &mut Config) {
        config.scrub_interval = self.scrub_every;
        config.scrub_rate = mib(self.scrub_rate);
        config.retention = self.retention;
        // Purge often enough that a retention of minutes is not exceeded by ten more.
        let often = (self.retention / 8).max(Duration::from_secs(1));
        config.purge_interval = config.purge_interval.min(often);
    }
}

fn mib(number: u32) -> u64 {
    u64::from(number) << 20
}
