//! release, move, copy and shadow: long jobs, which show their progress and can be interrupted.
//!
//! Ctrl-C asks a job to stop. The job undoes what it can, and its report becomes the command's
//! error. A second Ctrl-C exits at once and prints how to continue.

use std::pin::pin;
use std::time::Duration;

use cellar_admin::vos::job::{JobContext, Stop, Watcher};
use cellar_admin::vos::{
    CopyOptions, Location, MoveOptions, Moved, NEW_NAME, ReleaseOptions, Released, ShadowOptions,
};
use cellar_wire::ids::VolumeId;
use serde_json::json;

use super::super::print_json;
use super::Vos;
use crate::failure::{Failure, Outcome};
use crate::output::outln;
use crate::progress::Progress;

/// Interval at which a server is asked for its progress.
const LOOK: Duration = Duration::from_secs(1);

/// Runs a job to its end, or until Ctrl-C has been pressed twice.
pub(crate) async fn run<T>(
    watcher: &dyn Watcher,
    job: impl AsyncFnOnce(JobContext<'_>) -> cellar_admin::Result<T>,
) -> Outcome<T> {
    let stop = Stop::default();
    let mut job = pin!(job(JobContext::new(watcher, &stop)));
    loop {
        tokio::select! {
            done = &mut job => {
                return match done {
                    Err(cellar_admin::Error::Interrupted) => Err(Failure::interrupted()),
                    other => Ok(other?),
                };
            }
            pressed = tokio::signal::ctrl_c() => {
                pressed?;
                if stop.is_asked() {
                    watcher.say(
                        "stopped at once: the VLDB entry stays locked. Repeat the command to continue (vos move), or \
                         repeat it with -resume (vos release)",
                    );
                    return Err(Failure::interrupted());
                }
                stop.ask();
                watcher.say("stopping and cleaning up; press Ctrl-C again to stop at once");
            }
        }
    }
}

/// Shows a job on a progress bar.
struct Show<'a> {
    progress: &'a Progress,
    verbose: bool,
}

impl Watcher for Show<'_> {
    fn done(&self, step: cellar_admin::vos::job::Step) -> cellar_admin::vos::job::Watched<'_> {
        if self.verbose {
            match step.at {
                Some(at) => self.progress.say(&format!("{} {at}", step.name)),
                None => self.progress.say(step.name),
            }
        }
        Box::pin(std::future::ready(()))
    }

    fn say(&self, line: &str) {
        self.progress.say(line);
    }
}

/// Reports the backup volume that a move has removed.
pub(super) fn report_backup(moved: &Moved) {
    if let Some(backup) = moved.backup_removed {
        eprintln!(
            "The backup volume {} of {} was removed; 'vos backup {1}' makes a new one",
            backup.0, moved.name
        );
    }
}

