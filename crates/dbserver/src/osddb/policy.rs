//! ListPolicies, SetPolicy, DeletePolicy.
//!
//! A change is made only if all policies compile together after it. The caller gets a code for an
//! error: EINVAL for the text, ENOENT for a missing policy that another one uses, ELOOP for a
//! cycle. To find the place in the text, the caller uses the same parser.

use cellar_auth::audit::Details;
use cellar_auth::audit_details;
use cellar_policy::{Policies, PolicyError};
use cellar_wire::osddb::{
    DeletePolicy, DeletePolicyReply, ListPolicies, ListPoliciesReply, PolicyEntry, SetPolicy,
    SetPolicyReply,
};
use cellar_wire::{AbortCode, List};

use super::OsdDb;
use super::check::is_word;
use super::tables::Tables;
use crate::{Answer, Error, Identity, Kind};

impl Answer<OsdDb> for ListPolicies {
    const BLOCKS: bool = false;

    fn answer(self, osddb: &OsdDb, _: Identity) -> Result<ListPoliciesReply, Error> {
        let model = osddb.replica.read();
        Ok(ListPoliciesReply {
            revision: model.revisions.policies,
            policies: List::from_iter_cut(model.policies.values().cloned()),
        })
    }
}

fn code(error: &PolicyError) -> AbortCode {
    match error {
        PolicyError::Missing { .. } => AbortCode::ENOENT,
        PolicyError::Cycle(_) => AbortCode::ELOOP,
        PolicyError::TooLarge { .. } | PolicyError::Patterns(_) => AbortCode::EFBIG,
        _ => AbortCode::EINVAL,
    }
}

fn check_name(policies: &[PolicyEntry], policy: &PolicyEntry) -> Result<(), AbortCode> {
    let name = policy.name.as_str().unwrap_or_default();
    let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
    if is_number || !is_word(name) {
        return Err(AbortCode::EINVAL);
    }
    let taken = policies
        .iter()
        .any(|other| other.id != policy.id && other.name == policy.name);
    match taken {
        true => Err(AbortCode::EEXIST),
        false => Ok(()),
    }
}

impl Answer<OsdDb> for SetPolicy {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        let policy = &self.policy;
        audit_details!(policy: id, name, text)
    }

    fn answer(self, osddb: &OsdDb, who: Identity) -> Result<SetPolicyReply, Error> {
        OsdDb::check_superuser(who)?;
        if self.policy.id == cellar_policy::BY_SIZE || self.policy.id > i32::MAX as u32 {
            return Err(AbortCode::EINVAL.into());
        }
        let id = osddb.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            let mut policy = self.policy.clone();
            if policy.id == 0 {
                policy.id = tables.next_policy()?;
            }
            let mut all = tables.policies()?;
            check_name(&all, &policy)?;
            all.retain(|other| other.id != policy.id);
            all.push(policy.clone());
            Policies::compile(&all).map_err(|error| code(&error))?;
            let id = policy.id;
            tables.put_policy(&all, policy)?;
            Ok(id)
        })?;
        Ok(SetPolicyReply { id })
    }
}

impl Answer<OsdDb> for DeletePolicy {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        audit_details!(self: id)
    }

    fn answer(self, osddb: &OsdDb, who: Identity) -> Result<DeletePolicyReply, Error> {
        OsdDb::check_superuser(who)?;
        osddb.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            let mut all = tables.policies()?;
            let before = all.len();
            all.retain(|policy| policy.id != self.id);
            if all.len() == before {
                return Err(AbortCode::ENOENT.into());
            }
            match Policies::compile(&all) {
                Ok(_) => Ok(tables.delete_policy(self.id)?),
                Err(PolicyError::Missing { .. }) => Err(AbortCode::EBUSY.into()),
                Err(error) => Err(code(&error).into()),
            }
        })?;
        Ok(DeletePolicyReply {})
    }
}
