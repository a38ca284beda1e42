//! checksum, undelete, purge, scrub: the upkeep of devices.

use std::time::Duration;

use cellar_admin::osd::ScrubView;
use cellar_policy::bytes;
use serde_json::json;

use super::super::{number, print_json};
use super::Osd;
use crate::failure::{Failure, Outcome};
use crate::output::{out, outln};
use crate::progress::Progress;

/// Interval at which the progress of a scrub is checked.
const LOOK: Duration = Duration::from_millis(200);

impl Osd<'_> {
    pub(super) async fn checksum(&self) -> Outcome {
        let (id, object) = (
            self.invocation.required("id"),
            self.invocation.required("object"),
        );
        let version = self.invocation.get("version");
        let version = version.map(|text| number("-version", text)).transpose()?;
        let sums = self.osds.sums(id, object, version).await?;
        if self.json {
            return print_json(&sums);
        }
        out!("{}", sums.text());
        Ok(())
    }

    pub(super) async fn undelete(&self) -> Outcome {
        let objects = self.invocation.list("object");
        let id = self.invocation.required("id");
        let restored = self.osds.undelete(id, objects).await?;
        match self.json {
            true => print_json(&json!({ "asked": objects.len(), "restored": restored }))?,
            false => outln!("{restored} of {} objects were restored", objects.len()),
        }
        Failure::if_any((restored as usize) < objects.len())
    }

    pub(super) async fn purge(&self) -> Outcome {
        let before = match (self.invocation.get("before"), self.invocation.has("all")) {
            (Some(text), false) => {
                let date = cellar_admin::date::parse(text);
                let date = date.ok_or_else(|| {
                    Failure::usage(format!(
                        "-before: '{text}' is not a date; write YYYY-MM-DD, optionally followed by HH:MM"
                    ))
                })?;
                u64::from(date.0)
            }
            (None, true) => u64::MAX,
            _ => return Err(Failure::usage("give -before with a date, or -all")),
        };
        let id = self.invocation.required("id");
        let purged = self.osds.purge(id, before).await?;
        if self.json {
            return print_json(&json!({ "purged": purged }));
        }
        outln!("{purged} removed objects were deleted for good");
        Ok(())
    }

    pub(super) async fn scrub(&self) -> Outcome {
        let has = |switch| self.invocation.has(switch);
        let id = self.invocation.required("id");
        if has("status") && (has("wait") || has("rate")) {
            return Err(Failure::usage(
                "-status cannot be combined with -wait or -rate",
            ));
        }
        if !has("status") {
            let rate = self.invocation.get("rate");
            let rate = rate.map(|text| number("-rate", text)).transpose()?;
            self.osds.scrub(id, rate.unwrap_or(0)).await?;
        }
        let mut state = self.osds.scrub_status(id).await?;
        if has("wait") {
            let progress = Progress::bytes(Some(state.total));
            progress.name(&format!("device {id}"));
            while state.running {
                progress.at(state.bytes);
                tokio::time::sleep(LOOK).await;
                state = self.osds.scrub_status(id).await?;
            }
            progress.finish();
        }
        match self.json {
            true => print_json(&state)?,
            false => out!("{}", text(&state)),
        }
        Failure::if_any(!state.damaged.is_empty())
    }
}

fn text(state: &ScrubView) -> String {
    let verb = if state.running { "runs" } else { "has ended" };
    let (done, total) = (bytes(state.bytes), bytes(state.total));
    let mut text = format!("The scrub {verb}: {done} of {total} verified");
    match &state.damaged[..] {
        [] => text.push_str(", no object is damaged\n"),
        damaged => {
            text.push_str(&format!(", {} damaged:\n", damaged.len()));
            for object in damaged {
                text.push_str(&format!("    {object}\n"));
            }
        }
    }
    text
}