impl Vos<'_> {
    /// Runs a job that sends a volume from a server. The bar shows the bytes sent.
    async fn show<T>(
        &self,
        name: &str,
        from: Option<(Location, VolumeId)>,
        job: impl AsyncFnOnce(JobContext<'_>) -> cellar_admin::Result<T>,
    ) -> Outcome<T> {
        let whole = match from {
            Some((at, id)) => self
                .volumes
                .volume_on(at.server.into(), at.partition, id, false)
                .await
                .ok()
                .map(|info| u64::from(info.size_kib) * 1024),
            None => None,
        };
        let progress = Progress::bytes(whole);
        progress.name(name);
        let watcher = Show {
            progress: &progress,
            verbose: self.invocation.has("verbose"),
        };
        let look = async {
            let Some((at, id)) = from else {
                return std::future::pending::<()>().await;
            };
            loop {
                tokio::time::sleep(LOOK).await;
                let sent = self.volumes.bytes_sent(at.server.into(), id).await;
                if let Ok(Some(bytes)) = sent {
                    progress.at(bytes);
                }
            }
        };
        let done = tokio::select! {
            done = run(&watcher, job) => done,
            () = look => Err(Failure::interrupted()),
        };
        progress.finish();
        done
    }

    pub(super) async fn release(&self) -> Outcome {
        let options = ReleaseOptions {
            full: self.invocation.has("force"),
            resume: self.invocation.has("resume"),
        };
        let Some(volume) = self.invocation.get("id") else {
            if !options.resume {
                return Err(Failure::usage(
                    "Missing required parameter '-id'; only -resume works without it, for all unfinished releases",
                ));
            }
            return self.resume_all(options).await;
        };
        let released = self.release_one(volume, options).await?;
        if self.json() {
            print_json(&released)?;
        }
        self.released(volume, &released)
    }

    async fn resume_all(&self, options: ReleaseOptions) -> Outcome {
        let unfinished = self.volumes.unfinished_releases().await?;
        let mut all = Vec::new();
        let mut failed = false;
        for entry in &unfinished {
            match self.release_one(&entry.name, options).await {
                Ok(released) => {
                    failed |= self.released(&entry.name, &released).is_err();
                    all.push(released);
                }
                Err(failure) => {
                    eprintln!("{}: {failure}", entry.name);
                    failed = true;
                }
            }
        }
        if self.json() {
            print_json(&all)?;
        } else if unfinished.is_empty() {
            outln!("No release is unfinished");
        }
        Failure::if_any(failed)
    }

    async fn release_one(&self, volume: &str, options: ReleaseOptions) -> Outcome<Released> {
        let entry = self.volumes.entry(volume).await?;
        if self.id_of(volume, Some(&entry))? != entry.read_write {
            return Err(Failure::new(format!("{volume} not a RW volume")));
        }
        let from = match entry.read_write_site() {
            Some(site) => Some((Location::new(site.server, site.partition)?, entry.read_only)),
            None => None,
        };
        self.show(&entry.name, from, async |context| {
            self.volumes.release(&entry.name, options, context).await
        })
        .await
    }

    fn released(&self, volume: &str, released: &Released) -> Outcome {
        let failed: Vec<_> = released
            .sites
            .iter()
            .filter_map(|site| Some((site.at, site.error.as_ref()?)))
            .collect();
        if failed.is_empty() {
            if !self.json() {
                if released.resumed && released.sites.is_empty() {
                    outln!("Volume {volume} has no unfinished release");
                } else {
                    outln!("Released volume {volume} successfully");
                }
            }
            return Ok(());
        }
        eprintln!(
            "The volume {volume} could not be released to the following {} sites:",
            failed.len()
        );
        for (at, error) in &failed {
            eprintln!("\t{:>35} {}: {error}", at.server, at.partition);
        }
        if released.unfinished {
            eprintln!(
                "Clients use the sites that have the new version, or a site with the old one. 'cellar vos release {volume} -resume' \
                 updates the failed sites"
            );
        }
        Failure::if_any(true)
    }

    pub(super) async fn copy(&self) -> Outcome {
        let volume = self.invocation.required("id");
        let id = self.volume(volume).await.map_err(super::argument)?;
        let name = self.invocation.required("toname");
        let free = self.volumes.check_new_name(name).await;
        free.map_err(super::argument)?;
        let (from, to) = self.ends().await?;
        let options = self.copy_options();
        let copy = self
            .show(volume, Some((from, id)), async |context| {
                self.volumes
                    .copy_volume(id, from, to, name, options, context)
                    .await
            })
            .await?;
        if self.json() {
            return print_json(&json!({ "id": id.0, "copy": copy.0, "name": name }));
        }
        self.print_transfer(id, "copied", from, &format!("{name} on "), to);
        Ok(())
    }

    pub(super) async fn shadow(&self) -> Outcome {
        let volume = self.invocation.required("id");
        let id = self.volume(volume).await.map_err(super::argument)?;
        let (from, to) = self.ends().await?;
        if let Some(name) = self.invocation.get("toname") {
            let checked = cellar_admin::vos::check_volume_name(NEW_NAME, name);
            checked.map_err(super::argument)?;
        }
        let to_id = match self.invocation.get("toid") {
            Some(shadow) => Some(self.volume(shadow).await.map_err(super::argument)?),
            None => None,
        };
        let options = ShadowOptions {
            copy: self.copy_options(),
            name: self.invocation.get("toname").map(str::to_owned),
            id: to_id,
            incremental: self.invocation.has("incremental"),
        };
        let shadow = self
            .show(volume, Some((from, id)), async |context| {
                self.volumes
                    .shadow_volume(id, from, to, &options, context)
                    .await
            })
            .await?;
        if self.json() {
            return print_json(&json!({ "id": id.0, "shadow": shadow.0 }));
        }
        self.print_transfer(id, "shadowed", from, "", to);
        Ok(())
    }

    fn copy_options(&self) -> CopyOptions {
        CopyOptions {
            off_line: self.invocation.has("offline"),
            read_only: self.invocation.has("readonly"),
            live: self.invocation.has("live"),
        }
    }

    /// The present and the future location of a volume, with existing partitions.
    async fn ends(&self) -> Outcome<(Location, Location)> {
        Ok((
            self.end("fromserver", "frompartition").await?,
            self.end("toserver", "topartition").await?,
        ))
    }

    /// One of the two locations.
    pub(super) async fn end(&self, server: &str, partition: &str) -> Outcome<Location> {
        let at = self.place(server, partition).map_err(super::argument)?;
        let there = self.volumes.check_partition(at).await;
        there.map_err(super::argument)?;
        Ok(at)
    }

    /// Moves one volume and shows a progress bar.
    pub(super) async fn move_one(
        &self,
        volume: &str,
        from: Location,
        to: Location,
        options: MoveOptions,
    ) -> Outcome {
        let id = self.volume(volume).await?;
        let moved = self
            .show(volume, Some((from, id)), async |context| {
                self.volumes
                    .move_volume(volume, from, to, options, context)
                    .await
            })
            .await?;
        report_backup(&moved);
        if self.json() {
            return print_json(&moved);
        }
        self.print_transfer(moved.volume, "moved", from, "", to);
        Ok(())
    }

    /// Prints the result in the form of `vos`, with the names of servers from the command line.
    fn print_transfer(
        &self,
        volume: VolumeId,
        how: &str,
        from: Location,
        name: &str,
        to: Location,
    ) {
        let named = |switch: &str, at: Location| {
            let given = self.invocation.get(switch);
            given.map_or_else(|| at.server.to_string(), str::to_owned)
        };
        outln!(
            "Volume {} {how} from {} {} to {name}{} {} ",
            volume.0,
            named("fromserver", from),
            from.partition,
            named("toserver", to),
            to.partition
        );
    }
}
