//! Users, groups and memberships: the operations of `pts`.

mod entry;

use cellar_client::{Cell, Client};
use cellar_rpc::CallError;
use cellar_wire::AbortCode;
use cellar_wire::ids::ViceId;
use cellar_wire::pr;

pub use entry::{BadAccess, Entry, LIST_HEAD, parse_access};

use crate::error::{Error, Form, Result};

/// The most ids looked up in one call.
const NAMES_AT_ONCE: usize = 1000;

/// The most calls for one listing, in case a server never says "end".
const PAGES_MAX: usize = 1_000_000;

/// The kinds of entries to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// Users only.
    Users,
    /// Groups only.
    Groups,
    /// Both.
    Both,
}

/// The fields that `pts setfields` changes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fields {
    /// Access bits, as [`parse_access`] gives them.
    pub access: Option<u32>,
    /// The number of groups that the user may still create.
    pub group_quota: Option<i32>,
    /// The number of users that the group of a foreign cell may still register.
    pub user_quota: Option<i32>,
}

/// The protection database of one cell.
#[derive(Clone, Copy)]
pub struct Protection<'a> {
    client: &'a Client,
    cell: &'a Cell,
}

impl<'a> Protection<'a> {
    /// The database of `cell`.
    pub fn new(client: &'a Client, cell: &'a Cell) -> Self {
        Self { client, cell }
    }

    async fn call<P: cellar_wire::Procedure>(&self, arguments: &P, what: &str) -> Result<P::Reply> {
        self.client
            .call_protection(self.cell, arguments)
            .await
            .map_err(|error| match error {
                cellar_client::Error::Database { cause, .. } => {
                    Error::formed(what, cause, Form::Before)
                }
                other => other.into(),
            })
    }

    /// The id of a name. A number that is not a name stands for itself.
    ///
    /// # Errors
    /// No such name.
    pub async fn id_of(&self, name_or_id: &str) -> Result<ViceId> {
        let lower = name_or_id.to_ascii_lowercase();
        let ids = self.client.ids_of(self.cell, &[&lower]).await?;
        match (ids.first(), name_or_id.parse()) {
            (Some(&id), _) if id != ViceId::ANONYMOUS || lower == "anonymous" => Ok(id),
            (_, Ok(id)) => Ok(ViceId(id)),
            _ => Err(Error::NoSuchUserOrGroup(name_or_id.to_owned())),
        }
    }

    /// [`Protection::id_of`] for an operation `what`, which the error names.
    async fn id_for(&self, name_or_id: &str, what: &str) -> Result<ViceId> {
        self.id_of(name_or_id).await.map_err(|error| match error {
            Error::NoSuchUserOrGroup(_) => {
                Error::formed(what, CallError::Aborted(AbortCode::PRNOENT), Form::Before)
            }
            other => other,
        })
    }

    /// The ids under which a user or group acts: its own, and those of its groups, direct and
    /// indirect.
    ///
    /// # Errors
    /// There is no such id, or the caller has no permission to read it.
    pub async fn cps(&self, id: ViceId) -> Result<Vec<ViceId>> {
        let what = format!(" ; unable to get the groups of (id: {})", id.0);
        let reply = self.call(&pr::GetCPS { id }, &what).await?;
        Ok(reply.list.iter().copied().collect())
    }

