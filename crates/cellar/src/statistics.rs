//! `cellar statistics`: prints every counter of a running cell, for its administrator.
//!
//! The server answers on the administrator's socket with one JSON object ([`crate::up`] makes it).
//! Without `--json` it is printed as lines `name  number`, without the zeros. The name is the path
//! in the object, so the user can search for it.

use std::path::PathBuf;

use cellar_rpc::{CallOptions, local};
use cellar_wire::package::{Package, ProcedureInfo, Stream};
use serde_json::Value;

use crate::default_directory;
use crate::failure::{Failure, Outcome};
use crate::output::outln;

/// The service on the administrator's socket; it is on no port.
pub(crate) static PACKAGE: Package = Package {
    name: "CELLAR-STATISTICS",
    service_id: 0,
    port: 0,
    statistics_index: 0,
    procedures: &[ProcedureInfo {
        opcode: SNAPSHOT,
        name: "Snapshot",
        index: 0,
        stream: Stream::Reply,
        refuses: None,
    }],
};

/// Returns the object as JSON text.
pub(crate) const SNAPSHOT: u32 = 1;

/// The largest snapshot accepted; a usual one has some ten thousand bytes.
const BYTES_MAX: usize = 16 << 20;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cellar statistics
  cellar statistics | grep refused
  cellar statistics --json | jq .callbacks")]
pub(crate) struct Options {
    /// Directory of the running cell on this machine. Default: ./cell-data.
    #[arg(long, value_name = "DIR", env = "CELLAR_DIR")]
    dir: Option<PathBuf>,
    /// Print JSON, including zeros.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(options: Options) -> Outcome {
    let directory = default_directory::named_or_default(options.dir.as_deref())?;
    let socket = directory.admin_socket();
    let connection = local::connect(&socket).await.map_err(|cause| {
        Failure::new(format!(
            "{}: {cause}. Is 'cellar up --dir {}' running, and are you root or its owner?",
            socket.display(),
            directory.path().display()
        ))
    })?;
    let request = SNAPSHOT.to_be_bytes().to_vec().into();
    let mut call = connection.open_raw(&PACKAGE, request, CallOptions::default())?;
    let mut text = Vec::new();
    while let Some(chunk) = call.read_chunk().await? {
        text.extend_from_slice(&chunk);
        if text.len() > BYTES_MAX {
            return Err(Failure::new("the server's answer is too long"));
        }
    }
    let snapshot: Value = serde_json::from_slice(&text)?;
    if options.json {
        outln!("{snapshot:#}");
    } else {
        let mut lines = Vec::new();
        flatten(&snapshot, String::new(), &mut lines);
        for (name, value) in lines {
            outln!("{name:<56} {value:>20}");
        }
    }
    Ok(())
}

/// Collects the leaves that are not zero, with their paths. Elements of lists are called by their
/// `name`.
fn flatten(value: &Value, path: String, lines: &mut Vec<(String, String)>) {
    let below = |name: &str| match path.as_str() {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    };
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                // An element's own name is part of its path already.
                if name != "name" || !member.is_string() {
                    flatten(member, below(name), lines);
                }
            }
        }
        Value::Array(elements) => {
            for (index, element) in elements.iter().enumerate() {
                let name = element["name"].as_str();
                let name = name.map_or_else(|| index.to_string(), str::to_owned);
                flatten(element, below(&name), lines);
            }
        }
        Value::Number(number) if number.as_f64() == Some(0.0) => {}
        Value::String(text) => lines.push((path, text.clone())),
        other => lines.push((path, other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn leaves_are_named_by_the_way_to_them() {
        let value = json!({
            "files": { "refused": { "name": 3, "invalid": 0 } },
            "ports": [{ "name": "users", "datagrams_received": 7 }],
        });
        let mut lines = Vec::new();
        flatten(&value, String::new(), &mut lines);
        let line = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            lines,
            [
                line("files.refused.name", "3"),
                line("ports.users.datagrams_received", "7")
            ]
        );
    }
}
