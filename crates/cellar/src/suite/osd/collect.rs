//! collect: removes objects that no volume names.

use cellar_admin::osd::CollectedView;
use cellar_admin::table::{Side, Table, short_size};
use cellar_wire::ids::VolumeId;

use super::super::print_json;
use super::Osd;
use crate::failure::{Failure, Outcome};
use crate::output::{out, outln};
use crate::quantities;

/// Age in seconds that garbage must have, by default.
const GRACE: u32 = 86_400;

impl Osd<'_> {
    pub(super) async fn collect(&self) -> Outcome {
        let dry = self.invocation.has("dryrun");
        let grace = match self.invocation.get("grace") {
            Some(text) => quantities::seconds(text).ok_or_else(|| {
                Failure::usage(format!(
                    "-grace: '{text}' is not a time; {}",
                    quantities::FORMS
                ))
            })?,
            None => GRACE,
        };
        let volumes = match self.volume().await? {
            Some(volume) => vec![volume],
            None => {
                let volumes = self.osds.volumes_with_objects().await?;
                volumes.into_iter().map(VolumeId).collect()
            }
        };
        let mut all = Vec::new();
        for volume in volumes {
            let collected = self.osds.collect(volume, grace, dry).await?;
            if !self.json {
                show(&collected, dry);
            }
            all.push(collected);
        }
        let stopped = |one: &CollectedView| one.changing || !one.silent.is_empty();
        if self.json {
            print_json(&all)?;
        } else if all.is_empty() {
            outln!("No objects");
        }
        Failure::if_any(all.iter().any(stopped))
    }
}

fn show(collected: &CollectedView, dry: bool) {
    let mut table = Table::new([
        ("Device", Side::Right),
        ("Object", Side::Left),
        ("Version", Side::Right),
        ("Bytes", Side::Right),
    ]);
    for one in &collected.garbage {
        let version = match one.version {
            0 => "all".to_owned(),
            version => version.to_string(),
        };
        let bytes = one.bytes.to_string();
        table.row([one.osd.to_string(), one.object.clone(), version, bytes]);
    }
    if dry && !table.is_empty() {
        out!("{table}");
    }
    let volume = collected.volume;
    let (count, looked) = (collected.garbage.len(), collected.looked);
    match dry {
        true => outln!("Volume {volume}: {looked} objects, {count} pieces of garbage"),
        false => outln!(
            "Volume {volume}: {looked} objects, {count} pieces of garbage collected, {} freed",
            short_size(collected.freed)
        ),
    }
    if collected.young > 0 {
        outln!("    {} unreferenced objects are too young", collected.young);
    }
    if collected.busy > 0 {
        outln!("    {} files were being stored", collected.busy);
    }
    for osd in &collected.away {
        outln!("    device {osd} does not answer and was not checked");
    }
    for server in &collected.silent {
        eprintln!(
            "osd: volume {volume}: file server {server} does not answer: nothing was collected"
        );
    }
    if collected.changing {
        eprintln!(
            "osd: volume {volume}: it is being moved, released or restored: nothing was collected"
        );
    }
}
