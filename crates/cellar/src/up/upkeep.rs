//! What servers do with objects by themselves, and how often: options of `cellar up` and `cellar osd serve`.

use std::sync::Arc;
use std::time::Duration;

use cellar_fileserver::{CellServers, Upkeep};
use cellar_osd::Config;

use crate::quantities;

/// What a file server does.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Keeping {
    /// How long an object storage device may be silent before this file server makes anew elsewhere what
    /// was on it.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = quantities::time_option)]
    repair_after: Duration,
    /// MiB a second that this file server's repairs of objects copy, at most; 0: as fast as they can.
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    repair_rate: u32,
    /// Time between two rounds in which this file server collects objects that no volume names; 0: only
    /// 'cellar osd collect' does it.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = quantities::time_option)]
    collect_every: Duration,
    /// These rounds leave alone what was written so short a while ago.
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = quantities::time_option)]
    collect_grace: Duration,
}

impl Keeping {
    /// The same for the file server.
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

/// What a server of devices does.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Scrubbing {
    /// Time from the start of a scrub of the devices, which reads and verifies all that is on them, to the
    /// next; 0: only 'cellar osd scrub' does it.
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = quantities::time_option)]
    scrub_every: Duration,
    /// MiB a second that a scrub reads of each device, at most.
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    scrub_rate: u32,
    /// How long a device with '-dont_unlink' keeps what is removed; less when it is full.
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = quantities::time_option)]
    retention: Duration,
}

impl Scrubbing {
    /// Enters it into the settings of a server.
    pub(crate) fn set(&self, config: &mut Config) {
        config.scrub_interval = self.scrub_every;
        config.scrub_rate = mib(self.scrub_rate);
        config.retention = self.retention;
        // What is kept for minutes only does not stay for ten more.
        let often = (self.retention / 8).max(Duration::from_secs(1));
        config.purge_interval = config.purge_interval.min(often);
    }
}

fn mib(number: u32) -> u64 {
    u64::from(number) << 20
}
