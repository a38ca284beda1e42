//! Object storage devices: every `osd1`, `osd2`, ... in a server's directory. Each may be a mounted
//! disk, or a symbolic link to one.
//!
//! A device has a number in the cell's OSD database. The file `number` in the device's directory
//! holds it. A device without a number first gets an entry in the database, then the file. After a
//! crash in between, the entry is found by its name. A number is never reused.
//!
//! The server's own directory records which devices were used. A used device without a number is a
//! disk that is not mounted. The directory below it must not be taken for the device, and the start
//! is refused.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cellar_auth::Authority;
use cellar_auth::capability::{CapabilityKeys, address_words};
use cellar_client::Ports;
use cellar_fileserver::protection::BoxFuture;
use cellar_fileserver::{FileServer, ObjectConfig, PolicyList};
use cellar_objects::DeviceList;
use cellar_osd::{ArchivalDevice, Backing, Config, OsdServer, Place};
use cellar_rpc::{CallError, Connection, Port, Runtime, Security};
use cellar_volume::disk::FileDisk;
use cellar_volume::objects::ObjectStore;
use cellar_volume::{Durability, Options as StoreOptions};
use cellar_wire::object::{Capability, CapabilityBody};
use cellar_wire::osddb::{
    self, GetOsd, GetRevisions, ListOsds, ListPolicies, OsdEntry, OsdListed, OsdName, PolicyEntry,
};
use cellar_wire::package::Procedure;
use cellar_wire::{AbortCode, AfsString, List};

use super::damaged::{Damaged, failure};
use super::wall_clock;
use crate::cell_directory::{Identity, replace_file};
use crate::failure::{Failure, Outcome};

/// The file with a device's number.
const NUMBER_FILE: &str = "number";
/// The file in a server's directory with the names of the devices that were used.
const USED_FILE: &str = "osds-used";
/// Weight of a new device in the choice of devices, as in AFS/OSD.
const PRIORITY: u32 = 64;
/// Size of a device's journal file. Pieces of large objects fill it slowly.
const JOURNAL_BYTES: u64 = 64 << 20;

/// Calls the cell's OSD database, as a superuser.
pub(crate) trait OsdTable {
    /// The entry for a name or number.
    fn get(&self, asked: GetOsd) -> Result<OsdEntry, AbortCode>;
    /// Makes an entry and returns its number.
    fn create(&self, entry: OsdEntry) -> Result<u32, AbortCode>;
}

/// The cell's OSD database servers, called in turn until one answers.
struct Tables(Vec<Connection>);

impl Tables {
    async fn ask<P: Procedure>(&self, asked: &P) -> Result<P::Reply, CallError> {
        let mut last = CallError::Dead;
        for connection in &self.0 {
            match connection.call(asked).await {
                Ok(reply) => return Ok(reply),
                Err(cause) => last = cause,
            }
        }
        Err(last)
    }
}

impl DeviceList for Tables {
    fn list<'a>(
        &'a self,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<OsdListed>, CallError>> + Send + 'a>> {
        Box::pin(async move { Ok(self.ask(&ListOsds {}).await?.osds.into_vec()) })
    }
}

impl PolicyList for Tables {
    fn policies(
        &self,
        known: u64,
    ) -> BoxFuture<'_, Result<Option<(u64, Vec<PolicyEntry>)>, CallError>> {
        Box::pin(async move {
            if self.ask(&GetRevisions {}).await?.policies == known {
                return Ok(None);
            }
            let reply = self.ask(&ListPolicies {}).await?;
            Ok(Some((reply.revision, reply.policies.into_vec())))
        })
    }
}

