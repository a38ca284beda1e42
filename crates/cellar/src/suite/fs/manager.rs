//! Operations that OpenAFS's `fs` sends to the cache manager; here they go to the process behind a
//! mount.

use std::path::Path;

use cellar_client::{Cell, CellName, Ports};
use cellar_fuse::control::{self, STORE_BEHIND_MAX};
use serde_json::json;

use super::table::AT;
use super::{Invocation, number, paths, print_json};
use crate::failure::{Failure, Failures, Outcome};
use crate::mounted::Mounted;
use crate::output::{out, outln};
use crate::session::resolve;

/// Runs an operation if it belongs to this module; otherwise returns `None`.
pub(super) fn run(invocation: &Invocation) -> Option<Outcome> {
    let manager = Manager {
        invocation,
        json: invocation.has("json"),
    };
    Some(match invocation.command {
        "checkvolumes" => manager.check_volumes(),
        "flush" => manager.flush("file", "file"),
        "flushvolume" => manager.flush("volume", "volume"),
        "flushmount" => manager.flush_mount(),
        "flushall" => manager.flush_all(),
        "getcacheparms" => manager.get_cache(),
        "setcachesize" => manager.set_cache(),
        "sysname" => manager.sysname(),
        "newcell" => manager.new_cell(),
        "newalias" => manager.new_alias(),
        "getcellstatus" => manager.cell_status(),
        "getcrypt" => manager.get_crypt(),
        "setcrypt" => manager.set_crypt(),
        "storebehind" => manager.store_behind(),
        _ => return None,
    })
}

struct Manager<'a> {
    invocation: &'a Invocation,
    json: bool,
}

fn in_mount(path: &str) -> Outcome<Mounted> {
    Mounted::at(Path::new(path)).ok_or_else(|| {
        let why = match std::fs::symlink_metadata(path) {
            Err(cause) => cause.to_string(),
            Ok(_) => "not in a mount by 'cellar mount'".to_owned(),
        };
        Failure::new(format!("{path}: {why}"))
    })
}

fn is_on(word: Option<&String>) -> bool {
    word.is_some_and(|word| word == "on")
}

/// Parses a limit in KiB for data that is stored behind close.
fn kib(what: &str, text: &str) -> Outcome<u64> {
    match number(what, text)? {
        kib @ 0..=STORE_BEHIND_MAX => Ok(kib),
        _ => Err(Failure::usage(format!(
            "{what}: at most {STORE_BEHIND_MAX} KiB"
        ))),
    }
}

/// The output of `fs getcacheparms`.
fn cache_text(used: u64, size: u64, files: Option<(u64, u64)>) -> String {
    let percent = |part: u64, all: u64| part as f64 * 100.0 / all.max(1) as f64;
    let Some((known, most)) = files else {
        return format!("AFS using {used} of the cache's available {size} 1K byte blocks.\n");
    };
    let blocks = percent(used, size);
    let mut text = format!(
        "AFS using {blocks:5.0}% of cache blocks ({used} of {size} 1k blocks)\n          {:5.0}% of the cache files \
         ({known} of {most} files)\n",
        percent(known, most)
    );
    if blocks > 90.0 {
        text.push_str("[cache size usage over 90%, consider increasing cache size]\n");
    }
    text
}

/// The output of `fs sysname`.
fn sysnames_text(names: &[&str]) -> String {
    let list = if names.len() > 1 { " list" } else { "" };
    let names: Vec<_> = names.iter().map(|name| format!(" '{name}'")).collect();
    format!("Current sysname{list} is{}\n", names.concat())
}

