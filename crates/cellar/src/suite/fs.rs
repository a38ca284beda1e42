//! `cellar fs`: calls the servers. Operations of the cache manager ([`manager`]) are sent to a
//! mount.
//!
//! A path may be in a mount, by `cellar mount` or by Linux's own client, or may start with `/afs`.
//! Operations that take a path also accept a volume's name (`scratch` instead of
//! `/afs/demo.cell/scratch`), which means the root directory of the read-write volume. In a mount a
//! word is only a file's name.

mod inapplicable;
mod known;
mod manager;
mod mount_point;
mod objects;
mod older;
mod servers;
mod table;
mod unstored;

use std::path::Path;
pub(crate) use table::SUITE;

use cellar_admin::HostNames;
use cellar_admin::fs::{AclChange, DISK_HEAD, Files, QUOTA_HEAD, VolumeChange, parse_rights};
use serde_json::json;

use super::syntax::Invocation;
use super::{cell_options, number, parse, print_json, quota};
use crate::failure::{FAILED, Failure, Failures, Outcome};
use crate::output::{out, outln};
use crate::session::{As, Session};

/// Runs one operation.
pub(crate) async fn run(words: Vec<String>) -> Outcome {
    let ours = |word: &str| {
        let mut names = SUITE.commands.iter();
        names.any(|c| c.name.starts_with(word) || c.aliases.contains(&word))
    };
    let inapplicable = |word: &String| inapplicable::reason(word, ours);
    match &words[..] {
        [help, topic, ..] if help == "help" => {
            if let Some(reason) = inapplicable(topic) {
                outln!("{reason}");
                return Ok(());
            }
        }
        [word, ..] => {
            if let Some(reason) = inapplicable(word) {
                return Err(Failure::new(reason));
            }
        }
        [] => {}
    }
    let Some(invocation) = parse(&SUITE, &words)? else {
        return Ok(());
    };
    let done = dispatch(invocation).await;
    done.map_err(|failure| failure.with_usual(FAILED))
}

async fn dispatch(invocation: Invocation) -> Outcome {
    if invocation.command == "listunstored" {
        return unstored::list(&invocation);
    }
    if invocation.has("id") && invocation.has("if") {
        return Err(Failure::usage(
            "you may specify either -id or -if, but not both switches",
        ));
    }
    if let Some(outcome) = manager::run(&invocation) {
        return outcome;
    }
    if invocation.command == "checkservers" {
        return servers::check(&invocation).await;
    }
    if let Some(mount) = known::mount(&invocation)? {
        return known::print_answer(&mount, &invocation).await;
    }
    // This operation reports the rights of the caller, not those of the administrator.
    let of_caller = invocation.command == "getcalleraccess" && !invocation.has("localauth");
    let who = if invocation.has("noauth") || of_caller {
        As::Anybody
    } else {
        As::AdministratorIfPossible
    };
    let named = ["path", "dir", "fromdir", "todir", "list", "restore"];
    let named = named.iter().flat_map(|name| invocation.list(name));
    let mut paths: Vec<&str> = named.map(|path| existing(path)).collect();
    if paths.is_empty() {
        paths.push(".");
    }
    // Check this first. Otherwise a command without a known cell would report the missing cell
    // instead.
    if paths.iter().all(|path| cellar_admin::fs::is_outside(path)) {
        return Err(Failure::from(cellar_admin::fs::outside(paths[0])));
    }
    if paths
        .iter()
        .all(|path| cellar_admin::fs::is_list_of_cells(path))
    {
        return Err(Failure::from(cellar_admin::fs::no_cell(paths[0])));
    }
    let mut options = cell_options(&invocation, None);
    if invocation.command == "mkmount" {
        // `-cell` is the cell of the volume. The cell of the mount point follows from its path.
        options.cell = None;
        options.reported = mount_point::cells_of_mount(&invocation)?;
    }
    let session = options.session_about(&paths, who).await?;
    let outcome = operation(&invocation, &session).await;
    session.end(outcome).await
}

async fn operation(invocation: &Invocation, session: &Session) -> Outcome {
    let fs = Fs {
        files: Files::new(&session.client),
        session,
        invocation,
        json: invocation.has("json"),
    };
    match invocation.command {
        "listacl" => fs.listacl().await,
        "setacl" => fs.setacl().await,
        "copyacl" => fs.copyacl().await,
        "cleanacl" => fs.cleanacl().await,
        "listquota" | "quota" | "examine" | "diskfree" => fs.volumes().await,
        "setquota" | "setvol" => fs.set_volumes().await,
        "getfid" => fs.getfid().await,
        "getcalleraccess" => fs.caller_access().await,
        "mkmount" => fs.mkmount().await,
        "rmmount" => fs.rmmount().await,
        "lsmount" => fs.lsmount().await,
        "osd" => fs.pieces().await,
        "oldversion" => fs.older().await,
        "policy" => fs.policies().await,
        "setpolicy" => fs.set_policies().await,
        "whereis" => fs.whereis().await,
        "whichcell" => fs.whichcell().await,
        "wscell" => known::home(session.cell.name.as_str(), fs.json),
        "listcells" => known::cells(&session.client.cells(), invocation).await,
        _ => {
            let mut aliases: Vec<_> = crate::session::cell_aliases().into_iter().collect();
            aliases.sort();
            known::aliases(&aliases, fs.json)
        }
    }
}

