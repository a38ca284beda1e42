//! Choice of devices for the objects of a file.
//!
//! 1. A device is *usable* if it accepts new objects at all. It must have an allocation priority
//!    and must not be full, draining, dead, unwritable, archival or obsolete. It must also have the
//!    requested class, permit files of that size, and have room.
//! 2. Devices with our own owner and site come first, then those with our owner, then all. The
//!    first of these groups with enough devices on enough different hosts is used. Separation of
//!    copies matters more than nearness of the file.
//! 3. Objects are placed one after the other. Each goes to one of the devices with the least in
//!    common with those already chosen. The comparison is first with the other copies of its stripe
//!    (host, then rack), then with all. Among these a random choice decides, weighted by priority
//!    times free space. No two objects ever share a device.
//! 4. A device that would be usable if it did not fail is *away*. If too few are usable, copies and
//!    parity are assigned to devices that are away, and are repaired later; data uses fewer stripes
//!    ([`choose_degraded`]).

use std::collections::HashSet;

use cellar_wire::object::{Scheme, Shape};
use cellar_wire::osddb::{OSD_ARCHIVAL, OSD_DRAINING, OSD_OBSOLETE, OsdEntry, OsdListed};
use rand::Rng;

use crate::arithmetic::{Striping, length_at};

/// The device number of the file servers' own disks.
pub const LOCAL_DISK: u32 = 1;

/// Used part of a device, in thousandths, above which it counts as full.
pub const FULL_PER_MILLE: u64 = 950;

/// A device with this much free space is not full, however large it is. Bytes.
pub const ROOM_BYTES: u64 = 4 << 30;

/// Assumed length of a file whose length is unknown, bytes.
const SIZE_UNKNOWN: u64 = 1 << 20;

/// Requirements for a placement.
#[derive(Clone, Debug, Default)]
pub struct PlacementRequest {
    /// Shape of the layout.
    pub shape: Shape,
    /// Expected length of the file, bytes; 0: unknown.
    pub size: u64,
    /// Class of devices that a policy requires; empty: any.
    pub class: String,
    /// Our location, `site/room/rack/host` or a prefix; empty: unknown.
    pub location: String,
    /// Our owner; empty: none.
    pub owner: String,
    /// Devices that must not be used: they failed, or hold a part of the file.
    pub avoid: Vec<u32>,
}

/// Reason why no devices were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} devices are needed, and {usable} take new objects of such a file")]
pub struct NoPlace {
    /// Number of devices needed.
    pub wanted: usize,
    /// Number of usable devices.
    pub usable: usize,
}

/// Devices for a file of which some are away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Degraded {
    /// The requested shape, with fewer stripes if there are too few devices.
    pub shape: Shape,
    /// Devices for all objects, in the order of the layout. The last ones are away.
    pub devices: Vec<u32>,
    /// Number of devices that are away.
    pub missing: usize,
}

/// A device that may be chosen.
struct Candidate<'a> {
    id: u32,
    weight: u64,
    host: Host<'a>,
    rack: Option<&'a str>,
    taken: bool,
}

/// A unit of failure: a host by its name if known, otherwise by its address.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Host<'a> {
    Named(&'a str),
    At([u32; 4]),
}

/// Chooses devices for all objects of a file, in the order of the layout.
///
/// # Errors
/// [`NoPlace`]: fewer usable devices than objects.
pub fn choose(
    devices: &[OsdListed],
    wish: &PlacementRequest,
    rng: &mut impl Rng,
) -> Result<Vec<u32>, NoPlace> {
    let wanted = wish.shape.objects();
    let mut candidates = candidates(devices, wish, wanted)?;
    let mut chosen: Vec<usize> = Vec::with_capacity(wanted);
    for place in 0..wanted {
        let best = best(&wish.shape, place, &mut candidates, &chosen, rng);
        chosen.push(best.ok_or(NoPlace {
            wanted,
            usable: place,
        })?);
    }
    Ok(chosen.iter().map(|at| candidates[*at].id).collect())
}

