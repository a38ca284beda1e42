//! `cellar pts`: users and groups.
//!
//! Exit statuses are those of OpenAFS's `pts`. Operations with several names report a name that
//! does not exist and continue. An operation that changes entries ends at the first refusal, unless
//! `-force` is given.

mod script;
mod table;

use std::collections::BTreeSet;
use std::time::Duration;
pub(crate) use table::SUITE;

use cellar_admin::pts::{Entry, Fields, Kinds, LIST_HEAD, Protection, parse_access};
use cellar_wire::ids::ViceId;
use serde_json::json;

use super::syntax::Invocation;
use super::{cell_options, parse, print_json};
use crate::failure::{FAILED, Failure, Outcome};
use crate::output::{out, outln};
use crate::session::As;

/// Runs one operation, or the operations of a script.
pub(crate) async fn run(words: Vec<String>) -> Outcome {
    let Some(invocation) = parse(&SUITE, &words)? else {
        return Ok(());
    };
    match invocation.command {
        "interactive" => script::standard_input().await,
        "source" => script::file(invocation.required("file")).await,
        _ => operation(&invocation)
            .await
            .map_err(|failure| failure.with_usual(FAILED)),
    }
}

async fn operation(invocation: &Invocation) -> Outcome {
    match invocation.command {
        "quit" => return Ok(()),
        "sleep" => {
            let seconds = invocation.required("delay").parse().unwrap_or(0);
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            return Ok(());
        }
        _ => {}
    }
    let who = if invocation.has("noauth") {
        As::Anybody
    } else {
        As::AdministratorIfPossible
    };
    let session = cell_options(invocation, None).session(None, who).await?;
    let pts = Pts {
        protection: Protection::new(&session.client, &session.cell),
        invocation,
        json: invocation.has("json"),
        force: invocation.has("force"),
    };
    match invocation.command {
        "createuser" => pts.create_users().await,
        "creategroup" => pts.create_groups().await,
        "adduser" | "removeuser" => pts.memberships().await,
        "examine" => pts.examine().await,
        "membership" => pts.membership().await,
        "listentries" => pts.list_entries().await,
        "listowned" => pts.list_owned().await,
        "listmax" => pts.list_max().await,
        "setmax" => pts.set_max().await,
        "delete" => pts.delete().await,
        "rename" => {
            let (old, new) = (
                invocation.required("oldname"),
                invocation.required("newname"),
            );
            Ok(pts.protection.rename(old, new).await?)
        }
        "chown" => {
            let (name, owner) = (invocation.required("name"), invocation.required("owner"));
            Ok(pts.protection.change_owner(name, owner).await?)
        }
        _ => pts.set_fields().await,
    }
}

struct Pts<'a> {
    protection: Protection<'a>,
    invocation: &'a Invocation,
    json: bool,
    /// Continue after a refusal.
    force: bool,
}

/// Parses the number of a switch; `what` is its name in the refusal.
fn number(what: &str, text: &str) -> Outcome<i32> {
    text.parse().map_err(|_| {
        Failure::usage(format!(
            "argument illegal or out of range because {what} was: '{text}'"
        ))
    })
}

