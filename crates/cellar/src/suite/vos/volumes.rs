//! One volume: create, remove, rename, zap, offline, online, setfields, backup, clone, convertROtoRW.

use std::io::IsTerminal;
use std::time::Duration;

use cellar_admin::osd::Osds;
use cellar_admin::vos::{CloneOptions, CreateOptions, Fields, Location};
use cellar_wire::afsvol;
use cellar_wire::ids::VolumeId;
use serde_json::json;

use super::super::{called_server, number, partition, print_json, quota};
use super::Vos;
use crate::failure::{Failure, Outcome};
use crate::output::outln;

impl Vos<'_> {
    fn volume_id(&self, switch: &str) -> Outcome<Option<VolumeId>> {
        let given = self.invocation.get(switch);
        given
            .map(|text| number(&format!("-{switch}"), text).map(VolumeId))
            .transpose()
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
        let options = CreateOptions {
            quota_kib: quota(
                "-maxquota",
                self.invocation.get("maxquota").unwrap_or("5000"),
            )?,
            id: self.volume_id("id")?,
            read_only: self.volume_id("roid")?,
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
        outln!(
            "Volume {} created on partition {partition} of {server}",
            id.0
        );
        Ok(())
    }

    pub(super) async fn remove(mut self) -> Outcome {
        let volume = self.invocation.required("id");
        let entry = self.volumes.entry(volume).await;
        let id = self.id_of(volume, entry.as_ref().ok())?;
        let (address, partition) = match (
            self.invocation.get("server"),
            self.invocation.get("partition"),
        ) {
            (Some(server), Some(part)) => (called_server(self.session, server)?, partition(part)?),
            (None, None) => {
                let entry = entry?;
                let wanted = super::site_flag(&entry, id);
                let mut sites = entry.sites.iter().filter(|site| site.flags & wanted != 0);
                match (sites.next(), sites.next()) {
                    (Some(only), None) => (only.server, only.partition),
                    _ => {
                        return Err(Failure::usage(
                            "the volume has several sites; -server and -partition choose one",
                        ));
                    }
                }
            }
            _ => return Err(Failure::usage("-server and -partition belong together")),
        };
        self.volumes.remove(address, partition, id).await?;
        self.hosts.learn([address]).await;
        if self.json() {
            return print_json(&json!({ "id": id.0, "removed": true }));
        }
        outln!(
            "Volume {} on partition {partition} server {} deleted",
            id.0,
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
                "the VLDB has the new name {new}; volumes whose servers could not be told get it with \
                 their next release or backup"
            )));
        }
        outln!("Renamed volume {old} to {new}");
        Ok(())
    }

    pub(super) async fn zap(&self) -> Outcome {
        let at = self.here()?;
        let volume = self.invocation.required("id");
        let id = self.volume(volume).await?;
        let entry = self.volumes.entry(&id.0.to_string()).await.ok();
        if entry.is_some() {
            eprintln!(
                "Warning: Entry for volume number {} exists in VLDB (but we're zapping it anyway!)",
                id.0
            );
        }
        let force = self.invocation.has("force");
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
                self.volumes.zap(at, backup, force).await?;
                zapped.push(backup.0);
                if !self.json() {
                    outln!("Backup Volume {} deleted", backup.0);
                }
            }
        }
        self.volumes.zap(at, id, force).await?;
        zapped.push(id.0);
        if self.json() {
            return print_json(&json!({ "deleted": zapped }));
        }
        outln!("Volume {} deleted", id.0);
        Ok(())
    }

    pub(super) async fn offline(&self) -> Outcome {
        let at = self.here()?;
        let id = self.volume(self.invocation.required("id")).await?;
        let seconds = self.invocation.get("sleep");
        let time = match (self.invocation.has("busy"), seconds) {
            (true, seconds) => Some(Duration::from_secs(number(
                "-sleep",
                seconds.unwrap_or("0"),
            )?)),
            (false, None) => None,
            (false, Some(_)) => {
                return Err(Failure::usage("-sleep option must be used with -busy flag"));
            }
        };
        self.volumes.off_line(at, id, time).await?;
        self.done(id, "offline")
    }

    pub(super) async fn online(&self) -> Outcome {
        let at = self.here()?;
        let id = self.volume(self.invocation.required("id")).await?;
        self.volumes.on_line(at, id).await?;
        self.done(id, "online")
    }

    /// What succeeds without a word, as JSON.
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
            quota_kib: given.map(|text| quota("-maxquota", text)).transpose()?,
            clear_use: self.invocation.has("clearuse"),
            clear_update_counter: self.invocation.has("clearVolUpCounter"),
        };
        let of_header =
            fields.quota_kib.is_some() || fields.clear_use || fields.clear_update_counter;
        let policy = self.invocation.get("osdpolicy");
        if !of_header && policy.is_none() {
            return Err(Failure::usage(
                "nothing to set; -maxquota, -clearuse, -clearVolUpCounter and -osdpolicy are what can be set",
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
        let entry = self.volumes.entry(volume).await?;
        if self.id_of(volume, Some(&entry))? != entry.read_write {
            return Err(Failure::new(format!("{volume} not RW volume")));
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
        let options = CloneOptions {
            name: self.invocation.get("toname").map(str::to_owned),
            id: self.volume_id("toid")?,
            volume_type,
            off_line: self.invocation.has("offline"),
        };
        let (id, at) = self.volume_and_place(volume).await?;
        let clone = self.volumes.clone_volume(at, id, &options).await?;
        if self.json() {
            return print_json(&json!({ "id": id.0, "clone": clone.0 }));
        }
        outln!("Created clone for volume {volume}");
        Ok(())
    }

    pub(super) async fn convert(mut self) -> Outcome {
        let at = self.here()?;
        let volume = self.invocation.required("id");
        if let Some(old) = self.volumes.read_write_at(volume).await?
            && !self.invocation.has("force")
        {
            self.confirm(old).await?;
        }
        self.volumes.convert_to_read_write(volume, at).await?;
        if self.json() {
            return print_json(&json!({ "volume": volume, "at": at }));
        }
        Ok(())
    }

    /// Asks whether the VLDB may forget a read-write volume.
    async fn confirm(&mut self, old: Location) -> Outcome {
        self.hosts.learn([old.server.into()]).await;
        eprintln!(
            "VLDB indicates that a RW volume exists already on {} in partition {}.",
            self.hosts.name(old.server.into()),
            old.partition
        );
        if !std::io::stdin().is_terminal() {
            return Err(Failure::new(
                "nobody to ask; -force puts the read-only volume in its place",
            ));
        }
        eprintln!("Overwrite this VLDB entry? [y|n] (n)");
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        if answer.trim_start().starts_with(['y', 'Y']) {
            Ok(())
        } else {
            Err(Failure::new("aborted."))
        }
    }
}
