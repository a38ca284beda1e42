//! GetNewVolumeId: ids that no volume has.

use cellar_wire::vl::{GetNewVolumeId, GetNewVolumeIdReply};
use cellar_wire::{AbortCode, VolumeId};

use super::Vl;
use super::limits::BUMP_MAX;
use super::tables::Tables;
use crate::{Answer, Error, Identity};

impl Answer<Vl> for GetNewVolumeId {
    const BLOCKS: bool = true;

    fn answer(self, vl: &Vl, who: Identity) -> Result<GetNewVolumeIdReply, Error> {
        Vl::check_administrator(who)?;
        if self.bump > BUMP_MAX {
            return Err(AbortCode::VL_BADVOLIDBUMP.into());
        }
        let first = vl.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            let mut first = tables.max_volume_id()?;
            if self.bump == 0 {
                return Ok(first);
            }
            // A run without a used id: each turn begins after the highest one found.
            loop {
                let next = first
                    .checked_add(self.bump)
                    .ok_or(AbortCode::VL_BADVOLIDBUMP)?;
                match tables.highest_used_id(first, next - 1)? {
                    Some(used) => {
                        first = used.checked_add(1).ok_or(AbortCode::VL_BADVOLIDBUMP)?;
                    }
                    None => {
                        tables.set_max_volume_id(next);
                        return Ok(first);
                    }
                }
            }
        })?;
        Ok(GetNewVolumeIdReply {
            newvolumid: VolumeId(first),
        })
    }
}
