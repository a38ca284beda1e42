//! `cellar bos`: what can be looked at. Roles of a `cellar up` live and die with it.

use cellar_admin::bos::Overseer;
use serde_json::json;

use super::syntax::{Command, Suite, flag, one, optional_list};
use super::{COMMON, cell_options, parse, print_json, server_address};
use crate::failure::Outcome;
use crate::output::{out, outln};
use crate::session::As;

static SUITE: Suite = Suite {
    name: "bos",
    about: "What runs on a server machine.",
    common: &COMMON,
    commands: &[
        Command {
            name: "status",
            aliases: &[],
            about: "Show what runs.",
            parameters: &[
                one("server", "machine name"),
                optional_list("instance", "instance name: default: all"),
                flag("long", ": when it started, and the commands"),
            ],
            examples: &["127.0.0.1", "127.0.0.1 fs -long"],
        },
        Command {
            name: "listhosts",
            aliases: &["getcell"],
            about: "Show the cell's name and database servers.",
            parameters: &[one("server", "machine name")],
            examples: &["127.0.0.1"],
        },
        Command {
            name: "listusers",
            aliases: &[],
            about: "Show the superusers.",
            parameters: &[one("server", "machine name")],
            examples: &["127.0.0.1"],
        },
    ],
};

/// Runs one operation.
pub(crate) async fn run(words: Vec<String>) -> Outcome {
    let Some(invocation) = parse(&SUITE, &words)? else {
        return Ok(());
    };
    let named = invocation.required("server");
    // The machine itself says what runs on it; no database is asked.
    let server = server_address(named)?;
    let session = match cell_options(&invocation, None)
        .session(None, As::Anybody)
        .await
    {
        Ok(session) => session,
        Err(_) => {
            cell_options(&invocation, Some(named))
                .session(None, As::Anybody)
                .await?
        }
    };
    let overseer = Overseer::new(&session.client, &session.cell, server);
    let json = invocation.has("json");
    match invocation.command {
        "status" => {
            let mut names = invocation.list("instance").to_vec();
            if names.is_empty() {
                names = overseer.instances().await?;
            }
            let long = invocation.has("long");
            let mut all = Vec::new();
            for name in names {
                let instance = overseer.instance(&name, long || json).await?;
                if json {
                    all.push(instance);
                } else {
                    out!("{}", instance.status(long));
                }
            }
            if json { print_json(&all) } else { Ok(()) }
        }
        "listhosts" => {
            let (cell, hosts) = overseer.hosts().await?;
            if json {
                return print_json(&json!({ "cell": cell, "hosts": hosts }));
            }
            outln!("Cell name is {cell}");
            for (index, host) in hosts.iter().enumerate() {
                outln!("    Host {} is {host}", index + 1);
            }
            Ok(())
        }
        _ => {
            let users = overseer.superusers().await?;
            if json {
                return print_json(&users);
            }
            let users: String = users.iter().map(|user| format!("{user} ")).collect();
            outln!("SUsers are: {users}");
            Ok(())
        }
    }
}