/// Lets a file server use the object storage of its cell, from its port.
pub(super) fn use_objects(
    fileserver: &FileServer,
    runtime: &Runtime,
    port: &Port,
    identity: &Identity,
    keys: &Arc<CapabilityKeys>,
) {
    let cell = &identity.cell;
    let tables = || {
        let service = osddb::PACKAGE.service_id;
        let connect = |peer| port.connect(peer, service, Security::null());
        Arc::new(Tables(cell.location_servers().map(connect).collect()))
    };
    let keys = keys.clone();
    let seal = move |body: &CapabilityBody| {
        keys.seal(body).unwrap_or_else(|cause| {
            tracing::error!(%cause, "no capability can be made");
            Capability::default()
        })
    };
    let config = ObjectConfig {
        cell: AfsString::new(cell.name.as_str().to_owned()).unwrap_or_default(),
        devices: tables(),
        policies: tables(),
        seal: Arc::new(seal),
        location: identity.location.clone(),
        owner: identity.owner.clone(),
    };
    fileserver.use_objects(runtime, port, config);
}

/// The keys for capabilities of the server with that configuration directory.
pub(crate) fn keys(authority: &Authority, server_etc: &Path) -> Outcome<Arc<CapabilityKeys>> {
    let keys = CapabilityKeys::open(server_etc, authority);
    let at = |cause| Failure::new(format!("{}: {cause}", server_etc.display()));
    keys.map(Arc::new).map_err(at)
}

/// Parses a location in the form of the database.
pub(crate) fn location(text: &str) -> Result<String, String> {
    word::<256>(text)
}

/// Parses an owner.
pub(crate) fn owner(text: &str) -> Result<String, String> {
    word::<64>(text)
}

fn word<const MAX: usize>(text: &str) -> Result<String, String> {
    let fits = AfsString::<MAX>::new(text.to_owned()).is_ok();
    match fits && !text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "write a word without blanks, of at most {MAX} bytes"
        )),
    }
}

/// A device's directory.
struct DeviceDirectory {
    path: PathBuf,
    /// 1 for `osd1`.
    index: u32,
}

/// The port of an object storage server: between the volume server and the overseer.
pub(crate) fn port(ports: &Ports) -> u16 {
    ports.fileserver.saturating_add(6)
}

/// Opens the devices in `directory` for a server with these settings. At least `wanted` devices and
/// all that were used must be there or are made. Returns `None` if there are none.
pub(crate) fn open(
    directory: &Path,
    identity: &Identity,
    mut config: Config,
    durability: Durability,
    damaged: &Damaged,
    wanted: u32,
    table: &dyn OsdTable,
) -> Outcome<Option<OsdServer>> {
    let mut places = find(directory)?;
    let used = used(directory)?;
    let used = used.iter().filter_map(|used| index_of(&used.name));
    for index in (1..=wanted).chain(used) {
        if !places.iter().any(|place| place.index == index) {
            let path = directory.join(format!("osd{index}"));
            places.push(DeviceDirectory { path, index });
        }
    }
    if places.is_empty() {
        return Ok(None);
    }
    places.sort_by_key(|place| place.index);
    let mut known = HashMap::new();
    for place in &places {
        check_mounted(directory, &place.path)?;
        if let Some(number) = known_number(&place.path)?
            && let Some(other) = known.insert(number, &place.path)
        {
            return Err(Failure::new(format!(
                "devices {} and {}: the file {NUMBER_FILE} of both holds {number}: restore the wrong one from 'cellar \
                 osd list'",
                other.display(),
                place.path.display()
            )));
        }
    }
    let mut devices = Vec::with_capacity(places.len());
    for place in &places {
        let at = |cause: &dyn std::fmt::Display| {
            Failure::new(format!("device {}: {cause}", place.path.display()))
        };
        cellar_private::directory(&place.path).map_err(|cause| at(&cause))?;
        let number = match known_number(&place.path)? {
            Some(number) => number,
            None => {
                let number = enter(place, identity, table).map_err(|cause| at(&cause))?;
                let text = format!("{number}\n");
                replace_file(&place.path.join(NUMBER_FILE), text.as_bytes())?;
                number
            }
        };
        let cell = identity.cell.name.as_str();
        devices.push((
            number,
            backing(&place.path, cell, None, durability, damaged)?,
        ));
        note_used(directory, &place.path, number)?;
    }
    config.databases = identity.cell.location_servers().collect();
    Ok(Some(OsdServer::new(config, devices)))
}

/// Whether the directory has devices.
pub(super) fn are_in(directory: &Path) -> Outcome<bool> {
    Ok(directory.exists() && (!find(directory)?.is_empty() || !used(directory)?.is_empty()))
}

