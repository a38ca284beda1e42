//! `cellar bos`: the server processes, superusers and keys of a server machine.
//!
//! Exit statuses are those of OpenAFS's `bos`, because scripts check them. An operation that ends
//! with the overseer's code has the low byte of it; an operation that only reports a failure has 0
//! ([`Ends`]).

mod salvage;
mod table;

use std::os::unix::fs::MetadataExt;
pub(crate) use table::SUITE;

use cellar_admin::bos::{Act, COMMANDS_MAX, Overseer, RestartTime};
use cellar_admin::date::ctime;
use cellar_wire::bozo;
use cellar_wire::ids::AfsTime;
use serde_json::json;

use super::syntax::Invocation;
use super::{advised, called_server, cell_options, parse, print_json};
use crate::failure::{FAILED, Failure, Outcome};
use crate::output::{out, outln};
use crate::session::{As, Session};

/// The directory of programs on servers, in the form of the protocol.
const PROGRAMS: &str = "/usr/afs/bin";

/// How an operation on several things ends when a part of it was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// With success.
    Well,
    /// With 1.
    Failed,
    /// With the low byte of the last one's code.
    AsTheLast,
}

/// Runs one operation.
pub(crate) async fn run(words: Vec<String>) -> Outcome {
    let Some(invocation) = parse(&SUITE, &words)? else {
        return Ok(());
    };
    let done = operation(&invocation).await;
    done.map_err(|failure| advised(&invocation, failure).with_usual(FAILED))
}

/// Returns whether an operation only reads. Such operations need no administrator.
fn is_read_only(command: &str) -> bool {
    matches!(
        command,
        "status" | "listhosts" | "listusers" | "getdate" | "getrestart" | "getrestricted"
    )
}

async fn operation(invocation: &Invocation) -> Outcome {
    if invocation.command == "getlog" && !invocation.has("json") {
        outln!("Fetching log file '{}'...", invocation.required("file"));
    }
    let named = invocation.required("server");
    let is_read_only = is_read_only(invocation.command);
    let who = match is_read_only {
        true => As::Anybody,
        false => As::AdministratorIfPossible,
    };
    let session = match cell_options(invocation, None).session(None, who).await {
        Ok(session) => session,
        Err(_) => {
            let named = cell_options(invocation, Some(named));
            named.session(None, who).await?
        }
    };
    // The machine itself answers; the databases are not asked.
    let server = called_server(&session, named)
        .map_err(|_| Failure::new(format!("can't find address for host '{named}'")))?;
    if !is_read_only && !session.authenticated && !invocation.has("noauth") {
        return Err(Failure::new(
            "unable to build security class (configuring connection security). An administrator needs a token \
             ('cellar login'), or root or the owner of the cell's directory --dir DIR",
        ));
    }
    let bos = Bos {
        overseer: Overseer::new(&session.client, &session.cell, server),
        session: &session,
        invocation,
        json: invocation.has("json"),
    };
    bos.run().await
}

/// An operation under way.
struct Bos<'a> {
    overseer: Overseer<'a>,
    session: &'a Session,
    invocation: &'a Invocation,
    json: bool,
}

