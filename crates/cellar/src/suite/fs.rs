//! `cellar fs`: what can be done without a cache manager, by asking the servers.
//!
//! Where the originals take a path, a volume's name does too (`scratch` instead of
//! `/afs/demo.cell/scratch`): its root directory, read-write.

mod objects;
mod unstored;

use cellar_admin::HostNames;
use cellar_admin::fs::{AclChange, Files, QUOTA_HEAD, parse_rights};
use cellar_client::{CellName, MountPoint};
use serde_json::json;

use super::syntax::{
    Command, Invocation, Suite, expands, flag, list, one, optional, optional_list,
};
use super::{COMMON, cell_options, parse, print_json, quota};
use crate::failure::{Failure, Outcome};
use crate::output::{out, outln};
use crate::session::{As, Session};

static SUITE: Suite = Suite {
    name: "fs",
    about: "Access lists, quotas, mount points, and where files are.",
    common: &COMMON,
    commands: &[
        Command {
            name: "listacl",
            aliases: &["la"],
            about: "Show access lists.",
            parameters: &[expands("path", "dir/file path: or a volume's name")],
            examples: &["/afs/demo.cell/scratch"],
        },
        Command {
            name: "setacl",
            aliases: &["sa"],
            about: "Set rights in access lists.",
            parameters: &[
                list("dir", "directory: or a volume's name"),
                expands("acl", "access list entries: name rights name rights ..."),
                flag("clear", ": drop all other entries"),
                flag("negative", ": set negative rights"),
            ],
            examples: &[
                "/afs/demo.cell/scratch ann rlidwk",
                "-dir /afs/demo.cell/scratch -acl ann all system:anyuser none",
            ],
        },
        Command {
            name: "copyacl",
            aliases: &["ca"],
            about: "Copy an access list.",
            parameters: &[
                one("fromdir", "source directory"),
                expands("todir", "destination directory"),
                flag("clear", ": drop all other entries"),
            ],
            examples: &["/afs/demo.cell/scratch/a /afs/demo.cell/scratch/b"],
        },
        Command {
            name: "listquota",
            aliases: &["lq"],
            about: "Show the quotas of volumes.",
            parameters: &[expands("path", "dir/file path: or a volume's name")],
            examples: &["/afs/demo.cell/scratch"],
        },
        Command {
            name: "quota",
            aliases: &["q"],
            about: "Show how much of the quota is used.",
            parameters: &[expands("path", "dir/file path: or a volume's name")],
            examples: &["/afs/demo.cell/scratch"],
        },
        Command {
            name: "setquota",
            aliases: &["sq"],
            about: "Set the quota of a volume.",
            parameters: &[
                one("path", "dir/file path: or a volume's name"),
                one("max", "KiB: 0 for none"),
            ],
            examples: &["/afs/demo.cell/scratch 1000000"],
        },
        Command {
            name: "examine",
            aliases: &["lv", "listvol"],
            about: "Show the state of volumes.",
            parameters: &[expands("path", "dir/file path: or a volume's name")],
            examples: &["/afs/demo.cell/scratch"],
        },
        Command {
            name: "mkmount",
            aliases: &["mkm"],
            about: "Make a mount point.",
            parameters: &[
                one("dir", "directory: the mount point to make"),
                one("vol", "volume name"),
                optional("mountcell", "cell name: where the volume is, if elsewhere"),
                flag("rw", ": always the read-write volume"),
                flag("fast", ": do not look whether the volume exists"),
            ],
            examples: &[
                "/afs/.demo.cell/ann user.ann",
                "/afs/.demo.cell/soft soft -rw",
            ],
        },
        Command {
            name: "rmmount",
            aliases: &["rmm"],
            about: "Remove mount points.",
            parameters: &[expands("dir", "directory: the mount point")],
            examples: &["/afs/.demo.cell/ann"],
        },
        Command {
            name: "lsmount",
            aliases: &["lsm"],
            about: "Show what mount points lead to.",
            parameters: &[expands("dir", "directory: the mount point")],
            examples: &["/afs/demo.cell/scratch"],
        },
        Command {
            name: "osd",
            aliases: &[],
            about: "Show where the pieces of files are, and whether they are well.",
            parameters: &[expands("path", "file path")],
            examples: &["/afs/demo.cell/data/run7.root"],
        },
        Command {
            name: "policy",
            aliases: &[],
            about: "Show the policies that count in directories.",
            parameters: &[expands("path", "dir/file path: or a volume's name")],
            examples: &["/afs/demo.cell/data"],
        },
        Command {
            name: "setpolicy",
            aliases: &[],
            about: "Set the policy of directories: subdirectories that are made in them have it too.",
            parameters: &[
                one(
                    "policy",
                    "policy: its number or name; 0 for that of the volume",
                ),
                expands("dir", "directory: or a volume's name"),
            ],
            examples: &["root /afs/demo.cell/data", "0 /afs/demo.cell/data"],
        },
        Command {
            name: "whereis",
            aliases: &[],
            about: "Show which servers have files.",
            parameters: &[expands("path", "dir/file path")],
            examples: &["/afs/demo.cell/scratch"],
        },
        Command {
            name: "whichcell",
            aliases: &[],
            about: "Show which cell files are in.",
            parameters: &[expands("path", "dir/file path")],
            examples: &["/afs/demo.cell"],
        },
        Command {
            name: "wscell",
            aliases: &[],
            about: "Show the home cell.",
            parameters: &[],
            examples: &[""],
        },
        Command {
            name: "listaliases",
            aliases: &[],
            about: "List other names of cells, which CellAlias has.",
            parameters: &[],
            examples: &[""],
        },
        Command {
            name: "listcells",
            aliases: &[],
            about: "List the cells that are known.",
            parameters: &[optional_list("name", "cell name: only these")],
            examples: &[""],
        },
        Command {
            name: "listunstored",
            aliases: &["lu"],
            about: "Show what a mount's cache has that no server has yet, and what it put aside.",
            parameters: &[one("cachedir", "directory: that of cellar mount --cache")],
            examples: &["/var/cache/cellar"],
        },
        Command {
            name: "checkservers",
            aliases: &["checks"],
            about: "Show which file servers do not answer.",
            parameters: &[],
            examples: &[""],
        },
    ],
};

