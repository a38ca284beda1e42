//! A command of `cellar hsm` on its way over files: the work on each, the results, the totals.

use std::time::Duration;

use cellar_admin::hsm::{Archives, Copies};
use cellar_admin::osd::Device;
use cellar_admin::table::{Side, Table, short_size};
use cellar_client::{Follow, Node};
use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use serde::Serialize;
use serde_json::json;
use tokio::time::timeout;

use super::super::tree::{Across, Visit, walk};
use super::FileOptions;
use crate::failure::{Failure, Failures, Outcome};
use crate::output::outln;
use crate::progress::Progress;
use crate::session::Session;
use crate::suite::print_json;

/// Digits of a BLAKE3 in a table.
const DIGITS: usize = 12;
/// Number of files in work at the same time.
const FILES_MAX: usize = 8;
/// Interval at which the progress is shown while nothing ends.
const LOOK: Duration = Duration::from_millis(500);

/// The result for one file.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum FileResult {
    /// The command did its work with the file.
    Done,
    /// Nothing had to be done, or in a dry run could be done.
    Unchanged,
    /// The file is not in objects.
    Skipped,
    /// At least one part of the work failed.
    Failed,
}

/// The result for one file, with the reasons of failures.
struct Report {
    path: String,
    result: FileResult,
    errors: Vec<String>,
    /// The length of the file.
    length: u64,
    /// The copies afterwards, if they are known.
    copies: Option<Copies>,
}

impl Report {
    fn json(&self) -> Outcome<serde_json::Value> {
        let failed = |error: serde_json::Error| Failure::new(error.to_string());
        let mut value = match &self.copies {
            Some(copies) => serde_json::to_value(copies).map_err(failed)?,
            None => json!({ "path": self.path, "length": self.length }),
        };
        value["result"] = serde_json::to_value(self.result).map_err(failed)?;
        value["errors"] = json!(self.errors);
        Ok(value)
    }
}

/// The totals of a command.
#[derive(Default)]
struct Totals {
    /// The files for JSON.
    listed: Vec<serde_json::Value>,
    /// Files whose result is known.
    looked: u64,
    done: u64,
    unchanged: u64,
    skipped: u64,
    failed: u64,
    /// Bytes of the files that were done.
    bytes: u64,
}

/// The work of a command on each file.
pub(super) enum Work {
    Archive(Vec<Device>),
    Verify(Vec<Device>),
    Wipe { copies: u32, dry_run: bool },
    Prefetch(Duration),
    Copies,
}

impl Work {
    /// The command, and its verb in the past.
    fn words(&self) -> (&'static str, &'static str) {
        match self {
            Self::Archive(_) => ("cellar hsm archive", "copied"),
            Self::Verify(_) => ("cellar hsm verify", "verified"),
            Self::Wipe { dry_run: true, .. } => ("cellar hsm wipe", "could be wiped"),
            Self::Wipe { .. } => ("cellar hsm wipe", "wiped"),
            Self::Prefetch(_) => ("cellar hsm prefetch", "recalled"),
            Self::Copies => ("cellar hsm copies", "listed"),
        }
    }

    /// Whether the copies or the place of a file may differ afterwards.
    fn changes(&self) -> bool {
        !matches!(self, Self::Copies | Self::Wipe { dry_run: true, .. })
    }
}

/// A command on its way over the files.
pub(super) struct Run<'a> {
    pub(super) session: &'a Session,
    pub(super) archives: Archives<'a>,
    pub(super) devices: Vec<Device>,
    pub(super) work: Work,
    pub(super) progress: Progress,
    pub(super) json: bool,
}

