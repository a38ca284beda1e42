//! `cellar vos`.

use std::collections::BTreeMap;

use cellar_admin::HostNames;
use cellar_admin::vos::{Entry, EntryFilter, Place, VolumeInfo, VolumeState, Volumes, site_flags};
use cellar_wire::ids::VolumeId;
use serde_json::json;

use super::syntax::{CELL_DIRECTORY, Command, Invocation, Suite, flag, one, optional};
use super::{
    COMMON, called_server, cell_options, parse, partition, print_json, quota, server_address,
};
use crate::failure::{FAILED, Failure, Outcome};
use crate::output::{out, outln};
use crate::session::{As, Session};

static SUITE: Suite = Suite {
    name: "vos",
    about: "Volumes: where they are, what is in them, making and removing them.",
    common: &COMMON,
    commands: &[
        Command {
            name: "create",
            aliases: &[],
            about: "Create a read-write volume.",
            parameters: &[
                one("server", "machine name: the file server"),
                one(
                    "partition",
                    "partition name: a, vicepa, /vicepa or its number",
                ),
                one("name", "volume name: at most 22 characters"),
                optional("maxquota", "KiB: quota; default 5000, 0 for none"),
            ],
            examples: &[
                "127.0.0.1 a user.ann",
                "-server 127.0.0.1 -partition a -name data -maxquota 0",
            ],
        },
        Command {
            name: "remove",
            aliases: &[],
            about: "Remove a volume from a server and the VLDB.",
            parameters: &[
                optional("server", "machine name: default: where the VLDB has it"),
                optional("partition", "partition name"),
                one("id", "volume name or ID"),
            ],
            examples: &["-id user.ann", "127.0.0.1 a user.ann"],
        },
        Command {
            name: "examine",
            aliases: &["e", "volinfo"],
            about: "Show what the volume server and the VLDB say of a volume.",
            parameters: &[
                one("id", "volume name or ID"),
                flag("extended", ": with statistics of use"),
                flag("format", ": for programs"),
            ],
            examples: &["root.cell", "scratch -json"],
        },
        Command {
            name: "listvol",
            aliases: &[],
            about: "List the volumes on a server.",
            parameters: &[
                one("server", "machine name"),
                optional("partition", "partition name: default: all"),
                flag("fast", ": ids only"),
                flag("long", ": everything"),
                flag("quiet", ": no headings"),
                flag("extended", ": with statistics of use"),
                flag("format", ": for programs"),
            ],
            examples: &["127.0.0.1", "127.0.0.1 a -long"],
        },
        Command {
            name: "listvldb",
            aliases: &[],
            about: "List entries of the volume location database.",
            parameters: &[
                optional("name", "volume name or ID: only that"),
                optional("server", "machine name: only sites there"),
                optional("partition", "partition name: only sites there"),
                flag("locked", ": only locked entries"),
                flag("quiet", ": no headings"),
                flag("nosort", ": as the database has them"),
            ],
            examples: &[
                "",
                "-name root.cell",
                "--cell demo.cell --server 127.0.0.1 --json",
            ],
        },
        Command {
            name: "listpart",
            aliases: &[],
            about: "List the partitions of a server.",
            parameters: &[one("server", "machine name")],
            examples: &["127.0.0.1"],
        },
        Command {
            name: "partinfo",
            aliases: &[],
            about: "Show the room on a server's partitions.",
            parameters: &[
                one("server", "machine name"),
                optional("partition", "partition name: default: all"),
                flag("summary", ": and the sum"),
            ],
            examples: &["127.0.0.1"],
        },
        Command {
            name: "listaddrs",
            aliases: &[],
            about: "List the file servers that are registered.",
            parameters: &[flag("printuuid", ": and their UUIDs")],
            examples: &["-printuuid -noresolve"],
        },
        Command {
            name: "status",
            aliases: &[],
            about: "List the volume transactions of a server.",
            parameters: &[one("server", "machine name")],
            examples: &["127.0.0.1"],
        },
        Command {
            name: "lock",
            aliases: &[],
            about: "Lock a volume's entry.",
            parameters: &[one("id", "volume name or ID")],
            examples: &["user.ann"],
        },
        Command {
            name: "unlock",
            aliases: &[],
            about: "Release the lock of a volume's entry.",
            parameters: &[one("id", "volume name or ID")],
            examples: &["user.ann"],
        },
        Command {
            name: "setfields",
            aliases: &[],
            about: "Change a volume's quota.",
            parameters: &[
                one("id", "volume name or ID"),
                optional("maxquota", "KiB: 0 for none"),
            ],
            examples: &["user.ann -maxquota 100000"],
        },
    ],
};

