//! `cellar du`: adds up the sizes of trees.

use std::collections::HashSet;

use cellar_client::Follow;
use serde_json::{Value, json};

use super::shown::ShownOptions;
use super::tree::{Across, StayOption, Visit, walk};
use crate::failure::{Failures, Outcome};
use crate::output::outln;
use crate::progress::Progress;
use crate::quantities::human;
use crate::session::Session;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Directories or files below /afs; '*', '?' and '[...]' stand for names. Default: the root of
    /// the home cell.
    #[arg(value_name = "PATH")]
    pub(super) paths: Vec<String>,
    /// Print only the sum for each PATH.
    #[arg(short, long)]
    summarize: bool,
    /// Print files too, not only directories.
    #[arg(short, long, conflicts_with = "summarize")]
    all: bool,
    /// Print only directories down to this depth; 0 is the same as -s.
    #[arg(short = 'd', long, value_name = "N", conflicts_with = "summarize")]
    max_depth: Option<usize>,
    #[command(flatten)]
    stay: StayOption,
    #[command(flatten)]
    pub(super) shown: ShownOptions,
}

/// A directory whose contents are not all added up yet.
struct Sum {
    path: String,
    bytes: u64,
    depth: usize,
}

struct Report<'a> {
    options: &'a Options,
    json: Vec<Value>,
}

impl Report<'_> {
    fn line(&mut self, path: &str, bytes: u64, depth: usize) {
        let depth_max = match self.options.summarize {
            true => 0,
            false => self.options.max_depth.unwrap_or(usize::MAX),
        };
        if depth > depth_max {
            return;
        }
        if self.options.shown.json {
            return self.json.push(json!({ "path": path, "bytes": bytes }));
        }
        let size = match self.options.shown.human_readable {
            true => human(bytes),
            false => bytes.div_ceil(1024).to_string(),
        };
        outln!("{size}\t{path}");
    }

    /// Ends the directories that are not above `depth`, and adds each to the one above it.
    fn end(&mut self, open: &mut Vec<Sum>, depth: usize) {
        while let Some(done) = open.pop_if(|sum| sum.depth >= depth) {
            self.line(&done.path, done.bytes, done.depth);
            if let Some(above) = open.last_mut() {
                above.bytes += done.bytes;
            }
        }
    }
}

pub(super) async fn run(session: &Session, mut options: Options) -> Outcome {
    if options.paths.is_empty() {
        options.paths.push(format!("/afs/{}", session.cell.name));
    }
    let client = &session.client;
    let mut failures = Failures::of("cellar du");
    let mut report = Report {
        options: &options,
        json: Vec::new(),
    };
    let mut across = match options.stay.one_file_system {
        true => Across::Nothing,
        false => Across::Once(HashSet::new()),
    };
    for path in &options.paths {
        let Some(top) = failures.note(client.find(path, Follow::MOUNTS).await) else {
            continue;
        };
        let progress = Progress::entries();
        let mut open: Vec<Sum> = Vec::new();
        let add = async |visit: &Visit, _: &mut Failures| {
            progress.name(&visit.path);
            progress.add(1);
            report.end(&mut open, visit.depth);
            let bytes = visit.node.status.length;
            if visit.node.is_directory() {
                open.push(Sum {
                    path: visit.path.clone(),
                    bytes,
                    depth: visit.depth,
                });
                return Ok(());
            }
            if let Some(above) = open.last_mut() {
                above.bytes += bytes;
            }
            if options.all || visit.depth == 0 {
                report.line(&visit.path, bytes, visit.depth);
            }
            Ok(())
        };
        let top = (path.as_str(), top);
        walk(client, top, usize::MAX, &mut across, &mut failures, add).await?;
        progress.finish();
        report.end(&mut open, 0);
    }
    if options.shown.json {
        outln!("{:#}", Value::from(report.json));
    }
    failures.end()
}
