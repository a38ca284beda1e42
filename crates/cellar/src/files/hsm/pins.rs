//! `cellar hsm pin`, `unpin`, `pins`: files that stay on the online devices.

use std::time::Duration;

use cellar_admin::date::to_the_minute;
use cellar_admin::hsm::Archives;
use cellar_admin::osd::Osds;
use cellar_admin::table::{Side, Table};
use cellar_client::Follow;
use cellar_wire::ids::ViceId;
use serde_json::json;

use super::status::unix_now;
use super::time;
use crate::failure::{Failures, Outcome};
use crate::output::{out, outln};
use crate::session::{As, CellOptions, Session};
use crate::suite::print_json;

#[derive(Debug, clap::Args)]
pub(crate) struct PinOptions {
    /// Files, or directories for all files below them in the same volume; '*', '?' and '[...]'
    /// stand for names.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// How long the pin holds. Users: a year at most.
    #[arg(long = "for", value_name = "TIME", default_value = "30d", value_parser = time)]
    time: Duration,
    /// The pin holds until it is removed. For administrators.
    #[arg(long, conflicts_with = "time")]
    forever: bool,
    /// A remark for 'cellar hsm pins'. Default: the path.
    #[arg(long, value_name = "TEXT")]
    remark: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cell: CellOptions,
}

#[derive(Debug, clap::Args)]
pub(crate) struct UnpinOptions {
    /// Files and directories; '*', '?' and '[...]' stand for names.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// The owner of the pins. Default: you. Other owners' pins are for administrators.
    #[arg(long, value_name = "USER")]
    owner: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cell: CellOptions,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListOptions {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cell: CellOptions,
}

pub(super) async fn pin(options: &PinOptions) -> Outcome {
    let until = match options.forever {
        true => 0,
        false => unix_now() + options.time.as_secs(),
    };
    let work = Work::Pin {
        until,
        remark: options.remark.as_deref(),
    };
    run(&options.cell, &options.paths, options.json, work).await
}

pub(super) async fn unpin(options: &UnpinOptions) -> Outcome {
    let work = Work::Unpin {
        owner: options.owner.as_deref(),
    };
    run(&options.cell, &options.paths, options.json, work).await
}

/// The work on each file.
enum Work<'a> {
    Pin { until: u64, remark: Option<&'a str> },
    Unpin { owner: Option<&'a str> },
}

async fn run(cell: &CellOptions, paths: &[String], json: bool, work: Work<'_>) -> Outcome {
    let first = paths.first().map(String::as_str);
    let session = cell.session(first, As::AdministratorIfPossible).await?;
    let outcome = run_in(&session, paths, json, work).await;
    session.end(outcome).await
}

async fn run_in(session: &Session, paths: &[String], json: bool, work: Work<'_>) -> Outcome {
    let (client, cell) = (&session.client, &session.cell);
    let mut paths = paths.to_vec();
    super::super::glob::expand(client, &mut paths, true).await?;
    let owner: Option<ViceId> = match work {
        Work::Unpin { owner: Some(name) } => client.ids_of(cell, &[name]).await?.first().copied(),
        _ => None,
    };
    let archives = Archives::new(client);
    let command = match work {
        Work::Pin { .. } => "cellar hsm pin",
        Work::Unpin { .. } => "cellar hsm unpin",
    };
    let (mut failures, mut done) = (Failures::of(command), Vec::new());
    for path in &paths {
        let Some(node) = failures.note(client.find(path, Follow::ALL).await) else {
            continue;
        };
        let changed = match work {
            Work::Pin { until, remark } => {
                archives
                    .pin(&node, path, until, remark.unwrap_or(path))
                    .await
            }
            Work::Unpin { .. } => archives.unpin(&node, path, owner).await,
        };
        if failures.note(changed).is_some() {
            done.push(path);
        }
    }
    match (json, work) {
        (true, Work::Pin { until, .. }) => {
            let until = Some(until).filter(|until| *until > 0);
            print_json(&json!({ "pinned": done, "until": until }))?;
        }
        (true, Work::Unpin { .. }) => print_json(&json!({ "unpinned": done }))?,
        (false, Work::Pin { until: 0, .. }) if !done.is_empty() => {
            outln!("{} pinned for ever", done.len());
        }
        (false, Work::Pin { until, .. }) if !done.is_empty() => {
            outln!("{} pinned until {}", done.len(), to_the_minute(until));
        }
        (false, Work::Unpin { .. }) if !done.is_empty() => outln!("{} unpinned", done.len()),
        (false, _) => {}
    }
    failures.end()
}

pub(super) async fn list(options: &ListOptions) -> Outcome {
    let session = options.cell.session(None, As::Anybody).await?;
    let outcome = list_in(&session, options.json).await;
    session.end(outcome).await
}

async fn list_in(session: &Session, json: bool) -> Outcome {
    let pins = Osds::new(&session.client, &session.cell).pins().await?;
    if json {
        return print_json(&json!({ "pins": pins }));
    }
    let mut table = Table::new([
        ("Fid", Side::Left),
        ("Owner", Side::Left),
        ("Until", Side::Left),
        ("Remark", Side::Left),
    ]);
    for pin in &pins {
        table.row([
            pin.fid.clone(),
            pin.owner.clone(),
            pin.until
                .map_or_else(|| "removed".to_owned(), to_the_minute),
            pin.remark.clone(),
        ]);
    }
    match table.is_empty() {
        true => outln!("The cell has no pins"),
        false => out!("{table}"),
    }
    Ok(())
}
