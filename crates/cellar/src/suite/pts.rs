//! `cellar pts`.

use std::collections::BTreeSet;

use cellar_admin::pts::{Entry, Fields, Kinds, LIST_HEAD, Protection, parse_access};
use cellar_wire::ids::ViceId;
use serde_json::json;

use super::syntax::{
    Command, Invocation, Suite, expands, flag, list, one, optional, optional_list,
};
use super::{COMMON, cell_options, number, parse, print_json};
use crate::failure::{Failure, Failures, Outcome};
use crate::output::{out, outln};
use crate::session::As;

static SUITE: Suite = Suite {
    name: "pts",
    about: "Users, groups, and who is a member of what.",
    common: &COMMON,
    commands: &[
        Command {
            name: "createuser",
            aliases: &["cu"],
            about: "Create users.",
            parameters: &[
                expands("name", "user name"),
                optional_list("id", "user id: default: the next one"),
            ],
            examples: &["ann", "-name ann bob -id 1001 1002"],
        },
        Command {
            name: "creategroup",
            aliases: &["cg"],
            about: "Create groups.",
            parameters: &[
                list("name", "group name: owner:name"),
                optional("owner", "owner of the group"),
                optional_list("id", "negative id: default: the next one"),
            ],
            examples: &["ann:friends -owner ann"],
        },
        Command {
            name: "adduser",
            aliases: &[],
            about: "Add users to groups.",
            parameters: &[list("user", "user name"), list("group", "group name")],
            examples: &[
                "ann ann:friends",
                "-user ann bob -group system:administrators",
            ],
        },
        Command {
            name: "removeuser",
            aliases: &[],
            about: "Remove users from groups.",
            parameters: &[list("user", "user name"), list("group", "group name")],
            examples: &["ann ann:friends"],
        },
        Command {
            name: "examine",
            aliases: &["check"],
            about: "Show entries.",
            parameters: &[expands("nameorid", "user or group name or id")],
            examples: &["ann system:administrators", "-204 -json"],
        },
        Command {
            name: "membership",
            aliases: &["groups"],
            about: "List the members of groups, or the groups of users.",
            parameters: &[
                expands("nameorid", "user or group name or id"),
                flag("supergroups", ": and the groups that groups are members of"),
                flag("expandgroups", ": members of members too"),
            ],
            examples: &["ann", "system:administrators"],
        },
        Command {
            name: "listentries",
            aliases: &[],
            about: "List all users, or groups.",
            parameters: &[
                flag("users", ": users (the default)"),
                flag("groups", ": groups"),
            ],
            examples: &["", "-users -groups -json"],
        },
        Command {
            name: "listowned",
            aliases: &[],
            about: "List the groups that users or groups own; 0 owns those whose owner was deleted.",
            parameters: &[expands("nameorid", "user or group name or id")],
            examples: &["ann"],
        },
        Command {
            name: "listmax",
            aliases: &[],
            about: "Show the highest user and lowest group id.",
            parameters: &[],
            examples: &[""],
        },
        Command {
            name: "setmax",
            aliases: &[],
            about: "Set the highest user or lowest group id.",
            parameters: &[optional("group", "group max"), optional("user", "user max")],
            examples: &["-user 5000"],
        },
        Command {
            name: "delete",
            aliases: &[],
            about: "Remove users or groups.",
            parameters: &[expands("nameorid", "user or group name or id")],
            examples: &["ann ann:friends"],
        },
        Command {
            name: "rename",
            aliases: &[],
            about: "Rename a user or group.",
            parameters: &[one("oldname", "old name"), one("newname", "new name")],
            examples: &["ann anna"],
        },
        Command {
            name: "chown",
            aliases: &[],
            about: "Give a group another owner.",
            parameters: &[one("name", "group name"), one("owner", "new owner")],
            examples: &["ann:friends bob"],
        },
        Command {
            name: "setfields",
            aliases: &[],
            about: "Change privacy flags and quotas.",
            parameters: &[
                list("nameorid", "user or group name or id"),
                optional("access", "set privacy flags: five letters, as S-M--"),
                optional("groupquota", "set limit on group creation"),
            ],
            examples: &["ann:friends -access SOMar", "ann -groupquota 50"],
        },
    ],
};