impl Manager<'_> {
    fn mount(&self) -> Outcome<Mounted> {
        Mounted::meant(self.invocation.get(AT))
    }

    /// Waits until the mount has applied the change, so that the next command of a shell sees it. A
    /// mount of an older version does not know the attribute.
    fn wait_heard(mount: &Mounted) {
        let _unknown = mount.get(control::HEARD);
    }

    fn change(&self, name: &str, value: &str) -> Outcome {
        self.mount()?.manage(name, value)
    }

    fn forget(&self, name: &str, value: &str) -> Outcome {
        let mount = self.mount()?;
        mount.manage(name, value)?;
        Self::wait_heard(&mount);
        Ok(())
    }

    fn check_volumes(&self) -> Outcome {
        self.forget(control::CHECK_VOLUMES, "")?;
        if self.json {
            return print_json(&json!({ "checked": true }));
        }
        outln!("All volumeID/name mappings checked.");
        Ok(())
    }

    fn flush(&self, what: &str, noun: &str) -> Outcome {
        let mut failures = Failures::of("fs");
        let mut all = Vec::new();
        for path in paths(self.invocation) {
            let flushed = in_mount(path).and_then(|mount| {
                let set = mount.set(control::FLUSH, what);
                set.map_err(|cause| Failure::new(format!("Error flushing {noun} {path}: {cause}")))
            });
            let flushed = failures.note(flushed);
            all.extend(flushed.map(|()| json!({ "path": path, "flushed": what })));
        }
        self.changed(&json!(all))?;
        failures.end()
    }

    fn flush_all(&self) -> Outcome {
        self.forget(control::FLUSH, "all")?;
        self.changed(&json!({ "flushed": "all" }))
    }

    fn flush_mount(&self) -> Outcome {
        let mut failures = Failures::of("fs");
        let mut all = Vec::new();
        for path in paths(self.invocation) {
            let trimmed = path.trim_end_matches('/');
            let (directory, name) = match trimmed.rsplit_once('/') {
                Some(("", name)) => ("/", name),
                Some(parts) => parts,
                None => (".", trimmed),
            };
            if matches!(name, "" | "." | "..") {
                let problem = format!("{path}: give the name of a mount point, not . or ..");
                failures.note::<(), _>(Err(Failure::usage(problem)));
                continue;
            }
            let flushed = in_mount(directory).and_then(|mount| {
                let set = mount.set(control::FLUSH_MOUNT, name);
                Self::wait_heard(&mount);
                set.map_err(|cause| Failure::new(format!("{path}: {cause}")))
            });
            let flushed = failures.note(flushed);
            all.extend(flushed.map(|()| json!({ "path": path, "flushed": "mount" })));
        }
        self.changed(&json!(all))?;
        failures.end()
    }

    fn get_cache(&self) -> Outcome {
        let status = self.mount()?.status()?;
        let figure = |word: &str| -> u64 {
            let value = status.get(word).and_then(|value| value.parse().ok());
            value.unwrap_or(0)
        };
        let (used, size) = (figure("used-kib"), figure("cache-kib"));
        let files = (figure("vnodes"), figure("vnodes-max"));
        if self.json {
            return print_json(&json!({
                "used_kib": used, "size_kib": size, "dirty_kib": figure("dirty-kib"),
                "files": files.0, "files_max": files.1,
            }));
        }
        let with_files = self.invocation.has("files") || self.invocation.has("excessive");
        out!("{}", cache_text(used, size, with_files.then_some(files)));
        Ok(())
    }

    fn set_cache(&self) -> Outcome {
        let blocks = match (self.invocation.get("blocks"), self.invocation.has("reset")) {
            (Some(blocks), false) => number("-blocks", blocks)?,
            (None, true) => 0,
            _ => {
                return Err(Failure::usage(
                    "give the size in KiB, or -reset for the size given at mount time",
                ));
            }
        };
        let least = cellar_cachemanager::SIZE_MIN >> 10;
        if (1..least).contains(&blocks) {
            return Err(Failure::usage(format!("at least {least} KiB are needed")));
        }
        let mount = self.mount()?;
        mount.manage(control::CACHE_SIZE, &blocks.to_string())?;
        if self.json {
            let status = mount.status()?;
            let size: Option<u64> = status.get("cache-kib").and_then(|kib| kib.parse().ok());
            return print_json(&json!({ "size_kib": size }));
        }
        outln!("New cache size set.");
        Ok(())
    }

    fn sysname(&self) -> Outcome {
        let mount = self.mount()?;
        let new = self.invocation.list("newsys");
        if !new.is_empty() {
            let set = mount.set(control::SYSNAMES, &new.join("\n"));
            set.map_err(|cause| match cause.kind() {
                std::io::ErrorKind::InvalidInput => Failure::usage(format!(
                    "at most {} names, of at most 127 letters, without blanks and slashes",
                    cellar_cachemanager::SYSNAMES_MAX
                )),
                _ => mount.failure(&cause),
            })?;
        }
        let status = mount.status()?;
        let names = status.get("sysnames").map_or("", String::as_str);
        let names: Vec<_> = names.split_whitespace().collect();
        if self.json {
            return print_json(&json!({ "sysnames": names }));
        }
        if new.is_empty() {
            out!("{}", sysnames_text(&names));
        } else {
            let list = if new.len() > 1 { " list" } else { "" };
            outln!("fs: new sysname{list} set.");
        }
        Ok(())
    }

    fn new_cell(&self) -> Outcome {
        let name = CellName::new(self.invocation.required("name"))?;
        let mut ports = Ports::default();
        let mut servers = Vec::new();
        for server in self.invocation.list("servers") {
            let (address, port) = resolve(server)?;
            if let Some(port) = port {
                ports = Ports::of_location(port)
                    .ok_or_else(|| Failure::usage(format!("{server}: not a port to use")))?;
            }
            servers.push(address);
        }
        let cell = Cell {
            name,
            database_servers: servers,
            ports,
        };
        let line = cell.line();
        if Cell::parse_line(&line).is_none() {
            return Err(Failure::usage("a cell has at most 8 database servers"));
        }
        self.change(control::NEW_CELL, &line)?;
        self.changed(
            &json!({ "cell": cell.name.as_str(), "database_servers": cell.database_servers }),
        )
    }

    /// The JSON result of operations that print nothing otherwise.
    fn changed(&self, what: &serde_json::Value) -> Outcome {
        if self.json { print_json(what) } else { Ok(()) }
    }

    fn new_alias(&self) -> Outcome {
        let alias = CellName::new(self.invocation.required("alias"))?;
        let name = CellName::new(self.invocation.required("name"))?;
        let mount = self.mount()?;
        let set = mount.set(control::NEW_ALIAS, &format!("{alias} {name}"));
        set.map_err(|cause| match cause.kind() {
            std::io::ErrorKind::AlreadyExists => {
                Failure::new(format!("cell name `{alias}' in use by an existing cell."))
            }
            std::io::ErrorKind::NotFound => Failure::new(format!(
                "the cell named '{name}' does not exist; 'cellar fs newcell' adds it"
            )),
            _ => mount.failure(&cause),
        })?;
        self.changed(&json!({ "alias": alias.as_str(), "cell": name.as_str() }))
    }

    fn cell_status(&self) -> Outcome {
        let mount = self.mount()?;
        let known = mount.cells()?;
        let suid = is_on(mount.status()?.get("suid"));
        let mut failures = Failures::of("fs");
        let mut all = Vec::new();
        for name in self.invocation.list("cell") {
            if !known
                .iter()
                .any(|cell| cell.name.as_str() == name.to_lowercase())
            {
                failures.note::<(), _>(Err(Failure::new(format!("no such cell as '{name}'"))));
                continue;
            }
            if self.json {
                all.push(json!({ "cell": name, "setuid": suid }));
                continue;
            }
            let no = if suid { "" } else { "no " };
            outln!("Cell {name} status: {no}setuid allowed");
        }
        if self.json {
            print_json(&all)?;
        }
        failures.end()
    }

    fn get_crypt(&self) -> Outcome {
        let on = is_on(self.mount()?.status()?.get("crypt"));
        if self.json {
            return print_json(&json!({ "crypt": on }));
        }
        let level = if on {
            "crypt (data security)."
        } else {
            "clear."
        };
        outln!("Security level is currently {level}");
        Ok(())
    }

    fn set_crypt(&self) -> Outcome {
        let word = self.invocation.required("crypt");
        if !matches!(word, "on" | "off") {
            return Err(Failure::usage(format!("{word} must be \"on\" or \"off\".")));
        }
        let mount = self.mount()?;
        mount
            .set(control::CRYPT, word)
            .map_err(|cause| match cause.kind() {
                std::io::ErrorKind::Unsupported => {
                    Failure::new("the mount was started with --noauth and makes calls without tokens: there is no key to encrypt with")
                }
                _ => mount.failure(&cause),
            })?;
        self.changed(&json!({ "crypt": word == "on" }))
    }

    fn store_behind(&self) -> Outcome {
        let files = self.invocation.list("files");
        let kbytes = self
            .invocation
            .get("kbytes")
            .map(|text| kib("-kbytes", text));
        let kbytes = kbytes.transpose()?;
        let all = self.invocation.get("allfiles");
        let all = all.map(|text| kib("-allfiles", text)).transpose()?;
        if kbytes.is_some() && files.is_empty() {
            return Err(Failure::usage("you must specify -files with -kbytes."));
        }
        let mount = match (self.invocation.get(AT), files.first()) {
            (None, Some(file)) => in_mount(file)?,
            (named, _) => Mounted::meant(named)?,
        };
        if let Some(kib) = all {
            mount.manage(control::STORE_BEHIND_ALL, &kib.to_string())?;
        }
        let mut failures = Failures::of("fs");
        let mut values = Vec::new();
        for file in files {
            let value = in_mount(file).and_then(|one| {
                if let Some(kib) = kbytes {
                    let set = one.set(control::STORE_BEHIND, &kib.to_string());
                    set.map_err(|cause| Failure::new(format!("{file}: {cause}")))?;
                }
                one.get(control::STORE_BEHIND)
            });
            if let Some(value) = failures.note(value) {
                values.push((file, value.parse::<u64>().ok()));
            }
        }
        let status = mount.status()?;
        let default: u64 = status
            .get("store-behind-kib")
            .and_then(|kib| kib.parse().ok())
            .unwrap_or(0);
        if self.json {
            let file = |(file, kib): &(&String, Option<u64>)| json!({ "file": file, "kib": kib });
            let files: Vec<_> = values.iter().map(file).collect();
            print_json(&json!({ "default_kib": default, "files": files }))?;
        } else if self.invocation.has("verbose") || (files.is_empty() && all.is_none()) {
            for (file, kib) in values {
                match kib {
                    Some(kib) => outln!("Will store up to {kib} kbytes of {file} asynchronously."),
                    None => outln!("Will store {file} according to default."),
                }
            }
            outln!("Default store asynchrony is {default} kbytes.");
        }
        failures.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_as_openafs_does() {
        assert_eq!(
            cache_text(1538, 50000, None),
            "AFS using 1538 of the cache's available 50000 1K byte blocks.\n"
        );
        assert_eq!(
            cache_text(46000, 50000, Some((500, 1000))),
            "AFS using    92% of cache blocks (46000 of 50000 1k blocks)\n             50% of the cache files \
             (500 of 1000 files)\n[cache size usage over 90%, consider increasing cache size]\n"
        );
        assert_eq!(sysnames_text(&["a"]), "Current sysname is 'a'\n");
        assert_eq!(
            sysnames_text(&["a", "b"]),
            "Current sysname list is 'a' 'b'\n"
        );
    }

    #[test]
    fn kib_have_bounds() {
        assert_eq!(kib("-kbytes", "1073741824").expect("1 TiB"), 1 << 30);
        for bad in ["1073741825", "-1", "x", ""] {
            assert!(kib("-kbytes", bad).is_err(), "{bad}");
        }
    }
}
