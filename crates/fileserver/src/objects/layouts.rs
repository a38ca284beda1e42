//! New layouts: which devices, which serial numbers, which version.
//!
//! A serial number that a file's record has known is never given to another object of the file, nor is a version given
//! twice: both are above the last that the record knows, and above the clock, which also counts where the record is
//! not known (a file that came from elsewhere). Of a store that failed no record knows, so the objects that it made
//! may be the next one's too, with a newer version: what it left is given up by version, never by object.

use cellar_objects::placement::{self, NoPlace, Wish};
use cellar_objects::{Condition, Devices};
use cellar_wire::List;
use cellar_wire::ids::{Fid, VolumeId};
use cellar_wire::object::{Layout, Placed, Shape};
use cellar_wire::osddb::OsdListed;
use rand::rngs::ThreadRng;
use tracing::info;

use super::policies::Wanted;
use super::{LOCAL_DISK, Objects, Storage};
use crate::abort_map::Refusal;
use crate::server::Server;

/// Why a new file has no place in objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// The cell has too few devices for such a file, or those that it has are full.
    NoDevices,
    /// Devices are away, and some of them the database has not heard since its start.
    Unheard,
    /// Devices are away.
    Away,
}

/// What a new file is, and what of the old one its layout must be above.
#[derive(Clone, Copy)]
pub(crate) struct NewFile<'a> {
    pub(crate) volume: VolumeId,
    pub(crate) wanted: &'a Wanted,
    pub(crate) size: u64,
    /// The last serial number that the file had.
    pub(crate) serial: u32,
    /// The last version that the volume knows from elsewhere.
    pub(crate) borrowed: u64,
}

/// A layout whose objects are not made yet: all versions are 0, and `version` is that to write. It
/// is the shape that is wanted, on devices that are there. Devices that failed a moment ago are
/// used if too few others are left, unless `trusts_suspects` is false.
pub(crate) fn whole(
    server: &Server,
    storage: &Storage,
    file: &NewFile<'_>,
    trusts_suspects: bool,
) -> Result<Layout, Lack> {
    let mut wish = wish(storage, file.wanted, file.size);
    if !trusts_suspects {
        wish.avoid = all_suspects(&storage.devices).0;
    }
    let chosen = choose(storage, file, wish, placement::choose)?;
    Ok(layout_on(server, file, file.wanted.shape, &chosen))
}

/// The same where devices are away: with fewer stripes, or copies and parity on devices that are
/// away. Devices that failed a moment ago are away too, unless `trusts_suspects`.
pub(crate) fn degraded(
    server: &Server,
    storage: &Storage,
    file: &NewFile<'_>,
    trusts_suspects: bool,
) -> Result<Layout, Lack> {
    let mut wish = wish(storage, file.wanted, file.size);
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
    Ok(layout_on(server, file, made.shape, &made.devices))
}

/// The devices that a way to choose finds. A file that is to be in objects whatever its
/// size goes to devices for other sizes too.
fn choose<T>(
    storage: &Storage,
    file: &NewFile<'_>,
    mut wish: Wish,
    way: fn(&[OsdListed], &Wish, &mut ThreadRng) -> Result<T, NoPlace>,
) -> Result<T, Lack> {
    let devices = storage.devices.list();
    let mut rng = rand::rng();
    let mut chosen = way(&devices, &wish, &mut rng);
    if chosen.is_err() && !file.wanted.by_size {
        wish.size = 0;
        chosen = way(&devices, &wish, &mut rng);
    }
    chosen.map_err(|none| lack(&devices, &wish, &none))
}

fn lack(devices: &[OsdListed], wish: &Wish, none: &NoPlace) -> Lack {
    if none.usable + placement::away_count(devices, wish) < none.wanted {
        info!(cause = %none, size = wish.size, "no place for a file in objects");
        Lack::NoDevices
    } else if devices.iter().any(not_heard_yet) {
        Lack::Unheard
    } else {
        Lack::Away
    }
}

