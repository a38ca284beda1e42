//! `cellar bos`: what runs, who are superusers, which keys there are. Roles of a `cellar up` live and die with
//! it, so nothing is started or stopped from here.

use cellar_admin::bos::Overseer;
use serde_json::json;

use super::syntax::{Command, Suite, flag, list, one, optional_list};
use super::{COMMON, called_server, cell_options, number, parse, print_json};
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
        Command {
            name: "adduser",
            aliases: &[],
            about: "Add superusers: they may change volumes, servers and all files.",
            parameters: &[one("server", "machine name"), list("user", "user names")],
            examples: &["127.0.0.1 ann", "127.0.0.1 -user ann bob"],
        },
        Command {
            name: "removeuser",
            aliases: &[],
            about: "Take users off the list of superusers.",
            parameters: &[one("server", "machine name"), list("user", "user names")],
            examples: &["127.0.0.1 ann"],
        },
        Command {
            name: "listkeys",
            aliases: &[],
            about: "Show the versions of the cell's key.",
            parameters: &[
                one("server", "machine name"),
                flag("showkey", ": keys are not shown"),
            ],
            examples: &["127.0.0.1"],
        },
        Command {
            name: "removekey",
            aliases: &[],
            about: "Remove versions of the cell's key.",
            parameters: &[
                one("server", "machine name"),
                list(
                    "kvno",
                    "key version number: the last one too, which 'cellar key retire' refuses",
                ),
            ],
            examples: &["127.0.0.1 1"],
        },
        Command {
            name: "getlog",
            aliases: &[],
            about: "Show a log of the server.",
            parameters: &[
                one("server", "machine name"),
                one("file", "log file to examine: AuditLog is what there is"),
            ],
            examples: &["127.0.0.1 AuditLog"],
        },
    ],
};

/// Runs one operation.
pub(crate) async fn run(words: Vec<String>) -> Outcome {
    let Some(invocation) = parse(&SUITE, &words)? else {
        return Ok(());
    };
    let named = invocation.required("server");
    let who = match invocation.command {
        "status" | "listhosts" | "listusers" => As::Anybody,
        _ => As::AdministratorIfPossible,
    };
    let session = match cell_options(&invocation, None).session(None, who).await {
        Ok(session) => session,
        Err(_) => {
            let named = cell_options(&invocation, Some(named));
            named.session(None, who).await?
        }
    };
    // The machine itself says what runs on it; no database is asked.
    let server = called_server(&session, named)?;
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
        "listusers" => {
            let users = overseer.superusers().await?;
            if json {
                return print_json(&users);
            }
            let users: String = users.iter().map(|user| format!("{user} ")).collect();
            outln!("SUsers are: {users}");
            Ok(())
        }
        "listkeys" => {
            let keys = overseer.keys().await?;
            if json {
                return print_json(&keys);
            }
            for key in &keys {
                out!("{}", key.line());
            }
            if let Some(last) = keys.last() {
                outln!("Keys last changed on {}.", last.changed_on());
            }
            outln!("All done.");
            Ok(())
        }
        "getlog" => {
            let name = invocation.required("file");
            let log = overseer.log(name).await?;
            out!("{}", String::from_utf8_lossy(&log));
            Ok(())
        }
        "removekey" => {
            for kvno in invocation.list("kvno") {
                overseer.remove_key(number("-kvno", kvno)?).await?;
            }
            Ok(())
        }
        command => {
            for user in invocation.list("user") {
                match command {
                    "adduser" => overseer.add_superuser(user).await?,
                    _ => overseer.remove_superuser(user).await?,
                }
            }
            Ok(())
        }
    }
}