/// The files of an operation.
fn paths(invocation: &Invocation) -> Vec<&str> {
    match invocation.list("path") {
        [] => vec!["."],
        given => given.iter().map(String::as_str).collect(),
    }
}

/// The path itself, or the directory above it if the path does not exist.
fn existing(path: &str) -> &str {
    match path.trim_end_matches('/').rsplit_once('/') {
        _ if Path::new(path).exists() || path.starts_with("/afs/") => path,
        Some(("", _)) => "/",
        Some((above, _)) => above,
        // A name to create in this directory, or a volume's name.
        None => ".",
    }
}

struct Fs<'a> {
    files: Files<'a>,
    session: &'a Session,
    invocation: &'a Invocation,
    json: bool,
}

impl Fs<'_> {
    async fn listacl(&self) -> Outcome {
        let mut failures = Failures::of("fs");
        let mut lists = Vec::new();
        for (index, path) in paths(self.invocation).into_iter().enumerate() {
            let acl = self.files.access_list(path).await;
            let Some(acl) = failures.note(acl) else {
                continue;
            };
            if self.json {
                lists.push(json!({ "path": path, "acl": acl }));
                continue;
            }
            if self.invocation.has("cmd") {
                out!("{}", acl.commands(path));
                continue;
            }
            let gap = if index > 0 { "\n" } else { "" };
            out!("{gap}Access list for {path} is\n{}", acl.listing());
        }
        if self.json {
            print_json(&lists)?;
        }
        failures.end()
    }

    async fn setacl(&self) -> Outcome {
        let (pairs, rest) = self.invocation.list("acl").as_chunks::<2>();
        if !rest.is_empty() {
            return Err(Failure::usage(
                "Missing second half of user/access pair: -acl takes names, each with its rights",
            ));
        }
        let entry = |[name, rights]: &[String; 2]| {
            Ok((name.clone(), parse_rights(rights).map_err(Failure::usage)?))
        };
        let change = AclChange {
            entries: pairs.iter().map(entry).collect::<Outcome<Vec<_>>>()?,
            clear: self.invocation.has("clear"),
            negative: self.invocation.has("negative"),
        };
        let mut failures = Failures::of("fs");
        let mut all = Vec::new();
        for path in self.invocation.list("dir") {
            let set = self.files.set_access_list(path, &change).await;
            let acl = failures.note(set);
            all.extend(acl.map(|acl| json!({ "path": path, "acl": acl })));
        }
        self.changed(&all)?;
        failures.end()
    }

    async fn cleanacl(&self) -> Outcome {
        let mut failures = Failures::of("fs");
        let mut cleaned = Vec::new();
        for (index, path) in paths(self.invocation).into_iter().enumerate() {
            let acl = self.files.clean_access_list(path).await;
            let Some(acl) = failures.note(acl) else {
                continue;
            };
            if self.json {
                cleaned.push(json!({ "path": path, "changed": acl.is_some(), "acl": acl }));
                continue;
            }
            let gap = if index > 0 { "\n" } else { "" };
            match acl {
                Some(acl) => out!("{gap}Access list for {path} is now\n{}", acl.listing()),
                None => outln!("{gap}Access list for {path} is fine."),
            }
        }
        if self.json {
            print_json(&cleaned)?;
        }
        failures.end()
    }

    async fn copyacl(&self) -> Outcome {
        let from = self.invocation.required("fromdir");
        let clear = self.invocation.has("clear");
        let mut failures = Failures::of("fs");
        let mut all = Vec::new();
        for to in self.invocation.list("todir") {
            let copied = self.files.copy_access_list(from, to, clear).await;
            let acl = failures.note(copied);
            all.extend(acl.map(|acl| json!({ "path": to, "acl": acl })));
        }
        self.changed(&all)?;
        failures.end()
    }

    /// The JSON result of operations that print nothing otherwise.
    fn changed(&self, what: &[serde_json::Value]) -> Outcome {
        if self.json { print_json(what) } else { Ok(()) }
    }

    async fn set_volumes(&self) -> Outcome {
        let text = |name| self.invocation.get(name).map(str::to_owned);
        let max = self.invocation.get("max");
        let change = VolumeChange {
            quota_kib: max.map(|max| quota("-max", max)).transpose()?,
            offline_message: text("offlinemsg"),
            message_of_the_day: text("motd"),
        };
        if change == VolumeChange::default() {
            return Err(Failure::usage(
                "nothing to set: give -max, -offlinemsg or -motd",
            ));
        }
        let mut failures = Failures::of("fs");
        let mut all = Vec::new();
        for path in paths(self.invocation) {
            let set = async {
                self.files.set_volume(path, &change).await?;
                if self.json {
                    all.push(json!(self.files.volume_status(path).await?));
                }
                Ok::<_, cellar_admin::Error>(())
            };
            failures.note(set.await);
        }
        self.changed(&all)?;
        failures.end()
    }

    async fn getfid(&self) -> Outcome {
        let literal = self.invocation.has("literal");
        let mut failures = Failures::of("fs");
        let mut all = Vec::new();
        for path in paths(self.invocation) {
            let Some(file) = failures.note(self.files.examine(path, literal).await) else {
                continue;
            };
            if self.json {
                all.push(json!({ "path": path, "fid": file.fid, "cell": file.cell }));
                continue;
            }
            outln!("File {path} ({}) located in cell {}", file.fid, file.cell);
        }
        self.changed(&all)?;
        failures.end()
    }

    async fn caller_access(&self) -> Outcome {
        let mut failures = Failures::of("fs");
        let mut all = Vec::new();
        for path in paths(self.invocation) {
            let Some(file) = failures.note(self.files.examine(path, false).await) else {
                continue;
            };
            if self.json {
                all.push(json!(file));
                continue;
            }
            outln!("Callers access to {path} is {}", file.access);
        }
        self.changed(&all)?;
        failures.end()
    }

    async fn volumes(&self) -> Outcome {
        let mut failures = Failures::of("fs");
        let mut all = Vec::new();
        for path in paths(self.invocation) {
            let status = self.files.volume_status(path).await;
            all.extend(failures.note(status));
        }
        if self.json {
            print_json(&all)?;
            return failures.end();
        }
        let human = self.invocation.has("human");
        match self.invocation.command {
            _ if all.is_empty() => {}
            "listquota" => out!("{QUOTA_HEAD}"),
            "diskfree" => out!("{DISK_HEAD}"),
            _ => {}
        }
        for status in &all {
            let text = match self.invocation.command {
                "listquota" => status.row(human),
                "diskfree" => status.disk_row(human),
                "quota" => status.percentage(),
                _ => status.examined(),
            };
            out!("{text}");
        }
        failures.end()
    }

    async fn lsmount(&self) -> Outcome {
        let mut failures = Failures::of("fs");
        let mut all = Vec::new();
        let mut failed = false;
        for path in self.invocation.list("dir") {
            match self.files.list_mount(path).await {
                Ok(mount) if self.json => all.push(mount),
                Ok(mount) => {
                    let link = match mount.symbolic_link {
                        true => "symbolic link, leading to a ",
                        false => "",
                    };
                    outln!(
                        "'{path}' is a {link}mount point for volume '{}'",
                        mount.text
                    );
                }
                Err(error @ cellar_admin::Error::Usage(_)) => {
                    outln!("{error}");
                    failed = true;
                }
                Err(error) => {
                    failures.note::<(), _>(Err(error));
                }
            }
        }
        if self.json {
            print_json(&all)?;
        }
        failures.end()?;
        Failure::if_any(failed)
    }

    async fn whereis(&self) -> Outcome {
        let mut hosts = HostNames::new(!self.invocation.has("noresolve"));
        let mut failures = Failures::of("fs");
        let mut all = Vec::new();
        for path in paths(self.invocation) {
            let servers = self.files.where_is(path).await;
            let Some(servers) = failures.note(servers) else {
                continue;
            };
            if self.json {
                all.push(json!({ "path": path, "servers": servers }));
                continue;
            }
            hosts.learn(servers.iter().copied()).await;
            let names: String = servers
                .iter()
                .map(|server| format!("{} ", hosts.name(*server)))
                .collect();
            let word = if servers.len() == 1 { "host" } else { "hosts" };
            outln!("File {path} is on {word} {names}");
        }
        if self.json {
            print_json(&all)?;
        }
        failures.end()
    }

    async fn whichcell(&self) -> Outcome {
        let mut failures = Failures::of("fs");
        let mut all = Vec::new();
        for path in paths(self.invocation) {
            let found = self.files.volume_of(path).await;
            let Some((cell, _)) = failures.note(found) else {
                continue;
            };
            if self.json {
                all.push(json!({ "path": path, "cell": cell.as_str() }));
                continue;
            }
            outln!("File {path} lives in cell '{cell}'");
        }
        if self.json {
            print_json(&all)?;
        }
        failures.end()
    }
}