/// Says that devices are not served, if the directory has some.
pub(super) fn warn_of_idle(directory: &Path) -> Outcome {
    let devices: Vec<_> = find(directory)?.iter().map(|place| place.index).collect();
    if !devices.is_empty() {
        tracing::warn!(
            directory = %directory.display(), ?devices,
            "devices are here and are not served: the role 'osds' serves them"
        );
    }
    Ok(())
}

/// Opens a device: an archive if its directory says so or `archive` names one, else the disk that
/// its directory is.
pub(crate) fn backing(
    path: &Path,
    cell: &str,
    archive: Option<&Place>,
    durability: Durability,
    damaged: &Damaged,
) -> Outcome<Backing> {
    if archive.is_none() && !cellar_osd::is_archival(path) {
        return Ok(store(path, durability, damaged)?.into());
    }
    let device = ArchivalDevice::open(path, cell, archive, wall_clock().as_secs());
    let at = |cause| Failure::new(format!("device {}: {cause}", path.display()));
    Ok(device.map_err(at)?.into())
}

/// Opens the object store of a device.
pub(crate) fn store(
    path: &Path,
    durability: Durability,
    damaged: &Damaged,
) -> Outcome<ObjectStore> {
    let at =
        |cause: &dyn std::fmt::Display| Failure::new(format!("device {}: {cause}", path.display()));
    let disk = FileDisk::open(path).map_err(|cause| at(&cause))?;
    let options = StoreOptions {
        durability,
        journal_bytes: JOURNAL_BYTES,
        drop_damaged_journal: damaged.is_dropped(path),
        ..StoreOptions::default()
    };
    let span = tracing::error_span!("device", path = %path.display());
    let store = span.in_scope(|| ObjectStore::open(disk, options));
    let store = store.map_err(|cause| failure("device", path, &cause))?;
    damaged.note(path, store.opening());
    Ok(store)
}

/// The settings of a server.
pub(crate) fn config(authority: &Authority, keys: Arc<CapabilityKeys>) -> Config {
    let clock: fn() -> Duration = wall_clock;
    Config::new(authority.clone(), keys, clock)
}

/// The file in a server's directory with the names of the devices that were used.
pub(crate) fn used_file(directory: &Path) -> PathBuf {
    directory.join(USED_FILE)
}

/// A device that was used.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Used {
    /// The name of its directory in the server's directory.
    name: String,
    /// Its number; `None` if an older release recorded the device.
    number: Option<u32>,
}

impl Used {
    /// A line: `osd1 7`.
    fn parse(line: &str) -> Self {
        let (name, number) = line.split_once(' ').unwrap_or((line, ""));
        Self {
            name: name.to_owned(),
            number: number.trim().parse().ok(),
        }
    }

    fn line(&self) -> String {
        match self.number {
            Some(number) => format!("{} {number}\n", self.name),
            None => format!("{}\n", self.name),
        }
    }
}

/// The devices in a server's directory that were used.
fn used(directory: &Path) -> Outcome<Vec<Used>> {
    let file = used_file(directory);
    match fs::read_to_string(&file) {
        Ok(text) => Ok(text.lines().map(Used::parse).collect()),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(cause) => Err(Failure::new(format!("{}: {cause}", file.display()))),
    }
}

/// The numbers of the devices in a server's directory that were used.
pub(crate) fn used_numbers(directory: &Path) -> Outcome<Vec<u32>> {
    let used = used(directory)?;
    Ok(used.iter().filter_map(|used| used.number).collect())
}

