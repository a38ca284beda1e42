//! `cellar df`: the quotas of volumes and the room on their partitions.

use cellar_admin::fs::{Files, VolumeStatus};
use cellar_admin::table::{Side, Table};
use serde_json::json;

use super::shown::ShownOptions;
use crate::failure::{Failures, Outcome};
use crate::output::{out, outln};
use crate::quantities::human;
use crate::session::Session;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Paths below /afs, whose volumes are shown; '*', '?' and '[...]' stand for names. Default:
    /// the root of the home cell.
    #[arg(value_name = "PATH")]
    pub(super) paths: Vec<String>,
    #[command(flatten)]
    pub(super) shown: ShownOptions,
}

pub(super) async fn run(session: &Session, mut options: Options) -> Outcome {
    if options.paths.is_empty() {
        options.paths.push(format!("/afs/{}", session.cell.name));
    }
    let files = Files::new(&session.client);
    let mut failures = Failures::of("cellar df");
    let mut volumes: Vec<VolumeStatus> = Vec::new();
    for path in &options.paths {
        let status = files.volume_status(path).await;
        volumes.extend(failures.note(status));
    }
    if options.shown.json {
        outln!("{:#}", json!(volumes));
        return failures.end();
    }
    let size = |kib: i32| match (u64::try_from(kib), options.shown.human_readable) {
        (Ok(kib), true) => human(kib * 1024),
        _ => kib.to_string(),
    };
    let mut table = Table::new([
        ("Volume", Side::Left),
        ("Quota", Side::Right),
        ("Used", Side::Right),
        ("Free", Side::Right),
        ("Use%", Side::Right),
        ("Partition free", Side::Right),
        ("Path", Side::Left),
    ]);
    for volume in &volumes {
        let (quota, free, percent) = match volume.quota_kib {
            0 => (
                "-".to_owned(),
                volume.partition_available_kib,
                "-".to_owned(),
            ),
            quota => {
                let percent = i64::from(volume.used_kib) * 100 / i64::from(quota);
                let free = (quota - volume.used_kib).max(0);
                let free = free.min(volume.partition_available_kib);
                (size(quota), free, format!("{percent}%"))
            }
        };
        table.row([
            volume.name.clone(),
            quota,
            size(volume.used_kib),
            size(free),
            percent,
            size(volume.partition_available_kib),
            volume.path.clone(),
        ]);
    }
    if !table.is_empty() {
        out!("{table}");
    }
    failures.end()
}
