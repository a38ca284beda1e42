//! Operations that only read: examine, listvol, listvldb, listpart, partinfo, listaddrs, status,
//! size.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cellar_admin::vos::{
    EntryFilter, Location, NamedLocation, Order, VolumeInfo, VolumeState, entry_flags,
};
use cellar_wire::AbortCode;
use cellar_wire::ids::PartitionId;
use serde_json::json;

use super::super::{called_server, partition, print_json, server_address};
use super::{Vos, uuid};
use crate::failure::{Failure, Outcome};
use crate::output::{out, outln};

impl Vos<'_> {
    pub(super) async fn examine(mut self) -> Outcome {
        let volume = self.invocation.required("id");
        let entry = self.volumes.entry(volume).await?;
        let id = self.id_of(volume, Some(&entry))?;
        let is_backup = id == entry.backup && id != entry.read_write;
        let wanted = super::site_flag(&entry, id);
        self.hosts
            .learn(entry.sites.iter().map(|site| site.server))
            .await;
        let extended = self.invocation.has("extended");
        let mut found = Vec::new();
        let mut text = String::new();
        let mut failed = false;
        let mut sites = 0;
        for site in entry.sites.iter().filter(|site| site.flags & wanted != 0) {
            sites += 1;
            let info = self
                .volumes
                .volume_on(site.server, site.partition, id, extended)
                .await;
            match info {
                Ok(info) => {
                    let place = NamedLocation {
                        server: site.server,
                        partition: site.partition,
                        hosts: &self.hosts,
                    };
                    text.push_str(&self.shown(&info, place));
                    found.push(json!({ "server": site.server, "volume": info }));
                }
                Err(error) => {
                    let missing = error.code() == Some(AbortCode::ENODEV);
                    eprintln!("{error}");
                    if missing && is_backup && entry.flags & entry_flags::BACKUP_EXISTS == 0 {
                        eprintln!("Volume {volume} does not exist");
                    } else if missing {
                        let host = self.hosts.name(site.server);
                        eprintln!(
                            "Volume does not exist on server {host} as indicated by the VLDB"
                        );
                    }
                    failed = true;
                }
            }
            text.push('\n');
        }
        if sites == 0 {
            eprintln!("Volume {volume} does not exist in VLDB\n");
            failed = true;
        }
        let lock = match entry.is_locked() {
            true => self.volumes.lock_info(entry.read_write).await?,
            false => None,
        };
        if self.json() {
            print_json(&json!({ "entry": entry, "lock": lock, "volumes": found }))?;
            return Failure::if_any(failed);
        }
        out!("{text}");
        if found.is_empty() {
            eprintln!("Dump only information from VLDB\n");
            outln!("{} ", entry.name);
        }
        out!("{}", entry.body(&self.hosts));
        if let Some(lock) = &lock {
            out!("{}", lock.lines());
        }
        Failure::if_any(failed)
    }

    fn shown(&self, info: &VolumeInfo, place: NamedLocation<'_>) -> String {
        match (
            self.invocation.has("format"),
            self.invocation.has("extended"),
        ) {
            (true, _) => info.formatted(place),
            (false, true) => info.extended_block(place),
            (false, false) => info.block(place),
        }
    }

    pub(super) async fn listvol(mut self) -> Outcome {
        let named = self.invocation.required("server");
        let server = called_server(self.session, named)?;
        let partitions = self.partitions_of(server).await?;
        self.hosts.learn([server]).await;
        let mut listed = BTreeMap::new();
        for partition in partitions {
            let extended = self.invocation.has("extended");
            let volumes = self.volumes.volumes_on(server, partition, extended).await?;
            if self.json() {
                listed.insert(partition.to_string(), volumes);
                continue;
            }
            let place = NamedLocation {
                server,
                partition,
                hosts: &self.hosts,
            };
            self.print_partition(named, place, &volumes);
        }
        if self.json() {
            print_json(&listed)
        } else {
            Ok(())
        }
    }

    /// The partition of -partition, or all partitions of a server.
    async fn partitions_of(&self, server: IpAddr) -> Outcome<Vec<PartitionId>> {
        let Some(text) = self.invocation.get("partition") else {
            return Ok(self.volumes.partitions(server).await?);
        };
        let partition = partition(text)?;
        let at = Location::new(server, partition)?;
        self.volumes.check_partition(at).await?;
        Ok(vec![partition])
    }

    fn print_partition(&self, named: &str, place: NamedLocation<'_>, volumes: &[VolumeInfo]) {
        let quiet = self.invocation.has("quiet");
        if !quiet {
            outln!(
                "Total number of volumes on server {named} partition {}: {} ",
                place.partition,
                volumes.len()
            );
        }
        let (fast, format) = (self.invocation.has("fast"), self.invocation.has("format"));
        let (long, extended) = (self.invocation.has("long"), self.invocation.has("extended"));
        for info in volumes {
            if fast {
                outln!("{:<10}", info.id.0);
            } else if format {
                out!("BEGIN_OF_ENTRY\n{}END_OF_ENTRY\n\n", info.formatted(place));
            } else if long || extended {
                outln!("{}", self.shown(info, place));
            } else {
                out!("{}", info.line());
            }
        }
        if quiet {
            return;
        }
        let with = |state| volumes.iter().filter(move |info| info.state == state);
        let on_line = with(VolumeState::Ok).filter(|info| info.in_use).count();
        let busy = with(VolumeState::Busy).count();
        let off_line = volumes.len() - on_line - busy;
        if fast {
            outln!();
        } else if format && extended {
            outln!("VOLUMES_ONLINE\t{on_line}\nVOLUMES_OFFLINE\t{off_line}\nVOLUMES_BUSY\t{busy}");
        } else if extended {
            outln!("\nTotal volumes: {on_line} on-line, {off_line} off-line, {busy}  busyd");
        } else if !format {
            outln!(
                "\nTotal volumes onLine {on_line} ; Total volumes offLine {off_line} ; Total busy \
                 {busy}\n"
            );
        }
    }

    pub(super) async fn listvldb(mut self) -> Outcome {
        if let Some(volume) = self.invocation.get("name") {
            let entry = self.volumes.entry(volume).await?;
            self.hosts
                .learn(entry.sites.iter().map(|site| site.server))
                .await;
            if self.json() {
                return print_json(&json!({ "entries": [entry], "total": 1 }));
            }
            out!("{}", entry.listing(&self.hosts));
            return Ok(());
        }
        let named = self.invocation.get("server");
        let filter = EntryFilter {
            server: named
                .map(|server| called_server(self.session, server))
                .transpose()?,
            partition: self
                .invocation
                .get("partition")
                .map(partition)
                .transpose()?,
            locked: self.invocation.has("locked"),
        };
        let order = match self.invocation.has("nosort") {
            true => Order::Database,
            false => Order::Name,
        };
        let mut entries = self.volumes.list_entries(filter, order).await?;
        let mut total = 0_u64;
        if self.json() {
            // One entry a line: the whole list need not fit into memory.
            out!("{{\n  \"entries\": [");
            while let Some(entry) = entries.next().await? {
                let text = serde_json::to_string(&entry)
                    .map_err(|error| Failure::new(format!("cannot print JSON: {error}")))?;
                out!("{}\n    {text}", if total == 0 { "" } else { "," });
                total += 1;
            }
            outln!("\n  ],\n  \"total\": {total}\n}}");
            return Ok(());
        }
        let quiet = self.invocation.has("quiet");
        if !quiet {
            let part = filter
                .partition
                .map(|p| format!("partition {p} "))
                .unwrap_or_default();
            match named {
                Some(server) => outln!("VLDB entries for server {server} {part}"),
                None => outln!("VLDB entries for all servers {part}"),
            }
        }
        while let Some(entry) = entries.next().await? {
            self.hosts
                .learn(entry.sites.iter().map(|site| site.server))
                .await;
            out!("{}", entry.listing(&self.hosts));
            total += 1;
        }
        if !quiet {
            outln!("\nTotal entries: {total}");
        }
        Ok(())
    }

    pub(super) async fn listpart(&self) -> Outcome {
        let server = called_server(self.session, self.invocation.required("server"))?;
        let partitions = self.volumes.partitions(server).await?;
        let names: Vec<_> = partitions.iter().map(ToString::to_string).collect();
        if self.json() {
            return print_json(&names);
        }
        outln!("The partitions on the server are:");
        let mut line = String::new();
        for (index, name) in names.iter().enumerate() {
            line.push_str(&format!(" {name:>10} "));
            if index > 0 && index % 5 == 0 {
                line.push('\n');
            }
        }
        outln!("{line}\nTotal: {}", names.len());
        Ok(())
    }

    pub(super) async fn partinfo(&self) -> Outcome {
        let server = called_server(self.session, self.invocation.required("server"))?;
        let partitions = self.partitions_of(server).await?;
        let mut spaces = Vec::new();
        for partition in partitions {
            spaces.push(self.volumes.partition_space(server, partition).await?);
        }
        if self.json() {
            return print_json(&spaces);
        }
        for space in &spaces {
            outln!(
                "Free space on partition {}: {} K blocks out of total {}",
                space.partition,
                space.free_kib,
                space.total_kib
            );
        }
        if self.invocation.has("summary") {
            let free: i64 = spaces.iter().map(|space| space.free_kib).sum();
            let total: i64 = spaces.iter().map(|space| space.total_kib).sum();
            outln!(
                "Summary: {free} KB free out of {total} KB on {} partitions",
                spaces.len()
            );
        }
        Ok(())
    }

    pub(super) async fn listaddrs(mut self) -> Outcome {
        let servers = match (self.invocation.get("uuid"), self.invocation.get("host")) {
            (Some(text), _) => {
                let found = self.volumes.server_addresses(Ok(uuid(text)?)).await;
                vec![found.map_err(|error| unlisted(&format!("UUID '{text}'"), error))?]
            }
            (None, Some(host)) => {
                let address = server_address(host)
                    .map_err(|_| Failure::usage(format!("Can't get host info for '{host}'")))?;
                let std::net::IpAddr::V4(address) = address else {
                    return Err(Failure::usage("file servers have IPv4 addresses"));
                };
                let found = self.volumes.server_addresses(Err(address)).await;
                let what = format!("host '{host}' [{:#010x}]", u32::from(address));
                vec![found.map_err(|error| unlisted(&what, error))?]
            }
            (None, None) => self.volumes.addresses().await?,
        };
        if self.json() {
            return print_json(&servers);
        }
        self.hosts
            .learn(servers.iter().flat_map(|server| server.addresses.clone()))
            .await;
        let with_uuid = self.invocation.has("printuuid");
        for server in &servers {
            if with_uuid {
                outln!("UUID: {}", server.uuid_line());
            }
            for address in &server.addresses {
                outln!("{}", self.hosts.name(*address));
            }
            if with_uuid {
                outln!();
            }
        }
        Ok(())
    }

    pub(super) async fn status(&self) -> Outcome {
        let named = self.invocation.required("server");
        let transactions = self
            .volumes
            .transactions(called_server(self.session, named)?)
            .await?;
        if self.json() {
            return print_json(&transactions);
        }
        if transactions.is_empty() {
            outln!("No active transactions on {named}");
            return Ok(());
        }
        outln!("Total transactions: {}", transactions.len());
        for transaction in &transactions {
            out!("{}", transaction.block());
        }
        Ok(())
    }

    pub(super) async fn size(&self) -> Outcome {
        let volume = self.invocation.required("id");
        let (id, at) = self.volume_and_place(volume).await?;
        let since = super::since(self.invocation.get("time"))?;
        let size = match self.invocation.has("dump") {
            true => Some(self.volumes.dump_size(at, id, since).await?),
            false => None,
        };
        if self.json() {
            return print_json(&json!({ "id": id.0, "dump_size": size }));
        }
        outln!("Volume: {volume}");
        if let Some(size) = size {
            outln!("dump_size: {size}");
        }
        Ok(())
    }
}

/// The failure for a file server that is not in the VLDB.
fn unlisted(what: &str, error: cellar_admin::Error) -> Failure {
    match error {
        cellar_admin::Error::NoSuchEntry(_) => {
            Failure::new(format!("no entry for {what} found in VLDB"))
        }
        other => other.into(),
    }
}
