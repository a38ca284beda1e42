//! wscell, listcells, listaliases: the known cells. The mount of the current directory or the named
//! mount is asked, otherwise the lists of this machine are read.

use std::path::Path;

use cellar_admin::HostNames;
use cellar_client::{Cell, CellName};
use cellar_fuse::control;
use serde_json::json;

use super::table::AT;
use super::{Invocation, print_json};
use crate::failure::Outcome;
use crate::mounted::Mounted;
use crate::output::outln;

/// The mount to ask, if the operation is one of these.
pub(super) fn mount(invocation: &Invocation) -> Outcome<Option<Mounted>> {
    if !matches!(invocation.command, "wscell" | "listcells" | "listaliases") {
        return Ok(None);
    }
    match invocation.get(AT) {
        Some(named) => Mounted::meant(Some(named)).map(Some),
        None => Ok(Mounted::at(Path::new("."))),
    }
}

/// Prints the answer of the mount.
pub(super) async fn print_answer(mount: &Mounted, invocation: &Invocation) -> Outcome {
    let json = invocation.has("json");
    match invocation.command {
        "wscell" => {
            let status = mount.status()?;
            home(status.get("home").map_or("", String::as_str), json)
        }
        "listcells" => cells(&mount.cells()?, invocation).await,
        _ => {
            let lines = mount.lines(control::ALIASES)?;
            let pair = |line: &String| {
                let (alias, cell) = line.split_once(' ')?;
                Some((CellName::new(alias).ok()?, CellName::new(cell).ok()?))
            };
            aliases(&lines.iter().filter_map(pair).collect::<Vec<_>>(), json)
        }
    }
}

pub(super) fn home(cell: &str, json: bool) -> Outcome {
    if json {
        return print_json(&json!({ "cell": cell }));
    }
    outln!("This workstation belongs to cell '{cell}'");
    Ok(())
}

pub(super) async fn cells(known: &[Cell], invocation: &Invocation) -> Outcome {
    let wanted = invocation.list("name");
    let json = invocation.has("json");
    let numbers = invocation.has("noresolve") || invocation.has("numeric");
    let mut hosts = HostNames::new(!numbers);
    let mut all = Vec::new();
    for cell in known {
        if !wanted.is_empty() && !wanted.iter().any(|name| name == cell.name.as_str()) {
            continue;
        }
        if json {
            all.push(json!({
                "cell": cell.name.as_str(),
                "database_servers": cell.database_servers,
            }));
            continue;
        }
        hosts.learn(cell.database_servers.iter().copied()).await;
        let names = cell.database_servers.iter().map(|ip| hosts.name(*ip));
        let names: Vec<_> = names.collect();
        outln!("Cell {} on hosts {}.", cell.name, names.join(" "));
    }
    if json { print_json(&all) } else { Ok(()) }
}

pub(super) fn aliases(known: &[(CellName, CellName)], json: bool) -> Outcome {
    if json {
        let line = |(alias, cell): &(CellName, CellName)| json!({ "alias": alias.as_str(), "cell": cell.as_str() });
        return print_json(&known.iter().map(line).collect::<Vec<_>>());
    }
    for (alias, cell) in known {
        outln!("Alias {alias} for cell {cell}");
    }
    Ok(())
}
