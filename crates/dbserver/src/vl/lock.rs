//! SetLock, ReleaseLock: one operation at a time on a volume group.
//!
//! A lock is a time and an operation flag in the entry. It belongs to nobody and never expires; `vos
//! unlock` breaks it. A release that did not finish leaves its flag without the time, and the next
//! SetLock answers VL_RERELEASE without taking a lock: `vos` goes on as if it had.

use cellar_wire::vl::{
    ReleaseLock, ReleaseLockReply, SetLock, SetLockReply, VLOP_ALLOPERS, VLOP_BACKUP, VLOP_DELETE,
    VLOP_DUMP, VLOP_MOVE, VLOP_RELEASE,
};
use cellar_wire::{AbortCode, AfsTime};

use super::Vl;
use super::entry::{check_release_type, check_type};
use super::tables::Tables;
use crate::answer::Server;
use crate::{Answer, Error, Identity};

impl Answer<Vl> for SetLock {
    const BLOCKS: bool = true;

    fn answer(self, vl: &Vl, who: Identity) -> Result<SetLockReply, Error> {
        Vl::check_administrator(who)?;
        check_type(self.voltype)?;
        let operation = self.voloper as u32;
        if ![VLOP_MOVE, VLOP_RELEASE, VLOP_BACKUP, VLOP_DELETE, VLOP_DUMP].contains(&operation) {
            return Err(AbortCode::VL_BADVOLOPER.into());
        }
        // 0 would mean "not locked".
        let now = vl.now().max(AfsTime(1));
        vl.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            let old = tables.find(self.volid, self.voltype)?;
            if old.lock_time != AfsTime(0) {
                return Err(AbortCode::VL_ENTRYLOCKED.into());
            }
            if old.flags & VLOP_RELEASE != 0 {
                return Err(AbortCode::VL_RERELEASE.into());
            }
            let mut new = old.clone();
            new.lock_time = now;
            new.lock_id = 0;
            new.flags = new.flags & !VLOP_ALLOPERS | operation;
            tables.replace(&old, new)
        })?;
        Ok(SetLockReply {})
    }
}

impl Answer<Vl> for ReleaseLock {
    const BLOCKS: bool = true;

    fn answer(self, vl: &Vl, who: Identity) -> Result<ReleaseLockReply, Error> {
        Vl::check_administrator(who)?;
        check_type(self.voltype)?;
        check_release_type(self.releasetype)?;
        vl.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            let old = tables.find(self.volid, self.voltype)?;
            let mut new = old.clone();
            new.release(self.releasetype);
            if new != old {
                tables.replace(&old, new)
            } else {
                Ok(())
            }
        })?;
        Ok(ReleaseLockReply {})
    }
}