fn name_of(device: &Path) -> String {
    let name = device.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Refuses a device that was used and is missing.
pub(crate) fn check_mounted(directory: &Path, device: &Path) -> Outcome {
    let name = name_of(device);
    let all = used(directory)?;
    let Some(noted) = all.iter().find(|used| used.name == name) else {
        return Ok(());
    };
    match (known_number(device)?, noted.number) {
        // Exchanged disks keep their numbers.
        (Some(found), Some(_)) if !all.iter().any(|used| used.number == Some(found)) => {
            return Err(Failure::new(format!(
                "{} holds {found}, which is not the number of a device used here: restore it from 'cellar osd \
                 list'. If the disk was replaced on purpose, remove {name} from {}",
                device.join(NUMBER_FILE).display(),
                directory.join(USED_FILE).display()
            )));
        }
        (Some(_), _) => return Ok(()),
        (None, Some(number)) if device.join("base").exists() => {
            return Err(Failure::new(format!(
                "{} is missing. Write it again: one line with the number {number}",
                device.join(NUMBER_FILE).display()
            )));
        }
        (None, _) => {}
    }
    Err(Failure::new(format!(
        "device {}: it was used before, and its files are missing: is its disk mounted? If the disk is lost, give its \
         entry another name ('cellar osd set {name}@... -name lost') and remove {name} from {}",
        device.display(),
        directory.join(USED_FILE).display()
    )))
}

/// Records that a device is in use.
pub(crate) fn note_used(directory: &Path, device: &Path, number: u32) -> Outcome {
    let mut all = used(directory)?;
    let now = Used {
        name: name_of(device),
        number: Some(number),
    };
    if !all.contains(&now) {
        all.retain(|used| used.name != now.name);
        all.push(now);
        let text: String = all.iter().map(Used::line).collect();
        replace_file(&directory.join(USED_FILE), text.as_bytes())?;
    }
    Ok(())
}

/// The number in a device's directory.
pub(crate) fn known_number(path: &Path) -> Outcome<Option<u32>> {
    let file = path.join(NUMBER_FILE);
    let damaged = || {
        Failure::new(format!(
            "{} does not hold the number of a device: restore it from 'cellar osd list'",
            file.display()
        ))
    };
    match fs::read_to_string(&file) {
        Ok(text) => text.trim().parse().map(Some).map_err(|_| damaged()),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(Failure::new(format!("{}: {cause}", file.display()))),
    }
}

/// Writes the number of a device into its directory, unless it has one.
pub(crate) fn set_number(path: &Path, number: u32) -> Outcome {
    match known_number(path)? {
        Some(known) if known == number => Ok(()),
        Some(known) => Err(Failure::new(format!(
            "{} is device {known} of its cell, not {number}",
            path.display()
        ))),
        None => {
            let text = format!("{number}\n");
            Ok(replace_file(&path.join(NUMBER_FILE), text.as_bytes())?)
        }
    }
}

/// Makes the entry of a new device in the cell's database, or finds an entry made before.
fn enter(
    place: &DeviceDirectory,
    identity: &Identity,
    table: &dyn OsdTable,
) -> Result<u32, String> {
    let host = identity.address;
    let name = format!("osd{}@{host}", place.index);
    let name = OsdName::new(name).map_err(|_| "its name is too long".to_owned())?;
    let asked = GetOsd {
        id: 0,
        name: name.clone(),
    };
    if let Ok(entry) = table.get(asked) {
        return Ok(entry.id);
    }
    let entry = OsdEntry {
        name,
        addresses: List::from_iter_cut([address_words(host)]),
        port: port(&identity.cell.ports).into(),
        partition: place.index - 1,
        allocation_priority: PRIORITY,
        read_priority: PRIORITY,
        location: AfsString::new(identity.location.clone()).unwrap_or_default(),
        owner: AfsString::new(identity.owner.clone()).unwrap_or_default(),
        ..OsdEntry::default()
    };
    let refused = |code| format!("the OSD database refuses an entry for it ({code})");
    table.create(entry).map_err(refused)
}

/// The number in the name of a device's directory.
fn index_of(name: &str) -> Option<u32> {
    let index = name.strip_prefix("osd")?.parse().ok()?;
    (index > 0).then_some(index)
}

/// The existing devices.
fn find(directory: &Path) -> Outcome<Vec<DeviceDirectory>> {
    let unreadable =
        |cause: std::io::Error| Failure::new(format!("{}: {cause}", directory.display()));
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name();
        let Some(index) = name.to_str().and_then(index_of) else {
            continue;
        };
        if entry.path().is_dir() {
            let path = entry.path();
            found.push(DeviceDirectory { path, index });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
