//! SetLock, ReleaseLock: one operation at a time on a volume group. LockNoted, GetLock: the holder
//! of the lock.
//!
//! A lock is a time and an operation flag in the entry. It has no owner and never expires; `vos
//! unlock` breaks it. An unfinished release leaves its flag without the time. The next SetLock then
//! returns VL_RERELEASE and takes no lock; `vos` continues as if it had.
//!
//! The holder, its address and the purpose are a row of their own under the entry's number, written
//! in the transaction that locks. The row is valid while the entry's lock has the same time.
//! Therefore the many ways to release a lock need not know of the row, and the next lock replaces
//! it.

use cellar_auth::audit::Details;
use cellar_auth::audit_details;
use cellar_wire::vl::{
    GetLock, GetLockReply, LockNoted, LockNotedReply, LockText, ReleaseLock, ReleaseLockReply,
    SetLock, SetLockReply, VLOP_ALLOPERS, VLOP_BACKUP, VLOP_DELETE, VLOP_DUMP, VLOP_MOVE,
    VLOP_RELEASE,
};
use cellar_wire::{AbortCode, AfsTime};

use super::Vl;
use super::entry::{Holder, check_release_type, check_type};
use super::tables::{self, Tables};
use crate::answer::Server;
use crate::{Answer, Error, Identity, Kind, Origin};

impl Holder {
    /// The known facts about a caller. The note is missing.
    fn of(origin: &Origin) -> Self {
        Self {
            who: LockText::try_from(origin.who()).unwrap_or_default(),
            from: origin.ipv4(),
            ..Self::default()
        }
    }
}

/// SetLock is a LockNoted without a note.
fn without_note(call: SetLock) -> LockNoted {
    LockNoted {
        volid: call.volid,
        voltype: call.voltype,
        voloper: call.voloper,
        note: LockText::default(),
    }
}

impl Answer<Vl> for SetLock {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        audit_details!(self: volid, voltype, voloper)
    }

    fn answer(self, vl: &Vl, who: Identity) -> Result<SetLockReply, Error> {
        without_note(self).answer(vl, who)?;
        Ok(SetLockReply {})
    }

    fn answer_call(self, vl: &Vl, who: Identity, origin: &Origin) -> Result<SetLockReply, Error> {
        without_note(self).answer_call(vl, who, origin)?;
        Ok(SetLockReply {})
    }
}

impl Answer<Vl> for LockNoted {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        audit_details!(self: volid, voltype, voloper, note)
    }

    /// There is nothing to record about a caller in this process.
    fn answer(self, vl: &Vl, who: Identity) -> Result<LockNotedReply, Error> {
        vl.lock(self, who, Holder::default())
    }

    fn answer_call(self, vl: &Vl, who: Identity, origin: &Origin) -> Result<LockNotedReply, Error> {
        vl.lock(self, who, Holder::of(origin))
    }
}

/// Every caller sees that an entry is locked, as in the entry itself. Only superusers see the
/// names, addresses and texts of lock holders.
impl Answer<Vl> for GetLock {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Listing;

    fn answer(self, vl: &Vl, who: Identity) -> Result<GetLockReply, Error> {
        check_type(self.voltype)?;
        let entry = vl.replica.read().by_id(self.volid, self.voltype)?.clone();
        let holder = vl
            .replica
            .view(|view| tables::lock_holder(view, entry.number))?;
        let holder = holder
            .filter(|holder| who.is_superuser() && holder.since == entry.lock_time)
            .unwrap_or_default();
        Ok(GetLockReply {
            operation: entry.flags & VLOP_ALLOPERS,
            since: entry.lock_time,
            who: holder.who,
            from: holder.from,
            note: holder.note,
        })
    }
}

impl Vl {
    /// Locks an entry and stores its holder, with the note of the call.
    fn lock(
        &self,
        call: LockNoted,
        who: Identity,
        holder: Holder,
    ) -> Result<LockNotedReply, Error> {
        let LockNoted {
            volid: volume,
            voltype,
            voloper: operation,
            note,
        } = call;
        let holder = Holder { note, ..holder };
        Self::check_administrator(who)?;
        check_type(voltype)?;
        let operation = operation as u32;
        if ![VLOP_MOVE, VLOP_RELEASE, VLOP_BACKUP, VLOP_DELETE, VLOP_DUMP].contains(&operation) {
            return Err(AbortCode::VL_BADVOLOPER.into());
        }
        // 0 would mean "not locked".
        let now = self.now().max(AfsTime(1));
        self.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            let old = tables.find(volume, voltype)?;
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
            let holder = Holder {
                since: now,
                ..holder.clone()
            };
            tables.put_lock_holder(old.number, &holder);
            tables.replace(&old, new)
        })?;
        Ok(LockNotedReply {})
    }
}

impl Answer<Vl> for ReleaseLock {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        audit_details!(self: volid, voltype, releasetype)
    }

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
