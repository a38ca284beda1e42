//! New layouts: the choice of devices, serial numbers and version.
//!
//! A serial number in a file's record is never given to another object of the file, and no version
//! is given twice. Both are above the last ones in the record, and above the clock. The clock also
//! covers files whose earlier record is not known (a volume from another server).
//!
//! No record contains the objects of a store that failed. The next store may use the same objects,
//! with a newer version. Therefore the data of a failed store is removed by version, never by
//! object.

use cellar_objects::placement::{self, NoPlace, PlacementRequest};
use cellar_objects::{Condition, Devices};
use cellar_wire::List;
use cellar_wire::ids::{Fid, VolumeId};
use cellar_wire::object::{Layout, Placed, Shape};
use cellar_wire::osddb::OsdListed;
use rand::rngs::ThreadRng;
use tracing::info;

use super::failure::Failure;
use super::policies::ObjectSpec;
use super::{LOCAL_DISK, Objects, Storage};

/// Why a new file has no place in objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoLayout {
    /// The cell has too few devices for such a file, or its devices are full.
    NoDevices,
    /// Devices are missing, and the database has not heard from some of them since its start.
    NoReportYet,
    /// Devices are missing.
    Away,
}

/// The properties of a new file, and lower bounds from the old one for its layout.
#[derive(Clone, Copy)]
pub(crate) struct NewFile<'a> {
    pub(crate) volume: VolumeId,
    pub(crate) wanted: &'a ObjectSpec,
    pub(crate) size: u64,
    /// The last serial number that the file had.
    pub(crate) serial: u32,
    /// The last version that the volume knows from another server.
    pub(crate) borrowed: u64,
}

/// A layout in the wanted shape, on devices that are alive. Its objects are not made yet: all
/// versions are 0, and `version` is the one to write. Devices that failed recently are used if too
/// few others are left, unless `trusts_suspects` is false.
pub(crate) fn whole(
    objects: &Objects,
    storage: &Storage,
    file: &NewFile<'_>,
    trusts_suspects: bool,
) -> Result<Layout, NoLayout> {
    let mut wish = placement_request(storage, file.wanted, file.size);
    if !trusts_suspects {
        wish.avoid = all_suspects(&storage.devices).0;
    }
    let chosen = choose(storage, file, wish, placement::choose)?;
    Ok(layout_on(objects, file, file.wanted.shape, &chosen))
}

/// The same while devices are missing: with fewer stripes, or with copies and parity assigned to
/// missing devices. Devices that failed recently count as missing, unless `trusts_suspects` is
/// true.
pub(crate) fn degraded(
    objects: &Objects,
    storage: &Storage,
    file: &NewFile<'_>,
    trusts_suspects: bool,
) -> Result<Layout, NoLayout> {
    let mut wish = placement_request(storage, file.wanted, file.size);
    wish.avoid = match trusts_suspects {
        true => Vec::new(),
        false => all_suspects(&storage.devices).0,
    };
    let made = choose(storage, file, wish, placement::choose_degraded)?;
    info!(
        size = file.size,
        stripes = made.shape.stripes,
        missing = made.missing,
        "devices are away: a new file has fewer stripes, or objects that are made later"
    );
    Ok(layout_on(objects, file, made.shape, &made.devices))
}

/// The devices that the function `way` chooses. A file that must be in objects whatever its size
/// may also go to devices for other sizes.
fn choose<T>(
    storage: &Storage,
    file: &NewFile<'_>,
    mut wish: PlacementRequest,
    way: fn(&[OsdListed], &PlacementRequest, &mut ThreadRng) -> Result<T, NoPlace>,
) -> Result<T, NoLayout> {
    let devices = storage.devices.list();
    let mut rng = rand::rng();
    let mut chosen = way(&devices, &wish, &mut rng);
    if chosen.is_err() && !file.wanted.by_size {
        wish.size = 0;
        chosen = way(&devices, &wish, &mut rng);
    }
    chosen.map_err(|none| no_layout(&devices, &wish, &none))
}

fn no_layout(devices: &[OsdListed], wish: &PlacementRequest, none: &NoPlace) -> NoLayout {
    if none.usable + placement::away_count(devices, wish) < none.wanted {
        info!(cause = %none, size = wish.size, "no place for a file in objects");
        NoLayout::NoDevices
    } else if devices.iter().any(has_no_report_yet) {
        NoLayout::NoReportYet
    } else {
        NoLayout::Away
    }
}