/// Runs one operation.
pub(crate) async fn run(words: Vec<String>) -> Outcome {
    let Some(invocation) = parse(&SUITE, &words)? else {
        return Ok(());
    };
    if invocation.command == "listunstored" {
        return unstored::list(&invocation);
    }
    let who = if invocation.has("noauth") {
        As::Anybody
    } else {
        As::AdministratorIfPossible
    };
    let path = ["path", "dir", "fromdir"]
        .iter()
        .find_map(|name| invocation.get(name));
    let session = cell_options(&invocation, None).session(path, who).await?;
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
        "listquota" | "quota" | "examine" => fs.volumes().await,
        "setquota" => {
            let quota = quota("-max", invocation.required("max"))?;
            Ok(fs
                .files
                .set_quota(invocation.required("path"), quota)
                .await?)
        }
        "mkmount" => fs.mkmount().await,
        "rmmount" => fs.rmmount().await,
        "lsmount" => fs.lsmount().await,
        "osd" => fs.pieces().await,
        "policy" => fs.policies().await,
        "setpolicy" => fs.set_policies().await,
        "whereis" => fs.whereis().await,
        "whichcell" => fs.whichcell().await,
        "wscell" if fs.json => print_json(&json!({ "cell": session.cell.name.as_str() })),
        "wscell" => {
            outln!("This workstation belongs to cell '{}'", session.cell.name);
            Ok(())
        }
        "listcells" => fs.listcells().await,
        "listaliases" => fs.listaliases(),
        _ => fs.checkservers().await,
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
        let mut lists = Vec::new();
        for (index, path) in self.invocation.list("path").iter().enumerate() {
            let acl = self.files.access_list(path).await?;
            if self.json {
                lists.push(json!({ "path": path, "acl": acl }));
                continue;
            }
            let gap = if index > 0 { "\n" } else { "" };
            out!("{gap}Access list for {path} is\n{}", acl.listing());
        }
        if self.json {
            print_json(&lists)
        } else {
            Ok(())
        }
    }

    async fn setacl(&self) -> Outcome {
        let (pairs, rest) = self.invocation.list("acl").as_chunks::<2>();
        if !rest.is_empty() {
            return Err(Failure::usage("-acl takes pairs: a name and its rights"));
        }
        let entry = |[name, rights]: &[String; 2]| {
            Ok((name.clone(), parse_rights(rights).map_err(Failure::usage)?))
        };
        let change = AclChange {
            entries: pairs.iter().map(entry).collect::<Outcome<Vec<_>>>()?,
            clear: self.invocation.has("clear"),
            negative: self.invocation.has("negative"),
        };
        for path in self.invocation.list("dir") {
            self.files.set_access_list(path, &change).await?;
        }
        Ok(())
    }

    async fn copyacl(&self) -> Outcome {
        let from = self.invocation.required("fromdir");
        for to in self.invocation.list("todir") {
            self.files
                .copy_access_list(from, to, self.invocation.has("clear"))
                .await?;
        }
        Ok(())
    }

    async fn volumes(&self) -> Outcome {
        let mut all = Vec::new();
        for path in self.invocation.list("path") {
            all.push(self.files.volume_status(path).await?);
        }
        if self.json {
            return print_json(&all);
        }
        if self.invocation.command == "listquota" {
            out!("{QUOTA_HEAD}");
        }
        for status in &all {
            let text = match self.invocation.command {
                "listquota" => status.row(),
                "quota" => status.percentage(),
                _ => status.examined(),
            };
            out!("{text}");
        }
        Ok(())
    }

    async fn mkmount(&self) -> Outcome {
        let path = self.invocation.required("dir");
        let cell = self
            .invocation
            .get("mountcell")
            .map(CellName::new)
            .transpose()?;
        let volume = self.invocation.required("vol");
        let mount = MountPoint {
            read_write: self.invocation.has("rw"),
            cell,
            volume: volume.to_owned(),
        };
        if MountPoint::parse(mount.text().as_bytes()).as_ref() != Some(&mount) {
            return Err(Failure::usage(format!("'{volume}' is not a volume's name")));
        }
        let known = self.files.make_mount(path, &mount).await?;
        if !known && !self.invocation.has("fast") {
            eprintln!("fs: warning, volume {volume} does not exist");
        }
        Ok(())
    }

    async fn rmmount(&self) -> Outcome {
        for path in self.invocation.list("dir") {
            self.files.remove_mount(path).await?;
        }
        Ok(())
    }

    async fn lsmount(&self) -> Outcome {
        let mut all = Vec::new();
        let mut failed = false;
        for path in self.invocation.list("dir") {
            match self.files.list_mount(path).await {
                Ok(mount) if self.json => all.push(mount),
                Ok(mount) => outln!("'{path}' is a mount point for volume '{}'", mount.text),
                Err(error @ cellar_admin::Error::Usage(_)) => {
                    outln!("{error}");
                    failed = true;
                }
                Err(error) => return Err(error.into()),
            }
        }
        if self.json {
            print_json(&all)?;
        }
        Failure::if_any(failed)
    }

    async fn whereis(&self) -> Outcome {
        let mut hosts = HostNames::new(!self.invocation.has("noresolve"));
        let mut all = Vec::new();
        for path in self.invocation.list("path") {
            let servers = self.files.where_is(path).await?;
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
        if self.json { print_json(&all) } else { Ok(()) }
    }

    async fn whichcell(&self) -> Outcome {
        let mut all = Vec::new();
        for path in self.invocation.list("path") {
            let (cell, _) = self.files.volume_of(path).await?;
            if self.json {
                all.push(json!({ "path": path, "cell": cell.as_str() }));
                continue;
            }
            outln!("File {path} lives in cell '{cell}'");
        }
        if self.json { print_json(&all) } else { Ok(()) }
    }

    async fn listcells(&self) -> Outcome {
        let wanted = self.invocation.list("name");
        let mut hosts = HostNames::new(!self.invocation.has("noresolve"));
        let mut all = Vec::new();
        for cell in self.session.client.cells() {
            if !wanted.is_empty() && !wanted.iter().any(|name| name == cell.name.as_str()) {
                continue;
            }
            if self.json {
                all.push(json!({
                    "cell": cell.name.as_str(),
                    "database_servers": cell.database_servers,
                }));
                continue;
            }
            hosts.learn(cell.database_servers.iter().copied()).await;
            let names: Vec<_> = cell
                .database_servers
                .iter()
                .map(|ip| hosts.name(*ip))
                .collect();
            outln!("Cell {} on hosts {}.", cell.name, names.join(" "));
        }
        if self.json { print_json(&all) } else { Ok(()) }
    }

    fn listaliases(&self) -> Outcome {
        let mut aliases: Vec<_> = crate::session::cell_aliases().into_iter().collect();
        aliases.sort();
        if self.json {
            let line = |(alias, cell): &(CellName, CellName)| json!({ "alias": alias.as_str(), "cell": cell.as_str() });
            return print_json(&aliases.iter().map(line).collect::<Vec<_>>());
        }
        for (alias, cell) in aliases {
            outln!("Alias {alias} for cell {cell}");
        }
        Ok(())
    }

    async fn checkservers(&self) -> Outcome {
        let down = self.files.silent_servers(&self.session.cell).await?;
        if self.json {
            return print_json(&json!({ "unavailable": down }));
        }
        if down.is_empty() {
            outln!("All servers are running.");
            return Ok(());
        }
        let mut hosts = HostNames::new(!self.invocation.has("noresolve"));
        hosts.learn(down.iter().copied()).await;
        let names: String = down
            .iter()
            .map(|server| format!(" {}", hosts.name(*server)))
            .collect();
        outln!("These servers unavailable due to network or server problems: {names}.");
        Failure::if_any(true)
    }
}
