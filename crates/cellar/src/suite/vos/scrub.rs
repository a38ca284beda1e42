//! scrub: verifies the stored data of a server, and restores damaged files from other copies.

use cellar_admin::vos::job::JobContext;
use cellar_admin::vos::{Damage, Location, Refilled};
use cellar_wire::ids::VolumeId;
use serde_json::json;

use super::super::{number, print_json};
use super::Vos;
use super::streams::Speaker;
use crate::failure::{Failure, Outcome};
use crate::output::outln;
use crate::progress::Progress;

impl Vos<'_> {
    pub(super) async fn scrub(&self) -> Outcome {
        let at = self.given_location()?;
        let volume = match self.invocation.get("id") {
            Some(volume) => self.volume(volume).await?,
            None => VolumeId(0),
        };
        let rate = match self.invocation.get("rate") {
            Some(text) => number("-rate", text)?,
            None => 0,
        };
        let progress = Progress::bytes(None);
        progress.name(&at.to_string());
        let speaker = Speaker(&progress);
        let scrubbed = super::jobs::run(&speaker, async |context: JobContext<'_>| {
            let seen = |bytes| progress.at(bytes);
            self.volumes.scrub(at, volume, rate, context, seen).await
        })
        .await;
        progress.finish();
        let scrubbed = scrubbed?;
        let text = !self.json();
        if text {
            for damage in &scrubbed.damages {
                outln!("Damaged: {}: {}", named(damage), damage.cause);
            }
        }
        let mut right = 0;
        let mut refills = Vec::new();
        if self.invocation.has("refill") {
            for damage in &scrubbed.damages {
                let done = self.refill(at, damage).await?;
                right += u64::from(matches!(&done, Ok(done) if done.missing == 0));
                if text {
                    outln!("{}", describe_refill(damage, &done));
                }
                refills.push(match done {
                    Ok(done) => json!(done),
                    Err(error) => json!({ "error": error }),
                });
            }
        }
        if text {
            outln!(
                "Verified {} volumes, {} files and directories, {} KiB: {} damaged",
                scrubbed.volumes,
                scrubbed.vnodes,
                scrubbed.bytes / 1024,
                scrubbed.damaged
            );
        } else {
            let mut shown = json!(scrubbed);
            if self.invocation.has("refill") {
                // In the order of the damages.
                shown["refills"] = refills.into();
            }
            print_json(&shown)?;
        }
        if scrubbed.partial {
            return Err(Failure::new(
                "the scrub was ended before everything was checked",
            ));
        }
        Failure::if_any(scrubbed.damaged > right)
    }

    /// Restores one file. A failure is returned as a value, so that the other files are still
    /// tried.
    async fn refill(&self, at: Location, damage: &Damage) -> Outcome<Result<Refilled, String>> {
        let progress = Progress::bytes(None);
        let speaker = Speaker(&progress);
        let done = super::jobs::run(&speaker, async |context: JobContext<'_>| {
            match self.volumes.refill(at, damage, context).await {
                Err(cellar_admin::Error::Interrupted) => Err(cellar_admin::Error::Interrupted),
                done => Ok(done.map_err(|error| error.to_string())),
            }
        })
        .await;
        progress.finish();
        done
    }
}

/// A damaged file, by volume, fid and path.
fn named(damage: &Damage) -> String {
    let Damage {
        volume,
        vnode,
        uniquifier,
        path,
        ..
    } = damage;
    match volume {
        0 => "an unknown volume".to_owned(),
        _ => format!("volume {volume} vnode {vnode}.{uniquifier} {path}"),
    }
}

/// The result for one damaged file, as a line.
fn describe_refill(damage: &Damage, done: &Result<Refilled, String>) -> String {
    let name = named(damage);
    match done {
        Err(error) => format!("Not refilled: {name}: {error}"),
        Ok(done) if done.missing > 0 => {
            let left = done.missing;
            format!("Not refilled: {name}: {left} of its blocks have no other copy")
        }
        Ok(done) => {
            let sources = done.sources.iter().map(Location::to_string);
            let here = (done.from_here > 0).then(|| "other versions here".to_owned());
            let sources: Vec<String> = sources.chain(here).collect();
            match sources.is_empty() {
                true => format!("Refilled: {name}: already undamaged"),
                false => format!("Refilled: {name}: from {}", sources.join(", ")),
            }
        }
    }
}
