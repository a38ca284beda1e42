//! The operations of `cellar pts`: names, parameters and examples. The names are those of OpenAFS's
//! `pts`.

use super::super::COMMON;
use super::super::syntax::{Command, Suite, expands, flag, list, one, optional, optional_list};

pub(crate) static SUITE: Suite = Suite {
    name: "pts",
    about: "Manage users, groups and their memberships.",
    common: &COMMON,
    commands: &[
        Command {
            name: "createuser",
            aliases: &["cu"],
            about: "Create users.",
            parameters: &[
                list("name", "user name"),
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
                flag(
                    "supergroups",
                    ": show also the groups that these groups are members of",
                ),
                flag("expandgroups", ": include indirect members"),
            ],
            examples: &["ann", "system:administrators"],
        },
        Command {
            name: "listentries",
            aliases: &[],
            about: "List all users or groups.",
            parameters: &[
                flag("users", ": list users (the default)"),
                flag("groups", ": list groups"),
            ],
            examples: &["", "-users -groups -json"],
        },
        Command {
            name: "listowned",
            aliases: &[],
            about: "List the groups that users or groups own. Groups of deleted owners belong to id 0.",
            parameters: &[expands("nameorid", "user or group name or id")],
            examples: &["ann"],
        },
        Command {
            name: "listmax",
            aliases: &[],
            about: "Show the highest user id and the lowest group id.",
            parameters: &[],
            examples: &[""],
        },
        Command {
            name: "setmax",
            aliases: &[],
            about: "Set the highest user id or the lowest group id.",
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
            aliases: &["chname"],
            about: "Rename a user or group.",
            parameters: &[one("oldname", "old name"), one("newname", "new name")],
            examples: &["ann anna"],
        },
        Command {
            name: "chown",
            aliases: &[],
            about: "Change the owner of a group.",
            parameters: &[one("name", "group name"), one("owner", "new owner")],
            examples: &["ann:friends bob"],
        },
        Command {
            name: "setfields",
            aliases: &[],
            about: "Change privacy flags and quotas.",
            parameters: &[
                expands("nameorid", "user or group name or id"),
                optional(
                    "access",
                    "set privacy flags: five letters, for example S-M--",
                ),
                optional("groupquota", "set limit on group creation"),
            ],
            examples: &["ann:friends -access SOMar", "ann -groupquota 50"],
        },
        Command {
            name: "interactive",
            aliases: &["in"],
            about: "Read operations from standard input, one a line, until 'quit'.",
            parameters: &[],
            examples: &[""],
        },
        Command {
            name: "source",
            aliases: &[],
            about: "Read operations from a file, one a line.",
            parameters: &[one("file", "filename")],
            examples: &["users.txt"],
        },
        Command {
            name: "sleep",
            aliases: &[],
            about: "Wait for some seconds; for use in files of operations.",
            parameters: &[one("delay", "seconds")],
            examples: &["2"],
        },
        Command {
            name: "quit",
            aliases: &[],
            about: "End 'interactive' or 'source'.",
            parameters: &[],
            examples: &[""],
        },
    ],
};