/// Runs one operation.
pub(crate) async fn run(words: Vec<String>) -> Outcome {
    let Some(invocation) = parse(&SUITE, &words)? else {
        return Ok(());
    };
    let session = session(&invocation).await?;
    let vos = Vos {
        volumes: Volumes::new(&session.client, &session.cell),
        hosts: HostNames::new(!invocation.has("noresolve")),
        invocation: &invocation,
        session: &session,
    };
    match invocation.command {
        "create" => vos.create().await,
        "remove" => vos.remove().await,
        "examine" => vos.examine().await,
        "listvol" => vos.listvol().await,
        "listvldb" => vos.listvldb().await,
        "listpart" => vos.listpart().await,
        "partinfo" => vos.partinfo().await,
        "listaddrs" => vos.listaddrs().await,
        "status" => vos.status().await,
        "lock" | "unlock" => vos.lock().await,
        _ => vos.setfields().await,
    }
}

/// `-server` of these operations names a server of the cell; where nothing else says how to find the
/// cell, it is asked for the databases too. That is right wherever one machine has all roles.
async fn session(invocation: &Invocation) -> Outcome<Session> {
    let who = if invocation.has("noauth") {
        As::Anybody
    } else {
        As::AdministratorIfPossible
    };
    match cell_options(invocation, None).session(None, who).await {
        Ok(session) => Ok(session),
        Err(failure) => match invocation.get("server") {
            Some(server) if !invocation.has("dbserver") && !invocation.has(CELL_DIRECTORY) => {
                cell_options(invocation, Some(server))
                    .session(None, who)
                    .await
            }
            _ => Err(failure),
        },
    }
}

struct Vos<'a> {
    volumes: Volumes<'a>,
    hosts: HostNames,
    invocation: &'a Invocation,
    session: &'a Session,
}

