//! checkservers: lists the file servers that do not answer. The cells are those of the mount of the
//! current directory or of the named mount, otherwise those of this machine's lists. The command
//! calls each server itself, except with `-fast`, which prints the mount's record.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use cellar_admin::HostNames;
use cellar_admin::fs::Files;
use cellar_client::{Cell, CellName, Client, Config};
use cellar_fuse::control;
use cellar_rpc::Runtime;
use serde_json::json;
use tokio::task::JoinSet;

use super::super::{cell_options, print_json};
use super::Invocation;
use super::table::AT;
use crate::failure::{Failure, Failures, Outcome};
use crate::mounted::Mounted;
use crate::output::outln;

/// Seconds after which a mount retries a server that did not answer (`DOWN_TIME` of
/// `cellar_client::reach`).
const PROBE_INTERVAL: &str = "60";

/// Runs the operation.
pub(super) async fn check(invocation: &Invocation) -> Outcome {
    if invocation.get("interval") == Some("0") {
        outln!("The current down server probe interval is {PROBE_INTERVAL} secs");
        return Ok(());
    }
    let mount = match invocation.get(AT) {
        Some(named) => Some(Mounted::meant(Some(named))?),
        None => Mounted::at(Path::new(".")),
    };
    let fast = invocation.has("fast");
    if fast && mount.is_none() {
        return Err(Failure::usage(
            "-fast shows the record of a mount, and this directory is not in a mount: name one with -at",
        ));
    }
    let cells = cells(invocation, mount.as_ref()).await?;
    let mut failures = Failures::of("fs");
    let mut silent = match mount {
        Some(mount) if fast => met(&mount, &cells)?,
        _ => ask(cells, &mut failures).await?,
    };
    // One machine may serve two cells.
    let mut seen = HashSet::new();
    silent.retain(|server| seen.insert(*server));
    if invocation.has("json") {
        print_json(&json!({ "unavailable": silent }))?;
        return failures.end();
    }
    if silent.is_empty() {
        // A cell that cannot be asked may have silent servers.
        failures.end()?;
        outln!("All servers are running.");
        return Ok(());
    }
    let mut hosts = HostNames::new(!invocation.has("noresolve"));
    hosts.learn(silent.iter().copied()).await;
    let names: String = silent
        .iter()
        .map(|server| format!(" {}", hosts.name(*server)))
        .collect();
    outln!("These servers unavailable due to network or server problems: {names}.");
    failures.end()?;
    Failure::if_any(true)
}

/// The home cell, the named cell, or all cells.
async fn cells(invocation: &Invocation, mount: Option<&Mounted>) -> Outcome<Vec<Cell>> {
    let mut cells = match mount {
        Some(mount) => mount.cells()?,
        None => cell_options(invocation, None).known_cells().await?,
    };
    let named = invocation.get("cell");
    // In the lists the named cell is the first.
    if let (Some(name), Some(_)) = (named, mount) {
        let name = CellName::new(name)?;
        cells.retain(|cell| cell.name == name);
        if cells.is_empty() {
            return Err(cellar_client::Error::UnknownCell(name).into());
        }
    }
    if named.is_some() || !invocation.has("all") {
        cells.truncate(1);
    }
    if cells.is_empty() {
        return Err(Failure::new(
            "no cell is known: there is no ./cell-data here and no CellServDB, and this directory is not in a mount. Name a cell: -cell NAME",
        ));
    }
    Ok(cells)
}

/// The servers that did not answer the mount a short while ago.
fn met(mount: &Mounted, cells: &[Cell]) -> Outcome<Vec<IpAddr>> {
    let lines = mount.lines(control::SILENT)?;
    let silent = lines
        .iter()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| cells.iter().any(|cell| cell.name.as_str() == *name))
        .filter_map(|(_, address)| address.parse().ok());
    Ok(silent.collect())
}

/// Calls the file servers of all cells in parallel. If the databases of a cell do not answer, its
/// database servers are reported as silent. Other errors of a cell are reported, and the other
/// cells are still checked.
async fn ask(cells: Vec<Cell>, failures: &mut Failures) -> Outcome<Vec<IpAddr>> {
    let runtime = Runtime::client_only()?;
    let config = Config {
        cells: cells.clone(),
        administrator: None,
        // The servers answer this call without authentication.
        security: HashMap::new(),
        renewal: None,
    };
    let client = Arc::new(Client::new(runtime.client_port()?, config)?);
    let mut asked = JoinSet::new();
    for (place, cell) in cells.into_iter().enumerate() {
        let client = client.clone();
        asked.spawn(async move {
            let silent = Files::new(&client).silent_servers(&cell).await;
            (place, silent, cell)
        });
    }
    let mut answers = Vec::new();
    while let Some(answer) = asked.join_next().await {
        match answer {
            Ok((place, Ok(silent), _)) => answers.push((place, silent)),
            Ok((place, Err(cellar_admin::Error::Client(error)), cell))
                if error.is_unreachable() =>
            {
                answers.push((place, cell.database_servers));
            }
            Ok((_, Err(error), cell)) => {
                let error = Failure::from(error).but(&format!("cell {}", cell.name));
                failures.note(Err::<(), _>(error));
            }
            Err(cause) => {
                failures.note(Err::<(), _>(Failure::new(cause.to_string())));
            }
        }
    }
    client.goodbye().await;
    runtime.shutdown();
    answers.sort();
    Ok(answers.into_iter().flat_map(|(_, silent)| silent).collect())
}
