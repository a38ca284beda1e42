//! NameToID, IDToName: the most frequent calls of file servers and commands.
//!
//! An unknown name becomes anonymous, and an unknown id its digits. Only a list beyond the limit is
//! refused.

use cellar_wire::pr::{IDToName, IDToNameReply, IdList, NameList, NameToID, NameToIDReply, PrName};
use cellar_wire::{AbortCode, ViceId};

use super::Pr;
use super::limits::LOOKUPS_MAX;
use super::model::Protection;
use crate::{Answer, Error, Identity, Kind};

impl Answer<Pr> for NameToID {
    const BLOCKS: bool = false;
    const KIND: Kind = Kind::Names;

    fn answer(self, pr: &Pr, _: Identity) -> Result<NameToIDReply, Error> {
        check_length(self.names.len())?;
        let model = pr.replica.read();
        let ids = self
            .names
            .iter()
            .map(|name| pr.id_of(&model, name).unwrap_or(ViceId::ANONYMOUS));
        Ok(NameToIDReply {
            ids: IdList::from_iter_cut(ids),
        })
    }
}

impl Answer<Pr> for IDToName {
    const BLOCKS: bool = false;
    const KIND: Kind = Kind::Names;

    fn answer(self, pr: &Pr, who: Identity) -> Result<IDToNameReply, Error> {
        check_length(self.ids.len())?;
        if !self.ids.is_empty() {
            pr.check_may_see_names(who)?;
        }
        let model = pr.replica.read();
        let names = self.ids.iter().map(|id| name_of(&model, *id));
        Ok(IDToNameReply {
            names: NameList::from_iter_cut(names),
        })
    }
}

/// # Errors
/// PRTOOMANY.
fn check_length(length: usize) -> Result<(), AbortCode> {
    if length > LOOKUPS_MAX {
        Err(AbortCode::PRTOOMANY)
    } else {
        Ok(())
    }
}

/// The name of `id`, or its digits.
fn name_of(model: &Protection, id: ViceId) -> PrName {
    match model.get(id) {
        Some(record) => record.name.clone(),
        None => PrName::new(id.to_string().as_bytes()).unwrap_or_default(),
    }
}

impl Pr {
    /// The id of a name; `name@realm` of this cell is `name`.
    pub(super) fn id_of(&self, model: &Protection, name: &PrName) -> Option<ViceId> {
        let Some(at) = name.iter().position(|&byte| byte == b'@') else {
            return model.id_of(name);
        };
        let (local, realm) = (&name[..at], &name[at + 1..]);
        if realm.is_empty() || self.is_ours(local, realm) {
            return PrName::new(local)
                .ok()
                .and_then(|local| model.id_of(&local));
        }
        model.id_of(name)
    }

    /// Whether `name@realm` is a user of this cell.
    fn is_ours(&self, name: &[u8], realm: &[u8]) -> bool {
        if realm.eq_ignore_ascii_case(self.cell.as_bytes()) {
            return true;
        }
        let (Some(authority), Ok(name), Ok(realm)) = (
            &self.authority,
            std::str::from_utf8(name),
            std::str::from_utf8(realm),
        ) else {
            return false;
        };
        authority.is_ours(name, realm)
    }
}
