//! Operations on one volume: create, remove, rename, zap, offline, online, setfields, backup,
//! clone, convertROtoRW.

use std::net::IpAddr;
use std::time::Duration;

use cellar_admin::osd::Osds;
use cellar_admin::vos::{CloneOptions, CreateOptions, Entry, Fields, Location, site_flags};
use cellar_wire::afsvol;
use cellar_wire::ids::{PartitionId, VolumeId};
use serde_json::json;

use super::super::{called_server, number, partition, print_json, quota};
use super::Vos;

/// The default quota of a new volume.
const FIRST_QUOTA_KIB: i32 = 5000;
use crate::failure::{Failure, Outcome};
use crate::output::outln;

impl Vos<'_> {
    /// Parses the volume id of a switch; `what` is its name in a refusal.
    fn volume_id(&self, switch: &str, what: &str) -> Outcome<Option<VolumeId>> {
        let Some(text) = self.invocation.get(switch) else {
            return Ok(None);
        };
        let id = text
            .parse()
            .map_err(|_| match text.bytes().all(|b| b.is_ascii_digit()) {
                true => Failure::usage("bad integer specified for volume ID."),
                false => Failure::usage(format!("Given {what} {text} should be numeric.")),
            })?;
        Ok(Some(VolumeId(id)))
    }

    /// The quota of -maxquota. `None` for -1, which OpenAFS's servers take for "unchanged".
    fn quota(&self, refusal: &str) -> Outcome<Option<i32>> {
        match self.invocation.get("maxquota") {
            None | Some("-1") => Ok(None),
            Some(text) => quota(refusal, text).map(Some),
        }
    }

    /// The number of a policy.
    async fn policy(&self, policy: &str) -> Outcome<u32> {
        let osds = Osds::new(&self.session.client, &self.session.cell);
        Ok(osds.policy_id(policy).await?)
    }

    pub(super) async fn create(&self) -> Outcome {
        let server = self.invocation.required("server");
        let address = called_server(self.session, server)?;
        let partition = partition(self.invocation.required("partition"))?;
        let name = self.invocation.required("name");
        self.volumes
            .check_partition(Location::new(address, partition)?)
            .await?;
        let options = CreateOptions {
            quota_kib: self
                .quota("bad integer specified for quota.")?
                .unwrap_or(FIRST_QUOTA_KIB),
            id: self.volume_id("id", "volume ID")?,
            read_only: self.volume_id("roid", "RO volume ID")?,
            policy: match self.invocation.get("osdpolicy") {
                Some(policy) => self.policy(policy).await?,
                None => 0,
            },
        };
        let id = self
            .volumes
            .create(address, partition, name, options)
            .await?;
        if self.json() {
            return print_json(&json!({ "id": id.0, "name": name }));
        }
        if self.invocation.has("verbose") {
            outln!("Volume {name} {} created and brought online", id.0);
            outln!("Created the VLDB entry for the volume {name} {}", id.0);
        }
        outln!(
            "Volume {} created on partition {partition} of {server}",
            id.0
        );
        Ok(())
    }

    pub(super) async fn remove(mut self) -> Outcome {
        let volume = self.invocation.required("id");
        let server = match self.invocation.get("server") {
            Some(server) => Some(called_server(self.session, server)?),
            None => None,
        };
        let part = self
            .invocation
            .get("partition")
            .map(partition)
            .transpose()?;
        if part.is_some() && server.is_none() {
            return Err(Failure::usage(
                "The -partition option requires the -server option.",
            ));
        }
        if let (Some(server), Some(part)) = (server, part) {
            self.volumes
                .check_partition(Location::new(server, part)?)
                .await?;
        }
        let entry = self.volumes.entry(volume).await;
        let entry = match (entry, volume.parse::<u32>()) {
            (Err(error @ cellar_admin::Error::NoSuchEntry(_)), Err(_)) => {
                return Err(Failure::new(format!(
                    "Can't find volume name '{volume}' in VLDB: {error}"
                )));
            }
            (entry, _) => entry,
        };
        let id = self.id_of(volume, entry.as_ref().ok())?;
        let at = match (server, part) {
            (Some(server), Some(part)) => Location::new(server, part)?,
            _ => site_of(&entry?, id, server, part).ok_or_else(|| {
                Failure::new(format!(
                    "VLDB: Volume '{volume}' no match, or more than one: choose one with -server and -partition"
                ))
            })?,
        };
        let address = at.server.into();
        let warnings = self.volumes.remove(address, at.partition, id).await?;
        for warning in &warnings {
            eprintln!("{warning}");
        }
        self.hosts.learn([address]).await;
        if self.json() {
            return print_json(&json!({ "id": id.0, "removed": true, "warnings": warnings }));
        }
        outln!(
            "Volume {} on partition {} server {} deleted",
            id.0,
            at.partition,
            self.hosts.name(address)
        );
        Ok(())
    }

    pub(super) async fn rename(&self) -> Outcome {
        let old = self.invocation.required("oldname");
        let new = self.invocation.required("newname");
        let failed = self.volumes.rename(old, new).await?;
        for error in &failed {
            eprintln!("{error}");
        }
        if self.json() {
            let failed: Vec<_> = failed.iter().map(ToString::to_string).collect();
            print_json(&json!({ "old": old, "new": new, "failed": failed }))?;
            return Failure::if_any(!failed.is_empty());
        }
        if !failed.is_empty() {
            return Err(Failure::new(format!(
                "the VLDB has the new name {new}; volumes whose servers did not answer get it with \
                 their next release or backup"
            )));
        }
        outln!("Renamed volume {old} to {new}");
        Ok(())
    }

    pub(super) async fn zap(&self) -> Outcome {
        let at = self.given_location()?;
        self.volumes.check_partition(at).await?;
        let volume = self.invocation.required("id");
        let id = self.volume(volume).await?;
        let force = self.invocation.has("force");
        if force {
            return self.nuke(at, id).await;
        }
        let entry = self.volumes.entry(&id.0.to_string()).await.ok();
        if entry.is_some() {
            eprintln!(
                "Warning: Entry for volume number {} exists in VLDB (but we're zapping it anyway!)",
                id.0
            );
        }
        let mut zapped = Vec::new();
        if self.invocation.has("backup") {
            let backup = match entry.filter(|entry| entry.read_write == id) {
                Some(entry) => entry.backup,
                None => {
                    self.volumes
                        .volume_on(at.server.into(), at.partition, id, false)
                        .await?
                        .backup
                }
            };
            if backup.0 != 0 {
                self.volumes.zap(at, backup, false).await?;
                zapped.push(backup.0);
                if !self.json() {
                    outln!("Backup Volume {} deleted", backup.0);
                }
            }
        }
        self.volumes.zap(at, id, false).await?;
        zapped.push(id.0);
        if self.json() {
            return print_json(&json!({ "deleted": zapped }));
        }
        outln!("Volume {} deleted", id.0);
        Ok(())
    }

    /// Removes all traces of a volume that cannot be attached.
    async fn nuke(&self, at: Location, id: VolumeId) -> Outcome {
        let gone = self.volumes.zap(at, id, true).await;
        if self.json() {
            gone?;
            return print_json(&json!({ "deleted": [id.0] }));
        }
        let first = format!(
            "vos: forcibly removing all traces of volume {}, please wait...",
            id.0
        );
        match gone {
            Ok(()) => {
                outln!("{first}done.");
                Ok(())
            }
            Err(error) => {
                let code = error.code().map_or(-1, |code| code.0);
                outln!("{first}failed with code {code}.");
                Err(Failure::from(error).coded(super::FAILED))
            }
        }
    }

    pub(super) async fn offline(&self) -> Outcome {
        let at = self.given_location()?;
        let id = self.volume(self.invocation.required("id")).await?;
        let time = match (self.invocation.has("busy"), self.invocation.get("sleep")) {
            (true, seconds) => Some(Duration::from_secs(number(
                "-sleep",
                seconds.unwrap_or("0"),
            )?)),
            (false, None) => None,
            (false, Some(_)) => {
                eprintln!("vos: -sleep has no effect without -busy");
                None
            }
        };
        self.volumes.off_line(at, id, time).await?;
        self.done(id, "offline")
    }

    pub(super) async fn online(&self) -> Outcome {
        let at = self.given_location()?;
        let id = self.volume(self.invocation.required("id")).await?;
        self.volumes.on_line(at, id).await?;
        self.done(id, "online")
    }

    /// The JSON result of operations that print nothing otherwise.
    fn done(&self, id: VolumeId, what: &str) -> Outcome {
        if self.json() {
            return print_json(&json!({ "id": id.0, "done": what }));
        }
        Ok(())
    }

    pub(super) async fn setfields(&self) -> Outcome {
        let volume = self.invocation.required("id");
        let given = self.invocation.get("maxquota");
        let fields = Fields {
            quota_kib: match given {
                Some(text) => Some(quota("invalid quota value", text)?),
                None => None,
            },
            clear_use: self.invocation.has("clearuse"),
            clear_update_counter: self.invocation.has("clearVolUpCounter"),
        };
        let of_header =
            fields.quota_kib.is_some() || fields.clear_use || fields.clear_update_counter;
        let policy = self.invocation.get("osdpolicy");
        if !of_header && policy.is_none() {
            return Err(Failure::usage(
                "Nothing to set. Give -maxquota, -clearuse, -clearVolUpCounter or -osdpolicy",
            ));
        }
        let (id, at) = self.volume_and_place(volume).await?;
        if of_header {
            self.volumes.set_fields(at, id, fields).await?;
        }
        if let Some(policy) = policy {
            let policy = self.policy(policy).await?;
            self.volumes.set_policy(at, id, policy).await?;
        }
        self.done(id, "setfields")
    }

    pub(super) async fn backup(&self) -> Outcome {
        let volume = self.invocation.required("id");
        let entry =
            self.volumes
                .entry(volume)
                .await
                .map_err(|error| match volume.parse::<u32>() {
                    Ok(_) => Failure::from(error).coded(crate::failure::FAILED),
                    Err(_) => Failure::from(error),
                })?;
        if self.id_of(volume, Some(&entry))? != entry.read_write {
            let reason = format!("{volume} not RW volume");
            return Err(Failure::new(reason).coded(crate::failure::FAILED));
        }
        let backup = self.volumes.backup_entry(&entry).await?;
        if self.json() {
            return print_json(&json!({ "id": entry.read_write.0, "backup": backup.0 }));
        }
        outln!("Created backup volume for {volume} ");
        Ok(())
    }

    pub(super) async fn clone_volume(&self) -> Outcome {
        let volume = self.invocation.required("id");
        let volume_type = match (
            self.invocation.has("readwrite"),
            self.invocation.has("readonly"),
        ) {
            (true, true) => {
                return Err(Failure::usage(
                    "cannot specify that a volume be -readwrite and -readonly",
                ));
            }
            (true, false) => afsvol::READWRITE,
            (false, true) => afsvol::READONLY,
            (false, false) => afsvol::BACKUP,
        };
        let (id, at) = self.volume_and_place(volume).await?;
        let options = CloneOptions {
            name: self.invocation.get("toname").map(str::to_owned),
            id: match self.invocation.get("toid") {
                Some(clone) => Some(self.volume(clone).await?),
                None => None,
            },
            volume_type,
            off_line: self.invocation.has("offline"),
        };
        let clone = self.volumes.clone_volume(at, id, &options).await?;
        if self.json() {
            return print_json(&json!({ "id": id.0, "clone": clone.0 }));
        }
        outln!("Created clone for volume {volume}");
        Ok(())
    }

    pub(super) async fn convert(mut self) -> Outcome {
        let at = self.given_location()?;
        self.volumes.check_partition(at).await?;
        let volume = self.invocation.required("id");
        let entry = self.volumes.entry(volume).await?;
        let read_only = entry
            .sites
            .iter()
            .find(|site| site.flags & site_flags::READ_ONLY != 0 && site.server == at.server);
        if let Some(site) = read_only
            && site.partition != at.partition
        {
            eprintln!(
                "Warning: RO volume should be in partition {} instead of {} (vldb)",
                site.partition.number(),
                at.partition.number()
            );
        }
        if let Some(old) = self.volumes.read_write_at(volume).await? {
            self.confirm(old).await?;
        }
        self.volumes.convert_to_read_write(volume, at).await?;
        if self.json() {
            return print_json(&json!({ "volume": volume, "at": at }));
        }
        Ok(())
    }

    /// Asks whether the read-write volume in the VLDB may be replaced. -force answers yes.
    async fn confirm(&mut self, old: Location) -> Outcome {
        self.hosts.learn([old.server.into()]).await;
        eprintln!(
            "VLDB indicates that a RW volume exists already on {} in partition {}.",
            self.hosts.name(old.server.into()),
            old.partition
        );
        if self.invocation.has("force") {
            return Ok(());
        }
        eprintln!("Overwrite this VLDB entry? [y|n] (n)");
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        if answer.trim_start().starts_with(['y', 'Y']) {
            Ok(())
        } else {
            Err(Failure::new(
                "aborted. -force replaces it by the read-only volume",
            ))
        }
    }
}

/// The site to remove a volume from, if exactly one site fits the arguments.
fn site_of(
    entry: &Entry,
    id: VolumeId,
    server: Option<IpAddr>,
    partition: Option<PartitionId>,
) -> Option<Location> {
    let wanted = super::site_flag(entry, id);
    let mut sites = entry.sites.iter().filter(|site| {
        site.flags & wanted != 0
            && server.is_none_or(|server| server == site.server)
            && partition.is_none_or(|partition| partition == site.partition)
    });
    match (sites.next(), sites.next()) {
        (Some(only), None) => Location::new(only.server, only.partition).ok(),
        _ => None,
    }
}
