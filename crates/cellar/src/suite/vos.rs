//! `cellar vos`: the volume operations.
//!
//! The operations are listed in [`commands`]. Each is a method in one of the files beside it. It
//! calls [`cellar_admin::vos`] and prints the result in the form of OpenAFS's `vos`, or as JSON.
//! Checks are made in the order in which OpenAFS's `vos` makes them. A refusal has its exit status:
//! 255, or 1 from the operations that [`usual`] lists.

mod commands;
mod dump_fault;
mod entries;
mod jobs;
mod listing;
mod many;
mod scrub;
mod streams;
mod traverse;
mod volumes;

use cellar_admin::HostNames;
use cellar_admin::vos::{Entry, Location, Volumes, site_flags};
use cellar_wire::ids::{AfsUuid, VolumeId};
pub(crate) use commands::SUITE;

pub(crate) use jobs::run as run_job;
pub(crate) use streams::Speaker;

use super::syntax::{CELL_DIRECTORY, DATABASE_SERVER, Invocation};
use super::{advised, called_server, cell_options, parse, partition};
use crate::failure::{Failure, Outcome};
use crate::session::{As, Session};

/// The exit status of most refused operations.
pub(super) const FAILED: u8 = u8::MAX;

/// The exit status of an operation that is refused. Source: OpenAFS's `vos` 1.8.9.
fn usual(command: &str) -> u8 {
    match command {
        "listvol" | "listpart" | "partinfo" | "listvldb" | "status" | "addsite" | "remsite"
        | "changeloc" | "lock" | "unlock" | "unlockvldb" | "rename" | "restore" | "zap"
        | "backupsys" | "syncvldb" | "syncserv" | "move" | "copy" | "shadow" => {
            crate::failure::FAILED
        }
        _ => FAILED,
    }
}

/// A wrong argument of an operation that takes a volume from one place to another. These operations
/// exit with 255 then, and with 1 for other failures.
fn argument(failure: impl Into<Failure>) -> Failure {
    failure.into().coded(FAILED)
}

/// Runs one operation.
pub(crate) async fn run(mut words: Vec<String>) -> Outcome {
    // An old abbreviation that newer switches have made ambiguous.
    if words
        .first()
        .is_some_and(|word| "release".starts_with(word.as_str()) && word.len() > 2)
    {
        for word in words.iter_mut().filter(|word| *word == "-f") {
            "-force".clone_into(word);
        }
    }
    for word in words.iter_mut().filter(|word| *word == "-c") {
        "-cell".clone_into(word);
    }
    let Some(invocation) = parse(&SUITE, &words)? else {
        return Ok(());
    };
    // Without a cell no operation was attempted, so the exit status is that of a failed command.
    let session = session(&invocation)
        .await
        .map_err(|failure| advised(&invocation, failure).coded(crate::failure::FAILED))?;
    let vos = Vos {
        volumes: Volumes::new(&session.client, &session.cell),
        hosts: HostNames::new(!invocation.has("noresolve")),
        invocation: &invocation,
        session: &session,
    };
    let done = vos.run().await;
    done.map_err(|failure| advised(&invocation, failure).with_usual(usual(invocation.command)))
}

impl Vos<'_> {
    async fn run(self) -> Outcome {
        let vos = self;
        match vos.invocation.command {
            "create" => vos.create().await,
            "remove" => vos.remove().await,
            "move" => vos.move_volumes().await,
            "copy" => vos.copy().await,
            "shadow" => vos.shadow().await,
            "backup" => vos.backup().await,
            "clone" => vos.clone_volume().await,
            "release" => vos.release().await,
            "dump" => vos.dump().await,
            "restore" => vos.restore().await,
            "examine" => vos.examine().await,
            "listvol" => vos.listvol().await,
            "listvldb" => vos.listvldb().await,
            "listpart" => vos.listpart().await,
            "partinfo" => vos.partinfo().await,
            "listaddrs" => vos.listaddrs().await,
            "changeaddr" => vos.changeaddr().await,
            "setaddrs" => vos.setaddrs().await,
            "remaddrs" => vos.remaddrs().await,
            "addsite" => vos.addsite().await,
            "remsite" => vos.remsite().await,
            "changeloc" => vos.changeloc().await,
            "rename" => vos.rename().await,
            "zap" => vos.zap().await,
            "offline" => vos.offline().await,
            "online" => vos.online().await,
            "convertROtoRW" => vos.convert().await,
            "syncvldb" => vos.syncvldb().await,
            "syncserv" => vos.syncserv().await,
            "delentry" => vos.delentry().await,
            "lock" | "unlock" => vos.lock().await,
            "unlockvldb" => vos.unlockvldb().await,
            "backupsys" => vos.backupsys().await,
            "size" => vos.size().await,
            "traverse" => vos.traverse().await,
            "status" => vos.status().await,
            "scrub" => vos.scrub().await,
            "endtrans" => vos.endtrans().await,
            _ => vos.setfields().await,
        }
    }
}

