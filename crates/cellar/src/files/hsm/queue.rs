//! `cellar hsm queue`: the recalls of file servers that wait or run.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cellar_admin::jobs::Jobs;
use cellar_admin::pts::Protection;
use cellar_admin::recalls::Recall;
use cellar_admin::table::{Side, Table, short_size};
use serde_json::json;

use crate::failure::{Failure, Failures, Outcome};
use crate::jobs::servers;
use crate::output::{one_line, out, outln};
use crate::session::{As, CellOptions, Session};
use crate::suite::print_json;

#[derive(Debug, clap::Args)]
pub(crate) struct QueueOptions {
    /// The file server, by name or address. Default: all of the cell.
    #[arg(id = "fileserver", value_name = "SERVER")]
    server: Option<String>,
    /// Only recalls from this archive.
    #[arg(long, value_name = "NAME")]
    archive: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cell: CellOptions,
}

/// Lists the recalls.
pub(super) async fn queue(options: &QueueOptions) -> Outcome {
    let session = options.cell.session(None, As::AdministratorIfPossible);
    let session = session.await?;
    let outcome = queue_in(&session, options).await;
    session.end(outcome).await
}

async fn queue_in(session: &Session, options: &QueueOptions) -> Outcome {
    let jobs = Jobs::new(&session.client, &session.cell);
    let (mut failures, mut all) = (Failures::of("cellar hsm queue"), Vec::new());
    for server in servers(&jobs, options.server.as_deref()).await? {
        let listed = jobs.recalls(server).await;
        all.extend(failures.note(listed).into_iter().flatten());
    }
    if let Some(archive) = &options.archive {
        all.retain(|recall| recall.archive == *archive);
    }
    let names = names(session, &all).await;
    match options.json {
        true => print_json(&json!({ "recalls": with_names(&all, &names)? }))?,
        false => print(&all, &names),
    }
    failures.end()
}

/// The names of the users, by the text of the recall. Empty if the database does not answer.
async fn names(session: &Session, recalls: &[Recall]) -> HashMap<String, String> {
    let mut ids: Vec<_> = recalls.iter().filter_map(Recall::user_id).collect();
    ids.sort_unstable();
    ids.dedup();
    let protection = Protection::new(&session.client, &session.cell);
    let names = protection.names_of(&ids).await.unwrap_or_default();
    let texts = ids.iter().map(|id| id.0.to_string());
    texts.zip(names).collect()
}

fn with_names(
    recalls: &[Recall],
    names: &HashMap<String, String>,
) -> Outcome<Vec<serde_json::Value>> {
    let now = now();
    let value = |recall: &Recall| {
        let mut value = serde_json::to_value(recall)?;
        value["user_name"] = json!(names.get(&recall.user));
        value["age"] = json!(age(recall, now).as_secs());
        Ok(value)
    };
    let values: Result<_, serde_json::Error> = recalls.iter().map(value).collect();
    values.map_err(|error| Failure::new(error.to_string()))
}

fn print(recalls: &[Recall], names: &HashMap<String, String>) {
    let mut table = Table::new([
        ("Archive", Side::Left),
        ("Place", Side::Right),
        ("State", Side::Left),
        ("Job", Side::Right),
        ("Server", Side::Left),
        ("User", Side::Left),
        ("Size", Side::Right),
        ("Age", Side::Right),
        ("File", Side::Left),
    ]);
    let now = now();
    for recall in recalls {
        let user = names.get(&recall.user).unwrap_or(&recall.user);
        let mut file = one_line(&recall.file()).into_owned();
        if let Some(error) = &recall.error {
            file.push_str(&format!("  ({})", one_line(error)));
        }
        table.row([
            one_line(&recall.archive).into_owned(),
            recall.place.map_or_else(String::new, |n| n.to_string()),
            recall.state.clone(),
            recall.job.to_string(),
            recall.server.to_string(),
            one_line(user).into_owned(),
            short_size(recall.bytes),
            short_time(age(recall, now)),
            file,
        ]);
    }
    if table.is_empty() {
        outln!("No recall waits or runs");
        return;
    }
    out!("{table}");
    let bytes = recalls.iter().map(|recall| recall.bytes).sum();
    let queued = recalls.iter().filter(|recall| recall.place.is_some());
    outln!(
        "{} recalls ({}), {} of them in the queue; 'cellar jobs first|last|cancel JOB' changes it",
        recalls.len(),
        short_size(bytes),
        queued.count()
    );
}

fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// The time since a recall was queued, by the clock of this machine.
fn age(recall: &Recall, now: Duration) -> Duration {
    now.saturating_sub(Duration::from_millis(recall.created))
}

/// A time in its two largest units: `42s`, `5m10s`, `3h20m`, `2d4h`.
fn short_time(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{}s", seconds % 60),
        (0, _, _) => format!("{hours}h{}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_two_units() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (310, "5m10s"),
            (12_000, "3h20m"),
            (187_200, "2d4h"),
        ] {
            assert_eq!(short_time(Duration::from_secs(seconds)), text);
        }
    }
}
