//! traverse: prints the three tables of AFS/OSD's command: files by size, usage by place, data
//! without a second copy.

use std::collections::HashMap;

use cellar_admin::osd::{Device, Osds};
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
        let devices = self.devices().await;
        for (volume, why) in &found.missed {
            eprintln!("Volume {volume} was not examined: {why}");
        }
        if self.json() {
            let named = |places: &[PlaceUsage]| {
                let named = places.iter().map(|place| {
                    let mut shown = json!(place);
                    let (kind, name) = kind_and_name(&devices, place.id);
                    shown["kind"] = kind.into();
                    shown["name"] = name.into();
                    shown
                });
                named.collect::<Vec<_>>()
            };
            let mut shown = json!(found);
            shown["places"] = named(&found.places).into();
            shown["single"] = named(&found.single).into();
            print_json(&shown)?;
        } else {
            print(&found, &devices);
        }
        Failure::if_any(!found.missed.is_empty())
    }

    /// The devices by number. If the database does not answer, devices have only numbers.
    async fn devices(&self) -> HashMap<u32, Device> {
        let osds = Osds::new(&self.session.client, &self.session.cell);
        match osds.list().await {
            Ok(devices) => devices
                .into_iter()
                .map(|device| (device.id, device))
                .collect(),
            Err(error) => {
                eprintln!("Cannot look up the names of devices: {error}");
                HashMap::new()
            }
        }
    }
}

/// The kind and the name of a place.
fn kind_and_name(devices: &HashMap<u32, Device>, id: u32) -> (&'static str, String) {
    match (devices.get(&id), id) {
        (Some(device), 1) => ("fileserver", device.name.clone()),
        (None, 1) => ("fileserver", "local_disk".to_owned()),
        (Some(device), _) if device.archival => ("archival", device.name.clone()),
        (Some(device), _) => ("disk", device.name.clone()),
        (None, _) => ("?", "?".to_owned()),
    }
}

fn print(found: &Traversed, devices: &HashMap<u32, Device>) {
    outln!(
        "{} volumes: {} files with {}, {} of them in objects; {} directories and links",
        found.volumes,
        found.files,
        short_size(found.bytes),
        found.files_in_objects,
        found.others
    );
    if found.files_wiped > 0 {
        outln!(
            "{} files with {} are wiped: only archives have their bytes",
            found.files_wiped,
            short_size(found.bytes_wiped)
        );
    }
    outln!("\nFiles by size");
    out!("{}", sizes(&found.sizes));
    outln!("\nUsage by place");
    out!("{}", places(&found.places, devices));
    outln!("\nData without a second copy");
    out!("{}", places(&found.single, devices));
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

fn places(places: &[PlaceUsage], devices: &HashMap<u32, Device>) -> String {
    let mut table = Table::new([
        ("kind", Side::Left),
        ("id", Side::Right),
        ("name", Side::Left),
        ("objects", Side::Right),
        ("data", Side::Right),
    ]);
    for place in places {
        let (kind, name) = kind_and_name(devices, place.id);
        table.row([
            kind.to_owned(),
            place.id.to_string(),
            name,
            place.objects.to_string(),
            short_size(place.bytes),
        ]);
    }
    let sum = |what: fn(&PlaceUsage) -> u64| places.iter().map(what).sum::<u64>();
    table.row([
        "total".to_owned(),
        String::new(),
        String::new(),
        sum(|place| place.objects).to_string(),
        short_size(sum(|place| place.bytes)),
    ]);
    table.to_string()
}
