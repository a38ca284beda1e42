//! `bos salvage`: lets an overseer run OpenAFS's salvager on a volume, a partition or a server.
//!
//! A partition or a whole server is salvaged while its file server is stopped, and a volume while
//! it runs. The salvager is a cron instance, which disappears when it has ended. A partition of
//! Cellar has no salvager and needs none; its overseer refuses to stop the file server.

use std::io::Write;
use std::time::Duration;

use cellar_admin::bos::Act;
use cellar_admin::vos::Volumes;

use super::super::partition;
use super::{Bos, coded};
use crate::failure::{Failure, Outcome};
use crate::output::{out, outln};

/// The name of the salvager's instance.
const INSTANCE: &str = "salvage-tmp";
/// The path of the salvager, in the form of the protocol.
const SALVAGER: &str = "/usr/afs/bin/salvager";
/// The program that asks the salvager of a demand-attach server for a volume.
const SALVAGE_SERVER: &str = "/usr/afs/bin/salvageserver";
/// The salvager's log.
const LOG: &str = "/usr/afs/logs/SalvageLog";
/// Interval at which the command checks whether the salvager has ended.
const LOOK: Duration = Duration::from_secs(1);
/// EINVAL, the exit status of OpenAFS's `bos` if switches are missing.
const INVALID: u8 = 22;

/// The object to salvage.
enum SalvageTarget {
    Server,
    Partition(String),
    Volume(String, String),
}

impl Bos<'_> {
    pub(super) async fn salvage(&self) -> Outcome {
        let given = self.invocation;
        let wrong = |reason: &str| Err(Failure::new(reason).coded(u8::MAX));
        let dafs = self.overseer.is_to_run("dafs").await? == Some(true);
        let service = if dafs { "dafs" } else { "fs" };
        let (part, volume) = (given.get("partition"), given.get("volume"));
        if part.is_none() && volume.is_some() {
            return wrong("must specify partition to salvage individual volume.");
        }
        if given.has("showlog") && given.has("file") {
            return wrong("can not specify both -file and -showlog.");
        }
        if given.has("all") && part.is_some() {
            return wrong("can not specify -all with other flags.");
        }
        if dafs && !given.has("forceDAFS") {
            return Err(Failure::new(
                "This is a demand attach fileserver.  Are you sure you want to proceed with a manual salvage? \
                 must specify -forceDAFS flag in order to proceed.",
            )
            .coded(INVALID));
        }
        if given.has("salvagedirs") && !given.has("all") {
            return Err(Failure::new("-salvagedirs only possible with -all.").coded(INVALID));
        }
        let what = match (part, volume) {
            (None, _) if given.has("all") => SalvageTarget::Server,
            (None, _) => return wrong("must specify -all switch to salvage all partitions."),
            (Some(text), volume) => {
                let Ok(part) = partition(text) else {
                    let reason = format!("can't interpret {text} as partition ID.");
                    return Err(Failure::new(reason).coded(u8::MAX));
                };
                match volume {
                    None => SalvageTarget::Partition(part.to_string()),
                    Some(volume) => {
                        SalvageTarget::Volume(part.to_string(), self.volume_number(volume).await?)
                    }
                }
            }
        };
        let stops = match &what {
            SalvageTarget::Volume(..) => false,
            _ => self.overseer.is_to_run(service).await? != Some(false),
        };
        if stops {
            outln!("bos: shutting down '{service}'.");
            if let Err(error) = self.overseer.act(&Act::StopForNow(service)).await {
                let what = match &what {
                    SalvageTarget::Server => format!("failed to stop '{service}'"),
                    _ => format!("can't stop '{service}'"),
                };
                return Err(refused(&what, &error));
            }
            if self.overseer.act(&Act::Wait).await.is_err() {
                eprintln!("bos: failed to wait for file server shutdown, continuing.");
            }
        }
        outln!("Starting salvage.");
        let salvaged = self.run_salvager(&what, dafs).await;
        if stops {
            outln!("bos: restarting '{service}'.");
            let started = self.overseer.act(&Act::StartForNow(service)).await;
            started.map_err(coded)?;
        }
        salvaged
    }

    /// The number of a volume. The salvager does not know names.
    async fn volume_number(&self, volume: &str) -> Outcome<String> {
        if volume.parse::<u32>().is_ok() {
            return Ok(volume.to_owned());
        }
        let volumes = Volumes::new(&self.session.client, &self.session.cell);
        let entry = volumes.entry(volume).await.map_err(|_| {
            Failure::new(format!("can't interpret {volume} as volume name or ID")).coded(u8::MAX)
        })?;
        let id = match volume {
            name if name.ends_with(".readonly") => entry.read_only,
            name if name.ends_with(".backup") => entry.backup,
            _ => entry.read_write,
        };
        Ok(id.0.to_string())
    }

    async fn run_salvager(&self, what: &SalvageTarget, dafs: bool) -> Outcome {
        let given = self.invocation;
        let mut line = match what {
            SalvageTarget::Server => format!("{SALVAGER} -force "),
            SalvageTarget::Partition(part) => format!("{SALVAGER} -force {part}"),
            SalvageTarget::Volume(part, volume) if dafs => {
                format!("{SALVAGE_SERVER} -client {part} {volume}")
            }
            SalvageTarget::Volume(part, volume) => format!("{SALVAGER} {part} {volume}"),
        };
        // The salvager of a demand-attach server has its own settings for a single volume.
        if !(dafs && matches!(what, SalvageTarget::Volume(..))) {
            for switch in ["parallel", "tmpdir", "orphans"] {
                if let Some(value) = given.get(switch) {
                    line.push_str(&format!(" -{switch} {value}"));
                }
            }
            if given.has("salvagedirs") {
                line.push_str(" -salvagedirs");
            }
        }
        let create = Act::Create {
            name: INSTANCE,
            kind: "cron",
            commands: &[line, "now".to_owned()],
            notifier: None,
        };
        if let Err(error) = self.overseer.act(&create).await {
            return Err(refused("failed to start 'salvager'", &error));
        }
        let mut looks = 0u32;
        while self
            .overseer
            .is_to_run(INSTANCE)
            .await
            .map_err(coded)?
            .is_some()
        {
            tokio::time::sleep(LOOK).await;
            looks += 1;
            if looks.is_multiple_of(5) {
                outln!("bos: waiting for salvage to complete.");
            }
        }
        outln!("bos: salvage completed");
        let file = given.get("file");
        if file.is_none() && !given.has("showlog") {
            return Ok(());
        }
        let log = self.overseer.log(LOG).await.map_err(coded)?;
        match file {
            None => out!("SalvageLog:\n{}", String::from_utf8_lossy(&log)),
            Some(path) => {
                let write = || {
                    let mut target = cellar_private::create(path.as_ref())?;
                    target.write_all(b"SalvageLog:\n")?;
                    target.write_all(&log)
                };
                write().map_err(|cause| {
                    Failure::new(format!(
                        "can't open specified SalvageLog file '{path}': {cause}"
                    ))
                })?;
            }
        }
        Ok(())
    }
}

/// The failure of a step that an overseer refused.
fn refused(what: &str, error: &cellar_admin::Error) -> Failure {
    let code = super::low_byte(error);
    Failure::new(format!("{what} ({})", error.reason())).coded(code)
}
