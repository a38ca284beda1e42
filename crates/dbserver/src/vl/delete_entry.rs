//! DeleteEntry: removes the entry of a volume group, with all its sites.

use cellar_auth::audit::Details;
use cellar_auth::audit_details;
use cellar_wire::vl::{DeleteEntry, DeleteEntryReply};

use super::Vl;
use super::entry::check_type;
use super::tables::Tables;
use crate::{Answer, Error, Identity, Kind};

impl Answer<Vl> for DeleteEntry {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        audit_details!(self: volid, voltype)
    }

    fn answer(self, vl: &Vl, who: Identity) -> Result<DeleteEntryReply, Error> {
        Vl::check_administrator(who)?;
        check_type(self.voltype)?;
        vl.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            let entry = tables.find(self.volid, self.voltype)?;
            tables.remove(&entry);
            Ok(())
        })?;
        Ok(DeleteEntryReply {})
    }
}