    /// The names of ids; an id without a name becomes a decimal number.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn names_of(&self, ids: &[ViceId]) -> Result<Vec<String>> {
        let mut names = Vec::with_capacity(ids.len());
        for some in ids.chunks(NAMES_AT_ONCE) {
            names.extend(self.client.names_of(self.cell, some).await?);
        }
        Ok(names)
    }

    /// Creates a user. Without an id the database chooses one.
    ///
    /// # Errors
    /// The name or id is taken or not valid, or the caller has no permission.
    pub async fn create_user(&self, name: &str, id: Option<ViceId>) -> Result<ViceId> {
        check_name(name)?;
        match id {
            Some(ViceId(0)) => {
                let reason = "0 isn't a valid user id; aborting";
                return Err(Error::Usage(reason.to_owned()));
            }
            Some(id) if id.is_group() => {
                return Err(Error::Usage(format!(
                    "argument illegal or out of range because user id {} was not positive",
                    id.0
                )));
            }
            _ => {}
        }
        let mut what = format!(" ; unable to create user {name} ");
        if let Some(id) = id {
            what.push_str(&format!("with id {} ", id.0));
        }
        self.create(name, id, 0, ViceId(0), what.trim_end()).await
    }

    /// Creates a group.
    ///
    /// # Errors
    /// As [`Protection::create_user`].
    pub async fn create_group(
        &self,
        name: &str,
        owner: Option<&str>,
        id: Option<ViceId>,
    ) -> Result<ViceId> {
        check_name(name)?;
        match id {
            Some(ViceId(0)) => {
                let reason = "0 isn't a valid group id; aborting";
                return Err(Error::Usage(reason.to_owned()));
            }
            Some(id) if !id.is_group() => {
                return Err(Error::Usage(format!(
                    "argument illegal or out of range because group id {} was not negative",
                    id.0
                )));
            }
            _ => {}
        }
        let mut what = format!(" ; unable to create group {name}");
        if owner.is_some() || id.is_some() {
            what.push_str(&format!(" with id {}", id.map_or(0, |id| id.0)));
        }
        let owner_id = match owner {
            Some(owner) => {
                what.push_str(&format!(" owned by '{owner}'"));
                self.id_for(owner, &what).await?
            }
            None => ViceId(0),
        };
        let made = self.create(name, id, pr::PRGRP as i32, owner_id, &what);
        match made.await {
            Err(error) if error.code() == Some(AbortCode::PRBADNAM) => {
                let reason = self.why_bad_group(name, owner).await;
                Err(error.advise(AbortCode::PRBADNAM, reason))
            }
            made => made,
        }
    }

    /// The reason why the database refuses the name of a group.
    async fn why_bad_group(&self, name: &str, owner: Option<&str>) -> String {
        let Some((prefix, _)) = name.split_once(':') else {
            return "The name is OWNER:NAME; only administrators create groups without an owner in \
                    the name"
                .to_owned();
        };
        match self.id_of(prefix).await {
            Err(Error::NoSuchUserOrGroup(_)) => {
                format!("There is no user or group '{prefix}', after whom the group would be named")
            }
            _ => format!(
                "The name of the group begins with its owner, which is {}, not '{prefix}'",
                owner.unwrap_or("the caller")
            ),
        }
    }

    async fn create(
        &self,
        name: &str,
        id: Option<ViceId>,
        flag: i32,
        owner: ViceId,
        what: &str,
    ) -> Result<ViceId> {
        let argument = name_argument(name, what)?;
        match id {
            Some(id) => {
                self.call(
                    &pr::INewEntry {
                        name: argument,
                        id,
                        owner,
                    },
                    what,
                )
                .await?;
                Ok(id)
            }
            None => Ok(self
                .call(
                    &pr::NewEntry {
                        name: argument,
                        flag,
                        owner,
                    },
                    what,
                )
                .await?
                .id),
        }
    }

    /// Makes a user a member of a group.
    ///
    /// # Errors
    /// Either does not exist, it is one already, or the caller has no permission.
    pub async fn add_user(&self, user: &str, group: &str) -> Result<()> {
        let what = format!(" ; unable to add user {user} to group {group}");
        let (uid, gid) = (
            self.id_for(user, &what).await?,
            self.id_for(group, &what).await?,
        );
        self.call(&pr::AddToGroup { uid, gid }, &what).await?;
        Ok(())
    }

    /// Removes a user from a group.
    ///
    /// # Errors
    /// Either does not exist, or the caller has no permission.
    pub async fn remove_user(&self, user: &str, group: &str) -> Result<()> {
        let what = format!(" ; unable to remove user {user} from group {group}");
        let (id, gid) = (
            self.id_for(user, &what).await?,
            self.id_for(group, &what).await?,
        );
        self.call(&pr::RemoveFromGroup { id, gid }, &what).await?;
        Ok(())
    }

    /// Removes a user or group; the name appears in the error only.
    ///
    /// # Errors
    /// There is no such id, it is one of the system's, or the caller has no permission.
    pub async fn delete(&self, id: ViceId, name: &str) -> Result<()> {
        let what = format!(" deleting {name} (id: {})", id.0);
        self.call(&pr::Delete { id }, &what).await?;
        Ok(())
    }

    /// Renames an entry.
    ///
    /// # Errors
    /// As [`Protection::create_user`].
    pub async fn rename(&self, old: &str, new: &str) -> Result<()> {
        check_name(new)?;
        let what = format!(" ; unable to change name of {old} to {new}");
        self.change(old, Some(new), ViceId(0), ViceId(0), &what)
            .await
    }

    /// Gives a group another owner.
    ///
    /// # Errors
    /// Not a group, no such owner, or the caller has no permission.
    pub async fn change_owner(&self, group: &str, owner: &str) -> Result<()> {
        let what = format!(" ; unable to change owner of {group} to {owner}");
        let owner_id = self.id_for(owner, &what).await?;
        self.change(group, None, owner_id, ViceId(0), &what).await
    }

    async fn change(
        &self,
        entry: &str,
        name: Option<&str>,
        owner: ViceId,
        newid: ViceId,
        what: &str,
    ) -> Result<()> {
        let id = self.id_for(entry, what).await?;
        let name = name_argument(name.unwrap_or_default(), what)?;
        self.call(
            &pr::ChangeEntry {
                id,
                name,
                owner,
                newid,
            },
            what,
        )
        .await?;
        Ok(())
    }

    /// Changes access bits and quotas.
    ///
    /// # Errors
    /// No such entry, or the caller has no permission.
    pub async fn set_fields(&self, id: ViceId, name: &str, fields: Fields) -> Result<()> {
        let mut mask = 0;
        if fields.access.is_some() {
            mask |= pr::PR_SF_ALLBITS;
        }
        if fields.group_quota.is_some() {
            mask |= pr::PR_SF_NGROUPS;
        }
        if fields.user_quota.is_some() {
            mask |= pr::PR_SF_NUSERS;
        }
        let arguments = pr::SetFieldsEntry {
            id,
            mask,
            flags: fields.access.unwrap_or(0),
            ngroups: fields.group_quota.unwrap_or(0),
            nusers: fields.user_quota.unwrap_or(0),
            spare1: 0,
            spare2: 0,
        };
        let what = format!(" ; unable to set fields for {name} (id: {})", id.0);
        self.call(&arguments, &what).await?;
        Ok(())
    }

    /// One entry.
    ///
    /// # Errors
    /// No such entry, or the caller may not see it.
    pub async fn examine(&self, id: ViceId) -> Result<Entry> {
        let what = format!(" ; unable to find entry for (id: {})", id.0);
        let found = self.call(&pr::ListEntry { id }, &what).await;
        let found = found.map_err(|error| {
            let reason = "The access of the entry begins with s or -: only its owner, members with s, \
                          and members of system:administrators may see it";
            error.advise(AbortCode::PRPERM, reason)
        });
        Ok(from_wire(&found?.entry))
    }

    /// Whether a user or group is a member of a group, directly or through nested groups.
    ///
    /// # Errors
    /// Either does not exist, or the caller may list neither the groups of the one nor the members
    /// of the other.
    pub async fn is_member(&self, uid: ViceId, gid: ViceId) -> Result<bool> {
        let what = format!(" ; unable to ask for membership of (id: {})", uid.0);
        let reply = self.call(&pr::IsAMemberOf { uid, gid }, &what).await?;
        Ok(reply.flag != 0)
    }

    /// The members of a group, or the groups of a user.
    ///
    /// # Errors
    /// No such entry, or the caller may not see it.
    pub async fn membership(&self, id: ViceId, name: &str) -> Result<Vec<ViceId>> {
        let what = format!(" ; unable to get membership of {name} (id: {})", id.0);
        let listed = self.call(&pr::ListElements { id }, &what).await;
        let listed = listed.map_err(|error| error.advise(AbortCode::PRPERM, readers(name)));
        Ok(listed?.list.into_vec())
    }

    /// The groups that a group is a member of.
    ///
    /// # Errors
    /// As [`Protection::membership`].
    pub async fn super_groups(&self, id: ViceId, name: &str) -> Result<Vec<ViceId>> {
        let what = format!(" ; unable to get supergroups of {name} (id: {})", id.0);
        let listed = self.call(&pr::ListSuperGroups { id }, &what).await;
        let listed = listed.map_err(|error| error.advise(AbortCode::PRPERM, readers(name)));
        Ok(listed?.list.into_vec())
    }

    /// The groups that a user or group owns; owner 0 lists the groups without an owner.
    ///
    /// # Errors
    /// As [`Protection::membership`].
    pub async fn owned(&self, id: ViceId, name: &str) -> Result<Vec<ViceId>> {
        let what = format!(" ; unable to get owner list for {name} (id: {})", id.0);
        let (mut all, mut lastp) = (Vec::new(), 0);
        for _ in 0..PAGES_MAX {
            let listed = self.call(&pr::ListOwned { id, lastp }, &what).await;
            let reply = listed.map_err(|error| error.advise(AbortCode::PRPERM, readers(name)))?;
            all.extend(reply.list.into_vec());
            lastp = reply.lastp;
            if lastp == 0 {
                break;
            }
        }
        Ok(all)
    }

    /// Every user, every group, or both, in the database's order.
    ///
    /// # Errors
    /// The caller may not list all entries.
    pub async fn list(&self, kinds: Kinds) -> Result<Vec<Entry>> {
        let (mut all, mut from) = (Vec::new(), 0);
        for _ in 0..PAGES_MAX {
            let (entries, next) = self.page(kinds, from).await?;
            all.extend(entries);
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        Ok(all)
    }

    /// A part of that list from an index on (0: the first), and the index of the next part; `None`
    /// at the end.
    ///
    /// # Errors
    /// As [`Protection::list`].
    pub async fn page(&self, kinds: Kinds, from: i32) -> Result<(Vec<Entry>, Option<i32>)> {
        let flag = match kinds {
            Kinds::Users => pr::PRUSERS,
            Kinds::Groups => pr::PRGROUPS,
            Kinds::Both => pr::PRUSERS | pr::PRGROUPS,
        };
        let arguments = pr::ListEntries {
            flag,
            start_index: from,
        };
        let listed = self.call(&arguments, " ; unable to list entries").await;
        let reply = listed.map_err(|error| {
            let reason = "Only members of system:administrators may list all entries";
            error.advise(AbortCode::PRPERM, reason)
        })?;
        // An index that does not grow would never end the list.
        let next = Some(reply.next_index).filter(|next| *next > from);
        Ok((reply.entries.iter().map(from_wire).collect(), next))
    }

    /// The highest user id and the lowest group id in use.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn maximum_ids(&self) -> Result<(ViceId, ViceId)> {
        let reply = self
            .call(&pr::ListMax {}, " ; unable to get maximum ids")
            .await?;
        Ok((reply.uid, reply.gid))
    }

    /// Raises the highest user id, or lowers the lowest group id.
    ///
    /// # Errors
    /// The sign is wrong, or the caller has no permission.
    pub async fn set_maximum(&self, id: ViceId, group: bool) -> Result<()> {
        let gflag = if group { pr::PRGRP as i32 } else { 0 };
        let kind = if group { "Group" } else { "User" };
        let what = format!(" so couldn't set Max {kind} Id to {}", id.0);
        self.call(&pr::SetMax { id, gflag }, &what).await?;
        Ok(())
    }
}

