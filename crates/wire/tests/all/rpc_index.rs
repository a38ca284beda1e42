//! `docs/rpc-index.md` lists every procedure that is declared.
//!
//! The status column is edited by hand when a server implements or refuses a procedure; this test
//! keeps the column as it is. `CELLAR_UPDATE=1 cargo test -p cellar-wire --test all rpc_index`
//! rewrites the page.

use std::collections::BTreeMap;
use std::fmt::Write;

use cellar_wire::{Package, Stream};

use crate::packages;

const UNKNOWN: &str = "-";

fn status_of(page: &str) -> BTreeMap<(String, String), String> {
    let mut package = String::new();
    let mut statuses = BTreeMap::new();
    for line in page.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            title
                .split(':')
                .next()
                .unwrap_or_default()
                .clone_into(&mut package);
        }
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        if let [opcode, _, _, status] = cells[..] {
            statuses.insert((package.clone(), opcode.to_owned()), status.to_owned());
        }
    }
    statuses
}

fn section(page: &mut String, package: &Package, statuses: &BTreeMap<(String, String), String>) {
    let port = match package.port {
        0 => "every port of a server".to_owned(),
        port => format!("port {port}"),
    };
    let _ = writeln!(
        page,
        "\n## {}: service {}, {port}\n",
        package.name, package.service_id
    );
    let _ = writeln!(
        page,
        "| Opcode | Procedure | Streams | Status |\n|---|---|---|---|"
    );
    for procedure in package.procedures {
        let stream = match procedure.stream {
            Stream::None => "",
            Stream::Request => "request",
            Stream::Reply => "reply",
            Stream::Both => "both",
        };
        let key = (package.name.to_owned(), procedure.opcode.to_string());
        let status = statuses.get(&key).map_or(UNKNOWN, String::as_str);
        let _ = writeln!(
            page,
            "| {} | {} | {stream} | {status} |",
            procedure.opcode, procedure.name
        );
    }
}

#[test]
fn the_index_names_every_procedure() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/rpc-index.md");
    let current = std::fs::read_to_string(path).unwrap_or_default();
    let statuses = status_of(&current);
    let mut page = String::from(
        "# RPC index\n\n\
         The procedures of all packages, generated from the declarations in `crates/wire`. Only the status column is\n\
         edited by hand. It says *answers*, *refuses* (with the code), or `-` if no server of Cellar has the package.\n\
         `CELLAR_UPDATE=1 cargo test -p cellar-wire --test all rpc_index` rewrites the other columns.\n",
    );
    let mut last = "";
    for message in packages::all_messages() {
        if message.package.name != last {
            last = message.package.name;
            section(&mut page, message.package, &statuses);
        }
    }
    if std::env::var_os("CELLAR_UPDATE").is_some() {
        std::fs::write(path, &page).expect("docs/rpc-index.md can be written");
    } else {
        assert_eq!(current, page, "docs/rpc-index.md is stale");
    }
}