impl Run<'_> {
    /// Works on all files that the options name, and prints the results.
    pub(super) async fn all(&self, files: &FileOptions) -> Outcome {
        let (command, _) = self.work.words();
        let (mut failures, mut totals) = (Failures::of(command), Totals::default());
        let client = &self.session.client;
        let mut running = FuturesOrdered::new();
        for path in &files.paths {
            let Some(top) = failures.note(client.find(path, Follow::ALL).await) else {
                totals.failed += 1;
                continue;
            };
            if top.is_directory() && !files.recursive {
                let failure = format!("{path}: a directory; -r takes all files below it");
                let _told = failures.note(Err::<(), _>(Failure::new(failure)));
                totals.failed += 1;
                continue;
            }
            let depth_max = if files.recursive { usize::MAX } else { 0 };
            let visit = async |visit: &Visit, failures: &mut Failures| {
                let node = &visit.node;
                if !node.is_directory() && !node.is_link() && !node.is_mount_point() {
                    running.push_back(self.file(visit.path.clone(), node.clone()));
                }
                if running.len() >= FILES_MAX {
                    let report = self.next(&mut running).await;
                    self.count(report, &mut totals, failures)?;
                }
                Ok(())
            };
            let (top, mut across) = ((path.as_str(), top), Across::Nothing);
            walk(client, top, depth_max, &mut across, &mut failures, visit).await?;
        }
        while !running.is_empty() {
            let report = self.next(&mut running).await;
            self.count(report, &mut totals, &mut failures)?;
        }
        self.progress.finish();
        self.sum_up(&totals)?;
        if totals.done + totals.unchanged + totals.failed == 0 {
            let reason = match totals.skipped {
                0 => "no file matches",
                _ => "no file in objects matches; 'cellar fs osd PATH' shows where a file is",
            };
            let _told = failures.note(Err::<(), _>(Failure::new(reason)));
        }
        failures.end()
    }

    /// The report of the file that was begun first. The progress is shown meanwhile.
    async fn next<F: Future<Output = Report>>(
        &self,
        running: &mut FuturesOrdered<F>,
    ) -> Option<Report> {
        loop {
            match timeout(LOOK, running.next()).await {
                Ok(report) => return report,
                Err(_) => self.progress.waits(),
            }
        }
    }

    /// Prints the result of a file, and adds it to the totals.
    fn count(
        &self,
        report: Option<Report>,
        totals: &mut Totals,
        failures: &mut Failures,
    ) -> Outcome {
        let Some(report) = report else {
            return Ok(());
        };
        self.progress.add(1);
        totals.looked += 1;
        for error in &report.errors {
            let _told = failures.note(Err::<(), _>(Failure::new(error)));
        }
        match report.result {
            FileResult::Done => {
                totals.done += 1;
                totals.bytes += report.length;
            }
            FileResult::Unchanged => totals.unchanged += 1,
            FileResult::Skipped => totals.skipped += 1,
            FileResult::Failed => totals.failed += 1,
        }
        if self.json {
            totals.listed.push(report.json()?);
            return Ok(());
        }
        match (&self.work, &report.copies) {
            (Work::Copies, Some(copies)) => self.progress.out(text(copies).trim_end()),
            (Work::Wipe { dry_run: true, .. }, _) if report.result == FileResult::Done => {
                self.progress.out(&report.path);
            }
            _ => {}
        }
        Ok(())
    }

    fn sum_up(&self, totals: &Totals) -> Outcome {
        let Totals {
            listed,
            looked,
            done,
            unchanged,
            skipped,
            failed,
            bytes,
        } = totals;
        if self.json {
            return print_json(&json!({
                "files": listed, "looked": looked, "done": done, "unchanged": unchanged, "skipped": skipped,
                "failed": failed, "bytes": bytes,
            }));
        }
        if matches!(self.work, Work::Copies) {
            return Ok(());
        }
        let (_, verb) = self.work.words();
        let mut line = format!("{done} of {looked} files {verb} ({})", short_size(*bytes));
        for (count, words) in [
            (unchanged, "unchanged"),
            (skipped, "not in objects"),
            (failed, "failed"),
        ] {
            if *count > 0 {
                line.push_str(&format!(", {count} {words}"));
            }
        }
        outln!("{line}");
        Ok(())
    }

    async fn file(&self, path: String, node: Node) -> Report {
        self.progress.name(&path);
        let mut report = Report {
            result: FileResult::Failed,
            errors: Vec::new(),
            length: node.status.length,
            copies: None,
            path,
        };
        let path = &report.path;
        let before = match self.archives.copies(&node, path, &self.devices).await {
            Ok(before) => before,
            Err(error) => {
                report.errors.push(error.to_string());
                return report;
            }
        };
        let mut errors = Vec::new();
        report.result = self.work_on(&before, path, &node, &mut errors).await;
        let looks_again = self.json && self.work.changes();
        report.copies = match looks_again {
            false => Some(before),
            true => match self.archives.copies(&node, path, &self.devices).await {
                Ok(after) => Some(after),
                Err(error) => {
                    errors.push(error.to_string());
                    None
                }
            },
        };
        if !errors.is_empty() {
            report.result = FileResult::Failed;
        }
        report.errors = errors;
        report
    }

    /// Does the work of the command on one file.
    async fn work_on(
        &self,
        before: &Copies,
        path: &str,
        node: &Node,
        errors: &mut Vec<String>,
    ) -> FileResult {
        let worked = match &self.work {
            Work::Copies => return FileResult::Done,
            _ if !before.in_objects => return FileResult::Skipped,
            Work::Archive(to) => {
                let lacking = |archive: &&Device| !before.good().any(|osd| osd == archive.id);
                let mut made = false;
                // The other archives may take a file that one refuses.
                for archive in to.iter().filter(lacking) {
                    match self.archives.archive(node, path, archive).await {
                        Ok(()) => made = true,
                        Err(error) => errors.push(error.to_string()),
                    }
                }
                Ok(made)
            }
            Work::Verify(archives) => {
                let known = |archive: &&Device| {
                    let copies = before.copies.iter();
                    let mut good = copies.filter(|copy| copy.state != "bad");
                    good.any(|copy| copy.osd == archive.id)
                };
                let mut good = 0;
                for archive in archives.iter().filter(known) {
                    match self.archives.verify(node, path, archive).await {
                        Ok(copies) => good += copies,
                        Err(error) => errors.push(error.to_string()),
                    }
                }
                Ok(good > 0)
            }
            Work::Wipe {
                copies,
                dry_run: true,
            } => Ok(before.online && before.good().count() >= *copies as usize),
            Work::Wipe { copies, .. } if before.online => {
                self.archives.wipe(node, path, *copies).await
            }
            Work::Prefetch(patience) if !before.online => {
                let recalled = self.archives.recall(node, path, *patience).await;
                recalled.map(|()| true)
            }
            Work::Wipe { .. } | Work::Prefetch(_) => Ok(false),
        };
        match worked {
            Ok(true) => FileResult::Done,
            Ok(false) => FileResult::Unchanged,
            Err(error) => {
                errors.push(error.to_string());
                FileResult::Failed
            }
        }
    }
}

