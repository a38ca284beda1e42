//! SetFieldsEntry, SetMax: access bits, quotas, and the last assigned ids.

use cellar_auth::audit::Details;
use cellar_auth::audit_details;
use cellar_wire::pr::{
    PR_SF_NGROUPS, PR_SF_NUSERS, PRACCESS, PRGRP, PRIVATE_SHIFT, PRQUOTA, SetFieldsEntry,
    SetFieldsEntryReply, SetMax, SetMaxReply,
};
use cellar_wire::{AbortCode, ViceId};

use super::Pr;
use super::access::allows;
use super::limits::GROUP_QUOTA;
use super::tables::{MAX_GROUP, MAX_USER, Tables};
use crate::{Answer, Error, Identity, Kind};

/// Bits of a mask that select access bits.
const ACCESS_MASK: u32 = 0xffff;

impl Answer<Pr> for SetFieldsEntry {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        audit_details!(self: id, mask, flags, ngroups, nusers)
    }

    fn answer(self, pr: &Pr, who: Identity) -> Result<SetFieldsEntryReply, Error> {
        if self.mask == 0 {
            return Ok(SetFieldsEntryReply {});
        }
        if matches!(
            self.id,
            ViceId::ANYUSER | ViceId::AUTHUSER | ViceId::ANONYMOUS
        ) {
            return Err(AbortCode::PRPERM.into());
        }
        pr.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            let mut record = tables.find(self.id)?;
            let sets_quota = self.mask & (PR_SF_NGROUPS | PR_SF_NUSERS) != 0;
            let judged = if sets_quota { None } else { Some(&record) };
            if !allows(&tables, who, judged, 0, 0)? {
                return Err(AbortCode::PRPERM.into());
            }
            if sets_quota && record.flags & PRQUOTA == 0 {
                record.ngroups = GROUP_QUOTA;
                record.nusers = GROUP_QUOTA;
                record.flags |= PRQUOTA;
            }
            let mask = self.mask & ACCESS_MASK;
            if mask != 0 {
                record.flags &= !(mask << PRIVATE_SHIFT);
                record.flags |= (self.flags & mask) << PRIVATE_SHIFT | PRACCESS;
            }
            if self.mask & PR_SF_NGROUPS != 0 {
                record.ngroups = check_quota(self.ngroups)?;
            }
            if self.mask & PR_SF_NUSERS != 0 {
                record.nusers = check_quota(self.nusers)?;
            }
            tables.put(&record);
            Ok(())
        })?;
        Ok(SetFieldsEntryReply {})
    }
}

fn check_quota(quota: i32) -> Result<i32, AbortCode> {
    if quota < 0 {
        Err(AbortCode::PRBADARG)
    } else {
        Ok(quota)
    }
}

impl Answer<Pr> for SetMax {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        audit_details!(self: id, gflag)
    }

    fn answer(self, pr: &Pr, who: Identity) -> Result<SetMaxReply, Error> {
        pr.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            if !allows(&tables, who, None, 0, 0)? {
                return Err(AbortCode::PRPERM.into());
            }
            let is_group = self.gflag as u32 & PRGRP != 0;
            if (is_group && self.id.0 > 0) || (!is_group && self.id.0 < 0) {
                return Err(AbortCode::PRBADARG.into());
            }
            tables.choose_max(if is_group { MAX_GROUP } else { MAX_USER }, self.id.0)?;
            Ok(())
        })?;
        Ok(SetMaxReply {})
    }
}