/// Chooses devices if [`choose`] finds too few because some are away: dead, suspect
/// ([`PlacementRequest::avoid`]) or read-only. The available part is stored now and repaired later.
///
/// * Data goes to available devices. There are at most as many stripes as such devices.
/// * Redundant objects (copies, parity) go to the other available devices, then to devices that are
///   away. The store finds these dead, and marks the objects as stale.
///
/// # Errors
/// [`NoPlace`]: even with all devices that are away there are too few, or the data has no place.
pub fn choose_degraded(
    devices: &[OsdListed],
    wish: &PlacementRequest,
    rng: &mut impl Rng,
) -> Result<Degraded, NoPlace> {
    let mut wish = wish.clone();
    let usable = usable(devices, &wish).len();
    let failed = NoPlace {
        wanted: wish.shape.objects(),
        usable,
    };
    let away = away(devices, &wish);
    if usable + away.len() < failed.wanted {
        return Err(failed);
    }
    if wish.shape.scheme == Scheme::Striped {
        let stripes = u32::try_from(usable).unwrap_or(u32::MAX);
        wish.shape.stripes = wish.shape.stripes.min(stripes);
    }
    let (wanted, data) = (wish.shape.objects(), wish.shape.stripes as usize);
    if usable == 0 || usable < data {
        return Err(failed);
    }
    let present = usable.min(wanted);
    let mut candidates = candidates(devices, &wish, present)?;
    let first_away = candidates.len();
    candidates.extend(away.into_iter().map(|device| candidate(device, true)));
    let mut chosen: Vec<usize> = Vec::with_capacity(wanted);
    for place in 0..wanted {
        if place == present {
            for candidate in &mut candidates[first_away..] {
                candidate.taken = false;
            }
        }
        chosen.push(best(&wish.shape, place, &mut candidates, &chosen, rng).ok_or(failed)?);
    }
    Ok(Degraded {
        shape: wish.shape,
        devices: chosen.iter().map(|at| candidates[*at].id).collect(),
        missing: chosen.iter().filter(|at| **at >= first_away).count(),
    })
}

/// Returns the number of devices that would accept such a file if they were not away.
#[must_use]
pub fn away_count(devices: &[OsdListed], wish: &PlacementRequest) -> usize {
    away(devices, wish).len()
}

/// Chooses another device for the object at `place` of a file whose objects are on the devices
/// `present` (in the order of the layout). None of these is chosen.
///
/// # Errors
/// [`NoPlace`]: no other device is usable.
pub fn choose_one(
    devices: &[OsdListed],
    wish: &PlacementRequest,
    place: usize,
    present: &[u32],
    rng: &mut impl Rng,
) -> Result<u32, NoPlace> {
    let mut wish = wish.clone();
    wish.avoid.extend_from_slice(present);
    let mut candidates = candidates(devices, &wish, 1)?;
    let usable = candidates.len();
    let known = |id: &u32| devices.iter().find(|device| device.entry.id == *id);
    let (mut fellows, mut all) = (Vec::new(), Vec::new());
    for (other, id) in present
        .iter()
        .enumerate()
        .filter(|(other, _)| *other != place)
    {
        if let Some(device) = known(id) {
            candidates.push(candidate(device, true));
            all.push(candidates.len() - 1);
            if share_bytes(&wish.shape, place, other) {
                fellows.push(candidates.len() - 1);
            }
        }
    }
    let best = draw(&candidates, &fellows, &all, rng);
    let best = best.ok_or(NoPlace { wanted: 1, usable })?;
    Ok(candidates[best].id)
}