/// Opens a session. `-server` of these operations names a server of the cell. If no option or file
/// names the cell, that server is asked for the databases too. That works if one machine has all
/// roles.
async fn session(invocation: &Invocation) -> Outcome<Session> {
    let who = if invocation.has("noauth") {
        As::Anybody
    } else {
        As::AdministratorIfPossible
    };
    match cell_options(invocation, None).session(None, who).await {
        Ok(session) => Ok(session),
        Err(failure) => match invocation.get("server") {
            Some(server) if !invocation.has(DATABASE_SERVER) && !invocation.has(CELL_DIRECTORY) => {
                cell_options(invocation, Some(server))
                    .session(None, who)
                    .await
            }
            _ => Err(failure),
        },
    }
}

/// An operation under way.
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

    /// The location that two switches name.
    fn place(&self, server: &str, part: &str) -> Outcome<Location> {
        let address = called_server(self.session, self.invocation.required(server))?;
        let partition = partition(self.invocation.required(part))?;
        Ok(Location::new(address, partition)?)
    }

    /// The location that -server and -partition name.
    fn given_location(&self) -> Outcome<Location> {
        self.place("server", "partition")
    }

    /// The location that -server and -partition name, or `None`. Giving only one of them is an
    /// error.
    fn place_if_given(&self) -> Outcome<Option<Location>> {
        match (
            self.invocation.has("server"),
            self.invocation.has("partition"),
        ) {
            (true, true) => self.given_location().map(Some),
            (false, false) => Ok(None),
            _ => Err(Failure::usage(
                "Must specify both -server and -partition options",
            )),
        }
    }

    /// The volume id for a name or number within a volume's entry.
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

    /// The volume id for a name or number. A name is looked up in the VLDB.
    async fn volume(&self, volume: &str) -> Outcome<VolumeId> {
        match volume.parse() {
            Ok(number) => Ok(VolumeId(number)),
            Err(_) => {
                let entry = self.volumes.entry(volume).await?;
                self.id_of(volume, Some(&entry))
            }
        }
    }

    /// A volume and its location, from -server and -partition or from the VLDB.
    async fn volume_and_place(&self, volume: &str) -> Outcome<(VolumeId, Location)> {
        if let Some(at) = self.place_if_given()? {
            return Ok((self.volume(volume).await?, at));
        }
        let entry = self.volumes.entry(volume).await?;
        let id = self.id_of(volume, Some(&entry))?;
        let wanted = site_flag(&entry, id);
        let usable = |flags: u32| flags & wanted != 0 && flags & site_flags::DONT_USE == 0;
        let site = entry.sites.iter().find(|site| usable(site.flags));
        let site = site.ok_or_else(|| {
            Failure::new(format!(
                "volume {volume} has no site; 'vos listvldb -name {volume}' shows its entry"
            ))
        })?;
        Ok((id, Location::new(site.server, site.partition)?))
    }
}

/// The flag of the sites that hold a volume of an entry. A backup volume is at the read-write site.
fn site_flag(entry: &Entry, id: VolumeId) -> u32 {
    if id == entry.read_only {
        site_flags::READ_ONLY
    } else {
        site_flags::READ_WRITE
    }
}

/// Parses a UUID in the form of `vos listaddrs -printuuid`.
fn uuid(text: &str) -> Outcome<AfsUuid> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let bytes: Option<Vec<u8>> = (digits.len() == 32 && digits.is_ascii())
        .then(|| {
            (0..16)
                .map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok())
                .collect()
        })
        .flatten();
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .map(AfsUuid)
        .ok_or_else(|| {
            Failure::usage(format!(
                "invalid UUID '{text}'; 'vos listaddrs -printuuid' lists the servers' UUIDs"
            ))
        })
}

/// Parses a date argument. 0 means everything.
fn since(text: Option<&str>) -> Outcome<cellar_wire::ids::AfsTime> {
    match text {
        None | Some("0") => Ok(cellar_wire::ids::AfsTime(0)),
        Some(text) => cellar_admin::date::parse(text).ok_or_else(|| {
            Failure::usage(format!(
                "failed to parse date '{text}'; write MM/DD/YYYY or YYYY-MM-DD, optionally followed by HH:MM"
            ))
        }),
    }
}
