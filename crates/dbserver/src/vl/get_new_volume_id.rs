//! GetNewVolumeId: reserves ids that no volume has.
//!
//! OpenAFS's `vos create` makes this call three times, so an id must not cost a commit of the
//! database. Therefore each server reserves ids in advance. The row `max_volume_id` is the first id
//! that no server has reserved. A server reserves ids by raising the row durably. It then assigns
//! the ids below from memory.
//!
//! No id is assigned twice, even after a crash. A server that starts has no reservation and
//! continues at the row; the rest of its old reservation is skipped. Several servers would have
//! separate reservations.

use std::ops::Range;

use cellar_auth::audit::Details;
use cellar_auth::audit_details;
use cellar_wire::vl::{GetNewVolumeId, GetNewVolumeIdReply};
use cellar_wire::{AbortCode, VolumeId};

use super::Vl;
use super::limits::{BUMP_MAX, RESERVED_IDS};
use super::model::Locations;
use super::tables::Tables;
use crate::{Answer, Error, Identity, Kind};

/// The ids that this server may assign: from the next one up to the row, unless another server has
/// raised the row.
#[derive(Default)]
pub(crate) struct Reserved(Range<u32>);

impl Reserved {
    /// Takes a run of `count` reserved ids that no entry has, if there is one.
    fn take(&mut self, count: u32, model: &Locations) -> Option<u32> {
        while self.0.end - self.0.start >= count {
            let first = self.0.start;
            match model.highest_used_id(first..first + count) {
                Some(used) => self.0.start = used + 1,
                None => {
                    self.0.start += count;
                    return Some(first);
                }
            }
        }
        None
    }
}

impl Answer<Vl> for GetNewVolumeId {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        audit_details!(self: bump)
    }

    fn answer(self, vl: &Vl, who: Identity) -> Result<GetNewVolumeIdReply, Error> {
        Vl::check_administrator(who)?;
        let first = match self.bump {
            0 => vl.next_volume_id().0,
            1..=BUMP_MAX => vl.take_volume_ids(self.bump)?,
            _ => return Err(AbortCode::VL_BADVOLIDBUMP.into()),
        };
        Ok(GetNewVolumeIdReply {
            newvolumid: VolumeId(first),
        })
    }
}

impl Vl {
    /// The next id to be assigned.
    fn next_volume_id(&self) -> VolumeId {
        let reserved = self.reserved_ids.lock();
        if reserved.0.is_empty() {
            self.replica.read().max_volume_id()
        } else {
            VolumeId(reserved.0.start)
        }
    }

    fn take_volume_ids(&self, count: u32) -> Result<u32, Error> {
        let mut reserved = self.reserved_ids.lock();
        if count <= RESERVED_IDS
            && let Some(first) = reserved.take(count, &self.replica.read())
        {
            return Ok(first);
        }
        let here = reserved.0.clone();
        let (first, left) = self.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            let mut first = tables.max_volume_id()?;
            if first == here.end {
                first = here.start;
            }
            // Searches a run without a used id. Each turn starts after the highest used one.
            loop {
                let next = first.checked_add(count).ok_or(AbortCode::VL_BADVOLIDBUMP)?;
                match tables.highest_used_id(first, next - 1)? {
                    Some(used) => {
                        first = used.checked_add(1).ok_or(AbortCode::VL_BADVOLIDBUMP)?;
                    }
                    None => {
                        let end = next.saturating_add(RESERVED_IDS);
                        tables.set_max_volume_id(end);
                        return Ok((first, next..end));
                    }
                }
            }
        })?;
        reserved.0 = left;
        Ok(first)
    }
}
