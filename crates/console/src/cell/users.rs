//! Searches for users and groups, and the facts about one.

use std::sync::Arc;

use cellar_admin::pts::{Entry, Kinds, Protection};
use cellar_wire::ids::ViceId;
use tokio::time::{Instant, timeout_at};

use super::volumes::{Cursor, PAGE_ROWS};
use super::{Answer, Site, sentence, within};

/// Names of a list on the page of a user or group.
pub(crate) const NAMES_MAX: usize = 500;

/// A search for users and groups.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct UserSearch {
    /// A part of the name in lower case; empty for all.
    pub(crate) text: String,
    pub(crate) kinds: UserKinds,
    pub(crate) from: Cursor,
}

/// The kinds of entries that are searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum UserKinds {
    Users,
    Groups,
    Both,
}

impl From<UserKinds> for Kinds {
    fn from(kinds: UserKinds) -> Self {
        match kinds {
            UserKinds::Users => Self::Users,
            UserKinds::Groups => Self::Groups,
            UserKinds::Both => Self::Both,
        }
    }
}

/// A page of a search.
#[derive(Default)]
pub(crate) struct UserList {
    pub(crate) entries: Vec<Entry>,
    pub(crate) next: Option<Cursor>,
    /// The search stopped at its time limit.
    pub(crate) is_cut: bool,
}

/// Names of a list, at most [`NAMES_MAX`], and the number of all.
pub(crate) struct Names {
    pub(crate) shown: Vec<(ViceId, String)>,
    pub(crate) all: usize,
}

/// A user or group.
pub(crate) struct UserView {
    pub(crate) entry: Entry,
    pub(crate) owner: String,
    pub(crate) creator: String,
    /// The members of a group, or the groups of a user.
    pub(crate) membership: Answer<Names>,
    /// The groups that it owns.
    pub(crate) owned: Answer<Names>,
    /// The groups that a group is a member of.
    pub(crate) super_groups: Option<Answer<Names>>,
}

impl Site {
    pub(crate) fn protection(&self) -> Protection<'_> {
        Protection::new(&self.client, &self.cell)
    }

    /// A page of a search.
    pub(crate) async fn user_list(&self, search: UserSearch) -> Arc<Answer<UserList>> {
        let ask = self.search_users(&search);
        self.user_lists.get(search.clone(), ask).await
    }

    async fn search_users(&self, search: &UserSearch) -> Answer<UserList> {
        let deadline = Instant::now() + self.limits.listing;
        let protection = self.protection();
        let mut found = UserList::default();
        let mut at = Some(search.from);
        while let Some(from) = at.filter(|_| found.entries.len() < PAGE_ROWS) {
            let page = protection.page(search.kinds.into(), from.index);
            let (page, next) = match timeout_at(deadline, page).await {
                Ok(page) => page.map_err(|error| sentence(&error))?,
                Err(_) if from == search.from => {
                    return Err("the protection database does not answer in time".to_owned());
                }
                Err(_) => {
                    found.is_cut = true;
                    break;
                }
            };
            let room = PAGE_ROWS - found.entries.len();
            let matches = |entry: &Entry| entry.name.to_ascii_lowercase().contains(&search.text);
            let mut entries = page.into_iter().filter(matches).skip(from.skip);
            found.entries.extend(entries.by_ref().take(room));
            at = match entries.next() {
                Some(_) => Some(Cursor {
                    index: from.index,
                    skip: from.skip + room,
                }),
                None => next.map(|index| Cursor { index, skip: 0 }),
            };
        }
        found.next = at;
        if at.is_none() && search.from == Cursor::default() {
            found
                .entries
                .sort_by(|one, other| one.name.cmp(&other.name));
        }
        Ok(found)
    }

    /// A user or group, by name or number.
    pub(crate) async fn user(&self, name: &str) -> Answer<UserView> {
        let protection = self.protection();
        let what = "the protection database";
        let find = async {
            let id = protection.id_of(name).await?;
            let entry = protection.examine(id).await?;
            let names = protection.names_of(&[entry.owner, entry.creator]).await?;
            Ok((entry, names))
        };
        let (entry, names) = self.within(what, find).await?;
        let mut names = names.into_iter();
        let (owner, creator) = (names.next(), names.next());
        let (id, name) = (entry.id, entry.name.as_str());
        let (membership, owned, super_groups) = futures_util::future::join3(
            self.names(protection.membership(id, name)),
            self.names(protection.owned(id, name)),
            async {
                match entry.is_group() {
                    true => Some(self.names(protection.super_groups(id, name)).await),
                    false => None,
                }
            },
        )
        .await;
        Ok(UserView {
            owner: owner.unwrap_or_default(),
            creator: creator.unwrap_or_default(),
            membership,
            owned,
            super_groups,
            entry,
        })
    }

    /// Adds a member to a group, or removes it.
    pub(crate) async fn change_member(&self, group: &str, member: &str, add: bool) -> Answer<()> {
        let protection = self.protection();
        let change = async {
            match add {
                true => protection.add_user(member, group).await,
                false => protection.remove_user(member, group).await,
            }
        };
        let changed = self.within("the protection database", change).await;
        self.user_lists.clear();
        changed
    }

    async fn names(
        &self,
        ids: impl Future<Output = cellar_admin::Result<Vec<ViceId>>>,
    ) -> Answer<Names> {
        let ask = async {
            let mut ids = ids.await?;
            let all = ids.len();
            ids.truncate(NAMES_MAX);
            let names = self.protection().names_of(&ids).await?;
            let mut shown: Vec<_> = ids.into_iter().zip(names).collect();
            shown.sort_by(|(_, one), (_, other)| one.cmp(other));
            Ok(Names { shown, all })
        };
        within(self.limits.answer, "the protection database", ask).await
    }
}