/// Runs one operation.
pub(crate) async fn run(words: Vec<String>) -> Outcome {
    let Some(invocation) = parse(&SUITE, &words)? else {
        return Ok(());
    };
    let who = if invocation.has("noauth") {
        As::Anybody
    } else {
        As::AdministratorIfPossible
    };
    let session = cell_options(&invocation, None).session(None, who).await?;
    let pts = Pts {
        protection: Protection::new(&session.client, &session.cell),
        invocation: &invocation,
        json: invocation.has("json"),
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
        "delete" => {
            pts.each("nameorid", |name| pts.protection.delete(name))
                .await
        }
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
}

impl Pts<'_> {
    /// Does something for each of a list, goes on after failures, and fails if any did.
    async fn each<'n, F, T>(&'n self, parameter: &str, operation: F) -> Outcome
    where
        F: Fn(&'n str) -> T,
        T: Future<Output = cellar_admin::Result<()>>,
    {
        let mut failures = Failures::of("pts");
        for name in self.invocation.list(parameter) {
            failures.note(operation(name).await.map_err(Failure::from));
        }
        failures.end()
    }

    fn id_at(&self, index: usize) -> Outcome<Option<ViceId>> {
        let ids = self.invocation.list("id");
        if !ids.is_empty() && ids.len() != self.invocation.list("name").len() {
            return Err(Failure::usage("give as many ids as names, or none"));
        }
        ids.get(index)
            .map(|id| number("-id", id).map(ViceId))
            .transpose()
    }

    async fn create_users(&self) -> Outcome {
        let mut made = Vec::new();
        for (index, name) in self.invocation.list("name").iter().enumerate() {
            let id = self
                .protection
                .create_user(name, self.id_at(index)?)
                .await?;
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
            let id = self
                .protection
                .create_group(name, owner, self.id_at(index)?)
                .await?;
            if !self.json {
                outln!("group {name} has id {}", id.0);
            }
            made.push(json!({ "name": name, "id": id.0 }));
        }
        if self.json { print_json(&made) } else { Ok(()) }
    }

    async fn memberships(&self) -> Outcome {
        let mut failures = Failures::of("pts");
        for user in self.invocation.list("user") {
            for group in self.invocation.list("group") {
                let done = if self.invocation.command == "adduser" {
                    self.protection.add_user(user, group).await
                } else {
                    self.protection.remove_user(user, group).await
                };
                failures.note(done.map_err(Failure::from));
            }
        }
        failures.end()
    }

    /// The ids of the names that were given; those that do not exist are said and left out.
    async fn ids(&self) -> Outcome<(Vec<ViceId>, Failures)> {
        let (mut ids, mut failures) = (Vec::new(), Failures::of("pts"));
        for name in self.invocation.list("nameorid") {
            match self.protection.id_of(name).await {
                Ok(id) => ids.push(id),
                Err(error @ cellar_admin::Error::NoSuchUserOrGroup(_)) => {
                    failures.note::<(), _>(Err(error));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok((ids, failures))
    }

    async fn examine(&self) -> Outcome {
        let (ids, mut failures) = self.ids().await?;
        let mut entries = Vec::new();
        for id in ids {
            let entry = self.protection.examine(id).await;
            entries.extend(failures.note(entry.map_err(Failure::from)));
        }
        if self.json {
            print_json(&entries)?;
        } else {
            let mut unlimited = false;
            for entry in &entries {
                let names = self
                    .protection
                    .names_of(&[entry.owner, entry.creator])
                    .await?;
                unlimited = unlimited || self.has_no_quota(entry).await?;
                out!("{}", entry.examined(&names[0], &names[1], unlimited));
            }
        }
        failures.end()
    }

    /// Administrators may create any number of groups. (The originals go on to say so of all later
    /// entries of the same command; scripts compare with that.)
    async fn has_no_quota(&self, entry: &Entry) -> Outcome<bool> {
        if entry.id == ViceId::ADMINISTRATORS {
            return Ok(true);
        }
        // Who may not see the members is told the number.
        let asked = self.protection.is_member(entry.id, ViceId::ADMINISTRATORS);
        Ok(asked.await.unwrap_or(false))
    }

    async fn membership(&self) -> Outcome {
        let (ids, failures) = self.ids().await?;
        let mut all = Vec::new();
        for id in ids {
            let expand = self.invocation.has("expandgroups");
            let mut members = self.protection.membership(id).await?;
            if expand {
                members = self.expanded(id, members).await?;
            }
            let own = self.protection.names_of(&[id]).await?;
            let names = self.protection.names_of(&members).await?;
            if self.json {
                all.push(json!({ "name": own[0], "id": id.0, "membership": names }));
                continue;
            }
            let word = if expand { "Expanded " } else { "" };
            if id.is_group() {
                outln!("{word}Members of {} (id: {}) are:", own[0], id.0);
            } else {
                outln!("{word}Groups {} (id: {}) is a member of:", own[0], id.0);
            }
            for name in &names {
                outln!("  {name}");
            }
            if self.invocation.has("supergroups") && id.is_group() {
                let groups = self.protection.super_groups(id).await?;
                outln!("Groups {} (id: {}) is a member of:", own[0], id.0);
                for name in self.protection.names_of(&groups).await? {
                    outln!("  {name}");
                }
            }
        }
        if self.json {
            print_json(&all)?;
        }
        failures.end()
    }

    /// Members that are groups give way to their members; groups of a user gain the groups those
    /// are members of.
    async fn expanded(&self, id: ViceId, members: Vec<ViceId>) -> Outcome<Vec<ViceId>> {
        let mut seen = BTreeSet::new();
        let mut todo = members;
        while let Some(member) = todo.pop() {
            if !seen.insert(member) {
                continue;
            }
            if member.is_group() && id.is_group() {
                todo.extend(self.protection.membership(member).await?);
            } else if member.is_group() {
                todo.extend(self.protection.super_groups(member).await?);
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
        let entries = self.protection.list(kinds).await?;
        if self.json {
            return print_json(&entries);
        }
        out!("{LIST_HEAD}");
        for entry in &entries {
            out!("{}", entry.line());
        }
        Ok(())
    }

    async fn list_owned(&self) -> Outcome {
        let (ids, failures) = self.ids().await?;
        let mut all = Vec::new();
        for id in ids {
            let groups = self.protection.owned(id).await?;
            let own = self.protection.names_of(&[id]).await?;
            let names = self.protection.names_of(&groups).await?;
            if self.json {
                all.push(json!({ "name": own[0], "id": id.0, "owned": names }));
                continue;
            }
            match id.0 {
                0 => outln!("Orphaned groups are:"),
                _ => outln!("Groups owned by {} (id: {}) are:", own[0], id.0),
            }
            for name in names {
                outln!("  {name}");
            }
        }
        if self.json {
            print_json(&all)?;
        }
        failures.end()
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
            return Err(Failure::usage("give -group or -user"));
        }
        if let Some(id) = group {
            self.protection
                .set_maximum(ViceId(number("-group", id)?), true)
                .await?;
        }
        if let Some(id) = user {
            self.protection
                .set_maximum(ViceId(number("-user", id)?), false)
                .await?;
        }
        Ok(())
    }

    async fn set_fields(&self) -> Outcome {
        let access = self.invocation.get("access").map(parse_access).transpose();
        let access = access.map_err(Failure::usage)?;
        let quota = self.invocation.get("groupquota");
        let group_quota = quota.map(|text| number("-groupquota", text)).transpose()?;
        if access.is_none() && group_quota.is_none() {
            return Err(Failure::usage(
                "nothing to set; give -access or -groupquota",
            ));
        }
        let fields = Fields {
            access,
            group_quota,
            user_quota: None,
        };
        self.each("nameorid", |name| self.protection.set_fields(name, fields))
            .await
    }
}
