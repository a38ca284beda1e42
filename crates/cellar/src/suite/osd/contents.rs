//! statistics, objects, volumes, files, repair-status: the contents of devices.

use cellar_admin::osd::objects_head;
use cellar_admin::table::{Side, Table, short_size};
use cellar_admin::vos::Volumes;
use cellar_wire::ids::VolumeId;
use serde_json::json;

use super::super::{number, print_json};
use super::Osd;
use crate::failure::{Failure, Outcome};
use crate::output::{out, outln};

impl Osd<'_> {
    pub(super) async fn statistics(&self) -> Outcome {
        let figures = self.osds.statistics(self.invocation.required("id")).await?;
        if self.json {
            let figures = figures
                .into_iter()
                .map(|(name, value)| (name, json!(value)));
            return print_json(&figures.collect::<serde_json::Map<_, _>>());
        }
        let mut table = Table::new([("Counter", Side::Left), ("Value", Side::Right)]);
        for (name, value) in figures {
            table.row([name, value.to_string()]);
        }
        out!("{table}");
        Ok(())
    }

    fn at_most(&self) -> Outcome<usize> {
        match self.invocation.get("max") {
            Some(text) => number("-max", text),
            None => Ok(usize::MAX),
        }
    }

    /// The read-write volume that objects belong to.
    pub(super) async fn volume(&self) -> Outcome<Option<VolumeId>> {
        let Some(volume) = self.invocation.get("volume") else {
            return Ok(None);
        };
        if let Ok(id) = volume.parse() {
            return Ok(Some(VolumeId(id)));
        }
        let volumes = Volumes::new(&self.session.client, &self.session.cell);
        Ok(Some(volumes.entry(volume).await?.read_write))
    }

    pub(super) async fn objects(&self) -> Outcome {
        let mut left = self.at_most()?;
        let volume = self.volume().await?;
        let removed = self.invocation.has("onlyunlinked");
        let (mut all, mut head) = (Vec::new(), Some(objects_head()));
        let listed = self
            .osds
            .objects(self.invocation.required("id"), volume, removed, |object| {
                if left == 0 {
                    return false;
                }
                left -= 1;
                match self.json {
                    true => all.push(object),
                    false => out!("{}{}", head.take().unwrap_or_default(), object.row()),
                }
                left > 0
            });
        listed.await?;
        if self.json {
            return print_json(&all);
        }
        if head.is_some() {
            outln!("No objects");
        }
        Ok(())
    }

    pub(super) async fn volumes(&self) -> Outcome {
        let volumes = self.osds.volumes(self.invocation.required("id")).await?;
        if self.json {
            let volumes = volumes.iter().map(|(id, of_volume)| {
                json!({
                    "volume": id,
                    "objects": of_volume.objects,
                    "allocated": of_volume.allocated,
                    "length": of_volume.length,
                })
            });
            return print_json(&volumes.collect::<Vec<_>>());
        }
        let known = Volumes::new(&self.session.client, &self.session.cell);
        let mut table = Table::new([
            ("Volume", Side::Right),
            ("Name", Side::Left),
            ("Objects", Side::Right),
            ("Takes", Side::Right),
        ]);
        for (id, of_volume) in &volumes {
            let name = known.entry(&id.to_string()).await;
            table.row([
                id.to_string(),
                name.map_or_else(|_| "-".to_owned(), |entry| entry.name),
                of_volume.objects.to_string(),
                short_size(of_volume.allocated),
            ]);
        }
        match table.is_empty() {
            true => outln!("No objects"),
            false => out!("{table}"),
        }
        Ok(())
    }

    pub(super) async fn files(&self) -> Outcome {
        let device = self.osds.device(self.invocation.required("id")).await?;
        let found = self.osds.files_on(device.id, self.at_most()?).await?;
        if self.json {
            let files = found.files.iter();
            let files: Vec<_> = files
                .map(|(server, fid)| json!({ "server": server, "fid": fid }))
                .collect();
            return print_json(&json!({ "files": files, "silent": found.silent }));
        }
        let mut table = Table::new([("Fid", Side::Left), ("File server", Side::Left)]);
        for (server, fid) in &found.files {
            table.row([fid.clone(), server.to_string()]);
        }
        match table.is_empty() {
            true => outln!("No files"),
            false => out!("{table}"),
        }
        say_silent(&found.silent)
    }

    pub(super) async fn repair_status(&self) -> Outcome {
        let (queues, silent) = self.osds.repairs().await?;
        if self.json {
            return print_json(&json!({ "servers": queues, "silent": silent }));
        }
        let mut table = Table::new([
            ("File server", Side::Left),
            ("Waiting", Side::Right),
            ("To copy", Side::Right),
            ("Running", Side::Right),
            ("Failed", Side::Right),
            ("Repaired", Side::Right),
            ("Healed", Side::Right),
            ("Copied", Side::Right),
            ("A second", Side::Right),
        ]);
        for queue in &queues {
            table.row([
                queue.server.to_string(),
                queue.waiting.to_string(),
                short_size(queue.waiting_bytes),
                queue.running.to_string(),
                queue.failed.to_string(),
                queue.repaired.to_string(),
                queue.healed.to_string(),
                short_size(queue.bytes),
                short_size(queue.rate),
            ]);
        }
        match table.is_empty() {
            true => outln!("No file server of the cell uses objects"),
            false => out!("{table}"),
        }
        say_silent(&silent)
    }
}

/// Reports silent servers. The list is incomplete without them.
fn say_silent(silent: &[std::net::IpAddr]) -> Outcome {
    for server in silent {
        eprintln!("osd: file server {server} does not answer");
    }
    Failure::if_any(!silent.is_empty())
}