fn layout_on(server: &Server, file: &NewFile<'_>, shape: Shape, devices: &[u32]) -> Layout {
    let serial = first_serial(server, file.serial, devices.len());
    let placed = devices.iter().zip(serial..).map(|(&osd, serial)| Placed {
        osd,
        serial,
        version: 0,
        stale: false,
    });
    Layout {
        shape,
        version: server.objects.next_version(server.wall(), file.borrowed),
        serial: serial + (devices.len() as u32 - 1),
        volume: file.volume,
        objects: List::from_iter_cut(placed),
    }
}

/// Whether the cell's database was started a moment ago, and its device has not told it yet that it is there.
fn not_heard_yet(listed: &OsdListed) -> bool {
    listed.entry.id != LOCAL_DISK && !listed.dead && listed.state.silence == u32::MAX
}

/// The layout for the next store of a file: a new version, made from those that are there, and above
/// `borrowed`, the last that its volume knows from elsewhere. Objects that were never written and whose devices
/// have died since go to others.
pub(crate) fn next(
    server: &Server,
    fid: Fid,
    layout: &Layout,
    size: u64,
    borrowed: u64,
) -> Result<Layout, Refusal> {
    let storage = server.objects.needed()?;
    let mut next = layout.clone();
    let last = layout.version.max(borrowed);
    next.version = server.objects.next_version(server.wall(), last);
    replace_missing(server, storage, fid, &mut next, size);
    Ok(next)
}

fn replace_missing(server: &Server, storage: &Storage, fid: Fid, layout: &mut Layout, size: u64) {
    let unmade = |placed: &Placed| {
        placed.version == 0 && storage.devices.condition(placed.osd) == Condition::Dead
    };
    if !layout.objects.iter().any(unmade) {
        return;
    }
    let wanted = Wanted {
        shape: layout.shape,
        class: None,
        by_size: false,
    };
    let wish = wish(storage, &wanted, size);
    let devices = storage.devices.list();
    for place in 0..layout.objects.len() {
        if !unmade(&layout.objects[place]) {
            continue;
        }
        let present: Vec<u32> = layout.objects.iter().map(|placed| placed.osd).collect();
        let found = placement::choose_one(&devices, &wish, place, &present, &mut rand::rng());
        if let Ok(osd) = found {
            let serial = first_serial(server, layout.serial, 1);
            layout.serial = serial;
            let placed = &mut layout.objects.as_mut_slice()[place];
            (placed.osd, placed.serial) = (osd, serial);
            info!(%fid, place, osd, "an object that was never written goes to another device");
        }
    }
}

/// What is wished of devices for a file of that size.
pub(crate) fn wish(storage: &Storage, wanted: &Wanted, size: u64) -> Wish {
    Wish {
        shape: wanted.shape,
        size,
        class: wanted.class.clone().unwrap_or_default(),
        location: storage.config.location.clone(),
        owner: storage.config.owner.clone(),
        avoid: suspects(&storage.devices, wanted.shape.objects()),
    }
}

/// Devices that failed a moment ago, as long as enough others are left.
fn suspects(devices: &Devices, needed: usize) -> Vec<u32> {
    let (mut suspects, well) = all_suspects(devices);
    if well < needed {
        suspects.clear();
    }
    suspects
}

/// Devices that failed a moment ago, and how many others there are.
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

/// The first of so many new serial numbers.
fn first_serial(server: &Server, last: u32, count: usize) -> u32 {
    let most = u32::MAX - count as u32;
    last.saturating_add(1).max(server.now_secs()).min(most)
}

impl Objects {
    /// Whether a file's objects were made for the RW volume `volume`, by this server or another: those that
    /// came from another volume are not, and are never written.
    pub(crate) fn are_own(layout: &Layout, volume: VolumeId) -> bool {
        layout.volume == volume
    }
}