/// A file and its copies, for users.
fn text(file: &Copies) -> String {
    let state = match (file.online, file.good().count()) {
        (true, 0) => "online, no copy of the present bytes".to_owned(),
        (true, good) => format!("online, {good} good"),
        (false, 0) => "NOT READABLE: wiped, no good copy".to_owned(),
        (false, good) => format!("wiped, {good} good"),
    };
    let size = short_size(file.length);
    let mut text = format!("{} ({}): {size}, {state}\n", file.path, file.fid);
    if file.copies.is_empty() {
        return text;
    }
    let mut table = Table::new([
        ("Archive", Side::Left),
        ("State", Side::Left),
        ("Version", Side::Right),
        ("Length", Side::Right),
        ("Compared", Side::Left),
        ("BLAKE3", Side::Left),
    ]);
    for copy in &file.copies {
        let name = match copy.osd_name.is_empty() {
            true => copy.osd.to_string(),
            false => copy.osd_name.clone(),
        };
        table.row([
            name,
            copy.state.to_owned(),
            copy.data_version.to_string(),
            short_size(copy.length),
            cellar_admin::date::to_the_minute(copy.verified.unwrap_or(copy.made)),
            copy.blake3.chars().take(DIGITS).collect(),
        ]);
    }
    for line in table.to_string().lines() {
        text.push_str(&format!("    {line}\n"));
    }
    text
}
