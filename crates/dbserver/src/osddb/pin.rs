//! ListPins, SetPin, DeletePin.
//!
//! Pins that have ended stay in the table until the next pin is set. They are not listed.

use cellar_auth::audit::Details;
use cellar_auth::audit_details;
use cellar_wire::osddb::{
    DeletePin, DeletePinReply, ListPins, ListPinsReply, PINS_MAX, PINS_OF_OWNER_MAX, Pin, SetPin,
    SetPinReply,
};
use cellar_wire::{AbortCode, List};

use super::OsdDb;
use super::tables::Tables;
use crate::{Answer, Error, Identity, Kind};

fn has_ended(pin: &Pin, now: u64) -> bool {
    pin.until != 0 && pin.until <= now
}

impl OsdDb {
    fn now(&self) -> u64 {
        (self.clock)().0.into()
    }
}

impl Answer<OsdDb> for ListPins {
    const BLOCKS: bool = false;

    fn answer(self, osddb: &OsdDb, _: Identity) -> Result<ListPinsReply, Error> {
        let (model, now) = (osddb.replica.read(), osddb.now());
        let revision = model.pins_revision;
        let wanted = model.pins.values().filter(|_| self.known != revision);
        let pins = wanted.filter(|pin| !has_ended(pin, now)).cloned();
        Ok(ListPinsReply {
            revision,
            pins: List::from_iter_cut(pins),
        })
    }
}

impl Answer<OsdDb> for SetPin {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        let pin = &self.pin;
        audit_details!(pin: fid, owner, until)
    }

    fn answer(self, osddb: &OsdDb, who: Identity) -> Result<SetPinReply, Error> {
        OsdDb::check_superuser(who)?;
        let now = osddb.now();
        osddb.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            let mut pins = tables.pins()?;
            for ended in pins.extract_if(.., |pin| has_ended(pin, now)) {
                tables.delete_pin(ended.fid, ended.owner)?;
            }
            let new = &self.pin;
            pins.retain(|pin| (pin.fid, pin.owner) != (new.fid, new.owner));
            if pins.len() >= PINS_MAX {
                return Err(AbortCode::ENOSPC.into());
            }
            let own = pins.iter().filter(|pin| pin.owner == new.owner);
            if own.count() >= PINS_OF_OWNER_MAX {
                return Err(AbortCode::EAGAIN.into());
            }
            Ok(tables.put_pin(new)?)
        })?;
        Ok(SetPinReply {})
    }
}

impl Answer<OsdDb> for DeletePin {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        audit_details!(self: fid, owner)
    }

    fn answer(self, osddb: &OsdDb, who: Identity) -> Result<DeletePinReply, Error> {
        OsdDb::check_superuser(who)?;
        let now = osddb.now();
        osddb.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            let pins = tables.pins()?;
            let mut own = pins.iter().filter(|pin| !has_ended(pin, now));
            if !own.any(|pin| (pin.fid, pin.owner) == (self.fid, self.owner)) {
                return Err(AbortCode::ENOENT.into());
            }
            Ok(tables.delete_pin(self.fid, self.owner)?)
        })?;
        Ok(DeletePinReply {})
    }
}
