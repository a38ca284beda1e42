//! Permissions on entries.
//!
//! The caller has a permission if one of these conditions holds. They are checked in this order:
//!
//! 1. The caller is the superuser.
//! 2. An access bit of the entry gives the permission to everyone.
//! 3. The caller owns the entry, or is a member of the group that owns it.
//! 4. The entry is a user, and the caller is that user.
//! 5. The entry is a group, an access bit gives the permission to members, and the caller is one.
//! 6. The permission is to see status, memberships or ownership, and the caller is in
//!    system:ptsviewers.
//! 7. The caller is in system:administrators.
//!
//! The check is one function over [`Memberships`], so that reads use the model and writes their
//! transaction.

use std::collections::BTreeSet;

use cellar_celldb::Error as DatabaseError;
use cellar_wire::pr::{PRP_MEMBER_MEM, PRP_OWNED_ANY, PRP_STATUS_MEM};
use cellar_wire::{AbortCode, ViceId};

use super::limits::{AROUND_MAX, NESTING_MAX};
use super::record::Record;
use crate::{Error, Identity};

/// In the place of a bit: every member has the permission, independent of the bits.
pub(crate) const ANY_MEMBER: u32 = u32::MAX;

/// The memberships that a check uses.
pub(crate) trait Memberships {
    /// The groups that have `id`, a user or a group, as a member.
    fn groups_of(&self, id: ViceId, each: &mut dyn FnMut(ViceId)) -> Result<(), DatabaseError>;
}

/// Whether `id` is a member of `group`, directly or through nested groups. All ids are in
/// system:anyuser, and all but anonymous in system:authuser.
pub(crate) fn is_member(
    people: &impl Memberships,
    id: ViceId,
    group: ViceId,
) -> Result<bool, DatabaseError> {
    if group == ViceId::ANYUSER || (group == ViceId::AUTHUSER && id != ViceId::ANONYMOUS) {
        return Ok(true);
    }
    if group == ViceId::ADMINISTRATORS && id == ViceId::ADMINISTRATORS {
        return Ok(true);
    }
    if group.0 >= 0 || id.0 == 0 {
        return Ok(false);
    }
    let mut reached = BTreeSet::new();
    people.groups_of(id, &mut |group| {
        reached.insert(group);
    })?;
    reached.insert(ViceId::ANYUSER);
    if id != ViceId::ANONYMOUS {
        reached.insert(ViceId::AUTHUSER);
    }
    Ok(expand(people, reached, NESTING_MAX - 1, Some(group))?.contains(&group))
}

/// `groups`, and the groups that have them as members, through at most `steps` levels. Stops when
/// `wanted` is found.
pub(crate) fn expand(
    people: &impl Memberships,
    groups: BTreeSet<ViceId>,
    steps: usize,
    wanted: Option<ViceId>,
) -> Result<BTreeSet<ViceId>, DatabaseError> {
    let mut reached = groups.clone();
    let mut last = groups;
    for _ in 0..steps {
        if last.is_empty() || wanted.is_some_and(|wanted| reached.contains(&wanted)) {
            break;
        }
        let mut next = BTreeSet::new();
        for group in last.iter().filter(|id| id.is_group()) {
            people.groups_of(*group, &mut |above| {
                if reached.insert(above) {
                    next.insert(above);
                }
            })?;
        }
        last = next;
    }
    Ok(reached)
}

/// Whether `group` is `wanted` or is nested in it, at any depth.
///
/// # Errors
/// PRTOOMANY if the search meets too many groups.
pub(crate) fn is_inside(
    people: &impl Memberships,
    group: ViceId,
    wanted: ViceId,
) -> Result<bool, Error> {
    let mut reached = BTreeSet::from([group]);
    let mut left = vec![group];
    while let Some(group) = left.pop() {
        if group == wanted {
            return Ok(true);
        }
        if reached.len() > AROUND_MAX {
            return Err(AbortCode::PRTOOMANY.into());
        }
        people.groups_of(group, &mut |around| {
            if reached.insert(around) {
                left.push(around);
            }
        })?;
    }
    Ok(false)
}

/// Whether the caller is an administrator.
pub(crate) fn is_administrator(
    people: &impl Memberships,
    who: Identity,
) -> Result<bool, DatabaseError> {
    is_member(people, who.id(), ViceId::ADMINISTRATORS)
}

/// Whether `who` has a permission on `entry`: the bits `mem` give it to members, the bits `any` to
/// everyone.
pub(crate) fn allows(
    people: &impl Memberships,
    who: Identity,
    entry: Option<&Record>,
    mem: u32,
    any: u32,
) -> Result<bool, DatabaseError> {
    if who.is_superuser() {
        return Ok(true);
    }
    let caller = who.id();
    if let Some(entry) = entry {
        let bits = entry.access();
        if bits & any != 0 || is_owner(people, caller, entry)? {
            return Ok(true);
        }
        if entry.is_group() {
            if (mem == ANY_MEMBER || bits & mem != 0) && is_member(people, caller, entry.id)? {
                return Ok(true);
            }
        } else if entry.id == caller {
            return Ok(true);
        }
    }
    let is_view = mem == PRP_STATUS_MEM || mem == PRP_MEMBER_MEM || any == PRP_OWNED_ANY;
    if is_view && is_member(people, caller, ViceId::PTSVIEWERS)? {
        return Ok(true);
    }
    is_administrator(people, who)
}

/// Whether `caller` owns the entry, or is in the group that owns it.
pub(crate) fn is_owner(
    people: &impl Memberships,
    caller: ViceId,
    entry: &Record,
) -> Result<bool, DatabaseError> {
    if entry.owner.0 == 0 {
        return Ok(false);
    }
    Ok(entry.owner == caller || is_member(people, caller, entry.owner)?)
}