/// Takes the best candidate for the object at `place`, after those of the earlier places.
fn best(
    shape: &Shape,
    place: usize,
    candidates: &mut [Candidate<'_>],
    chosen: &[usize],
    rng: &mut impl Rng,
) -> Option<usize> {
    let fellows: Vec<usize> = (0..place)
        .filter(|other| share_bytes(shape, place, *other))
        .map(|other| chosen[other])
        .collect();
    let best = draw(candidates, &fellows, chosen, rng)?;
    candidates[best].taken = true;
    Some(best)
}

/// Whether a device accepts new objects of some file, regardless of size, class and
/// [`PlacementRequest::avoid`].
#[must_use]
pub fn takes_objects(device: &OsdListed) -> bool {
    is_for_objects(device)
        && device.entry.flags & OSD_OBSOLETE == 0
        && !device.entry.addresses.is_empty()
        && !is_away(device)
        && !is_full(device)
}

/// Whether a device accepts new objects while it is available, or did before it was taken out of
/// use.
fn is_for_objects(device: &OsdListed) -> bool {
    let is_being_emptied = device.entry.flags & (OSD_DRAINING | OSD_OBSOLETE) == OSD_DRAINING;
    device.entry.id != LOCAL_DISK
        && device.entry.flags & OSD_ARCHIVAL == 0
        && !is_being_emptied
        && device.entry.allocation_priority > 0
}

/// Whether a device is silent, its disk has failed, or the database has not heard from it yet.
fn is_away(device: &OsdListed) -> bool {
    device.dead || !device.state.writable
}

/// Whether more than [`FULL_PER_MILLE`] of a device is used, and less than [`ROOM_BYTES`] is left.
#[must_use]
pub fn is_full(device: &OsdListed) -> bool {
    let (total, free) = (device.state.total, device.state.free);
    let used = u128::from(total.saturating_sub(free));
    free < ROOM_BYTES && used * 1000 > u128::from(total) * u128::from(FULL_PER_MILLE)
}

/// Whether two objects of a layout hold the same bytes, so that they must not be lost together.
fn share_bytes(shape: &Shape, place: usize, other: usize) -> bool {
    match shape.scheme {
        Scheme::Striped => {
            let stripes = shape.stripes.max(1) as usize;
            place % stripes == other % stripes
        }
        Scheme::Erasure => true,
    }
}

/// Whether a device is for files of that size and class.
fn fits(entry: &OsdEntry, wish: &PlacementRequest) -> bool {
    let size = size_of(wish);
    (wish.class.is_empty() || entry.class.as_bytes() == wish.class.as_bytes())
        && (entry.max_size == 0 || size <= entry.max_size)
        && size >= entry.min_size
}

fn size_of(wish: &PlacementRequest) -> u64 {
    if wish.size == 0 {
        SIZE_UNKNOWN
    } else {
        wish.size
    }
}

/// Returns the devices that accept the file now.
fn usable<'a>(devices: &'a [OsdListed], wish: &PlacementRequest) -> Vec<&'a OsdListed> {
    let size = size_of(wish);
    let largest = length_at(&wish.shape, 0, size).max(1);
    debug_assert!(largest <= size.max(Striping::of(&wish.shape).unit));
    let takes = |device: &&OsdListed| {
        takes_objects(device)
            && !wish.avoid.contains(&device.entry.id)
            && fits(&device.entry, wish)
            && device.state.free > largest
    };
    devices.iter().filter(takes).collect()
}

/// Returns the devices that would accept the file if they were not away. Their free space is
/// unknown.
fn away<'a>(devices: &'a [OsdListed], wish: &PlacementRequest) -> Vec<&'a OsdListed> {
    let would_take = |device: &&OsdListed| {
        is_for_objects(device)
            && fits(&device.entry, wish)
            && (is_away(device) || wish.avoid.contains(&device.entry.id))
    };
    devices.iter().filter(would_take).collect()
}

