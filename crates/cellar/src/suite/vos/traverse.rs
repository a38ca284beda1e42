//! traverse: prints the three tables of AFS/OSD's command: files by size, usage by place, data
//! without a second copy.

use std::collections::HashMap;

use cellar_admin::osd::Osds;
use cellar_admin::table::{Side, Table, short_size};
use cellar_admin::vos::job::JobContext;
use cellar_admin::vos::{PlaceUsage, Scope, SizeClass, Traversed};
use serde_json::json;

use super::super::{called_server, print_json};
use super::Vos;
use super::streams::Speaker;
use crate::failure::{Failure, Outcome};
use crate::output::{out, outln};
use crate::progress::Progress;

impl Vos<'_> {
    pub(super) async fn traverse(&self) -> Outcome {
        let scope = match (self.invocation.get("server"), self.invocation.get("volume")) {
            (None, None) => Scope::Cell,
            (Some(server), None) => Scope::Server(called_server(self.session, server)?),
            (None, Some(volume)) => Scope::Volume(volume.to_owned()),
            (Some(_), Some(_)) => {
                return Err(Failure::usage("-server or -volume, not both"));
            }
        };
        let volumes = self.volumes.traversable(&scope).await?;
        let progress = Progress::count(volumes.len() as u64);
        let speaker = Speaker(&progress);
        let found = super::jobs::run(&speaker, async |context: JobContext<'_>| {
            let mut begun = false;
            let seen = |volume: &cellar_admin::vos::Traversable| {
                if std::mem::replace(&mut begun, true) {
                    progress.add(1);
                }
                progress.name(volume.name());
            };
            self.volumes.traverse(&volumes, context, seen).await
        })
        .await;
        progress.finish();
        let found = found?;
        let names = self.device_names().await;
        for (volume, why) in &found.missed {
            eprintln!("Volume {volume} was not examined: {why}");
        }
        if self.json() {
            let named = |places: &[PlaceUsage]| {
                let named = places.iter().map(|place| {
                    let mut shown = json!(place);
                    shown["name"] = name(&names, place.id).into();
                    shown
                });
                named.collect::<Vec<_>>()
            };
            let mut shown = json!(found);
            shown["places"] = named(&found.places).into();
            shown["single"] = named(&found.single).into();
            print_json(&shown)?;
        } else {
            print(&found, &names);
        }
        Failure::if_any(!found.missed.is_empty())
    }

    /// The names of devices. If the database does not answer, devices have only numbers.
    async fn device_names(&self) -> HashMap<u32, String> {
        let osds = Osds::new(&self.session.client, &self.session.cell);
        match osds.list().await {
            Ok(devices) => devices
                .into_iter()
                .map(|device| (device.id, device.name))
                .collect(),
            Err(error) => {
                eprintln!("Cannot look up the names of devices: {error}");
                HashMap::new()
            }
        }
    }
}

fn name(names: &HashMap<u32, String>, id: u32) -> String {
    match (names.get(&id), id) {
        (Some(name), _) => name.clone(),
        (None, 1) => "local_disk".to_owned(),
        (None, _) => "?".to_owned(),
    }
}

fn print(found: &Traversed, names: &HashMap<u32, String>) {
    outln!(
        "{} volumes: {} files with {}, {} of them in objects; {} directories and links",
        found.volumes,
        found.files,
        short_size(found.bytes),
        found.files_in_objects,
        found.others
    );
    outln!("\nFiles by size");
    out!("{}", sizes(&found.sizes));
    outln!("\nUsage by place");
    out!("{}", places(&found.places, names));
    outln!("\nData without a second copy");
    out!("{}", places(&found.single, names));
}

fn sizes(sizes: &[SizeClass]) -> String {
    let right = |text| (text, Side::Right);
    let mut table = Table::new([
        right("from"),
        right("to"),
        right("files"),
        right("%"),
        right("run %"),
        right("data"),
        right("%"),
        right("run %"),
    ]);
    for size in sizes {
        let percent = |percent: f64| format!("{percent:.2}");
        table.row([
            short_size(size.above),
            short_size(size.to),
            size.files.to_string(),
            percent(size.files_percent),
            percent(size.files_running),
            short_size(size.bytes),
            percent(size.bytes_percent),
            percent(size.bytes_running),
        ]);
    }
    table.to_string()
}

fn places(places: &[PlaceUsage], names: &HashMap<u32, String>) -> String {
    let mut table = Table::new([
        ("id", Side::Right),
        ("name", Side::Left),
        ("objects", Side::Right),
        ("data", Side::Right),
    ]);
    for place in places {
        table.row([
            place.id.to_string(),
            name(names, place.id),
            place.objects.to_string(),
            short_size(place.bytes),
        ]);
    }
    let sum = |what: fn(&PlaceUsage) -> u64| places.iter().map(what).sum::<u64>();
    table.row([
        String::new(),
        "total".to_owned(),
        sum(|place| place.objects).to_string(),
        short_size(sum(|place| place.bytes)),
    ]);
    table.to_string()
}
