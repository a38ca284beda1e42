//! osd, policy, setpolicy: files stored as objects.

use cellar_admin::osd::Osds;

use super::super::print_json;
use super::{Fs, paths};
use crate::failure::{Failure, Failures, Outcome};
use crate::output::{out, outln};

impl Fs<'_> {
    pub(super) async fn pieces(&self) -> Outcome {
        let mut failures = Failures::of("fs");
        let mut all = Vec::new();
        for path in self.invocation.list("path") {
            let pieces = self.files.pieces(path).await;
            let Some(pieces) = failures.note(pieces.map_err(Failure::from)) else {
                continue;
            };
            match self.json {
                true => all.push(pieces),
                false => out!("{}", pieces.text()),
            }
        }
        if self.json {
            print_json(&all)?;
        }
        failures.end()
    }

    pub(super) async fn policies(&self) -> Outcome {
        let mut all = Vec::new();
        for path in paths(self.invocation) {
            all.push(self.files.policies(path).await?);
        }
        if self.json {
            return print_json(&all);
        }
        let osds = Osds::new(&self.session.client, &self.session.cell);
        // If the database does not answer, the numbers alone are printed.
        let known = osds.policies().await.ok();
        let name = |id| {
            let name = known.as_ref().and_then(|(policies, _)| policies.name(id));
            format!("{id} ({})", name.unwrap_or("?"))
        };
        for policies in &all {
            let directory = match policies.directory {
                0 => "none of its own".to_owned(),
                id => name(id),
            };
            outln!(
                "{}: policy {directory}; volume {}: policy {}",
                policies.path,
                policies.volume_name,
                name(policies.volume)
            );
            if policies.volume == 0 && policies.directory != 0 {
                outln!(
                    "    The volume does not use objects: the policies of its directories take effect when it does \
                     ('cellar vos setfields {} -osdpolicy 1')",
                    policies.volume_name
                );
            }
        }
        Ok(())
    }

    pub(super) async fn set_policies(&self) -> Outcome {
        let osds = Osds::new(&self.session.client, &self.session.cell);
        let policy = osds.policy_id(self.invocation.required("policy")).await?;
        let mut failures = Failures::of("fs");
        let mut all = Vec::new();
        for path in self.invocation.list("dir") {
            let set = async {
                self.files.set_policy(path, policy).await?;
                if self.json {
                    all.push(self.files.policies(path).await?);
                }
                Ok::<_, Failure>(())
            };
            failures.note(set.await);
        }
        if self.json {
            print_json(&all)?;
        }
        failures.end()
    }
}