/// Returns the devices to choose from: at least `wanted`.
fn candidates<'a>(
    devices: &'a [OsdListed],
    wish: &PlacementRequest,
    wanted: usize,
) -> Result<Vec<Candidate<'a>>, NoPlace> {
    let usable = usable(devices, wish);
    let failed = NoPlace {
        wanted,
        usable: usable.len(),
    };
    if usable.len() < wanted {
        return Err(failed);
    }
    let hosts = |devices: &[&'a OsdListed]| -> usize {
        let hosts: HashSet<Host<'a>> = devices.iter().map(|d| host_of(&d.entry)).collect();
        hosts.len()
    };
    let enough_hosts = hosts(&usable).min(wanted);
    let owned = |device: &&OsdListed| {
        device.entry.owner.is_empty() || device.entry.owner.as_bytes() == wish.owner.as_bytes()
    };
    let site = site_of(wish.location.as_bytes());
    let near = |device: &&OsdListed| {
        wish.location.is_empty() || site_of(device.entry.location.as_bytes()) == site
    };
    let groups: [&dyn Fn(&&OsdListed) -> bool; 2] = [&|d| owned(d) && near(d), &owned];
    let mut from = usable.clone();
    for group in groups {
        let part: Vec<&OsdListed> = usable.iter().copied().filter(|d| group(d)).collect();
        if part.len() >= wanted && hosts(&part) >= enough_hosts {
            from = part;
            break;
        }
    }
    Ok(from.into_iter().map(|d| candidate(d, false)).collect())
}

fn candidate(device: &OsdListed, taken: bool) -> Candidate<'_> {
    let entry = &device.entry;
    let location = entry.location.as_str().unwrap_or_default();
    // site/room/rack: a shorter location does not determine a rack.
    let rack = location.match_indices('/').nth(2).map(|(end, _)| end);
    let three = location.split('/').filter(|part| !part.is_empty()).count() >= 3;
    let rack = rack.or_else(|| three.then_some(location.len()));
    Candidate {
        id: entry.id,
        weight: u64::from(entry.allocation_priority)
            .saturating_mul((device.state.free >> 20).saturating_add(1)),
        host: host_of(entry),
        rack: rack.map(|end| &location[..end]),
        taken,
    }
}

fn host_of(entry: &OsdEntry) -> Host<'_> {
    let location = entry.location.as_str().unwrap_or_default();
    match location.split('/').nth(3) {
        Some(host) if !host.is_empty() => Host::Named(location),
        // Different ports of one address are one machine.
        _ => Host::At(entry.addresses.first().copied().unwrap_or_default()),
    }
}

fn site_of(location: &[u8]) -> &[u8] {
    location
        .split(|byte| *byte == b'/')
        .next()
        .unwrap_or(location)
}

/// Draws one of the free candidates with the least in common with those chosen.
fn draw(
    candidates: &[Candidate<'_>],
    fellows: &[usize],
    chosen: &[usize],
    rng: &mut impl Rng,
) -> Option<usize> {
    let common = |candidate: &Candidate<'_>, with: &[usize]| -> (usize, usize) {
        let same = |with: &[usize], is: &dyn Fn(&Candidate<'_>) -> bool| {
            with.iter().filter(|at| is(&candidates[**at])).count()
        };
        let host = same(with, &|other| other.host == candidate.host);
        let rack = same(with, &|other| {
            candidate.rack.is_some() && other.rack == candidate.rack
        });
        (host, rack)
    };
    let mut least = None;
    let mut best: Vec<usize> = Vec::new();
    for (at, candidate) in candidates.iter().enumerate() {
        if candidate.taken {
            continue;
        }
        let key = (common(candidate, fellows), common(candidate, chosen));
        match least {
            Some(least) if key > least => {}
            Some(least) if key == least => best.push(at),
            _ => {
                least = Some(key);
                best = vec![at];
            }
        }
    }
    let total: u128 = best
        .iter()
        .map(|at| u128::from(candidates[*at].weight))
        .sum();
    if total == 0 {
        return best.first().copied();
    }
    let mut drawn = rng.random_range(0..total);
    for at in &best {
        let weight = u128::from(candidates[*at].weight);
        if drawn < weight {
            return Some(*at);
        }
        drawn -= weight;
    }
    best.last().copied()
}

#[cfg(test)]
mod tests;
