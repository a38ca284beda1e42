//! Statistics of the files in volumes: their sizes and places, and the files that are in one place
//! only.
//!
//! The file servers of the VLDB's read-write volumes are asked one after the other. OpenAFS's
//! servers do not know the call, because they keep no objects in Cellar's way. Their volumes are
//! reported as not checked.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cellar_wire::AbortCode;
use cellar_wire::afsvol::{self, Amount, Usage};
use cellar_wire::ids::VolumeId;
use serde::Serialize;

use super::job::JobContext;
use super::{Entry, EntryFilter, Location, Volumes, site_flags};
use crate::error::{Error, Result};

/// The number that stands for the file servers' own disks.
const LOCAL_DISK: u32 = 1;

/// The volumes to check.
#[derive(Clone, Debug)]
pub enum Scope {
    /// The read-write volume of a family.
    Volume(String),
    /// The volumes of a server.
    Server(IpAddr),
    /// All volumes of the cell.
    Cell,
}

/// A volume to check.
#[derive(Clone, Debug)]
pub struct Traversable {
    name: String,
    id: VolumeId,
    at: Location,
    /// It has a read-only copy on another server.
    is_replicated: bool,
}

impl Traversable {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The files of one class of sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SizeClass {
    /// The lower limit in bytes; a file is larger than that. The first class includes 0.
    pub above: u64,
    /// The upper limit in bytes, inclusive.
    pub to: u64,
    /// Number of files.
    pub files: u64,
    /// Per cent of all files.
    pub files_percent: f64,
    /// Per cent of all files up to this size.
    pub files_running: f64,
    /// Sum of their bytes.
    pub bytes: u64,
    /// Per cent of all bytes.
    pub bytes_percent: f64,
    /// Per cent of the bytes of all files up to this size.
    pub bytes_running: f64,
}

/// The use of one place: a device, or with number 1 the file servers' own disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PlaceUsage {
    /// The device's number.
    pub id: u32,
    /// Number of objects; on the file servers' disks, number of files.
    pub objects: u64,
    /// Sum of their bytes.
    pub bytes: u64,
}

/// The result.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Traversed {
    /// Number of checked volumes.
    pub volumes: u64,
    /// Number of plain files in them.
    pub files: u64,
    /// Sum of their bytes.
    pub bytes: u64,
    /// Number of files whose bytes are in objects.
    pub files_in_objects: u64,
    /// Number of files whose bytes are in archives only.
    pub files_wiped: u64,
    /// Sum of their bytes.
    pub bytes_wiped: u64,
    /// Number of directories and links.
    pub others: u64,
    /// The files by size, up to the largest file.
    pub sizes: Vec<SizeClass>,
    /// The use of each place, by number.
    pub places: Vec<PlaceUsage>,
    /// The data that exists only once: objects without another copy or parity, wiped files with one
    /// copy, and files of volumes without a read-only copy on another server.
    pub single: Vec<PlaceUsage>,
    /// The volumes that were not checked, and the reasons.
    pub missed: Vec<(String, String)>,
}

impl Volumes<'_> {
    /// The volumes of a scope, sorted by name.
    ///
    /// # Errors
    /// The VLDB does not answer, or knows no such volume or server, or the volume has no site.
    pub async fn traversable(&self, scope: &Scope) -> Result<Vec<Traversable>> {
        let (entries, server) = match scope {
            Scope::Volume(name) => (vec![self.entry(name).await?], None),
            Scope::Server(server) => {
                let filter = EntryFilter {
                    server: Some(*server),
                    ..EntryFilter::default()
                };
                (self.entries(filter).await?, Some(*server))
            }
            Scope::Cell => (self.entries(EntryFilter::default()).await?, None),
        };
        let mut found = Vec::new();
        for entry in &entries {
            let Some(volume) = traversable(entry)? else {
                continue;
            };
            if server.is_none_or(|server| IpAddr::from(volume.at.server) == server) {
                found.push(volume);
            }
        }
        match (scope, found.is_empty()) {
            (Scope::Volume(name), true) => Err(Error::Usage(format!(
                "{name} has no read-write volume in the VLDB"
            ))),
            _ => Ok(found),
        }
    }

    /// Checks volumes one after the other; `seen` receives each before its check.
    ///
    /// # Errors
    /// The caller has no permission. Other failures are reported for their volume in the result.
    pub async fn traverse(
        &self,
        volumes: &[Traversable],
        context: JobContext<'_>,
        mut seen: impl FnMut(&Traversable),
    ) -> Result<Traversed> {
        let mut sum = Sum::default();
        for volume in volumes {
            seen(volume);
            let what = format!("Failed to traverse volume {}", volume.name);
            let asked = afsvol::Traverse {
                partition: volume.at.partition.number(),
                volume: volume.id,
            };
            let asked = self.server(volume.at.server.into(), &asked, &what);
            match context.or_stop(asked).await {
                Ok(reply) => sum.add(&reply.usage, volume.is_replicated),
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(error) if error.code() == Some(AbortCode::VOLSERBAD_ACCESS) => {
                    return Err(error);
                }
                Err(error) if error.code() == Some(AbortCode::RXGEN_OPCODE) => {
                    let why = format!("{} is not a Cellar server", volume.at.server);
                    sum.missed.push((volume.name.clone(), why));
                }
                Err(error) => sum.missed.push((volume.name.clone(), error.to_string())),
            }
        }
        Ok(sum.finish())
    }
}

