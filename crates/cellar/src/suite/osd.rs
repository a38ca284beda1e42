//! `cellar osd`: object storage devices and policies.
//!
//! The operations are those of AFS/OSD's `osd`, and its names for them are accepted too
//! (`listosds`, `createosd`). Operations on policies are a suite of their own: `cellar osd policy`.

mod collect;
mod commands;
mod contents;
mod devices;
mod policy;
mod upkeep;

use cellar_admin::osd::Osds;
pub(crate) use commands::{POLICY_SUITE, SUITE};

use super::syntax::{Invocation, Suite};
use super::{cell_options, parse};
use crate::failure::{Failure, Outcome};
use crate::session::{As, Session};

/// Runs one operation.
pub(crate) async fn run(mut words: Vec<String>) -> Outcome {
    if words.first().is_some_and(|word| word == "policy") {
        words.remove(0);
        return run_in(&POLICY_SUITE, &words).await;
    }
    // The names that AFS/OSD's `osd` uses.
    let of_policies = match words.first().map(String::as_str) {
        Some("policies") => Some("show"),
        Some("addpolicy") => Some("add"),
        Some("deletepolicy") => Some("delete"),
        _ => None,
    };
    match of_policies {
        Some(operation) => {
            operation.clone_into(&mut words[0]);
            run_in(&POLICY_SUITE, &words).await
        }
        None => run_in(&SUITE, &words).await,
    }
}

async fn run_in(suite: &'static Suite, words: &[String]) -> Outcome {
    let Some(invocation) = parse(suite, words)? else {
        return Ok(());
    };
    let who = match invocation.has("noauth") {
        true => As::Anybody,
        false => As::AdministratorIfPossible,
    };
    let path = invocation
        .get("file")
        .filter(|file| file.starts_with("/afs/"));
    let session = cell_options(&invocation, None).session(path, who).await?;
    let osd = Osd {
        osds: Osds::new(&session.client, &session.cell),
        invocation: &invocation,
        session: &session,
        json: invocation.has("json"),
    };
    match (suite.name, invocation.command) {
        ("osd", "list") => osd.list().await,
        ("osd", "examine") => osd.examine().await,
        ("osd", "create") => osd.create().await,
        ("osd", "set") => osd.set().await,
        ("osd", "drain") => osd.drain().await,
        ("osd", "remove") => osd.remove().await,
        ("osd", "statistics") => osd.statistics().await,
        ("osd", "objects") => osd.objects().await,
        ("osd", "volumes") => osd.volumes().await,
        ("osd", "files") => osd.files().await,
        ("osd", "checksum") => osd.checksum().await,
        ("osd", "undelete") => osd.undelete().await,
        ("osd", "purge") => osd.purge().await,
        ("osd", "scrub") => osd.scrub().await,
        ("osd", "collect") => osd.collect().await,
        ("osd", _) => osd.repair_status().await,
        (_, "list") => osd.list_policies().await,
        (_, "show") => osd.show_policies().await,
        (_, "add") => osd.add_policy().await,
        (_, "set") => osd.set_policy().await,
        (_, "delete") => osd.delete_policy().await,
        _ => osd.test_policy().await,
    }
}

/// An operation under way.
struct Osd<'a> {
    osds: Osds<'a>,
    invocation: &'a Invocation,
    session: &'a Session,
    json: bool,
}

impl Osd<'_> {
    /// Parses a size: with a unit, or as a number of KiB (`plain` 10) or MiB (20), as the original
    /// `osd` accepts it.
    fn size(&self, switch: &str, plain: u32) -> Outcome<Option<u64>> {
        let Some(text) = self.invocation.get(switch) else {
            return Ok(None);
        };
        match cellar_policy::parse_size(text, plain) {
            Some(size) => Ok(Some(size)),
            None => Err(Failure::usage(format!(
                "-{switch}: '{text}' is not a size; write 64m, 4g, or 1t"
            ))),
        }
    }
}