/// The callers who may read the lists of an entry.
fn readers(name: &str) -> String {
    format!(
        "The owner, members of system:administrators, and those to whom the flags give the right may \
         list this: 'pts examine {name}' shows owner and flags"
    )
}

/// The longest name. Source: the protocol's 64 bytes with their NUL.
const NAME_BYTES_MAX: usize = 63;

/// A name for the wire.
fn name_argument(name: &str, what: &str) -> Result<pr::PrNameArgument> {
    let argument = pr::PrNameArgument::try_from(name).ok();
    argument
        .filter(|_| name.len() <= NAME_BYTES_MAX)
        .ok_or_else(|| {
            Error::Usage(format!(
                "name is too long (maximum {NAME_BYTES_MAX} characters){what}"
            ))
        })
}

/// Refuses names with control characters, which would be shown differently than they are.
fn check_name(name: &str) -> Result<()> {
    if name.chars().any(char::is_control) {
        return Err(Error::Usage(format!(
            "Badly formed name: '{}' has control characters",
            name.escape_debug()
        )));
    }
    Ok(())
}

fn from_wire(entry: &pr::PrEntry) -> Entry {
    Entry {
        name: entry.name.to_string(),
        id: entry.id,
        owner: entry.owner,
        creator: entry.creator,
        membership: entry.count.max(0) as u32,
        // An answer has only the access bits, in the low half.
        flags: entry.flags << 16,
        group_quota: entry.ngroups.max(0) as u32,
        user_quota: entry.nusers.max(0) as u32,
    }
}
