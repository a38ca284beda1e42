//! GetCPS, GetCPS2, GetHostCPS: all ids under which a user or a host acts.
//!
//! A current protection subdomain is a sorted list of ids: the user, its groups, the groups in
//! which these are nested, and system:anyuser. Users of this cell also have system:authuser. A file
//! server checks access lists with it. A host has one too. A user that is named by the host's
//! address, or by a network's (with trailing zeros), makes the host a member of that user's groups.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use cellar_wire::pr::{
    GetCPS, GetCPS2, GetCPS2Reply, GetCPSReply, GetHostCPS, GetHostCPSReply, IdList, PrName,
};
use cellar_wire::{AbortCode, ViceId};

use super::Pr;
use super::access::expand;
use super::limits::{LIST_MAX, NESTING_MAX};
use super::membership::visible;
use super::model::Protection;
use super::record::Record;
use crate::{Answer, Error, Identity, Kind};

/// An id that no entry can have. GetCPS2 reads it as "only the host".
const NO_ID: ViceId = ViceId(i32::MIN);

/// The ids under which `record` acts.
pub(super) fn of_user(model: &Protection, record: &Record) -> Result<BTreeSet<ViceId>, Error> {
    let elements = model.elements(record).clone();
    let mut cps = expand(model, elements, NESTING_MAX, None)?;
    cps.insert(ViceId::ANYUSER);
    cps.insert(record.id);
    let is_anonymous = matches!(record.id, ViceId::ANONYMOUS | ViceId::ANYUSER);
    if !is_anonymous && !record.is_foreign() {
        cps.insert(ViceId::AUTHUSER);
    }
    Ok(cps)
}

/// The groups of a host: those of the users that are named by its address or by a network around
/// it.
pub(super) fn of_host(model: &Protection, host: u32) -> BTreeSet<ViceId> {
    let mut groups = BTreeSet::new();
    for mask in [0xffff_ffff, 0xffff_ff00, 0xffff_0000, 0xff00_0000] {
        let name = Ipv4Addr::from(host & mask).to_string();
        let id = PrName::new(name.as_bytes())
            .ok()
            .and_then(|name| model.id_of(&name));
        if let Some(record) = id.and_then(|id| model.get(id)).filter(|_| host & mask != 0) {
            groups.extend(model.elements(record));
        }
    }
    groups
}

/// Converts a list for the wire.
///
/// # Errors
/// PRTOOMANY. A truncated list would remove rights, and ignore negative rights.
fn list(ids: BTreeSet<ViceId>) -> Result<IdList, Error> {
    if ids.len() > LIST_MAX {
        return Err(AbortCode::PRTOOMANY.into());
    }
    Ok(IdList::from_iter_cut(ids))
}

impl Answer<Pr> for GetCPS {
    const BLOCKS: bool = false;
    const KIND: Kind = Kind::Listing;

    fn answer(self, pr: &Pr, who: Identity) -> Result<GetCPSReply, Error> {
        let model = pr.replica.read();
        let cps = of_user(&model, visible(&model, who, self.id)?)?;
        Ok(GetCPSReply {
            list: list(cps)?,
            over: 0,
        })
    }
}

impl Answer<Pr> for GetCPS2 {
    const BLOCKS: bool = false;

    fn answer(self, pr: &Pr, who: Identity) -> Result<GetCPS2Reply, Error> {
        let model = pr.replica.read();
        let mut cps = match self.id {
            NO_ID => BTreeSet::new(),
            id => of_user(&model, visible(&model, who, id)?)?,
        };
        cps.extend(of_host(&model, self.host));
        Ok(GetCPS2Reply {
            list: list(cps)?,
            over: 0,
        })
    }
}

impl Answer<Pr> for GetHostCPS {
    const BLOCKS: bool = false;
    const KIND: Kind = Kind::Listing;

    fn answer(self, pr: &Pr, _: Identity) -> Result<GetHostCPSReply, Error> {
        let model = pr.replica.read();
        Ok(GetHostCPSReply {
            list: list(of_host(&model, self.host))?,
            over: 0,
        })
    }
}