impl Bos<'_> {
    async fn run(&self) -> Outcome {
        let given = self.invocation;
        let list = |name: &str| given.list(name).iter().map(String::as_str);
        match given.command {
            "status" => self.status().await,
            "listhosts" => self.list_hosts().await,
            "listusers" => self.list_users().await,
            "listkeys" => self.list_keys().await,
            "getlog" => self.get_log().await,
            "getdate" => self.get_dates().await,
            "getrestart" => self.get_restart().await,
            "getrestricted" => self.get_restricted().await,
            "salvage" => self.salvage().await,
            "install" => self.install().await,
            "start" => {
                self.each(list("instance").map(Act::Start), Ends::AsTheLast)
                    .await
            }
            "stop" => {
                let stopped = self
                    .each(list("instance").map(Act::Stop), Ends::AsTheLast)
                    .await;
                // Then the exit status is that of the wait.
                match given.has("wait") {
                    true => self.each([Act::Wait].into_iter(), Ends::AsTheLast).await,
                    false => stopped,
                }
            }
            "startup" => match given.list("instance") {
                [] => self.each([Act::StartAll].into_iter(), Ends::Well).await,
                _ => {
                    self.each(list("instance").map(Act::StartForNow), Ends::Well)
                        .await
                }
            },
            "shutdown" => {
                match given.list("instance") {
                    [] => self.each([Act::StopAll].into_iter(), Ends::Well).await?,
                    _ => {
                        self.each(list("instance").map(Act::StopForNow), Ends::Well)
                            .await?
                    }
                }
                match given.has("wait") {
                    true => self.each([Act::Wait].into_iter(), Ends::Well).await,
                    false => Ok(()),
                }
            }
            "restart" => self.restart().await,
            "create" => {
                let commands = given.list("cmd");
                if commands.len() > COMMANDS_MAX {
                    return Err(Failure::usage(format!(
                        "an instance has at most {COMMANDS_MAX} command lines"
                    )));
                }
                let create = Act::Create {
                    name: given.required("instance"),
                    kind: given.required("type"),
                    commands,
                    notifier: given.get("notifier"),
                };
                self.each([create].into_iter(), Ends::AsTheLast).await
            }
            "delete" => {
                self.each(list("instance").map(Act::Delete), Ends::AsTheLast)
                    .await
            }
            "adduser" => {
                self.each(list("user").map(Act::AddUser), Ends::Failed)
                    .await
            }
            "removeuser" => {
                self.each(list("user").map(Act::RemoveUser), Ends::Failed)
                    .await
            }
            "addkey" => Err(Failure::new(format!(
                "failed to set key {}: not applicable because it would be a DES key, which neither Cellar nor \
                 OpenAFS 1.8 uses; 'cellar key import-keytab' and OpenAFS's 'asetkey' take today's keys",
                given.required("kvno")
            ))),
            "removekey" => {
                for kvno in list("kvno") {
                    // Scripts expect text that is not a number to be read as a version that has no
                    // key.
                    let kvno = kvno.parse().unwrap_or(-1);
                    self.overseer.act(&Act::RemoveKey(kvno)).await?;
                }
                Ok(())
            }
            "setcellname" => {
                let name = Act::SetCellName(given.required("name"));
                self.each([name].into_iter(), Ends::Well).await
            }
            "addhost" => {
                let brackets = |host: &str| match given.has("clone") {
                    true => format!("[{host}]"),
                    false => host.to_owned(),
                };
                let hosts: Vec<String> = list("host").map(brackets).collect();
                let acts = hosts.iter().map(|host| Act::AddHost(host));
                self.each(acts, Ends::Well).await
            }
            "removehost" => {
                self.each(list("host").map(Act::RemoveHost), Ends::Well)
                    .await
            }
            "setauth" => match given.required("authrequired") {
                "on" => {
                    self.each([Act::SetNoAuth(false)].into_iter(), Ends::Well)
                        .await
                }
                "off" => {
                    self.each([Act::SetNoAuth(true)].into_iter(), Ends::Well)
                        .await
                }
                other => Err(Failure::usage(format!(
                    "illegal authentication specifier '{other}', must be 'off' or 'on'."
                ))),
            },
            "uninstall" => {
                for name in list("file") {
                    let path = self.destination(name);
                    let back = Act::Uninstall { name, path: &path };
                    self.overseer.act(&back).await?;
                    self.print_line(&format!("bos: uninstalled file {name}"));
                }
                Ok(())
            }
            "exec" => {
                let command = Act::Execute(given.required("cmd"));
                self.each([command].into_iter(), Ends::AsTheLast).await
            }
            "prune" => {
                let flags = [
                    ("bak", bozo::PRUNE_BAK),
                    ("old", bozo::PRUNE_OLD),
                    ("core", bozo::PRUNE_CORE),
                    ("all", 0xff),
                ];
                let chosen = flags.into_iter().filter(|(name, _)| given.has(name));
                let flags = chosen.fold(0, |all, (_, flag)| all | flag);
                self.each([Act::Prune(flags)].into_iter(), Ends::AsTheLast)
                    .await
            }
            "setrestart" => self.set_restart().await,
            _ => {
                let mode = given.required("mode");
                let Ok(mode) = mode.parse() else {
                    return Err(Failure::usage(format!("invalid -mode '{mode}'")));
                };
                self.each([Act::SetRestricted(mode)].into_iter(), Ends::Well)
                    .await
            }
        }
    }

    /// Carries out acts one after another. A refusal is reported, and the other acts are still
    /// carried out.
    async fn each<'a>(&self, acts: impl Iterator<Item = Act<'a>>, ends: Ends) -> Outcome {
        let (mut any, mut last) = (false, 0);
        for act in acts {
            last = match self.overseer.act(&act).await {
                Ok(()) => 0,
                Err(error) => {
                    let code = low_byte(&error);
                    Failure::from(error).report("bos");
                    any = true;
                    code
                }
            };
        }
        match ends {
            Ends::Well => Ok(()),
            Ends::Failed => Failure::if_any(any),
            Ends::AsTheLast if last == 0 => Ok(()),
            Ends::AsTheLast => Err(Failure::ended(last)),
        }
    }

    /// Prints a line unless JSON is wanted.
    fn print_line(&self, line: &str) {
        if !self.json {
            outln!("{line}");
        }
    }

    /// The path of a program on the server.
    fn destination(&self, file: &str) -> String {
        let name = file.rsplit('/').next().unwrap_or(file);
        let directory = self.invocation.get("dir").unwrap_or(PROGRAMS);
        format!("{directory}/{name}")
    }

    async fn status(&self) -> Outcome {
        let mut names = self.invocation.list("instance").to_vec();
        if names.is_empty() {
            names = self.overseer.instances().await?;
        }
        let long = self.invocation.has("long");
        let mut all = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let instance = match self.overseer.instance(name, long || self.json).await {
                Ok(instance) => instance,
                Err(error) => {
                    Failure::from(error).report("bos");
                    continue;
                }
            };
            if self.json {
                all.push(instance);
                continue;
            }
            if index == 0 && instance.flags & bozo::FLAG_BAD_DIR_ACCESS != 0 {
                outln!("Bosserver reports inappropriate access on server directories");
            }
            out!("{}", instance.status(long));
        }
        if self.json { print_json(&all) } else { Ok(()) }
    }

    async fn list_hosts(&self) -> Outcome {
        let (cell, hosts) = self.overseer.hosts().await?;
        if self.json {
            return print_json(&json!({ "cell": cell, "hosts": hosts }));
        }
        outln!("Cell name is {cell}");
        for (index, host) in hosts.iter().enumerate() {
            outln!("    Host {} is {host}", index + 1);
        }
        Ok(())
    }

    async fn list_users(&self) -> Outcome {
        let users = self.overseer.superusers().await?;
        if self.json {
            return print_json(&users);
        }
        let mut text = String::from("SUsers are: ");
        // Ten users a line. Without users the output is one empty line.
        for (index, line) in users.chunks(10).enumerate() {
            if index > 0 {
                text.push('\n');
            }
            text.extend(line.iter().map(|user| format!("{user} ")));
        }
        if users.is_empty() {
            text.clear();
        }
        outln!("{text}");
        Ok(())
    }

    async fn list_keys(&self) -> Outcome {
        let keys = match self.overseer.keys().await {
            Ok(keys) => keys,
            // The failure is reported and the command succeeds, like OpenAFS's.
            Err(error) => {
                Failure::from(error).report("bos");
                return Ok(());
            }
        };
        if self.json {
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

    async fn get_log(&self) -> Outcome {
        let name = self.invocation.required("file");
        let log = self.overseer.log(name).await.map_err(coded)?;
        out!("{}", String::from_utf8_lossy(&log));
        Ok(())
    }

    async fn get_dates(&self) -> Outcome {
        let mut all = Vec::new();
        for name in self.invocation.list("file") {
            let path = self.destination(name);
            let dates = self.overseer.dates(&path).await?;
            if self.json {
                all.push(json!({ "path": path, "dates": dates.map(|date| date.0) }));
                continue;
            }
            let shown = |date: AfsTime, kind: &str| match (date.0, kind) {
                (0, "") => "does not exist".to_owned(),
                (0, kind) => format!("no {kind} file"),
                (_, "") => format!("dated {}", ctime(date)),
                (_, kind) => format!("{kind} file dated {}", ctime(date)),
            };
            let [new, bak, old] = dates;
            let (bak, old) = (shown(bak, ".BAK"), shown(old, ".OLD"));
            outln!("File {path} {}, {bak}, {old}.", shown(new, ""));
        }
        if self.json { print_json(&all) } else { Ok(()) }
    }

    async fn get_restart(&self) -> Outcome {
        let general = self.overseer.restart_time(bozo::RESTART_GENERAL).await;
        let general = general.map_err(coded)?;
        let binaries = self.overseer.restart_time(bozo::RESTART_BINARIES).await;
        let binaries = binaries.map_err(coded)?;
        if self.json {
            return print_json(&json!({
                "general": general.to_string(), "new_binaries": binaries.to_string(),
            }));
        }
        let server = self.invocation.required("server");
        outln!("Server {server} restarts {general}");
        outln!("Server {server} restarts for new binaries {binaries}");
        Ok(())
    }

    async fn set_restart(&self) -> Outcome {
        let restart_type = match (
            self.invocation.has("general"),
            self.invocation.has("newbinary"),
        ) {
            (true, true) => {
                let reason = "can't specify more than one restart time at a time";
                return Err(Failure::new(reason).coded(u8::MAX));
            }
            (_, true) => bozo::RESTART_BINARIES,
            _ => bozo::RESTART_GENERAL,
        };
        let text = self.invocation.required("time");
        let Some(time) = RestartTime::parse(text) else {
            return Err(Failure::new(format!(
                "failed to parse '{text}' as periodic restart time; write never, now, \"4:00 am\" or \"sun 4:00\""
            ))
            .coded(u8::MAX));
        };
        let act = Act::SetRestart(restart_type, time);
        self.each([act].into_iter(), Ends::AsTheLast).await
    }

    async fn get_restricted(&self) -> Outcome {
        let mode = match self.overseer.is_restricted().await {
            Ok(true) => "on",
            Ok(false) => "off",
            Err(error) => {
                Failure::from(error).report("bos");
                return Ok(());
            }
        };
        if self.json {
            return print_json(&json!({ "restricted": mode }));
        }
        outln!("Restricted mode is {mode}");
        Ok(())
    }

    async fn restart(&self) -> Outcome {
        let given = self.invocation;
        let names = given.list("instance");
        if given.has("bosserver") {
            if !names.is_empty() {
                return Err(Failure::usage(
                    "can't specify both '-bos' and specific servers to restart.",
                ));
            }
            return self
                .each([Act::RestartOverseer].into_iter(), Ends::AsTheLast)
                .await;
        }
        match (names, given.has("all")) {
            ([], true) => self.each([Act::RestartAll].into_iter(), Ends::Well).await,
            ([], false) => {
                eprintln!("bos: To restart all processes please specify '-all'");
                Ok(())
            }
            (_, true) => {
                eprintln!("bos: Can't use '-all' along with individual instances");
                Ok(())
            }
            (names, false) => {
                let acts = names.iter().map(|name| Act::Restart(name));
                self.each(acts, Ends::Well).await
            }
        }
    }

    async fn install(&self) -> Outcome {
        for name in self.invocation.list("file") {
            let missing = |_| Failure::new(format!("can't find file '{name}', quitting"));
            let about = std::fs::metadata(name).map_err(missing)?;
            let contents = std::fs::read(name).map_err(missing)?;
            let date = AfsTime::of_seconds(about.mtime());
            let path = self.destination(name);
            self.overseer
                .install(name, &path, about.mode(), date, contents)
                .await?;
            self.print_line(&format!("bos: installed file {name}"));
        }
        Ok(())
    }
}

/// The low byte of an overseer's code, which is the exit status of OpenAFS's `bos`.
fn low_byte(error: &cellar_admin::Error) -> u8 {
    match error.code() {
        Some(code) if code.0 as u8 != 0 => code.0 as u8,
        _ => FAILED,
    }
}

fn coded(error: cellar_admin::Error) -> Failure {
    let code = low_byte(&error);
    Failure::from(error).coded(code)
}