impl Pts<'_> {
    /// Returns the result of one of several steps. With `-force` a refusal is reported and ignored.
    fn done<T>(&self, outcome: cellar_admin::Result<T>) -> Outcome<Option<T>> {
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(error) if self.force => {
                Failure::from(error).but("ignored").report("pts");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn id_at(&self, what: &str, index: usize) -> Outcome<Option<ViceId>> {
        let id = self.invocation.list("id").get(index);
        id.map(|id| number(what, id).map(ViceId)).transpose()
    }

    async fn create_users(&self) -> Outcome {
        let mut made = Vec::new();
        for (index, name) in self.invocation.list("name").iter().enumerate() {
            let id = self.id_at("id", index)?;
            let Some(id) = self.done(self.protection.create_user(name, id).await)? else {
                continue;
            };
            if !self.json {
                outln!("User {name} has id {}", id.0);
            }
            made.push(json!({ "name": name, "id": id.0 }));
        }
        if self.json { print_json(&made) } else { Ok(()) }
    }

    async fn create_groups(&self) -> Outcome {
        let mut made = Vec::new();
        let owner = self.invocation.get("owner");
        for (index, name) in self.invocation.list("name").iter().enumerate() {
            let id = self.id_at("group id", index)?;
            let created = self.protection.create_group(name, owner, id).await;
            let Some(id) = self.done(created)? else {
                continue;
            };
            if !self.json {
                outln!("group {name} has id {}", id.0);
            }
            made.push(json!({ "name": name, "id": id.0 }));
        }
        if self.json { print_json(&made) } else { Ok(()) }
    }

    async fn memberships(&self) -> Outcome {
        for user in self.invocation.list("user") {
            for group in self.invocation.list("group") {
                let done = if self.invocation.command == "adduser" {
                    self.protection.add_user(user, group).await
                } else {
                    self.protection.remove_user(user, group).await
                };
                self.done(done)?;
            }
        }
        Ok(())
    }

    /// The ids and names of the given users and groups: names first, then numbers. Names that do
    /// not exist are reported and left out.
    async fn named(&self) -> Outcome<Vec<(ViceId, String)>> {
        let (mut names, mut numbers) = (Vec::new(), Vec::new());
        for given in self.invocation.list("nameorid") {
            match self.protection.id_of(given).await {
                Ok(id) if given.parse() == Ok(id.0) => numbers.push(id),
                Ok(ViceId::ANONYMOUS) => unknown(given),
                Ok(id) => names.push((id, given.to_ascii_lowercase())),
                Err(cellar_admin::Error::NoSuchUserOrGroup(_)) => unknown(given),
                Err(error) => return Err(error.into()),
            }
        }
        let of_numbers = self.protection.names_of(&numbers).await?;
        names.extend(numbers.into_iter().zip(of_numbers));
        Ok(names)
    }

    async fn delete(&self) -> Outcome {
        for (id, name) in self.named().await? {
            self.done(self.protection.delete(id, &name).await)?;
        }
        Ok(())
    }

    async fn examine(&self) -> Outcome {
        // The last one decides, as in OpenAFS.
        let mut last = Failure::if_any(true);
        let mut entries = Vec::new();
        let mut unlimited = false;
        for (id, _) in self.named().await? {
            let entry = match self.protection.examine(id).await {
                Ok(entry) => entry,
                Err(error) => {
                    last = Err(Failure::said(Failure::from(error).report_code("pts")));
                    continue;
                }
            };
            last = Ok(());
            if !self.json {
                let names = self
                    .protection
                    .names_of(&[entry.owner, entry.creator])
                    .await?;
                unlimited = unlimited || self.has_no_quota(&entry).await?;
                out!("{}", entry.examined(&names[0], &names[1], unlimited));
            }
            entries.push(entry);
        }
        if self.json {
            print_json(&entries)?;
        }
        last
    }

    /// Returns whether the entry is an administrator, who may create any number of groups. (After
    /// one administrator the original `pts` says so for all later entries of the same command;
    /// scripts compare with that.)
    async fn has_no_quota(&self, entry: &Entry) -> Outcome<bool> {
        if entry.id == ViceId::ADMINISTRATORS {
            return Ok(true);
        }
        // A caller that may not see the members gets the number.
        let asked = self.protection.is_member(entry.id, ViceId::ADMINISTRATORS);
        Ok(asked.await.unwrap_or(false))
    }

    async fn membership(&self) -> Outcome {
        let mut all = Vec::new();
        for (id, name) in self.named().await? {
            let shown = self.members_of(id, &name).await;
            // Reported and skipped, as in the original `pts`.
            if let Err(failure) = &shown {
                failure.report("pts");
            }
            all.extend(shown.ok().flatten());
        }
        if self.json { print_json(&all) } else { Ok(()) }
    }

    async fn members_of(&self, id: ViceId, name: &str) -> Outcome<Option<serde_json::Value>> {
        let expand = self.invocation.has("expandgroups");
        let mut members = self.protection.membership(id, name).await?;
        if expand {
            members = self.expanded(id, members).await?;
        }
        let names = self.protection.names_of(&members).await?;
        if self.json {
            let shown = json!({ "name": name, "id": id.0, "membership": names });
            return Ok(Some(shown));
        }
        let word = if expand { "Expanded " } else { "" };
        if id.is_group() {
            outln!("{word}Members of {name} (id: {}) are:", id.0);
        } else {
            outln!("{word}Groups {name} (id: {}) is a member of:", id.0);
        }
        for member in &names {
            outln!("  {member}");
        }
        if self.invocation.has("supergroups") && id.is_group() {
            let groups = self.protection.super_groups(id, name).await?;
            outln!("Groups {name} (id: {}) is a member of:", id.0);
            for group in self.protection.names_of(&groups).await? {
                outln!("  {group}");
            }
        }
        Ok(None)
    }

    /// Replaces members that are groups by their members. For a user, adds the groups that its
    /// groups are members of.
    async fn expanded(&self, id: ViceId, members: Vec<ViceId>) -> Outcome<Vec<ViceId>> {
        let mut seen = BTreeSet::new();
        let mut todo = members;
        while let Some(member) = todo.pop() {
            if !seen.insert(member) {
                continue;
            }
            let shown = member.0.to_string();
            if member.is_group() && id.is_group() {
                todo.extend(self.protection.membership(member, &shown).await?);
            } else if member.is_group() {
                todo.extend(self.protection.super_groups(member, &shown).await?);
            }
        }
        Ok(seen
            .into_iter()
            .filter(|member| !(id.is_group() && member.is_group()))
            .collect())
    }

    async fn list_entries(&self) -> Outcome {
        let (users, groups) = (self.invocation.has("users"), self.invocation.has("groups"));
        let kinds = match (users, groups) {
            (true, true) => Kinds::Both,
            (false, true) => Kinds::Groups,
            _ => Kinds::Users,
        };
        if !self.json {
            out!("{LIST_HEAD}");
        }
        let entries = self.protection.list(kinds).await?;
        if self.json {
            return print_json(&entries);
        }
        for entry in &entries {
            out!("{}", entry.line());
        }
        Ok(())
    }

    async fn list_owned(&self) -> Outcome {
        let mut all = Vec::new();
        for (id, name) in self.named().await? {
            if !self.json {
                match id.0 {
                    0 => outln!("Orphaned groups are:"),
                    _ => outln!("Groups owned by {name} (id: {}) are:", id.0),
                }
            }
            let groups = match self.protection.owned(id, &name).await {
                Ok(groups) => groups,
                // Reported and skipped, as in the original `pts`.
                Err(error) => {
                    Failure::from(error).report("pts");
                    continue;
                }
            };
            let names = self.protection.names_of(&groups).await?;
            if self.json {
                all.push(json!({ "name": name, "id": id.0, "owned": names }));
                continue;
            }
            for group in names {
                outln!("  {group}");
            }
        }
        if self.json { print_json(&all) } else { Ok(()) }
    }

    async fn list_max(&self) -> Outcome {
        let (user, group) = self.protection.maximum_ids().await?;
        if self.json {
            return print_json(&json!({ "user": user.0, "group": group.0 }));
        }
        outln!("Max user id is {} and max group id is {}.", user.0, group.0);
        Ok(())
    }

    async fn set_max(&self) -> Outcome {
        let (group, user) = (self.invocation.get("group"), self.invocation.get("user"));
        if group.is_none() && user.is_none() {
            return Err(Failure::usage(
                "Must specify at least one of group or user.",
            ));
        }
        for (id, is_group) in [(user, false), (group, true)] {
            if let Some(id) = id {
                let id = ViceId(number("id", id)?);
                self.protection.set_maximum(id, is_group).await?;
            }
        }
        Ok(())
    }

    async fn set_fields(&self) -> Outcome {
        let named = self.named().await?;
        let access = self.invocation.get("access").map(parse_access).transpose();
        let access = access.map_err(Failure::usage)?;
        let quota = self.invocation.get("groupquota");
        let group_quota = quota.map(|text| number("ngroups", text)).transpose()?;
        if access.is_none() && group_quota.is_none() {
            eprintln!("pts: nothing to set; give -access or -groupquota");
            return Ok(());
        }
        let fields = Fields {
            access,
            group_quota,
            user_quota: None,
        };
        for (id, name) in named {
            self.done(self.protection.set_fields(id, &name, fields).await)?;
        }
        Ok(())
    }
}

/// Reports a name that does not exist.
fn unknown(name: &str) {
    let error = cellar_admin::Error::NoSuchUserOrGroup(name.to_owned());
    Failure::from(error).report("pts");
}
