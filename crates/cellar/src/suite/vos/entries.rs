//! Operations on the VLDB: sites, locations, locks, addresses of servers, and synchronisation with
//! the servers.

use std::net::{IpAddr, Ipv4Addr};

use cellar_admin::vos::{EntryFilter, SyncReport, lock_operation};
use cellar_wire::ids::{PartitionId, VolumeId};
use serde_json::json;

use super::super::{called_server, partition, print_json, server_address};
use super::{Vos, uuid};
use crate::failure::{Failure, Outcome};
use crate::output::{out, outln};
use crate::progress::Progress;

impl Vos<'_> {
    pub(super) async fn addsite(&self) -> Outcome {
        let at = self.given_location()?;
        let volume = self.invocation.required("id");
        let read_only = match self.invocation.get("roid") {
            Some(text) => {
                let invalid = |_| Failure::usage(format!("invalid ro volume id '{text}'"));
                Some(VolumeId(text.parse().map_err(invalid)?))
            }
            None => None,
        };
        let valid = self.invocation.has("valid");
        let added = self.volumes.add_site(volume, at, read_only, valid).await;
        if let Some(warning) = added? {
            eprintln!("{warning}");
        }
        self.site_done("Added", volume, at.partition)
    }

    pub(super) async fn remsite(&self) -> Outcome {
        let at = self.given_location()?;
        let volume = self.invocation.required("id");
        let id = self.volumes.remove_site(volume, at).await?;
        if !self.json() {
            outln!("Deleting the replication site for volume {} ... done", id.0);
        }
        self.site_done("Removed", volume, at.partition)
    }

    fn site_done(&self, done: &str, volume: &str, partition: PartitionId) -> Outcome {
        let server = self.invocation.required("server");
        if self.json() {
            return print_json(&json!({
                "volume": volume, "server": server, "partition": partition.to_string(), "done": done,
            }));
        }
        outln!("{done} replication site {server} {partition} for volume {volume}");
        Ok(())
    }

    pub(super) async fn changeloc(&self) -> Outcome {
        let at = self.given_location()?;
        let volume = self.invocation.required("id");
        self.volumes.change_location(volume, at).await?;
        if self.json() {
            return print_json(&json!({ "volume": volume, "at": at }));
        }
        outln!(
            "Changed location to {} {} for volume {volume}",
            self.invocation.required("server"),
            at.partition
        );
        Ok(())
    }

    pub(super) async fn delentry(&self) -> Outcome {
        let named = self.invocation.list("id");
        let dry_run = self.invocation.has("dryrun") || self.invocation.has("noexecute");
        let by_place = ["prefix", "server", "partition"]
            .iter()
            .any(|switch| self.invocation.has(switch));
        if !named.is_empty() && by_place {
            let reason = "You cannot use -server, -partition, or -prefix with the -id argument";
            return Err(Failure::usage(reason).coded(NO_OPTION));
        }
        let names: Vec<String> = if named.is_empty() {
            if !self.invocation.has("server") {
                let with =
                    |switch: &str| format!("You must provide -server with the {switch} argument");
                let reason = match (
                    self.invocation.has("prefix"),
                    self.invocation.has("partition"),
                ) {
                    (true, false) => with("-prefix"),
                    (_, true) => with("-partition"),
                    _ => "You must specify an option".to_owned(),
                };
                return Err(Failure::usage(reason).coded(NO_OPTION));
            }
            let prefix = self.invocation.get("prefix").unwrap_or("");
            let entries = self.volumes.entries(self.filter(false)?).await?;
            let fitting = entries
                .into_iter()
                .filter(|entry| entry.name.starts_with(prefix));
            fitting.map(|entry| entry.name).collect()
        } else {
            named.to_vec()
        };
        if !self.json() && named.is_empty() {
            let mut heading = format!(
                "Deleting VLDB entries for server {} ",
                self.invocation.required("server")
            );
            if let Some(text) = self.invocation.get("partition") {
                heading.push_str(&format!("partition {} ", partition(text)?));
            }
            if let Some(prefix) = self.invocation.get("prefix") {
                heading.push_str(&format!("which are prefixed with {prefix} "));
            }
            outln!("{heading}");
        }
        let (mut deleted, mut failed) = (Vec::new(), Vec::new());
        for name in &names {
            if dry_run {
                if !self.json() {
                    outln!("Would have deleted VLDB entry for {name} ");
                }
                continue;
            }
            match self.volumes.delete_entry(name).await {
                Ok(()) => deleted.push(name),
                // An unknown name is skipped, as by OpenAFS's vos.
                Err(error @ cellar_admin::Error::NoSuchEntry(_)) if !is_number(name) => {
                    eprintln!("{error}");
                }
                Err(error) => {
                    eprintln!("{error}");
                    failed.push(name);
                }
            }
        }
        if self.json() {
            print_json(&json!({ "deleted": deleted, "failed": failed, "would": dry_run }))?;
        } else if named.is_empty() {
            outln!(
                "----------------------\nTotal VLDB entries deleted: {}; failed to delete: {}",
                deleted.len(),
                failed.len()
            );
        } else {
            outln!("Deleted {} VLDB entries", deleted.len());
        }
        Failure::if_any(!failed.is_empty())
    }

    pub(super) fn filter(&self, locked: bool) -> Outcome<EntryFilter> {
        let server = self.invocation.get("server");
        let part = self.invocation.get("partition");
        Ok(EntryFilter {
            server: server.map(server_address).transpose()?,
            partition: part.map(partition).transpose()?,
            locked,
        })
    }

    pub(super) async fn lock(&self) -> Outcome {
        let volume = self.invocation.required("id");
        let entry = self.volumes.entry(volume).await?;
        if self.invocation.command == "lock" {
            self.volumes
                .lock(entry.read_write, cellar_wire::vl::VLOP_DELETE)
                .await?;
            if !self.json() {
                outln!("Locked VLDB entry for volume {volume}");
            }
        } else {
            self.volumes.unlock(entry.read_write).await?;
            if !self.json() {
                outln!("Released lock on vldb entry for volume {volume}");
            }
        }
        match self.json() {
            true => print_json(&json!({
                "id": entry.read_write.0,
                "locked": self.invocation.command == "lock",
            })),
            false => Ok(()),
        }
    }

    pub(super) async fn unlockvldb(&self) -> Outcome {
        let entries = self.volumes.entries(self.filter(true)?).await?;
        let mut failed = 0;
        for entry in &entries {
            if let Err(error) = self.volumes.unlock(entry.read_write).await {
                eprintln!("Could not unlock entry for volume {}: {error}", entry.name);
                failed += 1;
            }
        }
        if self.json() {
            let names: Vec<_> = entries
                .iter()
                .map(|entry| json!({ "name": entry.name, "was": lock_operation(entry.flags) }))
                .collect();
            print_json(&json!({ "unlocked": names, "failed": failed }))?;
            return Failure::if_any(failed > 0);
        }
        if failed > 0 {
            outln!(
                "Could not lock {failed} VLDB entries of {} locked entries",
                entries.len()
            );
            return Failure::if_any(true);
        }
        let part = self
            .invocation
            .get("partition")
            .map(partition)
            .transpose()?;
        match (self.invocation.get("server"), part) {
            (Some(server), Some(part)) => outln!(
                "Unlocked all the VLDB entries for volumes on server {server} partition {part}"
            ),
            (Some(server), None) => {
                outln!("Unlocked all the VLDB entries for volumes on server {server} ");
            }
            (None, Some(part)) => outln!(
                "Unlocked all the VLDB entries for volumes on partition {part} on all servers"
            ),
            (None, None) => {}
        }
        Ok(())
    }

    pub(super) async fn changeaddr(&self) -> Outcome {
        let old = self.invocation.required("oldaddr");
        let invalid = |_| Failure::usage("invalid host address");
        let address = ipv4(old).map_err(invalid)?;
        let which = "Must specify either '-newaddr <addr>' or '-remove' flag";
        match self.invocation.get("newaddr") {
            Some(_) if self.invocation.has("remove") => return Err(Failure::usage(which)),
            Some(new) => {
                let new_address = ipv4(new).map_err(invalid)?;
                self.volumes.change_address(address, new_address).await?;
                if !self.json() {
                    outln!("Changed server {old} to server {new}");
                }
            }
            None if self.invocation.has("remove") => {
                self.volumes.remove_address(address).await?;
                if !self.json() {
                    outln!("Removed server {old} from the VLDB");
                }
            }
            None => return Err(Failure::usage(which)),
        }
        match self.json() {
            true => print_json(&json!({ "old": old, "new": self.invocation.get("newaddr") })),
            false => Ok(()),
        }
    }

    pub(super) async fn setaddrs(&self) -> Outcome {
        let uuid = uuid(self.invocation.required("uuid"))?;
        let hosts = self.invocation.list("host");
        let address = |host: &String| {
            ipv4(host).map_err(|_| Failure::usage(format!("Can't get host info for '{host}'")))
        };
        let addresses: Outcome<Vec<_>> = hosts.iter().map(address).collect();
        self.volumes.set_addresses(uuid, &addresses?).await?;
        match self.json() {
            true => print_json(&json!({ "uuid": uuid.to_string(), "addresses": hosts })),
            false => Ok(()),
        }
    }

    pub(super) async fn remaddrs(&self) -> Outcome {
        let uuid = uuid(self.invocation.required("uuid"))?;
        let listed = self.volumes.server_addresses(Ok(uuid)).await;
        let listed = listed.map_err(|error| match error {
            cellar_admin::Error::NoSuchEntry(_) => Failure::new(format!("UUID not found: {error}")),
            other => other.into(),
        })?;
        let Some(IpAddr::V4(first)) = listed.addresses.first() else {
            return Err(Failure::new(format!("server {uuid} has no addresses")));
        };
        self.volumes.remove_address(*first).await?;
        match self.json() {
            true => print_json(&json!({ "uuid": uuid.to_string(), "removed": true })),
            false => Ok(()),
        }
    }

    pub(super) async fn syncvldb(&self) -> Outcome {
        let server = self.invocation.get("server");
        let address = server
            .map(|server| called_server(self.session, server))
            .transpose()?;
        let part = self
            .invocation
            .get("partition")
            .map(partition)
            .transpose()?;
        let address = address.map(v4).transpose()?;
        if part.is_some() && address.is_none() {
            return Err(Failure::usage(
                "The -partition option requires a -server option",
            ));
        }
        let dry_run = self.invocation.has("dryrun");
        let progress = Progress::entries();
        let report = match (self.invocation.get("volume"), address) {
            (Some(volume), server) => {
                self.volumes
                    .sync_volume(volume, server, part, dry_run)
                    .await?
            }
            (None, Some(server)) => {
                let seen = |info: &cellar_admin::vos::VolumeInfo, _| {
                    progress.name(&info.name);
                    progress.add(1);
                };
                self.volumes.sync_vldb(server, part, dry_run, seen).await?
            }
            (None, None) => {
                return Err(Failure::usage(
                    "Without a -volume option, the -server option is required",
                ));
            }
        };
        progress.finish();
        let mut line = match self.invocation.get("volume") {
            Some(volume) => format!("VLDB volume {volume} synchronized"),
            None => "VLDB synchronized".to_owned(),
        };
        if let Some(server) = server {
            line.push_str(&format!(" with state of server {server}"));
        }
        if let Some(part) = part {
            line.push_str(&format!(" partition {part}\n"));
        }
        self.report(&report, &line)
    }

    pub(super) async fn syncserv(&self) -> Outcome {
        let server = self.invocation.required("server");
        let address = v4(called_server(self.session, server)?)?;
        let part = self
            .invocation
            .get("partition")
            .map(partition)
            .transpose()?;
        let progress = Progress::entries();
        let seen = |name: &str, _| {
            progress.name(name);
            progress.add(1);
        };
        let dry_run = self.invocation.has("dryrun");
        let report = self
            .volumes
            .sync_server(address, part, dry_run, seen)
            .await?;
        progress.finish();
        let line = match part {
            Some(part) => format!("Server {server} partition {part} synchronized with VLDB"),
            None => format!("Server {server} synchronized with VLDB"),
        };
        self.report(&report, &line)
    }

    /// Prints the result of a synchronisation. As in the original `vos`, single entries are printed
    /// only with -verbose or -dryrun.
    fn report(&self, report: &SyncReport, line: &str) -> Outcome {
        for repair in &report.repairs {
            for warning in &repair.warnings {
                eprintln!("*** Warning: {warning}");
            }
        }
        for failure in &report.failures {
            eprintln!("{failure}");
        }
        if self.json() {
            print_json(report)?;
        } else {
            let dry_run = self.invocation.has("dryrun");
            if dry_run || self.invocation.has("verbose") {
                for repair in report.repairs.iter().filter(|repair| repair.changed) {
                    outln!("_______________________________\n\n-- status before -- ");
                    match &repair.before {
                        Some(entry) => out!("{}", entry.listing(&self.hosts)),
                        None => outln!("\n**does not exist**"),
                    }
                    outln!("\n-- status after --");
                    match &repair.after {
                        Some(entry) => out!("{}", entry.listing(&self.hosts)),
                        None => outln!("\n**entry deleted**"),
                    }
                    outln!("\n_______________________________");
                }
                outln!(
                    "Total entries: {}, Failed to process {}, {} {}",
                    report.total,
                    report.failures.len(),
                    if dry_run { "Would change" } else { "Changed" },
                    report.changed()
                );
            }
            if report.failures.is_empty() {
                outln!("{line}");
            }
        }
        Failure::if_any(!report.failures.is_empty())
    }

    pub(super) async fn endtrans(&self) -> Outcome {
        let server = called_server(self.session, self.invocation.required("server"))?;
        let transaction = self.invocation.required("transaction").parse();
        let transaction =
            transaction.map_err(|_| Failure::usage("bad integer specified for transaction ID."))?;
        self.volumes.end_transaction(server, transaction).await?;
        match self.json() {
            true => print_json(&json!({ "ended": transaction })),
            false => Ok(()),
        }
    }
}

/// The exit status of a delentry without a selection of entries.
const NO_OPTION: u8 = 254;

/// Returns whether an entry was named by a number.
fn is_number(volume: &str) -> bool {
    volume.parse::<u32>().is_ok()
}

fn v4(address: IpAddr) -> Outcome<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Ok(address),
        IpAddr::V6(address) => Err(Failure::usage(format!(
            "{address}: file servers have IPv4 addresses"
        ))),
    }
}

fn ipv4(text: &str) -> Outcome<Ipv4Addr> {
    v4(server_address(text)?)
}
