//! Operations on many volumes: backupsys, and move of several volumes.
//!
//! Several volumes are in work at the same time, up to a bound. A volume that fails is reported at
//! once and does not delay the others.

use cellar_admin::vos::job::{JobContext, Stop, Unwatched};
use cellar_admin::vos::{Entry, EntryFilter, Location, MoveOptions, site_flags};
use cellar_dbserver::vl::Pattern as NamePattern;
use futures_util::StreamExt;
use serde_json::json;

use super::super::{number, partition, print_json};
use super::Vos;
use crate::failure::{Failure, Outcome};
use crate::output::{out, outln};
use crate::progress::Progress;

/// Number of volumes moved at the same time, by default.
const MOVES: usize = 8;
/// Number of volumes backed up at the same time, by default.
const BACKUPS: usize = 16;
/// The largest number that -parallel accepts.
const PARALLEL_MAX: usize = 64;

/// A beginning of names, or a regular expression if it starts with `^`.
enum Pattern {
    Prefix(String),
    Expression(NamePattern),
}

impl Pattern {
    fn parse(text: &str) -> Outcome<Self> {
        if !text.starts_with('^') {
            return Ok(Self::Prefix(text.to_owned()));
        }
        // OpenAFS's expressions match a beginning of the name.
        let whole = match text.ends_with('$') {
            true => text.to_owned(),
            false => format!("{text}.*"),
        };
        NamePattern::parse(whole.as_bytes())
            .map(Self::Expression)
            .map_err(|_| {
                Failure::usage(format!(
                    "Unrecognizable -prefix regular expression: '{text}'"
                ))
            })
    }

    fn fits(&self, name: &str) -> bool {
        match self {
            Self::Prefix(prefix) => name.starts_with(prefix),
            Self::Expression(expression) => expression.matches(name.as_bytes()),
        }
    }
}

