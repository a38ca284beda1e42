//! Which devices get the objects of a file.
//!
//! 1. A device is *usable* if it takes new objects at all: not full, draining, dead, unwritable, archival,
//!    obsolete or without allocation priority; of the class asked for, for files of that size, with room.
//! 2. Devices of our own owner and site come first, then those of our owner, then all: the first group that
//!    has enough devices on enough different hosts. That a file is near matters less than that its copies
//!    are apart.
//! 3. Objects are given out one after the other. Each goes to one of the devices with the least in common with
//!    those chosen: first with the other copies of its stripe (host, then rack), then with all. Among these
//!    chance decides, by priority times free space. No two objects ever share a device.

use std::collections::HashSet;

use cellar_wire::object::{Scheme, Shape};
use cellar_wire::osddb::{OSD_ARCHIVAL, OSD_DRAINING, OSD_OBSOLETE, OsdEntry, OsdListed};
use rand::Rng;

use crate::arithmetic::{Striping, length_at};

/// The device number that stands for the file servers' own disks.
pub const LOCAL_DISK: u32 = 1;

/// Thousandths of a device that may be used before it counts as full.
pub const FULL_PER_MILLE: u64 = 950;

/// One with as many bytes of room is not full, however large it is.
pub const ROOM_BYTES: u64 = 4 << 30;

/// Length of a file of which nothing is known.
const SIZE_UNKNOWN: u64 = 1 << 20;

/// What is to be placed, and for whom.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// What the layout looks like.
    pub shape: Shape,
    /// Length that the file will have, in bytes; 0: not known.
    pub size: u64,
    /// The class of devices that a policy asks for; empty: any.
    pub class: String,
    /// Where we are, `site/room/rack/host` or less of it; empty: not known.
    pub location: String,
    /// Whose we are; empty: nobody's.
    pub owner: String,
    /// Devices that are not to be used: they failed, or hold something of the file.
    pub avoid: Vec<u32>,
}

/// Why no devices were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} devices are needed, and {usable} take new objects of such a file")]
pub struct NoPlace {
    /// Devices that are needed.
    pub wanted: usize,
    /// Devices that could be used.
    pub usable: usize,
}

/// A device that may be chosen.
struct Candidate<'a> {
    id: u32,
    weight: u64,
    host: Host<'a>,
    rack: Option<&'a str>,
    taken: bool,
}

/// What fails together: a host by its name where that is known, else by its address.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Host<'a> {
    Named(&'a str),
    At([u32; 4]),
}

/// Devices for all objects of a file, in the order of the layout.
///
/// # Errors
/// [`NoPlace`]: fewer usable devices than objects.
pub fn choose(devices: &[OsdListed], wish: &Wish, rng: &mut impl Rng) -> Result<Vec<u32>, NoPlace> {
    let wanted = wish.shape.objects();
    let mut candidates = candidates(devices, wish, wanted)?;
    let mut chosen: Vec<usize> = Vec::with_capacity(wanted);
    for place in 0..wanted {
        let fellows: Vec<usize> = (0..place)
            .filter(|other| are_fellows(&wish.shape, place, *other))
            .map(|other| chosen[other])
            .collect();
        let best = draw(&candidates, &fellows, &chosen, rng).ok_or(NoPlace {
            wanted,
            usable: place,
        })?;
        candidates[best].taken = true;
        chosen.push(best);
    }
    Ok(chosen.iter().map(|at| candidates[*at].id).collect())
}

/// Another device for the object at `place` of a file whose objects are on the devices `present` (in the order
/// of the layout). None of these is chosen.
///
/// # Errors
/// [`NoPlace`]: no other device is usable.
pub fn choose_one(
    devices: &[OsdListed],
    wish: &Wish,
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
            if are_fellows(&wish.shape, place, other) {
                fellows.push(candidates.len() - 1);
            }
        }
    }
    let best = draw(&candidates, &fellows, &all, rng);
    let best = best.ok_or(NoPlace { wanted: 1, usable })?;
    Ok(candidates[best].id)
}

/// Whether a device takes new objects of some file: everything but size, class and what is to be avoided.
#[must_use]
pub fn takes_objects(device: &OsdListed) -> bool {
    let never = OSD_ARCHIVAL | OSD_DRAINING | OSD_OBSOLETE;
    device.entry.id != LOCAL_DISK
        && device.entry.flags & never == 0
        && device.entry.allocation_priority > 0
        && !device.entry.addresses.is_empty()
        && !device.dead
        && device.state.writable
        && !is_full(device)
}

/// Whether more than [`FULL_PER_MILLE`] of a device is used, and less than [`ROOM_BYTES`] are left.
#[must_use]
pub fn is_full(device: &OsdListed) -> bool {
    let (total, free) = (device.state.total, device.state.free);
    let used = u128::from(total.saturating_sub(free));
    free < ROOM_BYTES && used * 1000 > u128::from(total) * u128::from(FULL_PER_MILLE)
}

/// Whether two objects of a layout hold the same bytes, so that both must not be lost together.
fn are_fellows(shape: &Shape, place: usize, other: usize) -> bool {
    match shape.scheme {
        Scheme::Striped => {
            let stripes = shape.stripes.max(1) as usize;
            place % stripes == other % stripes
        }
        Scheme::Erasure => true,
    }
}

/// The devices to choose from: at least `wanted`.
fn candidates<'a>(
    devices: &'a [OsdListed],
    wish: &Wish,
    wanted: usize,
) -> Result<Vec<Candidate<'a>>, NoPlace> {
    let size = if wish.size == 0 {
        SIZE_UNKNOWN
    } else {
        wish.size
    };
    let largest = length_at(&wish.shape, 0, size).max(1);
    debug_assert!(largest <= size.max(Striping::of(&wish.shape).unit));
    let usable: Vec<&OsdListed> = devices
        .iter()
        .filter(|device| {
            let entry = &device.entry;
            takes_objects(device)
                && !wish.avoid.contains(&entry.id)
                && (wish.class.is_empty() || entry.class.as_bytes() == wish.class.as_bytes())
                && (entry.max_size == 0 || size <= entry.max_size)
                && size >= entry.min_size
                && device.state.free > largest
        })
        .collect();
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
    // site/room/rack: of less nobody knows whether it is one rack.
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

/// Draws one of the candidates that are not taken and have the least in common with those chosen.
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