fn layout_on(objects: &Objects, file: &NewFile<'_>, shape: Shape, devices: &[u32]) -> Layout {
    let serial = first_serial(objects, file.serial, devices.len());
    let placed = devices.iter().zip(serial..).map(|(&osd, serial)| Placed {
        osd,
        serial,
        version: 0,
        stale: false,
    });
    Layout {
        shape,
        version: objects.next_version(objects.wall(), file.borrowed),
        serial: serial + (devices.len() as u32 - 1),
        volume: file.volume,
        objects: List::from_iter_cut(placed),
    }
}

/// Whether the database has not heard from the device since it started recently.
fn has_no_report_yet(listed: &OsdListed) -> bool {
    listed.entry.id != LOCAL_DISK && !listed.dead && listed.state.silence == u32::MAX
}

/// The layout for the next store of a file. Its version is new, is made from the present versions,
/// and is above `borrowed`, the last that the volume knows from another server. Objects that were
/// never written, and whose devices have died since, move to other devices.
pub(crate) fn next(
    objects: &Objects,
    fid: Fid,
    layout: &Layout,
    size: u64,
    borrowed: u64,
) -> Result<Layout, Failure> {
    let storage = objects.needed()?;
    let mut next = layout.clone();
    let last = layout.version.max(borrowed);
    next.version = objects.next_version(objects.wall(), last);
    replace_missing(objects, storage, fid, &mut next, size);
    Ok(next)
}

fn replace_missing(objects: &Objects, storage: &Storage, fid: Fid, layout: &mut Layout, size: u64) {
    let unmade = |placed: &Placed| {
        placed.version == 0 && storage.devices.condition(placed.osd) == Condition::Dead
    };
    if !layout.objects.iter().any(unmade) {
        return;
    }
    let wanted = ObjectSpec {
        shape: layout.shape,
        class: None,
        by_size: false,
    };
    let wish = placement_request(storage, &wanted, size);
    let devices = storage.devices.list();
    for place in 0..layout.objects.len() {
        if !unmade(&layout.objects[place]) {
            continue;
        }
        let present: Vec<u32> = layout.objects.iter().map(|placed| placed.osd).collect();
        let found = placement::choose_one(&devices, &wish, place, &present, &mut rand::rng());
        if let Ok(osd) = found {
            let serial = first_serial(objects, layout.serial, 1);
            layout.serial = serial;
            let placed = &mut layout.objects.as_mut_slice()[place];
            (placed.osd, placed.serial) = (osd, serial);
            info!(%fid, place, osd, "an object that was never written moves to another device");
        }
    }
}

/// The requirements for devices for a file of that size.
pub(crate) fn placement_request(
    storage: &Storage,
    wanted: &ObjectSpec,
    size: u64,
) -> PlacementRequest {
    PlacementRequest {
        shape: wanted.shape,
        size,
        class: wanted.class.clone().unwrap_or_default(),
        location: storage.config.location.clone(),
        owner: storage.config.owner.clone(),
        avoid: suspects(&storage.devices, wanted.shape.objects()),
    }
}

/// Devices that failed recently. Empty if too few others are left.
fn suspects(devices: &Devices, needed: usize) -> Vec<u32> {
    let (mut suspects, well) = all_suspects(devices);
    if well < needed {
        suspects.clear();
    }
    suspects
}

/// Devices that failed recently, and the number of others.
fn all_suspects(devices: &Devices) -> (Vec<u32>, usize) {
    let all = devices.list();
    let (mut suspects, mut well) = (Vec::new(), 0);
    for listed in all.iter().filter(|listed| placement::takes_objects(listed)) {
        match devices.condition(listed.entry.id) {
            Condition::Well => well += 1,
            _ => suspects.push(listed.entry.id),
        }
    }
    (suspects, well)
}

/// The first of `count` new serial numbers.
fn first_serial(objects: &Objects, last: u32, count: usize) -> u32 {
    let most = u32::MAX - count as u32;
    last.saturating_add(1).max(objects.now_secs()).min(most)
}

impl Objects {
    /// Whether a file's objects were made for the RW volume `volume`, by any server. Objects that
    /// came from another volume are never written.
    pub(crate) fn are_own(layout: &Layout, volume: VolumeId) -> bool {
        layout.volume == volume
    }
}