impl Vos<'_> {
    fn parallel(&self, usual: usize) -> Outcome<usize> {
        let count = match self.invocation.get("parallel") {
            Some(text) => number("-parallel", text)?,
            None => usual,
        };
        if (1..=PARALLEL_MAX).contains(&count) {
            Ok(count)
        } else {
            Err(Failure::usage(format!(
                "-parallel is a number from 1 to {PARALLEL_MAX}"
            )))
        }
    }

    pub(super) async fn move_volumes(&self) -> Outcome {
        let options = MoveOptions {
            live: self.invocation.has("live"),
        };
        let named = self.invocation.list("id");
        for name in named {
            let entry =
                self.volumes
                    .entry(name)
                    .await
                    .map_err(|error| match name.parse::<u32>() {
                        Ok(_) => error.into(),
                        Err(_) => super::argument(error),
                    })?;
            if self.id_of(name, Some(&entry))? != entry.read_write {
                return Err(Failure::new(format!(
                    "Only RW volume can be moved, and {name} is not a RW volume"
                )));
            }
        }
        let from = match (
            self.invocation.has("fromserver"),
            self.invocation.has("frompartition"),
        ) {
            (true, true) => Some(self.end("fromserver", "frompartition").await?),
            (false, false) => None,
            _ => {
                return Err(Failure::usage(
                    "-fromserver and -frompartition must be given together",
                ));
            }
        };
        let to = self.end("toserver", "topartition").await?;
        let volumes: Vec<(String, Location)> = match (named, from) {
            ([], Some(from)) if self.invocation.has("all") => {
                let filter = EntryFilter {
                    server: Some(from.server.into()),
                    partition: Some(from.partition),
                    locked: false,
                };
                let entries = self.volumes.entries(filter).await?;
                let here = entries
                    .into_iter()
                    .filter(|entry| location(entry) == Some(from));
                here.map(|entry| (entry.name, from)).collect()
            }
            ([], _) => {
                return Err(Failure::usage(
                    "-id is missing; -all with -fromserver and -frompartition selects every volume there",
                ));
            }
            (_, _) if self.invocation.has("all") => {
                return Err(Failure::usage("-id and -all cannot be combined"));
            }
            (named, Some(from)) => named.iter().map(|name| (name.clone(), from)).collect(),
            (named, None) => {
                let mut found = Vec::new();
                for name in named {
                    let entry = self.volumes.entry(name).await?;
                    let at = location(&entry).ok_or_else(|| {
                        Failure::new(format!("volume {name} has no read-write site"))
                    })?;
                    found.push((name.clone(), at));
                }
                found
            }
        };
        match &volumes[..] {
            [] => {
                if self.json() {
                    return print_json(&json!({ "moved": [], "failed": [] }));
                }
                outln!("No volumes to move");
                Ok(())
            }
            [(name, from)] if !self.invocation.has("all") => {
                self.move_one(name, *from, to, options).await
            }
            _ => self.move_many(volumes, to, options).await,
        }
    }

    async fn move_many(
        &self,
        volumes: Vec<(String, Location)>,
        to: Location,
        options: MoveOptions,
    ) -> Outcome {
        let parallel = self.parallel(MOVES)?;
        let progress = Progress::count(volumes.len() as u64);
        let stop = Stop::default();
        let work = async {
            let (mut moved, mut failed) = (Vec::new(), Vec::new());
            let mut without_backup = 0;
            let jobs = volumes.iter().map(|(name, from)| {
                let context = JobContext::new(&Unwatched, &stop);
                async move {
                    let done = self
                        .volumes
                        .move_volume(name, *from, to, options, context)
                        .await;
                    (name, done)
                }
            });
            let mut done = futures_util::stream::iter(jobs).buffer_unordered(parallel);
            while let Some((name, outcome)) = done.next().await {
                progress.name(name);
                progress.add(1);
                match outcome {
                    Ok(one) => {
                        if !self.json() {
                            progress.out(&format!("{name} moved from {} to {to}", one.from));
                        }
                        if one.backup_removed.is_some() {
                            without_backup += 1;
                        }
                        moved.push(one);
                    }
                    // Volumes that were not started yet are not reported one by one.
                    Err(cellar_admin::Error::Interrupted) => {}
                    Err(error) => {
                        progress.say(&format!("{name}: {error}"));
                        failed.push(name.clone());
                    }
                }
            }
            if without_backup > 0 {
                progress.say(&format!(
                    "The backup volumes of {without_backup} moved volumes were removed; 'vos backupsys' makes new ones"
                ));
            }
            (moved, failed)
        };
        let interrupted = async {
            let pressed = tokio::signal::ctrl_c().await;
            stop.ask();
            progress.say("stopping; moves under way are finished or undone");
            pressed
        };
        let mut work = std::pin::pin!(work);
        let (moved, failed) = tokio::select! {
            done = &mut work => done,
            _ = interrupted => work.await,
        };
        progress.finish();
        if self.json() {
            print_json(&json!({ "moved": moved, "failed": failed }))?;
        } else {
            outln!(
                "Total volumes moved: {}; failed to move: {}",
                moved.len(),
                failed.len()
            );
        }
        if stop.is_asked() {
            return Err(Failure::interrupted());
        }
        Failure::if_any(!failed.is_empty())
    }

    pub(super) async fn backupsys(&self) -> Outcome {
        let patterns = |switch: &str| -> Outcome<Vec<Pattern>> {
            let given = self.invocation.list(switch);
            given.iter().map(|text| Pattern::parse(text)).collect()
        };
        let (wanted, others) = (patterns("prefix")?, patterns("xprefix")?);
        let exclude = self.invocation.has("exclude");
        let dry_run = self.invocation.has("dryrun");
        let parallel = self.parallel(BACKUPS)?;
        let filter = self.filter(false)?;
        let entries = self.volumes.entries(filter).await?;
        let fits = |patterns: &[Pattern], name: &str| patterns.iter().any(|p| p.fits(name));
        let chosen = |entry: &Entry| {
            let named = wanted.is_empty() || fits(&wanted, &entry.name);
            let chosen = (named && !fits(&others, &entry.name)) != exclude;
            let at = location(entry);
            let here = at.is_some_and(|at| {
                filter.server.is_none_or(|server| server == at.server)
                    && filter.partition.is_none_or(|part| part == at.partition)
            });
            chosen && here && entry.flags & cellar_admin::vos::entry_flags::RW_EXISTS != 0
        };
        let chosen: Vec<_> = entries.into_iter().filter(chosen).collect();
        let by_place = self.invocation.has("server") || self.invocation.has("partition");
        if !self.json() && (by_place || self.invocation.has("verbose")) {
            self.announce(dry_run)?;
        }
        if dry_run {
            let names: Vec<_> = chosen.iter().map(|entry| &entry.name).collect();
            if self.json() {
                return print_json(&json!({ "would": names }));
            }
            for name in &names {
                outln!("     {name}");
            }
            outln!("done");
            outln!(
                "Total volumes backed up: {}; failed to backup: 0",
                names.len()
            );
            return Ok(());
        }
        let progress = Progress::count(chosen.len() as u64);
        let jobs = chosen
            .iter()
            .map(async |entry| (entry, self.volumes.backup_entry(entry).await));
        let mut jobs = futures_util::stream::iter(jobs).buffer_unordered(parallel);
        let (mut done, mut failed) = (0usize, Vec::new());
        while let Some((entry, outcome)) = jobs.next().await {
            progress.name(&entry.name);
            progress.add(1);
            match outcome {
                Ok(_) => done += 1,
                Err(error) => {
                    progress.say(&error.to_string());
                    if !self.json() {
                        outln!("Could not backup {}", entry.name);
                    }
                    failed.push(entry.name.clone());
                }
            }
        }
        progress.finish();
        if self.json() {
            print_json(&json!({ "backed_up": done, "failed": failed }))?;
        } else {
            outln!("done");
            outln!(
                "Total volumes backed up: {done}; failed to backup: {}",
                failed.len()
            );
        }
        // The failures were reported. OpenAFS's vos exits with 0 then, and scripts rely on that.
        Ok(())
    }

    /// Prints which volumes are backed up, in the form of OpenAFS's `vos`.
    fn announce(&self, dry_run: bool) -> Outcome {
        let mut line = match dry_run {
            true => "Would have backed up volumes".to_owned(),
            false => "Backing up volumes".to_owned(),
        };
        let part = self.invocation.get("partition");
        if let Some(server) = self.invocation.get("server") {
            line.push_str(&format!(" on server {server}"));
        } else if part.is_some() {
            line.push_str(" for all servers");
        }
        if let Some(text) = part {
            line.push_str(&format!(" partition {}", partition(text)?));
        }
        let named = |switch: &str, or: &str| {
            let kind = |text: &String| match text.starts_with('^') {
                true => format!("expression '{text}'"),
                false => format!("prefix '{text}'"),
            };
            let given = self.invocation.list(switch).iter().map(kind);
            given.collect::<Vec<_>>().join(&format!(" {or} "))
        };
        let exclude = self.invocation.has("exclude");
        let (prefix, others) = (
            self.invocation.has("prefix"),
            self.invocation.has("xprefix"),
        );
        if prefix || others {
            let first = if prefix { "prefix" } else { "xprefix" };
            let not = exclude == prefix;
            let or = if not { "nor" } else { "or" };
            let not = if not { "do not " } else { "" };
            line.push_str(&format!(" which {not}match {}", named(first, or)));
        }
        if prefix && others {
            let how = if exclude { "adding" } else { "removing" };
            let others = named("xprefix", "or");
            line.push_str(&format!(" {how} those which match {others}"));
        }
        out!("{line} .. ");
        if self.invocation.has("verbose") {
            outln!();
        }
        Ok(())
    }
}

/// The location of an entry's read-write volume.
fn location(entry: &Entry) -> Option<Location> {
    let site = entry
        .sites
        .iter()
        .find(|site| site.flags & site_flags::READ_WRITE != 0)?;
    Location::new(site.server, site.partition).ok()
}
