//! `cellar server drain`: moves every volume of a file server away.

use cellar_admin::osd::{Device, Osds};
use cellar_admin::vos::job::{JobContext, Stop};
use cellar_admin::vos::{DrainAction, DrainPlan, DrainStep, DrainTarget, Remaining, Volumes};
use cellar_wire::ids::PartitionId;
use futures_util::StreamExt;
use serde::Serialize;

use super::{Common, address, device_line, devices_at};
use crate::failure::{Failure, Outcome};
use crate::output::{errln, outln};
use crate::progress::Progress;
use crate::session::Session;
use crate::suite::print_json;
use crate::suite::vos::Speaker;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Read-write volumes are moved while clients use them. Read-only volumes get another site with the
same contents; nothing is released. If every other server has a copy already, the site is given up.

Object storage devices of the server are named at the end; 'cellar osd drain' moves their objects.

An interrupted drain is continued by the same command. The exit status is 0 when the server is
empty, and 1 when a volume is left; the last lines say why.

Examples:
  cellar server drain 192.0.2.11 --dry-run
  cellar server drain fs2.example.org
  cellar server drain fs2.example.org --to 192.0.2.12 --to 192.0.2.13/vicepb
  cellar server drain fs2.example.org && cellar server remove fs2.example.org"
)]
pub(super) struct Options {
    /// The file server to empty, by name or address.
    #[arg(id = "fileserver", value_name = "SERVER")]
    server: String,
    /// A destination: a server, or one of its partitions. May be repeated. Default: the partition
    /// with the most free space of all other servers, of which 10 % stay free.
    #[arg(long, value_name = "SERVER[/PARTITION]")]
    to: Vec<String>,
    /// The number of volumes in work at the same time.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    parallel: u8,
    #[command(flatten)]
    pub(super) common: Common,
}

/// A step, as JSON.
#[derive(Serialize)]
struct StepView<'a> {
    #[serde(flatten)]
    step: &'a DrainStep,
    done: bool,
    error: Option<String>,
}

/// The result, as JSON.
#[derive(Serialize)]
struct View<'a> {
    server: &'a cellar_admin::vos::ServerAddresses,
    dry_run: bool,
    steps: Vec<StepView<'a>>,
    stuck: &'a [Remaining],
    unlisted: &'a [Remaining],
    silent: &'a [std::net::IpAddr],
    devices: &'a [Device],
    /// No volume is left on the server.
    empty: bool,
}

pub(super) async fn run(session: &Session, options: &Options) -> Outcome {
    let volumes = Volumes::new(&session.client, &session.cell);
    let osds = Osds::new(&session.client, &session.cell);
    let server = volumes
        .known_server(address(&options.server)?.into())
        .await?;
    let to = options.to.iter().map(|text| target(text));
    let to: Vec<DrainTarget> = to.collect::<Outcome<_>>()?;
    let plan = volumes.plan_drain(&server, &to).await?;
    let devices = devices_at(&osds, &server).await?;
    if !options.common.json {
        for silent in &plan.silent {
            errln!("{silent} does not answer and takes no volumes");
        }
    }
    if options.common.dry_run {
        return dry_run(&plan, &devices, options.common.json);
    }
    let stop = Stop::default();
    let done = steps(&volumes, &plan, options, &stop).await;
    // The plan of the rest says what is left.
    let rest = volumes.plan_drain(&server, &to).await?;
    let empty = rest.groups.is_empty() && rest.stuck.is_empty() && rest.unlisted.is_empty();
    if options.common.json {
        print_json(&View {
            server: &server,
            dry_run: false,
            steps: done,
            stuck: &rest.stuck,
            unlisted: &rest.unlisted,
            silent: &plan.silent,
            devices: &devices,
            empty,
        })?;
    } else {
        report(&options.server, &rest, &devices, empty);
    }
    if stop.is_asked() {
        return Err(Failure::interrupted());
    }
    Failure::if_any(!empty)
}

