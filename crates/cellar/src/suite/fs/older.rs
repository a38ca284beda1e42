//! oldversion: older bytes of files, and removed files, that archives keep.

use cellar_admin::date::to_the_minute;
use cellar_admin::fs::Older;
use cellar_admin::osd::{Device, Osds};
use cellar_admin::table::{Side, Table, short_size};
use serde_json::json;

use super::super::{number, print_json};
use super::Fs;
use crate::failure::{Failure, Failures, Outcome};
use crate::output::{out, outln};
use crate::progress::Progress;

impl Fs<'_> {
    pub(super) async fn older(&self) -> Outcome {
        let listed = self.invocation.list("list");
        match self.invocation.get("restore") {
            Some(_) if !listed.is_empty() => Err(Failure::usage(
                "-list and -restore cannot be combined; name the versions of a file with -list first",
            )),
            Some(path) => self.restore_older(path).await,
            None if listed.is_empty() => Err(Failure::usage(
                "name a file or directory: 'cellar fs oldversion -list PATH', or '-restore FILE'",
            )),
            None => self.list_older(listed).await,
        }
    }

    async fn list_older(&self, paths: &[String]) -> Outcome {
        let all = self.invocation.has("all");
        let mut failures = Failures::of("fs");
        let devices = Osds::new(&self.session.client, &self.session.cell);
        // If the database does not answer, the archives have numbers only.
        let devices = devices.list().await.unwrap_or_default();
        let mut listed = Vec::new();
        for path in paths {
            let older = self.files.older(path, all).await.map_err(Failure::from);
            let Some(older) = failures.note(older) else {
                continue;
            };
            match self.json {
                true => listed.push(json!({ "path": path, "versions": older })),
                false if older.is_empty() => outln!("{path}: archives keep no older versions"),
                false => out!("{}", table(path, &older, &devices, all)),
            }
        }
        if self.json {
            print_json(&listed)?;
        }
        failures.end()
    }

    async fn restore_older(&self, path: &str) -> Outcome {
        let version = self.invocation.get("version");
        let version = version.map(|text| number("-version", text)).transpose()?;
        let chosen = (
            version,
            self.invocation.get("fid"),
            self.invocation.has("all"),
        );
        let older = self.files.choose_older(path, chosen).await?;
        let progress = Progress::bytes(Some(older.length));
        progress.name(path);
        let (to, force) = (self.invocation.get("to"), self.invocation.has("force"));
        let sent = |bytes| progress.at(bytes);
        let restored = self
            .files
            .restore_older(path, &older, to, force, sent)
            .await;
        progress.finish();
        let restored = restored?;
        if self.json {
            return print_json(&restored);
        }
        let made = match restored.new {
            true => "made again",
            false => "restored",
        };
        outln!(
            "{}: {made} with version {} of {}, {}",
            restored.path,
            older.data_version,
            to_the_minute(older.made),
            short_size(older.length)
        );
        Ok(())
    }
}

fn table(path: &str, older: &[Older], devices: &[Device], all: bool) -> String {
    let mut table = Table::new([
        ("Name", Side::Left),
        ("Version", Side::Right),
        ("Length", Side::Right),
        ("Copied", Side::Left),
        ("Archives", Side::Left),
        ("Kept until", Side::Left),
        ("Removed", Side::Left),
    ]);
    let archive = |number: &u32| {
        let known = devices.iter().find(|device| device.id == *number);
        known.map_or_else(|| number.to_string(), |device| device.name.clone())
    };
    for older in older {
        let archives: Vec<String> = older.archives.iter().map(archive).collect();
        let removed = match older.removed {
            Some(time) if older.last => to_the_minute(time),
            Some(time) => format!("{}, later bytes are lost", to_the_minute(time)),
            None => "no".to_owned(),
        };
        table.row([
            match all {
                true => format!("{} ({})", older.name, older.fid),
                false => older.name.clone(),
            },
            older.data_version.to_string(),
            short_size(older.length),
            to_the_minute(older.made),
            archives.join(", "),
            older.until.map_or_else(|| "-".to_owned(), to_the_minute),
            removed,
        ]);
    }
    let mut text = format!("{path}\n");
    for line in table.to_string().lines() {
        text.push_str(&format!("    {line}\n"));
    }
    text
}
