//! `cellar partition scrub`: verifies a partition now, or shows the scrubs of a server.

use std::net::IpAddr;

use cellar_admin::date::ctime;
use cellar_admin::vos::job::JobContext;
use cellar_admin::vos::{Location, PartitionScrub, Volumes};
use cellar_wire::ids::{PartitionId, VolumeId};

use super::partition;
use crate::failure::{Failure, Outcome};
use crate::output::outln;
use crate::progress::Progress;
use crate::quantities::human;
use crate::session::{As, CellOptions, Session, resolve};
use crate::suite::print_json;
use crate::suite::vos::{Speaker, run_job};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "A file server of Cellar verifies its partitions by itself: --scrub-every and --scrub-rate of
'cellar up' and 'cellar serve', or the keys scrub-every and scrub-rate, set the interval and the
pace. The results are in 'cellar status', in the metrics and in --status; a restart forgets them.

The exit status is 1 if the scrub, or the last one with --status, found damage.
'cellar vos scrub SERVER PARTITION -refill' names damaged files and restores them from other copies.

Examples:
  cellar partition scrub fs2.example.org b
  cellar partition scrub fs2.example.org b --rate 50000
  cellar partition scrub fs2.example.org --status"
)]
pub(super) struct Options {
    /// The file server, by name or address.
    #[arg(id = "fileserver", value_name = "SERVER")]
    server: String,
    /// The partition. Default with --status: all.
    #[arg(value_name = "PARTITION", value_parser = partition, required_unless_present = "status")]
    partition: Option<PartitionId>,
    /// Show the running and the last scrub, and start none.
    #[arg(long, conflicts_with = "rate")]
    status: bool,
    /// Largest rate in KiB a second; 0: as fast as possible.
    #[arg(long, value_name = "KIB", default_value_t = 0)]
    rate: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cell: CellOptions,
}

pub(super) async fn run(options: &Options) -> Outcome {
    let session = options
        .cell
        .session(None, As::AdministratorIfPossible)
        .await?;
    let outcome = in_session(&session, options).await;
    session.end(outcome).await
}

async fn in_session(session: &Session, options: &Options) -> Outcome {
    let volumes = Volumes::new(&session.client, &session.cell);
    let (server, _) = resolve(&options.server)?;
    if !options.status {
        let partition = options
            .partition
            .ok_or_else(|| Failure::usage("name the partition to scrub"))?;
        scrub(&volumes, Location::new(server, partition)?, options).await?;
    }
    let scrubs = states(&volumes, server, options.partition).await?;
    if options.json {
        print_json(&scrubs)?;
    } else {
        for scrub in &scrubs {
            outln!("{}", text(scrub));
        }
    }
    let damaged = |scrub: &PartitionScrub| scrub.last.as_ref().is_some_and(|last| last.damaged > 0);
    Failure::if_any(scrubs.iter().any(damaged))
}

/// Verifies a partition, until the end or Ctrl-C.
async fn scrub(volumes: &Volumes<'_>, at: Location, options: &Options) -> Outcome {
    let progress = Progress::bytes(None);
    progress.name(&at.to_string());
    let speaker = Speaker(&progress);
    let scrubbed = run_job(&speaker, async |context: JobContext<'_>| {
        let seen = |bytes| progress.at(bytes);
        volumes
            .scrub(at, VolumeId(0), options.rate, context, seen)
            .await
    })
    .await;
    progress.finish();
    match scrubbed?.partial {
        true => Err(Failure::new(
            "the scrub was ended before everything was checked",
        )),
        false => Ok(()),
    }
}

async fn states(
    volumes: &Volumes<'_>,
    server: IpAddr,
    partition: Option<PartitionId>,
) -> Outcome<Vec<PartitionScrub>> {
    let partitions = match partition {
        Some(partition) => vec![partition],
        None => volumes.partitions(server).await?,
    };
    let mut scrubs = Vec::new();
    for partition in partitions {
        let at = Location::new(server, partition)?;
        scrubs.push(volumes.scrub_status(at).await?);
    }
    Ok(scrubs)
}

fn text(scrub: &PartitionScrub) -> String {
    let mut text = format!("{}: ", scrub.partition);
    match &scrub.last {
        None => text.push_str("no scrub has ended since the start of the server"),
        Some(last) => text.push_str(&format!(
            "the last scrub ended {}: {} of {} volumes verified, {} damaged files{}",
            ctime(last.ended),
            human(last.bytes),
            last.volumes,
            last.damaged,
            if last.partial { ", interrupted" } else { "" }
        )),
    }
    if scrub.running {
        text.push_str(&format!(
            "; a scrub runs since {}: {} verified, volume {} of {}",
            ctime(scrub.started),
            human(scrub.bytes),
            scrub.volumes,
            scrub.volumes_total
        ));
    }
    match scrub.every_seconds {
        0 => text.push_str("; no regular scrubs"),
        every => text.push_str(&format!(
            "; one every {every} s at up to {} KiB/s",
            scrub.rate_kib
        )),
    }
    text
}