/// Runs the steps of all groups. The groups run in parallel.
async fn steps<'p>(
    volumes: &Volumes<'_>,
    plan: &'p DrainPlan,
    options: &Options,
    stop: &Stop,
) -> Vec<StepView<'p>> {
    let progress = Progress::count(plan.steps() as u64);
    let messages = Speaker(&progress);
    let context = JobContext::new(&messages, stop);
    let groups = plan.groups.iter().map(async |group| {
        let mut views = Vec::new();
        for step in group {
            progress.name(&step.name);
            let outcome = volumes.drain_step(step, context).await;
            let error = outcome.err().map(|error| error.to_string());
            if let Some(error) = error.as_ref().filter(|_| !stop.is_asked()) {
                progress.say(&format!("{}: {error}", step.name));
            } else if error.is_none() && !options.common.json {
                progress.out(&line(step));
            }
            progress.add(1);
            let done = error.is_none();
            views.push(StepView { step, done, error });
            if !done {
                break;
            }
        }
        views
    });
    let work = async {
        let groups = futures_util::stream::iter(groups);
        let groups = groups.buffer_unordered(usize::from(options.parallel));
        groups.concat().await
    };
    let interrupted = async {
        let pressed = tokio::signal::ctrl_c().await;
        stop.ask();
        progress.say("stopping; moves under way are finished or undone");
        pressed
    };
    let mut work = std::pin::pin!(work);
    let done = tokio::select! {
        done = &mut work => done,
        _ = interrupted => work.await,
    };
    progress.finish();
    done
}

fn dry_run(plan: &DrainPlan, devices: &[Device], json: bool) -> Outcome {
    let steps = plan.groups.iter().flatten();
    if json {
        return print_json(&View {
            server: &plan.server,
            dry_run: true,
            steps: steps
                .map(|step| StepView {
                    step,
                    done: false,
                    error: None,
                })
                .collect(),
            stuck: &plan.stuck,
            unlisted: &plan.unlisted,
            silent: &plan.silent,
            devices,
            empty: plan.steps() == 0 && plan.stuck.is_empty() && plan.unlisted.is_empty(),
        });
    }
    for step in steps {
        outln!("{} ({} KiB)", line(step), step.size_kib);
    }
    for remaining in plan.stuck.iter().chain(&plan.unlisted) {
        outln!("{}", left(remaining));
    }
    for device in devices {
        outln!("{}", device_line(device));
    }
    outln!("{} steps; nothing was changed (--dry-run)", plan.steps());
    Failure::if_any(!plan.stuck.is_empty())
}

/// Prints the end of a drain, or the reasons why it has none.
fn report(server: &str, rest: &DrainPlan, devices: &[Device], empty: bool) {
    for remaining in rest.stuck.iter().chain(&rest.unlisted) {
        errln!("{}", left(remaining));
    }
    for device in devices {
        errln!("{}", device_line(device));
    }
    let count = rest.steps() + rest.stuck.len() + rest.unlisted.len();
    match (empty, rest.steps()) {
        (true, _) if !devices.is_empty() => {
            outln!(
                "{server} has no volumes any more; when its devices are empty, 'cellar server remove {server}' takes it \
                 out of the cell"
            )
        }
        (true, _) => {
            outln!("{server} is empty; 'cellar server remove {server}' takes it out of the cell")
        }
        (false, 0) => {
            errln!("{server} is not empty: {count} volumes are left, for the reasons above")
        }
        (false, _) => {
            errln!("{server} is not empty: {count} volumes are left; the same command goes on")
        }
    }
}

/// A step as a line.
fn line(step: &DrainStep) -> String {
    let name = &step.name;
    match step.action {
        DrainAction::Move { from, to } => format!("{name}: move {from} -> {to}"),
        DrainAction::MoveSite { from, to } => format!("{name}.readonly: move {from} -> {to}"),
        DrainAction::DropSite { from } => {
            format!("{name}.readonly: remove {from}, all other servers have a copy")
        }
    }
}

fn left(remaining: &Remaining) -> String {
    let Remaining {
        name,
        volume,
        at,
        reason,
    } = remaining;
    format!("{name} ({volume}) stays on {at}: {reason}")
}

/// Parses `SERVER` or `SERVER/PARTITION`.
fn target(text: &str) -> Outcome<DrainTarget> {
    let (server, partition) = match text.split_once('/') {
        Some((server, partition)) => (server, Some(partition)),
        None => (text, None),
    };
    let partition = partition.map(|partition| {
        PartitionId::parse(partition).ok_or_else(|| {
            Failure::usage(format!(
                "--to {text}: '{partition}' is not a partition; write a, vicepa or its number"
            ))
        })
    });
    Ok(DrainTarget {
        server: address(server)?,
        partition: partition.transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_servers_or_partitions() {
        let parsed = target("192.0.2.1").expect("a server");
        assert_eq!(parsed.partition, None);
        let parsed = target("192.0.2.1/vicepb").expect("a partition");
        assert_eq!(parsed.partition, PartitionId::parse("b"));
        for wrong in ["192.0.2.1/", "192.0.2.1/x1", "192.0.2.1:7000", "::1"] {
            assert!(target(wrong).is_err(), "{wrong}");
        }
    }
}
