//! `cellar server replace`: another machine takes the place of a file server.

use cellar_admin::vos::{ReplaceAction, ReplacePlan, Volumes};
use serde_json::json;

use super::{Common, address, print_tasks};
use crate::failure::{Failure, Outcome};
use crate::output::{errln, outln};
use crate::session::Session;
use crate::suite::print_json;

/// The most missing volumes on the screen.
const SHOWN_MAX: usize = 10;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The partitions of the old machine come to the new one by moving the disks, by a copy, or from a
backup. Then the VLDB gives the volumes of the old server to the new address:

  The new machine has the whole directory of the old one (cell.json or sysid with its UUID):
    it registers at its start, and this command is needed only if it is to be known before.
  The new machine has joined with an identity of its own, and holds no other volumes:
    this command gives it the place of the old server.

The old server must be stopped. Volumes that the new machine lacks are listed, and nothing is
changed; with --force the VLDB is changed all the same, and 'cellar vos restore' brings them back.

Examples:
  cellar server replace 192.0.2.11 192.0.2.21 --dry-run
  cellar server replace fs2.example.org fs9.example.org"
)]
pub(super) struct Options {
    /// The server that is gone, by name or address.
    #[arg(value_name = "OLD")]
    old: String,
    /// The machine that takes its place.
    #[arg(value_name = "NEW")]
    new: String,
    /// Replace the server though the new machine lacks volumes.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    pub(super) common: Common,
}

pub(super) async fn run(session: &Session, options: &Options) -> Outcome {
    let volumes = Volumes::new(&session.client, &session.cell);
    let (old, new) = (address(&options.old)?, address(&options.new)?);
    let plan = volumes.plan_replacement(old, new).await?;
    let refused = !plan.missing.is_empty() && !options.force;
    let change = !refused && !options.common.dry_run;
    if change {
        volumes.replace_server(&plan).await?;
    }
    let tasks = tasks(options, &plan);
    if options.common.json {
        print_json(&json!({
            "plan": plan,
            "replaced": change,
            "left_to_do": if change { tasks } else { Vec::new() },
        }))?;
        return Failure::if_any(refused);
    }
    for missing in plan.missing.iter().take(SHOWN_MAX) {
        errln!(
            "{} ({}) is not on {}",
            missing.name,
            missing.volume,
            missing.at
        );
    }
    if plan.missing.len() > SHOWN_MAX {
        errln!(
            "and {} more; --json lists all",
            plan.missing.len() - SHOWN_MAX
        );
    }
    if refused {
        return Err(Failure::new(format!(
            "{} lacks {} volumes that the VLDB names on {}, and nothing was changed. Copy or restore them first; \
             --force changes the VLDB before that",
            options.new,
            plan.missing.len(),
            options.old
        )));
    }
    let groups = plan.groups;
    let (old, new) = (&options.old, &options.new);
    if options.common.dry_run {
        let how = match plan.action {
            ReplaceAction::Readdress => "keeps its UUID and gets the new address",
            ReplaceAction::Adopt => "gets the identity of the new machine",
        };
        outln!(
            "The entry of {old} with {groups} volume groups {how}; nothing was changed (--dry-run)"
        );
        return Ok(());
    }
    outln!("{new} has the place of {old}: the VLDB names {groups} volume groups there");
    print_tasks("Left to do:", &tasks);
    Ok(())
}

/// The work that no call can do.
fn tasks(options: &Options, plan: &ReplacePlan) -> Vec<String> {
    let (old, new) = (&options.old, &options.new);
    let mut tasks = Vec::new();
    if plan.action == ReplaceAction::Readdress {
        tasks.push(format!(
            "start {new} with the directory of {old} and '--bind {new}': the UUID in cell.json (OpenAFS: sysid) must stay"
        ));
    }
    if !plan.new_answers {
        tasks.push(format!(
            "compare the volumes when {new} runs: 'cellar vos syncvldb {new} -dryrun'"
        ));
    }
    if !plan.missing.is_empty() {
        tasks.push(format!(
            "restore the missing volumes: 'cellar vos restore {new} PARTITION NAME -file DUMP'"
        ));
    }
    tasks.push(format!(
        "never start {old} again with its old directory: it would register its address for the same volumes"
    ));
    tasks
}
