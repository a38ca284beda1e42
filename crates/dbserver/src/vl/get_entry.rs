//! GetEntryByID and GetEntryByName in their forms: the most frequent calls of clients.
//!
//! They are answered from memory, on the thread that received the call.

use cellar_wire::vl::{
    GetEntryByID, GetEntryByIDN, GetEntryByIDNReply, GetEntryByIDReply, GetEntryByNameN,
    GetEntryByNameNReply, GetEntryByNameO, GetEntryByNameOReply, GetEntryByNameU,
    GetEntryByNameUReply,
};

use super::Vl;
use crate::{Answer, Error, Identity};

impl Answer<Vl> for GetEntryByID {
    const BLOCKS: bool = false;

    fn answer(self, vl: &Vl, _: Identity) -> Result<GetEntryByIDReply, Error> {
        let model = vl.replica.read();
        let entry = model.by_id(self.volid, self.voltype)?;
        Ok(GetEntryByIDReply {
            entry: model.to_old(entry),
        })
    }
}

impl Answer<Vl> for GetEntryByIDN {
    const BLOCKS: bool = false;

    fn answer(self, vl: &Vl, _: Identity) -> Result<GetEntryByIDNReply, Error> {
        let model = vl.replica.read();
        let entry = model.by_id(self.volid, self.voltype)?;
        Ok(GetEntryByIDNReply {
            entry: model.to_n(entry),
        })
    }
}

impl Answer<Vl> for GetEntryByNameO {
    const BLOCKS: bool = false;

    fn answer(self, vl: &Vl, _: Identity) -> Result<GetEntryByNameOReply, Error> {
        let model = vl.replica.read();
        let entry = model.by_name(&self.volumename)?;
        Ok(GetEntryByNameOReply {
            entry: model.to_old(entry),
        })
    }
}

impl Answer<Vl> for GetEntryByNameN {
    const BLOCKS: bool = false;

    fn answer(self, vl: &Vl, _: Identity) -> Result<GetEntryByNameNReply, Error> {
        let model = vl.replica.read();
        let entry = model.by_name(&self.volumename)?;
        Ok(GetEntryByNameNReply {
            entry: model.to_n(entry),
        })
    }
}

impl Answer<Vl> for GetEntryByNameU {
    const BLOCKS: bool = false;

    fn answer(self, vl: &Vl, _: Identity) -> Result<GetEntryByNameUReply, Error> {
        let model = vl.replica.read();
        let entry = model.by_name(&self.volumename)?;
        Ok(GetEntryByNameUReply {
            entry: model.to_u(entry),
        })
    }
}