fn traversable(entry: &Entry) -> Result<Option<Traversable>> {
    let Some(site) = entry.read_write_site() else {
        return Ok(None);
    };
    let is_copy = |flags: u32| flags & (site_flags::READ_ONLY | site_flags::DONT_USE);
    let copies = entry.sites.iter();
    let mut copies = copies.filter(|site| is_copy(site.flags) == site_flags::READ_ONLY);
    Ok(Some(Traversable {
        name: entry.name.clone(),
        id: entry.read_write,
        at: Location::new(site.server, site.partition)?,
        is_replicated: copies.any(|copy| copy.server != site.server),
    }))
}

#[derive(Default)]
struct Sum {
    volumes: u64,
    sizes: Vec<Amount>,
    in_objects: u64,
    wiped: Amount,
    others: u64,
    places: BTreeMap<u32, Amount>,
    single: BTreeMap<u32, Amount>,
    missed: Vec<(String, String)>,
}

fn plus(to: &mut Amount, more: Amount) {
    to.count = to.count.saturating_add(more.count);
    to.bytes = to.bytes.saturating_add(more.bytes);
}

impl Sum {
    fn add(&mut self, usage: &Usage, is_replicated: bool) {
        self.volumes += 1;
        self.in_objects = self.in_objects.saturating_add(usage.in_objects.count);
        plus(&mut self.wiped, usage.wiped);
        self.others = self.others.saturating_add(usage.others);
        if self.sizes.len() < usage.sizes.len() {
            self.sizes.resize(usage.sizes.len(), Amount::default());
        }
        for (size, more) in self.sizes.iter_mut().zip(usage.sizes.iter()) {
            plus(size, *more);
        }
        plus(self.places.entry(LOCAL_DISK).or_default(), usage.here);
        if !is_replicated {
            plus(self.single.entry(LOCAL_DISK).or_default(), usage.here);
        }
        for device in usage.devices.iter() {
            plus(self.places.entry(device.osd).or_default(), device.objects);
            plus(self.single.entry(device.osd).or_default(), device.single);
        }
    }

    fn finish(self) -> Traversed {
        let mut all = Amount::default();
        self.sizes.iter().for_each(|size| plus(&mut all, *size));
        let (files, bytes) = (all.count, all.bytes);
        let largest = self.sizes.iter().rposition(|size| size.count > 0);
        let mut running = Amount::default();
        let percent = |part: u64, whole: u64| match whole {
            0 => 0.0,
            whole => part as f64 * 100.0 / whole as f64,
        };
        let present = &self.sizes[..largest.map_or(0, |last| last + 1)];
        let sizes = present.iter().enumerate().map(|(class, size)| {
            plus(&mut running, *size);
            let to = 4096u64.checked_shl(class as u32).unwrap_or(u64::MAX);
            SizeClass {
                above: if class == 0 { 0 } else { to / 2 },
                to,
                files: size.count,
                files_percent: percent(size.count, files),
                files_running: percent(running.count, files),
                bytes: size.bytes,
                bytes_percent: percent(size.bytes, bytes),
                bytes_running: percent(running.bytes, bytes),
            }
        });
        let places = |places: BTreeMap<u32, Amount>| {
            let used = places.into_iter().filter(|(_, amount)| amount.count > 0);
            used.map(|(id, amount)| PlaceUsage {
                id,
                objects: amount.count,
                bytes: amount.bytes,
            })
            .collect()
        };
        Traversed {
            volumes: self.volumes,
            files,
            bytes,
            files_in_objects: self.in_objects,
            files_wiped: self.wiped.count,
            bytes_wiped: self.wiped.bytes,
            others: self.others,
            sizes: sizes.collect(),
            places: places(self.places),
            single: places(self.single),
            missed: self.missed,
        }
    }
}

#[cfg(test)]
mod tests {
    use cellar_wire::List;
    use cellar_wire::afsvol::DeviceUsage;

    use super::*;

    fn amount(count: u64, bytes: u64) -> Amount {
        Amount { count, bytes }
    }

    #[test]
    fn tables_are_sums_with_running_percent() {
        let usage = |sizes: &[Amount], here, device| Usage {
            sizes: List::from_iter_cut(sizes.iter().copied()),
            here,
            in_objects: amount(1, 100_000),
            wiped: amount(3, 70),
            devices: List::from_iter_cut([device]),
            others: 2,
        };
        let device = |single| DeviceUsage {
            osd: 7,
            objects: amount(2, 100_000),
            single,
        };
        let mut sum = Sum::default();
        let first = [amount(2, 3000), amount(0, 0), amount(1, 10_000)];
        sum.add(&usage(&first, amount(2, 3000), device(amount(2, 9))), true);
        let second = [amount(1, 1000), amount(0, 0), amount(0, 0), amount(0, 0)];
        sum.add(
            &usage(&second, amount(1, 1000), device(amount(0, 0))),
            false,
        );
        let found = sum.finish();
        assert_eq!((found.volumes, found.files, found.bytes), (2, 4, 14_000));
        assert_eq!((found.files_in_objects, found.others), (2, 4));
        assert_eq!((found.files_wiped, found.bytes_wiped), (6, 140));
        let sizes: Vec<_> = found
            .sizes
            .iter()
            .map(|size| (size.above, size.to, size.files, size.files_running))
            .collect();
        assert_eq!(
            sizes,
            [
                (0, 4096, 3, 75.0),
                (4096, 8192, 0, 75.0),
                (8192, 16_384, 1, 100.0)
            ]
        );
        let place = |id, objects, bytes| PlaceUsage { id, objects, bytes };
        assert_eq!(found.places, [place(1, 3, 4000), place(7, 4, 200_000)]);
        assert_eq!(found.single, [place(1, 1, 1000), place(7, 2, 9)]);
    }
}