impl Vos<'_> {
    fn json(&self) -> bool {
        self.invocation.has("json")
    }

    async fn create(&self) -> Outcome {
        let server = self.invocation.required("server");
        let address = called_server(self.session, server)?;
        let partition = partition(self.invocation.required("partition"))?;
        let name = self.invocation.required("name");
        let quota = quota(
            "-maxquota",
            self.invocation.get("maxquota").unwrap_or("5000"),
        )?;
        let id = self.volumes.create(address, partition, name, quota).await?;
        if self.json() {
            return print_json(&json!({ "id": id.0, "name": name }));
        }
        outln!(
            "Volume {} created on partition {partition} of {server}",
            id.0
        );
        Ok(())
    }

    async fn remove(mut self) -> Outcome {
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
                let wanted = if id == entry.read_only {
                    site_flags::READ_ONLY
                } else {
                    site_flags::READ_WRITE
                };
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

    /// The volume that a name or number means in its family.
    fn id_of(&self, volume: &str, entry: Option<&Entry>) -> Outcome<VolumeId> {
        if let Ok(number) = volume.parse() {
            return Ok(VolumeId(number));
        }
        let entry = entry.ok_or_else(|| cellar_admin::Error::NoSuchEntry(volume.to_owned()))?;
        Ok(match volume {
            name if name.ends_with(".readonly") => entry.read_only,
            name if name.ends_with(".backup") => entry.backup,
            _ => entry.read_write,
        })
    }

    async fn examine(mut self) -> Outcome {
        let volume = self.invocation.required("id");
        let entry = self.volumes.entry(volume).await?;
        let id = self.id_of(volume, Some(&entry))?;
        let wanted = if id == entry.read_only {
            site_flags::READ_ONLY
        } else {
            site_flags::READ_WRITE
        };
        self.hosts
            .learn(entry.sites.iter().map(|site| site.server))
            .await;
        let extended = self.invocation.has("extended");
        let mut found = Vec::new();
        let mut failed = false;
        for site in entry.sites.iter().filter(|site| site.flags & wanted != 0) {
            match self
                .volumes
                .volume_on(site.server, site.partition, id, extended)
                .await
            {
                Ok(info) => found.push((site, info)),
                Err(error) => {
                    eprintln!("{error}");
                    outln!(
                        "Volume does not exist on server {} as indicated by the VLDB",
                        self.hosts.name(site.server)
                    );
                    failed = true;
                }
            }
        }
        if self.json() {
            let sites: Vec<_> = found
                .iter()
                .map(|(site, info)| json!({ "server": site.server, "volume": info }))
                .collect();
            print_json(&json!({ "entry": entry, "volumes": sites }))?;
        } else {
            for (site, info) in &found {
                let place = Place {
                    server: site.server,
                    partition: site.partition,
                    hosts: &self.hosts,
                };
                out!("{}", self.shown(info, place));
                outln!();
            }
            out!("{}", entry.body(&self.hosts));
            outln!();
        }
        if failed {
            Err(Failure::said(FAILED))
        } else {
            Ok(())
        }
    }

    fn shown(&self, info: &VolumeInfo, place: Place<'_>) -> String {
        match (
            self.invocation.has("format"),
            self.invocation.has("extended"),
        ) {
            (true, _) => info.formatted(place),
            (false, true) => info.extended_block(place),
            (false, false) => info.block(place),
        }
    }

    async fn listvol(mut self) -> Outcome {
        let named = self.invocation.required("server");
        let server = called_server(self.session, named)?;
        let partitions = match self.invocation.get("partition") {
            Some(text) => vec![partition(text)?],
            None => self.volumes.partitions(server).await?,
        };
        self.hosts.learn([server]).await;
        let mut listed = BTreeMap::new();
        for partition in partitions {
            let extended = self.invocation.has("extended");
            let volumes = self.volumes.volumes_on(server, partition, extended).await?;
            if self.json() {
                listed.insert(partition.to_string(), volumes);
                continue;
            }
            let place = Place {
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

    fn print_partition(&self, named: &str, place: Place<'_>, volumes: &[VolumeInfo]) {
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

    async fn listvldb(mut self) -> Outcome {
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
        let mut filter = EntryFilter {
            server: named.map(server_address).transpose()?,
            partition: self
                .invocation
                .get("partition")
                .map(partition)
                .transpose()?,
            locked: self.invocation.has("locked"),
        };
        // A server that was named only to find the cell by may have no volumes of its own.
        let is_database = filter
            .server
            .is_some_and(|server| self.session.cell.database_servers.contains(&server));
        let mut entries = match self.volumes.entries(filter).await {
            Err(cellar_admin::Error::NoSuchEntry(_)) if is_database => {
                filter.server = None;
                self.volumes.entries(filter).await?
            }
            other => other?,
        };
        if is_database && entries.is_empty() && filter.server.is_some() {
            filter.server = None;
            entries = self.volumes.entries(filter).await?;
        }
        if self.json() {
            return print_json(&json!({ "total": entries.len(), "entries": entries }));
        }
        for entry in &entries {
            self.hosts
                .learn(entry.sites.iter().map(|site| site.server))
                .await;
        }
        let quiet = self.invocation.has("quiet");
        if !quiet {
            let server = named.filter(|_| filter.server.is_some());
            let part = filter
                .partition
                .map(|p| format!("partition {p} "))
                .unwrap_or_default();
            match server {
                Some(server) => outln!("VLDB entries for server {server} {part}"),
                None if filter.partition.is_some() => outln!("VLDB entries for {part}"),
                None => outln!("VLDB entries for all servers "),
            }
        }
        for entry in &entries {
            out!("{}", entry.listing(&self.hosts));
        }
        if !quiet {
            outln!("\nTotal entries: {}", entries.len());
        }
        Ok(())
    }

    async fn listpart(&self) -> Outcome {
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

    async fn partinfo(&self) -> Outcome {
        let server = called_server(self.session, self.invocation.required("server"))?;
        let partitions = match self.invocation.get("partition") {
            Some(text) => vec![partition(text)?],
            None => self.volumes.partitions(server).await?,
        };
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

    async fn listaddrs(mut self) -> Outcome {
        let servers = self.volumes.addresses().await?;
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

    async fn status(&self) -> Outcome {
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

    async fn lock(&self) -> Outcome {
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

    async fn setfields(&self) -> Outcome {
        let volume = self.invocation.required("id");
        let Some(quota) = self.invocation.get("maxquota") else {
            return Err(Failure::usage(
                "nothing to set; -maxquota is what can be set",
            ));
        };
        let quota = super::quota("-maxquota", quota)?;
        let entry = self.volumes.entry(volume).await?;
        let site = entry
            .read_write_site()
            .ok_or_else(|| Failure::new(format!("volume {volume} has no read-write site")))?;
        self.volumes
            .set_quota(site.server, site.partition, entry.read_write, quota)
            .await?;
        Ok(())
    }
}
